"""``nll_loss``, which cross entropy ends in, made of operators that have kernels here.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. A class out of range is found by the kernel that takes it, as with CUDA, and raised at the next wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MEAN, _SUM = 1, 2  # at::Reduction


def nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    """aten::nll_loss_forward.

    Args:
        x: log-probabilities ``(N, C)`` or ``(C,)``, of floats.
        target: classes ``(N,)`` or a number, int64.
        weight: of classes ``(C,)``, or None.
        reduction: 0 none, 1 mean, 2 sum.
        ignore_index: a class that counts nothing.

    Returns:
        The loss, ``(N,)`` or a number, and the sum of the weights; both of x's dtype, summed in float32 where that
        has 16 bits.
    """
    if not _served(x, target, weight):
        return NotImplemented
    keep, safe, factors = _counted(x, target, weight, ignore_index)
    picked = x.reshape(-1, x.shape[-1]).gather(1, safe[:, None])[:, 0]
    losses = torch.where(keep, picked * -factors, 0.0)
    if reduction not in (_MEAN, _SUM):
        return losses.to(x.dtype).reshape(target.shape), x.new_zeros(())
    total, whole = losses.sum(), factors.sum()
    return (total / whole if reduction == _MEAN else total).to(x.dtype), whole.to(x.dtype)


def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Any:
    """aten::nll_loss_backward: the gradient of :func:`nll_loss_forward`'s ``x``; ``total`` is the sum of weights.

    A row that does not count has a gradient of 0 whatever it is divided by, as on the CPU and CUDA.
    """
    if not _served(x, target, weight) or grad.dtype != x.dtype or total.device != x.device:
        return NotImplemented
    keep, safe, factors = _counted(x, target, weight, ignore_index)
    value = factors * -grad.reshape(-1)
    if reduction == _MEAN:
        # In 16 bits a sum has few digits: where it is the one that was given, the weights' own is taken. Another one,
        # of more rows than these, is the caller's to give.
        own = factors.sum()
        value = value / torch.where(own.to(total.dtype) == total, own, total.to(own.dtype))
    value = torch.where(keep, value, 0.0)
    made = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    made.view(-1, x.shape[-1]).scatter_add_(1, safe[:, None], value.to(x.dtype)[:, None])
    return made


def _served(x: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    return (
        x.is_floating_point()
        and x.dim() in (1, 2)
        and x.numel() > 0
        and tuple(target.shape) == tuple(x.shape[:-1])
        and target.dtype is torch.int64
        and target.device == x.device
        and (weight is None or (weight.shape == x.shape[-1:] and (weight.dtype, weight.device) == (x.dtype, x.device)))
    )


def _counted(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows count, a class of each (0 where it does not), and how much each counts."""
    flat = target.reshape(-1)
    keep = flat != ignore_index
    safe = torch.where(keep, flat, 0)
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    if weight is None:
        return keep, safe, keep.to(wide)
    return keep, safe, torch.where(keep, weight.index_select(0, safe).to(wide), 0.0)


# --- of images ------------------------------------------------------------------------------------------------------


def _as_rows(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    if x.dim() != 4 or target.dim() != 3 or x.numel() == 0 or target.shape != (x.shape[0], *x.shape[2:]):
        return None
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]), target.reshape(-1)


def nll_loss2d_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    """aten::nll_loss2d_forward: :func:`nll_loss_forward` of ``(N, C, H, W)`` with classes ``(N, H, W)``."""
    rows = _as_rows(x, target)
    made = NotImplemented if rows is None else nll_loss_forward(*rows, weight, reduction, ignore_index)
    return made if made is NotImplemented or made[0].dim() == 0 else (made[0].view(target.shape), made[1])


def nll_loss2d_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Any:
    """aten::nll_loss2d_backward: the gradient of :func:`nll_loss2d_forward`'s ``x``."""
    rows = _as_rows(x, target)
    if rows is None:
        return NotImplemented
    made = nll_loss_backward(grad, *rows, weight, reduction, ignore_index, total)
    if made is NotImplemented:
        return made
    n, c, h, w = x.shape
    return made.view(n, h, w, c).permute(0, 3, 1, 2).contiguous()


# --- of two classes -------------------------------------------------------------------------------------------------

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LEAST = -100.0  # of a logarithm


def _of_two(x: Tensor, *others: Tensor | None) -> bool:
    if x.dtype not in _FLOATS or x.numel() == 0:
        return False
    return all(t is None or (t.dtype, t.device) == (x.dtype, x.device) for t in others)


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Any:
    """aten::binary_cross_entropy: ``-(target * log x + (1 - target) * log(1 - x))``, logarithms from -100 on.

    Args:
        x: probabilities, of any shape; target of the same.
        weight: factors that expand to it, or None.
        reduction: 0 none, 1 mean, 2 sum.
    """
    if not _of_two(x, target, weight) or x.shape != target.shape or bool(((x < 0) | (x > 1)).any()):
        return NotImplemented
    wide = x.dtype if x.dtype is torch.float64 else torch.float32
    p, t = x.to(wide), target.to(wide)
    losses = (t - 1) * torch.log1p(-p).clamp_min(_LEAST) - t * torch.log(p).clamp_min(_LEAST)
    if weight is not None:
        losses = losses * weight
    if reduction in (_MEAN, _SUM):
        losses = losses.mean() if reduction == _MEAN else losses.sum()
    return losses.to(x.dtype)


def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Any:
    """aten::binary_cross_entropy_backward: the gradient of :func:`binary_cross_entropy`'s ``x``."""
    if not _of_two(x, target, weight, grad) or x.shape != target.shape:
        return NotImplemented
    wide = x.dtype if x.dtype is torch.float64 else torch.float32
    p, t = x.to(wide), target.to(wide)
    made = grad.to(wide) * (p - t) / ((1 - p) * p).clamp_min(1e-12)
    if weight is not None:
        made = made * weight
    return (made / x.numel() if reduction == _MEAN else made).to(x.dtype)
