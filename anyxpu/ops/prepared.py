"""Kernels of Triton for eager operators, compiled once for each device and kept on disk with all that a launch needs.

A process that finds its kernels on disk imports no part of Triton.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from anyxpu.cache import VARIABLE, cache_dir, check_owner, digest, load, store
from anyxpu.errors import CacheError, KernelError
from anyxpu.shim import lib
from anyxpu.triton import identity, native

_compiled = 0


def compiled() -> int:
    """How many kernels this process compiled, rather than finding them on disk."""
    return _compiled


@dataclass(frozen=True)
class Prepared:
    """A loaded kernel.

    Attributes:
        kernel: the shim's ``Kernel``.
        lanes: work-items of its work-groups.
        operations: what one work-group does where each of its loops goes round once, as the driver counts them.
        assertions: what the host says of conditions that the kernel checks (``tl.device_assert``).
    """

    kernel: Any
    lanes: int
    operations: int
    assertions: tuple[str, ...] = ()


Source = Callable[[], Any]
"""Makes the ``triton.compiler.ASTSource`` of a kernel; called where it has to be compiled alone."""


def prepare(device: int, name: str, source: Source, warps: int, addresses: bool = False) -> Prepared:
    """The kernel of that name for a device: from disk, or compiled and put there.

    Args:
        device: ordinal.
        name: says all that distinguishes this kernel from others of the same sources (:func:`_sources`).
        source: what to compile.
        warps: sub-groups of a work-group; a CPU device takes one.
        addresses: whoever launches it says itself what it writes beyond its arguments (``kept_copies.h``).

    Raises:
        KernelError: it does not compile; its source is left on disk.
    """
    path = _path(device, name, warps)
    return found(device, name, warps) or _load(device, *_make(device, path, source, warps, addresses))


def found(device: int, name: str, warps: int) -> Prepared | None:
    """The kernel, if it is on disk."""
    path = _path(device, name, warps)
    check_owner(path, VARIABLE)
    payload = load(path)
    if payload is None:
        return None
    try:
        return _load(device, payload)
    except KernelError:  # whole, but not what this driver takes after all: made again
        path.unlink(missing_ok=True)
        return None


def _path(device: int, name: str, warps: int) -> Any:
    key = digest(name, str(warps), *for_device(device))
    return cache_dir("kernels", "eager") / f"{key[:32]}.bin"


def for_device(device: int) -> tuple[str, str]:
    """What changes any kernel's bits besides its name: what it is made of and by, and for which device."""
    return _sources(), _device(device)


@cache
def _device(device: int) -> str:
    properties = lib().properties(device)
    return "|".join((lib().driver_name(), properties.name, properties.target, properties.driver_version))


@cache
def _sources() -> str:
    """What changes a kernel's bits besides its name and its device."""
    return f"{identity.graphs()}-{identity.host()}-{_triton()}"


@cache
def _triton() -> str:
    import importlib.metadata

    return importlib.metadata.version("triton")


def _make(device: int, path: Any, source: Source, warps: int, addresses: bool) -> tuple[bytes, Any]:
    """What is kept on disk, and the shim's ``Module`` where it was built just now."""
    global _compiled
    import triton

    from anyxpu.triton.compiler import BINARY_EXT
    from anyxpu.triton.driver import take_built, target_of
    from anyxpu.triton.lower import c_name

    made = triton.compile(source(), target=target_of(device), options={"num_warps": warps, "debug": True})
    about = made.metadata
    if about.makes_addresses and not addresses:
        raise KernelError(about.name, "", "an eager operator's kernel makes no addresses of its own")
    # How often loops go round is the caller's to know.
    head = {"name": c_name(about.name), "lanes": about.num_warps * about.warp_size, "operations": about.work_once}
    head["assertions"], head["reads"] = list(about.assertions), list(about.reads)
    code = bytes(made.asm[BINARY_EXT])
    payload = json.dumps(head).encode() + b"\n" + code
    _compiled += 1
    try:
        store(path, payload)
    except CacheError as error:
        warnings.warn(f"anyxpu: every process compiles this anew: {error}", stacklevel=2)
    return payload, take_built(device, code)


def _load(device: int, payload: bytes, module: Any = None) -> Prepared:
    head, _, code = payload.partition(b"\n")
    about = json.loads(head)
    made_here = lib().properties(device).type == "cpu"
    try:
        module = module or lib().load_module(device, "native" if made_here else native.module_format(code), code)
        kernel = module.kernel(about["name"])
        kernel.only_reads(about["reads"])
        kernel.call_it(about["name"].removeprefix("kernel_"))  # c_name's, whose module is slow to import
    except RuntimeError as error:
        raise KernelError(about["name"], "", f"the device cannot load its native code: {error}") from error
    most = kernel.info()["max_work_group_size"]
    if about["lanes"] > most:
        raise KernelError(about["name"], "", f"it needs {about['lanes']} work-items a work-group; {most} are possible")
    return Prepared(kernel, about["lanes"], about["operations"], tuple(about["assertions"]))
