"""Where numbers belong among ordered ones, in Triton."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bounds(
    sequence, order, values, out, N, LENGTH, EACH, STEPS,
    RIGHT: tl.constexpr, ORDERED: tl.constexpr, ROWS: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The first of LENGTH places of a sequence whose number is not below each value (RIGHT: is above it).

    Of ROWS, EACH values belong to one sequence of as many. Where ORDERED, ``order`` says which element of the sequence
    is at a place. STEPS halve LENGTH down to nothing. A NaN is above every number, and beside no other.
    """
    e = tl.program_id(0) * L + tl.arange(0, L)
    there = e < N
    value = tl.load(values + e, mask=there)
    begin = (e // EACH).to(tl.int64) * LENGTH if ROWS else tl.zeros((L,), tl.int64)
    low = tl.zeros((L,), tl.int32)
    high = tl.full((L,), 0, tl.int32) + LENGTH
    for _ in range(STEPS):
        open = there & (low < high)
        middle = (low + high) // 2
        at = begin + middle
        if ORDERED:
            at = begin + tl.load(order + at, mask=open, other=0)
        number = tl.load(sequence + at, mask=open)
        beyond = number > value if RIGHT else number >= value
        high = tl.where(open & beyond, middle, high)
        low = tl.where(open & (beyond == 0), middle + 1, low)
    tl.store(out + e, low.to(out.dtype.element_ty), mask=there)
