"""torchvision's operators of regions on xpu: nms, roi_align, roi_pool, ps_roi_align, ps_roi_pool, and gradients.

Intel's build of torch has them for xpu; torchvision's own wheels have the CPU's and CUDA's. Regions are ``(K, 5)``: an
image's number and left, top, right, bottom, of the input's dtype. A function returns ``NotImplemented`` for what it
does not serve, which torchvision's CPU kernel then computes or refuses.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MOST_BOXES = 1 << 15  # of which pairs' bits take 128 MiB


def _compute(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _serves(values: Tensor, rois: Tensor, height: int, width: int) -> bool:
    """Values of four dimensions and regions that go with them."""
    if values.dtype not in _FLOATS or not whole.served(values) or values.dim() != 4 or min(height, width) <= 0:
        return False
    return rois.dim() == 2 and rois.shape[1] == 5 and (rois.dtype, rois.device) == (values.dtype, values.device)


def _fits(grad: Tensor, rois: Tensor, height: int, width: int, channels: int) -> bool:
    """A gradient of ``(K, channels, height, width)``."""
    return _serves(grad, rois, height, width) and tuple(grad.shape) == (rois.shape[0], channels, height, width)


def _launch(kernel: str, tensors: tuple[Tensor, ...], shape: tuple[int, ...], image: tuple[int, ...], *numbers: Any
            ) -> bool:  # fmt: skip
    """Over elements of ``shape (K, CO, PH, PW)``, of images of ``image (N, C, H, W)``."""
    if max(prod(shape), prod(image)) > whole.MOST:
        return False
    block = whole.line(tensors[0].get_device())
    operation = whole.NAMES[_compute(tensors[0].dtype)]
    return whole.launch(
        f"regions.{kernel}", tensors, -(-prod(shape) // block), prod(shape), prod(shape), *shape[1:], *image, *numbers,
        OP=operation, L=block,
    )  # fmt: skip


def _gradient(kernel: str, grad: Tensor, others: tuple[Tensor, ...], image: tuple[int, ...], *numbers: Any) -> Any:
    """A gradient of ``image (N, C, H, W)``, summed in float32 or float64 and rounded once."""
    out = torch.zeros(image, dtype=_compute(grad.dtype), device=grad.device)
    if grad.numel() and out.numel():
        tensors = (grad.contiguous(), *(t.contiguous() for t in others), out)
        shape = tuple(grad.shape)
        if not _launch(kernel, tensors, shape, image, *numbers):
            return NotImplemented
    return out.to(grad.dtype)


def _by_channels(
    kernel: str, tensors: tuple[Tensor, Tensor, Tensor], shape: tuple[int, ...], image: tuple[int, ...], grid: int,
    scale: float, aligned: bool,
) -> bool:  # fmt: skip
    """Over bins of ``shape (K, C, PH, PW)``, all channels of each, of ``image (N, C, H, W)``."""
    if max(prod(shape), prod(image)) > whole.MOST:
        return False
    (regions, channels, *pooled), (images, _, *sides) = shape, image
    device = tensors[0].get_device()
    lanes = launching.power_of_two(channels, 16, whole.line(device) // 2)
    blocks = -(-channels // lanes)
    return whole.launch(
        f"regions.{kernel}", tensors, regions * prod(pooled) * blocks, prod(shape), channels, *pooled, blocks, images,
        *sides, grid, scale, 0.5 if aligned else 0.0,
        LEAST=not aligned, OP=whole.NAMES[_compute(tensors[0].dtype)], L=lanes,
    )  # fmt: skip


def roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Any:  # fmt: skip
    """torchvision::roi_align: ``(N, C, H, W)`` to ``(K, C, pooled_height, pooled_width)``, means of samples of bins."""
    if not _serves(x, rois, pooled_height, pooled_width):
        return NotImplemented
    shape = (rois.shape[0], x.shape[1], pooled_height, pooled_width)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0 or x.numel() == 0:
        return out.zero_()
    tensors = (x.contiguous(memory_format=torch.channels_last), rois.contiguous(), out)
    served = _by_channels("channels", tensors, shape, tuple(x.shape), sampling_ratio, spatial_scale, aligned)
    return out if served else NotImplemented


def roi_align_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, batch_size: int,
    channels: int, height: int, width: int, sampling_ratio: int, aligned: bool,
) -> Any:  # fmt: skip
    """torchvision::_roi_align_backward."""
    if not _fits(grad, rois, pooled_height, pooled_width, channels):
        return NotImplemented
    image = (batch_size, channels, height, width)
    out = torch.zeros((batch_size, height, width, channels), dtype=_compute(grad.dtype), device=grad.device)
    if grad.numel() and out.numel():
        tensors = (grad.contiguous(), rois.contiguous(), out)
        if not _by_channels(
            "channels_backward", tensors, tuple(grad.shape), image, sampling_ratio, spatial_scale, aligned
        ):
            return NotImplemented
    made = torch.empty(image, dtype=grad.dtype, device=grad.device)
    return made.copy_(out.permute(0, 3, 1, 2))


def _channels(x: Tensor, rois: Tensor, height: int, width: int) -> tuple[tuple[int, ...], Tensor] | None:
    """The shape of what has a channel for each bin, and which channel each element read; None where they do not fit."""
    if not _serves(x, rois, height, width) or x.shape[1] % (height * width):
        return None
    shape = (rois.shape[0], x.shape[1] // (height * width), height, width)
    read = torch.arange(x.shape[1], dtype=torch.int32, device=x.device).view(shape[1:])
    return shape, read.expand(shape).contiguous()


def ps_roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> Any:
    """torchvision::ps_roi_align: as :func:`roi_align`, each bin of a channel of its own; and which that was, int32."""
    made = _channels(x, rois, pooled_height, pooled_width)
    if made is None:
        return NotImplemented
    out = torch.empty(made[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0 or x.numel() == 0:
        return out.zero_(), made[1]
    served = _launch(
        "align", (x.contiguous(), rois.contiguous(), out), made[0], tuple(x.shape), sampling_ratio, spatial_scale, 0.5
    )  # fmt: skip
    return (out, made[1]) if served else NotImplemented


def ps_roi_align_backward(
    grad: Tensor, rois: Tensor, channel_mapping: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
    sampling_ratio: int, batch_size: int, channels: int, height: int, width: int,
) -> Any:  # fmt: skip
    """torchvision::_ps_roi_align_backward."""
    if not _fits(grad, rois, pooled_height, pooled_width, channels // max(pooled_height * pooled_width, 1)):
        return NotImplemented
    return _gradient(
        "align_backward", grad, (rois,), (batch_size, channels, height, width), sampling_ratio, spatial_scale, 0.5
    )  # fmt: skip


def roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> Any:
    """torchvision::roi_pool: the largest of each bin, and where in its plane it is, int32, -1 of an empty bin."""
    if not _serves(x, rois, pooled_height, pooled_width):
        return NotImplemented
    shape = (rois.shape[0], x.shape[1], pooled_height, pooled_width)
    out, where = (torch.zeros(shape, dtype=dtype, device=x.device) for dtype in (x.dtype, torch.int32))
    if out.numel() == 0 or x.numel() == 0:
        return out, where
    served = _launch(
        "pool", (x.contiguous(), rois.contiguous(), out, where), shape, tuple(x.shape), spatial_scale
    )  # fmt: skip
    return (out, where) if served else NotImplemented


def roi_pool_backward(
    grad: Tensor, rois: Tensor, argmax: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
    batch_size: int, channels: int, height: int, width: int,
) -> Any:  # fmt: skip
    """torchvision::_roi_pool_backward."""
    if not _fits(grad, rois, pooled_height, pooled_width, channels) or argmax.dtype is not torch.int32:
        return NotImplemented
    if argmax.shape != grad.shape:
        return NotImplemented
    return _gradient("pool_backward", grad, (rois, argmax), (batch_size, channels, height, width))


def ps_roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> Any:
    """torchvision::ps_roi_pool: means of bins, each of a channel of its own; and which that was, int32."""
    made = _channels(x, rois, pooled_height, pooled_width)
    if made is None:
        return NotImplemented
    out = torch.empty(made[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0 or x.numel() == 0:
        return out.zero_(), made[1]
    served = _launch("mean", (x.contiguous(), rois.contiguous(), out), made[0], tuple(x.shape), spatial_scale)
    return (out, made[1]) if served else NotImplemented


def ps_roi_pool_backward(
    grad: Tensor, rois: Tensor, channel_mapping: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
    batch_size: int, channels: int, height: int, width: int,
) -> Any:  # fmt: skip
    """torchvision::_ps_roi_pool_backward."""
    if not _fits(grad, rois, pooled_height, pooled_width, channels // max(pooled_height * pooled_width, 1)):
        return NotImplemented
    return _gradient("mean_backward", grad, (rois,), (batch_size, channels, height, width), spatial_scale)


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Any:
    """torchvision::nms: the boxes of the best scores of those that overlap.

    Args:
        dets: ``(N, 4)``, left, top, right and bottom.
        scores: ``(N,)``.
        iou_threshold: of what two boxes cover, the share that both cover, beyond which the worse one goes.

    Returns:
        Indices of the boxes that are kept, best first, int64.
    """
    if dets.dim() != 2 or dets.shape[1] != 4 or scores.shape != dets.shape[:1] or scores.device != dets.device:
        return NotImplemented
    count = dets.shape[0]
    if dets.dtype not in _FLOATS or scores.dtype not in _FLOATS or not whole.served(dets) or count > _MOST_BOXES:
        return NotImplemented
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=dets.device)
    order = scores.sort(stable=True, descending=True).indices
    boxes = dets.index_select(0, order).contiguous()
    words, rows = -(-count // 64), 4 if launching.on_cpu(dets.get_device()) else 16
    bits = torch.empty(count, words, dtype=torch.int64, device=dets.device)
    kept = torch.empty(count, dtype=torch.bool, device=dets.device)
    if not whole.launch(
        "regions.overlaps", (boxes, bits), words * -(-count // rows), count * words * 64, count, words, iou_threshold,
        OP=whole.NAMES[_compute(dets.dtype)], R=rows,
    ):  # fmt: skip
        return NotImplemented
    lanes = launching.power_of_two(words, 16, _MOST_BOXES // 64)
    if not whole.launch("regions.keep", (bits, kept), 1, count * lanes, count, words, L=lanes):
        return NotImplemented
    return order.masked_select(kept)
