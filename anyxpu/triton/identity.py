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


_PACKAGE = Path(__file__).parent.parent


def _sources(*rooms: str) -> str:
    files = [p for room in rooms for p in sorted((_PACKAGE / room).rglob("*")) if p.suffix in (".py", ".cl")]
    return digest(__version__, *(p.read_bytes() for p in files))[:16]


@cache
def compiler() -> str:
    """A digest of this package's compiler, source by source: another version's kernels are not this one's."""
    return _sources("triton")


@cache
def graphs() -> str:
    """A digest of all of this package that shapes a compiled graph: its compiler, decompositions and operators."""
    return _sources("triton", "inductor", "ops")


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
