"""``sort`` and ``topk`` on xpu: what torch's operators add to sorting the rows of a matrix.

Every sort is stable. As in torch, NaN is larger than any number, and both zeros are equal. A function here returns
``NotImplemented`` for a call that it does not serve (dtypes that torch cannot sort, a dimension or a ``k`` that is not
there, outputs of another dtype or device); the host then raises what CPU torch raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common.wrappers import _maybe_resize_out

from anyxpu.ops import sort_kernels

_NOT_SELECTED = (torch.bool, torch.uint16, torch.uint32, torch.uint64)  # torch sorts these, and refuses their topk


def sort(self: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """aten::sort.stable.

    Args:
        self: of any shape; bool, an integer or a float.
        stable: nothing depends on it.

    Returns:
        ``(values, indices)`` of ``self``'s shape, dense, in ``self``'s order of dimensions where it is dense; indices
        are int64.
    """
    at = _dimension(self, dim)
    if at is None:
        return NotImplemented
    values, indices = torch.empty_like(self), torch.empty_like(self, dtype=torch.int64)
    _sort(self, at, descending, values, indices)
    return values, indices


def sort_out(
    self: Tensor,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
    values: Tensor,
    indices: Tensor,
) -> Any:
    """aten::sort.values_stable: :func:`sort` into ``values`` and ``indices``, which are resized where they must be."""
    at = _dimension(self, dim)
    if at is None or not _writable(self, values, indices):
        return NotImplemented
    strides = torch.empty_like(self, device="meta").stride()
    _sort(
        _apart(self, values, indices),
        at,
        descending,
        _resized(values, self.shape, strides),
        _resized(indices, self.shape, strides),
    )
    return values, indices


def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """aten::topk.

    Args:
        self: of any shape; a signed integer, uint8 or a float.
        k: how many, from 0 to the size of ``dim``.
        sorted: nothing depends on it: the results are always in order.

    Returns:
        ``(values, indices)`` of ``self``'s shape but for ``k`` in place of ``dim``, contiguous; indices are int64. Of
        equal elements, those with the lower indices.
    """
    at = _dimension(self, dim)
    shape = None if at is None else _topk_shape(self, k, at)
    if at is None or shape is None:
        return NotImplemented
    values, indices = self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)
    _topk(self, k, at, largest, values, indices)
    return values, indices


def topk_out(
    self: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    values: Tensor,
    indices: Tensor,
) -> Any:
    """aten::topk.values: :func:`topk` into ``values`` and ``indices``, which are resized where they must be."""
    at = _dimension(self, dim)
    shape = None if at is None else _topk_shape(self, k, at)
    if at is None or shape is None or not _writable(self, values, indices):
        return NotImplemented
    _topk(_apart(self, values, indices), k, at, largest, _resized(values, shape), _resized(indices, shape))
    return values, indices


def _dimension(self: Tensor, dim: int) -> int | None:
    """``dim`` counted from the front; None where the call is not served."""
    rank = self.dim() or 1
    if self.dtype not in sort_kernels.ELEMENTS or not -rank <= dim < rank:
        return None
    at = dim % rank
    return at if not self.dim() or self.shape[at] <= sort_kernels.LONGEST else None


def _topk_shape(self: Tensor, k: int, dim: int) -> Sequence[int] | None:
    """The shape of topk's results; None where the call is not served."""
    size = self.shape[dim] if self.dim() else 1
    if self.dtype in _NOT_SELECTED or not 0 <= k <= size:
        return None
    # A number stays one, even for k = 0.
    return (*self.shape[:dim], k, *self.shape[dim + 1 :]) if self.dim() else ()


def _writable(self: Tensor, values: Tensor, indices: Tensor) -> bool:
    """Can results be put there? What torch refuses, it refuses on the host."""
    return (
        values.dtype == self.dtype
        and indices.dtype == torch.int64
        and values.device == indices.device == self.device
        and not any(torch._debug_has_internal_overlap(t) == 1 for t in (values, indices))
    )


def _apart(self: Tensor, *outs: Tensor) -> Tensor:
    """``self``, or a copy where an output shares its memory: results are written while it is still being read."""
    memory = self.untyped_storage().data_ptr()
    return self.clone() if any(out.untyped_storage().data_ptr() == memory for out in outs) else self


def _resized(out: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None) -> Tensor:
    """``out``, resized with torch's warning if it has another shape; with the strides that a new result would have."""
    if out.shape != torch.Size(shape):
        _maybe_resize_out(out, torch.Size(shape))  # type: ignore[no-untyped-call]
        if strides is not None:
            out.as_strided_(shape, strides)
    return out


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """A view with ``dim`` last."""
    if tensor.dim() == 0:
        return tensor
    return tensor if dim == tensor.dim() - 1 else tensor.movedim(dim, -1)


def _sort(self: Tensor, dim: int, descending: bool, values: Tensor, indices: Tensor) -> None:
    """Sort into tensors that share no memory with ``self``, of any strides."""
    n = self.shape[dim] if self.dim() else 1
    if self.numel():
        source, (to_values, to_indices), put = _dense(self, dim, values, indices)
        sort_kernels.sort(source, n, to_values, to_indices, descending)
        put()


def _topk(self: Tensor, k: int, dim: int, largest: bool, values: Tensor, indices: Tensor) -> None:
    """Select into tensors that share no memory with ``self``, of any strides."""
    n, k = (self.shape[dim], k) if self.dim() else (1, 1)
    if values.numel():
        source, (to_values, to_indices), put = _dense(self, dim, values, indices)
        sort_kernels.smallest(source, n, k, to_values, to_indices, largest)
        put()


def _dense(self: Tensor, dim: int, *outs: Tensor) -> tuple[Tensor, Sequence[Tensor], Callable[[], None]]:
    """``self`` and outputs with ``dim`` last and contiguous; and what to call when the outputs have been written."""
    if dim == self.dim() - 1 and all(t.is_contiguous() for t in (self, *outs)):
        return self, outs, _nothing
    views = [_rows(out, dim) for out in outs]
    dense = [v if v.is_contiguous() else torch.empty(v.shape, dtype=v.dtype, device=v.device) for v in views]

    def put() -> None:
        for view, result in zip(views, dense, strict=True):
            if view is not result:
                view.copy_(result)

    return _rows(self, dim).contiguous(), dense, put


def _nothing() -> None:
    pass
