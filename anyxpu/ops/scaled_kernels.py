"""What follows a product of scaled numbers, in Triton."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rescale(sums, a, b, bias, out, N, a_row, b_column, out_row, out_column, BIAS: tl.constexpr, BN: tl.constexpr):
    """``sums * a * b + bias``, rounded once. Grid: (blocks of BN columns, rows)."""
    row, columns = tl.program_id(1).to(tl.int64), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < N
    value = tl.load(sums + row * N + columns, mask=inside, other=0.0) * tl.load(a + row * a_row)
    value *= tl.load(b + columns * b_column, mask=inside, other=0.0)
    if BIAS:
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + columns * out_column, value.to(out.dtype.element_ty), mask=inside)
