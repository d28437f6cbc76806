"""Instructions of the CPU that kernels have in assembly, and what a process has to ask for before it may use them."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

_VECTORS = frozenset({"avx512f", "avx512vl"})
_TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512bw"})
# Linux's arch_prctl on x86-64, what it is asked, and the component of a thread's state that the tiles are.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def _known() -> frozenset[str]:
    """The names of this CPU's, as Linux has them.

    ``CL_CONFIG_CPU_TARGET_ARCH`` has the CPU runtime's compiler know other instructions than the CPU's: then none.
    """
    if platform.machine() != "x86_64" or os.environ.get("CL_CONFIG_CPU_TARGET_ARCH"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split() for line in lines if line.startswith("flags")), ()))


def long_vectors() -> bool:
    """Whether kernels may use registers of 512 bits (AVX-512)."""
    return _known() >= _VECTORS


@cache
def tiles() -> bool:
    """Whether kernels may use tile registers (AMX) of bfloat16 and int8: there are any, and Linux lets this process."""
    if not long_vectors() or not _known() >= _TILES:
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0
