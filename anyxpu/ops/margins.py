"""Losses by the margin between a sample's class and the others, and their gradients, made of other operators.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has 16 bits is computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NONE, _MEAN = 0, 1  # at::Reduction
_NARROW = (torch.float16, torch.bfloat16)


def _fits(x: Tensor, target: Tensor, others: tuple[Tensor | None, ...]) -> bool:
    """Scores ``(N, C)``, ``(C,)`` or one, and what goes with them, on one device."""
    if not x.is_floating_point() or x.dim() > 2 or x.numel() == 0 or target.dtype is not torch.int64:
        return False
    return target.device == x.device and all(t is None or (t.dtype, t.device) == (x.dtype, x.device) for t in others)


def _rows(x: Tensor) -> Tensor:
    wide = x.float() if x.dtype in _NARROW else x
    return wide if x.dim() == 2 else wide.view(1, -1)


def _reduced(losses: Tensor, reduction: int, x: Tensor) -> Tensor:
    if reduction == _NONE:
        return (losses if x.dim() == 2 else losses.squeeze(0)).to(x.dtype)
    return (losses.mean() if reduction == _MEAN else losses.sum()).to(x.dtype)


def _shares(grad: Tensor, reduction: int, rows: int, columns: int) -> Tensor:
    """What of ``grad`` each row's elements get, ``(N, 1)`` or a number."""
    wide = grad.float() if grad.dtype in _NARROW else grad
    if reduction == _NONE:
        return wide.reshape(-1, 1) / columns
    return wide / (columns * rows if reduction == _MEAN else columns)


# --- one class a sample -------------------------------------------------------------------------------------------


def _distances(x: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """How far each score comes too near to its class's, ``(N, C)``, 0 for the class itself; the classes ``(N, 1)``."""
    rows, classes = _rows(x), target.reshape(-1, 1)
    near = (rows - rows.gather(1, classes) + margin).clamp_min(0)
    return near.scatter(1, classes, 0.0), classes


def _one_fits(x: Tensor, target: Tensor, p: float, weight: Tensor | None, *others: Tensor | None) -> bool:
    count = x.shape[0] if x.dim() == 2 else 1
    return (
        _fits(x, target, (weight, *others))
        and p in (1, 2)
        and target.dim() <= 1
        and target.numel() == count
        and (weight is None or tuple(weight.shape) == (x.numel() // count,))
    )


def multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = _MEAN
) -> Any:
    """aten::multi_margin_loss: of each sample the mean of ``max(0, margin - x[class] + x[j]) ** p`` over other j.

    Args:
        x: scores, ``(N, C)`` or ``(C,)``; floats.
        target: classes, ``(N,)`` or one; int64.
        p: 1 or 2.
        weight: ``(C,)``, a factor of each class; or None.
    """
    if not _one_fits(x, target, p, weight):
        return NotImplemented
    near, classes = _distances(x, target, margin)
    losses = (near if p == 1 else near.square()).sum(1) / near.shape[1]
    if weight is not None:
        losses = losses * weight.to(losses.dtype).index_select(0, classes.view(-1))
    return _reduced(losses, reduction, x)


def multi_margin_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Any:
    """aten::multi_margin_loss_backward."""
    if not _one_fits(x, target, p, weight, grad):
        return NotImplemented
    near, classes = _distances(x, target, margin)
    made = (near > 0).to(near.dtype) if p == 1 else 2 * near
    if weight is not None:
        made = made * weight.to(made.dtype).index_select(0, classes.view(-1)).unsqueeze(1)
    made = made * _shares(grad, reduction, len(near), near.shape[1])
    return made.scatter(1, classes, -made.sum(1, keepdim=True)).view(x.shape).to(x.dtype)


# --- several classes a sample -------------------------------------------------------------------------------------


def _marked(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``target (N, C)``: which entries are classes, up to the first negative one; which are meant."""
    rows = target if target.dim() == 2 else target.view(1, -1)
    listed = (rows < 0).to(torch.int32).cumsum(1) == 0
    meant = torch.zeros(rows.shape, dtype=torch.int32, device=x.device)
    meant.scatter_add_(1, rows.clamp_min(0), listed.to(torch.int32))
    return listed, meant > 0


_MOST = 1 << 26  # pairs of classes


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> Any:
    """aten::multilabel_margin_loss_forward: the mean over j of the sums of ``max(0, 1 - x[class] + x[i])``.

    Args:
        x: scores, ``(N, C)`` or ``(C,)``; floats.
        target: a sample's classes, then a negative number; as ``x``; int64.

    Returns:
        The loss; which classes are meant, 0 or 1 in x's dtype.
    """
    if not _fits(x, target, ()) or target.shape != x.shape or x.numel() * _rows(x).shape[1] > _MOST:
        return NotImplemented
    rows = _rows(x)
    listed, meant = _marked(x, target)
    classes = (target if target.dim() == 2 else target.view(1, -1)).clamp_min(0)
    near = (1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    pairs = listed.unsqueeze(2) & ~meant.unsqueeze(1)
    losses = torch.where(pairs, near, 0.0).sum((1, 2)) / rows.shape[1]
    return _reduced(losses, reduction, x), meant.to(x.dtype).view(x.shape)


def multilabel_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Any:
    """aten::multilabel_margin_loss_backward."""
    if not _fits(x, target, (grad, is_target)) or target.shape != x.shape or x.numel() * _rows(x).shape[1] > _MOST:
        return NotImplemented
    rows = _rows(x)
    listed, meant = _marked(x, target)
    classes = (target if target.dim() == 2 else target.view(1, -1)).clamp_min(0)
    near = 1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1) > 0
    pairs = (near & listed.unsqueeze(2) & ~meant.unsqueeze(1)).to(rows.dtype)
    made = pairs.sum(1).scatter_add(1, classes, -pairs.sum(2))
    return (made * _shares(grad, reduction, *rows.shape)).view(x.shape).to(x.dtype)
