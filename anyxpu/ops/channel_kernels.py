"""Normalization over all but the channels, and over groups of channels, in Triton.

Memory is ``(N, C, S)``, S fastest; LAST: ``(N, C)``, C fastest, S being 1. A tile is R x L: of N and S, of rows and S,
or of N and C. Statistics are of a channel, or of D channels beside each other of one of N (GROUPED).
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _part(N, S, PS, CN, CS, q):
    """Where part q begins and ends along N and along S."""
    n, s = (q // PS) * CN, (q % PS) * CS
    return n, tl.minimum(n + CN, N), s, tl.minimum(s + CS, S)


@triton.jit
def _tile(pointer, C, S, c, n, n_end, s, s_end, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """Elements of channel c (LAST: of the channels c) from (n, s) on, and which of them there are."""
    rows = n + tl.arange(0, R)[:, None]
    if LAST:
        inside = (rows < n_end) & (c < C)
        at = rows.to(tl.int64) * C + c
    else:
        lanes = s + tl.arange(0, L)[None, :]
        inside = (rows < n_end) & (lanes < s_end)
        at = (rows.to(tl.int64) * C + c) * S + lanes
    return tl.load(pointer + at, mask=inside, other=0.0).to(OP), inside


@triton.jit
def _summed(tile, LAST: tl.constexpr):
    return tl.sum(tile, 0) if LAST else tl.sum(tl.sum(tile, 1), 0)


@triton.jit
def moments(
    x, means, squares, N, C, S, PS, CN, CS,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of each part of a channel its mean, and the sum of the squares of what differs from that, to ``[part, c]``."""
    across = tl.cdiv(C, L) if LAST else C
    q = tl.program_id(0) // across
    c = (tl.program_id(0) % across) * L + tl.arange(0, L)[None, :] if LAST else tl.program_id(0) % across
    n_begin, n_end, s_begin, s_end = _part(N, S, PS, CN, CS, q)
    sums = tl.zeros([R, L], OP)
    for n in range(n_begin, n_end, R):
        for s in range(s_begin, s_end, L):
            value, _ = _tile(x, C, S, c, n, n_end, s, s_end, OP, LAST, R, L)
            sums += value
    middle = _summed(sums, LAST) / ((n_end - n_begin) * (s_end - s_begin)).to(OP)
    spread = tl.zeros([R, L], OP)
    for n in range(n_begin, n_end, R):
        for s in range(s_begin, s_end, L):
            value, inside = _tile(x, C, S, c, n, n_end, s, s_end, OP, LAST, R, L)
            left = tl.where(inside, value - (middle[None, :] if LAST else middle), 0.0)
            spread += left * left
    if LAST:
        lane = (tl.program_id(0) % across) * L + tl.arange(0, L)
        tl.store(means + q * C + lane, middle, mask=lane < C)
        tl.store(squares + q * C + lane, tl.sum(spread, 0), mask=lane < C)
    else:
        tl.store(means + q * C + c, middle)
        tl.store(squares + q * C + c, _summed(spread, False))


@triton.jit
def statistics(
    means, squares, mean, rstd, running_mean, running_var, N, C, S, PS, CN, CS, parts, eps, momentum,
    OP: tl.constexpr, RUNNING: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps) of what :func:`moments` found of the parts (Chan, Golub and LeVeque, "Updating
    formulae and a pairwise algorithm for computing sample variances", 1979), and the running ones moved towards them.
    """
    c = tl.program_id(0) * L + tl.arange(0, L)
    inside = c < C
    count = tl.zeros([L], OP)
    middle, spread = tl.zeros([L], OP), tl.zeros([L], OP)
    # Means are reckoned from the first part's: far from 0 they would lose digits on the way.
    first = tl.load(means + c, mask=inside, other=0.0)
    for q in range(parts):
        n_begin, n_end, s_begin, s_end = _part(N, S, PS, CN, CS, q)
        more = ((n_end - n_begin) * (s_end - s_begin)).to(OP)
        away = tl.load(means + q * C + c, mask=inside, other=0.0) - first - middle
        total = count + more
        middle += away * (more / total)
        spread += tl.load(squares + q * C + c, mask=inside, other=0.0) + away * away * (count * (more / total))
        count = total
    middle = tl.where(tl.abs(first) < float("inf"), first + middle, first)
    variance = spread / count
    tl.store(mean + c, middle, mask=inside)
    tl.store(rstd + c, 1 / tl.sqrt(variance + eps.to(OP)), mask=inside)
    if RUNNING:
        step = momentum.to(OP)
        old = tl.load(running_mean + c, mask=inside, other=0.0).to(OP)
        made = old * (1 - step) + middle * step
        tl.store(running_mean + c, made.to(running_mean.dtype.element_ty), mask=inside)
        old = tl.load(running_var + c, mask=inside, other=0.0).to(OP)
        made = old * (1 - step) + spread / (count - 1) * step
        tl.store(running_var + c, made.to(running_var.dtype.element_ty), mask=inside)


@triton.jit
def _scale(rstd, at, inside, eps, OP: tl.constexpr, VARIANCE: tl.constexpr):
    """1 / sqrt(variance + eps), of which ``rstd`` is the variance where VARIANCE is."""
    value = tl.load(rstd + at, mask=inside, other=0.0).to(OP)
    return 1 / tl.sqrt(value + eps.to(OP)) if VARIANCE else value


@triton.jit
def _place(row, lane, rows, width):
    """The address of elements (row, lane), and which of them there are."""
    return row.to(tl.int64) * width + lane, (row < rows) & (lane < width)


@triton.jit
def _owners(row, lane, rows, width, C, D, LAST: tl.constexpr, GROUPED: tl.constexpr):
    """Of a row (LAST: of lanes) the channel, its statistics, and whether there is such a one."""
    if LAST:
        return lane, lane, lane < width
    else:
        return row % C, (row // D if GROUPED else row % C), row < rows


@triton.jit
def _affine(
    mean, rstd, weight, bias, c, stat, known, eps,
    OP: tl.constexpr, VARIANCE: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    middle = tl.load(mean + stat, mask=known, other=0.0).to(OP)
    factor = _scale(rstd, stat, known, eps, OP, VARIANCE)
    if WEIGHT:
        factor *= tl.load(weight + c, mask=known, other=0.0).to(OP)
    shift = tl.load(bias + c, mask=known, other=0.0).to(OP) if BIAS else tl.zeros(factor.shape, OP)
    return middle, factor, shift


@triton.jit
def _normalize(x, out, at, inside, middle, factor, shift, OP: tl.constexpr):
    value = (tl.load(x + at, mask=inside, other=0.0).to(OP) - middle) * factor + shift
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def normalized(
    x, out, mean, rstd, weight, bias, rows, C, S, D, down, across, eps,
    OP: tl.constexpr, LAST: tl.constexpr, GROUPED: tl.constexpr, VARIANCE: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``(x - mean) * rstd * weight + bias``; ``down`` rows of ``across`` elements a program.

    What a channel's elements share is read once: rows within lanes where channels are lanes, else lanes within rows.
    """
    width = C if LAST else S
    strips = tl.cdiv(width, across)
    first, begin = (tl.program_id(0) // strips) * down, (tl.program_id(0) % strips) * across
    end = tl.minimum(begin + across, width)
    if LAST:
        for start in range(begin, end, L):
            lane = start + tl.arange(0, L)[None, :]
            c, stat, known = _owners(lane, lane, rows, width, C, D, LAST, GROUPED)
            middle, factor, shift = _affine(
                mean, rstd, weight, bias, c, stat, known, eps, OP, VARIANCE, WEIGHT, BIAS
            )  # fmt: skip
            for r in range(first, tl.minimum(first + down, rows), R):
                at, inside = _place(r + tl.arange(0, R)[:, None], lane, rows, width)
                _normalize(x, out, at, inside, middle, factor, shift, OP)
    else:
        for r in range(first, tl.minimum(first + down, rows), R):
            row = r + tl.arange(0, R)[:, None]
            c, stat, known = _owners(row, row, rows, width, C, D, LAST, GROUPED)
            middle, factor, shift = _affine(
                mean, rstd, weight, bias, c, stat, known, eps, OP, VARIANCE, WEIGHT, BIAS
            )  # fmt: skip
            for start in range(begin, end, L):
                at, inside = _place(row, start + tl.arange(0, L)[None, :], rows, width)
                _normalize(x, out, at, inside, middle, factor, shift, OP)


@triton.jit
def products(
    grad, x, mean, sums, dots, N, C, S, D, PS, CN, CS,
    OP: tl.constexpr, LAST: tl.constexpr, GROUPED: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of each part of a channel the sums of ``grad`` and of ``grad * (x - mean)``, to ``[part, c]``."""
    across = tl.cdiv(C, L) if LAST else C
    q = tl.program_id(0) // across
    c = (tl.program_id(0) % across) * L + tl.arange(0, L)[None, :] if LAST else tl.program_id(0) % across
    n_begin, n_end, s_begin, s_end = _part(N, S, PS, CN, CS, q)
    if LAST:
        middle = tl.load(mean + c, mask=c < C, other=0.0).to(OP)
    else:
        middle = tl.load(mean + (c // D if GROUPED else c)).to(OP)
    total, dot = tl.zeros([R, L], OP), tl.zeros([R, L], OP)
    for n in range(n_begin, n_end, R):
        for s in range(s_begin, s_end, L):
            g, _ = _tile(grad, C, S, c, n, n_end, s, s_end, OP, LAST, R, L)
            value, _ = _tile(x, C, S, c, n, n_end, s, s_end, OP, LAST, R, L)
            total += g
            dot += g * (value - middle)
    if LAST:
        lane = (tl.program_id(0) % across) * L + tl.arange(0, L)
        tl.store(sums + q * C + lane, tl.sum(total, 0), mask=lane < C)
        tl.store(dots + q * C + lane, tl.sum(dot, 0), mask=lane < C)
    else:
        tl.store(sums + q * C + c, _summed(total, False))
        tl.store(dots + q * C + c, _summed(dot, False))


@triton.jit
def factors(
    sums, dots, rstd, weight, of_weight, of_bias, first, second, C, parts, count, eps,
    OP: tl.constexpr, VARIANCE: tl.constexpr, WEIGHT: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias, and the means over a channel of ``grad * weight`` and of that times x
    normalized, from what :func:`products` found of the parts.
    """
    c = tl.program_id(0) * L + tl.arange(0, L)
    inside = c < C
    total, dot = tl.zeros([L], OP), tl.zeros([L], OP)
    for q in range(parts):
        total += tl.load(sums + q * C + c, mask=inside, other=0.0)
        dot += tl.load(dots + q * C + c, mask=inside, other=0.0)
    dot *= _scale(rstd, c, inside, eps, OP, VARIANCE)
    if OF_WEIGHT:
        tl.store(of_weight + c, dot.to(of_weight.dtype.element_ty), mask=inside)
    if OF_BIAS:
        tl.store(of_bias + c, total.to(of_bias.dtype.element_ty), mask=inside)
    by = 1 / count.to(OP)
    if WEIGHT:
        by *= tl.load(weight + c, mask=inside, other=0.0).to(OP)
    tl.store(first + c, total * by, mask=inside)
    tl.store(second + c, dot * by, mask=inside)


@triton.jit
def _shares(
    mean, rstd, weight, first, second, c, stat, known, eps,
    OP: tl.constexpr, VARIANCE: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """``(by, middle, slope, level)`` of which the gradient is ``grad * by - (x - middle) * slope - level``."""
    scale = _scale(rstd, stat, known, eps, OP, VARIANCE)
    by = scale
    if WEIGHT:
        by *= tl.load(weight + c, mask=known, other=0.0).to(OP)
    middle = tl.zeros(scale.shape, OP)
    slope, level = middle, middle
    if not VARIANCE:
        middle = tl.load(mean + stat, mask=known, other=0.0).to(OP)
        slope = tl.load(second + stat, mask=known, other=0.0) * scale * scale
        level = tl.load(first + stat, mask=known, other=0.0) * scale
    return by, middle, slope, level


@triton.jit
def _differentiate(
    grad, x, out, at, inside, by, middle, slope, level, OP: tl.constexpr, VARIANCE: tl.constexpr
):  # fmt: skip
    value = tl.load(grad + at, mask=inside, other=0.0).to(OP) * by
    if not VARIANCE:
        value -= (tl.load(x + at, mask=inside, other=0.0).to(OP) - middle) * slope + level
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gradient(
    grad, x, out, mean, rstd, weight, first, second, rows, C, S, D, down, across, eps,
    OP: tl.constexpr, LAST: tl.constexpr, GROUPED: tl.constexpr, VARIANCE: tl.constexpr, WEIGHT: tl.constexpr,
    R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x: ``rstd * (grad * weight - first - normalized * second)`` (Ioffe and Szegedy, 2015).

    VARIANCE: of statistics that do not depend on x, ``rstd * grad * weight``.
    """
    width = C if LAST else S
    strips = tl.cdiv(width, across)
    top, begin = (tl.program_id(0) // strips) * down, (tl.program_id(0) % strips) * across
    end = tl.minimum(begin + across, width)
    if LAST:
        for start in range(begin, end, L):
            lane = start + tl.arange(0, L)[None, :]
            c, stat, known = _owners(lane, lane, rows, width, C, D, LAST, GROUPED)
            by, middle, slope, level = _shares(
                mean, rstd, weight, first, second, c, stat, known, eps, OP, VARIANCE, WEIGHT
            )  # fmt: skip
            for r in range(top, tl.minimum(top + down, rows), R):
                at, inside = _place(r + tl.arange(0, R)[:, None], lane, rows, width)
                _differentiate(grad, x, out, at, inside, by, middle, slope, level, OP, VARIANCE)
    else:
        for r in range(top, tl.minimum(top + down, rows), R):
            row = r + tl.arange(0, R)[:, None]
            c, stat, known = _owners(row, row, rows, width, C, D, LAST, GROUPED)
            by, middle, slope, level = _shares(
                mean, rstd, weight, first, second, c, stat, known, eps, OP, VARIANCE, WEIGHT
            )  # fmt: skip
            for start in range(begin, end, L):
                at, inside = _place(row, start + tl.arange(0, L)[None, :], rows, width)
                _differentiate(grad, x, out, at, inside, by, middle, slope, level, OP, VARIANCE)
