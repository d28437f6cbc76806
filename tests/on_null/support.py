"""What the cases share. They need ``ANYXPU_DRIVER=null`` with two devices of 256 MiB; test_allocator.py sees to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from anyxpu.drivers.abi import Driver, HostFunction

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DEVICE_BYTES = 256 * MIB
DEVICES = (0, 1)


def allocate(nbytes: int, device: int = 0, stream: torch.xpu.Stream | None = None) -> torch.UntypedStorage:
    with torch.xpu.stream(stream) if stream is not None else contextlib.nullcontext():
        return torch.UntypedStorage(nbytes, device=f"xpu:{device}")


def stat(name: str, device: int = 0) -> int:
    return torch.xpu.memory_stats(device)[name]


@contextlib.contextmanager
def settings(text: str) -> Iterator[None]:
    """PYTORCH_ALLOC_CONF for the time being; the values set back are torch's defaults."""
    torch._C._accelerator_setAllocatorSettings(text)
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings("")


class Gate:
    """Holds everything later on a stream until it is opened."""

    def __init__(self, driver: Driver, stream: torch.xpu.Stream) -> None:
        self._opened = threading.Event()
        self._in_time: list[bool] = []
        self._function = HostFunction(lambda _: self._in_time.append(self._opened.wait(30)))
        driver.host_call(stream.sycl_queue, self._function)
        self._stream = stream

    def open(self) -> None:
        self._opened.set()
        self._stream.synchronize()
        assert self._in_time == [True], "something waited for a stream that was to wait for it"

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
