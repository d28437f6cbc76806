"""oneDNN's engine of each xpu device and its stream over each queue.

On a GPU oneDNN enqueues on the very queue that torch's current stream stands for; on a CPU what it would give to SYCL
is put into that queue by our driver. Either way its work has its place in that stream's order, and no waiting is needed
on either side.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import POINTER, c_int, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from anyxpu import build
from anyxpu.errors import AnyxpuError
from anyxpu.onednn import capi
from anyxpu.shim import lib


@dataclass(frozen=True)
class Engine:
    """A device as oneDNN knows it.

    Attributes:
        device: xpu's ordinal.
        handle: the dnnl_engine_t, as an integer.
    """

    device: int
    handle: int


class Stream(NamedTuple):
    """A queue as oneDNN knows it.

    Attributes:
        handle: the dnnl_stream_t.
        queue: the driver's ax_queue.
        taken: whether the former is over a queue beside the latter, which gets its host tasks.
    """

    handle: int
    queue: int
    taken: bool


class _Interop:
    """What the sycl driver tells of its queues (drivers/sycl/interop.cpp)."""

    def __init__(self) -> None:
        # The shim has loaded this very file; this only finds it again.
        library = ctypes.PyDLL(str(build.driver(capi.SYCL_DRIVER).path()))
        self.identity: Callable[[int], int] = library.anyxpu_sycl_queue_identity
        self.identity.argtypes, self.identity.restype = (c_void_p,), c_uint64
        self.parts = library.anyxpu_sycl_queue_parts
        self.parts.argtypes, self.parts.restype = (c_void_p, POINTER(c_void_p), POINTER(c_void_p)), c_int
        self.beside = library.anyxpu_sycl_queue_beside
        self.beside.argtypes, self.beside.restype = (c_void_p,), c_void_p
        self.release = library.anyxpu_sycl_release_parts
        self.release.argtypes, self.release.restype = (c_void_p, c_void_p), None


_interop = cache(_Interop)
_lock = threading.Lock()
_engines: dict[int, Engine] = {}
# Keyed by device and the queue's identity, not its address: an external queue's address may be used again.
_streams: dict[tuple[int, int], int] = {}
# Of a CPU device: one over a queue beside all of its queues.
_streams_beside: dict[int, int] = {}


@cache
def available() -> bool:
    """Whether the running driver's queues are SYCL queues, so that oneDNN can use them. Starts the driver."""
    return lib().driver_name() == capi.SYCL_DRIVER


def engine(device: int) -> Engine:
    """The engine of a device, made at the first call.

    Raises:
        AnyxpuError: the driver has no SYCL queues (see :func:`available`), or oneDNN cannot use the device.
    """
    found = _engines.get(device)
    if found is not None:
        return found
    if not available():
        raise AnyxpuError(
            f"oneDNN needs SYCL queues; the driver {lib().driver_name()!r} has none. Set ANYXPU_DRIVER=sycl"
        )
    with _lock:
        if device not in _engines:
            made = Engine(device, _make_engine(device))
            _put_beside(made)
            _engines[device] = made
    return _engines[device]


def stream(device: int) -> Stream:
    """The device's current stream of the calling thread."""
    queue = lib().current_raw_stream(device)
    beside = _streams_beside.get(device)
    if beside is not None:
        return Stream(beside, queue, True)
    key = (device, _interop().identity(queue))
    found = _streams.get(key)
    if found is None:
        with _lock:
            if key not in _streams:
                # oneDNN copies the queue, which keeps it (and so its identity) alive as long as this entry.
                _streams[key] = _make_stream(_engines[device], queue)
            found = _streams[key]
    return Stream(found, queue, False)


def _make_stream(engine: Engine, queue: int) -> int:
    what = f"a stream of xpu:{engine.device}"
    return capi.create("sycl_interop_stream_create", engine.handle, queue, what=what)


def _put_beside(engine: Engine) -> None:
    """Have a CPU device's primitives taken, where they can be."""
    is_cpu = torch.xpu.get_device_properties(engine.device).type == "cpu"
    if not is_cpu or not capi.library().takes_host_tasks:
        return
    queue = _interop().beside(lib().current_raw_stream(engine.device))
    if queue is not None:
        _streams_beside[engine.device] = _make_stream(engine, queue)


def engine_handle(device: int) -> int:
    """The dnnl_engine_t of a device whose engine exists; it does not take the lock."""
    return _engines[device].handle


def _make_engine(device: int) -> int:
    what = f"an engine on xpu:{device}"
    sycl_device, context = c_void_p(), c_void_p()
    queue = lib().current_raw_stream(device)
    if _interop().parts(queue, ctypes.byref(sycl_device), ctypes.byref(context)):
        raise AnyxpuError(f"the sycl driver did not answer with the device and context of xpu:{device}")
    try:
        return capi.create("sycl_interop_engine_create", sycl_device, context, what=what)  # copies both
    finally:
        _interop().release(sycl_device, context)
