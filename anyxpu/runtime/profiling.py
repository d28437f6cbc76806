"""torch.profiler on xpu: what the device does is recorded by the shim (``shim/kineto.cpp``); here it gets its name."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from anyxpu.shim import lib


def serve(module: ModuleType) -> None:
    """Change ``torch._C._autograd``: events of xpu's are told from CUDA's, and Kineto is given xpu's profiler.

    A torch that was not compiled for XPU takes every activity of a device for CUDA's. Beside CUDA devices that are
    there, the shim numbers its own from ``profiled_beside_cuda``.
    """
    from torch._C._autograd import DeviceType

    event: Any = module._KinetoEvent  # type: ignore[attr-defined]
    type_of, index_of = event.device_type, event.device_index
    beside: int = lib().profiled_beside_cuda

    def device_type(self: Any) -> Any:
        found = type_of(self)
        return DeviceType.XPU if found == DeviceType.CUDA and _is_ours(index_of(self), beside) else found

    def device_index(self: Any) -> int:
        index: int = index_of(self)
        return index - beside if index >= beside and type_of(self) == DeviceType.CUDA else index

    event.device_type, event.device_index = device_type, device_index
    lib().serve_profiler()


def pause_too(module: Any) -> None:
    """Change ``torch.autograd.profiler``: ``toggle_collection_dynamic`` pauses xpu's part of a profile too."""
    toggle = module._toggle_collection_dynamic

    def toggle_collection_dynamic(enable: bool, activities: set[Any]) -> None:
        from torch._C._profiler import ProfilerActivity

        if ProfilerActivity.XPU in activities:
            lib().pause_profiler(not enable)
        rest = set(activities) - {ProfilerActivity.XPU}
        if rest:
            toggle(enable, rest)

    module._toggle_collection_dynamic = toggle_collection_dynamic


def _is_ours(index: int, beside: int) -> bool:
    import torch

    return index >= beside or not torch.cuda.is_available()
