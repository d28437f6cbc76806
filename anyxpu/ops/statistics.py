"""Operators made of others that have kernels here: what the host lacks, or what is not worth a kernel.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import counting
from anyxpu.shim import lib

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """aten::histc: how many elements lie in each of ``bins`` equal parts from min to max.

    Args:
        self: integers up to int64, or floats, of any shape.
        min, max: the ends, both included; where they are equal, the least and the largest element.

    Returns:
        ``(bins,)`` of self's dtype. An element x counts in part ``(x - min) * bins // (max - min)``, as on CUDA.

    Raises:
        RuntimeError: the ends are not finite.
    """
    if self.is_floating_point() and bins > 0 and min <= max and self.numel() > 0:
        return _histc_of_floats(self, bins, min, max)
    if self.dtype not in _INTEGERS or bins <= 0 or min > max:
        return NotImplemented
    if self.numel() == 0:
        return torch.zeros(bins, dtype=self.dtype, device=self.device)
    low, high = int(min), int(max)
    flat = self.reshape(-1).long()
    if low == high:
        low, high = int(flat.min()), int(flat.max())
        if low == high:
            low, high = low - 1, high + 1
    inside = (flat >= low) & (flat <= high)
    where = ((flat.clamp(low, high) - low) * bins // (high - low)).clamp(max=bins - 1)
    return counting.summed(torch.where(inside, where, bins), bins + 1)[:bins].to(self.dtype)


def _histc_of_floats(self: Tensor, bins: int, low: float, high: float) -> Any:
    # Of 16 bits in float32: counts in bfloat16 would stop at 256.
    x = (self.float() if self.dtype in (torch.bfloat16, torch.float16) else self).reshape(-1)
    if low == high:
        low, high = float(x.min()), float(x.max())
        if low == high:
            low, high = low - 1, high + 1
    if not (isfinite(low) and isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    first, last = (torch.full((), end, dtype=x.dtype, device=x.device) for end in (low, high))
    inside = (x >= first) & (x <= last)
    at = ((torch.where(inside, x, first) - first) * bins / (last - first)).long().clamp(max=bins - 1)
    return counting.summed(torch.where(inside, at, bins), bins + 1)[:bins].to(self.dtype)


def histc_out(self: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: Tensor) -> Any:
    """aten::histc.out: :func:`histc` into ``out``, which is resized."""
    if out.dtype != self.dtype or out.device != self.device:
        return NotImplemented
    made = histc(self, bins, min, max)
    if made is NotImplemented:
        return made
    lib().resize_output(out, made.shape, torch.contiguous_format)
    return out.copy_(made)


def _has_nan(t: Tensor) -> bool:
    return t.is_complex() or t.is_floating_point()


def nansum(
    self: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """aten::nansum: the sum over ``dim``, NaN being 0; so is a complex number with NaN in either part."""
    if not _has_nan(self):
        return self.sum(dim, keepdim, dtype=dtype)
    return torch.where(torch.isnan(self), 0, self).sum(dim, keepdim, dtype=dtype)


def nansum_out(
    self: Tensor,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor,
) -> Any:
    """aten::nansum.out: :func:`nansum` into ``out``, which is resized."""
    if out.device != self.device or (dtype is None and _has_nan(self) and not _has_nan(out)):
        return NotImplemented  # which torch refuses; where dtype says so it adds integers
    made = nansum(self, dim, keepdim, dtype=dtype or out.dtype)
    lib().resize_output(out, made.shape, torch.contiguous_format)
    return out.copy_(made)


def amp_update_scale_(
    scale: Tensor,
    tracker: Tensor,
    found: Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> Any:
    """aten::_amp_update_scale_: the scale of ``torch.amp.GradScaler`` for the next step.

    Args:
        scale: float32, one element; times ``backoff`` where ``found`` is not 0, and times ``growth``, if that is
            finite, after ``interval`` steps in which it was.
        tracker: int32, one element: such steps since the scale last changed.
        found: float32, one element.
    """
    if (scale.dtype, tracker.dtype, found.dtype) != (torch.float32, torch.int32, torch.float32):
        return NotImplemented
    if any(t.numel() != 1 or t.device != scale.device for t in (tracker, found)):
        return NotImplemented
    lost = found.view(()) != 0
    steps = torch.where(lost, 0, tracker.view(()) + 1)
    due = steps == interval
    grown = scale.view(()) * growth
    made = torch.where(due & torch.isfinite(grown), grown, scale.view(()))
    tracker.view(()).copy_(torch.where(due, 0, steps))
    scale.view(()).copy_(torch.where(lost, scale.view(()) * backoff, made))
    return scale


def hash_tensor(self: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    """aten::hash_tensor: the exclusive or of the bits of elements made 64 bits wide.

    Args:
        self: integers up to int64, bool or floats, of any shape but an empty one; floats want a device with float64.
        dim: the dimensions that are reduced; all where there are none.
        mode: 0, the one there is.

    Returns:
        uint64: of self's shape without ``dim``, or with 1 there for ``keepdim``.
    """
    x = self if self.dim() else self.view(1)
    if mode != 0 or x.numel() == 0 or not all(-x.dim() <= d < x.dim() for d in dim):
        return NotImplemented
    reduced = sorted({d % x.dim() for d in dim}) if dim else list(range(x.dim()))
    if len(reduced) != len(dim or reduced):
        return NotImplemented
    if x.dtype in (torch.bool, *_INTEGERS):
        bits = x.to(torch.int64)
    elif x.dtype in _FLOATS and lib().properties(x.get_device()).has_fp64:
        bits = x.double().view(torch.int64)
    else:
        return NotImplemented
    kept = [d for d in range(x.dim()) if d not in reduced]
    n = prod(x.shape[d] for d in reduced)
    rows = bits.permute(*kept, *reduced).reshape(*(x.shape[d] for d in kept), n)
    while n > 1:  # one half with the other, and what is over with the first
        over, n = rows[..., n - 1 :] if n % 2 else None, n // 2
        rows = rows[..., :n] ^ rows[..., n : 2 * n]
        if over is not None:
            rows[..., :1] ^= over
    made = rows[..., 0].clone(memory_format=torch.contiguous_format).view(torch.uint64)  # of one, rows may be self's
    return made.view([1 if d in reduced else self.shape[d] for d in range(self.dim())]) if keepdim else made
