"""torch.profiler on xpu: the host's side is recorded, kernels are not, and that is said when they are asked for."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

_TOLD = (
    "anyxpu: ProfilerActivity.XPU records nothing: kernels of xpu do not appear in this profile, and operators have "
    "the host's times alone. Events with enable_timing=True time what runs on the device."
)


def offer_no_kernels(module: ModuleType) -> None:
    """Change ``torch.profiler.profiler``: ``supported_activities`` leaves XPU out."""
    original = module.supported_activities  # type: ignore[attr-defined]

    def supported_activities() -> set[Any]:
        return {activity for activity in original() if activity.name != "XPU"}

    supported_activities.__doc__ = original.__doc__
    for place in (module, sys.modules.get("torch.profiler")):
        if place is not None and getattr(place, "supported_activities", None) is original:
            place.__dict__["supported_activities"] = supported_activities


def say_so(module: ModuleType) -> None:
    """Change ``torch.autograd.profiler.profile``: asked to record xpu, it says at once that it does not."""
    profile: Any = module.profile  # type: ignore[attr-defined]
    original = profile.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, "use_device", None) == "xpu":
            warnings.warn(_TOLD, stacklevel=_outside(module))

    profile.__init__ = __init__


def _outside(module: ModuleType) -> int:
    """How many frames up the caller is that is not the profiler's own."""
    frame, depth = sys._getframe(2), 2
    own = (module.__name__, "torch.profiler.profiler")
    while frame.f_back is not None and frame.f_globals.get("__name__") in own:
        frame, depth = frame.f_back, depth + 1
    return depth
