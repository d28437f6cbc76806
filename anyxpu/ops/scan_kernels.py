"""Running sums, products, extremes and logarithms of sums, in Triton.

Memory is ``(A, N, B)``, B fastest; N is gone through.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.reduction_kernels import rows_inside


@triton.jit
def _multiplied(x, y):
    return x * y


@triton.jit
def _joined(before, block, PRODUCT: tl.constexpr):
    return before * block if PRODUCT else before + block


@triton.jit
def _finite(lost):
    return tl.where(tl.abs(lost) < float("inf"), lost, 0)  # of infinities nothing is lost


@triton.jit
def _added(a, b):
    """The sum of floats, and what its rounding lost (Knuth, "The Art of Computer Programming", 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, _finite((a - (total - of_b)) + (b - of_b))


@triton.jit
def rows(
    x, out, A, N, B,
    PRODUCT: tl.constexpr, OP: tl.constexpr, DOUBLE: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of R rows a program, L numbers at a time; B is 1. Sums of floats do not drift: what rounding loses from one L to
    the next is kept; with ``DOUBLE`` the sums of each L and of all before are of float64.
    """
    COMPENSATED: tl.constexpr = OP.is_floating() and not PRODUCT
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    at = row.to(tl.int64) * N
    before = tl.full((R, 1), 1 if PRODUCT else 0, OP)
    lost = tl.zeros((R, 1), OP)  # by rounding what comes before
    if DOUBLE:
        exact = tl.zeros((R, 1), tl.float64)
    for start in range(0, N, L):
        lane = start + tl.arange(0, L)[None, :]
        inside = rows_inside(lane < N, row, A, R)
        value = tl.load(x + at + lane, mask=inside, other=1 if PRODUCT else 0).to(OP)
        scanned = tl.associative_scan(value, 1, _multiplied) if PRODUCT else tl.cumsum(value, 1)
        made = _joined(before, scanned + lost if COMPENSATED else scanned, PRODUCT)
        tl.store(out + at + lane, made.to(out.dtype.element_ty), mask=inside)
        last = tl.arange(0, L)[None, :] == L - 1
        if PRODUCT:
            before = tl.sum(tl.where(last, made, tl.zeros((R, L), OP)), 1, keep_dims=True)
        elif DOUBLE:
            exact += tl.sum(value.to(tl.float64), 1, keep_dims=True)
            before = exact.to(OP)
            lost = _finite((exact - before.to(tl.float64)).to(OP))
        elif COMPENSATED:
            before, lost = _added(before, tl.sum(value, 1, keep_dims=True) + lost)
        else:
            before = before + tl.sum(value, 1, keep_dims=True)


@triton.jit
def columns(
    x, out, A, N, B,
    PRODUCT: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of L columns a program, one number of each at a time; R is 1."""
    strips = tl.cdiv(B, L)
    a = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    before = tl.full((L,), 1 if PRODUCT else 0, OP)
    at = a.to(tl.int64) * N * B + lane
    for n in range(0, N):  # noqa: PIE808
        value = tl.load(x + at + n * B, mask=lane < B, other=1 if PRODUCT else 0).to(OP)
        before = _joined(before, value, PRODUCT)
        tl.store(out + at + n * B, before.to(out.dtype.element_ty), mask=lane < B)


@triton.jit
def extremes(x, out, places, A, N, B, LARGEST: tl.constexpr, FLOATS: tl.constexpr, L: tl.constexpr):
    """The largest or smallest number up to each one of L columns, and the last place that it has; a NaN stays."""
    strips = tl.cdiv(B, L)
    a = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    at = a.to(tl.int64) * N * B + lane
    best = tl.load(x + at, mask=lane < B, other=0)
    place = tl.zeros((L,), tl.int32)
    tl.store(out + at, best, mask=lane < B)
    tl.store(places + at, place.to(tl.int64), mask=lane < B)
    for n in range(1, N):
        value = tl.load(x + at + n * B, mask=lane < B, other=0)
        beyond = value >= best if LARGEST else value <= best
        if FLOATS:
            beyond = (beyond & (best == best)) | (value != value)
        best = tl.where(beyond, value, best)
        place = tl.where(beyond, n, place)
        tl.store(out + at + n * B, best, mask=lane < B)
        tl.store(places + at + n * B, place.to(tl.int64), mask=lane < B)


@triton.jit
def _larger(x, i, y, j):
    beyond = ((y >= x) & (x == x)) | (y != y)
    return tl.where(beyond, y, x), tl.where(beyond, j, i)


@triton.jit
def _smaller(x, i, y, j):
    beyond = ((y <= x) & (x == x)) | (y != y)
    return tl.where(beyond, y, x), tl.where(beyond, j, i)


@triton.jit
def extremes_of_rows(x, out, places, A, N, B, LARGEST: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """:func:`extremes` of R rows a program, L numbers at a time; B is 1."""
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    at = row.to(tl.int64) * N
    best = tl.load(x + at, mask=row < A, other=0)
    place = tl.zeros((R, 1), tl.int32)
    for start in range(0, N, L):
        lane = start + tl.arange(0, L)[None, :]
        inside = rows_inside(lane < N, row, A, R)
        value = tl.load(x + at + lane, mask=inside, other=0)
        given = (value, lane + tl.zeros((R, L), tl.int32))
        if LARGEST:
            made, where = tl.associative_scan(given, 1, _larger)
            made, where = _larger(best, place, made, where)
        else:
            made, where = tl.associative_scan(given, 1, _smaller)
            made, where = _smaller(best, place, made, where)
        tl.store(out + at + lane, made, mask=inside)
        tl.store(places + at + lane, where.to(tl.int64), mask=inside)
        last = tl.arange(0, L)[None, :] == L - 1
        best = tl.sum(tl.where(last, made, tl.zeros((R, L), made.dtype)), 1, keep_dims=True).to(value.dtype)
        place = tl.sum(tl.where(last, where, 0), 1, keep_dims=True)


@triton.jit
def log_sums(x, out, A, N, B, OP: tl.constexpr, L: tl.constexpr):
    """The logarithm of the sum of the exponentials of the numbers up to each one of L columns."""
    strips = tl.cdiv(B, L)
    a = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    at = a.to(tl.int64) * N * B + lane
    total = tl.full((L,), float("-inf"), OP)
    for n in range(0, N):  # noqa: PIE808
        value = tl.load(x + at + n * B, mask=lane < B, other=0).to(OP)
        larger = tl.maximum(total, value, propagate_nan=tl.PropagateNan.ALL)
        smaller = tl.minimum(total, value, propagate_nan=tl.PropagateNan.ALL)
        # Of two equal infinities the difference is no number.
        more = tl.where(smaller == larger, 0.0, smaller - larger)
        both = libdevice.log1p(libdevice.exp(more)) + larger
        total = tl.where((larger == float("-inf")) | (larger == float("inf")), larger, both)
        tl.store(out + at + n * B, total.to(out.dtype.element_ty), mask=lane < B)
