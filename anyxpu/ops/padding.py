"""Padding by mirrored and by repeated elements on xpu, forward and backward, by ``padding_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, padding that does not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. ``x`` is ``(N, C, *)`` or
``(C, *)``; results have its memory format. ``padding`` is two numbers, before and behind, for each dimension, the last
dimension's first; below 0 it takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole, windows

_STEP = 4096  # elements that a CPU's program makes
# Those of the CPU's and CUDA's operators.
_TYPES = (*(t for t in whole.NAMES if t is not torch.bool), torch.complex64)


def pad(dims: int, reflect: bool, x: Tensor, padding: Sequence[int]) -> Any:
    """aten::reflection_pad{1,2,3}d and replication_pad{1,2,3}d: of numbers of at most 64 bits.

    Returns:
        ``(N, C, *)``: of each dimension, the elements with ``before`` more before them and ``behind`` behind.
    """
    read = windows.read(x, dims, moved=True) if x.dtype in _TYPES else None
    made = read and _sizes(dims, reflect, read.sizes, padding)
    if read is None or made is None:
        return NotImplemented
    sizes, before = made
    out, types = read.empty(sizes), (str(whole.bits(x)),) * 2
    device, rows = x.get_device(), read.planes * sizes[0] * sizes[1]
    # A CPU reads lanes at places of their own one after the other: where W is the fastest only the edges are such.
    if launching.on_cpu(device) and not read.last and max(out.numel(), x.numel()) <= whole.MOST:
        down = max(1, min(_STEP // sizes[2], -(-rows // launching.programs(device))))
        served = whole.launch(
            "padding.pad_rows", (read.tensor, out), -(-rows // down), out.numel(), rows, down, *read.sizes, *sizes,
            *before, types=types, REFLECT=reflect,
            L=launching.power_of_two(read.sizes[2], 8, 64),
        )  # fmt: skip
    else:
        served = windows.launch(
            "padding.pad", (read.tensor, out), read, sizes, read.sizes, sizes, *before, types=types, REFLECT=reflect
        )
    return _as_torch_lays_it(out, x) if served else NotImplemented


def pad_backward(dims: int, reflect: bool, grad: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
    """The gradient of :func:`pad`'s x: bf16, f16, f32 or f64."""
    read = windows.read(x, dims)
    made = read and _sizes(dims, reflect, read.sizes, padding)
    if read is None or made is None or (grad.dtype, grad.device) != (x.dtype, x.device):
        return NotImplemented
    sizes, before = made
    if tuple(grad.shape) != (*x.shape[: x.dim() - dims], *sizes[3 - dims :]):
        return NotImplemented
    out = torch.empty_like(read.tensor, memory_format=read.format)
    operands = (grad.contiguous(memory_format=read.format), out)
    if reflect:
        served = windows.launch(
            "padding.reflection_backward", operands, read, read.sizes, read.sizes, sizes, *before, DIMS=dims
        )  # fmt: skip
    else:
        served = windows.launch("padding.replication_backward", operands, read, read.sizes, read.sizes, sizes, *before)
    return _as_torch_lays_it(out, x) if served else NotImplemented


def _as_torch_lays_it(made: Tensor, x: Tensor) -> Tensor:
    """Of ``(C, D, H, W)`` torch asks for the format as if that were ``(N, C, H, W)``."""
    plain = made.dim() != 4 or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last)
    return made if plain else made.contiguous(memory_format=torch.channels_last)


def _sizes(
    dims: int, reflect: bool, sizes: Sequence[int], padding: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Of (D, H, W): sizes of the result, and how much is before the first element; None where it does not fit."""
    if len(padding) != 2 * dims:
        return None
    given = [(0, 0)] * (3 - dims) + [(padding[2 * k], padding[2 * k + 1]) for k in reversed(range(dims))]
    made = tuple(n + before + behind for n, (before, behind) in zip(sizes, given, strict=True))
    if min(made) <= 0 or (reflect and any(max(p) >= n for n, p in zip(sizes, given, strict=True))):
        return None
    return made, tuple(before for before, _ in given)


def _forward(dims: int, reflect: bool) -> Callable[..., Any]:
    return lambda x, padding: pad(dims, reflect, x, padding)


def _backward(dims: int, reflect: bool) -> Callable[..., Any]:
    return lambda grad, x, padding: pad_backward(dims, reflect, grad, x, padding)


reflection1d, reflection2d, reflection3d = (_forward(dims, True) for dims in (1, 2, 3))
reflection1d_backward, reflection2d_backward, reflection3d_backward = (_backward(dims, True) for dims in (1, 2, 3))
replication1d, replication2d, replication3d = (_forward(dims, False) for dims in (1, 2, 3))
replication1d_backward, replication2d_backward, replication3d_backward = (_backward(dims, False) for dims in (1, 2, 3))
