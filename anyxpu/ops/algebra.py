"""Sums over matrices and norms that are a few other operators in a row.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has 16 bits is computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import whole

Number = int | float
_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_NARROW)


def dot(x: Tensor, y: Tensor) -> Any:
    """aten::dot and, as no complex numbers come here, aten::vdot: the sum of the products of two vectors ``(N,)``."""
    alike = (x.dtype, x.device) == (y.dtype, y.device) and x.dim() == y.dim() == 1 and x.shape == y.shape
    if not alike or x.dtype is torch.bool or x.numel() == 0 or not whole.served(x):
        return NotImplemented
    n, x, y = x.numel(), x.contiguous(), y.contiguous()
    lanes, chunk, parts = whole.shares(n, x.get_device())
    wide = torch.float32 if x.dtype in _NARROW else x.dtype
    out = torch.empty(parts, dtype=x.dtype if parts == 1 else wide, device=x.device)
    if not whole.launch("algebra.dot", (x, y, out), parts, n, n, chunk, OP=whole.NAMES[wide], L=lanes):
        return NotImplemented
    return out.view(()) if parts == 1 else out.sum(dtype=wide).to(x.dtype)


def trace(self: Tensor) -> Any:
    """aten::trace: the sum of the diagonal of a matrix; integers are summed in int64."""
    if self.dim() != 2 or self.numel() == 0 or self.dtype is torch.bool:
        return NotImplemented
    return self.diagonal().sum()


def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """aten::addbmm: ``beta * self + alpha * sum of batch1[b] @ batch2[b]``: one product, of the matrices in a row."""
    if batch1.dim() != 3 or batch2.dim() != 3 or not (batch1.is_floating_point() or batch1.is_complex()):
        return NotImplemented
    b, n, m = batch1.shape
    if batch2.shape[:2] != (b, m) or b * n * m == 0 or not self.dtype == batch1.dtype == batch2.dtype:
        return NotImplemented
    left, right = batch1.permute(1, 0, 2).reshape(n, b * m), batch2.reshape(b * m, -1)
    return torch.addmm(self, left, right, beta=beta, alpha=alpha)


def addbmm_(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """aten::addbmm_: :func:`addbmm` into self."""
    made = addbmm(self, batch1, batch2, beta=beta, alpha=alpha)
    return made if made is NotImplemented or made.shape != self.shape else self.copy_(made)


def norm(
    self: Tensor, p: Number | None, dim: Sequence[int], keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """aten::norm over ``dim``, of vectors: ``(sum |x|^p)^(1/p)``."""
    if self.is_complex() and dtype is None:
        self = self.abs()
    if self.dtype not in _FLOATS or isinstance(p, complex) or self.numel() == 0:
        return NotImplemented
    return torch.linalg.vector_norm(self, 2 if p is None else p, list(dim) or None, keepdim, dtype=dtype)


def renorm(self: Tensor, p: Number, dim: int, maxnorm: Number) -> Any:
    """aten::renorm: slices along ``dim`` whose p-norm is above ``maxnorm`` scaled down to it."""
    if self.dtype not in _FLOATS or self.dim() < 2 or not -self.dim() <= dim < self.dim() or self.numel() == 0:
        return NotImplemented
    if isinstance(p, complex) or isinstance(maxnorm, complex) or not p > 0 or not maxnorm >= 0:
        return NotImplemented
    others = [d for d in range(self.dim()) if d != dim % self.dim()]
    wide = torch.float32 if self.dtype in _NARROW else None
    size = torch.linalg.vector_norm(self, p, others, True, dtype=wide)
    factor = torch.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
    return (self * factor).to(self.dtype).contiguous()


def renorm_(self: Tensor, p: Number, dim: int, maxnorm: Number) -> Any:
    """aten::renorm_: :func:`renorm` into self."""
    made = renorm(self, p, dim, maxnorm)
    return made if made is NotImplemented else self.copy_(made)


def largest(self: Tensor) -> Any:
    """aten::max.unary_out: the largest element of all."""
    return torch.max(self)


def smallest(self: Tensor) -> Any:
    """aten::min.unary_out: the smallest element of all."""
    return torch.min(self)


# --- weights of a direction and a length --------------------------------------------------------------------------


def _others(v: Tensor, dim: int) -> list[int] | None:
    if v.dim() < 2 or v.dtype not in _FLOATS or dim not in (0, v.dim() - 1):
        return None
    return [d for d in range(v.dim()) if d != dim]


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """aten::_weight_norm_interface: ``v * g / norm of v`` by slices along the first or last dimension; norms."""
    others = _others(v, dim)
    if others is None or g.dtype != v.dtype or v.numel() == 0:
        return NotImplemented
    wide = torch.float32 if v.dtype in _NARROW else v.dtype
    norms = torch.linalg.vector_norm(v, 2, others, True, dtype=wide)
    return (v * (g.to(wide) / norms)).to(v.dtype), norms


def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> Any:
    """aten::_weight_norm_interface_backward: the gradients of v and of g."""
    others = _others(v, dim)
    if others is None or grad.dtype != v.dtype or v.numel() == 0:
        return NotImplemented
    wide = torch.float32 if v.dtype in _NARROW else v.dtype
    grads, whole = grad.to(wide), v.to(wide)
    along = (grads * whole).sum(others, keepdim=True)
    of_v = g.to(wide) / norms * (grads - whole * (along / (norms * norms)))
    return of_v.to(v.dtype), (along / norms).to(g.dtype)
