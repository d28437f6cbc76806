"""How wide a CPU device's registers are, which decides between ways of computing one thing."""

from __future__ import annotations

import functools

import torch

SHORT = 8


@functools.lru_cache(maxsize=64)
def has_short_vectors(device: torch.device) -> bool:
    """Whether it is a CPU whose registers hold no more than SHORT numbers of f32: AVX2, and not AVX-512."""
    if torch.xpu.get_device_properties(device).type != "cpu":
        return False
    return int(torch.xpu.get_device_capability(device)["gpu_eu_simd_width"]) <= SHORT
