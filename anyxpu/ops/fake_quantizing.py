"""Rounding to quantized numbers and back in one go, as quantization-aware training does it.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. All is computed in float32 and rounded to the result's type once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _quantized(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """What x becomes, and where it was within the ends."""
    steps = torch.round(x.float() * (1.0 / scale)) + zero
    mask = (steps >= low) & (steps <= high)
    return ((steps.clamp(low, high) - zero) * scale).to(x.dtype), mask


def by_tensor(self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """aten::fake_quantize_per_tensor_affine_cachemask: ``(clamp(round(x / scale) + zero) - zero) * scale``, a mask."""
    if self.dtype not in _FLOATS or not quant_min <= zero_point <= quant_max or self.numel() == 0:
        return NotImplemented
    # As in float32, which the scale has there.
    step = torch.full((), scale, dtype=torch.float32, device=self.device)
    return _quantized(self, step, zero_point, quant_min, quant_max)


def by_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> Any:
    """The same with scale and zero point in tensors of one element, where ``fake_quant_enabled`` says so."""
    parts = (scale, zero_point, fake_quant_enabled)
    if self.dtype not in _FLOATS or self.numel() == 0 or quant_min > quant_max:
        return NotImplemented
    if any(t.numel() != 1 or t.device != self.device for t in parts) or scale.dtype is not torch.float32:
        return NotImplemented
    one, zero, on = (t.reshape(()) for t in parts)
    made, mask = _quantized(self, one, zero.float(), quant_min, quant_max)
    on = on != 0
    return torch.where(on, made, self), mask | ~on


def by_channel(self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Any:
    """aten::fake_quantize_per_channel_affine_cachemask: the same with a scale for each index along ``axis``."""
    if self.dtype not in _FLOATS or self.numel() == 0 or not 0 <= axis < self.dim() or quant_min > quant_max:
        return NotImplemented
    if scale.dtype is not torch.float32 or zero_point.dtype not in (torch.int32, torch.float32, torch.float16):
        return NotImplemented
    if (
        not scale.shape == zero_point.shape == (self.shape[axis],)
        or not scale.device == zero_point.device == self.device
    ):
        return NotImplemented
    if bool(((zero_point < quant_min) | (zero_point > quant_max)).any()):
        return NotImplemented  # for torch's own words
    shape = [1] * self.dim()
    shape[axis] = -1
    return _quantized(self, scale.view(shape), zero_point.float().view(shape), quant_min, quant_max)
