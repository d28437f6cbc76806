"""im2col and col2im on xpu (of torch.nn.functional.unfold and fold), by ``unfolding_kernels.py``; channel_shuffle; the
gradient of ``Tensor.unfold``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, windows that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import whole, windows

# Those of the CPU's and CUDA's im2col; complex numbers are moved, bool too.
_MOVED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.complex64)


def im2col(
    x: Tensor, size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], step: Sequence[int]
) -> Any:  # fmt: skip
    """aten::im2col: the windows of an image as columns.

    Args:
        x: ``(N, C, H, W)`` or ``(C, H, W)``.
        size, dilation, padding, step: of windows, of (H, W).

    Returns:
        ``(N, C * KH * KW, L)`` or without N; L windows, a row of them after the other.
    """
    read = windows.read(x, 2, moved=True) if x.dtype in _MOVED else None
    windows_ = read and _windows(read.sizes[1:], size, dilation, padding, step)
    if read is None or windows_ is None:
        return NotImplemented
    image = x.contiguous()
    planes, count = prod(x.shape[:-2]), prod(size)
    result = (count, *windows_)
    if planes * prod(result) > whole.MOST:
        return NotImplemented
    out = torch.empty(
        (*x.shape[:-3], x.shape[-3] * count, prod(windows_)), dtype=x.dtype, device=x.device
    )  # fmt: skip
    walked = windows.Source(image, planes, 1, (1, *x.shape[-2:]), False, 2)
    served = windows.launch(
        "unfolding.im2col", (image, out), walked, result, walked.sizes, result, size[1], *step, *padding, *dilation,
        types=(str(whole.bits(x)),) * 2, NEXT=step[-1] == 1,
    )  # fmt: skip
    return out if served else NotImplemented


def col2im(
    columns: Tensor, output_size: Sequence[int], size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    step: Sequence[int],
) -> Any:  # fmt: skip
    """aten::col2im: the sum of columns in the places of an image that :func:`im2col` takes them from.

    Args:
        columns: ``(N, C * KH * KW, L)`` or without N; bf16, f16, f32 or f64.
        output_size: H, W.

    Returns:
        ``(N, C, H, W)`` or ``(C, H, W)``.
    """
    if columns.dim() not in (2, 3) or not columns.is_floating_point() or not whole.served(columns):
        return NotImplemented
    made = _windows(output_size, size, dilation, padding, step) if len(output_size) == 2 else None
    if made is None or columns.numel() == 0 or columns.shape[-2] % prod(size) or columns.shape[-1] != prod(made):
        return NotImplemented
    x = columns.contiguous()
    shape = (*x.shape[:-2], x.shape[-2] // prod(size), *output_size)
    if prod(shape) > whole.MOST:
        return NotImplemented
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    walked = windows.Source(out, prod(shape[:-2]), 1, (1, *shape[-2:]), False, 2)  # type: ignore[arg-type]
    served = windows.launch(
        "unfolding.col2im", (x, out), walked, walked.sizes, walked.sizes, (prod(size), *made),
        *size, *step, *padding, *dilation, NEXT=step[-1] == 1,
    )  # fmt: skip
    return out if served else NotImplemented


def channel_shuffle(x: Tensor, groups: int) -> Any:
    """aten::channel_shuffle: channels of ``(N, C, *)`` in turn from each of as many groups as they are in."""
    if x.dim() < 3 or groups <= 0 or x.shape[1] % groups or x.numel() == 0:
        return NotImplemented
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    kept = x.dim() in (4, 5) and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    out = torch.empty(
        x.shape, dtype=x.dtype, device=x.device, memory_format=last if kept else torch.contiguous_format
    )  # fmt: skip
    each = x.shape[1] // groups
    out.unflatten(1, (each, groups)).copy_(x.unflatten(1, (groups, each)).transpose(1, 2))
    return out


_MOST_SLICES = 256


def unfold_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    """aten::unfold_backward: the gradient of ``x.unfold(dim, size, step)``, the windows' sum where they lie over it.

    Args:
        grad: of the windows, ``(*, L, *, size)`` with L in the place of ``dim``.
        input_sizes: of x.

    Returns:
        Of ``input_sizes``; a slice of all windows is added at a time, and those of one slice lie apart.
    """
    if not len(input_sizes) and grad.is_floating_point() and tuple(grad.shape) == (1,) and size == 1:
        return grad.view(()).clone()
    if not grad.is_floating_point() or not -len(input_sizes) <= dim < len(input_sizes):
        return NotImplemented
    if grad.numel() == 0 or step <= 0 or grad.dim() != len(input_sizes) + 1:
        return NotImplemented
    dim %= len(input_sizes)
    if any(n != m for d, (n, m) in enumerate(zip(grad.shape, input_sizes, strict=False)) if d != dim):
        return NotImplemented
    count = grad.shape[dim]
    if grad.shape[-1] != size or (count - 1) * step + size > input_sizes[dim]:
        return NotImplemented
    narrow = grad.dtype in (torch.bfloat16, torch.float16)
    if step >= size:
        out = torch.zeros(tuple(input_sizes), dtype=grad.dtype, device=grad.device)
        out.unfold(dim, size, step).copy_(grad)
        return out
    if size > _MOST_SLICES:
        return NotImplemented
    out = torch.zeros(tuple(input_sizes), dtype=torch.float32 if narrow else grad.dtype, device=grad.device)
    each = out.unfold(dim, size, step)
    for at in range(size):
        each.select(-1, at).add_(grad.select(-1, at))
    return out.to(grad.dtype)


def _windows(
    sizes: Sequence[int], size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], step: Sequence[int]
) -> tuple[int, int] | None:
    """How many windows there are in an image of such sizes, along (H, W); None where there is none."""
    given = (size, dilation, padding, step)
    if any(len(each) != 2 for each in given) or min(*size, *dilation, *step, *sizes) <= 0 or min(padding) < 0:
        return None
    made = [
        (n + 2 * p - a * (k - 1) - 1) // s + 1
        for n, k, a, p, s in zip(sizes, size, dilation, padding, step, strict=True)
    ]
    return None if min(made) <= 0 else (made[0], made[1])
