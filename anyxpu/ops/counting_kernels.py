"""Sums of what belongs to each place, in Triton, for a CPU device: one number after the other, without atomics."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def parts(places, values, sums, N, SHARE, PLACES, WEIGHED: tl.constexpr):
    """Add to ``sums`` (programs, PLACES) what SHARE of N elements make, a row each. Grid: (programs,).

    ``places``: integers from 0 to PLACES - 1; ``values``: what each adds, 1 unless WEIGHED.
    """
    first = tl.program_id(0) * SHARE
    row = sums + tl.program_id(0).to(tl.int64) * PLACES
    for i in range(first, tl.minimum(first + SHARE, N)):
        at = row + tl.load(places + i)
        tl.store(at, tl.load(at) + (tl.load(values + i) if WEIGHED else 1))
