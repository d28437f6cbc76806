"""torchvision's deform_conv2d on xpu and its gradient: columns by a kernel of ours, products by the library.

A function returns ``NotImplemented`` for what it does not serve, which torchvision's CPU kernel then computes or
refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import whole

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MOST_COLUMNS = 1 << 26
"""Elements of columns at a time; beyond, as many images as have that many."""


@dataclass(frozen=True)
class _Call:
    """Operands that fit each other, and the numbers that the kernels take."""

    x: Tensor
    weight: Tensor
    offset: Tensor
    mask: Tensor
    groups: int
    masked: bool
    steps: tuple[int, ...]
    parts: int  # of the offsets' groups

    @property
    def windows(self) -> tuple[int, int]:
        return self.offset.shape[2], self.offset.shape[3]

    @property
    def taps(self) -> int:
        return self.weight.shape[2] * self.weight.shape[3]

    def numbers(self, x: Tensor) -> tuple[int, ...]:
        """What a kernel takes behind the number of its elements."""
        return (*x.shape, self.weight.shape[3], self.taps, *self.windows, self.parts, *self.steps)

    def constants(self) -> dict[str, Any]:
        operation = "fp64" if self.x.dtype is torch.float64 else "fp32"
        return {"MASKED": self.masked, "OP": operation, "L": whole.line(self.x.get_device())}

    def slices(self) -> Iterator[slice]:
        """Images whose columns are made at a time."""
        each = self.x.shape[1] * self.taps * self.windows[0] * self.windows[1]
        images = max(_MOST_COLUMNS // max(each, 1), 1)
        for first in range(0, self.x.shape[0], images):
            yield slice(first, first + images)

    def run(self, kernel: str, tensors: tuple[Tensor, ...], x: Tensor, count: int) -> bool:
        constants = self.constants()
        groups = -(-count // constants["L"])
        return count <= whole.MOST and whole.launch(
            f"deformable.{kernel}", tensors, groups, count, count, *self.numbers(x), **constants
        )

    def columns(self, part: slice) -> Tensor | None:
        """``(groups, C / groups * KH * KW, images * OH * OW)``."""
        x, offset, mask = self.x[part], self.offset[part], self.mask[part]
        made = x.new_empty(x.shape[1] * self.taps, x.shape[0] * offset.shape[2] * offset.shape[3])
        if not self.run("columns", (x, offset, mask, made), x, made.numel()):
            return None
        return made.view(self.groups, -1, made.shape[1])


def _read(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], groups: int, parts: int, masked: bool,
) -> _Call | None:  # fmt: skip
    """The call; None for one that is not served."""
    if x.dtype not in _FLOATS or not whole.served(x) or any(t.dim() != 4 for t in (x, weight, offset)):
        return None
    others = (weight, offset, bias, *((mask,) if masked else ()))
    if any((t.dtype, t.device) != (x.dtype, x.device) for t in others) or bias.shape != weight.shape[:1]:
        return None
    (n, c, h, w), (kh, kw), windows = x.shape, weight.shape[2:], offset.shape[2:]
    if min(groups, parts, *stride, *dilation, kh, kw) <= 0 or min(padding) < 0 or 0 in (*x.shape, *weight.shape):
        return None
    if c % parts or c != groups * weight.shape[1] or weight.shape[0] % groups:
        return None
    sizes = zip((h, w), (kh, kw), stride, padding, dilation, strict=True)
    made = tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)
    if tuple(windows) != made or min(made) <= 0 or offset.shape[:2] != (n, 2 * parts * kh * kw):
        return None
    if masked and mask.shape != (n, parts * kh * kw, *made):
        return None
    steps = (*stride, *padding, *dilation)
    kept = mask.contiguous() if masked else offset.contiguous()  # of the latter nothing is read
    return _Call(x.contiguous(), weight.contiguous(), offset.contiguous(), kept, groups, masked, steps, parts)


def deform_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Any:  # fmt: skip
    """torchvision::deform_conv2d: ``(N, C, H, W)`` to ``(N, OC, OH, OW)``.

    Args:
        weight: ``(OC, C / groups, KH, KW)``.
        offset: ``(N, 2 * offset_groups * KH * KW, OH, OW)``, in pixels.
        mask: ``(N, offset_groups * KH * KW, OH, OW)``; read where ``use_mask``.
        bias: ``(OC,)``.
    """
    call = _read(x, weight, offset, mask, bias, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups,
                 offset_groups, use_mask)  # fmt: skip
    if call is None:
        return NotImplemented
    height, width = call.windows
    out = x.new_empty(x.shape[0], weight.shape[0], height, width)
    matrix = call.weight.view(groups, weight.shape[0] // groups, -1)
    for part in call.slices():
        columns = call.columns(part)
        if columns is None:
            return NotImplemented
        made = torch.bmm(matrix, columns).view(weight.shape[0], -1, height, width)
        torch.add(made.transpose(0, 1), bias.view(-1, 1, 1), out=out[part])
    return out


def deform_conv2d_backward(
    grad: Tensor, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int,
    pad_h: int, pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Any:  # fmt: skip
    """torchvision::_deform_conv2d_backward: gradients to the image, weight, offset, mask and bias."""
    call = _read(x, weight, offset, mask, bias, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups,
                 offset_groups, use_mask)  # fmt: skip
    if call is None or grad.shape != (x.shape[0], weight.shape[0], *call.windows) or grad.dtype is not x.dtype:
        return NotImplemented
    summed = torch.float64 if x.dtype is torch.float64 else torch.float32
    to_x = torch.zeros(x.shape, dtype=summed, device=x.device)
    to_weight = torch.zeros((groups, weight.shape[0] // groups, call.weight[0].numel()), dtype=summed, device=x.device)
    to_offset, to_mask = torch.empty_like(call.offset), torch.empty_like(call.mask)
    transposed = call.weight.view(*to_weight.shape).transpose(1, 2)
    for part in call.slices():
        columns = call.columns(part)
        if columns is None:
            return NotImplemented
        rows = grad[part].transpose(0, 1).reshape(groups, to_weight.shape[1], -1)
        to_weight += torch.bmm(rows, columns.transpose(1, 2))
        to_columns = torch.bmm(transposed, rows)
        image, moved, factors = call.x[part], call.offset[part], call.mask[part]
        count = offset_groups * call.taps * rows.shape[2]
        if not call.run("spread", (to_columns, moved, factors, to_x[part]), image, to_columns.numel()):
            return NotImplemented
        operands = (to_columns, image, moved, factors, to_offset[part], to_mask[part])
        if not call.run("moves", operands, image, count):
            return NotImplemented
    return (
        to_x.to(x.dtype), to_weight.view(weight.shape).to(x.dtype), to_offset,
        to_mask if use_mask else torch.zeros_like(mask), torch.ones_like(bias) * grad.sum((0, 2, 3)),
    )  # fmt: skip
