"""Inductor's static launcher for xpu: loads a kernel's binary from a file and launches it, without Triton.

It stands where a real XPU build has ``torch._C._StaticXpuLauncher``, and is called by
``torch._inductor.runtime.static_triton_launcher.StaticallyLaunchedXpuKernel``. With it, a graph from Inductor's cache
runs without a look at its kernels' sources.
"""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from anyxpu import simulate
from anyxpu.cache import check_owner
from anyxpu.errors import KernelError
from anyxpu.triton import kernel_cache, untimed
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

    __slots__ = ("kernel", "known", "launcher", "registers", "spills")

    def __init__(self, kernel: Any, registers: int, spills: int, known: dict[str, Any]) -> None:
        self.kernel = kernel
        self.registers = registers
        self.spills = spills
        self.known = known
        self.launcher: Any = None

    def launcher_of(self, num_warps: int, arg_types: str) -> Any:
        """What launches this kernel, given the grid, the queue and arguments of these types (Inductor's letters)."""
        lanes = self.kernel.info()["sub_group_size"] or WARP_SIZE
        letters = [_TYPES[t] for t in arg_types]
        made = _lib().Launcher(letters, (num_warps * lanes, 1, 1), kernel=self.kernel, **self.known)
        if simulate.active():
            return untimed.watched(made, untimed.Record(self.spills, self.registers, num_warps))
        return made


class StaticXpuLauncher:
    """The two functions of ``torch._C._StaticXpuLauncher``."""

    @staticmethod
    def _load_kernel(path: str, name: str, shared: int, device: int) -> tuple[StaticKernel, int, int]:
        """(function, registers, spills) of the kernel ``name`` in the binary at ``path``."""
        file = Path(path)
        try:
            check_owner(file, "TORCHINDUCTOR_CACHE_DIR")
            if kernel_cache.is_damaged(file):
                raise KernelError(name, "", "its native code is not what was compiled")
            _, kernel, registers, spills, _ = Utils().load_binary(name, file.read_bytes(), shared, device)
        except KernelError as error:
            # Inductor makes a file that is missing anew.
            with contextlib.suppress(OSError):
                file.unlink()
            message = f"{error.message}. Its cache file {path} is removed; run the program again"
            raise KernelError(name, "", message) from error
        return StaticKernel(kernel, registers, spills, _known_of(file)), registers, spills

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
        if function.launcher is None:
            function.launcher = function.launcher_of(num_warps, arg_types)
        function.launcher(grid_x, grid_y, grid_z, stream, *args)


def offer(module: ModuleType) -> None:
    """Put the class where ``torch._inductor.runtime.static_triton_launcher`` imports it from."""
    setattr(torch._C, "_StaticXpuLauncher", StaticXpuLauncher)  # noqa: B010 - a stub annotates it as another class


def launch_faster(module: ModuleType) -> None:
    """Have ``CachingAutotuner`` of ``torch._inductor.runtime.triton_heuristics`` make :func:`fast_launcher`'s."""
    original = module.CachingAutotuner._build_fast_launcher

    def build(self: object, launcher: object) -> object:
        try:
            made = fast_launcher(self, launcher)
        except AttributeError:  # an Inductor that keeps elsewhere what is read of the two: its own launcher serves
            made = None
        return made or original(self, launcher)

    module.CachingAutotuner._build_fast_launcher = build


def fast_launcher(autotuner: Any, launcher: Any) -> Any | None:
    """Inductor's function that computes a kernel's grid and launches it, made anew so that it calls the shim directly.

    In-tree Inductor has this for CUDA (``CachingAutotuner._build_fast_launcher``).

    Returns:
        The new function; None where the kernel is not launched from a file.
    """
    meta = autotuner.inductor_meta
    wanted = meta.get("use_fast_triton_launcher", torch._inductor.config.use_fast_triton_launcher)
    loaded: Any = getattr(launcher.__globals__.get("runner"), "__self__", None)
    function = getattr(loaded, "function", None)
    if not wanted or autotuner.device_props.type != "xpu" or not isinstance(function, StaticKernel):
        return None
    if loaded.has_global_scratch or loaded.has_profile_scratch:
        return None
    runner = function.launcher_of(loaded.num_warps, loaded.arg_tys)
    made = types.FunctionType(launcher.__code__, {**launcher.__globals__, "runner": runner}, launcher.__name__)
    made.__dict__.update(launcher.__dict__)
    return made


def _known_of(binary: Path) -> dict[str, Any]:
    """What its launcher is to know of the kernel, which the compiler wrote beside its binary."""
    try:
        metadata = json.loads(binary.with_suffix(".json").read_bytes())
        return {name: metadata[name] for name in ("work", "assertions", "makes_addresses", "reads")}
    except (OSError, ValueError, KeyError, TypeError):
        return {"makes_addresses": True}  # for all that is known
