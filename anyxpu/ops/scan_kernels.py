"""Running sums and products, in Triton. Memory is ``(A, N, B)``, B fastest; N is gone through."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _multiplied(x, y):
    return x * y


@triton.jit
def _joined(before, block, PRODUCT: tl.constexpr):
    return before * block if PRODUCT else before + block


@triton.jit
def rows(
    x, out, A, N, B,
    PRODUCT: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of R rows a program, L numbers at a time; B is 1."""
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    at = row.to(tl.int64) * N
    before = tl.full((R, 1), 1 if PRODUCT else 0, OP)
    for start in range(0, N, L):
        lane = start + tl.arange(0, L)[None, :]
        inside = (row < A) & (lane < N)
        value = tl.load(x + at + lane, mask=inside, other=1 if PRODUCT else 0).to(OP)
        made = _joined(before, tl.associative_scan(value, 1, _multiplied) if PRODUCT else tl.cumsum(value, 1), PRODUCT)
        tl.store(out + at + lane, made.to(out.dtype.element_ty), mask=inside)
        last = tl.arange(0, L)[None, :] == L - 1
        if PRODUCT:
            before = tl.sum(tl.where(last, made, tl.zeros((R, L), OP)), 1, keep_dims=True)
        else:
            before = before + tl.sum(value, 1, keep_dims=True)


@triton.jit
def columns(
    x, out, A, N, B,
    PRODUCT: tl.constexpr, OP: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of L columns a program, one number of each at a time; R is 1."""
    strips = tl.cdiv(B, L)
    a = tl.program_id(0) // strips
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)
    before = tl.full((L,), 1 if PRODUCT else 0, OP)
    at = a.to(tl.int64) * N * B + lane
    for n in range(0, N):  # noqa: PIE808
        value = tl.load(x + at + n * B, mask=lane < B, other=1 if PRODUCT else 0).to(OP)
        before = _joined(before, value, PRODUCT)
        tl.store(out + at + n * B, before.to(out.dtype.element_ty), mask=lane < B)
