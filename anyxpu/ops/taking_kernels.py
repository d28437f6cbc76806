"""Elements taken and put by several indices at once, and scattered, in Triton.

An index below 0 counts from the end, where it is not said otherwise. One out of range takes and puts nothing, and the
next call that waits for the device raises torch.AcceleratorError.
"""
# mypy: disable-error-code="no-untyped-def, assignment, attr-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(
    indices, j, there, size0, size1, size2, size3, step0, step1, step2, step3, COUNT: tl.constexpr,
    FROM_END: tl.constexpr = True,
):  # fmt: skip
    """Where in the indexed dimensions the j-th place is, in elements, and whether it is within them.

    FROM_END: an index below 0 counts from the end; else it is out of range.
    """
    at = tl.zeros(j.shape, tl.int64)
    fine = there
    for k in tl.static_range(COUNT):
        size = size0 if k == 0 else (size1 if k == 1 else (size2 if k == 2 else size3))
        step = step0 if k == 0 else (step1 if k == 1 else (step2 if k == 2 else step3))
        index = tl.load(indices[k] + j, mask=there, other=0).to(tl.int64)
        if FROM_END:
            index = tl.where(index < 0, index + size, index)
        fine = fine & (index >= 0) & (index < size)
        at += index * step
    return at, fine


@triton.jit
def take(
    x, out, indices0, indices1, indices2, indices3, A, J, B, N,
    size0, size1, size2, size3, step0, step1, step2, step3,
    COUNT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[a, j, b] = x[a, (indices[j]), b]``; x is ``(A, N, B)``, N being all indexed dimensions."""
    strips = tl.cdiv(B, L)
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)[None, :]
    there = row < A * J
    at, fine = _place(
        (indices0, indices1, indices2, indices3), row % J, there,
        size0, size1, size2, size3, step0, step1, step2, step3, COUNT,
    )  # fmt: skip
    tl.device_assert(fine | (row >= A * J), "index: an index is out of range")
    some = fine & (lane < B)
    value = tl.load(x + ((row // J).to(tl.int64) * N + at) * B + lane, mask=some)
    tl.store(out + row.to(tl.int64) * B + lane, value, mask=some)


@triton.jit
def put(
    values, x, indices0, indices1, indices2, indices3, A, J, B, N,
    size0, size1, size2, size3, step0, step1, step2, step3,
    COUNT: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``x[a, (indices[j]), b] = values[a, j, b]``; of places that are named twice, either value stays."""
    strips = tl.cdiv(B, L)
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)[None, :]
    there = row < A * J
    at, fine = _place(
        (indices0, indices1, indices2, indices3), row % J, there,
        size0, size1, size2, size3, step0, step1, step2, step3, COUNT,
    )  # fmt: skip
    tl.device_assert(fine | (row >= A * J), "index_put_: an index is out of range")
    some = fine & (lane < B)
    value = tl.load(values + row.to(tl.int64) * B + lane, mask=some)
    tl.store(x + ((row // J).to(tl.int64) * N + at) * B + lane, value, mask=some)


@triton.jit
def put_slices(values, x, index, A, J, B, N, R: tl.constexpr, L: tl.constexpr):
    """:func:`put` by one index, below 0 of which nothing is."""
    strips = tl.cdiv(B, L)
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)[None, :]
    at, fine = _place((index,), row % J, row < A * J, N, N, N, N, 1, 1, 1, 1, 1, False)
    tl.device_assert(fine | (row >= A * J), "index_copy: an index is out of range")
    some = fine & (lane < B)
    value = tl.load(values + row.to(tl.int64) * B + lane, mask=some)
    tl.store(x + ((row // J).to(tl.int64) * N + at) * B + lane, value, mask=some)


@triton.jit
def scatter(index, source, out, A, N, B, K, L: tl.constexpr):
    """``out[a, index[a, i, b], b] = source[a, i, b]``: out is ``(A, N, B)``, index and source are ``(A, K, B)``."""
    e = tl.program_id(0) * L + tl.arange(0, L)
    there = e < A * K * B
    wanted = tl.load(index + e, mask=there, other=0).to(tl.int64)
    fine = (wanted >= 0) & (wanted < N)
    tl.device_assert(fine | (e >= A * K * B), "scatter: an index is out of range")
    value = tl.load(source + e, mask=there & fine)
    tl.store(out + ((e // (K * B)).to(tl.int64) * N + wanted) * B + e % B, value, mask=there & fine)


@triton.jit
def scatter_number(index, source, out, A, N, B, K, L: tl.constexpr):
    """The same; ``source`` is one element for all."""
    e = tl.program_id(0) * L + tl.arange(0, L)
    there = e < A * K * B
    wanted = tl.load(index + e, mask=there, other=0).to(tl.int64)
    fine = (wanted >= 0) & (wanted < N)
    tl.device_assert(fine | (e >= A * K * B), "scatter: an index is out of range")
    value = tl.load(source + e * 0, mask=there & fine)
    tl.store(out + ((e // (K * B)).to(tl.int64) * N + wanted) * B + e % B, value, mask=there & fine)


# --- where elements are not zero ------------------------------------------------------------------------------------


@triton.jit
def _found(x, start, n, chunk, L: tl.constexpr):
    """Elements of this program's ``chunk`` of n, from its ``start``-th on, and which of them are there and not zero."""
    within = start + tl.arange(0, L)
    lane = tl.program_id(0) * chunk + within
    inside = (within < chunk) & (lane < n)
    return lane, inside & (tl.load(x + lane, mask=inside, other=0) != 0)


@triton.jit
def count(x, counts, n, chunk, L: tl.constexpr):
    """How many of each program's ``chunk`` elements are not zero."""
    total = tl.zeros((L,), tl.int32)
    for start in range(0, chunk, L):
        _, there = _found(x, start, n, chunk, L)
        total += there.to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _before(counts, L: tl.constexpr):
    """The sum of the counts of the programs before this one."""
    p = tl.program_id(0)
    total = tl.zeros((L,), tl.int64)
    for start in range(0, p, L):
        lane = start + tl.arange(0, L)
        total += tl.load(counts + lane, mask=lane < p, other=0)
    return tl.sum(total, 0)


@triton.jit
def _size_of(d: tl.constexpr, size1, size2, size3, size4, size5):
    return size1 if d == 1 else (size2 if d == 2 else (size3 if d == 3 else (size4 if d == 4 else size5)))


@triton.jit
def places(x, counts, out, total, n, chunk, size1, size2, size3, size4, size5, ND: tl.constexpr, L: tl.constexpr):
    """Of the elements that are not zero the indices, in order, to ``out (ND, n)``; how many they are to ``total``.

    ``counts``: of each program, and of those before it, what :func:`count` found.
    """
    base = _before(counts, L)
    for start in range(0, chunk, L):
        lane, there = _found(x, start, n, chunk, L)
        ranks = tl.cumsum(there.to(tl.int32), 0)
        to = out + (base + ranks - 1)
        whole = n.to(tl.int64)
        rest = lane
        for k in tl.static_range(ND - 1):
            size = _size_of(ND - 1 - k, size1, size2, size3, size4, size5)
            tl.store(to + (ND - 1 - k) * whole, (rest % size).to(tl.int64), mask=there)
            rest = rest // size
        tl.store(to, rest.to(tl.int64), mask=there)
        base += tl.sum(there.to(tl.int64), 0)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(total, base)


@triton.jit
def pour(mask, counts, source, x, n, chunk, L: tl.constexpr):
    """``x[i]`` of the i that ``mask`` names, one after the other, from ``source`` on; ``chunk`` of n a program.

    ``counts``: of each program, and of those before it, what :func:`count` found in the mask.
    """
    base = _before(counts, L)
    for start in range(0, chunk, L):
        lane, there = _found(mask, start, n, chunk, L)
        ranks = tl.cumsum(there.to(tl.int32), 0)
        value = tl.load(source + (base + ranks - 1), mask=there)
        tl.store(x + lane, value, mask=there)
        base += tl.sum(there.to(tl.int64), 0)


@triton.jit
def roll(x, out, rows, W, shift, N, M, by, down, across, L: tl.constexpr):
    """Rows of W elements, moved on by ``shift`` around their end; rows are ``(*, N, M)``, moved on by ``by`` along N.

    A program has ``down`` rows, of each ``across`` elements, L at once.
    """
    strips = tl.cdiv(W, across)
    first, begin = (tl.program_id(0) // strips) * down, (tl.program_id(0) % strips) * across
    end = tl.minimum(begin + across, W)
    for row in range(first, tl.minimum(first + down, rows)):
        i = row // M % N
        back = tl.where(i < by, N - by, 0 - by)
        source = x + (row + back * M).to(tl.int64) * W
        target = out + row.to(tl.int64) * W
        for start in range(begin, tl.minimum(end, shift), L):
            lane = start + tl.arange(0, L)
            inside = lane < tl.minimum(end, shift)
            tl.store(target + lane, tl.load(source + (W - shift) + lane, mask=inside), mask=inside)
        for start in range(tl.maximum(begin, shift), end, L):
            lane = start + tl.arange(0, L)
            tl.store(target + lane, tl.load(source - shift + lane, mask=lane < end), mask=lane < end)


@triton.jit
def flip(x, out, A, N, B, LINE: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """``out[a, i, b] = x[a, N - 1 - i, b]``: R rows of L lanes a program. LINE: lanes are N, B being 1; else B."""
    width = N if LINE else B
    strips = tl.cdiv(width, L)
    row = (tl.program_id(0) // strips) * R + tl.arange(0, R)[:, None]
    lane = (tl.program_id(0) % strips) * L + tl.arange(0, L)[None, :]
    inside = (row < (A if LINE else A * N)) & (lane < width)
    at = row * width + lane
    if LINE:
        value = tl.load(x + row * width + (N - 1 - lane), mask=inside)
    else:
        value = tl.load(x + at + (N - 1 - 2 * (row % N)) * B, mask=inside)
    tl.store(out + at, value, mask=inside)
