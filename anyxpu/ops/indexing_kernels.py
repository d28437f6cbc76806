"""Elements and rows taken by an index, in Triton.

Memory is ``(A, N, B)``, B fastest; the index is of N, and K are taken. An index out of range takes nothing, and the
next call that waits for the device raises torch.AcceleratorError.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows(x, index, out, A, N, B, K, R: tl.constexpr, C: tl.constexpr):
    """``out[a, i, b] = x[a, index[i], b]``: R rows of C numbers a program."""
    strips = tl.cdiv(B, C)
    column = (tl.program_id(0) % strips) * C + tl.arange(0, C)[None, :]
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    there = row < A * K
    wanted = tl.load(index + row % K, mask=there, other=0).to(tl.int64)
    inside = (wanted >= 0) & (wanted < N)
    tl.device_assert(inside | (row >= A * K), "index_select: an index is out of range")
    some = there & inside & (column < B)
    value = tl.load(x + ((row // K) * N + wanted) * B + column, mask=some)
    tl.store(out + row.to(tl.int64) * B + column, value, mask=some)


@triton.jit
def elements(x, index, out, A, N, B, K, R: tl.constexpr, C: tl.constexpr):
    """``out[a, i, b] = x[a, index[a, i, b], b]``: C elements a program; R is 1."""
    e = tl.program_id(0) * C + tl.arange(0, C)
    there = e < A * K * B
    wanted = tl.load(index + e, mask=there, other=0).to(tl.int64)
    inside = (wanted >= 0) & (wanted < N)
    tl.device_assert(inside | (e >= A * K * B), "gather: an index is out of range")
    some = there & inside
    value = tl.load(x + ((e // (K * B)).to(tl.int64) * N + wanted) * B + e % B, mask=some)
    tl.store(out + e, value, mask=some)
