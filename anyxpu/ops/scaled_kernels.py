"""What makes operands of scales of blocks, and what follows a product of scaled numbers, in Triton."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_four_bits(number):
    """float4_e2m1: a sign, two bits of exponent and one of fraction."""
    exponent, fraction = (number >> 1) & 3, number & 1
    halves = tl.where(exponent == 0, fraction, (2 + fraction) << (tl.maximum(exponent, 1) - 1))
    value = halves.to(tl.float32) * 0.5
    return tl.where((number & 8) != 0, -value, value)


@triton.jit
def _power_of_two(exponent):
    """float8_e8m0fnu: 2 ** (exponent - 127); 255 is not a number."""
    bits = tl.where(exponent == 0, 0x00400000, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def multiplied(
    w,
    scales,
    out,
    K,
    w_row,
    w_k,
    s_row,
    s_k,
    TILE_COLUMNS,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FOUR: tl.constexpr,
    POWERS: tl.constexpr,
    TILES: tl.constexpr,
    BN: tl.constexpr,
):
    """Numbers by the scales of their blocks. Grid: (blocks of BN columns, rows)."""
    row, columns = tl.program_id(1).to(tl.int64), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < K
    if FOUR:
        pairs = tl.load(w + row * w_row + (columns // 2).to(tl.int64) * w_k, mask=inside, other=0).to(tl.int32)
        value = _of_four_bits((pairs >> (columns % 2 * 4)) & 15)
    else:
        value = tl.load(w + row * w_row + columns.to(tl.int64) * w_k, mask=inside, other=0.0).to(tl.float32)
    block = columns // BLOCK
    if TILES:
        inner = row % 32 * 16 + row % 128 // 32 * 4
        at = (row // 128 * TILE_COLUMNS + block // 4) * 512 + inner + block % 4
    else:
        at = row // ROWS * s_row + block.to(tl.int64) * s_k
    if POWERS:
        scale = _power_of_two(tl.load(scales + at, mask=inside, other=0).to(tl.int32))
    else:
        scale = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * K + columns, (value * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rescale(
    sums,
    a,
    b,
    bias,
    result,
    out,
    N,
    a_row,
    b_column,
    out_row,
    out_column,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    RESULT: tl.constexpr,
    LARGEST: tl.constexpr,
    BN: tl.constexpr,
):
    """``(sums * a * b + bias) * result``, rounded once. Grid: (blocks of BN columns, rows).

    ``LARGEST``: what is beyond it becomes it.
    """
    row, columns = tl.program_id(1).to(tl.int64), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < N
    value = tl.load(sums + row * N + columns, mask=inside, other=0).to(tl.float32)
    if SCALED:
        value *= tl.load(a + row * a_row).to(tl.float32)
        value *= tl.load(b + columns * b_column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if RESULT:
        value *= tl.load(result)
    if LARGEST is not None:  # comparisons, so that NaN stays
        value = tl.where(value > LARGEST, LARGEST, tl.where(value < -LARGEST, -LARGEST, value))
    tl.store(out + row * out_row + columns * out_column, value.to(out.dtype.element_ty), mask=inside)
