"""``nll_loss``, which cross entropy ends in, by the kernels of ``loss_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. A class out of range is found by the kernel that takes it, as with CUDA, and raised at the next wait.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.ops import launching, whole
from anyxpu.ops.current_device import current

_MEAN, _SUM = 1, 2  # at::Reduction
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_CHUNK = 1 << 12  # rows of a sum, where that keeps the device busy


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
    if x.dim() > 2 or target.shape != x.shape[:-1] or not _served(x, target, weight):
        return NotImplemented
    return _forward(_Rows(x.contiguous(), target, weight, 1, ignore_index), reduction)


def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Any:
    """aten::nll_loss_backward: the gradient of :func:`nll_loss_forward`'s ``x``; ``total`` is the sum of weights.

    A row that does not count has a gradient of 0 whatever it is divided by, as on the CPU and CUDA.
    """
    if x.dim() > 2 or target.shape != x.shape[:-1] or not _served(x, target, weight):
        return NotImplemented
    if grad.dtype != x.dtype or total.device != x.device:
        return NotImplemented
    return _backward(grad, _Rows(x, target, weight, 1, ignore_index), reduction, total)


def _served(x: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    if x.dtype not in _FLOATS or x.dim() == 0 or x.numel() == 0 or not whole.served(x):
        return False
    if (target.dtype, target.device) != (torch.int64, x.device):
        return False
    classes = x.shape[min(x.dim() - 1, 1)]
    return weight is None or (weight.shape, weight.dtype, weight.device) == ((classes,), x.dtype, x.device)


class _Rows(NamedTuple):
    """``x (rows / inner, classes, inner)``, dense, and a class for each row.

    Attributes:
        inner: pixels of an image, or 1.
    """

    x: Tensor
    target: Tensor
    weight: Tensor | None
    inner: int
    ignored: int

    @property
    def rows(self) -> int:
        return self.target.numel()

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.rows, self.x.shape[min(self.x.dim() - 1, 1)], self.inner

    @property
    def pointers(self) -> tuple[Tensor, Tensor]:
        """Of classes and of their weights, which nobody reads where there are none."""
        return self.target.contiguous(), self.x if self.weight is None else self.weight.contiguous()

    @property
    def words(self) -> dict[str, Any]:
        return {"OP": "fp64" if self.x.dtype is torch.float64 else "fp32", "WEIGHTED": self.weight is not None}


def _forward(given: _Rows, reduction: int) -> Any:
    with current(given.x.device):
        return _summed(given, reduction == _MEAN) if reduction in (_MEAN, _SUM) else _of_each(given)


def _of_each(given: _Rows) -> Any:
    x, rows = given.x, given.rows
    out = torch.empty(given.target.shape, dtype=x.dtype, device=x.device)
    pointers, line = (x, *given.pointers, out), whole.line(x.get_device())
    numbers = (*given.sizes, given.ignored)
    if not whole.launch("loss.picked", pointers, -(-rows // line), rows, *numbers, **given.words, L=line):
        return NotImplemented
    return out, x.new_zeros(())


def _summed(given: _Rows, mean: bool) -> Any:
    x, rows = given.x, given.rows
    parts, chunk, lanes = _parts(x.get_device(), rows)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    made = [torch.empty(parts, dtype=x.dtype if parts == 1 else wide, device=x.device) for _ in range(2)]
    words = given.words | {"MEAN": mean and parts == 1}
    pointers, numbers = (x, *given.pointers, *made), (*given.sizes, chunk, given.ignored)
    if not whole.launch("loss.picked_sums", pointers, parts, rows, *numbers, **words, L=lanes):
        return NotImplemented
    if parts == 1:
        return made[0].view(()), made[1].view(())
    total, factors = made[0].sum(), made[1].sum()
    return (total / factors if mean else total).to(x.dtype), factors.to(x.dtype)


def _parts(device: int, rows: int) -> tuple[int, int, int]:
    """Programs of a sum over rows, the rows of each, and how many it takes at once."""
    lanes = 32 if launching.on_cpu(device) else 256
    parts = max(1, min(rows // _CHUNK, launching.programs(device)))
    chunk = -(-rows // (parts * lanes)) * lanes
    return -(-rows // chunk), chunk, lanes


def _backward(grad: Tensor, given: _Rows, reduction: int, total: Tensor) -> Any:
    """The gradient of ``given.x``, contiguous."""
    x, rows = given.x, given.rows
    with current(x.device):
        if reduction == _MEAN and x.dtype in (torch.float16, torch.bfloat16):
            # In 16 bits a sum has few digits: where it is the one that was given, the weights' own is taken. Another
            # one, of more rows than these, is the caller's to give.
            made = _forward(given._replace(x=x.contiguous().float(), weight=_float(given.weight)), _SUM)
            if made is NotImplemented:
                return made
            total = torch.where(made[1].to(total.dtype) == total, made[1], total.float())
        out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        one = grad.numel() == 1
        pointers = (grad if one else grad.contiguous(), out, *given.pointers, total)
        words = given.words | {"MEAN": reduction == _MEAN, "ONE": one}
        line = whole.line(x.get_device())
        numbers = (*given.sizes, given.ignored)
        done = whole.launch("loss.spread", pointers, -(-rows // line), rows, *numbers, **words, L=line)
        return out if done else NotImplemented


def _float(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.float()


# --- of images ------------------------------------------------------------------------------------------------------


def nll_loss2d_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    """aten::nll_loss2d_forward: :func:`nll_loss_forward` of ``(N, C, H, W)`` with classes ``(N, H, W)``."""
    if not _images(x, target, weight):
        return NotImplemented
    return _forward(_Rows(x.contiguous(), target, weight, x.shape[2] * x.shape[3], ignore_index), reduction)


def nll_loss2d_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Any:
    """aten::nll_loss2d_backward: the gradient of :func:`nll_loss2d_forward`'s ``x``."""
    if not _images(x, target, weight) or grad.dtype != x.dtype or total.device != x.device:
        return NotImplemented
    return _backward(grad, _Rows(x, target, weight, x.shape[2] * x.shape[3], ignore_index), reduction, total)


def _images(x: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    return x.dim() == 4 and target.shape == (x.shape[0], *x.shape[2:]) and _served(x, target, weight)
