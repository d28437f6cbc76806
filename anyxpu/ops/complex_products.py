"""Products of complex matrices: one real product each, of twice the length and width.

A row of ``a`` is read as real numbers, in pairs. They meet a matrix that holds, below each row of ``b``, that row times
i, so that the sums are the result's parts, in pairs as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import matmul
from anyxpu.ops import complex_numbers, serve

Function = Callable[..., Any]


def _plain(t: Tensor) -> Tensor:
    return t.resolve_conj().resolve_neg()


def _fits(rank: int, a: Tensor, b: Tensor, c: Tensor | None = None) -> bool:
    """Two factors that go together."""
    if a.dim() != rank or b.dim() != rank or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return False
    if any((t.dtype, t.device) != (a.dtype, a.device) for t in (b, *(() if c is None else (c,)))):
        return False
    return matmul.made_of_real_ones(a)


def _times(a: Tensor, b: Tensor) -> Tensor:
    if 0 in (*a.shape, *b.shape):
        return a.new_zeros(*a.shape[:-1], b.shape[-1])
    b = _plain(b)
    pairs = torch.view_as_real(_plain(a).contiguous()).flatten(-2)
    (*batch, k, n) = b.shape
    matrix = torch.empty((*batch, k, 2, n, 2), dtype=pairs.dtype, device=pairs.device)
    matrix[..., 0, :, :].copy_(torch.view_as_real(b))
    matrix[..., 1, :, 0].copy_(-b.imag)
    matrix[..., 1, :, 1].copy_(b.real)
    made = torch.matmul(pairs, matrix.view(*batch, 2 * k, 2 * n))
    return torch.view_as_complex(made.view(*made.shape[:-1], n, 2))


def mm(a: Tensor, b: Tensor) -> Any:
    """aten::mm."""
    return _times(a, b) if _fits(2, a, b) else NotImplemented


def bmm(a: Tensor, b: Tensor) -> Any:
    """aten::bmm."""
    return _times(a, b) if _fits(3, a, b) else NotImplemented


def _added(c: Tensor, product: Tensor, beta: Any, alpha: Any) -> Any:
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    try:
        added = _plain(c).expand(product.shape)
    except RuntimeError:
        return NotImplemented
    return product + (added if beta == 1 else added * beta)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """aten::addmm."""
    return _added(c, _times(a, b), beta, alpha) if _fits(2, a, b, c) else NotImplemented


def baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """aten::baddbmm."""
    return _added(c, _times(a, b), beta, alpha) if _fits(3, a, b, c) else NotImplemented


def addmv(c: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """aten::addmv."""
    if vector.dim() != 1 or c.dim() > 1 or not _fits(2, matrix, vector.unsqueeze(1), c):
        return NotImplemented
    return _added(c, _times(matrix, vector.unsqueeze(1)).squeeze(1), beta, alpha)


def dot(a: Tensor, b: Tensor) -> Any:
    """aten::dot."""
    if a.dim() != 1 or b.dim() != 1 or not _fits(2, a.unsqueeze(0), b.unsqueeze(1)):
        return NotImplemented
    return _times(a.unsqueeze(0), b.unsqueeze(1)).view(())


def vdot(a: Tensor, b: Tensor) -> Any:
    """aten::vdot: :func:`dot` with the conjugate of ``a``."""
    return dot(a.conj(), b)


_FUNCTIONS: dict[Function, tuple[str, ...]] = {
    mm: ("mm", "mm.out"),
    bmm: ("bmm", "bmm.out"),
    addmm: ("addmm", "addmm.out", "addmm_"),
    baddbmm: ("baddbmm", "baddbmm.out", "baddbmm_"),
    addmv: ("addmv", "addmv.out", "addmv_"),
    dot: ("dot",),
    vdot: ("vdot",),
}
TABLE: dict[str, Function] = {
    form: serve.counted(form, complex_numbers.into_form(form, function))
    for function, forms in _FUNCTIONS.items()
    for form in forms
}
"""Operator -> what serves it where the operands are complex; the host what that declines."""
