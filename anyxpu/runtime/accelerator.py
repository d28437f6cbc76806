"""``torch.accelerator`` in a torch that was built with CUDA and finds no CUDA device.

ATen decides when it is built which accelerator ``torch.accelerator`` speaks of; a wheel made for CUDA says "cuda" also
on a machine that has none, where the accelerator that is there is ``xpu``. Its C++ cannot be told otherwise, so the
functions under ``torch.accelerator`` are wrapped: with a CUDA device they are torch's own, without one these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from anyxpu.shim import lib


def table() -> dict[str, Callable[..., Any]]:
    """Name on ``torch._C`` -> what it does where xpu is the accelerator."""
    c: Any = torch._C
    return {
        "_get_accelerator": _get_accelerator,
        "_accelerator_getAccelerator": _get_accelerator,
        "_accelerator_setDeviceIndex": c._xpu_setDevice,
        "_accelerator_getDeviceIndex": c._xpu_getDevice,
        "_accelerator_getDeviceCapability": _device_capability,
        "_accelerator_setStream": _set_stream,
        "_accelerator_getStream": _stream,
        "_accelerator_synchronizeDevice": c._xpu_synchronize,
        "_accelerator_exchangeDevice": c._xpu_exchangeDevice,
        "_accelerator_maybeExchangeDevice": c._xpu_maybeExchangeDevice,
        "_accelerator_hooks_device_count": c._xpu_getDeviceCount,
        "_accelerator_hooks_set_current_device": c._xpu_setDevice,
        "_accelerator_hooks_get_current_device": c._xpu_getDevice,
        "_accelerator_hooks_exchange_device": c._xpu_exchangeDevice,
        "_accelerator_hooks_maybe_exchange_device": c._xpu_maybeExchangeDevice,
        "_accelerator_isAllocatorInitialized": lib().started,
        "_accelerator_emptyCache": c._xpu_emptyCache,
        "_accelerator_emptyHostCache": lib().empty_host_cache,
        "_accelerator_getDeviceStats": c._xpu_memoryStats,
        "_accelerator_resetAccumulatedStats": c._xpu_resetAccumulatedMemoryStats,
        "_accelerator_resetPeakStats": c._xpu_resetPeakMemoryStats,
        "_accelerator_getMemoryInfo": c._xpu_getMemoryInfo,
    }


def install() -> None:
    """Wrap torch's functions, in a build whose accelerator is CUDA (or HIP); elsewhere do nothing."""
    if not torch.backends.cuda.is_built():
        return
    for name, ours in table().items():
        theirs = getattr(torch._C, name, None)  # another torch version may lack some
        if theirs is not None:
            setattr(torch._C, name, _chosen(theirs, ours))


def _chosen(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """``theirs`` with a CUDA device, ``ours`` without."""

    @functools.wraps(theirs, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return (theirs if torch.cuda.is_available() else ours)(*args, **kwargs)

    return call


def _get_accelerator(check: bool = False) -> torch.device:
    return torch.device("xpu")


def _device_capability(device: int) -> dict[str, Any]:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    if not torch.xpu.get_device_properties(device).has_fp64:
        dtypes -= {torch.float64, torch.complex128}
    return {"supported_dtypes": dtypes}


def _stream(device: int) -> torch.Stream:
    stream_id, device_index, device_type = torch._C._xpu_getCurrentStream(device)
    return torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def _set_stream(stream: torch.Stream) -> None:
    torch._C._xpu_setStream(stream.stream_id, stream.device_index, stream.device_type)
