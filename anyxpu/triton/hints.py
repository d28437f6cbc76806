"""What kernels of operators tell a device beside what they compute, and Triton has no word for."""

from __future__ import annotations

from typing import Any

from triton.language import core

from anyxpu.triton.libdevice_table import FETCH_LINE, POWER, WEIGHTS_BY_TILES


@core.extern
def fetch_line(address: Any, _semantic: Any = None) -> Any:
    """Have the cache line around an address brought near, while the kernel goes on.

    Args:
        address: int64, a scalar. It may lie outside of what is allocated.

    On a GPU this does nothing.
    """
    table = {(core.int64,): (FETCH_LINE, core.int32)}
    return core.extern_elementwise("", "", [address], table, is_pure=False, _semantic=_semantic)


@core.extern
def power_of_2(x: Any, _semantic: Any = None) -> Any:
    """2 to the power of ``x``, float32, which is at most 0 or next to it, as a row's scores less their maximum are.

    0 where that is below the least normal number: on a CPU less work than what gives results of any size.
    """
    table = {(core.float32,): (POWER, core.float32)}
    return core.extern_elementwise("", "", [x], table, is_pure=True, _semantic=_semantic)


@core.extern
def weights_by_tiles(
    kind: Any,
    x: Any,
    sums: Any,
    w: Any,
    scales: Any,
    points: Any,
    out: Any,
    row: Any,
    n: Any,
    k: Any,
    m: Any,
    group: Any,
    scale_bytes: Any,
    _semantic: Any = None,
) -> Any:
    """Multiply up to 16 rows of bfloat16 with 32 rows of a weight by a CPU's tile registers; no other device has it.

    Args:
        kind: 4, 8, or 9 for float8_e4m3fn; an int32, as all are that are no addresses.
        x: address, int64, of what :func:`anyxpu.ops.weight_tiles_kernels.arrange` made of the rows.
        sums: of float32 ``(k / group, 16)``: the sums of the rows' groups; 0 for kinds of 8 bits.
        w: of the weight ``(n, k)``, whose rows lie behind each other.
        scales: of ``(k / group, n)``, bfloat16 or float32, or of one float32.
        points: of int8, the same: zero points of 4 bits; 0 where all are 0.
        out: of bfloat16 ``(m, n)``.
        row: the first of the 32 rows; it is n - 32 at the most.
        n, k: the weight's; 128 divides k.
        m: 1 to 16.
        group: along k, what shares a scale; a multiple of 128 that divides k; k for kinds of 8 bits.
        scale_bytes: 2 or 4, of a scale; 0 where there is one.
    """
    arguments = [kind, x, sums, w, scales, points, out, row, n, k, m, group, scale_bytes]
    types = (core.int32, *(core.int64,) * 6, *(core.int32,) * 6)
    table = {types: (WEIGHTS_BY_TILES, core.int32)}
    return core.extern_elementwise("", "", arguments, table, is_pure=False, _semantic=_semantic)
