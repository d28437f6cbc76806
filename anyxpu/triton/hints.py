"""What kernels of operators tell a device beside what they compute, and Triton has no word for."""

from __future__ import annotations

from typing import Any

from triton.language import core

from anyxpu.triton.libdevice_table import FETCH_LINE, POWER


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
