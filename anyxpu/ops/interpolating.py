"""Resizing by cubic convolution and with antialiasing on xpu, by the kernels of ``interpolating_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, sizes that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. ``x`` is ``(N, C, H, W)``, bf16,
f16, f32 or f64; results have its memory format. ``scales`` are of the result to the source, and None where the sizes
say them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import resizing, windows

_REACHES = (1, 2, 3)  # of filters, by kind: the triangle, Keys', and Lanczos'


def cubic2d(
    x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:  # fmt: skip
    """aten::upsample_bicubic2d: each element from its 4 x 4 neighbours, by R. Keys' cubic convolution (a = -0.75)."""
    read = resizing._read(2, x, output_size, False)
    if read is None:
        return NotImplemented
    sizes = (1, *output_size)
    steps = _steps(read.sizes, sizes, align_corners, scales_h, scales_w)
    out = read.empty(sizes)
    served = windows.launch(
        "interpolating.cubic", (read.tensor, out), read, sizes, read.sizes, sizes, *steps, times=16,
        CORNERS=align_corners,
    )  # fmt: skip
    return out if served else NotImplemented


def cubic2d_backward(
    grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
    scales_h: float | None = None, scales_w: float | None = None,
) -> Any:  # fmt: skip
    """aten::upsample_bicubic2d_backward: the gradient of :func:`cubic2d`'s x, contiguous as on the CPU."""
    made = resizing._of_gradient(2, grad.contiguous(), output_size, input_size)
    if made is None:
        return NotImplemented
    read, sizes, sources = made
    steps = _steps(sources, sizes, align_corners, scales_h, scales_w)
    ends = zip(steps, sizes[1:], sources[1:], strict=True)
    if not align_corners and any(step * (o - 0.5) > n + 0.5 for step, o, n in ends):
        return NotImplemented  # scales that are not those of the sizes: no end to what the last element is in
    numbers = [(1, 1.0)]
    numbers += [(min(o, ceil(4 / step) + 5) if step else o, step) for step, o in zip(steps, sizes[1:], strict=True)]
    alone = [(1, 0.0 if align_corners else 1.0)]
    out = windows.each_dimension(
        "interpolating.cubic_backward", read, sources, sizes, numbers, alone, CORNERS=align_corners
    )
    return NotImplemented if out is None else out


def _steps(
    source: Sequence[int], result: Sequence[int], corners: bool, scales_h: float | None, scales_w: float | None
) -> list[float]:  # fmt: skip
    step = resizing._corner_step if corners else resizing._step
    return resizing._steps(2, source, result, (scales_h, scales_w), step)[1:]


class _Filter:
    """A filter along one dimension.

    Attributes:
        kind: 0 a triangle, 1 Keys', 2 Lanczos'.
        step: elements of the source for one of the result.
        numbers: what kernels take: step, how far it reaches, in elements of the source, and elements of it for one.
    """

    def __init__(self, kind: int, step: float) -> None:
        self.kind, self.step = kind, step
        wide = max(step, 1.0)
        self.reach = _REACHES[kind] * wide
        self.numbers = (step, self.reach, 1 / wide)

    def forward(self, read: windows.Source, size: int, along_w: bool, dtype: torch.dtype, normal: bool = True) -> Any:
        """The source resized along one dimension; None where it is not served."""
        sizes = (1, read.sizes[1], size) if along_w else (1, size, read.sizes[2])
        out = read.empty(sizes, dtype)
        most = 2 * ceil(self.reach) + 1
        served = windows.launch(
            "interpolating.filtered", (read.tensor, out), read, sizes, read.sizes, sizes, most, *self.numbers,
            times=most, ALONG_W=along_w, KIND=self.kind, NORMAL=normal,
        )  # fmt: skip
        return read._replace(tensor=out, sizes=sizes) if served else None

    def backward(self, read: windows.Source, size: int, along_w: bool, dtype: torch.dtype) -> Any:
        """The gradient of the source of such a size; None where it is not served."""
        wide = torch.float64 if read.tensor.dtype is torch.float64 else torch.float32
        ones = torch.ones((1, 1, 1, size), dtype=wide, device=read.tensor.device)
        count = read.sizes[2] if along_w else read.sizes[1]
        sums = self.forward(windows.Source(ones, 1, 1, (1, 1, size), False, 2), count, True, wide, normal=False)
        if sums is None:
            return None
        sizes = (1, read.sizes[1], size) if along_w else (1, size, read.sizes[2])
        out = read.empty(sizes, dtype)
        most = min(count, ceil(2 * self.reach / self.step) + 5) if self.step else count
        served = windows.launch(
            "interpolating.filtered_backward", (read.tensor, sums.tensor, out), read, sizes, sizes, read.sizes, most,
            *self.numbers, times=most, ALONG_W=along_w, KIND=self.kind,
        )  # fmt: skip
        return read._replace(tensor=out, sizes=sizes) if served else None


def antialiased(
    kind: int, x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None,
    scales_w: float | None,
) -> Any:  # fmt: skip
    """aten::_upsample_{bilinear,bicubic,lanczos}2d_aa: along W and then H, by a filter of as many elements of
    the source as one of the result covers, as Pillow resizes images. Of 16 bits too, as on CUDA."""
    read = resizing._read(2, x, output_size, False)
    if read is None:
        return NotImplemented
    steps = _steps(read.sizes, (1, *output_size), align_corners, scales_h, scales_w)
    between = torch.float64 if x.dtype is torch.float64 else torch.float32
    made = _Filter(kind, steps[1]).forward(read, output_size[1], True, between)
    made = made and _Filter(kind, steps[0]).forward(made, output_size[0], False, x.dtype)
    return NotImplemented if made is None else made.tensor


def antialiased_backward(
    kind: int, grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
    scales_h: float | None, scales_w: float | None,
) -> Any:  # fmt: skip
    """The gradient of :func:`antialiased`'s x; in the gradient's format, but of filters of waves contiguous, as on the
    CPU."""
    made = resizing._of_gradient(2, grad.contiguous() if kind else grad, output_size, input_size)
    if made is None:
        return NotImplemented
    read, sizes, sources = made
    steps = _steps(sources, sizes, align_corners, scales_h, scales_w)
    between = torch.float64 if grad.dtype is torch.float64 else torch.float32
    found = _Filter(kind, steps[0]).backward(read, sources[1], False, between)
    found = found and _Filter(kind, steps[1]).backward(found, sources[2], True, grad.dtype)
    return NotImplemented if found is None else found.tensor


def _forward(kind: int) -> Callable[..., Any]:
    def serve(
        x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Any:  # fmt: skip
        return antialiased(kind, x, output_size, align_corners, scales_h, scales_w)

    return serve


def _backward(kind: int) -> Callable[..., Any]:
    def serve(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
        scales_h: float | None = None, scales_w: float | None = None,
    ) -> Any:  # fmt: skip
        return antialiased_backward(kind, grad, output_size, input_size, align_corners, scales_h, scales_w)

    return serve


linear_aa, cubic_aa, lanczos_aa = (_forward(kind) for kind in range(3))
linear_aa_backward, cubic_aa_backward, lanczos_aa_backward = (_backward(kind) for kind in range(3))
