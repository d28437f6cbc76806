"""What kernels of operators tell a device beside what they compute, and Triton has no word for."""

from __future__ import annotations

from typing import Any

from triton.language import core

from anyxpu.triton.libdevice_table import FETCH_LINE


@core.extern
def fetch_line(address: Any, _semantic: Any = None) -> Any:
    """Have the cache line around an address brought near, while the kernel goes on.

    Args:
        address: int64, a scalar. It may lie outside of what is allocated.

    On a GPU this does nothing.
    """
    table = {(core.int64,): (FETCH_LINE, core.int32)}
    return core.extern_elementwise("", "", [address], table, is_pure=False, _semantic=_semantic)
