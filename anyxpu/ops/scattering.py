"""``scatter_add`` and ``scatter_reduce`` on xpu, by the kernels of ``kernels/scatter.cl``.

Torch makes the functional forms of these. A function here returns ``NotImplemented`` for a call that it does not serve
(means, complex numbers, tensors that share memory, shapes that do not fit); the host then computes it, or raises what
CPU torch raises.

An index out of range is found while the kernel runs: its element goes nowhere, and the next call that waits for the
device raises torch.AcceleratorError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import kernels
from anyxpu.shim import lib

# Names that types.cl has for dtypes.
_ELEMENTS = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
# In which a sum soon stops growing: sums and products of these are made in f32 and rounded once.
_NARROW = (torch.float16, torch.bfloat16)
_INDICES = {torch.int32: "i32", torch.int64: "i64"}
_REDUCTIONS = ("sum", "prod", "amax", "amin")

_POSITIONS = 3  # dimensions that lines have for the kernels
_BLOCK = 256  # lines side by side that a CPU's work-item takes: measured, 128 to 512 are near each other
_CACHE_LINE = 64  # bytes
_LANES = 64  # of a GPU's work-group
_IN_FLIGHT = 1 << 14  # work-items that keep a GPU busy

# Steps from line to line of self, the index and src that scatter_blocks is compiled for.
_LAYOUTS: dict[tuple[int, ...], tuple[str, ...]] = {(1, 1, 1): ("-DSIDE_BY_SIDE=1",), (1, 0, 1): ("-DINDEX_SHARED=1",)}

_Dimension = tuple[int, tuple[int, ...]]  # its size, and self's, the index's and src's steps along it


def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """aten::scatter_add_: :func:`scatter_reduce_out` with the sum, into ``self``."""
    return _scatter(self, dim, index, src, "sum", True, self)


def scatter_add_out(self: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Tensor) -> Any:
    """aten::scatter_add.out: :func:`scatter_reduce_out` with the sum."""
    return _scatter(self, dim, index, src, "sum", True, out)


def scatter_reduce_(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """aten::scatter_reduce_.two: :func:`scatter_reduce_out` into ``self``."""
    return _scatter(self, dim, index, src, reduce, include_self, self)


def scatter_reduce_out(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True, out: Tensor
) -> Any:
    """aten::scatter_reduce.two_out: ``self``, with elements of ``src`` reduced into places along ``dim``, to ``out``.

    Args:
        self: of any shape and real dtype.
        index: int64 or int32; as many dimensions as self and src, none longer than src's, and none but ``dim`` longer
            than self's. Each element says to where along ``dim`` the one of src at its position goes.
        src: of self's dtype.
        reduce: ``sum``, ``prod``, ``amax``, ``amin``, or ``mean``, of integers rounded down.
        include_self: whether what self holds at such a place is reduced too.
        out: of self's shape and dtype; self itself, or apart from it.

    Returns:
        out. Elements of a place are reduced in the order of the index, but for one thing: 32-bit elements of few long
        lines on a GPU, unless torch.use_deterministic_algorithms is on.
    """
    return _scatter(self, dim, index, src, reduce, include_self, out)


def _mean(self: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool, out: Tensor) -> Any:
    """The sum, over how many there are of each place."""
    if not _served(self, index, src, "sum", out) or index.numel() == 0:
        return NotImplemented
    narrow = self.dtype in _NARROW
    wide, values = (self.float(), src.float()) if narrow else (self.clone(), src)
    count = torch.zeros(self.shape, dtype=torch.int64, device=self.device)
    ones = torch.ones(index.shape, dtype=torch.int64, device=self.device)
    for t, of, self_too in ((count, ones, True), (wide, values, include_self)):
        if _scatter(t, dim, index, of, "sum", self_too, t) is NotImplemented:
            return NotImplemented
    count = (count + 1 if include_self else count).clamp_min_(1)
    return out.copy_(wide / count if self.is_floating_point() else torch.div(wide, count, rounding_mode="floor"))


def _scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool, out: Tensor) -> Any:
    if reduce == "mean":
        return _mean(self, dim, index, src, include_self, out)
    if not _served(self, index, src, reduce, out):
        return NotImplemented
    if self.dtype in _NARROW and reduce in ("sum", "prod"):
        wide = self.float()
        if _scatter(wide, dim, index, src.float(), reduce, include_self, wide) is NotImplemented:
            return NotImplemented
        return out.copy_(wide)
    kernel = _Kernels.of(self.get_device(), self.dtype, index.dtype, reduce, include_self)
    if kernel is None:
        return NotImplemented
    tensors = out, index, src
    made = _plan(
        kernel,
        dim,
        tuple(t.shape for t in tensors),
        tuple(t.stride() for t in tensors),
        _forced_type or kernel.type,
        torch.are_deterministic_algorithms_enabled(),
    )
    if made is None:
        return NotImplemented
    if out is not self and not _same(out, self):
        out.copy_(self)
    if made.apart is not None:
        # Rare: a dimension is taken apart, by one launch for each of its elements.
        for one, by, of in zip(*(t.unbind(made.apart) for t in tensors), strict=False):
            _scatter(one, dim % self.dim() - (made.apart < dim % self.dim()), by, of, reduce, include_self, one)
    elif made.groups:
        kernel.launch(made.name, made.groups, made.lanes, made.options, *tensors, *made.arguments)
    return out


def _served(self: Tensor, index: Tensor, src: Tensor, reduce: str, out: Tensor) -> bool:
    """Are the tensors such as the kernels take, whatever their shapes? What torch refuses, it refuses on the host."""
    return (
        reduce in _REDUCTIONS
        and self.dtype in _ELEMENTS
        and index.dtype in _INDICES
        and self.dtype == src.dtype == out.dtype
        and self.device == index.device == src.device == out.device
        and self.shape == out.shape
        and (self.numel() > 0 or index.numel() == 0)
        and torch._debug_has_internal_overlap(out) != 1
        and not _share_memory(out, index)
        and not _share_memory(out, src)
        and (out is self or _same(out, self) or not _share_memory(out, self))
    )


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether they may: views of one storage count, whatever they show of it."""
    memory = a.untyped_storage().data_ptr()
    return memory != 0 and memory == b.untyped_storage().data_ptr()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


class _Kernels:
    """The kernels for one kind of elements and indices and one reduction on one device, compiled at first use."""

    def __init__(self, device: int, dtype: torch.dtype, index: torch.dtype, reduce: str, include_self: bool) -> None:
        self.device = device
        self.bytes = dtype.itemsize
        self.type = lib().properties(device).type
        self.units = lib().properties(device).max_compute_units
        self.shareable = dtype.itemsize == 4 and include_self
        self._made: dict[tuple[str, int, tuple[str, ...]], Callable[..., None]] = {}
        self._name = f"scatter_{reduce}"
        self._options = (
            "-cl-std=CL3.0",
            f"-DELEMENT={_ELEMENTS[dtype]}",
            f"-DELEMENT_FLOAT={dtype.is_floating_point:d}",
            f"-DELEMENT_WORD={dtype.itemsize == 4:d}",
            f"-DINDEX={_INDICES[index]}",
            f"-DREDUCE={reduce}",
            f"-DINCLUDE_SELF={include_self:d}",
            *(("-DHAS_FP64",) if dtype is torch.float64 else ()),
        )

    @staticmethod
    @cache
    def of(device: int, dtype: torch.dtype, index: torch.dtype, reduce: str, include_self: bool) -> _Kernels | None:
        """Those kernels; None where there are none for such elements on the device."""
        if dtype is torch.float64 and not lib().properties(device).has_fp64:
            return None
        return _Kernels(device, dtype, index, reduce, include_self)

    def launch(self, name: str, groups: int, lanes: int, options: tuple[str, ...], *arguments: Any) -> None:
        """Enqueue a kernel on the current stream of the device."""
        kernel = self._made.get((name, lanes, options))
        if kernel is None:
            build = " ".join((*self._options, f"-DLANES={lanes}", *options))
            types = ["*self", "*index", "*src", *["u64"] * 5, *["i64"] * 12, "u32"]
            held = (f"{self._name}: index out of bounds of the dimension",)
            texts = ("types.cl", "assertions.cl", "scatter.cl")
            kernel = kernels.launcher(self.device, texts, build, name, types, lanes, assertions=held)
            self._made[name, lanes, options] = kernel
        kernel(groups, 1, *arguments)


@dataclass(frozen=True)
class _Plan:
    """How operands of some shapes and strides are taken.

    Attributes:
        name, groups, lanes, options: of the launch; no groups where there is nothing to do.
        arguments: the kernel's, behind the tensors.
        apart: not one launch, but one for each element of this dimension.
    """

    name: str = ""
    groups: int = 0
    lanes: int = 1
    options: tuple[str, ...] = ()
    arguments: tuple[int, ...] = ()
    apart: int | None = None


@lru_cache(maxsize=4096)
def _plan(
    kernel: _Kernels,
    dim: int,
    shapes: tuple[Sequence[int], ...],
    strides: tuple[Sequence[int], ...],
    device_type: str,
    deterministic: bool,
) -> _Plan | None:
    """The plan for shapes and strides of out, index and src; None where they do not fit."""
    rank = len(shapes[0]) or 1
    if not -rank <= dim < rank:
        return None
    dim %= rank
    if 0 in shapes[1]:
        return _Plan()
    # A number is a tensor of one dimension and one element.
    to, index, src = (tuple(shape) or (1,) for shape in shapes)
    steps = [tuple(stride) or (1,) for stride in strides]
    if not (
        rank == len(index) == len(src)
        and all(n <= s and (n <= t or d == dim) for d, (t, n, s) in enumerate(zip(to, index, src, strict=True)))
    ):
        return None
    positions = _merged([(n, tuple(s[d] for s in steps)) for d, n in enumerate(index) if d != dim])
    if len(positions) > _POSITIONS:
        return _Plan(apart=min((d for d, n in enumerate(index) if d != dim and n > 1), key=lambda d: index[d]))
    outer, middle, inner = [(1, (0, 0, 0))] * (_POSITIONS - len(positions)) + positions
    along = tuple(s[dim] for s in steps)
    lines = outer[0] * middle[0] * inner[0]
    block = 1
    if device_type == "cpu":
        name, groups, lanes, block = _on_cpu(kernel, lines, along, inner)
    else:
        name, groups, lanes = _on_gpu(kernel, lines, index[dim], deterministic)
    if name == "scatter_blocks":
        options = _LAYOUTS.get(inner[1], ())
    else:
        options = ("-DCONTIGUOUS=1",) if name == "scatter_lines" and along == (1, 1, 1) else ()
    each = (step for t in range(3) for step in (along[t], inner[1][t], middle[1][t], outer[1][t]))
    arguments = (to[dim], index[dim], inner[0], middle[0], outer[0], *each, block)
    return _Plan(name, groups, lanes, options, arguments)


def _merged(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """As few dimensions as have the same positions, the one with the smallest steps last."""
    merged: list[_Dimension] = []
    for size, steps in sorted((d for d in dimensions if d[0] != 1), key=lambda d: -sum(d[1])):
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return merged


_forced_type: str | None = None  # for tests, which try a GPU's kernels on a CPU


def _on_cpu(kernel: _Kernels, lines: int, along: Sequence[int], inner: _Dimension) -> tuple[str, int, int, int]:
    """The kernel, its work-groups and their lanes, and the lines of a block."""
    most = 64 * kernel.units
    size, steps = inner
    if size == 1 or sum(along) <= sum(steps):
        return "scatter_lines", min(lines, most), 1, 1
    # All units have some, and no two of them write to one cache line.
    line = _CACHE_LINE // kernel.bytes
    block = min(_BLOCK, -(-size // (kernel.units * line)) * line)
    return "scatter_blocks", min(-(-size // block) * (lines // size), most), 1, block


def _on_gpu(kernel: _Kernels, lines: int, length: int, deterministic: bool) -> tuple[str, int, int]:
    """The kernel, its work-groups and their lanes."""
    few = lines < _IN_FLIGHT and length > _LANES
    if few and kernel.shareable and not deterministic:
        return "scatter_shared", min(-(-lines * length // _LANES), _IN_FLIGHT), _LANES
    return "scatter_lines", min(-(-lines // _LANES), _IN_FLIGHT), _LANES
