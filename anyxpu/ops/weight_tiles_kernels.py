"""Products of up to 16 rows of bfloat16 with weights of 4 or 8 bits in Triton, by a CPU's tile registers.

A number becomes a bfloat16, exact, by a table: one of 4 bits less 8; of 8 bits the lower four and the higher four,
which are multiplied by the same; a float8 by its bytes. A group's scale, and what its zero point is away from 8, come
after the sums. What that takes is in the prelude's assembly (``intel_cpu_weights.cl``): of Triton's own words the
compiler made four times as much.

Measured with AMX on two cores, 4096 x 4096, 8 rows: 4 bits in half of the time of as many rows by a weight of bfloat16,
8 bits in 0.68 and 0.66; the weights alone are read in 0.34 of that time, and in 0.6.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.weight_only import AT_ONCE, BLOCK, CHUNK
from anyxpu.ops.weight_only_kernels import E4M3, INT4, INT8
from anyxpu.triton.hints import weights_by_tiles

_INT4, _INT8, _E4M3 = tl.constexpr(INT4), tl.constexpr(INT8), tl.constexpr(E4M3)
_CHUNK, _AT_ONCE, _BLOCK = tl.constexpr(CHUNK), tl.constexpr(AT_ONCE), tl.constexpr(BLOCK)


@triton.jit
def _places(k, KIND: tl.constexpr):
    """Where the numbers of a chunk lie: in which plane, in which of its 16 pairs, and in which half of that.

    Of 4 bits a word's first and fifth number make a pair, in the first plane, its second and sixth in the second …; of
    8 bits a word's first and third, its second and fourth, of the first half of the chunk and then of the other; of
    float8 neighbours, of which each 128 bits have four in one plane and four in the next.
    """
    if KIND == _INT4:
        return k % 4, k // 8, k // 4 % 2
    elif KIND == _INT8:
        return k // 64 * 2 + k % 2, k % 64 // 4, k // 2 % 2
    else:
        return k // 64 * 2 + k // 8 % 2, k % 64 // 16 * 4 + k % 8 // 2, k % 2


@triton.jit
def arrange(x, out, sums, K, ROWS, CHUNKS: tl.constexpr, KIND: tl.constexpr):
    """Bring rows of ``x`` into planes. Grid: (K / 128 / CHUNKS, ROWS).

    ``out``: (ROWS, K) numbers: for each 16 rows and each chunk four planes of 16 pairs, of which each has a word for
    every row. ``sums``: f32, for each 16 rows (K / 128 / CHUNKS, 16): the sums of CHUNKS chunks; of 8 bits 0, once.
    """
    group, row, k = tl.program_id(0), tl.program_id(1), tl.arange(0, _CHUNK)
    first = row // _AT_ONCE * _AT_ONCE
    rows, inside = tl.minimum(ROWS - first, _AT_ONCE), row - first
    plane, pair, half = _places(k, KIND)
    place = ((plane * 16 + pair) * rows + inside) * 2 + half
    total = tl.zeros([_CHUNK], tl.float32)
    for chunk in range(group * CHUNKS, (group + 1) * CHUNKS):
        value = tl.load(x + row.to(tl.int64) * K + chunk * _CHUNK + k)
        tl.store(out + first.to(tl.int64) * K + chunk * _CHUNK * rows + place, value)
        total += value.to(tl.float32)
    if KIND == _INT4:
        groups = K // (_CHUNK * CHUNKS)
        tl.store(sums + (first // _AT_ONCE * groups + group) * _AT_ONCE + inside, tl.sum(total, 0))
    elif group == 0:
        tl.store(sums + row, 0.0)


@triton.jit
def product(
    x, sums, w, scales, points, out, N, K, ROWS, GROUP, SCALE_BYTES: tl.constexpr, POINTS: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """``out``, (ROWS, N), of the weight ``w``, (N, K), N of 32 or more. Grid: (blocks of 32 of N, of 16 of ROWS).

    ``x`` and ``sums`` are :func:`arrange`'s. The last block takes the last 32 rows, though another has some of them.
    """
    row, first = tl.minimum(tl.program_id(0) * _BLOCK, N - _BLOCK), tl.program_id(1) * _AT_ONCE
    ahead = (first // _AT_ONCE * (K // GROUP) * _AT_ONCE).to(tl.int64)
    nothing = tl.zeros([], tl.int64)
    weights_by_tiles(
        KIND,
        (x + first.to(tl.int64) * K).to(tl.int64),
        (sums + ahead).to(tl.int64),
        w.to(tl.int64),
        scales.to(tl.int64),
        points.to(tl.int64) if POINTS else nothing,
        (out + first.to(tl.int64) * N).to(tl.int64),
        row,
        N,
        K,
        tl.minimum(ROWS - first, _AT_ONCE),
        GROUP,
        SCALE_BYTES,
    )
