"""``index``, ``index_put_`` and ``scatter`` on xpu, by the kernels of ``taking_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. An index out of range is found by the kernel, as with CUDA, and raised at the next wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.ops import launching, notice, whole

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8)
_TYPES = {torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8"}
_MOST_INDICES = 4  # that a kernel takes; of more the last are made one


class _Taken(NamedTuple):
    """A tensor and its indices, brought together.

    Attributes:
        source: the tensor, its indexed dimensions beside each other.
        indices: contiguous, of one shape.
        shape: of the result.
        first: how many dimensions are before the indexed ones.
        before, places, after: how many elements before the indexed dimensions, in the indices, and after.
        sizes, steps: of the indexed dimensions, in elements.
    """

    source: Tensor
    indices: list[Tensor]
    shape: list[int]
    first: int
    before: int
    places: int
    after: int
    sizes: list[int]
    steps: list[int]


def index(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """aten::index.Tensor: ``self[indices]``; masks are taken as the places where they are true."""
    self, indices = _flattened(self, indices)
    taken = _taken(self, indices)
    width = whole.bits(self)
    if taken is None or width is None:
        return NotImplemented
    order = _order(taken)
    reordered = order != sorted(order)
    if reordered:
        taken = _reordered(taken, order)
    x = taken.source.contiguous()
    out = torch.empty(taken.shape, dtype=self.dtype, device=self.device)
    if out.numel() and not _launch("taking.take", width, x, out, taken):
        return NotImplemented
    return out.permute([order.index(d) for d in range(len(order))]) if reordered else out


def index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """aten::_index_put_impl_: ``self[indices] = values``, or with ``accumulate`` ``+=``, in the order of the index."""
    width = whole.bits(self)
    if width is None or self.numel() == 0:
        return NotImplemented
    if values.device != self.device:
        if values.dim() or values.device.type != "cpu":
            return NotImplemented
        values = values.to(self.device)
    if _shares(self, values, *indices):
        return NotImplemented  # which torch refuses where they overlap
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and mask.dtype is torch.bool and values.numel() == 1 and not accumulate:
        if not torch.can_cast(values.dtype, self.dtype):
            return NotImplemented
        if mask.device != self.device or tuple(mask.shape) != tuple(self.shape[: mask.dim()]):
            return NotImplemented
        more = (1,) * (self.dim() - mask.dim())
        return self.masked_fill_(mask.view(*mask.shape, *more), values.view(()))
    if values.dtype != self.dtype or (torch.are_deterministic_algorithms_enabled() and not accumulate):
        return NotImplemented
    taken = _taken(self, indices)
    if taken is None or _overlapping(self):
        return NotImplemented
    try:
        values = values.expand(taken.shape).contiguous()
    except RuntimeError:
        return NotImplemented  # for torch's own words
    if values.numel() == 0:
        return self
    whole_ = taken.source.contiguous()  # itself, if it is
    if accumulate:
        if not _accumulated(whole_, values, taken):
            return NotImplemented
    elif not _launch("taking.put", width, values, whole_, taken):
        return NotImplemented
    if whole_.data_ptr() != taken.source.data_ptr():
        taken.source.copy_(whole_)
    return self


def _accumulated(x: Tensor, values: Tensor, taken: _Taken) -> bool:
    """Add values to x by scatter_add_, whose sums come in the order of the index."""
    if x.dtype not in whole.NAMES or x.dtype is torch.bool:
        return False
    size = prod(taken.sizes)
    at = _as_one(taken.indices, taken.sizes)
    shape = (taken.before, taken.places, taken.after)
    x.view(taken.before, size, taken.after).scatter_add_(
        1, at.view(1, -1, 1).expand(shape), values.view(shape)
    )  # fmt: skip
    return True


def _as_one(indices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The index of dimensions of these sizes as if they were one; of what is out of range in one, out of range too."""
    at, out = torch.zeros((), dtype=torch.int64, device=indices[0].device), prod(sizes)
    for k, (each, n) in enumerate(zip(indices, sizes, strict=True)):
        wide = each.long()
        wide = torch.where(wide < 0, wide + n, wide)
        # One that is out of range must not become a neighbour's.
        at = at + torch.where((wide >= 0) & (wide < n), wide * prod(sizes[k + 1 :]), out)
    return at


_OF_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
"""ATen's words, which programs filter by."""


def _taken(self: Tensor, indices: Sequence[Tensor | None]) -> _Taken | None:
    given: list[Tensor | None] = []
    for each in indices:
        if each is None:
            given.append(None)
        elif each.dtype in (torch.bool, torch.uint8):
            position = len(given)
            if tuple(each.shape) != tuple(self.shape[position : position + each.dim()]) or each.dim() == 0:
                return None
            given.extend(each.to(self.device).nonzero().unbind(1))
        elif each.dtype in _INDICES:
            given.append(each)
        else:
            return None
    if len(given) > self.dim() or self.numel() == 0 or self.numel() > whole.MOST:
        return None
    dims = [d for d, each in enumerate(given) if each is not None]
    there = [each for each in given if each is not None]
    if not there:
        return None
    if any(t.device != self.device and not (t.device.type == "cpu" and t.dim() == 0) for t in there):
        there = [t.to(self.device) if t.device.type == "cpu" else t for t in there]  # as torch lets indices be
        if any(t.device != self.device for t in there):
            return None
    there = [t.to(self.device) for t in there]
    try:
        made = [t.contiguous() for t in torch.broadcast_tensors(*there)]
    except RuntimeError:
        return None
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    others = [d for d in range(self.dim()) if d not in dims]
    order = others[:first] + dims + others[first:]
    source = self.permute(order)
    before, after = list(source.shape[:first]), list(source.shape[first + len(dims) :])
    sizes = [self.shape[d] for d in dims]
    steps = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
    shape = [*before, *made[0].shape, *after]
    if prod(shape) > whole.MOST or (0 in sizes and prod(shape) > 0):
        return None
    for each in indices:
        if each is not None and each.dtype is torch.uint8:
            notice.warn(_OF_BYTES)
    return _Taken(source, made, shape, first, prod(before), made[0].numel(), prod(after), sizes, steps)


def _order(taken: _Taken) -> list[int]:
    """The result's dimensions in memory, the slowest first.

    As at::TensorIterator orders those of a new result, by the source alone, which has no step along the indices: it
    sorts by insertion, and what cannot be compared stays where it is.
    """
    places, step = taken.indices[0].dim(), taken.source.stride()
    steps = [*step[: taken.first], *[0] * places, *step[taken.first + len(taken.sizes) :]]
    order = list(range(len(steps)))[::-1]  # the fastest first
    for end in range(1, len(order)):
        moving = end
        for k in range(end - 1, -1, -1):
            one, other = order[k], order[moving]
            if steps[one] == 0 or steps[other] == 0:
                continue
            if steps[one] < steps[other]:
                break
            if steps[one] > steps[other] or taken.shape[one] > taken.shape[other]:
                order[k], order[moving] = other, one
                moving = k
    return order[::-1]


def _reordered(taken: _Taken, order: list[int]) -> _Taken:
    """The same elements taken, with the result's dimensions in that order; those of the indices stay where they are."""
    places, indexed, first = taken.indices[0].dim(), len(taken.sizes), taken.first
    others = [d if d < first else d - places + indexed for d in order if not first <= d < first + places]
    source = taken.source.permute([*others[:first], *range(first, first + indexed), *others[first:]])
    sizes = list(source.shape)
    return taken._replace(
        source=source,
        shape=[taken.shape[d] for d in order],
        before=prod(sizes[:first]),
        after=prod(sizes[first + indexed :]),
    )


def _launch(kernel: str, width: str, first: Tensor, second: Tensor, taken: _Taken) -> bool:
    device = first.get_device()
    lanes = launching.power_of_two(taken.after, 1, 256)
    rows = (256 if launching.on_cpu(device) else 1024) // lanes
    indices, sizes, steps = taken.indices, taken.sizes, taken.steps
    if len(indices) > _MOST_INDICES:
        kept = _MOST_INDICES - 1
        indices = [*indices[:kept], _as_one(indices[kept:], sizes[kept:])]
        sizes, steps = [*sizes[:kept], prod(sizes[kept:])], [*steps[:kept], 1]
    given, absent = len(indices), _MOST_INDICES - len(indices)
    indices, sizes, steps = indices + indices[:1] * absent, sizes + [1] * absent, steps + [0] * absent
    count = taken.before * taken.places
    return whole.launch(
        kernel, (first, second, *indices), -(-count // rows) * -(-taken.after // lanes), count * taken.after,
        taken.before, taken.places, taken.after, prod(taken.sizes), *sizes, *steps,
        types=(width, width, *(_TYPES[t.dtype] for t in indices)), COUNT=given, R=rows, L=lanes,
    )  # fmt: skip


def _flattened(self: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, Sequence[Tensor | None]]:
    """For a mask alone: the dimensions that it covers as one, and its true places in a row."""
    at = next((k for k, each in enumerate(indices) if each is not None), None)
    mask = None if at is None else indices[at]
    if at is None or mask is None or mask.dtype is not torch.bool or mask.dim() == 0 or mask.device != self.device:
        return self, indices
    if any(each is not None for each in indices[at + 1 :]):
        return self, indices
    if tuple(mask.shape) != tuple(self.shape[at : at + mask.dim()]) or self.numel() == 0:
        return self, indices
    found = nonzero(mask.reshape(-1))
    if found is NotImplemented:
        return self, indices
    return self.flatten(at, at + mask.dim() - 1), [*[None] * at, found.view(-1)]


def _shares(written: Tensor, *others: Tensor | None) -> bool:
    """Is one of the others in the storage that is written?"""
    place = written.untyped_storage().data_ptr()
    return any(t is not None and t.untyped_storage().data_ptr() == place for t in others)


def _overlapping(t: Tensor) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(t.shape, t.stride(), strict=True))


# --- where elements are not zero ------------------------------------------------------------------------------------

_CHUNK = 1 << 14
_MOST_DIMS = 6


def nonzero(self: Tensor) -> Any:
    """aten::nonzero: where elements that are not zero are, ``(how many, self.dim())``, int64; waits for the device.

    As on every device but the CPU, the indices of one dimension lie beside each other.
    """
    if self.is_complex():
        return nonzero(self != 0)
    if not whole.served(self) or self.dim() > _MOST_DIMS:
        return NotImplemented
    if self.dim() == 0:
        return torch.empty((int(bool(self)), 0), dtype=torch.int64, device=self.device)
    if self.numel() == 0:
        return torch.empty((self.dim(), 0), dtype=torch.int64, device=self.device).t()
    x = self.contiguous()
    n, dims = x.numel(), x.dim()
    lanes, chunk, chunks = _chunks(n, x.get_device())
    counts = torch.empty(chunks, dtype=torch.int32, device=x.device)
    out = torch.empty((dims, n), dtype=torch.int64, device=x.device)
    total = torch.empty((), dtype=torch.int64, device=x.device)
    # A bool's byte is 0 or 1.
    kind = "u8" if x.dtype is torch.bool else whole.NAMES[x.dtype]
    sizes = [*x.shape[1:], *[1] * (_MOST_DIMS - dims)]
    if chunks > 1 and not whole.launch("taking.count", (x, counts), chunks, n, n, chunk, types=(kind, "i32"), L=lanes):
        return NotImplemented
    if not whole.launch(
        "taking.places", (x, counts, out, total), chunks, n, n, chunk, *sizes,
        types=(kind, "i32", "i64", "i64"), ND=dims, L=lanes,
    ):  # fmt: skip
        return NotImplemented
    return out[:, : int(total)].contiguous().t()


def _chunks(n: int, device: int) -> tuple[int, int, int]:
    """Lanes of the kernels that go through n elements in order, how many of these a program has, and programs."""
    lanes = 64 if launching.on_cpu(device) else 256
    chunk = n if n <= _CHUNK else max(_CHUNK // 4, -(-n // (4 * launching.programs(device))))
    return lanes, chunk, -(-n // chunk)


def pour(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Elements of ``source`` in a row to where ``mask``, of x's shape, is true; waits for the device."""
    moved, n = whole.bits(x), x.numel()
    if moved is None or n > whole.MOST or _overlapping(x) or _shares(x, mask, source):
        return NotImplemented  # of what overlaps torch warns, or refuses it
    lanes, chunk, chunks = _chunks(n, x.get_device())
    mask, counts = mask.contiguous(), torch.empty(chunks, dtype=torch.int32, device=x.device)
    if not whole.launch("taking.count", (mask, counts), chunks, n, n, chunk, types=("u8", "i32"), L=lanes):
        return NotImplemented
    if int(counts.sum()) > source.numel():
        return NotImplemented  # for torch's own words
    into = x.contiguous()  # itself, if it is
    if not whole.launch(
        "taking.pour", (mask, counts, source.contiguous(), into), chunks, n, n, chunk,
        types=("u8", "i32", moved, moved), L=lanes,
    ):  # fmt: skip
        return NotImplemented
    return x if into is x else x.copy_(into)


def put_slices(self: Tensor, dim: int, index: Tensor, values: Tensor) -> bool:
    """``self.select(dim, index[j]) = values.select(dim, j)``, self being contiguous; False where it is not served."""
    moved = whole.bits(self)
    if moved is None or max(self.numel(), values.numel()) > whole.MOST or _shares(self, index, values):
        return False
    before, places, after = prod(self.shape[:dim]), index.numel(), prod(self.shape[dim + 1 :])
    lanes = launching.power_of_two(after, 1, 256)
    rows = (256 if launching.on_cpu(self.get_device()) else 1024) // lanes
    return values.numel() == 0 or whole.launch(
        "taking.put_slices", (values.contiguous(), self, index.contiguous()),
        -(-before * places // rows) * -(-after // lanes), values.numel(), before, places, after, self.shape[dim],
        types=(moved, moved, _TYPES[index.dtype]), R=rows, L=lanes,
    )  # fmt: skip


def flip(self: Tensor, dims: Sequence[int]) -> Any:
    """aten::flip: the elements along ``dims`` in reverse."""
    moved = whole.bits(self)
    if any(not -self.dim() <= d < self.dim() for d in dims) or len({d % self.dim() for d in dims}) != len(dims):
        return NotImplemented
    if not 0 < self.numel() <= whole.MOST or moved is None or self.is_conj() or self.is_neg():
        return NotImplemented
    made = self.contiguous()
    for d in dims:
        x, made = made, torch.empty(self.shape, dtype=self.dtype, device=self.device)
        n, after = x.shape[d], prod(x.shape[d % x.dim() + 1 :])
        width = n if after == 1 else after
        lanes = launching.power_of_two(width, 8, 256)
        rows = (256 if launching.on_cpu(x.get_device()) else 1024) // lanes
        if not whole.launch(
            "taking.flip", (x, made), -(-(x.numel() // width) // rows) * -(-width // lanes), x.numel(),
            x.numel() // (n * after), n, after, types=(moved, moved), LINE=after == 1, R=rows, L=lanes,
        ):  # fmt: skip
            return NotImplemented
    if not dims:
        return self.clone()
    same = torch.empty_like(self)  # laid out as self
    return made if same.stride() == made.stride() else same.copy_(made)


# --- scatter ------------------------------------------------------------------------------------------------------


def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor | float) -> Any:
    """aten::scatter.src and .value: self, with elements of ``src`` (or a number) at places along ``dim``.

    Args:
        index: int64; as many dimensions as self and src, none longer than src's, and none but ``dim`` longer than
            self's.
    """
    out = self.clone(memory_format=torch.contiguous_format)
    made = scatter_(out, dim, index, src)
    return NotImplemented if made is NotImplemented else out


def scatter_(self: Tensor, dim: int, index: Tensor, src: Tensor | float) -> Any:
    """aten::scatter_.src and .value: :func:`scatter` into self."""
    width = whole.bits(self)
    if (
        width is None
        or index.dtype not in (torch.int64, torch.int32)
        or index.device != self.device
        or self.numel() == 0
    ):
        return NotImplemented
    if self.dim() == 0 and index.dim() <= 1 and index.numel() <= 1:
        source = src.reshape(-1) if isinstance(src, Tensor) else src
        made = scatter_(self.view(1), dim, index.reshape(-1), source)
        return made if made is NotImplemented else self
    if max(self.numel(), index.numel()) > whole.MOST or not -self.dim() <= dim < max(self.dim(), 1) or self.dim() == 0:
        return NotImplemented
    if torch.are_deterministic_algorithms_enabled() or index.dim() != self.dim() or _overlapping(self):
        return NotImplemented
    dim %= self.dim()
    if any(d != dim and n > self.shape[d] for d, n in enumerate(index.shape)):
        return NotImplemented
    if _shares(self, index, src if isinstance(src, Tensor) else None):
        return NotImplemented  # which torch refuses where they overlap
    if isinstance(src, Tensor):
        if (src.dtype, src.device, src.dim()) != (self.dtype, self.device, self.dim()):
            return NotImplemented
        if any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
            return NotImplemented
        source = src[tuple(slice(n) for n in index.shape)].contiguous()
    else:
        try:
            source = torch.full((1,), src, dtype=self.dtype, device=self.device)
        except (RuntimeError, TypeError):
            return NotImplemented
    if index.numel() == 0:
        return self
    # Of the other dimensions, only as much as the index has.
    part = self[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    x = part.contiguous()
    kernel = "taking.scatter" if isinstance(src, Tensor) else "taking.scatter_number"
    before, after = prod(index.shape[:dim]), prod(index.shape[dim + 1 :])
    lanes = whole.line(self.get_device())
    if not whole.launch(
        kernel, (index.contiguous(), source, x), -(-index.numel() // lanes), index.numel(),
        before, self.shape[dim], after, index.shape[dim], types=(_TYPES[index.dtype], width, width), L=lanes,
    ):  # fmt: skip
        return NotImplemented
    if x.data_ptr() != part.data_ptr():
        part.copy_(x)
    return self
