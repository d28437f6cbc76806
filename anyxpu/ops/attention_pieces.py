"""Rows of heads in one or two pieces, for the kernels of attention, in Triton.

Tiles are powers of 2, heads often are not: of 80 elements 128 would be multiplied. A tuple of two tiles, of 64 and of
16 columns, wastes none. With one tile in a tuple the functions are what they would be of the tile itself.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(base, rows, inside, columns, SIZE: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """Some columns of rows that lie at ``base + rows``; 0 outside of the matrix."""
    places = base + rows + columns[None, :]
    if MASKED or columns.shape[0] != SIZE:
        read = tl.load(places, mask=inside[:, None] & (columns < SIZE)[None, :], other=0.0)
    else:
        read = tl.load(places)
    return read.to(tl.float32) if WIDE else read


@triton.jit
def _tiles(
    base,
    rows,
    inside,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):
    if REST:
        return (
            _tile(base, rows, inside, tl.arange(0, FIRST), FIRST, MASKED, WIDE),
            _tile(base + FIRST, rows, inside, tl.arange(0, REST), SIZE - FIRST, MASKED, WIDE),
        )
    else:
        return (_tile(base, rows, inside, tl.arange(0, FIRST), SIZE, MASKED, WIDE),)


@triton.jit
def read(
    base,
    at,
    stride,
    count,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Some rows of a matrix as a tuple: their first FIRST columns and, unless that is 0, the next REST; 0 outside."""
    return _tiles(base, at.to(tl.int64)[:, None] * stride, at < count, SIZE, FIRST, REST, MASKED, WIDE)


@triton.jit
def read_pages(
    base,
    at,
    stride,
    count,
    pages,
    page_stride,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    PAGE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """As :func:`read`, of a matrix that lies in pages of PAGE rows, listed by ``pages``."""
    page = tl.load(pages + at // PAGE, mask=at < count, other=0).to(tl.int64)
    rows = (page * page_stride + (at % PAGE).to(tl.int64) * stride)[:, None]
    return _tiles(base, rows, at < count, SIZE, FIRST, REST, True, WIDE)


@triton.jit
def turned(pieces):
    """The pieces transposed."""
    return (tl.trans(pieces[0]), tl.trans(pieces[1])) if len(pieces) == 2 else (tl.trans(pieces[0]),)


@triton.jit
def nothing(ROWS: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr):
    """Sums of nothing yet, as :func:`read` would return them."""
    if REST:
        return (tl.zeros([ROWS, FIRST], tl.float32), tl.zeros([ROWS, REST], tl.float32))
    else:
        return (tl.zeros([ROWS, FIRST], tl.float32),)


@triton.jit
def scaled(pieces, factor):
    """The pieces times a factor."""
    return (pieces[0] * factor, pieces[1] * factor) if len(pieces) == 2 else (pieces[0] * factor,)


@triton.jit
def product(left, right):
    """``left · right``, the pieces being columns of the one and rows of the other."""
    sums = tl.dot(left[0], right[0], input_precision="ieee")
    if len(left) == 2:
        sums = tl.dot(left[1], right[1], sums, input_precision="ieee")
    return sums


@triton.jit
def add_product(left, right, sums):
    """``sums + left · right``, the pieces being columns of the sums and of the right."""
    first = tl.dot(left.to(right[0].dtype), right[0], sums[0], input_precision="ieee")
    if len(right) == 2:
        return (first, tl.dot(left.to(right[0].dtype), right[1], sums[1], input_precision="ieee"))
    else:
        return (first,)


@triton.jit
def add_weighted(weights, values, sums):
    """As :func:`add_product`, of a left of one row, written out."""
    first = sums[0] + tl.sum(weights[:, :, None] * values[0][None, :, :].to(tl.float32), 1)
    if len(values) == 2:
        return (first, sums[1] + tl.sum(weights[:, :, None] * values[1][None, :, :].to(tl.float32), 1))
    else:
        return (first,)


@triton.jit
def row_sums(left, right):
    """Each row's sum of ``left * right``, in f32."""
    sums = tl.sum(left[0].to(tl.float32) * right[0].to(tl.float32), 1)
    if len(left) == 2:
        sums += tl.sum(left[1].to(tl.float32) * right[1].to(tl.float32), 1)
    return sums


@triton.jit
def added(left, right):
    """``left + right``, piece by piece."""
    return (left[0] + right[0], left[1] + right[1]) if len(left) == 2 else (left[0] + right[0],)


@triton.jit
def _write_piece(base, at, stride, inside, piece, SIZE: tl.constexpr):
    columns = tl.arange(0, piece.shape[1])
    places = base + at.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(places, piece.to(base.dtype.element_ty), mask=inside[:, None] & (columns < SIZE)[None, :])


@triton.jit
def write(base, at, stride, inside, pieces, SIZE: tl.constexpr):
    """Store the rows that are ``inside``, of SIZE columns."""
    _write_piece(base, at, stride, inside, pieces[0], SIZE)
    if len(pieces) == 2:
        FIRST: tl.constexpr = pieces[0].shape[1]
        _write_piece(base + FIRST, at, stride, inside, pieces[1], SIZE - FIRST)
