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
from dataclasses import replace

import torch
from torch import Tensor

from anyxpu import simulate
from anyxpu.onednn import functions
from anyxpu.onednn.convolution import Geometry
from anyxpu.onednn.functions import Unary
from anyxpu.onednn.primitive import form
from anyxpu.onednn.quantized_plans import EIGHT_BITS, Call, Factor, compute
from anyxpu.shim import lib

RESULTS = (torch.float32, torch.bfloat16, torch.float16, *EIGHT_BITS)
_PAIRS = {torch.uint8: torch.int8, torch.int8: torch.int8, torch.float8_e4m3fn: torch.float8_e4m3fn}
"""Dtype of the activation -> that of the weight."""


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
) -> Call:
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
    if dtype not in EIGHT_BITS and (result_scale, result_zero_point) != (1, 0):
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
    return Call(
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
    return compute(call).view(shape)


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
) -> tuple[Call, tuple[int, ...]]:
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
        return compute(call).view(shape)
    if binary_post_op not in ("add", "sum") or other is None:
        raise ValueError(f"no {binary_post_op!r} after {_LINEAR} on xpu; there are add and sum, with what is added")
    rows = _added(call, other, other_scale, other_zero_point, binary_alpha, shape, _LINEAR)
    added = other.reshape(call.shape)
    if binary_post_op == "add":
        return compute(replace(rows, other=added.contiguous())).view(shape)
    if other.dtype != call.dtype:
        raise ValueError(f"a sum in {other.dtype} cannot take {_LINEAR}'s result in {call.dtype}")
    result_ = compute(replace(rows, other=added, into=added))
    if added.data_ptr() != other.data_ptr():  # rows that no strides describe: reshape copied them
        other.copy_(result_.view(other.shape))
    return other


def _added(
    call: Call, other: Tensor, scale: float, zero_point: int, alpha: float, shape: Sequence[int], what: str
) -> Call:
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
    made = compute(call)
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
) -> tuple[Call, bool]:
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
    compute(replace(call, other=target, into=target))
    return accum
