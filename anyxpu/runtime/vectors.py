"""What a CPU device's registers hold and its instructions multiply, which decides between ways of computing."""

from __future__ import annotations

import functools

import torch

from anyxpu.processor import instructions

SHORT = 8


@functools.lru_cache(maxsize=64)
def has_short_vectors(device: torch.device) -> bool:
    """Whether it is a CPU whose registers hold no more than SHORT numbers of f32: AVX2, and not AVX-512."""
    if torch.xpu.get_device_properties(device).type != "cpu":
        return False
    return int(torch.xpu.get_device_capability(device)["gpu_eu_simd_width"]) <= SHORT


_MULTIPLY = {torch.bfloat16: {"avx512_bf16", "amx_bf16"}, torch.float16: {"avx512_fp16", "amx_fp16"}}
"""Instructions for products of 16-bit floats, as Linux names them: with any of them oneDNN has one as fast as f32's."""

_TILES = {torch.bfloat16: "amx_bf16", torch.float16: "amx_fp16"}
"""Those that multiply whole tiles, several times as fast."""


@functools.lru_cache(maxsize=64)
def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has instructions for products of that dtype. Of a GPU it is not asked: they have."""
    wanted = _MULTIPLY.get(dtype)
    known = wanted is None or torch.xpu.get_device_properties(device).type != "cpu"
    return known or bool(wanted & instructions())  # type: ignore[operator]


@functools.lru_cache(maxsize=64)
def has_tiles(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a CPU device multiplies tiles of that dtype (AMX). Of a GPU it is not asked: they do."""
    if torch.xpu.get_device_properties(device).type != "cpu":
        return True
    return _TILES.get(dtype) in instructions()
