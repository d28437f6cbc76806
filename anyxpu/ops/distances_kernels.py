"""Distances between rows, by every norm, and their gradients, in Triton.

KIND: of a difference's elements 0 how many are not zero, 1 the sum, 2 the Euclidean norm, 3 the largest, 4 the p-norm.
CONDENSED: distances within one matrix, of each pair once: row 0's to all behind it, then row 1's, and so on.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _pair(i, j, N):
    """Where the distance of rows i < j is, of those of N rows."""
    return i * N - (i * (i + 1)) // 2 + j - i - 1


@triton.jit
def forward(
    x, y, out, P, Q, M, p,
    KIND: tl.constexpr, CONDENSED: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[b, i, j]``: of ``x[b, i]`` to ``y[b, :, j]``; x is ``(B, P, M)``, y is ``(B, M, Q)``."""
    across, down = tl.cdiv(Q, L), tl.cdiv(P, R)
    b = tl.program_id(0) // (across * down)
    i = (tl.program_id(0) // across) % down * R + tl.arange(0, R)[:, None]
    j = (tl.program_id(0) % across) * L + tl.arange(0, L)[None, :]
    inside = (i < P) & (j < Q)
    if CONDENSED:
        inside = inside & (i < j)
    total = tl.zeros((R, L), OP)
    for m in range(M):
        one = tl.load(x + (b * P + i) * M + m, mask=i < P, other=0.0).to(OP)
        other = tl.load(y + (b * M + m) * Q + j, mask=j < Q, other=0.0).to(OP)
        far = tl.abs(one - other)
        if KIND == 0:
            total += (far != 0).to(OP)
        elif KIND == 1:
            total += far
        elif KIND == 2:
            total += far * far
        elif KIND == 3:
            total = tl.where((far > total) | (far != far), far, total)
        else:
            total += libdevice.pow(far, far * 0 + p)
    if KIND == 2:
        total = tl.sqrt(total)
    if KIND == 4:
        total = libdevice.pow(total, total * 0 + 1 / p)
    at = _pair(i, j, Q) if CONDENSED else (b * P + i) * Q + j
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    grad, x, y, distances, out, P, Q, M, p,
    KIND: tl.constexpr, CONDENSED: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x; y is ``(B, Q, M)``. Where a distance is 0, it is taken not to change."""
    across, down = tl.cdiv(M, L), tl.cdiv(P, R)
    b = tl.program_id(0) // (across * down)
    i = (tl.program_id(0) // across) % down * R + tl.arange(0, R)[:, None]
    m = (tl.program_id(0) % across) * L + tl.arange(0, L)[None, :]
    inside = (i < P) & (m < M)
    one = tl.load(x + (b * P + i) * M + m, mask=inside, other=0.0).to(OP)
    total = tl.zeros((R, L), OP)
    for j in range(Q):
        if CONDENSED:
            at = _pair(tl.minimum(i, j), tl.maximum(i, j), Q)
            there = (i < P) & (i != j)
        else:
            at = (b * P + i) * Q + j
            there = i < P
        weight = tl.load(grad + at, mask=there, other=0.0).to(OP)
        length = tl.load(distances + at, mask=there, other=0.0).to(OP)
        difference = one - tl.load(y + (b * Q + j) * M + m, mask=m < M, other=0.0).to(OP)
        far = tl.abs(difference)
        sign = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0)).to(OP)
        if KIND == 1:
            total += weight * sign
        elif KIND == 3:
            total += tl.where(there & (far == length), weight * sign, 0.0)
        else:
            divisor = tl.where(length != 0, length, 1.0)
            if KIND == 2:
                part = weight * difference / divisor
            else:
                steep = libdevice.pow(tl.where(far != 0, far, 1.0), far * 0 + (p - 1))
                part = weight * sign * steep / libdevice.pow(divisor, divisor * 0 + (p - 1))
            total += tl.where(length != 0, part, 0.0)
    tl.store(out + (b * P + i) * M + m, total.to(out.dtype.element_ty), mask=inside)
