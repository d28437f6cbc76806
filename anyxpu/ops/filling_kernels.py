"""Elements that follow from their places, in Triton."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arange(out, n, first, step, OP: tl.constexpr, L: tl.constexpr):
    """``first + i * step``, rounded once."""
    i = tl.program_id(0) * L + tl.arange(0, L)
    tl.store(out + i, tl.fma(i.to(OP), step.to(OP), first.to(OP)).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def arange_integers(out, n, first, step, L: tl.constexpr):
    """The same of integers, in 64 bits."""
    i = tl.program_id(0) * L + tl.arange(0, L)
    tl.store(out + i, (first + i.to(tl.int64) * step).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def triangle(x, out, rows, M, N, down, diagonal, UPPER: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """Matrices ``(M, N)`` with zeros below (UPPER) or above a diagonal; of all ``rows`` a program does ``down``."""
    strips = tl.cdiv(N, L)
    begin = (tl.program_id(0) // strips) * down
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)[None, :]
    for first in range(begin, tl.minimum(begin + down, rows), R):
        row = first + tl.arange(0, R)[:, None]
        inside = (row < rows) & (lane < N)
        away = lane.to(tl.int64) - (row % M)
        kept = away >= diagonal if UPPER else away <= diagonal
        value = tl.load(x + row.to(tl.int64) * N + lane, mask=inside & kept, other=0)
        tl.store(out + row.to(tl.int64) * N + lane, value, mask=inside)
