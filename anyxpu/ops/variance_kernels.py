"""Means and variances in Triton: of rows, of columns, and of parts of either.

A mean is corrected by that of what is left when it is taken away, so that of equal numbers nothing is left; squares are
of what the corrected one leaves. Parts are put together as Chan, Golub and LeVeque do ("Updating formulae and a
pairwise algorithm for computing sample variances", 1979).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.pointwise_functions import div, sqrt
from anyxpu.ops.reduction_kernels import rows_inside


@triton.jit
def _is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _finished(squares, left, ROOT: tl.constexpr):
    """The variance, or its ROOT, of sums of squares."""
    made = div(squares, left)
    return sqrt(made) if ROOT else made


@triton.jit
def _row_sums(
    x, row, M, N, begin, end, middle, SQUARED: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr
):
    """Of each row the sum of what ``middle`` leaves of columns begin to end, or of its squares."""
    sums = tl.zeros([R, L], OP)
    for at in range(begin, end, L):
        columns = at + tl.arange(0, L)[None, :]
        inside = rows_inside(columns < end, row, M, R)
        value = tl.load(x + row.to(tl.int64) * N + columns, mask=inside, other=0.0).to(OP)
        away = tl.where(inside, value - middle, 0.0)
        sums += away * away if SQUARED else away
    return tl.sum(sums, 1)[:, None]


@triton.jit
def rows(
    x, means, spreads, M, N, chunk, left,
    OP: tl.constexpr, ROOT: tl.constexpr, PARTED: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Mean and variance of R of M rows of N numbers a program, to ``(M,)``.

    PARTED: means and sums of squares of ``chunk`` of the numbers, to ``[part, row]``.
    """
    blocks = tl.cdiv(M, R)
    q = tl.program_id(0) // blocks
    row = (tl.program_id(0) % blocks) * R + tl.arange(0, R)[:, None]
    begin = q * chunk
    end = tl.minimum(begin + chunk, N)
    count = (end - begin).to(OP)
    middle = _row_sums(x, row, M, N, begin, end, tl.zeros([R, 1], OP), False, OP, R, L) / count
    more = _row_sums(x, row, M, N, begin, end, middle, False, OP, R, L) / count
    middle = tl.where(_is_finite(more), middle + more, middle)  # infinite ones leave nothing to correct by
    squares = _row_sums(x, row, M, N, begin, end, middle, True, OP, R, L)
    if not PARTED:
        squares = _finished(squares, left, ROOT)
    to = q.to(tl.int64) * M + row
    tl.store(means + to, middle.to(means.dtype.element_ty), mask=row < M)
    tl.store(spreads + to, squares.to(spreads.dtype.element_ty), mask=row < M)


@triton.jit
def _column_sums(
    x, lane, B, begin, end, middle, SQUARED: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr
):
    """Of each column the sum of what ``middle`` leaves of rows begin to end, or of its squares."""
    sums = tl.zeros([R, L], OP)
    for at in range(begin, end, R):
        row = at + tl.arange(0, R)[:, None]
        inside = rows_inside(lane < B, row, end, R)
        value = tl.load(x + row.to(tl.int64) * B + lane, mask=inside, other=0.0).to(OP)
        away = tl.where(inside, value - middle, 0.0)
        sums += away * away if SQUARED else away
    return tl.sum(sums, 0)[None, :]


@triton.jit
def columns(
    x, means, spreads, A, N, B, chunk, left,
    OP: tl.constexpr, ROOT: tl.constexpr, PARTED: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The same over N of memory ``(A, N, B)``, L of the columns of one of A a program, to ``(A, B)``.

    PARTED: means and sums of squares of ``chunk`` of the rows, to ``[part, A, B]``.
    """
    across = tl.cdiv(B, L)
    block = tl.program_id(0) % (A * across)
    q, a = tl.program_id(0) // (A * across), block // across
    lane = (block % across) * L + tl.arange(0, L)[None, :]
    x += a.to(tl.int64) * N * B
    begin = q * chunk
    end = tl.minimum(begin + chunk, N)
    count = (end - begin).to(OP)
    middle = _column_sums(x, lane, B, begin, end, tl.zeros([1, L], OP), False, OP, R, L) / count
    more = _column_sums(x, lane, B, begin, end, middle, False, OP, R, L) / count
    middle = tl.where(_is_finite(more), middle + more, middle)
    squares = _column_sums(x, lane, B, begin, end, middle, True, OP, R, L)
    if not PARTED:
        squares = _finished(squares, left, ROOT)
    to = (q.to(tl.int64) * A + a) * B + lane
    tl.store(means + to, middle.to(means.dtype.element_ty), mask=lane < B)
    tl.store(spreads + to, squares.to(spreads.dtype.element_ty), mask=lane < B)


@triton.jit
def together(
    means, squares, mean, spread, parts, alike, C, N, chunk, left, OP: tl.constexpr, ROOT: tl.constexpr, L: tl.constexpr
):
    """Mean and variance of L of C results a program, whose parts are ``[parts, alike, C]``: ``alike`` runs of N numbers
    in ``parts`` of ``chunk``, of which the last one has the rest. Means are reckoned from the first part's, so that far
    from 0 they lose no digits on the way."""
    lane = tl.program_id(0) * L + tl.arange(0, L)
    inside = lane < C
    count, plain = tl.zeros([L], OP), tl.zeros([L], OP)
    middle, sums = tl.zeros([L], OP), tl.zeros([L], OP)
    first = tl.load(means + lane, mask=inside, other=0.0)
    for q in range(parts):
        size = (tl.minimum(chunk, N - q * chunk)).to(OP)
        for n in range(alike):
            at = (tl.cast(q, tl.int64) * alike + n) * C + lane
            more = tl.load(means + at, mask=inside, other=0.0)
            away, total = more - first - middle, count + size
            middle += away * (size / total)
            sums += tl.load(squares + at, mask=inside, other=0.0) + away * away * (count * (size / total))
            plain += more  # what infinite means add up to
            count = total
    middle = tl.where(_is_finite(middle), first + middle, plain)
    tl.store(mean + lane, middle.to(mean.dtype.element_ty), mask=inside)
    tl.store(spread + lane, _finished(sums, left, ROOT).to(spread.dtype.element_ty), mask=inside)
