"""Losses of two tensors, an element at a time, by the kernels of ``loss_kernels.py``.

A loss is one launch, or of many numbers a launch and the sum of its programs' parts; its gradient is one. Operands that
lie differently are copied first.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. What has 16 bits is computed and summed in float32, and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._prims_common
from torch import Tensor

from anyxpu.ops import whole
from anyxpu.ops.current_device import current

_NONE, _MEAN = 0, 1  # at::Reduction
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Any:
    """aten::mse_loss: squares of the differences.

    Args:
        x: floats; ``target`` of the same type, of a shape that goes with it.
        reduction: 0 none, 1 mean, 2 sum.
    """
    return _loss("mse", x, target, None, reduction, 0.0)


def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    """aten::mse_loss_backward: the gradient of :func:`mse_loss`'s ``x``."""
    return _gradient("mse", grad, x, target, None, reduction, 0.0)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    """aten::smooth_l1_loss: half a square over beta where the difference is below beta, else it less half of beta."""
    return NotImplemented if beta <= 0 else _loss("smooth_l1", x, target, None, reduction, beta)


def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Any:
    """aten::smooth_l1_loss_backward."""
    return NotImplemented if beta <= 0 else _gradient("smooth_l1", grad, x, target, None, reduction, beta)


def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    """aten::huber_loss: half a square where the difference is below delta, else delta times it less half of delta."""
    return NotImplemented if delta <= 0 else _loss("huber", x, target, None, reduction, delta)


def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Any:
    """aten::huber_loss_backward."""
    return NotImplemented if delta <= 0 else _gradient("huber", grad, x, target, None, reduction, delta)


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Any:
    """aten::binary_cross_entropy: ``-(target * log x + (1 - target) * log(1 - x))``, logarithms from -100 on.

    Args:
        x: probabilities, of any shape; target of the same. One that is none is raised at the next wait, as on CUDA.
        weight: factors that expand to it, or None.
        reduction: 0 none, 1 mean, 2 sum.
    """
    if x.shape != target.shape:
        return NotImplemented
    return _loss("binary_cross_entropy", x, target, weight, reduction, 0.0)


def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Any:
    """aten::binary_cross_entropy_backward: the gradient of :func:`binary_cross_entropy`'s ``x``."""
    if x.shape != target.shape:
        return NotImplemented
    return _gradient("binary_cross_entropy", grad, x, target, weight, reduction, 0.0)


def _served(x: Tensor, *others: Tensor | None) -> bool:
    """Floats of one type on one device, not too many."""
    if x.dtype not in _FLOATS or x.numel() == 0 or not whole.served(x):
        return False
    return all(t is None or (t.dtype, t.device) == (x.dtype, x.device) for t in others)


def _together(*tensors: Tensor | None) -> tuple[bool, list[Tensor | None]] | None:
    """The tensors in one shape and one dense order in memory, and whether they lay so; copied where they did not.

    None where their shapes do not go together.
    """
    there = [t for t in tensors if t is not None]
    first = there[0]
    if all(t.shape == first.shape and t.stride() == first.stride() for t in there) and _dense(first):
        return True, list(tensors)
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in there))
    except RuntimeError:
        return None
    return False, [None if t is None else t.expand(shape).contiguous() for t in tensors]


def _dense(t: Tensor) -> bool:
    """Does it fill its memory, in whatever order?"""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _words(kind: str, x: Tensor, weight: Tensor | None) -> dict[str, Any]:
    return {"OP": "fp64" if x.dtype is torch.float64 else "fp32", "KIND": kind, "WEIGHTED": weight is not None}


def _loss(kind: str, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, p: float) -> Any:
    if not _served(x, target, weight) or target.numel() == 0:
        return NotImplemented
    with current(x.device):
        operands = _together(x, target, weight)
        if operands is None:
            return NotImplemented
        alike, (one, other, factors) = operands
        assert one is not None and other is not None
        n, words = one.numel(), _words(kind, x, weight)
        if n > whole.MOST:
            return NotImplemented
        pointers = (one, other, one if factors is None else factors)
        if reduction != _NONE:
            return _sum(pointers, words, n, reduction, p)
        out = torch.empty_like(one)
        line = whole.line(x.get_device())
        if not whole.launch("loss.each", (*pointers, out), -(-n // line), n, n, p, **words, L=line):
            return NotImplemented
        return out if alike else _as_iterated(out, x, target)


def _as_iterated(made: Tensor, *operands: Tensor) -> Tensor:
    """``made`` as TensorIterator lays a result of such operands."""
    lie = torch._prims_common.compute_elementwise_output_strides(*(t.expand(made.shape) for t in operands))
    if tuple(lie) == made.stride():
        return made
    return torch.empty_strided(made.shape, lie, dtype=made.dtype, device=made.device).copy_(made)


def _sum(pointers: tuple[Tensor, ...], words: dict[str, Any], n: int, reduction: int, p: float) -> Any:
    x = pointers[0]
    lanes, chunk, parts = whole.shares(n, x.get_device())
    over = float(n) if reduction == _MEAN else 1.0
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    out = torch.empty(parts, dtype=x.dtype if parts == 1 else wide, device=x.device)
    if not whole.launch("loss.summed", (*pointers, out), parts, n, n, chunk, p, over, **words, L=lanes):
        return NotImplemented
    return out.view(()) if parts == 1 else out.sum().to(x.dtype)


def _gradient(
    kind: str, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, p: float
) -> Any:
    if not _served(x, target, weight, grad) or target.numel() == 0:
        return NotImplemented
    with current(x.device):
        one_for_all = grad.numel() == 1
        operands = _together(x, target, weight, None if one_for_all else grad)
        if operands is None:
            return NotImplemented
        alike, (one, other, factors, given) = operands
        assert one is not None and other is not None
        n = one.numel()
        if n > whole.MOST:
            return NotImplemented
        out = torch.empty_like(one)
        pointers = (grad if given is None else given, one, other, one if factors is None else factors, out)
        line, over = whole.line(x.get_device()), float(x.numel()) if reduction == _MEAN else 1.0
        words = _words(kind, x, weight) | {"ONE": one_for_all}
        if not whole.launch("loss.slopes", pointers, -(-n // line), n, n, p, over, **words, L=line):
            return NotImplemented
        if alike or out.shape != x.shape:
            return out
        like = torch.empty_like(x)
        return out if like.stride() == out.stride() else like.copy_(out)
