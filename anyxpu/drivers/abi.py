"""``driver.h`` in ctypes: a driver called directly, without torch.

The names and orders here mirror the header; ``ABI`` is checked when a driver is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any

from anyxpu.drivers import NAMES, library_path

ABI = 7


class Status(IntEnum):
    """``ax_status``."""

    OK = 0
    NOT_READY = 1
    OUT_OF_MEMORY = 2
    BUILD_FAILED = 3
    LAUNCH_FAILED = 4
    INVALID = 5
    UNSUPPORTED = 6
    NO_DEVICE = 7
    DEVICE_LOST = 8


class Memory(IntEnum):
    """``ax_memory_kind``."""

    DEVICE = 0
    HOST = 1
    SHARED = 2


class Format(IntEnum):
    """``ax_module_format``."""

    OPENCL_C = 0
    SPIRV = 1
    NATIVE = 2


class ArgKind(IntEnum):
    """``ax_arg_kind``."""

    VALUE = 0
    POINTER = 1
    LOCAL = 2


class DriverError(RuntimeError):
    """A driver's function did not answer OK. ``status`` is its :class:`Status`."""

    def __init__(self, function: str, status: Status, message: str) -> None:
        self.status = status
        super().__init__(f"{function}: {status.name}: {message}")


class Properties(ctypes.Structure):
    """``ax_device_properties``; the header says what each field means."""

    _fields_ = (
        ("name", c_char * 256),
        ("platform_name", c_char * 256),
        ("vendor", c_char * 128),
        ("driver_version", c_char * 128),
        ("version", c_char * 128),
        ("target", c_char * 32),
        ("uuid", c_uint8 * 16),
        ("type", c_int),
        ("vendor_id", c_uint32),
        ("device_id", c_uint32),
        *((name, c_uint64) for name in ("architecture", "total_memory", "local_mem_size")),
        *((name, c_uint64) for name in ("first_level_cache_size", "last_level_cache_size")),
        *(
            (name, c_uint32)
            for name in (
                "max_compute_units",
                "gpu_eu_count",
                "gpu_subslice_count",
                "gpu_eu_count_per_subslice",
                "gpu_eu_simd_width",
                "gpu_hw_threads_per_eu",
                "max_work_group_size",
                "max_num_sub_groups",
            )
        ),
        ("sub_group_sizes", c_uint32 * 8),
        *((name, c_uint32) for name in ("memory_clock_rate", "memory_bus_width", "clock_rate")),
        *(
            (name, c_uint8)
            for name in (
                "has_fp16",
                "has_fp64",
                "has_atomic64",
                "has_bfloat16_conversions",
                "has_subgroup_matrix_multiply_accumulate",
                "has_subgroup_matrix_multiply_accumulate_tensor_float32",
                "has_subgroup_2d_block_io",
                "host_accessible",
                "is_integrated",
                "compiles_opencl_c",
            )
        ),
    )


class Arg(ctypes.Structure):
    """``ax_arg``."""

    _fields_ = (("value", c_void_p), ("size", c_uint32), ("kind", c_uint32))


class KernelInfo(ctypes.Structure):
    """``ax_kernel_info``."""

    _fields_ = tuple(
        (name, c_uint32)
        for name in (
            "max_work_group_size",
            "sub_group_size",
            "local_mem_size",
            "private_mem_size",
            "spill_size",
            "concurrent_groups",
            "called",
        )
    )


class Interval(ctypes.Structure):
    """``ax_interval``: nanoseconds of the host's CLOCK_MONOTONIC."""

    _fields_ = (("begin", c_uint64), ("end", c_uint64))


HostFunction = ctypes.CFUNCTYPE(None, c_void_p)

_handle = c_void_p
# Every function of ax_driver, in the header's order, with its arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "open": (c_int,),
    "device_count": (POINTER(c_int),),
    "device_properties": (c_int, POINTER(Properties)),
    "memory_info": (c_int, POINTER(c_uint64), POINTER(c_uint64)),
    "can_access_peer": (c_int, c_int, POINTER(c_int)),
    "allocate": (c_int, c_int, c_uint64, POINTER(c_void_p)),
    "deallocate": (c_int, c_int, c_void_p),
    "queue_create": (c_int, c_int, POINTER(_handle)),
    "queue_destroy": (_handle,),
    "queue_synchronize": (_handle,),
    "queue_query": (_handle,),
    "queue_help": (_handle,),
    "copy": (_handle, c_void_p, c_void_p, c_uint64),
    "fill": (_handle, c_void_p, c_void_p, c_uint32, c_uint64),
    "host_call": (_handle, HostFunction, c_void_p),
    "event_create": (c_int, c_int, POINTER(_handle)),
    "event_destroy": (_handle,),
    "event_record": (_handle, _handle),
    "event_wait": (_handle, _handle),
    "event_query": (_handle,),
    "event_synchronize": (_handle,),
    "event_elapsed": (_handle, _handle, POINTER(c_double)),
    "event_of_next": (_handle,),
    "event_interval": (_handle, POINTER(Interval)),
    "module_create": (c_int, c_int, c_char_p, c_uint64, c_char_p, POINTER(_handle)),
    "module_native": (_handle, c_void_p, POINTER(c_uint64)),
    "module_destroy": (_handle,),
    "kernel_create": (_handle, c_char_p, POINTER(_handle)),
    "kernel_information": (_handle, POINTER(KernelInfo)),
    "kernel_destroy": (_handle,),
    "launch": (_handle, _handle, POINTER(c_uint32), POINTER(c_uint32), POINTER(Arg), c_uint32, c_uint64),
}


class _Table(ctypes.Structure):
    _fields_ = (
        ("abi", c_uint32),
        ("name", c_char_p),
        *((name, ctypes.CFUNCTYPE(c_int, *arguments)) for name, arguments in _FUNCTIONS.items()),
        ("last_error", ctypes.CFUNCTYPE(c_char_p)),
        ("description", ctypes.CFUNCTYPE(c_char_p)),
    )


class Driver:
    """One loaded and opened driver; its methods are the header's functions, with results returned.

    Args:
        library: ``"sycl"``, ``"null"``, or the path of a built driver. A copy of a driver's library under another path
            is another instance of it, with devices of its own.
        devices: as ``open`` takes it; 0 shows what is there. Only an instance's first ``Driver`` decides.

    Every method raises :class:`DriverError` where the function does not answer OK; handles are plain ints.
    """

    def __init__(self, library: str | Path, devices: int = 0) -> None:
        self.library = ctypes.CDLL(str(library_path(library) if library in NAMES else library))
        self.library.anyxpu_driver.restype = POINTER(_Table)
        self.table = self.library.anyxpu_driver().contents
        if self.table.abi != ABI:
            raise RuntimeError(f"driver {library} speaks ABI {self.table.abi}, this Python {ABI}")
        self._call("open", devices)

    def _call(self, function: str, *arguments: Any, allow: Iterable[Status] = ()) -> Status:
        status = Status(getattr(self.table, function)(*arguments))
        if status is not Status.OK and status not in allow:
            raise DriverError(function, status, self.table.last_error().decode(errors="replace"))
        return status

    def _made(self, function: str, *arguments: Any) -> int:
        out = c_void_p()
        self._call(function, *arguments, byref(out))
        assert out.value
        return out.value

    @property
    def description(self) -> str:
        return self.table.description().decode()

    def device_count(self) -> int:
        count = c_int()
        self._call("device_count", byref(count))
        return count.value

    def properties(self, device: int) -> Properties:
        out = Properties()
        self._call("device_properties", device, byref(out))
        return out

    def memory_info(self, device: int) -> tuple[int, int]:
        """(free, total) bytes."""
        free, total = c_uint64(), c_uint64()
        self._call("memory_info", device, byref(free), byref(total))
        return free.value, total.value

    def can_access_peer(self, device: int, peer: int) -> bool:
        yes = c_int()
        self._call("can_access_peer", device, peer, byref(yes))
        return bool(yes.value)

    def allocate(self, device: int, nbytes: int, kind: Memory = Memory.DEVICE) -> int:
        return self._made("allocate", device, kind, nbytes)

    def deallocate(self, device: int, pointer: int, kind: Memory = Memory.DEVICE) -> None:
        self._call("deallocate", device, kind, pointer)

    def queue(self, device: int, priority: int = 0) -> int:
        return self._made("queue_create", device, priority)

    def queue_destroy(self, queue: int) -> None:
        self._call("queue_destroy", queue)

    def synchronize(self, queue: int) -> None:
        self._call("queue_synchronize", queue)

    def idle(self, queue: int) -> bool:
        return self._call("queue_query", queue, allow=[Status.NOT_READY]) is Status.OK

    def help(self, queue: int) -> None:
        self._call("queue_help", queue)

    def copy(self, queue: int, dst: int, src: int, nbytes: int) -> None:
        self._call("copy", queue, dst, src, nbytes)

    def fill(self, queue: int, dst: int, pattern: bytes, count: int) -> None:
        self._call("fill", queue, dst, pattern, len(pattern), count)

    def host_call(self, queue: int, function: Any, data: int = 0) -> None:
        """``function`` is a :data:`HostFunction`, which the caller keeps alive until it has run."""
        self._call("host_call", queue, function, data)

    def event(self, device: int, timing: bool = False) -> int:
        return self._made("event_create", device, int(timing))

    def event_destroy(self, event: int) -> None:
        self._call("event_destroy", event)

    def record(self, event: int, queue: int) -> None:
        self._call("event_record", event, queue)

    def wait(self, event: int, queue: int) -> None:
        self._call("event_wait", event, queue)

    def reached(self, event: int) -> bool:
        return self._call("event_query", event, allow=[Status.NOT_READY]) is Status.OK

    def event_synchronize(self, event: int) -> None:
        self._call("event_synchronize", event)

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds."""
        out = c_double()
        self._call("event_elapsed", start, end, byref(out))
        return out.value

    def event_of_next(self, event: int | None) -> None:
        """``event`` stands for the next command that the calling thread enqueues; None takes that back."""
        self._call("event_of_next", event)

    def interval(self, event: int) -> tuple[int, int]:
        """When the command ran that ``event`` stands for: nanoseconds, as ``time.monotonic_ns()`` counts them."""
        out = Interval()
        self._call("event_interval", event, byref(out))
        return out.begin, out.end

    def module(self, device: int, format: Format, data: bytes, options: str = "") -> int:
        return self._made("module_create", device, format, data, len(data), options.encode())

    def native(self, module: int) -> bytes:
        size = c_uint64()
        self._call("module_native", module, None, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call("module_native", module, buffer, byref(size))
        return buffer.raw

    def module_destroy(self, module: int) -> None:
        self._call("module_destroy", module)

    def kernel(self, module: int, name: str) -> int:
        return self._made("kernel_create", module, name.encode())

    def kernel_info(self, kernel: int) -> KernelInfo:
        out = KernelInfo()
        self._call("kernel_information", kernel, byref(out))
        return out

    def kernel_destroy(self, kernel: int) -> None:
        self._call("kernel_destroy", kernel)

    def launch(
        self, queue: int, kernel: int, groups: Sequence[int], local: Sequence[int], *args: Any, work: int = 0
    ) -> None:
        """``args``: ctypes values by value, a plain int as an address, ``bytes``' length n as ``("local", n)``."""
        array = (Arg * max(len(args), 1))()
        kept = []
        for slot, arg in zip(array, args, strict=False):
            if isinstance(arg, tuple):
                slot.size, slot.kind = arg[1], ArgKind.LOCAL
                continue
            value = c_void_p(arg) if isinstance(arg, int) else arg
            kept.append(value)
            slot.value, slot.size = ctypes.addressof(value), ctypes.sizeof(value)
            slot.kind = ArgKind.POINTER if isinstance(arg, int) else ArgKind.VALUE
        self._call("launch", queue, kernel, (c_uint32 * 3)(*groups), (c_uint32 * 3)(*local), array, len(args), work)
