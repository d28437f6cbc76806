"""Instructions of the CPU that a process has to ask for before it may use them."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

_WANTED = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
# Linux's arch_prctl on x86-64, what it is asked, and the component of a thread's state that the tiles are.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def tiles() -> bool:
    """Whether kernels may use tile registers (AMX) of bfloat16 and int8: the CPU has them and Linux lets this process.

    ``CL_CONFIG_CPU_TARGET_ARCH`` has the CPU runtime's compiler know other instructions than the CPU's, so not then.
    """
    if platform.machine() != "x86_64" or os.environ.get("CL_CONFIG_CPU_TARGET_ARCH"):
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    if not set(next((line.split() for line in lines if line.startswith("flags")), ())) >= _WANTED:
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0
