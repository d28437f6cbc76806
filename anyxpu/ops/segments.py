"""Reductions of segments: ``torch.segment_reduce``, forward and backward.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has 16 bits is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_NARROW)
_WAYS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "max": ("amax", -math.inf), "min": ("amin", math.inf)}
_WAYS |= {"prod": ("prod", 1.0)}


class _Segments:
    """Which segment each place along ``axis`` belongs to, the last one being of places that belong to none."""

    def __init__(self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> None:
        along = data.shape[axis]
        if offsets is None:
            assert lengths is not None
            offsets = torch.nn.functional.pad(lengths.long().cumsum(-1), (1, 0))
        self.offsets = offsets.long().reshape(-1, offsets.shape[-1])
        self.count = offsets.shape[-1] - 1
        self.lengths = (self.offsets[:, 1:] - self.offsets[:, :-1]).unsqueeze(-1)
        place = torch.arange(along, device=data.device).expand(self.offsets.shape[0], along).contiguous()
        which = torch.searchsorted(self.offsets.contiguous(), place, right=True) - 1
        none = (which < 0) | (which >= self.count)
        self.which = torch.where(none, self.count, which).unsqueeze(-1)
        self.shape = self.offsets.shape[0], along, math.prod(data.shape[axis + 1 :])
        self.reduced = (*data.shape[:axis], self.count, *data.shape[axis + 1 :])

    def rows(self, t: Tensor) -> Tensor:
        """``(batches, places, what lies behind the axis)``."""
        return (t.float() if t.dtype in _NARROW else t).reshape(self.shape)

    def spread(self, t: Tensor) -> Tensor:
        """Of ``(batches, segments, ...)`` what each place has; 0 where it belongs to none."""
        wide = t.float() if t.dtype in _NARROW else t
        wide = torch.nn.functional.pad(wide.reshape(self.shape[0], self.count, -1), (0, 0, 0, 1))
        return wide.gather(1, self.which.expand(-1, -1, wide.shape[2]))


def _fits(data: Tensor, reduce: str, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> bool:
    borders = lengths if offsets is None else offsets
    if data.dtype not in _FLOATS or data.numel() == 0 or reduce not in _WAYS or borders is None:
        return False
    if (lengths is None) == (offsets is None) or not 0 <= axis < data.dim() or borders.dim() != axis + 1:
        return False
    if borders.dtype not in (torch.int32, torch.int64) or borders.device != data.device:
        return False
    return borders.shape[:-1] == data.shape[:axis] and borders.shape[-1] > (0 if offsets is None else 1)


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """aten::segment_reduce: the sum, mean, max, min or prod of each segment along ``axis``.

    Args:
        data: floats, ``(*batch, places, ...)`` with ``axis`` dimensions of batches.
        lengths: ``(*batch, segments)``, or ``offsets`` ``(*batch, segments + 1)`` of where they begin.
        unsafe: do not look whether lengths fit, for which the host waits.
        initial: what each segment begins with; else what changes nothing, and a mean of nothing is no number.

    Returns:
        ``(*batch, segments, ...)``.
    """
    if indices is not None or not _fits(data, reduce, lengths, offsets, axis):
        return NotImplemented
    if lengths is not None and not unsafe:
        fits = (lengths >= 0).all() & (lengths.sum(-1) == data.shape[axis]).all()
        if not fits:
            return NotImplemented  # for torch's own words
    segments = _Segments(data, lengths, offsets, axis)
    way, begin = _WAYS[reduce]
    rows = segments.rows(data)
    made = rows.new_full((rows.shape[0], segments.count + 1, rows.shape[2]), begin if initial is None else initial)
    made = made.scatter_reduce(1, segments.which.expand(rows.shape), rows, way)[:, : segments.count]
    if reduce == "mean":
        many = segments.lengths
        made = torch.where(many > 0, made / many, math.nan if initial is None else made)
    return made.reshape(segments.reduced).to(data.dtype)


def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Any:
    """aten::_segment_reduce_backward: of what equals a largest or smallest one each has the same share."""
    if reduce == "prod" or not _fits(data, reduce, lengths, offsets, axis) or grad.dtype != data.dtype:
        return NotImplemented
    segments = _Segments(data, lengths, offsets, axis)
    if tuple(grad.shape) != segments.reduced or grad.shape != output.shape:
        return NotImplemented
    by = segments.spread(grad)
    if reduce == "mean":
        by = by / segments.spread(segments.lengths).clamp(min=1)
    elif reduce != "sum":
        rows, best = segments.rows(data), segments.spread(output)
        equal = (rows == best) | (torch.isnan(rows) & torch.isnan(best))
        equal = equal & (segments.which < segments.count)
        many = rows.new_zeros(rows.shape[0], segments.count + 1, rows.shape[2])
        many = many.scatter_add(1, segments.which.expand(rows.shape), equal.to(rows.dtype))
        share = segments.spread(many[:, : segments.count]).clamp(min=1)
        by = torch.where(equal, by / share, 0)
    return by.reshape(data.shape).to(data.dtype)
