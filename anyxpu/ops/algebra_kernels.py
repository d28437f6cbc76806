"""Products of vectors, in Triton."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(x, y, out, n, chunk, OP: tl.constexpr, L: tl.constexpr):
    """``out[program]``: the sum of the products of ``chunk`` of n pairs."""
    begin = tl.program_id(0) * chunk
    total = tl.zeros([L], OP)
    for start in range(begin, tl.minimum(begin + chunk, n), L):
        at = start + tl.arange(0, L)
        one, other = tl.load(x + at, mask=at < n, other=0).to(OP), tl.load(y + at, mask=at < n, other=0).to(OP)
        total += one * other
    tl.store(out + tl.program_id(0), tl.sum(total, 0).to(out.dtype.element_ty))


@triton.jit
def cross(x, y, out, n, B, LINE: tl.constexpr, OP: tl.constexpr, L: tl.constexpr):
    """What is at right angles to both of n pairs of vectors: memory is ``(n / B, 3, B)``. LINE: B is 1."""
    v = tl.program_id(0) * L + tl.arange(0, L)
    inside = v < n
    at = 3 * v if LINE else v // B * (3 * B) + v % B
    x0, y0 = tl.load(x + at, mask=inside).to(OP), tl.load(y + at, mask=inside).to(OP)
    x1, y1 = tl.load(x + at + B, mask=inside).to(OP), tl.load(y + at + B, mask=inside).to(OP)
    x2, y2 = tl.load(x + at + 2 * B, mask=inside).to(OP), tl.load(y + at + 2 * B, mask=inside).to(OP)
    kind = out.dtype.element_ty
    tl.store(out + at, (x1 * y2 - x2 * y1).to(kind), mask=inside)
    tl.store(out + at + B, (x2 * y0 - x0 * y2).to(kind), mask=inside)
    tl.store(out + at + 2 * B, (x0 * y1 - x1 * y0).to(kind), mask=inside)
