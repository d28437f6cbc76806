"""Searching and counting on xpu: places among ordered numbers, histograms, order statistics, unique elements.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has as many results as there are different elements waits for the device.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import counting, whole

_NARROW = (torch.float16, torch.bfloat16)
_COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


# --- places among ordered numbers ---------------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Tensor, self: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:  # fmt: skip
    """aten::searchsorted: of each number of ``self (*, M)`` its place in the ordered rows ``(*, N)`` or ``(N,)``."""
    sequence = sorted_sequence
    if side is not None and (side not in ("left", "right") or (side == "left" and right)):
        return NotImplemented
    number = not isinstance(self, Tensor)
    if number:
        if isinstance(self, complex) or sequence.is_complex():
            return NotImplemented
        dtype = torch.result_type(sequence, self)  # a fraction is none of the integers beside it
        sequence, self = sequence.to(dtype), torch.full((), self, dtype=dtype, device=sequence.device)
    if sequence.device != self.device or sequence.dtype != self.dtype or not whole.served(self):
        return NotImplemented
    rows = sequence.dim() != 1
    if sequence.dim() == 0 or not whole.served(sequence) or sequence.dtype is torch.bool:
        return NotImplemented
    if rows and (sequence.dim() != self.dim() or sequence.shape[:-1] != self.shape[:-1]):
        return NotImplemented
    if sorter is not None:
        if sorter.shape != sequence.shape or sorter.dtype is not torch.int64 or sorter.device != self.device:
            return NotImplemented
        if sorter.numel() and bool(((sorter < 0) | (sorter >= sequence.shape[-1])).any()):
            return NotImplemented  # for torch's own words
    out = torch.empty(self.shape, dtype=torch.int32 if out_int32 else torch.int64, device=self.device)
    length = sequence.shape[-1]
    if out.numel() == 0 or length == 0:
        return out.zero_()
    order = out.view(-1)[:0].long() if sorter is None else sorter.contiguous()
    lanes = whole.line(self.get_device())
    made = whole.launch(
        "searching.bounds", (sequence.contiguous(), order, self.contiguous(), out), -(-out.numel() // lanes),
        out.numel() * length.bit_length(), out.numel(), length, self.shape[-1] if rows else 1, length.bit_length(),
        RIGHT=right or side == "right", ORDERED=sorter is not None, ROWS=rows, L=lanes,
    )  # fmt: skip
    return out if made else NotImplemented


def bucketize(self: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """aten::bucketize: of each number of ``self`` its place among the ordered ``boundaries (N,)``."""
    if boundaries.dim() != 1:
        return NotImplemented
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


# --- counts -------------------------------------------------------------------------------------------------------


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    """aten::bincount: how often each integer from 0 on is in ``self (N,)``, or the sum of its ``weights (N,)``."""
    if self.dim() != 1 or self.dtype not in _COUNTED or minlength < 0 or self.numel() == 0:
        return NotImplemented
    if weights is not None and (weights.shape != self.shape or weights.device != self.device or weights.is_complex()):
        return NotImplemented
    least, most = torch.aminmax(self)
    if int(least) < 0:
        return NotImplemented
    bins = max(int(most) + 1, minlength)
    if weights is not None:
        weights = weights if weights.dtype is torch.float32 else weights.double()
        if not whole.served(weights):
            return NotImplemented
    return counting.summed(self, bins, weights)


def histogram_of_count(
    self: Tensor, bins: int = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    """aten::histogram.bin_ct: counts in ``bins`` bins of one width within ``range`` (of all elements), and edges."""
    if bins <= 0 or not _measured(self, weight):
        return NotImplemented
    if range is None:
        if self.numel() == 0:
            return NotImplemented
        low, high = (float(end) for end in torch.aminmax(self))
    else:
        low, high = (float(end) for end in range)
    if not (abs(low) < float("inf") and abs(high) < float("inf") and low <= high):
        return NotImplemented
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, bins + 1, dtype=self.dtype, device=self.device)
    return _counts(self, edges, weight, density), edges


def histogram_of_edges(self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> Any:
    """aten::histogram.bins_tensor: counts between the ordered ``bins (B + 1,)``, and these."""
    if bins.dim() != 1 or bins.numel() < 2 or (bins.dtype, bins.device) != (self.dtype, self.device):
        return NotImplemented
    if not _measured(self, weight):
        return NotImplemented
    return _counts(self, bins, weight, density), bins.clone()


def _measured(x: Tensor, weight: Tensor | None) -> bool:
    fine = weight is None or (weight.shape, weight.dtype, weight.device) == (x.shape, x.dtype, x.device)
    return fine and x.dtype in (torch.float32, torch.float64) and whole.served(x)


def _counts(x: Tensor, edges: Tensor, weight: Tensor | None, density: bool) -> Tensor:
    x, bins = x.reshape(-1), edges.numel() - 1
    at = torch.searchsorted(edges.contiguous(), x, right=True) - 1
    at = torch.where(x == edges[-1], bins - 1, at)  # the last bin has both of its ends
    inside = (at >= 0) & (at < bins) & (x <= edges[-1])
    values = torch.where(inside, 1.0 if weight is None else weight.reshape(-1), 0.0).to(x.dtype)
    counts = counting.summed(at.clamp(0, bins - 1), bins, values)
    return counts / (counts.sum() * (edges[1:] - edges[:-1])) if density else counts


# --- order statistics ---------------------------------------------------------------------------------------------


def _ordered(x: Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    if x.is_complex() or x.dtype is torch.bool or x.numel() == 0 or not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return None
    values, places = torch.sort(x, dim=dim, stable=True)
    return values, places


def kthvalue(self: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """aten::kthvalue: the k-th smallest number along ``dim``, NaN being the largest, and where it is."""
    n = self.shape[dim] if self.dim() and -self.dim() <= dim < self.dim() else 1
    if not 1 <= int(k) <= n:
        return NotImplemented
    made = _ordered(self, dim)
    if made is None:
        return NotImplemented
    if self.dim() == 0:
        return made[0].clone(), made[1].clone()
    at = [t.narrow(dim, int(k) - 1, 1) for t in made]
    values, places = (t.clone() if keepdim else t.squeeze(dim).clone() for t in at)
    return values, places


def median(self: Tensor) -> Any:
    """aten::median: the lower of the middle numbers of all; NaN if one is."""
    return _middle(self, False)


def nanmedian(self: Tensor) -> Any:
    """aten::nanmedian: of the numbers that are not NaN."""
    return _middle(self, True)


def _middle(x: Tensor, skip: bool) -> Any:
    made = _along(x.reshape(-1), 0, False, skip) if x.numel() else NotImplemented
    return made if made is NotImplemented else made[0]


def median_of_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """aten::median.dim: the lower of the middle numbers along ``dim``, and where it is; NaN if one is."""
    return _along(self, dim, keepdim, False)


def nanmedian_of_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """aten::nanmedian.dim: of the numbers that are not NaN, if there are any."""
    return _along(self, dim, keepdim, True)


def _along(x: Tensor, dim: int, keepdim: bool, skip: bool) -> Any:
    made = _ordered(x, dim)
    if made is None:
        return NotImplemented
    if x.dim() == 0:
        return made[0].clone(), made[1].clone()
    values, places = made
    n = x.shape[dim]
    if x.is_floating_point():
        numbers = (values == values).sum(dim, keepdim=True)  # NaNs are at the end
        at = (numbers - 1).clamp_min(0) // 2
        if not skip:
            at = torch.where(numbers < n, numbers, at)  # the first NaN
        made = values.gather(dim, at), places.gather(dim, at)
    else:
        made = values.narrow(dim, (n - 1) // 2, 1), places.narrow(dim, (n - 1) // 2, 1)
    return tuple(t.clone() if keepdim else t.squeeze(dim).clone() for t in made)


def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """aten::mode: the number that is most often along ``dim``, the smallest of them, and the last place it has."""
    made = _ordered(self, dim) if self.dtype is not torch.bool else None
    if made is None or self.dim() == 0:
        return NotImplemented
    values, places = (t.movedim(dim, -1).contiguous() for t in made)
    n = values.shape[-1]
    if prod(values.shape) * n > whole.MOST:
        return NotImplemented
    # How many equal ones lie up to each place of the order: the places from where it would be put among them on.
    first = torch.searchsorted(values, values)
    run = torch.arange(1, n + 1, device=self.device) - first
    run = torch.where(values == values, run, 1)
    at = run.argmax(-1, keepdim=True)  # the first of the longest: of the smallest number
    found = values.gather(-1, at), places.gather(-1, at)
    return tuple(t.movedim(-1, dim).contiguous() if keepdim else t.squeeze(-1) for t in found)


# --- unique elements ----------------------------------------------------------------------------------------------


def _runs(x: Tensor) -> Tensor:
    """Which elements of a row differ from the one before."""
    new = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if x.numel() > 1:
        torch.ne(x[1:], x[:-1], out=new[1:])
    return new


def _lengths(starts: Tensor, n: int) -> Tensor:
    return torch.diff(starts, append=torch.full((1,), n, dtype=starts.dtype, device=starts.device))


def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """aten::_unique2: the different elements in order, which of them each element is, and how often each is."""
    if self.is_complex() or self.numel() == 0:
        return NotImplemented
    flat = self.reshape(-1)
    values, order = torch.sort(flat.to(torch.uint8) if flat.dtype is torch.bool else flat, stable=True)
    new = _runs(values)
    starts = torch.nonzero(new)[:, 0]
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    inverse, counts = nothing, nothing
    if return_inverse:
        inverse = torch.empty_like(order).scatter_(0, order, new.cumsum(0) - 1).view(self.shape)
    if return_counts:
        counts = _lengths(starts, flat.numel())
    return values[starts].to(self.dtype), inverse, counts


def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    """aten::_unique: the different elements in order, and which of them each element is."""
    made = unique2(self, sorted, return_inverse)
    return made if made is NotImplemented else made[:2]


def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """aten::unique_consecutive: elements that differ from the one before, which of them each is, and how often."""
    if dim is not None and self.dim() != 1:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    if self.is_complex() or self.numel() == 0 or dim not in (None, 0, -1):
        return NotImplemented
    flat = self.reshape(-1)
    new = _runs(flat)
    starts = torch.nonzero(new)[:, 0]
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    inverse = (new.cumsum(0) - 1).view(self.shape) if return_inverse else nothing
    return flat[starts], inverse, _lengths(starts, flat.numel()) if return_counts else nothing


_MOST_COLUMNS = 64
"""By which slices are put in order one after the other; of longer slices the host does it."""


def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """aten::unique_dim: the different slices along ``dim`` in order, which of them each is, and how often each is."""
    rows = _slices(self, dim)
    if rows is None or rows.shape[1] > _MOST_COLUMNS:
        return NotImplemented
    order = torch.arange(rows.shape[0], device=self.device)
    for column in range(rows.shape[1] - 1, -1, -1):
        order = order[torch.sort(rows[:, column][order], stable=True)[1]]
    return _different(self, dim, rows[order], order)


def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:  # fmt: skip
    """aten::unique_dim_consecutive: slices along ``dim`` that differ from the one before."""
    rows = _slices(self, dim)
    if rows is None:
        return NotImplemented
    return _different(self, dim, rows, None)


def _slices(self: Tensor, dim: int) -> Tensor | None:
    """Each slice along ``dim`` as a row."""
    if self.is_complex() or self.numel() == 0 or not -self.dim() <= dim < self.dim():
        return None
    rows = self.movedim(dim, 0).reshape(self.shape[dim], -1)
    return rows.to(torch.uint8) if rows.dtype is torch.bool else rows


def _different(self: Tensor, dim: int, rows: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Those of rows in order (None: as they lie) that differ from the one before; as the CPU's, all three always."""
    new = torch.ones(rows.shape[0], dtype=torch.bool, device=self.device)
    if rows.shape[0] > 1:
        new[1:] = (rows[1:] != rows[:-1]).any(1)
    starts = torch.nonzero(new)[:, 0]
    inverse = new.cumsum(0) - 1
    inverse = inverse if order is None else torch.empty_like(order).scatter_(0, order, inverse)
    counts = _lengths(starts, rows.shape[0])
    return self.index_select(dim, starts if order is None else order[starts]), inverse, counts


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """aten::repeat_interleave.Tensor: each index of ``repeats (N,)`` as often as it says."""
    if repeats.dim() != 1 or repeats.dtype not in (torch.int32, torch.int64) or repeats.numel() == 0:
        return NotImplemented
    if bool((repeats < 0).any()):
        return NotImplemented
    ends = repeats.cumsum(0)
    total = int(ends[-1]) if output_size is None else output_size
    if output_size is not None and int(ends[-1]) != output_size:
        return NotImplemented
    places = torch.arange(total, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)
