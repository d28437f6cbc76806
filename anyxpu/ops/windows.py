"""Launches of ``window_kernels.py`` and the like: what pooling, resizing, padding and sampling have in common."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.ops import launching, whole
from anyxpu.ops.current_device import current
from anyxpu.shim import lib

_NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}
_MOST = 2**31 - 2**16  # elements, that kernels count in 32 bits

# What each kernel takes beside its pointers and sizes: integers, and numbers (`#`). `"module.function"` is one of
# `<module>_kernels.py`, and what has no module one of `window_kernels.py`.
_TAKES = {
    "max_pool": "",
    "max_pool_backward": "",
    "avg_pool": "i",
    "avg_pool_backward": "i",
    "adaptive_avg_pool": "i",
    "adaptive_avg_pool_backward": "i",
    "nearest": "###",
    "nearest_backward": "iii###",
    "linear": "###",
    "linear_backward": "iii###",
    "padding.pad": "iii",
    "padding.reflection_backward": "iii",
    "padding.replication_backward": "iii",
    "unfolding.im2col": "i" * 7,
    "unfolding.col2im": "i" * 8,
    "sampling.sample": "i",
    "sampling.slope": "i",
    "sampling.spread": "iiii",
    "maxima.adaptive": "iii",
    "maxima.along": "iiii",
    "maxima.adaptive_backward": "iii",
    "maxima.fractional": "iii###",
    "interpolating.cubic": "##",
    "interpolating.cubic_backward": "ii##",
    "interpolating.filtered": "i###",
    "interpolating.filtered_backward": "i###",
}
_SIZES = 9  # rows, how many a program takes, C, and the sizes of source and result
_STEP = 4096  # elements that a CPU's program makes


def arguments(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> list[str]:
    """The types of what a kernel takes; words as for :func:`source`."""
    return launching.types_of(types, "i" * _SIZES + _TAKES[kernel], constants)


def source(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> Any:
    """What to compile for one signature class: a kernel, as :data:`_TAKES` names it; what its pointers point to, in
    order; names and values of its constants.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    module, _, name = kernel.rpartition(".")
    function = getattr(importlib.import_module(f"anyxpu.ops.{module or 'window'}_kernels"), name)
    return launching.ast_source(function, arguments(kernel, types, constants), constants)


class Source(NamedTuple):
    """A tensor as kernels see it.

    Attributes:
        tensor: dense.
        planes: of N and C together; last: of N.
        channels: 1, but for last.
        sizes: of (D, H, W).
        last: whether channels are the fastest.
        dims: how many of D, H and W it has.
    """

    tensor: Tensor
    planes: int
    channels: int
    sizes: tuple[int, int, int]
    last: bool
    dims: int

    @property
    def format(self) -> torch.memory_format:
        if not self.last:
            return torch.contiguous_format
        return torch.channels_last if self.dims == 2 else torch.channels_last_3d

    def empty(self, sizes: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a result of other sizes of (D, H, W), in this format."""
        x = self.tensor
        shape = (*x.shape[: x.dim() - self.dims], *sizes[3 - self.dims :])
        return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=self.format)


def read(
    x: Tensor, dims: int, like: Source | None = None, integers: bool = False, moved: bool = False
) -> Source | None:  # fmt: skip
    """A tensor ``(N, C, *)`` or ``(C, *)`` of so many further dimensions.

    Args:
        x: bf16, f16, f32 or f64; of uint8 too with ``integers``.
        like: the format is its, rather than x's own.
        moved: elements are not computed with, and are of any type of at most 64 bits.

    Returns:
        None where kernels do not take it.
    """
    if moved:
        if whole.bits(x) is None or x.is_conj() or x.is_neg():
            return None
    elif x.dtype not in _NAMES or not (x.is_floating_point() or (integers and x.dtype is torch.uint8)):
        return None
    if x.dim() not in (dims + 1, dims + 2) or not 0 < x.numel() <= _MOST:
        return None
    if x.dtype is torch.float64 and not moved and not lib().properties(x.get_device()).has_fp64:
        return None
    last = False
    if x.dim() == dims + 2 and dims > 1:
        format = torch.channels_last if dims == 2 else torch.channels_last_3d
        # Planes of one element lie either way; strides say which is meant, as at::suggest_memory_format has it.
        meant = not x.is_contiguous() or (x.shape[1] > 1 and x.stride(-1) == x.shape[1])
        last = like.last if like is not None else meant and x.is_contiguous(memory_format=format)
    x = x.contiguous(memory_format=format) if last else x.contiguous()
    sizes = (1,) * (3 - dims) + tuple(x.shape[x.dim() - dims :])
    planes = prod(x.shape[: x.dim() - dims])
    channels = x.shape[1] if last else 1
    return Source(x, planes // channels, channels, sizes, last, dims)  # type: ignore[arg-type]


def launch(
    kernel: str,
    pointers: Sequence[Tensor],
    walked: Source,
    over: Sequence[int],
    source: Sequence[int],
    result: Sequence[int],
    *numbers: Any,
    types: Sequence[str] | None = None,
    times: int = 1,
    **constants: Any,
) -> bool:
    """Launch a kernel over elements of sizes ``over``; False where it is not there.

    Args:
        pointers: what it takes first, in order.
        walked: whose planes, channels and format they have.
        over: sizes of (D, H, W) of what it writes.
        source, result: the same of what it takes for x's and for the result's.
        numbers: what it takes behind the sizes.
        types: what pointers point to, where that is not their dtype.
        times: how often it does the work of one, as for every channel.
        constants: its own.
    """
    device = walked.tensor.get_device()
    width = walked.channels if walked.last else over[2]
    rows = walked.planes * over[0] * over[1] * (over[2] if walked.last else 1)
    if max(rows * width, walked.planes * walked.channels * prod(source)) > _MOST:
        return False
    lanes = launching.power_of_two(width, 8, 64)
    tall = max(1, (64 if launching.on_cpu(device) else 256) // lanes)
    down = max(1, min(_STEP // lanes, -(-rows // launching.programs(device))) // tall) * tall
    down = down if launching.on_cpu(device) else tall
    computed = torch.float64 if walked.tensor.dtype is torch.float64 and types is None else torch.float32
    given = tuple(types or (_NAMES[t.dtype] for t in pointers))
    words = (("OP", _NAMES[computed]), ("LAST", walked.last), *constants.items(), ("R", tall), ("L", lanes))
    run = launching.kernel(device, "windows", kernel, given, words)
    if run is None:
        return False
    groups = -(-rows // down) * -(-width // lanes)
    with current(walked.tensor.device):
        run(groups, rows * width * times, *pointers, rows, down, walked.channels, *source, *result, *numbers)
    return True


def widest(size: int, windows: int) -> int:
    """The most elements of ``size`` that one of so many windows has that cover them evenly."""
    return -(-size // windows) + (size % windows > 0)


class Pass(NamedTuple):
    """What :func:`along` does with one dimension.

    Attributes:
        walked: what it reads, that dimension being W: planes are of all before it, channels of all behind it.
        made: the dimension's size in what it makes; ``walked`` has what it is before.
        sizes: of (D, H, W) of what it makes.
        dimension: 0, 1 or 2.
        final: whether none comes behind it.
    """

    walked: Source
    made: int
    sizes: tuple[int, ...]
    dimension: int
    final: bool

    @property
    def size(self) -> int:
        return self.walked.sizes[2]


def along(
    given: Source,
    dimensions: Sequence[int],
    sizes: Sequence[int],
    wanted: Sequence[int],
    make: Callable[[Pass], Tensor | None],
) -> Tensor | None:
    """Go from ``sizes`` of (D, H, W) to the wanted ones along each of these dimensions by itself.

    Args:
        make: the result of one pass; None where its kernel is not there, which ends it.
    """
    last: Tensor | None = given.tensor
    now = list(sizes)
    for d in dimensions:
        if last is None:
            break
        behind = prod(now[d + 1 :]) * given.channels
        walked = Source(last, last.numel() // (now[d] * behind), behind, (1, 1, now[d]), behind > 1, 1)
        now[d] = wanted[d]
        last = make(Pass(walked, wanted[d], tuple(now), d, d == dimensions[-1]))
    return last


def each_dimension(
    kernel: str,
    given: Source,
    wanted: Sequence[int],
    sizes: Sequence[int],
    numbers: Sequence[tuple[Any, ...]],
    alone: Sequence[tuple[Any, ...]],
    backward: bool = True,
    **constants: Any,
) -> Tensor | None:
    """What is a sum along each dimension by itself: so many launches, and not all places of a window.

    Args:
        kernel: of sizes (D, H, W) or (H, W).
        given: what is summed.
        wanted, sizes: of (D, H, W), of what is made and of what is given.
        numbers: of each of these what the kernel takes behind its sizes: how many places may take part, and where it
            takes that, elements of the source for one of the result.
        alone: the same of a dimension of one element, for each that the kernel has before the last.
        backward: is what is given a gradient? Then the kernel's source is what is made.
        constants: its own.

    Returns:
        The sums, in the format of ``given``; None where the kernel is not there.
    """
    dtype = given.tensor.dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def make(step: Pass) -> Tensor | None:
        fresh = given.empty(step.sizes, dtype if step.final else wide)
        taken = [*alone, numbers[step.dimension]]
        taken_from, made = (1, 1, step.size), (1, 1, step.made)
        source, result = (made, taken_from) if backward else (taken_from, made)
        served = launch(
            kernel, (step.walked.tensor, fresh), step.walked, made, source, result,
            *(number for pair in zip(*taken, strict=True) for number in pair), times=int(taken[-1][0]), **constants,
        )  # fmt: skip
        return fresh if served else None

    same = [d for d in range(3) if wanted[d] == sizes[d] and numbers[d][1:] in ((), (1,))]
    left = [d for d in range(3) if d not in same]
    if prod(wanted) > prod(sizes):
        left.reverse()  # what grows does so last where elements lie side by side
    return along(given, left, sizes, wanted, make) if left else given.empty(wanted).copy_(given.tensor)
