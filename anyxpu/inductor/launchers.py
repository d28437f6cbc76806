"""How compiled graphs launch their kernels."""

from __future__ import annotations

from types import ModuleType

# What switches Inductor's static launchers off for all devices, by the version: the later name first.
_SWITCHES = ("use_static_triton_launcher", "use_static_cuda_launcher")


def tritons_alone(module: ModuleType) -> None:
    """Have Inductor launch by Triton: its static launcher for xpu needs a class that is not there."""
    from torch._inductor import config

    for name in _SWITCHES:
        if hasattr(config, name):
            setattr(config, name, False)
