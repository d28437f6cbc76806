"""Inductor's static launcher for xpu: loads a kernel's binary from a file and launches it, without Triton.

It stands where a real XPU build has ``torch._C._StaticXpuLauncher``, and is called by
``torch._inductor.runtime.static_triton_launcher.StaticallyLaunchedXpuKernel``. With it, a graph from Inductor's cache
runs without a look at its kernels' sources.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyxpu.errors import KernelError
from anyxpu.triton import kernel_cache
from anyxpu.triton.driver import Utils, _lib
from anyxpu.triton.lower import WARP_SIZE

# Inductor's letters for the types of a kernel's parameters (StaticallyLaunchedTritonKernel.type_mappings).
_TYPES = {
    "O": "*u8",
    "b": "i8",
    "h": "i16",
    "i": "i32",
    "l": "i64",
    "B": "u8",
    "H": "u16",
    "I": "u32",
    "K": "u64",
    "f": "fp32",
    "d": "fp64",
}


class StaticKernel:
    """A loaded kernel and, from its first launch on, its launcher."""

    __slots__ = ("assertions", "kernel", "launcher", "work")

    def __init__(self, kernel: Any, work: Any, assertions: Any) -> None:
        self.kernel = kernel
        self.work = work
        self.assertions = assertions
        self.launcher: Any = None


class StaticXpuLauncher:
    """The two functions of ``torch._C._StaticXpuLauncher``."""

    @staticmethod
    def _load_kernel(path: str, name: str, shared: int, device: int) -> tuple[StaticKernel, int, int]:
        """(function, registers, spills) of the kernel ``name`` in the binary at ``path``."""
        file = Path(path)
        try:
            if kernel_cache.is_damaged(file):
                raise KernelError(name, "", "its native code is not what was compiled")
            _, kernel, registers, spills, _ = Utils().load_binary(name, file.read_bytes(), shared, device)
        except KernelError as error:
            # Inductor makes a file that is missing anew.
            with contextlib.suppress(OSError):
                file.unlink()
            message = f"{error.message}. Its cache file {path} is removed; run the program again"
            raise KernelError(name, "", message) from error
        return StaticKernel(kernel, *_known_of(file)), registers, spills

    @staticmethod
    def _launch_kernel(
        function: StaticKernel,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        num_warps: int,
        shared: int,
        arg_types: str,
        args: Sequence[Any],
        stream: int,
    ) -> None:
        launcher = function.launcher
        if launcher is None:
            types = [_TYPES[t] for t in arg_types]
            lanes = function.kernel.info()["sub_group_size"] or WARP_SIZE
            launcher = function.launcher = _lib().Launcher(
                types, (num_warps * lanes, 1, 1), 0, function.work, function.assertions
            )
        launcher(grid_x, grid_y, grid_z, stream, function.kernel, *args)


def _known_of(binary: Path) -> tuple[Any, Any]:
    """The kernel's work and assertions, which the compiler wrote beside its binary; () where that is not there."""
    try:
        metadata = json.loads(binary.with_suffix(".json").read_bytes())
        return metadata["work"], metadata["assertions"]
    except (OSError, ValueError, KeyError, TypeError):
        return (), ()
