"""Resizing by nearest elements and between neighbours, forward and backward, by the kernels of ``window_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, sizes that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. ``x`` is ``(N, C, *)``, bf16,
f16, f32 or f64; results have its memory format. ``scales`` are of the result to the source, of one dimension each, and
None where the sizes say them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from torch import Tensor

from anyxpu.ops import windows

_Step = Callable[[int, int, "float | None"], float]


def _step(size: int, out: int, scale: float | None) -> float:
    """Elements of the source for one of the result (torch's compute_scales_value)."""
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def _corner_step(size: int, out: int, scale: float | None) -> float:
    return (size - 1) / (out - 1) if out > 1 else 0.0


def nearest(
    dims: int, exact: bool, x: Tensor, output_size: Sequence[int], scales: Sequence[float | None]
) -> Any:  # fmt: skip
    """aten::upsample_nearest{1,2,3}d and aten::_upsample_nearest_exact{1,2,3}d: each element from its nearest one.

    Of uint8 too.
    """
    read = _read(dims, x, output_size, True)
    if read is None:
        return NotImplemented
    sizes = _three(dims, output_size, 1)
    out = read.empty(sizes)
    steps = _steps(dims, read.sizes, sizes, scales, _step)
    served = windows.launch("nearest", (read.tensor, out), read, sizes, read.sizes, sizes, *steps, EXACT=exact)
    return out if served else NotImplemented


def nearest_backward(
    dims: int, exact: bool, grad: Tensor, output_size: Sequence[int], input_size: Sequence[int],
    scales: Sequence[float | None],
) -> Any:  # fmt: skip
    """The gradient of :func:`nearest`'s x, of size ``input_size``."""
    made = _of_gradient(dims, grad, output_size, input_size)
    if made is None:
        return NotImplemented
    read, sizes, sources = made
    steps = _steps(dims, sources, sizes, scales, _step)
    numbers = [(ceil(1 / step) + 4, step) for step in steps]
    out = windows.each_dimension("nearest_backward", read, sources, sizes, numbers, [(1, 1.0)] * 2, EXACT=exact)
    return NotImplemented if out is None else out


def linear(
    dims: int, x: Tensor, output_size: Sequence[int], align_corners: bool, scales: Sequence[float | None]
) -> Any:  # fmt: skip
    """aten::upsample_linear1d, bilinear2d and trilinear3d: each element between its neighbours."""
    read = _read(dims, x, output_size, False)
    if read is None:
        return NotImplemented
    sizes = _three(dims, output_size, 1)
    out = read.empty(sizes)
    if sizes == read.sizes:  # whatever the scales are, as on every device
        return out.copy_(read.tensor)
    steps = _steps(dims, read.sizes, sizes, scales, _corner_step if align_corners else _step)
    served = windows.launch(
        "linear", (read.tensor, out), read, sizes, read.sizes, sizes, *steps, CORNERS=align_corners, DIMS=dims
    )  # fmt: skip
    return out if served else NotImplemented


def linear_backward(
    dims: int, grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
    scales: Sequence[float | None],
) -> Any:  # fmt: skip
    """The gradient of :func:`linear`'s x, of size ``input_size``."""
    made = _of_gradient(dims, grad, output_size, input_size)
    if made is None:
        return NotImplemented
    read, sizes, sources = made
    if sizes == sources:  # whatever the scales are
        return read.empty(sources).copy_(read.tensor)
    one = _corner_step if align_corners else _step
    steps = _steps(dims, sources, sizes, scales, one)
    numbers = [(min(o, ceil(2 / s) + 4) if s else o, s) for s, o in zip(steps, sizes, strict=True)]
    alone = [(1, one(1, 1, None))] * 2
    out = windows.each_dimension("linear_backward", read, sources, sizes, numbers, alone, CORNERS=align_corners)
    return NotImplemented if out is None else out


def _three(dims: int, given: Sequence[int], missing: int) -> tuple[int, int, int]:
    whole = [missing] * (3 - dims) + [int(v) for v in given]
    return whole[0], whole[1], whole[2]


def _read(dims: int, x: Tensor, output_size: Sequence[int], integers: bool) -> windows.Source | None:
    if x.dim() != dims + 2 or len(output_size) != dims or min(output_size) <= 0:
        return None
    return windows.read(x, dims, integers=integers)


def _of_gradient(
    dims: int, grad: Tensor, output_size: Sequence[int], input_size: Sequence[int]
) -> tuple[windows.Source, tuple[int, int, int], tuple[int, int, int]] | None:
    """The gradient of a result, and the sizes of result and source; None where they do not fit."""
    if len(input_size) != dims + 2 or min(input_size) <= 0:
        return None
    if tuple(grad.shape) != (*input_size[:2], *output_size):
        return None
    read = _read(dims, grad, output_size, False)
    return read and (read, _three(dims, output_size, 1), _three(dims, input_size[2:], 1))


def _steps(
    dims: int, source: Sequence[int], result: Sequence[int], scales: Sequence[float | None], step: _Step
) -> list[float]:
    given = [None] * (3 - dims) + list(scales)
    return [step(i, o, s) for i, o, s in zip(source, result, given, strict=True)]


def _forward(dims: int, exact: bool) -> Callable[..., Any]:
    def serve(x: Tensor, output_size: Sequence[int], *scales: float | None) -> Any:
        return nearest(dims, exact, x, output_size, _given(dims, scales))

    return serve


def _backward(dims: int, exact: bool) -> Callable[..., Any]:
    def serve(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None) -> Any:
        return nearest_backward(dims, exact, grad, output_size, input_size, _given(dims, scales))

    return serve


def _linear_forward(dims: int) -> Callable[..., Any]:
    def serve(x: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
        return linear(dims, x, output_size, align_corners, _given(dims, scales))

    return serve


def _linear_backward(dims: int) -> Callable[..., Any]:
    def serve(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> Any:
        return linear_backward(dims, grad, output_size, input_size, align_corners, _given(dims, scales))

    return serve


def _given(dims: int, scales: Sequence[float | None]) -> Sequence[float | None]:
    return [*scales, *[None] * (dims - len(scales))]


nearest1d, nearest2d, nearest3d = (_forward(dims, False) for dims in (1, 2, 3))
nearest1d_backward, nearest2d_backward, nearest3d_backward = (_backward(dims, False) for dims in (1, 2, 3))
exact1d, exact2d, exact3d = (_forward(dims, True) for dims in (1, 2, 3))
exact1d_backward, exact2d_backward, exact3d_backward = (_backward(dims, True) for dims in (1, 2, 3))
linear1d, bilinear2d, trilinear3d = (_linear_forward(dims) for dims in (1, 2, 3))
linear1d_backward, bilinear2d_backward, trilinear3d_backward = (_linear_backward(dims) for dims in (1, 2, 3))
