"""Every name that ``torch.xpu`` and Inductor look up on ``torch._C``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from anyxpu import simulate
from anyxpu.runtime import memory
from anyxpu.runtime.graphs import GRAPH_BINDINGS
from anyxpu.runtime.streams import XpuEventBase, XpuStreamBase
from anyxpu.shim import lib


def _xpu_init() -> None:
    """Start the driver and fill in what torch.xpu only has from then on."""
    shim = lib()
    shim.start()
    if device := simulate.active():
        warnings.warn(
            f"anyxpu: xpu is a simulated {device} ({shim.properties(0).name}): Intel's driver takes every kernel and "
            "executes none, so what kernels would compute is unspecified and times mean nothing",
            stacklevel=3,
        )
    torch.xpu.default_generators = tuple(shim.default_generator(i) for i in range(shim.device_count()))
    torch.xpu.__dict__["_get_device_properties"] = shim.properties


def _xpu_set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    lib().set_stream(stream_id, device_index)


def _xpu_arch_flags() -> str:
    """Nothing is compiled ahead of time: kernels are made for the device that is there."""
    return ""


def table() -> dict[str, Callable[..., Any] | type]:
    """Name on ``torch._C`` → what stands there."""
    shim = lib()
    return {
        "_xpu_init": _xpu_init,
        "_xpu_isInBadFork": shim.in_bad_fork,
        "_xpu_getDeviceCount": shim.device_count,
        "_xpu_getDevice": shim.current_device,
        "_xpu_setDevice": shim.set_device,
        "_xpu_exchangeDevice": shim.exchange_device,
        "_xpu_maybeExchangeDevice": shim.exchange_device,
        "_xpu_canDeviceAccessPeer": shim.can_access_peer,
        "_xpu_synchronize": shim.synchronize,
        "_xpu_sleep": shim.sleep,
        "_xpu_getArchFlags": _xpu_arch_flags,
        "_xpu_getCurrentStream": shim.current_stream,
        "_xpu_getCurrentRawStream": shim.current_raw_stream,
        "_xpu_getStreamFromExternal": shim.external_stream,
        "_xpu_setStream": _xpu_set_stream,
        "_XpuDeviceProperties": shim._XpuDeviceProperties,
        "_XpuStreamBase": XpuStreamBase,
        "_XpuEventBase": XpuEventBase,
        **memory.bindings(),
        **GRAPH_BINDINGS,
    }
