"""The device that Triton launches on."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes the device current where it is not; the guard takes as long as a launch."""
    if device.index == torch.xpu.current_device():
        return contextlib.nullcontext()
    return torch.xpu.device(device)
