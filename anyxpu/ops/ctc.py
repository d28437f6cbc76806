"""Connectionist temporal classification: ``_ctc_loss`` and its gradient, a program a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole

_MOST_STATES = 1 << 13
_FLOATS = (torch.float32, torch.float64)
Lengths = Sequence[int] | Tensor


def _numbers(lengths: Lengths) -> list[int]:
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def _operands(
    log_probs: Tensor, targets: Tensor, times: list[int], counts: list[int], blank: int
) -> tuple[Tensor, ...] | None:
    """Log-probabilities, targets in a row, where a sequence's begin, times, counts; None where they do not fit."""
    if log_probs.dtype not in _FLOATS or log_probs.dim() != 3 or not whole.served(log_probs) or log_probs.numel() == 0:
        return None
    length, batch, classes = log_probs.shape
    if targets.dtype not in (torch.int64, torch.int32) or targets.device != log_probs.device:
        return None
    if len(times) != batch or len(counts) != batch or not 0 <= blank < classes:
        return None
    if min(*times, *counts, 0) < 0 or max(times) > length or 2 * max(counts) + 1 > _MOST_STATES:
        return None
    if targets.dim() == 1:
        if targets.numel() != sum(counts):
            return None
        firsts = [sum(counts[:n]) for n in range(batch)]
    elif targets.dim() == 2 and targets.shape[0] == batch and targets.shape[1] >= max(counts):
        firsts = [n * targets.shape[1] for n in range(batch)]
    else:
        return None
    if batch * length * (2 * max(counts) + 1) > whole.MOST:
        return None
    starts, lengths, labels = torch.tensor([firsts, times, counts], dtype=torch.int64).to(log_probs.device).unbind()
    line = targets.reshape(-1).long() if targets.numel() else torch.zeros(1, dtype=torch.int64, device=targets.device)
    return log_probs.contiguous(), line.contiguous(), starts, lengths, labels


def _launch(kernel: str, operands: Sequence[Tensor], row: int, blank: int) -> bool:
    x = operands[0]
    length, batch, classes = x.shape
    return whole.launch(
        f"ctc.{kernel}", operands, batch, batch * length * row, batch, classes, row, length, blank,
        OP=whole.NAMES[x.dtype], L=launching.power_of_two(row, 16, _MOST_STATES),
    )  # fmt: skip


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """aten::_ctc_loss: of each sequence the negative logarithm of the probability of its targets.

    Args:
        log_probs: ``(T, N, C)``, logarithms; float32 or float64.
        targets: classes, ``(N, S)`` or all in a row; int64 or int32.
        input_lengths, target_lengths: N numbers each.
        blank: the class between labels.
        zero_infinity: of the gradient alone.

    Returns:
        The losses ``(N,)``, and the logarithms of all ways to each state ``(N, T, 2 * most labels + 1)``, -inf where a
        sequence has no such time or state.
    """
    times, counts = _numbers(input_lengths), _numbers(target_lengths)
    operands = _operands(log_probs, targets, times, counts, blank)
    if operands is None:
        return NotImplemented
    (length, batch, _), row = log_probs.shape, 2 * max(counts) + 1
    loss = log_probs.new_empty(batch)
    alpha = log_probs.new_full((batch, length, row), float("-inf"))
    return (loss, alpha) if _launch("alphas", (*operands, loss, alpha), row, blank) else NotImplemented


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """aten::_ctc_loss_backward: the gradient ``(T, N, C)`` as if ``log_probs`` came of a ``log_softmax``.

    With ``zero_infinity`` that of a sequence whose targets are impossible is 0, else NaN.
    """
    times, counts = _numbers(input_lengths), _numbers(target_lengths)
    operands = _operands(log_probs, targets, times, counts, blank)
    (length, batch, _), row = log_probs.shape, 2 * max(counts, default=0) + 1
    if operands is None or log_alpha.shape != (batch, length, row):
        return NotImplemented
    labels = torch.full((batch, row), blank, dtype=torch.int64, device=log_probs.device)
    shares = log_probs.new_zeros(batch, length, row)
    made = (*operands, neg_log_likelihood.contiguous(), log_alpha.contiguous(), labels, shares)
    if not _launch("posteriors", made, row, blank):
        return NotImplemented
    out = log_probs.exp()
    out.scatter_add_(2, labels.unsqueeze(0).expand(length, -1, -1), -shares.transpose(0, 1))
    weights = grad.view(1, batch, 1)
    if zero_infinity:
        impossible = (neg_log_likelihood == float("inf")).view(1, batch, 1)
        out, weights = torch.where(impossible, 0, out), torch.where(impossible, 0, weights)
    else:
        out = out + torch.where(torch.isinf(neg_log_likelihood), float("nan"), 0.0).to(out.dtype).view(1, batch, 1)
    there = torch.arange(length, device=out.device).view(-1, 1, 1) < operands[3].view(1, batch, 1)
    return torch.where(there, out * weights, 0).contiguous()
