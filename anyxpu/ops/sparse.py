"""Sparse tensors on xpu: what ATen's own code, made of operators, does not do on every device.

A function here returns ``NotImplemented`` for a call that it does not serve; ATen's CPU kernels then compute it on
copies, or raise what CPU torch raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole

Number = int | float
_SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _coo(like: Tensor, indices: Tensor, values: Tensor, coalesced: bool) -> Tensor:
    make = torch.ops.aten._sparse_coo_tensor_unsafe
    return make(indices, values, list(like.shape), dtype=values.dtype, device=values.device, is_coalesced=coalesced)


def _compressed(layout: torch.layout, begin: Tensor, plain: Tensor, values: Tensor, shape: torch.Size) -> Any:
    make = torch.ops.aten._sparse_compressed_tensor_unsafe
    return make(begin, plain, values, list(shape), dtype=values.dtype, layout=layout, device=values.device)


def _flat(indices: Tensor, sizes: torch.Size) -> Tensor:
    """Where each column of indices is in a dense tensor of these sizes, in elements."""
    steps = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    flat = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for row, step in zip(indices, steps, strict=True):
        flat = torch.add(flat, row, alpha=step)
    return flat


def coalesce(self: Tensor) -> Any:
    """aten::_coalesce: places in order, each once; values of one place are added up in the order they come in."""
    indices, values = self._indices(), self._values()
    if self._nnz() < 2:
        return _coo(self, indices.clone(), values.clone(), True)
    if values.dtype is torch.bool or values.numel() == 0 or self.sparse_dim() == 0:
        return NotImplemented
    flat, order = torch.sort(_flat(indices, self.shape[: self.sparse_dim()]), stable=True)
    first = torch.ones_like(flat, dtype=torch.bool)
    torch.ne(flat[1:], flat[:-1], out=first[1:])
    which = first.cumsum(0) - 1
    count = int(which[-1].item()) + 1
    if count == len(flat):
        return _coo(self, indices[:, order], values[order], True)
    sums = torch.zeros((count, *values.shape[1:]), dtype=values.dtype, device=values.device)
    sums.index_put_((which,), values[order], accumulate=True)
    return _coo(self, indices[:, order[first]], sums, True)


def add_out(self: Tensor, other: Tensor, *, alpha: Number = 1, out: Tensor) -> Any:
    """aten::add.out of a sparse tensor and a sparse or dense one; of two sparse ones all places of both, as CUDA's."""
    if not other.is_sparse or self.shape != other.shape or self.device != other.device:
        return NotImplemented
    if not self.is_sparse:
        if out.is_sparse or self.layout is not torch.strided:
            return NotImplemented
        if not torch.can_cast(torch.result_type(self, other), out.dtype):
            return NotImplemented
        if out is not self:
            if out.shape != self.shape:
                out.resize_(self.shape)
            out.copy_(self)
        values = other._values().to(out.dtype)
        if values.numel():
            sparse = tuple(other._indices())
            if not sparse:
                one = values.any(0) if values.dtype is torch.bool else values.sum(0, dtype=values.dtype)
                out.add_(one, alpha=alpha)
            else:
                out.index_put_(sparse, values if alpha == 1 else values * alpha, accumulate=True)
        return out
    if not out.is_sparse or (self.sparse_dim(), self.dense_dim()) != (other.sparse_dim(), other.dense_dim()):
        return NotImplemented
    dtype = torch.result_type(self, other)
    if not torch.can_cast(dtype, out.dtype) or alpha is True:
        return NotImplemented
    added = other._values().to(dtype)
    if alpha != 1:
        added = added * alpha
    made = _coo(
        self,
        torch.cat([self._indices(), other._indices()], 1),
        torch.cat([self._values().to(dtype), added]).to(out.dtype),
        False,
    )
    return _write(out, made.coalesce() if made._nnz() > made.numel() else made)


def _write(out: Tensor, made: Tensor) -> Tensor:
    if out.shape != made.shape or out._nnz() != made._nnz():
        out.sparse_resize_and_clear_(made.shape, made.sparse_dim(), made.dense_dim())
    return out.copy_(made)


def mul_out(self: Tensor, other: Tensor | Number, *, out: Tensor) -> Any:
    """aten::mul.out of a sparse tensor and a dense one that is broadcast to its shape."""
    if not isinstance(other, Tensor):  # a number that torch wrapped
        made = _coo(self, self._indices(), (self._values() * other).to(out.dtype), self.is_coalesced())
        return _write(out, made)
    if other.is_sparse and other.dim() == 0:
        other = other.to_dense()  # where the CPU's kernel reads what nobody wrote
    if self.is_sparse == other.is_sparse or not out.is_sparse:
        return NotImplemented
    sparse, dense = (self, other) if self.is_sparse else (other, self)
    if dense.layout is not torch.strided or (dense.dim() and dense.device != sparse.device):
        return NotImplemented
    if dense.dim() > sparse.dim() or torch.broadcast_shapes(dense.shape, sparse.shape) != sparse.shape:
        return NotImplemented
    if not torch.can_cast(torch.result_type(self, other), out.dtype):
        return NotImplemented
    values = sparse._values()
    if dense.dim():
        indices = tuple(sparse._indices())
        dense = dense.expand(sparse.shape)[indices] if indices else dense.expand(sparse.shape)
    made = _coo(sparse, sparse._indices(), (values * dense).to(out.dtype), sparse.is_coalesced())
    return _write(out, made)


def sparse_mask(self: Tensor, mask: Tensor) -> Any:
    """aten::sparse_mask of a dense tensor: its elements where the mask has places."""
    if self.layout is not torch.strided or self.shape != mask.shape or self.device != mask.device:
        return NotImplemented
    if mask.layout is torch.sparse_csr and mask.dim() == 2 and mask.values().dim() == 1:
        crow, col = mask.crow_indices(), mask.col_indices()
        row = torch._convert_indices_from_csr_to_coo(crow, col)[0]
        return _compressed(torch.sparse_csr, crow, col, self[row, col], self.shape)
    if not mask.is_sparse or mask.sparse_dim() == 0:
        return NotImplemented
    indices = mask._indices()
    return _coo(self, indices.clone(), self[tuple(indices)], mask.is_coalesced())


def to_sparse(
    self: Tensor,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> Any:
    """aten::_to_sparse of a compressed tensor; ATen's code lacks the layout compressed along the other dimension."""
    if _TURNED.get(self.layout) == layout:
        return _turned(self, layout, blocksize, dense_dim)
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        return NotImplemented
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCsrCPU)
    return torch.ops.aten._to_sparse.default.redispatch(
        keys, self, layout=layout, blocksize=blocksize, dense_dim=dense_dim
    )


def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Any:
    """aten::_to_sparse_csr of a CSR or CSC tensor."""
    return self.clone() if self.layout is torch.sparse_csr else _turned(self, torch.sparse_csr, None, dense_dim)


def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Any:
    """aten::_to_sparse_csc of a CSR or CSC tensor."""
    return self.clone() if self.layout is torch.sparse_csc else _turned(self, torch.sparse_csc, None, dense_dim)


def to_sparse_bsr(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Any:
    """aten::_to_sparse_bsr of a BSC tensor."""
    return _turned(self, torch.sparse_bsr, blocksize, dense_dim)


def to_sparse_bsc(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Any:
    """aten::_to_sparse_bsc of a BSR tensor."""
    return _turned(self, torch.sparse_bsc, blocksize, dense_dim)


_TURNED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


def _turned(self: Tensor, layout: torch.layout | None, blocksize: Sequence[int] | None, dense_dim: int | None) -> Any:
    """The same matrices (or of blocks), compressed along their other dimension."""
    if (
        layout is None
        or _TURNED.get(self.layout) != layout
        or (dense_dim is not None and dense_dim != self.dense_dim())
    ):
        return NotImplemented
    by_rows = self.layout in (torch.sparse_csr, torch.sparse_bsr)
    begin, plain = (self.crow_indices(), self.col_indices()) if by_rows else (self.ccol_indices(), self.row_indices())
    values, batch = self.values(), plain.shape[:-1]
    blocks = self.layout in (torch.sparse_bsr, torch.sparse_bsc)
    block = values.shape[len(batch) + 1 :][:2] if blocks else (1, 1)
    if blocksize and tuple(blocksize) != tuple(block):
        return NotImplemented
    across = self.shape[len(batch) + by_rows] // block[by_rows]
    lines, entries = begin.shape[-1] - 1, plain.shape[-1]
    many = prod(batch)
    line = torch.arange(lines, dtype=plain.dtype, device=self.device).repeat(many)
    line = torch.repeat_interleave(line, begin.diff().reshape(-1), output_size=many * entries).view(plain.shape)
    plain, order = torch.sort(plain, dim=-1, stable=True)  # those of a line come in order already
    starts = torch.arange(across + 1, dtype=plain.dtype, device=self.device).expand(*batch, across + 1)
    begin = torch.searchsorted(plain.contiguous(), starts.contiguous(), out_int32=plain.dtype is torch.int32)
    flat = values.reshape(many, entries, *values.shape[len(batch) + 1 :])
    moved = flat[torch.arange(many, device=self.device)[:, None], order.view(many, entries)]
    return _compressed(layout, begin, line.gather(-1, order), moved.view(values.shape), self.shape)


# --- products ---------------------------------------------------------------------------------------------------


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """aten::addmm where mat1 is sparse: ``beta * self + alpha * mat1 @ mat2``."""
    return _product(self, mat1, mat2, beta, alpha)


def addmm_(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """aten::addmm_ where mat1 is sparse."""
    made = _product(self, mat1, mat2, beta, alpha)
    return made if made is NotImplemented or made.shape != self.shape else self.copy_(made)


def addmm_out(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1, out: Tensor) -> Any:
    """aten::addmm.out where mat1 is sparse."""
    if out.dtype != mat2.dtype or out.layout is not torch.strided:
        return NotImplemented
    made = _product(self, mat1, mat2, beta, alpha)
    if made is NotImplemented:
        return made
    if out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)


def addmv_out(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1, out: Tensor) -> Any:
    """aten::addmv.out where mat is sparse: ``beta * self + alpha * mat @ vec``."""
    if vec.dim() != 1 or out.dtype != vec.dtype or self.dim() > 1:
        return NotImplemented
    made = _product(self[:, None] if self.dim() else self, mat, vec[:, None], beta, alpha)
    if made is NotImplemented:
        return made
    if out.shape != made.shape[:1]:
        out.resize_(made.shape[:1])
    return out.copy_(made[:, 0])


def bmm(self: Tensor, mat2: Tensor) -> Any:
    """aten::bmm where self is sparse, in its three dimensions: one product, of the matrices along a diagonal."""
    if self.sparse_dim() != 3 or self.dense_dim() or mat2.dim() != 3 or mat2.layout is not torch.strided:
        return NotImplemented
    batch, rows, inner = self.shape
    if mat2.shape[:2] != (batch, inner) or batch * rows * inner == 0:
        return NotImplemented
    which, row, column = self._indices()
    indices = torch.stack([torch.add(row, which, alpha=rows), torch.add(column, which, alpha=inner)])
    make = torch.ops.aten._sparse_coo_tensor_unsafe
    values = self._values()
    matrix = make(
        indices, values, [batch * rows, batch * inner], dtype=values.dtype, device=values.device,
        is_coalesced=self.is_coalesced(),
    )  # fmt: skip
    nothing = torch.zeros((), dtype=mat2.dtype, device=mat2.device)
    made = _product(nothing, matrix, mat2.reshape(batch * inner, -1), 0, 1)
    return made if made is NotImplemented else made.view(batch, rows, -1)


def bmm_out(self: Tensor, mat2: Tensor, *, out: Tensor) -> Any:
    """aten::bmm.out where self is sparse."""
    made = bmm(self, mat2) if out.dtype == mat2.dtype else NotImplemented
    if made is NotImplemented:
        return made
    if out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)


def _product(self: Tensor, mat1: Tensor, mat2: Tensor, beta: Number, alpha: Number) -> Any:
    dtype = mat2.dtype
    if dtype not in _SUMMED or {self.dtype, mat1.dtype} != {dtype} or not whole.served(mat2):
        return NotImplemented
    if mat1.dim() != 2 or mat2.dim() != 2 or mat1.shape[1] != mat2.shape[0]:
        return NotImplemented
    rows, columns = mat1.shape[0], mat2.shape[1]
    shape = (rows, columns)
    if {t.device for t in (self, mat1, mat2)} != {mat1.device} or self.layout is not torch.strided:
        return NotImplemented
    if self.dim() > 2 or torch.broadcast_shapes(self.shape, shape) != shape or rows * columns == 0:
        return NotImplemented
    parts = _by_rows(mat1)
    if parts is None:
        return NotImplemented
    crow, col, values = parts
    bias = self.expand(shape)
    out = torch.empty(shape, dtype=dtype, device=mat1.device)
    dense = mat2.contiguous()
    width = launching.power_of_two(columns, 16, whole.line(mat1.get_device()))
    made = whole.launch(
        "sparse.rows", (crow, col, values, dense, bias, out),
        rows * (-(-columns // width)), max(len(col) * columns, rows * columns), rows, columns, *bias.stride(),
        float(beta), float(alpha),
        BIAS=beta != 0, OP="fp64" if dtype is torch.float64 else "fp32", L=width,
    )  # fmt: skip
    return out if made else NotImplemented


def _by_rows(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Offsets of the rows, columns and values of a sparse matrix."""
    if matrix.is_sparse:
        if matrix.dense_dim() or matrix.sparse_dim() != 2:
            return None
        matrix = matrix.coalesce()
        indices = matrix._indices()
        crow = torch._convert_indices_from_coo_to_csr(indices[0].contiguous(), matrix.shape[0])
        return crow, indices[1].contiguous(), matrix._values().contiguous()
    if matrix.layout is not torch.sparse_csr or matrix.values().dim() != 1:
        return None
    return matrix.crow_indices().contiguous(), matrix.col_indices().contiguous(), matrix.values().contiguous()


# --- indices ----------------------------------------------------------------------------------------------------


def offsets_of(self: Tensor, size: int, *, out_int32: bool = False) -> Any:
    """aten::_convert_indices_from_coo_to_csr: where each of ``size`` rows begins in the ordered rows ``self``."""
    if self.dim() != 1 or self.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    dtype = torch.int32 if out_int32 else torch.int64
    begin = torch.zeros(size + 1, dtype=dtype, device=self.device)
    if self.numel() == 0 or size == 0:
        return begin
    begin.scatter_add_(0, self.long() + 1, torch.ones(self.shape, dtype=dtype, device=self.device))
    return begin.cumsum(0, dtype=dtype)


def places_of(crow_indices: Tensor, col_indices: Tensor, *, out_int32: bool = False, transpose: bool = False) -> Any:
    """aten::_convert_indices_from_csr_to_coo: the row and the column of each element."""
    if crow_indices.dim() != 1 or col_indices.dim() != 1 or crow_indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    dtype = torch.int32 if out_int32 else torch.int64
    count = col_indices.numel()
    row = torch.zeros(count + 1, dtype=dtype, device=col_indices.device)
    if count and crow_indices.numel() > 2:
        inner = crow_indices[1:-1].long()
        row.scatter_add_(0, inner, torch.ones(inner.shape, dtype=dtype, device=row.device))
    row, col = row.cumsum(0, dtype=dtype)[:count], col_indices.to(dtype)
    return torch.stack((col, row) if transpose else (row, col))
