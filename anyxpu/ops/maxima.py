"""Adaptive and fractional max pooling on xpu, by ``maxima_kernels.py``, and what puts elements back by its indices.

A function here returns ``NotImplemented`` for a call that it does not serve (types, sizes that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. ``x`` is ``(N, C, *)`` or
``(C, *)``, bf16, f16, f32 or f64. An index out of range is found by the kernel, as with CUDA, and raised at the next
wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, pooling, whole, windows

_APART = 8  # elements of a window from which on it pays to go along each dimension by itself


def adaptive(dims: int, x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::adaptive_max_pool{2,3}d: the largest of ``output_size`` windows that cover x, and their indices.

    Returns:
        ``(N, C, *output_size)`` of x's type and int64; of two dimensions in x's memory format, as on the CPU.
    """
    read = _plain(dims, x)
    if read is None or len(output_size) != dims or min(output_size) <= 0:
        return NotImplemented
    sizes = (1,) * (3 - dims) + tuple(output_size)
    if max(sizes) == 1:
        return _of_planes(read)
    alike = _alike(dims, read.sizes, sizes)
    if alike is not None:
        return pooling.max_pool(dims, read.tensor, alike, alike, (0,), (1,), False)
    most = [windows.widest(i, o) for i, o in zip(read.sizes, sizes, strict=True)]
    left = [d for d in range(3) if read.sizes[d] != sizes[d]]
    if len(left) > 1 and prod(most) > _APART:
        return _along(read, left, sizes, most)
    out, indices = read.empty(sizes), read.empty(sizes, torch.int64)
    served = windows.launch(
        "maxima.adaptive", (read.tensor, out, indices), read, sizes, read.sizes, sizes, *most, times=prod(most)
    )  # fmt: skip
    return (out, indices) if served else NotImplemented


def _along(read: windows.Source, dimensions: Sequence[int], sizes: Sequence[int], most: Sequence[int]) -> Any:
    """The largest along each dimension by itself, with the indices that they had in their planes."""
    places: Tensor | None = None

    def make(step: windows.Pass) -> Tensor | None:
        nonlocal places
        d, x = step.dimension, step.walked.tensor
        fresh, indices = read.empty(step.sizes), read.empty(step.sizes, torch.int64 if step.final else torch.int32)
        served = windows.launch(
            "maxima.along", (x, x if places is None else places, fresh, indices),
            step.walked, (1, 1, step.made), (1, 1, step.size), (1, 1, step.made), most[d],
            prod(read.sizes[:d]), prod(read.sizes[d + 1 :]), read.channels, times=most[d], FIRST=places is None,
        )  # fmt: skip
        places = indices
        return fresh if served else None

    out = windows.along(read, dimensions, read.sizes, sizes, make)
    return NotImplemented if out is None else (out, places)


def adaptive_backward(dims: int, grad: Tensor, x: Tensor, indices: Tensor) -> Any:
    """aten::adaptive_max_pool{2,3}d_backward: the gradient of :func:`adaptive`'s x."""
    read = _plain(dims, x)
    if read is None or grad.dim() != x.dim() or min(grad.shape) <= 0 or grad.shape != indices.shape:
        return NotImplemented
    if grad.dtype != x.dtype or indices.dtype is not torch.int64 or {grad.device, indices.device} != {x.device}:
        return NotImplemented
    if grad.shape[: x.dim() - dims] != x.shape[: x.dim() - dims]:
        return NotImplemented
    sizes = (1,) * (3 - dims) + tuple(grad.shape[grad.dim() - dims :])
    operands = [t.contiguous(memory_format=read.format) for t in (grad, indices)]
    if launching.on_cpu(x.get_device()):
        wide = torch.promote_types(x.dtype, torch.float32)  # windows overlap: sums are rounded to 16 bits once
        out = torch.zeros_like(read.tensor, dtype=wide, memory_format=read.format)
        planes, lanes = read.planes * read.channels, 8
        served = whole.launch(
            "maxima.spread", (*operands, out), -(-planes // lanes), grad.numel(),
            planes, read.channels, prod(sizes), prod(read.sizes), L=lanes,
        )  # fmt: skip
        return out.to(x.dtype) if served else NotImplemented
    alike = _alike(dims, read.sizes, sizes)
    if alike is not None:
        return pooling.max_pool_backward(dims, grad, read.tensor, alike, alike, (0,), (1,), False, indices)
    most = [windows.widest(o, i) for i, o in zip(read.sizes, sizes, strict=True)]
    out = torch.empty_like(read.tensor, memory_format=read.format)
    served = windows.launch(
        "maxima.adaptive_backward", (*operands, out), read, read.sizes, read.sizes, sizes, *most, times=prod(most)
    )  # fmt: skip
    return out if served else NotImplemented


def _of_planes(read: windows.Source) -> Any:
    """The largest of each plane, which is one window."""
    x = read.tensor
    if read.last:
        flat, dim = x.movedim(1, -1).flatten(1, -2), 1
    else:
        flat, dim = x.flatten(-read.dims), -1
    out, indices = read.empty((1, 1, 1)), read.empty((1, 1, 1), torch.int64)
    values, places = flat.max(dim)
    # Of NaNs the last is named, as by the kernels of windows.
    order = torch.arange(flat.shape[dim], dtype=torch.int32, device=x.device)
    last = torch.where(flat != flat, order[:, None] if read.last else order, -1).amax(dim)
    places = torch.where(last < 0, places, last)
    return out.copy_(values.view(out.shape)), indices.copy_(places.view(out.shape))


def _alike(dims: int, source: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """The size of the windows, where it is one for all and they do not overlap."""
    if any(i % o for i, o in zip(source, sizes, strict=True)):
        return None
    return [i // o for i, o in zip(source, sizes, strict=True)][3 - dims :]


def _plain(dims: int, x: Tensor) -> windows.Source | None:
    """The source; of three dimensions without channels_last, whose results the CPU does not keep."""
    return windows.read(x.contiguous() if dims == 3 else x, dims)


# --- elements put back --------------------------------------------------------------------------------------------


def unpool(dims: int, x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Any:
    """aten::max_unpool{2,3}d: zeros, with the elements of x at their indices within planes of ``output_size``.

    Of indices that are named twice, either element stays.
    """
    if x.dim() not in (dims + 1, dims + 2) or x.numel() == 0 or not x.is_floating_point() or not whole.served(x):
        return NotImplemented
    if indices.dtype is not torch.int64 or indices.device != x.device or indices.shape != x.shape:
        return NotImplemented
    if len(output_size) != dims or min(output_size) <= 0:
        return NotImplemented
    lead = x.dim() - dims
    shape = (*x.shape[:lead], *output_size)
    if prod(shape) > whole.MOST:
        return NotImplemented
    zeros = torch.zeros((*x.shape[:lead], prod(output_size)), dtype=x.dtype, device=x.device)
    out = zeros.scatter_(lead, indices.flatten(lead), x.flatten(lead)).view(shape)
    last = dims == 2 and lead == 2 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return out.contiguous(memory_format=torch.channels_last) if last else out


# --- windows at random ----------------------------------------------------------------------------------------------


def fractional(dims: int, x: Tensor, size: Sequence[int], output_size: Sequence[int], samples: Tensor) -> Any:
    """aten::fractional_max_pool{2,3}d: the largest of windows that begin at random, and their indices.

    Where they begin: B. Graham, Fractional max-pooling, 2014 (pseudorandom, overlapping).

    Args:
        size: of windows.
        samples: ``(N, C, dims)``, in [0, 1), of x's type.

    Returns:
        ``(N, C, *output_size)`` of x's type and int64.
    """
    read = windows.read(x.contiguous(), dims)
    if read is None or len(size) != dims or len(output_size) != dims or min(*size, *output_size) <= 0:
        return NotImplemented
    if (samples.dtype, samples.device) != (x.dtype, x.device) or samples.dim() != 3 or samples.shape[2] != dims:
        return NotImplemented
    if samples.shape[:2] != (x.shape[:2] if x.dim() == dims + 2 else (1, x.shape[0])):
        return NotImplemented
    sizes, kernel = ((1,) * (3 - dims) + tuple(each) for each in (output_size, size))
    # Of three dimensions, torch wants one element more than the windows need.
    if any(o + k - 1 + (dims == 3) > n for o, k, n in zip(output_size, size, x.shape[-dims:], strict=True)):
        return NotImplemented
    steps = [_step(n - k, o - 1, x.dtype) for n, k, o in zip(read.sizes, kernel, sizes, strict=True)]
    out, indices = read.empty(sizes), read.empty(sizes, torch.int64)
    served = windows.launch(
        "maxima.fractional", (read.tensor, samples.contiguous(), out, indices), read, sizes, read.sizes, sizes,
        *kernel, *steps, times=prod(kernel), DIMS=dims,
    )  # fmt: skip
    return (out, indices) if served else NotImplemented


def _step(room: int, steps: int, dtype: torch.dtype) -> float:
    """From one window to the next, rounded to the elements' type as the CPU rounds it."""
    if steps == 0:
        return 0.0
    return float(torch.tensor(room, dtype=dtype) / torch.tensor(steps, dtype=dtype))


def fractional_backward(
    dims: int, grad: Tensor, x: Tensor, size: Sequence[int], output_size: Sequence[int], indices: Tensor
) -> Any:  # fmt: skip
    """aten::fractional_max_pool{2,3}d_backward: the gradient of :func:`fractional`'s x."""
    if x.dim() not in (dims + 1, dims + 2) or x.numel() == 0 or not x.is_floating_point() or not whole.served(x):
        return NotImplemented
    lead = x.dim() - dims
    if grad.dtype != x.dtype or indices.dtype is not torch.int64 or {grad.device, indices.device} != {x.device}:
        return NotImplemented
    if tuple(grad.shape) != (*x.shape[:lead], *output_size) or grad.shape != indices.shape or grad.numel() == 0:
        return NotImplemented
    zeros = torch.zeros((*x.shape[:lead], prod(x.shape[lead:])), dtype=x.dtype, device=x.device)
    return zeros.scatter_add_(lead, indices.flatten(lead), grad.flatten(lead)).view(x.shape)


# --- the operators ------------------------------------------------------------------------------------------------


def adaptive2d(x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::adaptive_max_pool2d; see :func:`adaptive`."""
    return adaptive(2, x, output_size)


def adaptive3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::adaptive_max_pool3d; see :func:`adaptive`."""
    return adaptive(3, x, output_size)


def adaptive2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Any:
    """aten::adaptive_max_pool2d_backward; see :func:`adaptive_backward`."""
    return adaptive_backward(2, grad, x, indices)


def adaptive3d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Any:
    """aten::adaptive_max_pool3d_backward; see :func:`adaptive_backward`."""
    return adaptive_backward(3, grad, x, indices)


def unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Any:
    """aten::max_unpool2d; see :func:`unpool`."""
    return unpool(2, x, indices, output_size)


def unpool3d(
    x: Tensor, indices: Tensor, output_size: Sequence[int], step: Sequence[int], padding: Sequence[int]
) -> Any:  # fmt: skip
    """aten::max_unpool3d; see :func:`unpool`. Steps and padding are for torch to refuse."""
    if len(step) != 3 or len(padding) != 3 or min(step) <= 0:
        return NotImplemented
    return unpool(3, x, indices, output_size)


def fractional2d(*given: Any) -> Any:
    """aten::fractional_max_pool2d; see :func:`fractional`."""
    return fractional(2, *given)


def fractional3d(*given: Any) -> Any:
    """aten::fractional_max_pool3d; see :func:`fractional`."""
    return fractional(3, *given)


def fractional2d_backward(*given: Any) -> Any:
    """aten::fractional_max_pool2d_backward; see :func:`fractional_backward`."""
    return fractional_backward(2, *given)


def fractional3d_backward(*given: Any) -> Any:
    """aten::fractional_max_pool3d_backward; see :func:`fractional_backward`."""
    return fractional_backward(3, *given)
