"""Triton's driver plugin for ``xpu``: the current device as a target, loading of binaries, launching.

Nothing is imported from torch before a device is asked for: Triton imports this module while torch may still be
importing itself.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from anyxpu import simulate
from anyxpu.triton import untimed
from anyxpu.triton.lower import c_name, launch_type, warp_size
from anyxpu.triton.native import GRF_OPTIONS


def _lib() -> Any:
    from anyxpu.shim import lib

    return lib()


def native_code(source: str, options: str, name: str, work_items: int) -> bytes:
    """Build OpenCL C for the current device; the device's own code.

    Args:
        name: the kernel in it.
        work_items: what one of its work-groups will hold.

    Raises:
        RuntimeError: the device's compiler refused it; the message holds its log.
        triton.runtime.errors.OutOfResources: the kernel needs so much memory for each work-item that the device
            does not take work-groups of that size. Inductor then leaves this configuration out.
    """
    return _built("opencl_c", source.encode(), options, name, work_items)


def finish(module: bytes, options: str, name: str, work_items: int) -> bytes:
    """Have the current device's driver make its own code of SPIR-V; as :func:`native_code` otherwise."""
    return _built("spirv", module, options, name, work_items)


def _built(*what: Any) -> bytes:
    """:func:`_native`, by a fresh process where this one was forked after its parent had used xpu: it has no driver."""
    if not _lib().in_bad_fork():
        return _native(*what)
    done = subprocess.run([sys.executable, "-c", _BUILD], input=pickle.dumps(what), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a process to compile in failed: {done.stderr.decode(errors='replace')[-2000:]}")
    made = pickle.loads(done.stdout)
    if isinstance(made, Exception):
        raise made
    return bytes(made)


# What a driver prints is not to come between the bytes of the answer.
_BUILD = """
import os, pickle, sys
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
import torch
from anyxpu.triton.driver import _native
try:
    made = _native(*pickle.load(sys.stdin.buffer))
except Exception as error:  # whatever it is, the process that asked raises it
    made = error
try:
    said = pickle.dumps(made)
    pickle.loads(said)
except Exception:  # an error that does not travel: its words do
    said = pickle.dumps(RuntimeError(str(made)))
answer.write(said)
answer.close()
"""


def _native(format: str, code: bytes, options: str, name: str, work_items: int) -> bytes:
    from triton.runtime.errors import OutOfResources

    device = _current_device()
    module = _lib().load_module(device, format, code, options)
    try:
        info = module.kernel(c_name(name)).info()
    except RuntimeError as error:
        # Intel's driver builds a kernel that asks for larger work-groups than there are, and then does not find it.
        limit = _lib().properties(device).max_work_group_size // (2 if GRF_OPTIONS["256"] in options else 1)
        if work_items <= limit:
            raise
        raise OutOfResources(work_items, limit, "work-items a work-group") from error
    if info["max_work_group_size"] < work_items:
        what = f"work-items a work-group at {info['private_mem_size']} bytes of private memory"
        raise OutOfResources(work_items, info["max_work_group_size"], what)
    made = bytes(module.native())
    _built_last.made = device, made, module
    return made


_built_last = threading.local()


def take_built(device: int, code: bytes) -> Any:
    """The shim's ``Module`` of what this thread built last, if it is this native code for that device; else None.

    Whoever launches the kernel at once need not load it again.
    """
    of, made, module = getattr(_built_last, "made", (None, None, None))
    _built_last.made = None, None, None
    return module if (of, made) == (device, code) else None


def _current_device() -> int:
    return _lib().current_device()


def flat_types(types: Sequence[Any]) -> Iterator[str]:
    """The launcher's types of a signature's values; a tuple or tensor descriptor counts as what it is made of."""
    for t in types:
        if isinstance(t, (tuple, list)):
            yield from flat_types(t)
        elif descriptor := _DESCRIPTOR.match(str(t)):
            dims = descriptor[2].count(",") + 1
            # The descriptor itself, as Triton takes it apart; then its shape and strides again, as its frontend does.
            flags = ["i32"] * _flags()
            yield from (f"*{descriptor[1]}", *["i64"] * (2 * dims), *flags, *["i32"] * dims, *["i64"] * dims)
        else:
            yield launch_type(t)


@functools.cache
def _flags() -> int:
    """How many flags a descriptor has: padding by NaN; from Triton 3.7 on, rounding to TF32 too."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return 2 if any(f.name == "round_f32_to_tf32" for f in dataclasses.fields(TensorDescriptor)) else 1


# tensordesc<element[block shape]…>, the signature of a descriptor that the host made.
_DESCRIPTOR = re.compile(r"tensordesc<([^[>]*)\[([^]]*)\]")


def _is_nested(t: Any) -> bool:
    return isinstance(t, (tuple, list)) or _DESCRIPTOR.match(str(t)) is not None


class Utils:
    """What Triton asks of a device when it loads a kernel."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        p = _lib().properties(device)
        # In kHz and bits, as Triton wants them. Torch divides by the bandwidth that they make: where the device says
        # neither, those of two channels of DDR4-3200.
        known = p.memory_clock_rate and p.memory_bus_width
        clock, width = (p.memory_clock_rate * 1000, p.memory_bus_width) if known else (1_600_000, 128)
        return {
            "max_shared_mem": p.local_mem_size,
            "multiprocessor_count": p.gpu_subslice_count,
            "sm_clock_rate": p.clock_rate,
            "mem_clock_rate": clock,
            "mem_bus_width": width,
            "max_work_group_size": p.max_work_group_size,
            "sub_group_sizes": p.sub_group_sizes,
        }

    def unload_module(self, module: Any) -> None:
        """Nothing: what was loaded goes with the last object that holds it. Triton 3.9 asks for it."""

    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """(module, kernel, registers, spills, most work-items) of a kernel's native code.

        Raises:
            KernelError: the device does not take it, for instance because its driver has changed since.
        """
        from anyxpu import ocloc
        from anyxpu.errors import KernelError
        from anyxpu.triton import native

        binary = bytes(code)
        gpu = _lib().properties(device).type != "cpu"
        try:
            module = _lib().load_module(device, native.module_format(binary) if gpu else "native", binary, "")
            kernel = module.kernel(c_name(name))
            kernel.call_it(name)
        except RuntimeError as error:
            raise KernelError(name, "", f"the device cannot load its native code: {error}") from error
        info = kernel.info()
        registers, spills = 0, info["spill_size"]
        if gpu and native.module_format(binary) == "native" and (about := ocloc.inspect(binary, c_name(name))):
            registers, spills = about.grf_count, about.spill_bytes
        return module, kernel, registers, spills, info["max_work_group_size"]


class Launcher:
    """Calls one kernel the way :class:`triton.compiler.CompiledKernel` wants it."""

    def __init__(self, src: Any, metadata: Any) -> None:
        types = list(flat_types(list(src.signature.values())))
        self.types = list(src.signature.values())
        self.nested = any(map(_is_nested, self.types))
        local = (metadata.num_warps * metadata.warp_size, 1, 1)
        self.launch: Callable[..., None] = _lib().Launcher(
            *(types, local, 0, metadata.work, metadata.assertions),
            cooperative=metadata.launch_cooperative_grid,
            makes_addresses=metadata.makes_addresses,
            reads=metadata.reads,
        )
        if simulate.active():
            record = untimed.Record(
                getattr(metadata, "n_spills", 0), getattr(metadata, "n_regs", 0), metadata.num_warps
            )
            self.launch = untimed.watched(self.launch, record)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: Any,
        kernel_metadata: Any,
        launch_metadata: Any,
        launch_enter_hook: Callable[[Any], None] | None,
        launch_exit_hook: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        if grid_x * grid_y * grid_z == 0:
            return
        if launch_enter_hook is not None:
            launch_enter_hook(launch_metadata)
        if self.nested:
            args = tuple(_flat(self.types, args))
        self.launch(grid_x, grid_y, grid_z, stream, function, *args)
        if launch_exit_hook is not None:
            launch_exit_hook(launch_metadata)


def _flat(types: Sequence[Any], args: Sequence[Any]) -> Iterator[Any]:
    """The arguments as :func:`flat_types` counts them; of a constexpr nothing is looked at, be it a tuple."""
    for t, a in zip(types, args, strict=True):
        if isinstance(t, (tuple, list)):
            yield from _flat(t, a)
        elif _is_nested(t):  # a TensorDescriptor
            flags = (a.padding == "nan", a.round_f32_to_tf32) if _flags() == 2 else (a.padding == "nan",)
            yield from (a.base, *a.shape, *a.strides, *flags, *a.shape, *a.strides)
        else:
            yield a


class XpuDriver(DriverBase):
    """The active driver where ``torch.xpu`` is available and CUDA is not.

    Triton allows one active driver. On a machine that has both, CUDA is it, unless ``TRITON_DEFAULT_BACKEND=intel``
    asks for this one; Inductor's kernels for xpu work either way.
    """

    def __init__(self) -> None:
        self.utils = Utils()
        self.launcher_cls = Launcher

    @classmethod
    def is_active(cls) -> bool:
        import torch

        from anyxpu.runtime.install import status

        # Whether there is a device is not asked: that would start it, and Inductor asks this in every compile worker.
        if not status.active:
            return False
        return os.environ.get("TRITON_DEFAULT_BACKEND") == "intel" or not torch.cuda.is_available()

    def get_current_device(self) -> int:
        return _current_device()

    def set_current_device(self, device: int) -> None:
        _lib().set_device(device)

    def get_current_stream(self, device: int) -> int:
        return _lib().current_raw_stream(device)

    def get_current_target(self) -> GPUTarget:
        return target_of(_current_device())

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("xpu", _current_device())

    def get_device_interface(self) -> Any:
        import torch

        return torch.xpu

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return untimed.do_bench if simulate.active() else do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """A buffer larger than the last cache, to be cleared between timed runs."""
        import torch

        size = max(_lib().properties(_current_device()).last_level_cache_size * 2, 32 << 20)
        return torch.empty(size // 4, dtype=torch.int32, device="xpu")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args


@functools.cache
def target_of(device: int) -> GPUTarget:
    """The target of one device.

    Its ``arch`` is the capability dictionary that Inductor uses too, and what Intel's backend adds for programs to ask:
    ``arch``, the device's short name, and ``core_clock_rate`` in MHz.
    """
    import torch

    capability = torch.xpu.get_device_capability(device)
    arch = {**capability, "arch": capability["target"], "core_clock_rate": capability["clock_rate"]}
    return GPUTarget("xpu", arch, warp_size(capability))
