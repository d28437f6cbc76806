"""The host's CPU, of which a CPU device has the same: its instructions, and what a process may use of them."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

_VECTORS = frozenset({"avx512f", "avx512vl"})
_TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512bw"})
# Linux's arch_prctl on x86-64, what it is asked, and the component of a thread's state that the tiles are.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def _fields() -> dict[str, str]:
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return fields


def model() -> str:
    """Its name."""
    return _fields().get("model name") or platform.processor() or "unknown"


@cache
def instructions() -> frozenset[str]:
    """The names of its instructions, as Linux has them; none where it does not say."""
    return frozenset(_fields().get("flags", "").split())


def long_vectors() -> bool:
    """Whether kernels may have assembly with registers of 512 bits (AVX-512).

    ``CL_CONFIG_CPU_TARGET_ARCH`` has the CPU runtime's compiler take other instructions than the CPU's: then none.
    """
    asked = platform.machine() != "x86_64" or os.environ.get("CL_CONFIG_CPU_TARGET_ARCH")
    return not asked and instructions() >= _VECTORS


@cache
def _may_use_tiles() -> bool:
    """Ask Linux, which refuses where a thread's signals have too small a stack for what tiles hold."""
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def tiles() -> bool:
    """Whether kernels may use tile registers (AMX) of bfloat16 and int8: there are any, and this process may."""
    return long_vectors() and instructions() >= _TILES and _may_use_tiles()


def looks_up() -> bool:
    """Whether kernels may use tile registers, and beside them what looks bytes up in vector registers (AVX512-VBMI)."""
    return tiles() and "avx512vbmi" in instructions()
