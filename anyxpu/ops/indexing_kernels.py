"""Elements and rows taken by an index, in Triton.

Memory is ``(A, N, B)``, B fastest; the index is of N, and K are taken. An index out of range takes nothing, and the
next call that waits for the device raises torch.AcceleratorError.

A GPU's programs have a tile each. A CPU's go through S rows one by one: what all lanes share are scalars there, which
its compiler needs to see that lanes read neighbours.
"""
# mypy: disable-error-code="no-untyped-def, attr-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """``out[a, i, b] = x[a, index[i], b]``: R rows of C numbers a program."""
    strips = tl.cdiv(B, C)
    column = (tl.program_id(0) % strips) * C + tl.arange(0, C)[None, :]
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    there = row < A * K
    wanted = tl.load(index + row % K, mask=there, other=0).to(tl.int64)
    inside = (wanted >= 0) & (wanted < N)
    tl.device_assert(inside | (row >= A * K), "index_select: an index is out of range")
    some = there & inside & (column < B)
    taken = wanted
    if A > 1:  # a quotient for each number would take longer than to move it
        taken += (row // K).to(tl.int64) * N
    value = tl.load(x + taken * B + column, mask=some)
    tl.store(out + row.to(tl.int64) * B + column, value, mask=some)


@triton.jit
def elements(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """``out[a, i, b] = x[a, index[a, i, b], b]``: C elements a program; R is 1."""
    e = tl.program_id(0) * C + tl.arange(0, C)
    there = e < A * K * B
    wanted = tl.load(index + e, mask=there, other=0).to(tl.int64)
    inside = (wanted >= 0) & (wanted < N)
    tl.device_assert(inside | (e >= A * K * B), "gather: an index is out of range")
    some = there & inside
    value = tl.load(x + ((e // (K * B)).to(tl.int64) * N + wanted) * B + e % B, mask=some)
    tl.store(out + e, value, mask=some)


@triton.jit
def rows_in_turn(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """:func:`rows`, S of them a program, C numbers at once; R is 1."""
    first = tl.program_id(0) * S
    for row in range(first, min(first + S, A * K)):
        at = row
        base = row * 0
        if A > 1:
            at = row % K
            base = row // K
        wanted = tl.load(index + at).to(tl.int64)
        tl.device_assert((wanted >= 0) & (wanted < N), "index_select: an index is out of range")
        source = x + (base.to(tl.int64) * N + wanted) * B
        target = out + row.to(tl.int64) * B
        for start in range(0, B, C):
            column = start + tl.arange(0, C)
            tl.store(target + column, tl.load(source + column, mask=column < B), mask=column < B)


@triton.jit
def columns_in_turn(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """:func:`rows` where B is 1: of S of the A rows a program K numbers, C at once; R is 1."""
    first = tl.program_id(0) * S
    for row in range(first, min(first + S, A)):
        source = x + row.to(tl.int64) * N
        target = out + row.to(tl.int64) * K
        for start in range(0, K, C):
            column = start + tl.arange(0, C)
            wanted = tl.load(index + column, mask=column < K, other=0).to(tl.int64)
            inside = (wanted >= 0) & (wanted < N)
            tl.device_assert(inside, "index_select: an index is out of range")
            # As for elements: none is masked that is not beyond the end.
            value = tl.load(source + tl.where(inside, wanted, 0), mask=column < K)
            tl.store(target + column, value, mask=column < K)


@triton.jit
def _line(x, index, out, N, K, S, REFUSED: tl.constexpr, C: tl.constexpr):
    first = tl.program_id(0) * S
    end = min(first + S, K)
    for start in range(first, end, C):
        column = start + tl.arange(0, C)
        wanted = tl.load(index + column, mask=column < end, other=0).to(tl.int64)
        inside = (wanted >= 0) & (wanted < N)
        tl.device_assert(inside, REFUSED)
        value = tl.load(x + tl.where(inside, wanted, 0), mask=column < end)
        tl.store(out + column, value, mask=column < end)


@triton.jit
def line_of_rows_in_turn(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """``out[i] = x[index[i]]``, A and B being 1: S of the K numbers a program, C at once; R is 1."""
    _line(x, index, out, N, K, S, "index_select: an index is out of range", C)


@triton.jit
def line_of_elements_in_turn(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """The same, of :func:`elements`."""
    _line(x, index, out, N, K, S, "gather: an index is out of range", C)


@triton.jit
def elements_in_turn(x, index, out, A, N, B, K, S, R: tl.constexpr, C: tl.constexpr):
    """:func:`elements`: S rows a program, which are (A, K) of B numbers, or where B is 1 A of K; R is 1."""
    rows = A * K
    columns = B
    if B == 1:
        rows = A
        columns = K
    first = tl.program_id(0) * S
    for row in range(first, min(first + S, rows)):
        base = row
        if B > 1:
            base = row // K
        source = x + base.to(tl.int64) * N * B
        offset = row.to(tl.int64) * columns
        for start in range(0, columns, C):
            column = start + tl.arange(0, C)
            there = column < columns
            wanted = tl.load(index + offset + column, mask=there, other=0).to(tl.int64)
            inside = (wanted >= 0) & (wanted < N)
            beside = column
            if B == 1:
                beside = column * 0
            # Another element in the place of one that is not there: lanes that are masked take their turns on a CPU.
            value = tl.load(source + tl.where(inside, wanted, 0) * B + beside, mask=there)
            tl.store(out + offset + column, value, mask=there)
            tl.device_assert(inside, "gather: an index is out of range")
