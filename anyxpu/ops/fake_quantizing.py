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


# --- scales and zero points that are learnt -----------------------------------------------------------------------


def _learnable(self: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, axis: int | None) -> Any:
    """Scale and zero point in float32, shaped to go with ``self``; None for what is not served."""
    count = 1 if axis is None else self.shape[axis] if 0 <= axis < self.dim() else -1
    if self.dtype not in _FLOATS or self.numel() == 0 or low > high or count != scale.numel():
        return None
    if zero_point.numel() != count or not scale.device == zero_point.device == self.device:
        return None
    if scale.dtype is not torch.float32 or zero_point.dtype is not torch.float32:
        return None
    shape = [1] * self.dim()
    if axis is not None:
        shape[axis] = count
    return scale.reshape(shape), zero_point.reshape(shape).clamp(low, high)


def learnable_by_tensor(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Any:
    """aten::_fake_quantize_learnable_per_tensor_affine: as :func:`by_tensor`, the zero point rounded and cut to fit."""
    made = _learnable(self, scale, zero_point, quant_min, quant_max, None)
    return NotImplemented if made is None else _quantized(self, made[0], made[1].round(), quant_min, quant_max)[0]


def learnable_by_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Any:
    """aten::_fake_quantize_learnable_per_channel_affine: the same for each index along ``axis``."""
    made = _learnable(self, scale, zero_point, quant_min, quant_max, axis)
    return NotImplemented if made is None else _quantized(self, made[0], made[1].round(), quant_min, quant_max)[0]


def _learnt(
    grad: Tensor, self: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, and of scale and zero point for each element.

    Source: Esser et al., "Learned Step Size Quantization" (2019), and Bhalgat et al., "LSQ+" (2020): within the ends
    the error of rounding in steps, beyond them how far the end is from the zero point.
    """
    by, x = grad.float(), self.float()
    inverse = 1.0 / scale
    steps = torch.round(x * inverse) + zero
    inside = (steps >= low) & (steps <= high)
    ends = steps.clamp(low, high) - zero
    by_scale = torch.where(inside, (ends * scale - x) * inverse, ends) * by * factor
    by_zero = torch.where(inside, 0.0, -by * scale * factor)
    return torch.where(inside, by, 0.0).to(self.dtype), by_scale, by_zero


def learnable_by_tensor_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Any:
    """aten::_fake_quantize_learnable_per_tensor_affine_backward: of x, and ``(1,)`` each of scale and zero point."""
    made = _learnable(self, scale, zero_point, quant_min, quant_max, None)
    if made is None or grad.shape != self.shape or grad.dtype != self.dtype:
        return NotImplemented
    # Half a step up and cut off, as the gradient's own kernels have it.
    zero = (zero_point.reshape(made[1].shape) + 0.5).clamp(quant_min, quant_max).trunc()
    by, by_scale, by_zero = _learnt(grad, self, made[0], zero, quant_min, quant_max, grad_factor)
    return by, by_scale.sum().view(1), by_zero.sum().view(1)


def learnable_by_channel_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Any:
    """aten::_fake_quantize_learnable_per_channel_affine_backward: of x, and of each channel's scale and zero point."""
    made = _learnable(self, scale, zero_point, quant_min, quant_max, axis)
    if made is None or grad.shape != self.shape or grad.dtype != self.dtype:
        return NotImplemented
    by, by_scale, by_zero = _learnt(grad, self, made[0], made[1].round(), quant_min, quant_max, grad_factor)
    others = [d for d in range(self.dim()) if d != axis]
    return by, *(t.sum(others) if others else t for t in (by_scale, by_zero))


# --- scales and zero points of a moving average -------------------------------------------------------------------

_LEAST_SCALE = 6.1e-5  # below it 1 / scale leaves float16
_NO_SCALE = 0.1  # of a range of nothing


def _parameters(least: Tensor, largest: Tensor, low: int, high: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point for numbers from ``least`` to ``largest``, 0 among them, in float32 of their shape.

    The zero point is an integer, so that 0 has no error; with ``symmetric`` it is in the middle where there are
    numbers on both sides of 0. As ``torch.ao.quantization`` chooses them.
    """
    least, largest = least.clamp(max=0), largest.clamp(min=0)
    both = (least < 0) & (largest > 0) & symmetric
    half = (high - low) // 2
    widest = torch.maximum(least / -(half + 1), largest / half) if half else largest - least
    least = torch.where(both, widest * -(half + 1), least)
    largest = torch.where(both, widest * half, largest)
    scale = (largest - least) / (high - low)
    scale = torch.where((scale == 0) | torch.isinf(1.0 / scale), _NO_SCALE, scale)
    small = scale < _LEAST_SCALE
    more = _LEAST_SCALE / scale
    on_one_side = (least == 0) | (largest == 0)
    span = _LEAST_SCALE * (high - low)
    spread_least = torch.where(on_one_side, torch.where(least == 0, 0.0, -span), least * more)
    spread_largest = torch.where(least == 0, span, torch.where(largest == 0, 0.0, largest * more))
    least, largest = torch.where(small, spread_least, least), torch.where(small, spread_largest, largest)
    scale = scale.clamp(min=_LEAST_SCALE)
    from_least, from_largest = low - least / scale, high - largest / scale
    nearer = (abs(low) - (least / scale).abs()) < (abs(high) - (largest / scale).abs())
    asymmetric = torch.where(nearer, from_least, from_largest)
    zero: Tensor = torch.where(both, (low + high) / 2.0, asymmetric)
    return scale, zero.round().clamp(low, high)


def by_moving_average(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """aten::_fused_moving_avg_obs_fq_helper: the running ends, scale and zero point of them, and x rounded by those.

    Args:
        self: any shape; with ``per_row_fake_quant`` each index along ``ch_axis`` has ends of its own.
        observer_on, fake_quant_on: one element, int64, read on the device: nothing waits.
        running_min, running_max, scale, zero_point: the first two written where the observer is on, the others where
            rounding is; ``(1,)``, or one each channel, resized where they are empty.
        averaging_const: how much of a new end is taken; all of it where the running one is infinite.

    Returns:
        What x becomes, and the mask of elements within the ends; x itself and all true while rounding is off.
    """
    switches = observer_on, fake_quant_on
    kept = running_min, running_max, scale, zero_point
    if self.dtype not in _FLOATS or self.numel() == 0 or quant_min >= quant_max:
        return NotImplemented
    if any(t.device != self.device for t in (*switches, *kept)) or any(t.numel() != 1 for t in switches):
        return NotImplemented
    if any(t.dtype is not torch.float32 for t in kept[:3]) or zero_point.dtype not in (torch.int32, torch.int64):
        return NotImplemented
    count = self.shape[ch_axis] if per_row_fake_quant and 0 <= ch_axis < self.dim() else 1
    if per_row_fake_quant:
        if not 0 <= ch_axis < self.dim() or (self.dim() == 2 and ch_axis != 0):
            return NotImplemented
        if running_min.numel() == 0:
            for t, value in zip(kept, (float("inf"), -float("inf"), 1.0, 0), strict=True):
                t.resize_(count).fill_(value)
    if any(t.numel() != count for t in kept):
        return NotImplemented
    others = [d for d in range(self.dim()) if d != ch_axis or not per_row_fake_quant]
    ends = (self.amin(others), self.amax(others)) if others else (self, self)
    on = observer_on.reshape(()) != 0
    for running, new in zip((running_min, running_max), ends, strict=True):
        now = running.reshape(-1)
        found = new.float().reshape(-1)
        found = torch.where(torch.isinf(now), found, now + averaging_const * (found - now))
        running.copy_(torch.where(on, found, now).view(running.shape))
    on = fake_quant_on.reshape(()) != 0
    by, zero = _parameters(running_min.reshape(-1), running_max.reshape(-1), quant_min, quant_max, symmetric_quant)
    for t, chosen in ((scale, by), (zero_point, zero)):
        t.copy_(torch.where(on, chosen, t.reshape(-1).float()).view(t.shape))
    shape = [1] * self.dim()
    if per_row_fake_quant:
        shape[ch_axis] = count
    made, mask = _quantized(self, by.view(shape), zero.view(shape), quant_min, quant_max)
    return torch.where(on, made, self), mask | ~on
