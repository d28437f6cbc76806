"""How one product or convolution of 8-bit numbers is computed: by one oneDNN primitive, or one operator at a time.

The operators that ask for it are in :mod:`anyxpu.onednn.quantized`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine, functions
from anyxpu.onednn.capi import Algorithm, Arg, Prop
from anyxpu.onednn.convolution import Geometry, channels_last_strides
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, Declined, Fallback, count, named
from anyxpu.onednn.functions import Unary
from anyxpu.onednn.matmul import contiguous_strides
from anyxpu.onednn.primitive import (
    Attributes,
    Change,
    Executable,
    Factors,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    describable,
    form,
    run,
)
from anyxpu.shim import lib

CACHE: SignatureCache[Any] = SignatureCache(capacity=1024)

INTEGERS = (torch.uint8, torch.int8)
EIGHT_BITS = (*INTEGERS, torch.float8_e4m3fn)
Factor = float | Tensor
"""A scale or a zero point: a number, or a tensor on the CPU or the device."""


@dataclass(frozen=True)
class Call:
    """``quantize(unary(x @ w + bias + alpha * other))`` of dequantized operands; a convolution where ``geometry`` is.

    Attributes:
        source: ``(rows, k)``, or ``(batch, in, *spatial)`` of two or three dimensions; dense.
        weight: ``(k, n)``, or ``(out, in / groups, *kernel)``, of any strides.
        scale, zero_point: of the source.
        weight_scale: one number, or one a column (output channel); float32 on the device. None for a product of
            integers as they are, whose result is int32.
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
    weight_scale: Tensor | None
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

    def __init__(self, call: Call, reason: str | capi.Unavailable) -> None:
        if isinstance(reason, str):
            self.fallback = Fallback(call.kind, call.operands, reason, COMPOSED)
        else:
            self.fallback = named(call.kind, call.operands, call.source.device, reason, COMPOSED)

    def run(self, call: Call) -> Tensor:
        count(self.fallback)
        g, bias = call.geometry, None if call.bias is None else call.bias.float()
        source, weight = call.source.float(), call.weight.float()
        source = (source - _beside(call.zero_point, source)) * _beside(call.scale, source)
        along = (1, -1) if g is None else (-1, *[1] * (weight.dim() - 1))
        if call.weight_zero_point is not None:
            weight = weight - call.weight_zero_point.reshape(along)
        assert call.weight_scale is not None
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


def _quantized(result: Tensor, call: Call) -> Tensor:
    if call.dtype not in EIGHT_BITS:
        return result.to(call.dtype)
    if call.dtype not in INTEGERS:
        return (result / call.result_scale).to(call.dtype)
    limits = torch.iinfo(call.dtype)
    result = torch.round(result / call.result_scale) + call.result_zero_point
    return result.clamp(limits.min, limits.max).to(call.dtype)


class _Primitive:
    """One primitive; weights are packed as it likes them, and kept so while they do not change."""

    def __init__(self, call: Call) -> None:
        what, self.index = str(call), call.source.device.index
        home = engine.engine(self.index)
        given, wanted, mask = _weight(call)
        factors: dict[Arg, tuple[int, torch.dtype]] = {}
        scales: list[Factors] = []
        zero_points: list[Factors] = []
        if call.weight_scale is not None:
            factors = {Arg.SRC_SCALE: _ONE, Arg.WEIGHTS_SCALE: (call.weight_scale.numel(), torch.float32)}
            mask = mask if call.weight_scale.numel() > 1 else 0
            scales = [Factors(Arg.SRC, 0, torch.float32), Factors(Arg.WEIGHTS, mask, torch.float32)]
        if _may_count(call.zero_point):
            zero_points.append(Factors(Arg.SRC, 0, torch.int32))
            factors[Arg.SRC_ZERO_POINT] = _POINT
        if call.result_scale != 1:
            scales.append(Factors(Arg.DST, 0, torch.float32))
            factors[Arg.DST_SCALE] = _ONE
        if call.result_zero_point:
            zero_points.append(Factors(Arg.DST, 0, torch.int32))
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
        if self.executable.is_reference and call.source.dtype not in INTEGERS:
            raise capi.Unimplemented("primitive_desc_create", capi.Status.UNIMPLEMENTED, f"{what}, but for a slow one")
        wanted = self.executable.layout(Arg.WEIGHTS)
        same = wanted == given
        self.change = None if same else Change(home, given, wanted, what, form(given.blob(), wanted.blob()))

    def run(self, call: Call) -> Tensor:
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
            arg: _on_device(factor, dtype, device)
            for arg, factor, dtype in (
                (Arg.SRC_SCALE, call.scale, torch.float32),
                (Arg.WEIGHTS_SCALE, call.weight_scale, torch.float32),
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


def _on_device(factor: Factor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    assert factor is not None
    return factor.to(dtype) if isinstance(factor, Tensor) else _constant(factor, dtype, device)


def _weight(call: Call) -> tuple[MemoryDesc, MemoryDesc, int]:
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
    call: Call, home: engine.Engine, weight: MemoryDesc, attributes: int, what: str
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


class _Parts:
    """A product of integers by products of float32 that are exact: of so few numbers that 24 bits hold the sum."""

    MOST = 2**24 // (255 * 128)

    def __init__(self, call: Call, reason: str) -> None:
        self.fallback = Fallback(call.kind, call.operands, reason, FLOAT32)

    def run(self, call: Call) -> Tensor:
        count(self.fallback)
        into = call.into
        if into is None:
            into = torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device=call.source.device)
        for first in range(0, call.source.shape[1], self.MOST):
            some = slice(first, first + self.MOST)
            product = call.source[:, some].float() @ call.weight[some].float()
            if first:
                into += product.to(call.dtype)
            else:
                into.copy_(product)
        return into


class _Absent:
    """A product of integers, which float32 does not hold, so that it is no composition."""

    def __init__(self, reason: str | capi.Unavailable, call: Call) -> None:
        self.declined = Declined(Fallback(call.kind, call.operands, str(reason)))

    def run(self, call: Call) -> Any:
        return self.declined.run()


Plan = _Primitive | _Composed | _Parts | _Absent

SATURATES = "the CPU has no VNNI, without which oneDNN adds pairs of products up in 16 bits, where they do not fit"


def _saturates(call: Call) -> bool:
    """Whether oneDNN's sums of integers may be wrong."""
    on_cpu = lib().properties(call.source.get_device()).type == "cpu"
    return call.source.dtype in INTEGERS and on_cpu and not torch.cpu._is_vnni_supported()


def _plan(call: Call) -> Plan:
    if call.weight_scale is None:
        if _saturates(call):
            return _Parts(call, SATURATES)
        try:
            return _Primitive(call) if engine.available() else _Absent("the driver's queues are not SYCL's", call)
        except capi.Unavailable as error:
            return _Absent(error, call)
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
    if _saturates(call):
        return _Composed(call, SATURATES)
    try:
        return _Primitive(call)
    except capi.Unavailable as error:
        return _Composed(call, error)


def compute(call: Call) -> Any:
    """The result of a call, in ``call.into`` where that is given.

    Returns:
        ``NotImplemented`` for a product of integers as they are that oneDNN does not have.
    """
    if not describable(call.weight.shape, call.weight.stride()):
        call = replace(call, weight=call.weight.contiguous())
    plan: Plan = CACHE.get(call.key(), _plan, call)
    return plan.run(call)
