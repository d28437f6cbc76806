"""The bases of ``torch.xpu.Stream`` and ``torch.xpu.Event``: thin classes over the device-generic ones."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from anyxpu.shim import lib


class XpuStreamBase(torch.Stream):
    """A stream of an xpu device: a new one from the pool, or the one its three ids name."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int = 0,
    ) -> Any:
        if stream_ptr:
            stream_id, device_index, device_type = lib().external_stream(stream_ptr, -1)
        if stream_id is None or device_index is None or device_type is None:
            stream_id, device_index, device_type = lib().new_stream(-1, priority)
        return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)

    @property
    def sycl_queue(self) -> int:
        """Address of the stream's ``sycl::queue``."""
        return lib().stream_queue(self.stream_id, self.device_index)

    @property
    def priority(self) -> int:
        """-1 high, 0 normal, 1 low."""
        return lib().stream_priority(self.stream_id, self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(lowest, highest) priority."""
        return (1, -1)


class XpuEventBase(torch.Event):
    """An event of an xpu device; recorded lazily on the device of its first stream."""

    def __new__(cls, enable_timing: bool = False, interprocess: bool = False) -> Any:
        if interprocess:
            cls._not_shared()
        return super().__new__(cls, torch.device("xpu"), enable_timing=enable_timing)

    @staticmethod
    def _not_shared() -> NoReturn:
        raise NotImplementedError(
            "anyxpu: an xpu event is not shared between processes; synchronize it before the other process goes on"
        )

    def ipc_handle(self) -> bytes:
        self._not_shared()

    @classmethod
    def from_ipc_handle(cls, device: Any, ipc_handle: bytes) -> Any:
        cls._not_shared()

    @property
    def sycl_event(self) -> int:
        """Address of the ``sycl::event``; 0 until the event is recorded."""
        return self.event_id

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``; both recorded with timing and done.

        torch.Event's own method takes no subclass of itself, hence this one.
        """
        if not isinstance(end_event, torch.Event):
            raise TypeError(f"elapsed_time expects an event, got {type(end_event).__name__}")
        return lib().event_elapsed(self.event_id, end_event.event_id)
