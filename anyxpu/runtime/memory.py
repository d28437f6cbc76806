"""What ``torch.xpu.memory`` and ``torch.accelerator`` look up on ``torch._C`` for memory.

All of it is the shim's caching allocator (``shim/device_cache.h`` says how it works); the names here are torch's.
"""

from __future__ import annotations

from anyxpu.shim import lib

_NAMES = (
    "_xpu_emptyCache",
    "_xpu_memoryStats",
    "_xpu_resetAccumulatedMemoryStats",
    "_xpu_resetPeakMemoryStats",
    "_xpu_getMemoryInfo",
    "_xpu_getMemoryFraction",
    "_xpu_setMemoryFraction",
    "_xpu_memorySnapshot",
    "_xpu_recordMemoryHistory",
    "_xpu_XPUAllocator",
    "_xpu_getAllocator",
    "_xpu_changeCurrentAllocator",
    "_xpu_customAllocator",
    "_XPUMemPool",
    "_xpu_beginAllocateToPool",
    "_xpu_beginAllocateCurrentThreadToPool",
    "_xpu_endAllocateToPool",
    "_xpu_releasePool",
)


def bindings() -> dict[str, object]:
    """Name on ``torch._C`` → the shim's function or class of that name."""
    shim = lib()
    return {name: getattr(shim, name) for name in _NAMES}


def pinned_memory_stats() -> dict[str, dict[str, int]]:
    """Figures of the pinned host memory, in bytes and counts, as torch.cuda's host_memory_stats names them.

    ``active_*`` are the blocks in use, ``segment`` and ``reserved_bytes`` those in use or kept for reuse; each has
    ``current``, ``peak``, ``allocated`` and ``freed``.
    """
    return lib().host_memory_stats()
