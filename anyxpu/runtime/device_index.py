"""Which device ``torch.xpu.synchronize()`` and its siblings mean where they are given none.

torch asks "the available device type" for its current device, and that is CUDA where there is a CUDA device: beside
one, ``torch.xpu.synchronize()`` would wait for the xpu device of CUDA's number. It also takes microseconds to find out.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def of_xpu(module: ModuleType) -> None:
    """Have ``torch.xpu._utils._get_device_index`` take xpu's current device where none is named."""
    torchs = module._torch_get_device_index

    def device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> Any:
        if optional and (device is None or (isinstance(device, torch.device) and device == _ANY)):
            return torch.xpu.current_device()
        return torchs(device, optional, allow_cpu)

    module._torch_get_device_index = device_index  # type: ignore[attr-defined]


_ANY = torch.device("xpu")
