"""The Triton backend: TTGIR by Triton's own passes, rendered as OpenCL C, built by the device's driver.

Triton finds it through the entry point ``triton.backends: intel``. Nothing is imported here: Triton, when it looks
for its backends, imports :mod:`.compiler` and :mod:`.driver` itself.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_lock = threading.Lock()
_count = 0


def compile_count() -> int:
    """How many kernels this process has built for a device; what came from a cache is not counted."""
    return _count


def count_compilation(name: str) -> None:
    """Note that the kernel ``name`` is built now.

    Where ``ANYXPU_LOG_COMPILES`` names a file, a line ``<pid> <name>`` is added to it, by every process (Inductor
    compiles in workers).
    """
    global _count
    with _lock:
        _count += 1
    log = os.environ.get("ANYXPU_LOG_COMPILES")
    if log:
        with Path(log).open("a") as f:
            f.write(f"{os.getpid()} {name}\n")
