"""Connectionist temporal classification in Triton: one program a sequence, a lane for each state of its alignment.

States are the labels with a blank before, between and behind them (Graves, Fernández, Gomez and Schmidhuber, 2006). A
path goes on to the next state, or past a blank between two labels that differ.
"""
# mypy: disable-error-code="no-untyped-def, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _sum(a, b, c):
    """The logarithm of the sum of three exponentials."""
    most = tl.maximum(tl.maximum(a, b), c)
    base = tl.where(most == float("-inf"), 0.0, most)
    return libdevice.log(libdevice.exp(a - base) + libdevice.exp(b - base) + libdevice.exp(c - base)) + base


@triton.jit
def _labels(targets, first, states, lane, BLANK):
    """Of each state its label."""
    odd = lane % 2 == 1
    return tl.load(targets + first + lane // 2, mask=odd & (lane < states), other=BLANK)


@triton.jit
def _read(x, at, label, inside, C):
    """Logarithms of the labels' probabilities at a time; of a label that is no class, of probability 0."""
    return tl.load(x + at + label, mask=inside & (label >= 0) & (label < C), other=float("-inf"))


@triton.jit
def alphas(x, targets, firsts, times, counts, loss, out, N, C, ROW, T, BLANK, OP: tl.constexpr, L: tl.constexpr):
    """Log-probabilities of all ways to each state, ``out (N, T, ROW)``, and of the targets, negative. Grid: (N,).

    ``x (T, N, C)``; ``targets``: a sequence's begin at ``firsts (N,)`` and are ``counts (N,)``; ``times (N,)``.
    """
    n, lane = tl.program_id(0), tl.arange(0, L)
    count, length = tl.load(counts + n), tl.load(times + n)
    states = 2 * count + 1
    inside = lane < states
    label = _labels(targets, tl.load(firsts + n), states, lane, BLANK.to(tl.int64))
    past = (lane % 2 == 1) & (lane > 1) & (label != tl.gather(label, tl.maximum(lane - 2, 0), 0))
    at, row = n.to(tl.int64) * C, out + n.to(tl.int64) * T * ROW + lane
    alpha = _read(x, at, label, inside & (lane < 2) & (length > 0), C)
    tl.store(row, alpha, mask=inside & (length > 0))
    for t in range(1, length):
        one = tl.where(lane > 0, tl.gather(alpha, tl.maximum(lane - 1, 0), 0), float("-inf"))
        two = tl.where(past, tl.gather(alpha, tl.maximum(lane - 2, 0), 0), float("-inf"))
        alpha = _sum(alpha, one, two) + _read(x, at + tl.cast(t, tl.int64) * N * C, label, inside, C)
        alpha = tl.where(inside, alpha, float("-inf"))
        tl.store(row + tl.cast(t, tl.int64) * ROW, alpha, mask=inside)
    last = tl.max(tl.where(lane == states - 1, alpha, float("-inf")), 0)
    other = tl.max(tl.where(lane == states - 2, alpha, float("-inf")), 0)
    nothing = tl.where(count == 0, 0.0, float("inf")).to(OP)
    whole = -_sum(last, other, tl.full((), float("-inf"), OP))
    tl.store(loss + n, tl.where(length > 0, whole, nothing))


@triton.jit
def posteriors(
    x, targets, firsts, times, counts, loss, alpha, labels, out, N, C, ROW, T, BLANK, OP: tl.constexpr, L: tl.constexpr
):
    """How probable each state is at each time, given the targets, ``out (N, T, ROW)``; ``labels (N, ROW)`` of states.

    Grid: (N,). The rest as :func:`alphas` has it; ``alpha`` and ``loss`` are what that made.
    """
    n, lane = tl.program_id(0), tl.arange(0, L)
    count, length, total = tl.load(counts + n), tl.load(times + n), tl.load(loss + n)
    states = 2 * count + 1
    inside = lane < states
    label = _labels(targets, tl.load(firsts + n), states, lane, BLANK.to(tl.int64))
    later = tl.gather(label, tl.minimum(lane + 2, L - 1), 0)
    past = (lane % 2 == 1) & (lane + 2 < states) & (label != later)
    tl.store(labels + n.to(tl.int64) * ROW + lane, label, mask=inside)
    at, row = n.to(tl.int64) * C, n.to(tl.int64) * T * ROW + lane
    beta = tl.full((L,), float("-inf"), OP)
    for back in range(0, length):  # noqa: PIE808
        t = tl.cast(length - 1 - back, tl.int64)
        value = _read(x, at + t * N * C, label, inside, C)
        one = tl.where(lane + 1 < states, tl.gather(beta, tl.minimum(lane + 1, L - 1), 0), float("-inf"))
        two = tl.where(past, tl.gather(beta, tl.minimum(lane + 2, L - 1), 0), float("-inf"))
        reached = tl.where(back == 0, tl.where(lane + 2 >= states, 0.0, float("-inf")), _sum(beta, one, two))
        beta = tl.where(inside, reached + value, float("-inf"))
        # A label of probability 0 has no part in any way.
        found = tl.load(alpha + row + t * ROW, mask=inside, other=float("-inf")) + reached + total
        share = tl.where(value == float("-inf"), 0.0, libdevice.exp(found))
        tl.store(out + row + t * ROW, share, mask=inside)
