"""``torch.xpu.clock_rate`` and its siblings on devices without Level Zero Sysman.

In-tree these ask Sysman (package ``pyzes``), which exists for Intel GPUs alone. On the CPU device the same names
read what the operating system knows; what it does not know raises NotImplementedError.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.xpu._utils import _get_device_index

from anyxpu.shim import lib

_SAMPLE_SECONDS = 0.1


def _cpu_clock_rate(device: int) -> float:
    """MHz, mean over the cores now."""
    rates = [
        float(line.split(":")[1])
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("cpu MHz")
    ]
    return sum(rates) / len(rates) if rates else float(lib().properties(device).clock_rate)


def _busy_and_total() -> tuple[int, int]:
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _cpu_utilization(device: int) -> float:
    """Per cent of all cores' time not idle, over a 100 ms sample."""
    busy0, total0 = _busy_and_total()
    time.sleep(_SAMPLE_SECONDS)
    busy1, total1 = _busy_and_total()
    return 100.0 * (busy1 - busy0) / max(1, total1 - total0)


def _cpu_memory_used(device: int) -> int:
    """Bytes of the device's memory in use by anybody."""
    free, total = torch.xpu.mem_get_info(device)
    return total - free


def _unknown(name: str) -> Callable[[int], NoReturn]:
    def refuse(device: int) -> NoReturn:
        raise NotImplementedError(
            f"torch.xpu.{name}: device {device} is {torch.xpu.get_device_name(device)!r}, whose driver does not report "
            f"it; only an Intel GPU through Level Zero Sysman (pip install pyzes) does."
        )

    return refuse


_ON_CPU: dict[str, Callable[[int], Any]] = {
    "clock_rate": _cpu_clock_rate,
    "utilization": _cpu_utilization,
    "device_memory_used": _cpu_memory_used,
    "memory_usage": _unknown("memory_usage"),
    "power_draw": _unknown("power_draw"),
    "temperature": _unknown("temperature"),
    "list_gpu_processes": _unknown("list_gpu_processes"),
}


def _dispatch(in_tree: Callable[..., Any], on_cpu: Callable[[int], Any]) -> Callable[..., Any]:
    @functools.wraps(in_tree)
    def query(device: Any = None) -> Any:
        index = _get_device_index(device, optional=True)
        if torch.xpu.get_device_properties(index).type == "gpu":
            return in_tree(device)
        return on_cpu(index)

    return query


def install(module: ModuleType) -> None:
    """Wrap those of torch.xpu's telemetry functions that this torch has."""
    for name, on_cpu in _ON_CPU.items():
        in_tree = getattr(torch.xpu, name, None)
        if in_tree is not None:
            setattr(torch.xpu, name, _dispatch(in_tree, on_cpu))
