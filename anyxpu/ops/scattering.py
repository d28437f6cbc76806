"""``scatter_add`` and ``scatter_reduce`` on xpu, by the kernels of ``kernels/scatter.cl``.

Torch makes the functional and the in-place forms of these. A function here returns ``NotImplemented`` for a call that
it does not serve (means, complex numbers, tensors that share memory, shapes that do not fit); the host then computes
it, or raises what CPU torch raises.

An index out of range is found while the kernel runs: its element goes nowhere, and the next call that waits for the
device raises torch.AcceleratorError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
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
_INDICES = {torch.int32: "i32", torch.int64: "i64"}
_REDUCTIONS = ("sum", "prod", "amax", "amin")

_POSITIONS = 3  # dimensions that lines have for the kernels
_BLOCK = 256  # lines side by side that a CPU's work-item takes: measured, 128 to 512 are near each other
_CACHE_LINE = 64  # bytes
_LANES = 64  # of a GPU's work-group
_IN_FLIGHT = 1 << 14  # work-items that keep a GPU busy

_Dimension = tuple[int, tuple[int, ...]]  # its size, and self's, the index's and src's steps along it


def scatter_add_out(self: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Tensor) -> Any:
    """aten::scatter_add.out: :func:`scatter_reduce_out` with the sum."""
    return _scatter(self, dim, index, src, "sum", True, out)


def scatter_reduce_out(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True, out: Tensor
) -> Any:
    """aten::scatter_reduce.two_out: ``self``, with elements of ``src`` reduced into places along ``dim``, to ``out``.

    Args:
        self: of any shape and real dtype.
        index: int64 or int32; as many dimensions as self and src, none longer than src's, and none but ``dim`` longer
            than self's. Each element says to where along ``dim`` the one of src at its position goes.
        src: of self's dtype.
        reduce: ``sum``, ``prod``, ``amax`` or ``amin``.
        include_self: whether what self holds at such a place is reduced too.
        out: of self's shape and dtype; self itself, or apart from it.

    Returns:
        out. Elements of a place are reduced in the order of the index, but for one thing: sums of few long lines of
        32-bit elements on a GPU, unless torch.use_deterministic_algorithms is on.
    """
    return _scatter(self, dim, index, src, reduce, include_self, out)


def _scatter(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool, out: Tensor
) -> Any:
    if reduce not in _REDUCTIONS or not _served(self, dim, index, src, out):
        return NotImplemented
    kernel = _Kernels.of(self.get_device(), self.dtype, index.dtype, reduce, include_self)
    if kernel is None:
        return NotImplemented
    if out is not self and not _same(out, self):
        out.copy_(self)
    if index.numel():
        at = dim % max(self.dim(), 1)
        _reduce(kernel, at, *(t if t.dim() else t.unsqueeze(0) for t in (out, index, src)))
    return out


def _served(self: Tensor, dim: int, index: Tensor, src: Tensor, out: Tensor) -> bool:
    """Is the call one that the kernels compute? What torch refuses, it refuses on the host."""
    rank = self.dim() or 1
    if not (
        self.dtype == src.dtype == out.dtype
        and index.dtype in _INDICES
        and self.device == index.device == src.device == out.device
        and self.shape == out.shape
        and -rank <= dim < rank
        and torch._debug_has_internal_overlap(out) != 1
    ):
        return False
    memory = out.untyped_storage().data_ptr()
    if any(t.numel() and t.untyped_storage().data_ptr() == memory for t in (index, src)):
        return False
    if self.untyped_storage().data_ptr() == memory and not _same(out, self):
        return False
    sizes = [t.shape if t.dim() else (1,) for t in (self, index, src)]
    if not index.numel():
        return True
    if any(len(shape) != rank for shape in sizes):
        return False
    return all(i <= s and (i <= to or d == dim % rank) for d, (to, i, s) in enumerate(zip(*sizes, strict=True)))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


class _Kernels:
    """The kernels for one kind of elements and indices and one reduction on one device, compiled at first use."""

    def __init__(self, device: int, dtype: torch.dtype, index: torch.dtype, reduce: str, include_self: bool) -> None:
        self.device = device
        self.bytes = dtype.itemsize
        self.shareable = dtype.itemsize == 4 and include_self
        self._made: dict[tuple[str, int, bool], Callable[..., None]] = {}
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
    def of(
        device: int, dtype: torch.dtype, index: torch.dtype, reduce: str, include_self: bool
    ) -> _Kernels | None:
        """Those kernels; None where there are none for such elements."""
        if dtype not in _ELEMENTS or (dtype is torch.float64 and not lib().properties(device).has_fp64):
            return None
        return _Kernels(device, dtype, index, reduce, include_self)

    def launch(self, name: str, groups: int, lanes: int, side_by_side: bool, *arguments: Any) -> None:
        """Enqueue a kernel on the current stream of the device."""
        kernel = self._made.get((name, lanes, side_by_side))
        if kernel is None:
            build = " ".join((*self._options, f"-DLANES={lanes}", f"-DSIDE_BY_SIDE={side_by_side:d}"))
            types = ["*self", "*index", "*src", *["u64"] * 5, *["i64"] * 12, "u64"]
            held = (f"{self._name}: an index is within the dimension",)
            texts = ("types.cl", "assertions.cl", "scatter.cl")
            kernel = kernels.launcher(self.device, texts, build, name, types, lanes, assertions=held)
            self._made[name, lanes, side_by_side] = kernel
        kernel(groups, 1, *arguments)


def _reduce(kernel: _Kernels, dim: int, out: Tensor, index: Tensor, src: Tensor) -> None:
    """Launch what reduces ``src`` into ``out``; all of them have a dimension, and the index an element."""
    tensors = (out, index, src)
    strides = [t.stride() for t in tensors]
    others = [(n, tuple(s[d] for s in strides)) for d, n in enumerate(index.shape) if d != dim]
    positions = _merged(others)
    if len(positions) > _POSITIONS:
        # Rare: some dimension is taken apart, by one launch for each of its elements.
        apart = min((d for d, n in enumerate(index.shape) if d != dim and n > 1), key=lambda d: index.shape[d])
        for parts in zip(*(t.unbind(apart) for t in (index, out, src)), strict=False):
            _reduce(kernel, dim - (apart < dim), parts[1], parts[0], parts[2])
        return
    positions = [(1, (0, 0, 0))] * (_POSITIONS - len(positions)) + positions
    along = tuple(s[dim] for s in strides)
    name, groups, lanes, block = _shape(kernel, index.shape[dim], along, positions)
    outer, middle, inner = positions
    kernel.launch(
        name, groups, lanes, name == "scatter_blocks" and inner[1] == (1, 1, 1),
        *tensors, out.shape[dim], index.shape[dim], inner[0], middle[0], outer[0],
        *(step for of in range(3) for step in (along[of], inner[1][of], middle[1][of], outer[1][of])),
        block,
    )  # fmt: skip


def _merged(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """As few dimensions as have the same positions, the one with the smallest steps last."""
    merged: list[_Dimension] = []
    for size, steps in sorted((d for d in dimensions if d[0] != 1), key=lambda d: -sum(d[1])):
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return merged


_forced_type: str | None = None  # for tests, which try a GPU's shapes on a CPU


def _shape(
    kernel: _Kernels, length: int, along: Sequence[int], positions: Sequence[_Dimension]
) -> tuple[str, int, int, int]:
    """The kernel that suits a device and a layout, its work-groups, their lanes, and the lines of a block."""
    properties = lib().properties(kernel.device)
    units = properties.max_compute_units
    lines = positions[0][0] * positions[1][0] * positions[2][0]
    if (_forced_type or properties.type) == "cpu":
        inner, steps = positions[-1]
        if inner == 1 or sum(along) <= sum(steps):
            return "scatter_lines", min(lines, 64 * units), 1, 1
        # All units have some, and no two of them write to one cache line.
        line = _CACHE_LINE // kernel.bytes
        block = min(_BLOCK, -(-inner // (units * line)) * line)
        blocks = -(-inner // block) * (lines // inner)
        return "scatter_blocks", min(blocks, 64 * units), 1, block
    few = lines < _IN_FLIGHT and length > 64
    if few and kernel.shareable and not torch.are_deterministic_algorithms_enabled():
        return "scatter_shared", min(-(-lines * length // _LANES), _IN_FLIGHT), _LANES, 1
    return "scatter_lines", min(-(-lines // _LANES), _IN_FLIGHT), _LANES, 1
