"""Sums, means and largest elements of rows of a table, bag by bag, in Triton."""
# mypy: disable-error-code="no-untyped-def, attr-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    weight, indices, offsets, factors, out, bag_of, sizes, maxima, B, N, V, D, S, W, padding,
    MODE: tl.constexpr, WEIGHTED: tl.constexpr, LAST: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[b]`` of the rows ``weight[indices[k]]``, k from ``offsets[b]`` on up to the next: S bags a program.

    Of the D columns a program has W, L at once. ``padding`` is an index that counts nothing. MODE: 0 sum, of products
    with ``factors`` where WEIGHTED, 1 mean, 2 largest, the index of which is to ``maxima``; NaN is the largest. LAST:
    ``offsets`` say where the last bag ends, too. ``bag_of (N,)`` and ``sizes (B,)`` come from the first columns'.
    """
    strips = tl.cdiv(D, W)
    first = (tl.program_id(0) // strips) * S
    begin = (tl.program_id(0) % strips) * W
    for b in range(first, tl.minimum(first + S, B)):
        start = tl.load(offsets + b).to(tl.int64)
        end = start * 0 + N
        if LAST:
            end = tl.load(offsets + b + 1).to(tl.int64)
        else:
            if b + 1 < B:
                end = tl.load(offsets + b + 1).to(tl.int64)
        fine = (start >= 0) & (start <= end) & (end <= N) & ((b > 0) | (start == 0))
        tl.device_assert(fine, "embedding_bag: offsets begin with 0, never fall, and end within the indices")
        if not fine:
            end = start
        count = 0
        for k in range(start, end):
            count += (tl.load(indices + k).to(tl.int64) != padding).to(tl.int32)
            if begin == 0:
                tl.store(bag_of + k, b.to(bag_of.dtype.element_ty))
        if begin == 0:
            tl.store(sizes + b, count.to(sizes.dtype.element_ty))
        for column in range(begin, tl.minimum(begin + W, D), L):
            lane = column + tl.arange(0, L)
            inside = lane < D
            total = tl.full((L,), float("-inf") if MODE == 2 else 0.0, OP)
            where = tl.full((L,), -1, tl.int64)
            for k in range(start, end):
                index = tl.load(indices + k).to(tl.int64)
                there = (index >= 0) & (index < V)
                tl.device_assert(there, "embedding_bag: an index is out of range")
                if there & (index != padding):
                    value = tl.load(weight + index * D + lane, mask=inside, other=0.0).to(OP)
                    if MODE == 2:
                        better = (where < 0) | (value > total) | ((value != value) & (total == total))
                        total = tl.where(better, value, total)
                        where = tl.where(better, index, where)
                    else:
                        if WEIGHTED:
                            value = value * tl.load(factors + k).to(OP)
                        total += value
            if MODE == 1:
                total = total / tl.maximum(count, 1).to(OP)
            if MODE == 2:
                total = tl.where(where < 0, 0.0, total)
                tl.store(maxima + b.to(tl.int64) * D + lane, where.to(maxima.dtype.element_ty), mask=inside)
            tl.store(out + b.to(tl.int64) * D + lane, total.to(out.dtype.element_ty), mask=inside)
