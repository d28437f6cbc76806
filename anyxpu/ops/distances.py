"""Distances between rows on xpu, forward and backward, by the kernels of ``distances_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, shapes that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. f32 and f64, as on the CPU.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole

_TYPES = (torch.float32, torch.float64)
_BY_PRODUCTS, _MANY = 1, 25  # of at::cdist's compute modes; rows from which on it chooses that


def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    """aten::_cdist_forward: the p-norms of all differences of rows.

    Args:
        x, y: ``(*, P, M)`` and ``(*, Q, M)``, their batches broadcast.
        compute_mode: of Euclidean distances: 1 by a product of matrices, 2 by differences, else by a product of many.

    Returns:
        ``(*, P, Q)``.
    """
    made = _rows(x, y, p)
    if made is None:
        return NotImplemented
    one, other, batch = made
    rows, columns = x.shape[-2], y.shape[-2]
    if p == 2 and (compute_mode == _BY_PRODUCTS or (not compute_mode and max(rows, columns) > _MANY)):
        return torch._euclidean_dist(x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:]))
    out = torch.empty((*batch, rows, columns), dtype=x.dtype, device=x.device)
    return out if _forward(one, other, out, p, False) else NotImplemented


def cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Any:
    """aten::_cdist_backward: the gradient of :func:`cdist`'s x, of the batches that x and y have together."""
    made = _rows(x, y, p)
    if made is None:
        return NotImplemented
    one, other, batch = made
    shape = (*batch, x.shape[-2], y.shape[-2])
    if not tuple(grad.shape) == tuple(distances.shape) == shape or grad.dtype != x.dtype:
        return NotImplemented
    out = torch.empty((*batch, *x.shape[-2:]), dtype=x.dtype, device=x.device)
    return out if _backward(grad, one, other, distances, out, p, False) else NotImplemented


def pdist(x: Tensor, p: float = 2.0) -> Any:
    """aten::_pdist_forward: the p-norms of the differences of each pair of rows.

    Args:
        x: ``(N, M)``.

    Returns:
        ``(N * (N - 1) / 2,)``, row 0's with those behind it first.
    """
    if x.dim() != 2 or x.shape[0] < 2:
        return NotImplemented
    made = _rows(x, x, p)
    if made is None:
        return NotImplemented
    n = x.shape[0]
    out = torch.empty(n * (n - 1) // 2, dtype=x.dtype, device=x.device)
    return out if _forward(*made[:2], out, p, True) else NotImplemented


def pdist_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Any:
    """aten::_pdist_backward: the gradient of :func:`pdist`'s x."""
    if x.dim() != 2 or x.shape[0] < 2:
        return NotImplemented
    made, n = _rows(x, x, p), x.shape[0]
    if made is None or not tuple(grad.shape) == tuple(distances.shape) == (n * (n - 1) // 2,) or grad.dtype != x.dtype:
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out if _backward(grad, *made[:2], distances, out, p, True) else NotImplemented


def _rows(x: Tensor, y: Tensor, p: float) -> tuple[Tensor, Tensor, torch.Size] | None:
    """Both as ``(B, rows, M)``, and the batches they have together; None where they do not fit."""
    if x.dtype not in _TYPES or (y.dtype, y.device) != (x.dtype, x.device) or min(x.dim(), y.dim()) < 2:
        return None
    if x.shape[-1] != y.shape[-1] or 0 in (*x.shape, *y.shape) or not p >= 0 or not whole.served(x):
        return None
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        return None
    rows, columns, width = x.shape[-2], y.shape[-2], x.shape[-1]
    if prod(batch) * max(rows * columns, rows * width, columns * width) > whole.MOST:
        return None
    one, other = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]).contiguous() for t in (x, y))
    return one, other, batch


def _kind(p: float) -> int:
    return {0.0: 0, 1.0: 1, 2.0: 2, inf: 3}.get(float(p), 4)


def _tiles(x: Tensor, width: int) -> tuple[int, int, int]:
    """Rows and lanes of a program, and how many there are over ``(B, P, width)``."""
    lanes = launching.power_of_two(width, 8, 64)
    rows = max(1, (64 if launching.on_cpu(x.get_device()) else 256) // lanes)
    return rows, lanes, x.shape[0] * -(-x.shape[1] // rows) * -(-width // lanes)


def _forward(x: Tensor, y: Tensor, out: Tensor, p: float, condensed: bool) -> bool:
    count, width = y.shape[1], x.shape[2]
    rows, lanes, groups = _tiles(x, count)
    return whole.launch(
        "distances.forward", (x, y.transpose(1, 2).contiguous(), out), groups, prod(x.shape[:2]) * count * width,
        x.shape[1], count, width, _number(p), KIND=_kind(p), CONDENSED=condensed, OP=whole.NAMES[x.dtype], R=rows,
        L=lanes,
    )  # fmt: skip


def _backward(
    grad: Tensor, x: Tensor, y: Tensor, distances: Tensor, out: Tensor, p: float, condensed: bool
) -> bool:  # fmt: skip
    if p == 0:
        out.zero_()
        return True
    rows, lanes, groups = _tiles(x, x.shape[2])
    return whole.launch(
        "distances.backward", (grad.contiguous(), x, y, distances.contiguous(), out), groups,
        x.numel() * y.shape[1], x.shape[1], y.shape[1], x.shape[2], _number(p), KIND=_kind(p), CONDENSED=condensed,
        OP=whole.NAMES[x.dtype], R=rows, L=lanes,
    )  # fmt: skip


def _number(p: float) -> float:
    return float(p) if _kind(p) == 4 else 1.0
