"""Sampling of images at a grid's points on xpu, forward and backward, by ``sampling_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, shapes that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. An image ``x`` is
``(N, C, *)``, of two or three dimensions; its grid is ``(N, *, 2 or 3)``; both are bf16, f16, f32 or f64. Coordinates
and sums of 16 bits are in f32.

``mode``: 0 bilinear, 1 nearest, 2 bicubic (of two dimensions). ``padding``: 0 zeros, 1 border, 2 reflection.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import whole, windows

_TAPS = (2, 1, 4)


def sample(dims: int, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
    """aten::grid_sampler_{2,3}d: ``(N, C, *)``, of the grid's sizes."""
    made = _read(dims, x, grid, mode, padding)
    if made is None:
        return NotImplemented
    read, points, sizes = made
    out = torch.empty((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype, device=x.device)
    served = windows.launch(
        "sampling.sample", (read.tensor, points, out), read, sizes, read.sizes, sizes, int(corners),
        times=read.channels, MODE=mode, PADDING=padding, DIMS=dims,
    )  # fmt: skip
    return out if served else NotImplemented


def sample_backward(
    dims: int, grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool, mask: tuple[bool, bool]
) -> Any:  # fmt: skip
    """aten::grid_sampler_{2,3}d_backward: the gradients of :func:`sample`'s x (None, if ``mask`` says so) and grid.

    Those of x are added up neighbour by neighbour and each in the order of the grid, so that runs are alike.
    """
    made = _read(dims, x, grid, mode, padding)
    if made is None or tuple(grad.shape) != (*x.shape[:2], *grid.shape[1:-1]) or grad.dtype != x.dtype:
        return NotImplemented
    read, points, sizes = made
    grad = grad.contiguous()
    named: dict[str, Any] = {"MODE": mode, "PADDING": padding, "DIMS": dims}
    of_x = _spread(grad, read, points, sizes, corners, named) if mask[0] else None
    if of_x is NotImplemented:
        return NotImplemented
    if mode == 1:
        return of_x, torch.zeros_like(grid, memory_format=torch.contiguous_format)
    of_grid = torch.empty_like(points)
    served = windows.launch(
        "sampling.slope", (grad, read.tensor, points, of_grid), read, sizes, read.sizes, sizes, int(corners),
        times=read.channels, **named,
    )  # fmt: skip
    return (of_x, of_grid) if served else NotImplemented


def _spread(
    grad: Tensor, read: windows.Source, points: Tensor, sizes: tuple[int, ...], corners: bool, named: dict[str, Any]
) -> Any:  # fmt: skip
    x, dims = read.tensor, read.dims
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    total = torch.zeros((*x.shape[:2], x[0, 0].numel()), dtype=kind, device=x.device)
    places = torch.empty((x.shape[0], 1, points[0].numel() // dims), dtype=torch.int64, device=x.device)
    parts = torch.empty((*x.shape[:2], places.shape[2]), dtype=kind, device=x.device)
    taps = range(_TAPS[named["MODE"]])
    for kd, kh, kw in product(taps if dims == 3 else (0,), taps, taps):
        served = windows.launch(
            "sampling.spread", (grad, points, places, parts), read, sizes, read.sizes, sizes, int(corners), kd, kh, kw,
            times=read.channels, **named,
        )  # fmt: skip
        if not served:
            return NotImplemented
        total.scatter_add_(2, places.expand(parts.shape), parts)
    return total.view(x.shape).to(x.dtype)


def _read(
    dims: int, x: Tensor, grid: Tensor, mode: int, padding: int
) -> tuple[windows.Source, Tensor, tuple[int, int, int]] | None:
    """The image, the grid as it is in memory, and the sizes of (D, H, W) of that; None where they do not fit."""
    if x.dim() != dims + 2 or grid.dim() != dims + 2 or grid.shape[-1] != dims or grid.shape[0] != x.shape[0]:
        return None
    if (grid.dtype, grid.device) != (x.dtype, x.device) or x.numel() == 0 or grid.numel() == 0:
        return None
    if not x.is_floating_point() or not whole.served(x) or not whole.served(grid):
        return None
    if mode not in range(2 if dims == 3 else 3) or padding not in range(3):
        return None
    sizes = (1,) * (3 - dims) + tuple(grid.shape[1:-1])
    if grid.numel() // dims * x.shape[1] > whole.MOST:
        return None
    source = (1,) * (3 - dims) + tuple(x.shape[2:])
    read = windows.Source(x.contiguous(), x.shape[0], x.shape[1], source, False, dims)  # type: ignore[arg-type]
    return read, grid.contiguous(), sizes  # type: ignore[return-value]


def sample2d(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
    """aten::grid_sampler_2d; see :func:`sample`."""
    return sample(2, x, grid, mode, padding, corners)


def sample3d(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
    """aten::grid_sampler_3d; see :func:`sample`."""
    return sample(3, x, grid, mode, padding, corners)


def sample2d_backward(*given: Any) -> Any:
    """aten::grid_sampler_2d_backward; see :func:`sample_backward`."""
    return sample_backward(2, *given)


def sample3d_backward(*given: Any) -> Any:
    """aten::grid_sampler_3d_backward; see :func:`sample_backward`."""
    return sample_backward(3, *given)
