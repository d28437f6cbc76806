"""Makes the device kernels behind copy_ and fill_: one OpenCL C text, compiled once a (source, destination) pair.

The shim asks :func:`provide` once for each kernel and device and keeps the answer. Native code is kept on disk, so a
second process compiles nothing.
"""

from __future__ import annotations

import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from anyxpu.cache import cache_dir, digest, load, store, write_file
from anyxpu.errors import CacheError, KernelError
from anyxpu.shim import lib

# The structures that the kernels take are laid out by these; shim/device_kernels.h has the same two numbers.
_SHAPE_OPTIONS = ("-DMAX_DIMS=24", "-DELEMENTS_PER_ITEM=4")

_FAMILIES = {
    "copy": ("-DOP_NEGATE=0", "-DOP_CONJUGATE=0"),
    "copy_negate": ("-DOP_NEGATE=1", "-DOP_CONJUGATE=0"),
    "copy_conjugate": ("-DOP_NEGATE=0", "-DOP_CONJUGATE=1"),
    "copy_negate_conjugate": ("-DOP_NEGATE=1", "-DOP_CONJUGATE=1"),
    "fill": (),
}
_DOUBLES = ("f64", "c128")

_lock = threading.Lock()
_modules: dict[tuple[int, str, str, str], Any] = {}
_compiled = 0


def compiled() -> int:
    """How many modules this process compiled from source, rather than finding them on disk."""
    return _compiled


def provide(device: int, family: str, source: str, destination: str, walk: str) -> Any | None:
    """The kernel that moves ``source`` elements to ``destination`` ones on ``device``.

    Args:
        device: ordinal of the device.
        family: ``copy``, ``copy_negate``, ``copy_conjugate``, ``copy_negate_conjugate`` or ``fill``.
        source, destination: element types, named as in ``copy.cl`` (``f32``, ``b64`` for 64 bits as they are, ...).
        walk: ``dense``, ``strided32`` or ``strided64``.

    Returns:
        The ``Kernel``, or None where the device has no such type (double precision where there is none).

    Raises:
        anyxpu.errors.KernelError: it does not compile; the source is left on disk.
    """
    if not lib().properties(device).has_fp64 and (source in _DOUBLES or destination in _DOUBLES):
        return None
    key = (device, family, source, destination)
    with _lock:
        module = _modules.get(key)
        if module is None:
            module = _modules[key] = _module(*key)
    return module.kernel(f"{'fill' if family == 'fill' else 'copy'}_{walk}")


@cache
def _text() -> bytes:
    return Path(__file__).with_name("kernels").joinpath("copy.cl").read_bytes()


def options(device: int, family: str, source: str, destination: str) -> str:
    """The build options of one module."""
    types = (f"-DFILL={source}",) if family == "fill" else (f"-DSRC={source}", f"-DDST={destination}")
    doubles = ("-DHAS_FP64",) if lib().properties(device).has_fp64 else ()
    return " ".join(("-cl-std=CL3.0", *_SHAPE_OPTIONS, *doubles, *types, *_FAMILIES[family]))


def _module(device: int, family: str, source: str, destination: str) -> Any:
    """Load a module from the disk cache, or compile it and put it there."""
    build = options(device, family, source, destination)
    properties = lib().properties(device)
    key = digest(
        _text(), build, lib().driver_name(), lib().driver_description(), properties.name, properties.driver_version
    )
    path = cache_dir("kernels", "ops") / f"{key[:32]}.bin"
    native = load(path)
    if native is not None:
        try:
            return lib().load_module(device, "native", native)
        except RuntimeError:
            # Whole, but not what this driver takes after all: make it again.
            path.unlink(missing_ok=True)
    return _compile(device, f"{family}_{source}_{destination}", build, path)


def _compile(device: int, name: str, build: str, path: Path) -> Any:
    global _compiled
    try:
        module = lib().load_module(device, "opencl_c", _text(), build)
    except RuntimeError as error:
        left = path.with_suffix(".cl")
        write_file(left, b"// options: " + build.encode() + b"\n" + _text())
        raise KernelError(name, str(left), str(error)) from error
    _compiled += 1
    native = module.native()
    if native:
        try:
            store(path, native)
        except CacheError as error:
            warnings.warn(f"anyxpu: every process compiles this anew: {error}", stacklevel=2)
    return module
