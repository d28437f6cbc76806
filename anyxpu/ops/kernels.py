"""Makes the device kernels of operators from the OpenCL C texts beside this file, once for each set of build options.

Native code is kept on disk, so a second process compiles nothing. For copy_ and fill_ the shim asks :func:`provide`
once for each kernel and device and keeps the answer; operators written in Python ask :func:`module`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from anyxpu import ocloc
from anyxpu.cache import VARIABLE, cache_dir, check_owner, digest, load, store, write_file
from anyxpu.errors import CacheError, KernelError
from anyxpu.shim import lib
from anyxpu.triton import identity, native

# The structures that the kernels take are laid out by these; shim/device_kernels.h has the same numbers.
_SHAPE_OPTIONS = ("-DMAX_DIMS=24", "-DELEMENTS_PER_ITEM=4", "-DLOCAL_SIZE=256", "-DRUN=1024", "-DTILE=16")

_FAMILIES = {
    "copy": ("-DOP_NEGATE=0", "-DOP_CONJUGATE=0"),
    "copy_negate": ("-DOP_NEGATE=1", "-DOP_CONJUGATE=0"),
    "copy_conjugate": ("-DOP_NEGATE=0", "-DOP_CONJUGATE=1"),
    "copy_negate_conjugate": ("-DOP_NEGATE=1", "-DOP_CONJUGATE=1"),
    "fill": (),
}
_DOUBLES = ("f64", "c128")
# Texts that the compiler's kernels use too, in its prelude.
_SHARED = ("assertions.cl",)

_lock = threading.Lock()
_modules: dict[tuple[int, tuple[str, ...], str], Any] = {}
_compiled = 0


def compiled() -> int:
    """How many modules this process compiled from source, rather than finding them on disk."""
    return _compiled


def provide(device: int, family: str, source: str, destination: str, walk: str) -> Any | None:
    """The kernel that moves ``source`` elements to ``destination`` ones on ``device``.

    Args:
        device: ordinal of the device.
        family: ``copy``, ``copy_negate``, ``copy_conjugate``, ``copy_negate_conjugate`` or ``fill``.
        source, destination: element types, named as in ``types.cl`` (``f32``, ``b64`` for 64 bits as they are, ...).
        walk: ``dense``, ``strided32`` or ``strided64``; on a CPU device ``rows32`` and ``tiled32``, too.

    Returns:
        The ``Kernel``, or None where the device has no such type (double precision where there is none).

    Raises:
        anyxpu.errors.KernelError: it does not compile; the source is left on disk.
    """
    if not lib().properties(device).has_fp64 and (source in _DOUBLES or destination in _DOUBLES):
        return None
    made = module(
        device,
        f"{family}_{source}_{destination}",
        ("types.cl", "copy.cl"),
        options(device, family, source, destination),
    )
    return made.kernel(f"{'fill' if family == 'fill' else 'copy'}_{walk}")


def module(device: int, name: str, texts: tuple[str, ...], build: str) -> Any:
    """The ``Module`` of some texts for a device: from memory, from disk, or compiled.

    Args:
        device: ordinal of the device.
        name: what an error calls it.
        texts: files of the folder ``kernels``, or of :data:`_SHARED`, compiled as one.
        build: options for the OpenCL C compiler.

    Raises:
        anyxpu.errors.KernelError: it does not compile; the source is left on disk.
    """
    key = (device, texts, build)
    made = _modules.get(key)
    if made is None:
        with _lock:
            made = _modules.get(key)
            if made is None:
                made = _modules[key] = _module(device, name, _text(texts), build)
    return made


def launcher(
    device: int,
    texts: tuple[str, ...],
    build: str,
    name: str,
    types: Sequence[str],
    lanes: int,
    local_bytes: int = 0,
    work: Sequence[tuple[int, Sequence[tuple[int, int]]]] = (),
    assertions: Sequence[str] = (),
) -> Callable[..., None]:
    """A kernel of :func:`module` and how to call it.

    Args:
        device, texts, build: as for :func:`module`.
        name: of the kernel.
        types: of its arguments, as the shim's ``Launcher`` takes them, without local memory.
        lanes: work-items of a work-group.
        local_bytes: local memory for a last argument; 0 where it takes none.
        work: what a work-group does, as ``anyxpu.triton.work.terms`` has it: what is little need not be queued.
        assertions: what the host says where the kernel finds it (``assertions.cl``): it takes a record
            and a number behind the arguments of ``types``.

    Returns:
        A function ``(groups_x, groups_y, *arguments)`` that enqueues the kernel on the current stream of the device.
    """
    kernel = module(device, name, texts, build).kernel(name)
    launch = lib().Launcher(types, (lanes, 1, 1), local_bytes, work, assertions)
    queue = torch._C._xpu_getCurrentRawStream

    def call(x: int, y: int, *arguments: Any) -> None:
        launch(x, y, 1, queue(device), kernel, *arguments)

    return call


@cache
def _text(texts: tuple[str, ...]) -> bytes:
    folder = Path(__file__).with_name("kernels")
    shared = Path(__file__).parents[1] / "triton" / "prelude"
    return b"\n".join((shared if text in _SHARED else folder).joinpath(text).read_bytes() for text in texts)


def options(device: int, family: str, source: str, destination: str) -> str:
    """The build options of one module."""
    types = (f"-DFILL={source}",) if family == "fill" else (f"-DSRC={source}", f"-DDST={destination}")
    properties = lib().properties(device)
    doubles = ("-DHAS_FP64",) if properties.has_fp64 else ()
    cpu = ("-DON_CPU",) if properties.type == "cpu" else ()
    beyond = (f"-DE4M3_BEYOND={_beyond_e4m3()}u",) if destination == "f8e4m3" else ()
    return " ".join(("-cl-std=CL3.0", *_SHAPE_OPTIONS, *doubles, *cpu, *beyond, *types, *_FAMILIES[family]))


@cache
def _beyond_e4m3() -> int:
    """The bits that a number becomes which float8_e4m3fn has not: NaN, or from torch 2.13 on the largest there is."""
    return int(torch.full((1,), 1e4).to(torch.float8_e4m3fn).view(torch.uint8)[0])


def _module(device: int, name: str, text: bytes, build: str) -> Any:
    """Load a module from the disk cache, or compile it and put it there."""
    properties = lib().properties(device)
    maker = lib().driver_description() if properties.compiles_opencl_c else ocloc.version()
    if properties.type == "cpu":
        maker = f"{maker} {identity.host()}"
    key = digest(text, build, lib().driver_name(), maker, properties.name, properties.driver_version)
    path = cache_dir("kernels", "ops") / f"{key[:32]}.bin"
    check_owner(path, VARIABLE)
    code = load(path)
    if code is not None:
        try:
            return lib().load_module(device, "native", code)
        except RuntimeError:
            # Whole, but not what this driver takes after all: make it again.
            path.unlink(missing_ok=True)
    return _compile(device, name, text, build, path)


def _compile(device: int, name: str, text: bytes, build: str, path: Path) -> Any:
    global _compiled
    try:
        if lib().properties(device).compiles_opencl_c:
            module = lib().load_module(device, "opencl_c", text, build)
        else:
            target = lib().properties(device).target
            code = native.spirv(text.decode(), target, build)
            if ocloc.is_asked_for():
                code = ocloc.zebin(code, target, "")
            module = lib().load_module(device, native.module_format(code), code)
    except RuntimeError as error:
        left = path.with_suffix(".cl")
        write_file(left, b"// options: " + build.encode() + b"\n" + text)
        raise KernelError(name, str(left), str(error)) from error
    _compiled += 1
    made = module.native()
    if made:
        try:
            store(path, made)
        except CacheError as error:
            warnings.warn(f"anyxpu: every process compiles this anew: {error}", stacklevel=2)
    return module
