"""Products of a sparse matrix, row by row, with a dense one, in Triton."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows(
    crow, col, values, dense, bias, out, M, K, bias_row, bias_column, beta, alpha,
    BIAS: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[m, k] = beta * bias[m, k] + alpha * sum of values[i] * dense[col[i], k]``, i of row m.

    crow has M + 1 offsets into col and values; dense and out are ``(_, K)`` and ``(M, K)``, dense ones. What is summed
    is of type OP.
    """
    strips = tl.cdiv(K, L)
    row = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    there = lane < K
    total = tl.zeros((L,), OP)
    for i in range(tl.load(crow + row), tl.load(crow + row + 1)):
        at = tl.load(col + i).to(tl.int64)
        total += tl.load(values + i).to(OP) * tl.load(dense + at * K + lane, mask=there, other=0).to(OP)
    total *= alpha
    if BIAS:
        total += beta * tl.load(bias + row.to(tl.int64) * bias_row + lane * bias_column, mask=there, other=0).to(OP)
    tl.store(out + row.to(tl.int64) * K + lane, total.to(out.dtype.element_ty), mask=there)
