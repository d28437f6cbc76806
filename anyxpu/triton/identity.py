"""What a compiled kernel depends on besides its own source: this compiler, the device's compiler, the host's CPU."""

from __future__ import annotations

import contextlib
import importlib.metadata
from functools import cache
from pathlib import Path

from anyxpu import __version__
from anyxpu.cache import digest

# The packages whose versions decide what native code a device's compiler makes.
_RUNTIMES = ("intel-opencl-rt", "intel-sycl-rt")


@cache
def compiler() -> str:
    """A digest of this package's compiler, source by source: another version's kernels are not this one's."""
    files = sorted(Path(__file__).parent.rglob("*"))
    return digest(__version__, *(p.read_bytes() for p in files if p.suffix in (".py", ".cl")))[:16]


@cache
def host() -> str:
    """A digest of the device runtimes' versions and of the CPU's instruction sets, which native code relies on."""
    parts = []
    for name in _RUNTIMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{name} {importlib.metadata.version(name)}")
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("model name", "flags"))})
    return digest(*parts)[:16]
