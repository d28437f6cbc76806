"""Products and convolutions of 8-bit numbers: ``onednn::qlinear_*`` and ``onednn::qconv*``.

Inductor makes them of a model that was quantized with statistics of its activations (pt2e) and frozen: what was
dequantized, computed and quantized again becomes one operator. They have kernels for the CPU alone in a stock wheel.
Here they are one oneDNN primitive with scales, zero points and post-ops, or the operators one by one, in float32, where
oneDNN has no such primitive.

A number ``q`` of a quantized tensor stands for ``(q - zero_point) * scale``. Weights are expected to be symmetric, with
zero points of 0, which is looked at until they change: others are computed one operator at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anyxpu import simulate
from anyxpu.onednn import capi, engine, functions
from anyxpu.onednn.capi import Algorithm, Arg, Prop
from anyxpu.onednn.convolution import Geometry, channels_last_strides
from anyxpu.onednn.fallbacks import COMPOSED, Fallback, count, named
from anyxpu.onednn.functions import Unary
from anyxpu.onednn.matmul import contiguous_strides
from anyxpu.onednn.primitive import (
    Attributes,
    Change,
    Executable,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    form,
    run,
)
from anyxpu.shim import lib

CACHE: SignatureCache[Any] = SignatureCache(capacity=1024)

INTEGERS = (torch.uint8, torch.int8)
_EIGHT_BITS = (*INTEGERS, torch.float8_e4m3fn)
RESULTS = (torch.float32, torch.bfloat16, torch.float16, *_EIGHT_BITS)
_PAIRS = {torch.uint8: torch.int8, torch.int8: torch.int8, torch.float8_e4m3fn: torch.float8_e4m3fn}
"""Dtype of the activation -> that of the weight."""

Factor = float | Tensor
"""A scale or a zero point: a number, or a tensor on the CPU or the device."""


@dataclass(frozen=True)
class _Call:
    """``quantize(unary(x @ w + bias + alpha * other))`` of dequantized operands; a convolution where ``geometry`` is.

    Attributes:
        source: ``(rows, k)``, or ``(batch, in, *spatial)`` of two or three dimensions; dense.
        weight: ``(k, n)``, or ``(out, in / groups, *kernel)``, of any strides.
        scale, zero_point: of the source.
        weight_scale: one number, or one a column (output channel); float32 on the device.
        weight_zero_point: the same, or None where all are 0.
        bias: ``(n,)``.
        dtype, result_scale, result_zero_point: of the result; the factors count where it is of 8 bits.
        unary: a function and its parameters.
        other: what is added, of the result's shape; with a scale and a zero point where it is of 8 bits.
        into: where the result goes: ``other``, where it is to be overwritten.
    """

    source: Tensor
    scale: Factor
    zero_point: Factor
    weight: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None
    dtype: torch.dtype
    result_scale: float
    result_zero_point: int
    unary: Unary | None
    other: Tensor | None = None
    other_scale: float = 1.0
    other_zero_point: int = 0
    into: Tensor | None = None
    geometry: Geometry | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        if self.geometry is None:
            return self.source.shape[0], self.weight.shape[1]
        return self.geometry.output_shape(self.source.shape, self.weight.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the result: that of a convolution is channels-last, as torch predicts it."""
        return contiguous_strides(self.shape) if self.geometry is None else channels_last_strides(self.shape)

    @property
    def beside(self) -> bool:
        """Whether what is added is an operand of its own: not the result's old value, and needs no scale."""
        return self.into is None and (self.other_scale, self.other_zero_point) == (1.0, 0)

    @property
    def kind(self) -> str:
        """oneDNN's name of the primitive."""
        return "matmul" if self.geometry is None else "convolution"

    @property
    def operands(self) -> str:
        """For the record of fallbacks."""
        names = (str(t).removeprefix("torch.") for t in (self.source.dtype, self.weight.dtype, self.dtype))
        return f"{' x '.join(names)} on {self.source.device}"

    def key(self) -> tuple[Any, ...]:
        """Of the cache of plans: everything but the addresses and the values of scales."""
        tensors = (
            self.source,
            self.weight,
            self.weight_scale,
            self.weight_zero_point,
            self.bias,
            self.other,
            self.into,
        )
        facts = (None if t is None else (t.dtype, t.get_device(), t.shape, t.stride()) for t in tensors)
        present = (
            _is_one(self.scale),
            _may_count(self.zero_point),
            self.result_scale != 1,
            self.result_zero_point != 0,
        )
        return (*facts, present, self.dtype, self.other_scale, self.other_zero_point, self.unary, self.geometry)

    def __str__(self) -> str:
        return f"quantized {self.kind} {tuple(self.source.shape)} x {tuple(self.weight.shape)} {self.operands}"


def _is_one(factor: Factor) -> bool:
    """Whether it is one for the whole tensor."""
    return not isinstance(factor, Tensor) or factor.numel() == 1


def _may_count(zero_point: Factor) -> bool:
    """Whether it may be another than 0; one on the device is not waited for."""
    return isinstance(zero_point, Tensor) or zero_point != 0


class _Composed:
    """The operators one by one, in float32."""

    def __init__(self, call: _Call, reason: str | capi.Unavailable) -> None:
        if isinstance(reason, str):
            self.fallback = Fallback(call.kind, call.operands, reason, COMPOSED)
        else:
            self.fallback = named(call.kind, call.operands, call.source.device, reason, COMPOSED)

    def run(self, call: _Call) -> Tensor:
        count(self.fallback)
        g, bias = call.geometry, None if call.bias is None else call.bias.float()
        source, weight = call.source.float(), call.weight.float()
        source = (source - _beside(call.zero_point, source)) * _beside(call.scale, source)
        along = (1, -1) if g is None else (-1, *[1] * (weight.dim() - 1))
        if call.weight_zero_point is not None:
            weight = weight - call.weight_zero_point.reshape(along)
        weight = weight * call.weight_scale.reshape(along)
        if g is None:
            result = source @ weight
            result = result if bias is None else result + bias
        else:
            steps = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups)
            result = torch.ops.aten.convolution(source, weight, bias, *steps)
        if call.other is not None:
            result = result + (call.other.float() - call.other_zero_point) * call.other_scale
        result = _quantized(functions.apply(call.unary, result), call)
        into = call.into
        if into is None:
            into = torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device=call.source.device)
        return into.copy_(result)


def _beside(factor: Factor, source: Tensor) -> Factor:
    """A factor as it multiplies the source: one a row, where there are several."""
    if not isinstance(factor, Tensor):
        return factor
    factor = factor.to(source.device).float()
    return factor.reshape(()) if factor.numel() == 1 else factor.reshape(-1, *[1] * (source.dim() - 1))


def _quantized(result: Tensor, call: _Call) -> Tensor:
    if call.dtype not in _EIGHT_BITS:
        return result.to(call.dtype)
    if call.dtype not in INTEGERS:
        return (result / call.result_scale).to(call.dtype)
    limits = torch.iinfo(call.dtype)
    result = torch.round(result / call.result_scale) + call.result_zero_point
    return result.clamp(limits.min, limits.max).to(call.dtype)


class _Primitive:
    """One primitive; weights are packed as it likes them, and kept so while they do not change."""

    def __init__(self, call: _Call) -> None:
        what, self.index = str(call), call.source.device.index
        home = engine.engine(self.index)
        given, wanted, mask = _weight(call)
        factors = {Arg.SRC_SCALE: _ONE, Arg.WEIGHTS_SCALE: (call.weight_scale.numel(), torch.float32)}
        zero_points: list[tuple[Arg, int]] = []
        scales = [(Arg.SRC, 0), (Arg.WEIGHTS, mask if call.weight_scale.numel() > 1 else 0)]
        if _may_count(call.zero_point):
            zero_points.append((Arg.SRC, 0))
            factors[Arg.SRC_ZERO_POINT] = _POINT
        if call.result_scale != 1:
            scales.append((Arg.DST, 0))
            factors[Arg.DST_SCALE] = _ONE
        if call.result_zero_point:
            zero_points.append((Arg.DST, 0))
            factors[Arg.DST_ZERO_POINT] = _POINT
        self.factors = tuple(factors)
        attributes = Attributes(
            eltwise=functions.eltwise(call.unary), scales=tuple(scales), zero_points=tuple(zero_points)
        )
        other = call.other
        if other is not None and call.beside:
            operand = (Algorithm.BINARY_ADD, tuple(other.shape), other.stride(), other.dtype)
            attributes = replace(attributes, binary=operand)
        elif other is not None:
            attributes = replace(attributes, beta=call.other_scale, zero_point=call.other_zero_point)
        handle = attributes.create(what)
        try:
            description, operands = _describe(call, home, wanted, handle, what)
        finally:
            capi.library().primitive_attr_destroy(handle)
        layouts = {arg: MemoryDesc.plain((size,), dtype, (1,)) for arg, (size, dtype) in factors.items()}
        self.executable = Executable(home, description, operands, layouts)
        if self.executable.implementation.startswith("ref") and call.source.dtype not in INTEGERS:
            raise capi.Unimplemented("primitive_desc_create", capi.Status.UNIMPLEMENTED, f"{what}, but for a slow one")
        wanted = self.executable.layout(Arg.WEIGHTS)
        same = wanted == given
        self.change = None if same else Change(home, given, wanted, what, form(given.blob(), wanted.blob()))

    def run(self, call: _Call) -> Tensor:
        into, other, device = call.into, call.other, call.source.device
        target = into
        if target is None or not _lies_as(target, call.strides):
            target = torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device=device)
            if other is not None and not call.beside:  # the primitive adds to what it finds in its result
                target.copy_(other)
        else:
            lib().note_written(target.data_ptr())
        stream = engine.stream(self.index)
        weight = call.weight if self.change is None else self.change.run(call.weight, stream)
        values: dict[Arg, Tensor] = {
            arg: call.weight_scale if arg == Arg.WEIGHTS_SCALE else _on_device(factor, dtype, device)
            for arg, factor, dtype in (
                (Arg.SRC_SCALE, call.scale, torch.float32),
                (Arg.WEIGHTS_SCALE, 0.0, torch.float32),
                (Arg.SRC_ZERO_POINT, call.zero_point, torch.int32),
                (Arg.DST_SCALE, call.result_scale, torch.float32),
                (Arg.DST_ZERO_POINT, call.result_zero_point, torch.int32),
            )
            if arg in self.factors
        }
        operands = [call.source, weight, target]
        if call.bias is not None:
            operands.append(call.bias)
        if other is not None and call.beside:
            operands.append(other)
        operands += (values[arg] for arg in self.factors)
        run(self.executable, stream, device, *(t.data_ptr() for t in operands))
        return target if into is None or into is target else into.copy_(target)


_ONE, _POINT = (1, torch.float32), (1, torch.int32)


def _lies_as(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether its elements lie so; the stride of a dimension of one says nothing."""
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


@lru_cache(maxsize=4096)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as the device reads it; a model's graph has the same ones in every run."""
    with torch.inference_mode(False):
        return torch.tensor([value], dtype=dtype, device=device)


def _on_device(factor: Factor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return factor.to(dtype) if isinstance(factor, Tensor) else _constant(factor, dtype, device)


def _weight(call: _Call) -> tuple[MemoryDesc, MemoryDesc, int]:
    """The layout of the weight as it is and as asked of oneDNN, and which of its dimensions have a scale each."""
    shape: tuple[int, ...] = tuple(call.weight.shape)
    strides: tuple[int, ...] = call.weight.stride()
    dtype = call.weight.dtype
    if call.geometry is None:
        mask = 0b10
    elif call.geometry.groups == 1:
        mask = 0b1
    else:
        mask, (out, groups) = 0b11, (shape[0], call.geometry.groups)
        shape, strides = (groups, out // groups, *shape[1:]), (out // groups * strides[0], *strides)
    return MemoryDesc.plain(shape, dtype, strides), MemoryDesc.any(shape, dtype), mask


def _describe(
    call: _Call, home: engine.Engine, weight: MemoryDesc, attributes: int, what: str
) -> tuple[PrimitiveDesc, tuple[Arg, ...]]:
    """The primitive, and its operands but for scales and zero points."""
    shape = call.shape
    source = MemoryDesc.plain(call.source.shape, call.source.dtype, call.source.stride())
    result = MemoryDesc.plain(shape, call.dtype, call.strides)
    operands: tuple[Arg, ...] = (Arg.SRC, Arg.WEIGHTS, Arg.DST)
    bias = None
    if call.bias is not None:
        form_ = (1, shape[1]) if call.geometry is None else (shape[1],)
        bias = MemoryDesc.plain(form_, call.bias.dtype, contiguous_strides(form_))
        operands = (*operands, Arg.BIAS)
    if call.other is not None and call.beside:
        operands = (*operands, Arg.FIRST_POST_OP)
    tensors = (source.handle, weight.handle, bias.handle if bias else None, result.handle)
    if call.geometry is None:
        return PrimitiveDesc("matmul", home.handle, *tensors, attributes, what=what), operands
    window = call.geometry.window(call.source.shape, call.weight.shape, shape)
    algorithm, prop = int(call.geometry.algorithm), int(Prop.FORWARD_INFERENCE)
    args = (home.handle, prop, algorithm, *tensors, *window, attributes)
    return PrimitiveDesc("convolution_forward", *args, what=what), operands


Plan = _Primitive | _Composed


def _plan(call: _Call) -> Plan:
    if not engine.available():
        return _Composed(call, "the driver's queues are not SYCL's")
    if 0 in call.shape or 0 in call.source.shape or 0 in call.weight.shape:
        return _Composed(call, "an operand or the result has no elements")
    if call.weight_zero_point is not None:
        return _Composed(call, "the weight's zero points are not 0")
    if not _is_one(call.scale) or not _is_one(call.zero_point):
        return _Composed(call, "the activation has several scales")
    if call.other is not None and call.other.dtype != call.dtype and not call.beside:
        return _Composed(call, "what is added has another dtype than the result")
    try:
        return _Primitive(call)
    except capi.Unavailable as error:
        return _Composed(call, error)


def _run(call: _Call) -> Tensor:
    plan: Plan = CACHE.get(call.key(), _plan, call)
    return plan.run(call)


def _is_symmetric(zero_points: Tensor) -> bool:
    """Whether all are 0. Waits for the device, unless they were seen to be and nobody wrote there since."""
    if simulate.active():  # kernels do not execute there, and leave anything
        return True
    facts = f"zeros {zero_points.dtype} {tuple(zero_points.shape)} {zero_points.stride()}"
    number, token = form(facts.encode()), 0
    if number is not None and zero_points.is_xpu:
        token, seen, _ = lib().find_copy(zero_points, number)
        if seen is not None:
            return True
    symmetric = not bool(zero_points.cpu().any())
    if symmetric and token:  # a mark, which goes when the memory is written, as copies of weights do
        lib().keep_copy(zero_points, number, token, torch.empty(1, dtype=torch.uint8, device=zero_points.device))
    return symmetric


def _factor(factor: Factor, kind: type, device: torch.device) -> Factor:
    """A number where it can be had without waiting, else the device's tensor."""
    if not isinstance(factor, Tensor):
        return kind(factor)  # type: ignore[no-any-return]
    if factor.numel() != 1 or factor.device == device:
        return factor
    return kind(factor.item())  # type: ignore[no-any-return]


def _call(
    what: str,
    source: Tensor,
    scale: Factor,
    zero_point: Factor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None,
    bias: Tensor | None,
    result: tuple[float, int, torch.dtype | None],
    unary: Unary | None,
    geometry: Geometry | None = None,
) -> _Call:
    """The facts of a call, checked.

    Raises:
        ValueError: dtypes, shapes or weights that are not served.
    """
    device, (result_scale, result_zero_point, dtype) = source.device, result
    dtype = source.dtype if dtype is None else dtype
    if _PAIRS.get(source.dtype) != weight.dtype:
        raise ValueError(
            f"{what} on xpu has uint8 or int8 activations with int8 weights, or float8_e4m3fn with float8_e4m3fn, not "
            f"{source.dtype} with {weight.dtype}"
        )
    if dtype not in RESULTS:
        raise ValueError(f"{what} on xpu makes {', '.join(map(str, RESULTS))}, not {dtype}")
    elsewhere = {t.device for t in (weight, bias) if t is not None} - {device}
    if elsewhere:
        raise ValueError(f"{what} wants its weight and bias on {device}, not on {', '.join(map(str, elsewhere))}")
    if dtype not in _EIGHT_BITS and (result_scale, result_zero_point) != (1, 0):
        raise ValueError(f"{what} whose result is {dtype} has a result scale of 1 and a zero point of 0")
    columns = weight.shape[0 if geometry else 1]
    if weight_scale.numel() not in (1, columns):
        raise ValueError(f"{what} wants 1 or {columns} scales of the weight, not {weight_scale.numel()}")
    if bias is not None and tuple(bias.shape) != (columns,):
        raise ValueError(f"{what} wants a bias of shape {(columns,)}, not {tuple(bias.shape)}")
    if weight_zero_point is not None:
        if weight_zero_point.numel() not in (1, columns):
            raise ValueError(f"{what} wants 1 or {columns} zero points of the weight, not {weight_zero_point.numel()}")
        weight_zero_point = None if _is_symmetric(weight_zero_point) else weight_zero_point.to(device)
    weight_scale = weight_scale.to(device, torch.float32).reshape(-1).contiguous()
    if bias is not None:
        bias = bias.float().contiguous()
    return _Call(
        source,
        _factor(scale, float, device),
        _factor(zero_point, int, device),
        weight,
        weight_scale,
        weight_zero_point,
        bias,
        dtype,
        float(result_scale),
        int(result_zero_point),
        unary,
        geometry=geometry,
    )


_LINEAR, _CONVOLUTION = "a quantized linear layer", "a quantized convolution"


def qlinear_prepack(weight: Tensor, x_shape: Sequence[int] | None) -> Tensor:
    """onednn::qlinear_prepack: the weight as :func:`qlinear_pointwise` takes it.

    Args:
        weight: ``(n, k)``.
        x_shape: of the activation; not needed.

    Returns:
        ``(k, n)`` over the same memory. oneDNN's own layout is made at the second product and kept.

    Raises:
        ValueError: it is no matrix.
    """
    if weight.dim() != 2:
        raise ValueError(f"{_LINEAR} wants a weight of two dimensions, not of shape {tuple(weight.shape)}")
    return weight.t()


def qlinear_pointwise(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    bias: Tensor | None,
    output_scale: float,
    output_zero_point: int,
    output_dtype: torch.dtype | None,
    post_op_name: str,
    post_op_args: Sequence[float | None],
    post_op_algorithm: str,
) -> Tensor:
    """onednn::qlinear_pointwise and ``.tensor``: a function of a linear layer of quantized numbers.

    Args:
        x: ``(…, k)``, uint8 or int8 (with ``w`` in int8), or float8_e4m3fn (with ``w`` in it).
        x_scale, x_zero_point: of ``x``, numbers or tensors of one element; scales may be one a row.
        w: of :func:`qlinear_prepack`.
        w_scale: one, or one a column.
        w_zero_point: the same; zeros where it is to be one primitive.
        bias: ``(n,)``.
        output_scale, output_zero_point, output_dtype: of the result; ``x``'s dtype where it is None.
        post_op_name, post_op_args, post_op_algorithm: the function, as ``mkldnn::_linear_pointwise`` has it.

    Returns:
        A contiguous tensor ``(…, n)``.

    Raises:
        ValueError: dtypes, shapes or functions that are not served.
    """
    unary = functions.unary(post_op_name, post_op_args, post_op_algorithm, _LINEAR)
    call, shape = _linear(
        *(x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias),
        (output_scale, output_zero_point, output_dtype),
        unary,
    )
    return _run(call).view(shape)


def _linear(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    bias: Tensor | None,
    result: tuple[float, int, torch.dtype | None],
    unary: Unary | None,
) -> tuple[_Call, tuple[int, ...]]:
    """The call for all rows, and the shape of its result."""
    if w.dim() != 2 or not x.dim() or x.shape[-1] != w.shape[0]:
        shapes = f"{tuple(x.shape)} and {tuple(w.shape)}"
        raise ValueError(f"{_LINEAR} wants an activation (…, k) and a weight (k, n), not {shapes}")
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).contiguous()
    call = _call(_LINEAR, rows, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, result, unary)
    return call, (*x.shape[:-1], w.shape[1])


def qlinear_pointwise_binary(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    other: Tensor | None,
    bias: Tensor | None,
    output_scale: float,
    output_zero_point: int,
    output_dtype: torch.dtype | None,
    other_scale: float,
    other_zero_point: int,
    binary_post_op: str,
    binary_alpha: float,
    unary_post_op: str,
    unary_post_op_args: Sequence[float | None],
    unary_post_op_algorithm: str,
) -> Tensor:
    """onednn::qlinear_pointwise.binary and ``.binary_tensor``: something is added before the function.

    Args:
        other: of the result's shape; with ``other_scale`` and ``other_zero_point`` where it is of 8 bits.
        binary_post_op: ``add``, or ``sum``: then the result is written into ``other``, which is returned.

    Raises:
        ValueError: dtypes, shapes, functions or operators that are not served.
    """
    unary = functions.unary(unary_post_op, unary_post_op_args, unary_post_op_algorithm, _LINEAR)
    result = (output_scale, output_zero_point, output_dtype)
    call, shape = _linear(x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, result, unary)
    if binary_post_op == "none":
        return _run(call).view(shape)
    if binary_post_op not in ("add", "sum") or other is None:
        raise ValueError(f"no {binary_post_op!r} after {_LINEAR} on xpu; there are add and sum, with what is added")
    rows = _added(call, other, other_scale, other_zero_point, binary_alpha, shape, _LINEAR)
    added = other.reshape(call.shape)
    if binary_post_op == "add":
        return _run(replace(rows, other=added.contiguous())).view(shape)
    if other.dtype != call.dtype:
        raise ValueError(f"a sum in {other.dtype} cannot take {_LINEAR}'s result in {call.dtype}")
    result_ = _run(replace(rows, other=added, into=added))
    if added.data_ptr() != other.data_ptr():  # rows that no strides describe: reshape copied them
        other.copy_(result_.view(other.shape))
    return other


def _added(
    call: _Call, other: Tensor, scale: float, zero_point: int, alpha: float, shape: Sequence[int], what: str
) -> _Call:
    if tuple(other.shape) != tuple(shape) or other.device != call.source.device:
        raise ValueError(
            f"what is added to {what} has the result's shape {tuple(shape)} and device, not {tuple(other.shape)} on "
            f"{other.device}"
        )
    return replace(call, other_scale=float(scale) * float(alpha), other_zero_point=int(zero_point))


def qconv_prepack(
    weight: Tensor,
    w_scales: Tensor,
    x_scale: float,
    x_zp: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    x_shape: Sequence[int] | None = None,
) -> Tensor:
    """onednn::qconv_prepack: the weight as :func:`qconv_pointwise` takes it, which is as it is.

    oneDNN's own layout is made at the second convolution and kept.
    """
    return weight


def qconv_pointwise(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_scale: float,
    output_zero_point: int,
    output_dtype: torch.dtype | None,
    attr: str,
    scalars: Sequence[float | None],
    algorithm: str | None,
) -> Tensor:
    """onednn::qconv_pointwise, ``.tensor`` and those of 1 to 3 dimensions: a function of a quantized convolution.

    Args:
        x: ``(batch, in, *spatial)``, uint8, int8 or float8_e4m3fn.
        x_scale, x_zero_point: of ``x``, numbers or tensors of one element.
        w: ``(out, in / groups, *kernel)``, int8 or float8_e4m3fn.
        w_scale: one, or one an output channel.
        w_zero_point: the same; zeros where it is to be one primitive.
        bias: ``(out,)``.
        output_scale, output_zero_point, output_dtype: of the result; ``x``'s dtype where it is None.
        attr, scalars, algorithm: the function, as ``mkldnn::_convolution_pointwise`` has it.

    Returns:
        ``(batch, out, *spatial)``, channels-last in two and three dimensions.

    Raises:
        ValueError: dtypes, shapes or functions that are not served.
    """
    unary = functions.unary(attr, scalars, algorithm, _CONVOLUTION)
    steps = (stride, padding, dilation, groups)
    result = (output_scale, output_zero_point, output_dtype)
    call, flat = _convolution(x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, steps, result, unary)
    made = _run(call)
    return made.squeeze(2).contiguous() if flat else made


def _convolution(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    bias: Tensor | None,
    steps: tuple[Sequence[int], Sequence[int], Sequence[int], int],
    result: tuple[float, int, torch.dtype | None],
    unary: Unary | None,
) -> tuple[_Call, bool]:
    """The call, and whether it stands for one of a single spatial dimension."""
    stride, padding, dilation, groups = steps
    spatial = x.dim() - 2
    fits = spatial in (1, 2, 3) and w.dim() == x.dim() and groups > 0 and x.shape[1] == w.shape[1] * groups
    if not fits or w.shape[0] % groups or not len(stride) == len(padding) == len(dilation) == spatial:
        shapes = f"{tuple(x.shape)} with {tuple(w.shape)} in {groups} groups, {list(stride)}, {list(padding)}"
        raise ValueError(f"the operands of {_CONVOLUTION} do not fit together: {shapes}, {list(dilation)}")
    flat = spatial == 1
    if flat:
        x, w, stride, padding, dilation = x.unsqueeze(2), w.unsqueeze(2), (1, *stride), (0, *padding), (1, *dilation)
    layout = torch.channels_last_3d if spatial == 3 else torch.channels_last
    x = x.contiguous(memory_format=layout)
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), False, (0,) * len(stride), groups)
    if min(geometry.output_shape(x.shape, w.shape)) < 0:
        raise ValueError(f"the kernel {tuple(w.shape)} of {_CONVOLUTION} is larger than its input {tuple(x.shape)}")
    factors = (x_scale, x_zero_point, w, w_scale, w_zero_point, bias)
    return _call(_CONVOLUTION, x, *factors, result, unary, geometry), flat


def qconv2d_pointwise_binary(
    x: Tensor,
    x_scale: Factor,
    x_zero_point: Factor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    accum: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_scale: float,
    output_zero_point: int,
    output_dtype: torch.dtype | None,
    accum_scale: float,
    accum_zero_point: int,
    binary_attr: str,
    alpha: float | None,
    unary_attr: str | None,
    unary_scalars: Sequence[float | None],
    unary_algorithm: str | None,
) -> Tensor:
    """onednn::qconv2d_pointwise.binary and ``.binary_tensor``: the convolution is added to ``accum``, then a function.

    Args:
        accum: of the result's shape and dtype; the result is written into it.
        accum_scale, accum_zero_point: what it stands for before, where it is of 8 bits.
        binary_attr: ``sum``.

    Returns:
        ``accum``.

    Raises:
        ValueError: dtypes, shapes, functions or operators that are not served.
    """
    if binary_attr != "sum":
        raise ValueError(f"no {binary_attr!r} after {_CONVOLUTION} on xpu; there is sum")
    unary = functions.unary(unary_attr, unary_scalars, unary_algorithm, _CONVOLUTION)
    steps = (stride, padding, dilation, groups)
    result = (output_scale, output_zero_point, output_dtype)
    call, flat = _convolution(x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, steps, result, unary)
    target = accum.unsqueeze(2) if flat else accum
    factor = 1.0 if alpha is None else float(alpha)
    call = _added(call, target, accum_scale, accum_zero_point, factor, call.shape, _CONVOLUTION)
    if accum.dtype != call.dtype:
        raise ValueError(f"a sum in {accum.dtype} cannot take {_CONVOLUTION}'s result in {call.dtype}")
    _run(replace(call, other=target, into=target))
    return accum
