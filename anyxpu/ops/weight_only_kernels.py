"""Weights of 4 or 8 bits in Triton: products of few rows with them, and what they stand for.

Weights are read as words of 32 bits, in each of which 8 or 4 numbers lie, the first in the lowest bits.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _number(words, at: tl.constexpr, BITS: tl.constexpr):
    """The number at a place of each word: of 4 bits without a sign, of 8 with one."""
    if BITS == 4:
        return ((words >> (4 * at)) & 15).to(tl.float32)
    else:
        return ((words << (24 - 8 * at)) >> 24).to(tl.float32)


@triton.jit
def _chunk(
    total,
    x,
    w,
    scales,
    points,
    rows,
    start,
    N,
    WORDS,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    POINTS: tl.constexpr,
    EVEN: tl.constexpr,
    MASKED: tl.constexpr,
    FULL: tl.constexpr,
    BW: tl.constexpr,
):
    """Add the products of some words of each row to the sums of its lanes.

    What is common to all rows is read first, so that the rest is one loop over rows that nothing has to be kept for.
    """
    lanes = tl.arange(0, BW)
    words = start + lanes
    inside = (words < WORDS)[None, :]
    at = x + start + lanes[None, :]  # lanes last, here and below: what they lie side by side of is alike for all
    if MASKED:
        x0 = tl.load(at, mask=inside, other=0.0)
        x1 = tl.load(at + WORDS, mask=inside, other=0.0)
        x2 = tl.load(at + 2 * WORDS, mask=inside, other=0.0)
        x3 = tl.load(at + 3 * WORDS, mask=inside, other=0.0)
    else:
        x0 = tl.load(at)
        x1 = tl.load(at + WORDS)
        x2 = tl.load(at + 2 * WORDS)
        x3 = tl.load(at + 3 * WORDS)
    whole = (x0 + x1) + (x2 + x3)
    if BITS == 4:
        if MASKED:
            x4 = tl.load(at + 4 * WORDS, mask=inside, other=0.0)
            x5 = tl.load(at + 5 * WORDS, mask=inside, other=0.0)
            x6 = tl.load(at + 6 * WORDS, mask=inside, other=0.0)
            x7 = tl.load(at + 7 * WORDS, mask=inside, other=0.0)
        else:
            x4 = tl.load(at + 4 * WORDS)
            x5 = tl.load(at + 5 * WORDS)
            x6 = tl.load(at + 6 * WORDS)
            x7 = tl.load(at + 7 * WORDS)
        whole += (x4 + x5) + (x6 + x7)
    places = w + rows.to(tl.int64)[:, None] * WORDS + start + lanes[None, :]
    if MASKED or not FULL:  # noqa: SIM108 (Triton takes no such expression of tensors)
        read = tl.load(places, mask=(rows < N)[:, None] & inside, other=0)
    else:
        read = tl.load(places)
    sums = x0 * _number(read, 0, BITS) + x1 * _number(read, 1, BITS)
    sums += x2 * _number(read, 2, BITS)
    sums += x3 * _number(read, 3, BITS)
    if BITS == 4:
        sums += x4 * _number(read, 4, BITS)
        sums += x5 * _number(read, 5, BITS)
        sums += x6 * _number(read, 6, BITS)
        sums += x7 * _number(read, 7, BITS)
    if EVEN:  # all lanes have one scale
        group = start * (32 // BITS) // GROUP * N
        if FULL:
            scale = tl.load(scales + group + rows)[:, None].to(tl.float32)
        else:
            scale = tl.load(scales + group + rows, mask=rows < N, other=0.0)[:, None].to(tl.float32)
        if POINTS:
            if FULL:
                point = tl.load(points + group + rows)[:, None].to(tl.float32)
            else:
                point = tl.load(points + group + rows, mask=rows < N, other=0)[:, None].to(tl.float32)
            sums -= whole * point
    else:
        groups = (words * (32 // BITS) // GROUP)[None, :] * N + rows[:, None]
        known = (rows < N)[:, None] & inside
        scale = tl.load(scales + groups, mask=known, other=0.0).to(tl.float32)
        if POINTS:
            sums -= whole * tl.load(points + groups, mask=known, other=0).to(tl.float32)
    return total + sums * scale


@triton.jit
def few_rows(
    x,
    w,
    scales,
    points,
    out,
    N,
    WORDS,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    POINTS: tl.constexpr,
    EVEN: tl.constexpr,
    FULL: tl.constexpr,
    BN: tl.constexpr,
    BW: tl.constexpr,
):
    """One row of ``x`` with BN rows of ``w``. Grid: (blocks of rows of w, rows of x).

    ``x`` is f32 (rows, 32 // BITS, WORDS): what meets the first number of each word, then the second, and so on.
    ``EVEN``: BW words lie in one group. ``FULL``: BN divides N.
    """
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1).to(tl.int64)
    x += row * (32 // BITS) * WORDS
    total = tl.zeros([BN, BW], tl.float32)
    end = WORDS // BW * BW
    for start in range(0, end, BW):
        total = _chunk(total, x, w, scales, points, rows, start, N, WORDS, GROUP, BITS, POINTS, EVEN, False, FULL, BW)
    for start in range(end, WORDS, BW):
        total = _chunk(total, x, w, scales, points, rows, start, N, WORDS, GROUP, BITS, POINTS, EVEN, True, FULL, BW)
    result = tl.sum(total, 1).to(out.dtype.element_ty)
    tl.store(out + row * N + rows, result, mask=rows < N)


@triton.jit
def dequantize(
    w, scales, points, out, N, WORDS, GROUP: tl.constexpr, BITS: tl.constexpr, POINTS: tl.constexpr, BW: tl.constexpr
):
    """What the numbers of one row stand for, rounded once. Grid: (blocks of BW words, N)."""
    row, words = tl.program_id(1), tl.program_id(0) * BW + tl.arange(0, BW)
    inside = words < WORDS
    read = tl.load(w + row.to(tl.int64) * WORDS + words, mask=inside, other=0)
    each: tl.constexpr = 32 // BITS
    groups = words * each // GROUP * N + row
    scale = tl.load(scales + groups, mask=inside, other=0.0).to(tl.float32)
    place = out + (row.to(tl.int64) * WORDS + words) * each
    for at in tl.static_range(each):
        value = _number(read, at, BITS)
        if POINTS:
            value -= tl.load(points + groups, mask=inside, other=0).to(tl.float32)
        tl.store(place + at, (value * scale).to(out.dtype.element_ty), mask=inside)
