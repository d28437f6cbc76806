"""``index_add``, ``index_copy``, ``index_fill``, ``index_reduce``, ``take``, ``put_`` and ``scatter`` with a reduction.

They are made of ``scatter``, ``scatter_reduce`` and ``index``, which have kernels here. A function here returns
``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what CPU torch raises.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import taking, whole

Number = int | float | bool
_INDICES = (torch.int64, torch.int32)
_REDUCED = {"add": "sum", "multiply": "prod"}


def _rows(
    self: Tensor, dim: int, index: Tensor, source: Tensor | None, number: bool = True
) -> tuple[Tensor, Tensor] | None:
    """The index of each element of source, as ``scatter`` wants it, and the source; None where they do not fit.

    Of a tensor without dimensions they are those of a row of one (:func:`_line`).

    ``number``: whether a source of no dimension is a slice of one element.
    """
    if self.dim() == 0 and (source is None or source.dim() == 0) and index.numel() == 1:
        self, source = self.view(1), None if source is None else source.view(1)
    if self.dim() == 0 or not -self.dim() <= dim < self.dim() or index.dim() > 1 or index.dtype not in _INDICES:
        return None
    if index.device != self.device or self.numel() == 0 or self.is_complex():
        return None
    dim %= self.dim()
    shape = list(self.shape)
    shape[dim] = index.numel()
    if source is not None:
        if source.dtype != self.dtype or source.device != self.device:
            return None
        if number and source.dim() == 0 and len(shape) == 1 and index.numel() == 1:
            source = source.view(1)
        if list(source.shape) != shape:
            return None
    along = [1] * self.dim()
    along[dim] = index.numel()
    wide = index.reshape(along).expand(shape).long()
    return wide, self if source is None else source


def _line(t: Tensor) -> Tensor:
    """The tensor, or a row of one over the same element."""
    return t if t.dim() else t.view(1)


def _copy(self: Tensor) -> Tensor:
    """What a call that is not in place writes into: contiguous, as ATen's structured operators have it."""
    return self.clone(memory_format=torch.contiguous_format)


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Any:
    """aten::index_add: ``self`` with slices of ``alpha * source`` added where ``index (N,)`` says, in its order."""
    return _added(self, dim, index, source, alpha, lambda: _copy(self))


def index_add_(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Any:
    """aten::index_add_: :func:`index_add` into self."""
    return _added(self, dim, index, source, alpha, lambda: self)


def _added(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Number, out: Any) -> Any:
    made = _rows(self, dim, index, source, number=False)
    if made is None or self.dtype is torch.bool or not whole.served(self):
        return NotImplemented
    if not self.is_floating_point() and isinstance(alpha, float):
        return NotImplemented
    wide, values = made
    into: Tensor = out()
    _line(into).scatter_add_(dim, wide, values if alpha == 1 else values * alpha)
    return into


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """aten::index_copy: ``self`` with slices of source where ``index (N,)`` says."""
    made = None if torch.are_deterministic_algorithms_enabled() else _rows(self, dim, index, source)
    if made is None:
        return NotImplemented
    out = _line(_copy(self))
    if not taking.put_slices(out, dim % out.dim(), index.reshape(-1), made[1]):
        out.scatter_(dim, *made)
    return out.view(self.shape)


def index_copy_(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """aten::index_copy_: :func:`index_copy` into self."""
    made = None if torch.are_deterministic_algorithms_enabled() else _rows(self, dim, index, source)
    if made is None:
        return NotImplemented
    out = _line(self)
    if not (out.is_contiguous() and taking.put_slices(out, dim % out.dim(), index.reshape(-1), made[1])):
        out.scatter_(dim, *made)
    return self


def index_fill_(self: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """aten::index_fill_: one number where ``index (N,)`` says."""
    if torch._debug_has_internal_overlap(self) == 1:  # which torch allows, with a warning
        return NotImplemented
    if isinstance(value, Tensor):
        if value.dim() or (value.is_complex() and not self.is_complex()):
            return NotImplemented
        value = value.item()
    if self.is_complex() and not self.is_conj() and not self.is_neg():
        for part, number in ((self.real, complex(value).real), (self.imag, complex(value).imag)):
            if index_fill_(part, dim, index, number) is NotImplemented:
                return NotImplemented
        return self
    made = None if isinstance(value, complex) else _rows(self, dim, index, None)
    if made is None:
        return NotImplemented
    _line(self).scatter_(dim, made[0], value)
    return self


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """aten::index_reduce: ``self`` with slices of source reduced to where ``index (N,)`` says."""
    made = _rows(self, dim, index, source, number=False)
    if made is None or reduce not in ("prod", "mean", "amax", "amin") or self.dtype is torch.bool:
        return NotImplemented
    out = _copy(self)
    _line(out).scatter_reduce_(dim, *made, reduce, include_self=include_self)
    return out


def take(self: Tensor, index: Tensor) -> Any:
    """aten::take: elements of ``self``, all in a row, by ``index``, in the shape of this."""
    if index.dtype is not torch.int64 or index.device != self.device or self.numel() == 0 or index.numel() == 0:
        return NotImplemented
    return self.reshape(-1)[index.reshape(-1)].view(index.shape)


def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """aten::put_: elements of source to where ``index`` says in ``self``, all in a row."""
    if index.dtype is not torch.int64 or index.numel() != source.numel() or source.dtype != self.dtype:
        return NotImplemented
    if index.numel() == 0 or self.numel() == 0 or not self.device == index.device == source.device:
        return NotImplemented
    flat = self.reshape(-1)
    flat.index_put_((index.reshape(-1),), source.reshape(-1), accumulate)
    return self if flat.data_ptr() == self.data_ptr() and self.is_contiguous() else self.copy_(flat.view(self.shape))


def scatter_reduced(self: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Any:
    """aten::scatter.reduce: ``self`` with src, a tensor or a number, added or multiplied where the index says."""
    return _scattered(_copy(self), dim, index, src, reduce)


def scatter_reduced_(self: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Any:
    """aten::scatter_.reduce: :func:`scatter_reduced` into self."""
    return _scattered(self, dim, index, src, reduce)


def _scattered(out: Tensor, dim: int, index: Tensor, src: Any, reduce: str) -> Any:
    if reduce not in _REDUCED or index.device != out.device or index.dtype not in _INDICES or index.numel() == 0:
        return NotImplemented
    if out.dtype not in whole.NAMES or out.dtype is torch.bool or index.dim() != out.dim():
        return NotImplemented
    if not isinstance(src, Tensor):
        if isinstance(src, complex) or (
            not out.is_floating_point() and not (isinstance(src, int) and _holds(out, src))
        ):
            return NotImplemented
        src = torch.full(index.shape, src, dtype=out.dtype, device=out.device)
    if src.dtype != out.dtype or src.device != out.device:
        return NotImplemented
    return out.scatter_reduce_(dim, index.long(), src, _REDUCED[reduce], include_self=True)


def _holds(t: Tensor, number: int) -> bool:
    ends = torch.iinfo(t.dtype)
    return ends.min <= number <= ends.max
