"""Operators that are a few others in a row, each of which has a kernel here: gates, statistics, selections.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has 16 bits is computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, taking, whole
from anyxpu.shim import lib

_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_NARROW)


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in _NARROW else t


# --- of floats ----------------------------------------------------------------------------------------------------


def _alike(x: Tensor, *others: Tensor | None) -> bool:
    """Floats of one type on one device."""
    return x.dtype in _FLOATS and all(t is None or (t.dtype, t.device) == (x.dtype, x.device) for t in others)


def log_sigmoid(x: Tensor) -> Any:
    """aten::log_sigmoid_forward: the logarithm of the sigmoid; the buffer is empty, as on every accelerator."""
    if x.dtype not in _FLOATS:
        return NotImplemented
    wide = _wide(x)
    made = wide.clamp(max=0) - torch.log1p(torch.exp(-wide.abs()))
    return made.to(x.dtype), torch.empty(0, dtype=x.dtype, device=x.device)


def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Any:
    """aten::log_sigmoid_backward."""
    if not _alike(x, grad):
        return NotImplemented
    return (_wide(grad) * torch.sigmoid(-_wide(x))).to(x.dtype)


# --- gates --------------------------------------------------------------------------------------------------------


def glu(x: Tensor, dim: int = -1) -> Any:
    """aten::glu: the first half along ``dim`` times the sigmoid of the second."""
    if x.dtype not in _FLOATS or x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return NotImplemented
    value, gate = (_wide(t) for t in x.chunk(2, dim))
    return (value * torch.sigmoid(gate)).to(x.dtype)


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Any:
    """aten::glu_backward."""
    if not _alike(x, grad) or x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return NotImplemented
    value, gate = (_wide(t) for t in x.chunk(2, dim))
    opened = torch.sigmoid(gate)
    first = _wide(grad) * opened
    return torch.cat([first.to(x.dtype), (first * (1 - opened) * value).to(x.dtype)], dim)


def glu_jvp(glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> Any:
    """aten::glu_jvp: the tangent of :func:`glu` for a tangent ``dx`` of x; ``glu`` is its result."""
    if not _alike(x, glu, dx) or x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return NotImplemented
    opened = torch.sigmoid(_wide(x.chunk(2, dim)[1]))
    first, second = (_wide(t) for t in dx.chunk(2, dim))
    return (first * opened + _wide(glu) * (1 - opened) * second).to(x.dtype)


def glu_backward_jvp(
    grad_x: Tensor, grad_glu: Tensor, x: Tensor, dgrad_glu: Tensor, dx: Tensor, dim: int
) -> Any:  # fmt: skip
    """aten::glu_backward_jvp: the tangent of :func:`glu_backward`'s result, ``grad_x``."""
    if not _alike(x, grad_x, grad_glu, dgrad_glu, dx):
        return NotImplemented
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return NotImplemented
    (value, gate), (dvalue, dgate) = ([_wide(t) for t in of.chunk(2, dim)] for of in (x, dx))
    grad, dgrad, opened = _wide(grad_glu), _wide(dgrad_glu), torch.sigmoid(gate)
    slope = opened * (1 - opened)
    first = dgrad * opened + grad * slope * dgate
    second = dgrad * slope * value + grad * (slope * (1 - 2 * opened) * dgate * value + slope * dvalue)
    return torch.cat([first.to(x.dtype), second.to(x.dtype)], dim)


def add_relu(x: Tensor, other: Any, *, alpha: float = 1) -> Any:
    """aten::_add_relu: the sum, and 0 where it is negative."""
    return torch.relu(torch.add(x, other, alpha=alpha))


def add_relu_number(x: Tensor, other: float, alpha: float = 1) -> Any:
    """aten::_add_relu.Scalar."""
    return add_relu(x, other, alpha=alpha)


def add_relu_(x: Tensor, other: Any, *, alpha: float = 1) -> Any:
    """aten::_add_relu_: :func:`add_relu` into x."""
    return x.add_(other, alpha=alpha).relu_()


def add_relu_number_(x: Tensor, other: float, alpha: float = 1) -> Any:
    """aten::_add_relu_.Scalar."""
    return add_relu_(x, other, alpha=alpha)


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    """aten::_prelu_kernel_backward: the gradients of x and of the weight, both of x's shape."""
    if not _alike(x, weight, grad):
        return NotImplemented
    positive = x > 0
    return torch.where(positive, grad, grad * weight), torch.where(positive, 0, grad * x)


def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    """aten::nan_to_num: what is no number becomes ``nan`` (0), and infinities the largest and smallest numbers."""
    if x.dtype not in _FLOATS:
        return NotImplemented if x.is_complex() else x.clone()
    ends = torch.finfo(x.dtype)
    made = torch.where(torch.isnan(x), nan or 0.0, x)
    if posinf is None and neginf is None:
        return made.clamp_(ends.min, ends.max).to(x.dtype)
    made = torch.where(torch.isposinf(made), ends.max if posinf is None else posinf, made)
    return torch.where(torch.isneginf(made), ends.min if neginf is None else neginf, made).to(x.dtype)


def cross(x: Tensor, other: Tensor, *, dim: int = -1) -> Any:
    """aten::linalg_cross: vectors of three along ``dim``, at right angles to those of ``x`` and ``other``."""
    if (x.dtype, x.device, x.dim()) != (other.dtype, other.device, other.dim()):
        return NotImplemented
    if x.dtype is torch.bool or not -x.dim() <= dim < x.dim() or x.numel() == 0 or other.numel() == 0:
        return NotImplemented
    try:
        x, other = torch.broadcast_tensors(x, other)
    except RuntimeError:
        return NotImplemented
    if x.shape[dim] != 3:
        return NotImplemented
    if whole.served(x):
        x, other, dim = x.contiguous(), other.contiguous(), dim % x.dim()
        n, after, lanes = x.numel() // 3, prod(x.shape[dim + 1 :]), whole.line(x.get_device()) // 4
        computed = torch.float32 if x.dtype in _NARROW else x.dtype
        out = torch.empty_like(x)
        return out if whole.launch(
            "algebra.cross", (x, other, out), -(-n // lanes), n, n, after,
            LINE=after == 1, OP=whole.NAMES[computed], L=lanes,
        ) else NotImplemented  # fmt: skip
    a, b = ((t.roll(-1, dim), t.roll(1, dim)) for t in (x, other))
    return a[0] * b[1] - a[1] * b[0]


_BITS = {torch.float32: (torch.int32, 23, 126), torch.float64: (torch.int64, 52, 1022)}


def frexp(x: Tensor) -> Any:
    """aten::frexp.Tensor: mantissas, from a half up to 1 or of x itself where it is 0 or not finite, and exponents."""
    if x.dtype in _NARROW:
        mantissa, exponent = frexp(x.float())
        return mantissa.to(x.dtype), exponent
    if x.dtype not in _BITS:
        return NotImplemented
    integers, width, bias = _BITS[x.dtype]
    field = (2 * bias + 3) << width  # all bits of an exponent
    small = x.abs() < torch.finfo(x.dtype).tiny
    bits = torch.where(small, x * 2.0**width, x).view(integers)
    exponent = ((bits & field) >> width) - bias - torch.where(small, width, 0)
    itself = (x == 0) | ~torch.isfinite(x)
    mantissa = torch.where(itself, x, ((bits & ~field) | (bias << width)).view(x.dtype))
    return mantissa, torch.where(itself, 0, exponent).to(torch.int32)


def frexp_out(x: Tensor, *, mantissa: Tensor, exponent: Tensor) -> Any:
    """aten::frexp.Tensor_out: :func:`frexp` into both, which are resized."""
    made = frexp(x)
    if made is NotImplemented or (mantissa.dtype, exponent.dtype) != (x.dtype, torch.int32):
        return NotImplemented
    for out, values in zip((mantissa, exponent), made, strict=True):
        lib().resize_output(out, values.shape, torch.contiguous_format)
        out.copy_(values)
    return mantissa, exponent


def ldexp(x: Tensor, other: Tensor) -> Any:
    """aten::ldexp.Tensor: x times the powers of two; of floats and integers without leaving the range in between."""
    if x.is_complex() or other.is_complex() or x.device != other.device:
        return NotImplemented
    if not x.is_floating_point() or other.is_floating_point():
        return x * torch.pow(2.0, other)
    if other.dtype is torch.bool:
        return NotImplemented
    wide = _wide(x)
    most = 2200 if wide.dtype is torch.float64 else 280  # from the least number beyond the largest
    by = other.clamp(-most, most) if other.dtype in (torch.int32, torch.int64) else other.to(torch.int32)
    third = torch.div(by, 3, rounding_mode="trunc")
    power, rest = (torch.pow(2.0, n.to(wide.dtype)) for n in (third, by - 2 * third))
    return (wide * power * power * rest).to(x.dtype)


def ldexp_(x: Tensor, other: Tensor) -> Any:
    """aten::ldexp_: :func:`ldexp` in place."""
    if not x.is_floating_point() or torch.result_type(x, other) != x.dtype:
        return NotImplemented
    made = ldexp(x, other)
    return NotImplemented if made is NotImplemented or made.shape != x.shape else x.copy_(made)


def aminmax(x: Tensor) -> Any:
    """aten::_aminmax: the least and the largest of all elements."""
    return NotImplemented if x.numel() == 0 or x.is_complex() else (x.amin(), x.amax())


def aminmax_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """aten::_aminmax.dim: the least and the largest elements along ``dim``."""
    if x.numel() == 0 or x.is_complex() or x.dim() == 0:
        return NotImplemented
    return x.amin(dim, keepdim), x.amax(dim, keepdim)


# --- complex numbers of their parts -------------------------------------------------------------------------------

_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}


def _of_parts(out: Tensor, real: Tensor, imag: Tensor, parts: Callable[[], tuple[Tensor, Tensor]]) -> Any:
    if (real.dtype, real.device) != (imag.dtype, imag.device) or _COMPLEX.get(real.dtype) != out.dtype:
        return NotImplemented
    if real.device != out.device or out.is_conj() or out.is_neg():
        return NotImplemented
    try:
        shape = torch.broadcast_shapes(real.shape, imag.shape)
    except RuntimeError:
        return NotImplemented
    if out.shape != shape:
        fresh = out.numel() == 0
        lib().resize_output(out, shape, torch.contiguous_format)
        if fresh:  # laid out as TensorIterator lays it
            from torch._prims_common import compute_elementwise_output_strides

            out.as_strided_(shape, compute_elementwise_output_strides(real.expand(shape), imag.expand(shape)))
    for of, made in zip((out.real, out.imag), parts(), strict=True):
        of.copy_(made)
    return out


def complex_out(real: Tensor, imag: Tensor, *, out: Tensor) -> Any:
    """aten::complex.out: complex numbers of those parts."""
    return _of_parts(out, real, imag, lambda: (real, imag))


def polar_out(abs: Tensor, angle: Tensor, *, out: Tensor) -> Any:
    """aten::polar.out: complex numbers of that length and angle."""
    return _of_parts(out, abs, angle, lambda: (abs * torch.cos(angle), abs * torch.sin(angle)))


def conj_physical_(x: Tensor) -> Any:
    """aten::conj_physical_: the imaginary part changes its sign."""
    if x.is_complex():
        x.imag.neg_()
    return x


def conj_physical_out(x: Tensor, *, out: Tensor) -> Any:
    """aten::conj_physical.out."""
    if not x.is_complex() or out.dtype != x.dtype or out.device != x.device:
        return NotImplemented
    if out.shape != x.shape:
        lib().resize_output(out, x.shape, torch.contiguous_format)
    out.real.copy_(x.real)
    out.imag.copy_(-x.imag)
    return out


# --- selections ---------------------------------------------------------------------------------------------------

_MOST_PAIRS = 1 << 24


def masked_select(x: Tensor, mask: Tensor) -> Any:
    """aten::masked_select: the elements where ``mask`` is true, both expanded to one shape; waits for the device."""
    if mask.dtype is not torch.bool or mask.device != x.device:
        return NotImplemented
    try:
        x, mask = torch.broadcast_tensors(x, mask)
    except RuntimeError:
        return NotImplemented
    where = taking.nonzero(mask.reshape(-1))
    return where if where is NotImplemented else x.reshape(-1).index_select(0, where.view(-1))


def masked_scatter_(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """aten::masked_scatter_: elements of ``source`` in a row to where ``mask`` is true; waits for the device."""
    if mask.dtype is not torch.bool or source.dtype != x.dtype or x.numel() == 0:
        return NotImplemented
    if mask.device != x.device or source.device != x.device:
        return NotImplemented
    try:
        mask = mask.expand(x.shape)
    except RuntimeError:
        return NotImplemented
    if source.numel() == 0:
        return NotImplemented if bool(mask.any()) else x
    return taking.pour(x, mask, source)


def isin(elements: Tensor, test: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """aten::isin.Tensor_Tensor: which elements are among those of ``test``."""
    if elements.device != test.device or elements.numel() == 0 or test.numel() == 0:
        return NotImplemented
    if elements.is_complex() or test.is_complex():
        return NotImplemented
    if elements.numel() * test.numel() <= _MOST_PAIRS:
        found = (elements.unsqueeze(-1) == test.reshape(-1)).any(-1)
    else:
        dtype = torch.result_type(elements, test)
        if dtype is torch.bool:
            return NotImplemented
        ordered = torch.sort(test.reshape(-1).to(dtype))[0]
        wanted = elements.to(dtype).contiguous()
        at = torch.searchsorted(ordered, wanted).clamp_max(ordered.numel() - 1)
        found = ordered[at] == wanted
    return ~found if invert else found


def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> Any:  # fmt: skip
    """aten::multinomial: ``num_samples`` indices of each row of ``x (*, C)``, as likely as the row's numbers say.

    Without replacement, the largest of probabilities divided by exponential noise (Efraimidis and Spirakis, "Weighted
    random sampling with a reservoir", 2006); with it, the places of uniform numbers among running sums.
    """
    if x.dtype not in _FLOATS or x.dim() not in (1, 2) or x.numel() == 0 or num_samples <= 0:
        return NotImplemented
    if not replacement and num_samples > x.shape[-1]:
        return NotImplemented
    wide = _wide(x)
    fine = (wide >= 0) & (wide < float("inf"))
    if not bool(fine.all() & (wide.sum(-1) > 0).all()):
        return NotImplemented  # for torch's own words
    if replacement and num_samples > 1:
        if wide.numel() * num_samples > _MOST_PAIRS:
            return NotImplemented
        sums = wide.cumsum(-1)
        drawn = torch.empty(*x.shape[:-1], num_samples, dtype=wide.dtype, device=x.device).uniform_(generator=generator)
        below = sums.unsqueeze(-2) <= (drawn * sums[..., -1:]).unsqueeze(-1)
        # The last one that can be drawn at all, where rounding leads beyond it.
        last = x.shape[-1] - 1 - (wide > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        return torch.minimum(below.sum(-1), last)
    noise = torch.empty_like(wide, memory_format=torch.contiguous_format).uniform_(generator=generator)
    noise = -torch.log1p(-noise)  # of [0, 1): never infinite
    keys = wide / noise.clamp_min(torch.finfo(wide.dtype).tiny)
    if num_samples == 1:
        return keys.argmax(-1, keepdim=True)
    return keys.topk(num_samples, -1).indices


def exponential_(x: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Any:
    """aten::exponential_: numbers of the exponential distribution of rate ``lambd``."""
    if x.dtype not in _FLOATS or not lambd > 0:
        return NotImplemented
    wide = torch.float32 if x.dtype in _NARROW else x.dtype
    drawn = torch.empty(x.shape, dtype=wide, device=x.device).uniform_(generator=generator)
    # Never 0, which divisions by what is drawn here count on.
    made = torch.log1p(-drawn) * -(1 / lambd)
    return x.copy_(made if lambd == float("inf") else made.clamp_min(torch.finfo(x.dtype).tiny))


def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """aten::roll: the elements along ``dims`` (without: all in a row) moved on by ``shifts``, around the end."""
    if not shifts:
        return NotImplemented
    if not dims and len(shifts) == 1:
        made = roll(x.reshape(-1), shifts, (0,))
        return made if made is NotImplemented else made.view(x.shape)
    if len(shifts) != len(dims) or any(not -x.dim() <= d < x.dim() for d in dims) or x.numel() == 0:
        return NotImplemented
    total: dict[int, int] = {}
    for shift, d in zip(shifts, dims, strict=True):
        total[d % x.dim()] = (total.get(d % x.dim(), 0) + shift) % x.shape[d]
    left = sorted(d for d, shift in total.items() if shift)
    if not left:
        return x.clone(memory_format=torch.contiguous_format)
    if whole.bits(x) is None or x.numel() > whole.MOST or x.is_conj() or x.is_neg():
        return _rolled_by_parts(x, {d: total[d] for d in left})
    made = x.contiguous()
    while left:  # two dimensions at once
        d, other = left.pop(), left.pop() if left else None
        read, made = made, torch.empty_like(made)
        if not _roll(read, made, d, total[d], other, 0 if other is None else total[other]):
            return NotImplemented
    return made


def _roll(x: Tensor, out: Tensor, d: int, shift: int, other: int | None, by: int) -> bool:
    """``x`` moved on along ``d``, and along ``other`` before it, into ``out``; both are contiguous."""
    after, device = prod(x.shape[d + 1 :]), x.get_device()
    width = x.shape[d] * after
    rows, lanes = x.numel() // width, launching.power_of_two(width, 8, 256)
    n, between = (1, 1) if other is None else (x.shape[other], prod(x.shape[other + 1 : d]))
    down = across = 1
    if launching.on_cpu(device):
        share = max(-(-x.numel() // (4 * launching.programs(device))), 1)
        across = min(share, width)
        down = max(share // width, 1)
    else:
        across, down = min(4 * lanes, width), max(4 * lanes // width, 1)
    moved = str(whole.bits(x))
    return whole.launch(
        "taking.roll", (x, out), -(-rows // down) * -(-width // across), x.numel(),
        rows, width, shift * after, n, between, by, down, across, types=(moved, moved), L=lanes,
    )  # fmt: skip


def _rolled_by_parts(x: Tensor, shifts: dict[int, int]) -> Tensor:
    for d, by in shifts.items():
        x = torch.cat([x.narrow(d, x.shape[d] - by, by), x.narrow(d, 0, x.shape[d] - by)], d)
    return x


def equal(x: Tensor, other: Tensor) -> Any:
    """aten::equal: are shapes and all elements the same? Waits for the device."""
    if x.device != other.device or x.dtype != other.dtype or x.numel() == 0:
        return NotImplemented
    return tuple(x.shape) == tuple(other.shape) and bool((x == other).all())


def count_nonzero(x: Tensor, dim: list[int]) -> Any:
    """aten::count_nonzero.dim_IntList: how many elements are not zero, over ``dim``, or of all where it is empty."""
    if x.numel() == 0:
        return NotImplemented
    return (x != 0).sum(dim) if dim else (x != 0).sum()


def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Any:
    """aten::narrow_copy: a copy of ``length`` slices along ``dim`` from ``start`` on."""
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or length < 0:
        return NotImplemented
    n = x.shape[dim]
    begin = start + n if start < 0 else start
    if not 0 <= begin <= n - length:
        return NotImplemented
    return x.narrow(dim, begin, length).clone(memory_format=torch.contiguous_format)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Any:
    """aten::nonzero_static: places ``(size, D)`` of elements that are not zero, the rest being ``fill_value``."""
    if size < 0 or x.numel() == 0:
        return NotImplemented
    where = taking.nonzero(x)
    if where is NotImplemented:
        return where
    out = torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    there = min(size, where.shape[0])
    if not x.dim():
        return out
    out[:there].copy_(where[:there])
    return out


def isin_number(elements: Tensor, test_element: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """aten::isin.Tensor_Scalar: which elements are that number."""
    if isinstance(test_element, complex) or elements.is_complex():
        return NotImplemented
    return elements != test_element if invert else elements == test_element


def number_isin(element: Any, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """aten::isin.Scalar_Tensor: is the number among them?"""
    if isinstance(element, complex) or test_elements.is_complex() or test_elements.numel() == 0:
        return NotImplemented
    found = (test_elements == element).any()
    return ~found if invert else found
