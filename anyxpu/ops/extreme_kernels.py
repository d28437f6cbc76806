"""The largest or smallest element and where it is, in Triton. Memory is ``(A, N, B)``, B fastest; N is gone through.

Of equal elements the first counts; a NaN is larger and smaller than all others. N is gone through in parts; ``places``
has the indices of elements that are results of parts themselves (GIVEN), else their positions are their indices.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _beats(x, i, y, j, SMALLEST: tl.constexpr, OP: tl.constexpr):
    """Whether element x at i comes before y at j."""
    better = x < y if SMALLEST else x > y
    same = x == y
    if OP.is_floating():
        better = better | ((x != x) & (y == y))
        same = same | ((x != x) & (y != y))
    return better | (same & (i < j))


@triton.jit
def _chosen(x, i, y, j, SMALLEST: tl.constexpr, OP: tl.constexpr):
    first = _beats(x, i, y, j, SMALLEST, OP)
    return tl.where(first, x, y), tl.where(first, i, j)


@triton.jit
def _larger(x, i, y, j):
    return _chosen(x, i, y, j, False, x.dtype)


@triton.jit
def _smaller(x, i, y, j):
    return _chosen(x, i, y, j, True, x.dtype)


@triton.jit
def _best(value, index, axis: tl.constexpr, SMALLEST: tl.constexpr):
    if SMALLEST:
        return tl.reduce((value, index), axis, _smaller)
    else:
        return tl.reduce((value, index), axis, _larger)


@triton.jit
def rows(
    x, places, values, indices, A, N, B, parts, chunk,
    SMALLEST: tl.constexpr, GIVEN: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of parts of R rows a program, L numbers at a time; B is 1."""
    part = tl.program_id(0) % parts
    row = (tl.program_id(0) // parts) * R + tl.arange(0, R)[:, None]
    first = part * chunk
    end = tl.minimum(first + chunk, N)
    at = row.to(tl.int64) * N
    # Every lane starts with the part's first element: the same place twice is no contest.
    known = row < A
    place = tl.load(places + at + first, mask=known, other=0) if GIVEN else (row * 0 + first).to(tl.int64)
    where = place + tl.zeros((R, L), tl.int64)
    best = tl.load(x + at + first, mask=known, other=0).to(OP) + tl.zeros((R, L), OP)
    for start in range(first, end, L):
        lane = start + tl.arange(0, L)[None, :]
        inside = known & (lane < end)
        value = tl.load(x + at + lane, mask=inside, other=0).to(OP)
        mine = tl.load(places + at + lane, mask=inside, other=0) if GIVEN else (lane + row * 0).to(tl.int64)
        take = inside & _beats(value, mine, best, where, SMALLEST, OP)
        best = tl.where(take, value, best)
        where = tl.where(take, mine, where)
    value, index = _best(best, where, 1, SMALLEST)
    r = (tl.program_id(0) // parts) * R + tl.arange(0, R)
    tl.store(values + r.to(tl.int64) * parts + part, value.to(values.dtype.element_ty), mask=r < A)
    tl.store(indices + r.to(tl.int64) * parts + part, index, mask=r < A)


@triton.jit
def columns(
    x, places, values, indices, A, N, B, parts, chunk,
    SMALLEST: tl.constexpr, GIVEN: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of L columns a program, one number of each at a time; R is 1, and there is one part."""
    strips = tl.cdiv(B, L)
    a = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    inside = lane < B
    at = a.to(tl.int64) * N * B + lane
    best = tl.load(x + at, mask=inside).to(OP)
    where = tl.zeros((L,), tl.int64)
    for n in range(1, N):
        value = tl.load(x + at + n * B, mask=inside).to(OP)
        take = _beats(value, tl.zeros((L,), tl.int64) + n, best, where, SMALLEST, OP)
        best = tl.where(take, value, best)
        where = tl.where(take, n, where)
    tl.store(values + a.to(tl.int64) * B + lane, best.to(values.dtype.element_ty), mask=inside)
    tl.store(indices + a.to(tl.int64) * B + lane, where, mask=inside)
