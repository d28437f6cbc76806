"""What a compiled kernel depends on besides its own source: this compiler, the device's compiler, the host's CPU."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
from functools import cache
from pathlib import Path

from anyxpu import __version__, processor, simulate
from anyxpu.cache import digest

# The packages whose versions decide what native code a device's compiler makes.
_RUNTIMES = ("intel-opencl-rt", "intel-sycl-rt")


# What the CPU runtime's variables ask of its compiler. Sizes of memory and numbers of threads are no code's, and the
# driver sets some: for its process's children, which otherwise had other kernels than it.
_SHAPES_CODE = re.compile(r"CL_CONFIG_(?!CPU_FORCE_|CPU_TBB_)")


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
    """A digest of all of this package that shapes a compiled graph: its compiler, decompositions and operators.

    The table of changes to Inductor is one of it, as a graph made without one of them may be wrong.
    """
    return digest(_sources("triton", "inductor", "ops"), (_PACKAGE / "patches.py").read_bytes())[:16]


@cache
def host() -> str:
    """A digest of the device runtimes' versions, of the CPU's instruction sets, which native code relies on, and of
    what the CPU runtime's own variables ask for: ``CL_CONFIG_CPU_TARGET_ARCH`` names other instructions than the CPU's.
    """
    parts = []
    for name in _RUNTIMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{name} {importlib.metadata.version(name)}")
    parts += sorted(f"{name}={value}" for name, value in os.environ.items() if _SHAPES_CODE.match(name))
    parts += [processor.model(), *sorted(processor.instructions())]
    parts += ["tiles"] if processor.tiles() else []  # a process that may not use them must not find code that does
    return digest(*parts)[:16]


def devices() -> str:
    """A digest of all that a compiled graph may hold of this process's devices; starts the driver.

    Generated code holds a device's whole capability dictionary. What a simulated device chose is no choice for a real
    one, though both may tell the same of themselves.
    """
    import torch

    # The child of a fork cannot ask, and can compile for the CPU all the same.
    if torch.xpu._is_in_bad_fork() or not torch.xpu.is_available():
        return ""
    return _digest_of(torch.xpu.device_count())


@cache
def _digest_of(count: int) -> str:
    import torch

    seen = [repr(sorted(torch.xpu.get_device_capability(index).items())) for index in range(count)]
    # One device shown several times is one device.
    parts = dict.fromkeys(seen) if len(set(seen)) == 1 else seen
    return digest(simulate.active() or "", *parts)[:16]
