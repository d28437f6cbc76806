"""Sorting and selecting in the rows of a matrix: which kernels of ``kernels/sort_*.cl`` run, in which shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import kernels
from anyxpu.shim import lib

# How the texts are told what elements are: their bits, and what those mean.
ELEMENTS: dict[torch.dtype, tuple[int, tuple[str, ...]]] = {
    torch.bool: (8, ("-DELEMENT_UNSIGNED=1",)),
    torch.uint8: (8, ("-DELEMENT_UNSIGNED=1",)),
    torch.uint16: (16, ("-DELEMENT_UNSIGNED=1",)),
    torch.uint32: (32, ("-DELEMENT_UNSIGNED=1",)),
    torch.uint64: (64, ("-DELEMENT_UNSIGNED=1",)),
    torch.int8: (8, ("-DELEMENT_SIGNED=1",)),
    torch.int16: (16, ("-DELEMENT_SIGNED=1",)),
    torch.int32: (32, ("-DELEMENT_SIGNED=1",)),
    torch.int64: (64, ("-DELEMENT_SIGNED=1",)),
    torch.float16: (16, ("-DELEMENT_FLOAT=1", "-DINFINITY_BITS=0x7c00u")),
    torch.bfloat16: (16, ("-DELEMENT_FLOAT=1", "-DINFINITY_BITS=0x7f80u")),
    torch.float32: (32, ("-DELEMENT_FLOAT=1", "-DINFINITY_BITS=0x7f800000u")),
    torch.float64: (64, ("-DELEMENT_FLOAT=1", "-DINFINITY_BITS=0x7ff0000000000000ul")),
}

LONGEST = 2**32 - 2
"""Elements of a row: their indices lie beside 32-bit keys in one word."""

# By whether a launch takes words and leaves words: those that ``sort_rows.cl`` says.
_FORMS = {(a, b): (f"-DOF_WORDS={a:d}", f"-DTO_WORDS={b:d}") for a in (False, True) for b in (False, True)}
_SUB_GROUP = 16
# What a work-group does for a row, by the row's length, where that is an argument; it has one row where there are few.
_LENGTH = (7, 1)
_WORK = {"select_rows": ((8, (_LENGTH,)),), "rank_rows": ((4, (_LENGTH, _LENGTH)),)}
_BATCH = 4 * _SUB_GROUP  # of select_rows
_SCRATCH = 256 << 20  # bytes that rows sorted at once may take in global memory, unless one alone takes more


@dataclass(frozen=True, eq=False)
class Tuning:
    """The shapes that suit a device.

    Attributes:
        units: work-groups that run at once.
        row_lanes, row_digit_bits: of a work-group that sorts a row in local memory.
        row_bytes: of local memory for the elements of such a row.
        insert_limit: up to so many comparisons, rows are sorted by one lane each, where there are rows for all lanes.
        rank_limit: up to so many elements are ranked by comparing all pairs.
        select_limit: up to so many smallest elements are collected rather than sorted for.
        select_piece: a row is not selected from in pieces shorter than this.
        block_lanes, block_digit_bits, block: of a work-group that sorts a part of a row in global memory.
        whole: a row is sorted by one work-group although others are idle, up to this length.
    """

    units: int
    row_lanes: int
    row_digit_bits: int
    row_bytes: int
    insert_limit: int
    rank_limit: int
    select_limit: int
    select_piece: int
    block_lanes: int
    block_digit_bits: int
    block: int
    whole: int


@cache
def _tuning(device: int) -> Tuning:
    properties = lib().properties(device)
    selection = {"insert_limit": 4096, "rank_limit": 128, "select_limit": 64, "select_piece": 8192}
    if properties.type == "cpu":
        return Tuning(
            units=properties.max_compute_units,
            # A group is a thread's, and local memory is memory like any other: best what a core's L2 holds twice.
            row_lanes=1,
            row_digit_bits=8,
            row_bytes=min(512 << 10, properties.local_mem_size // 4),
            block_lanes=1,
            block_digit_bits=8,
            block=16384,
            whole=4096,
            **selection,
        )
    lanes = min(256, properties.max_work_group_size)
    return Tuning(
        units=8 * properties.max_compute_units,
        row_lanes=lanes,
        row_digit_bits=4,
        row_bytes=min(properties.local_mem_size // 2, 64 << 10) - 4 * (lanes * 16 + 2),
        block_lanes=lanes,
        block_digit_bits=4,
        block=4096,
        whole=1024,
        **selection,
    )


_forced: Tuning | None = None  # for tests, which try a GPU's shapes on a CPU


def tuning(device: int) -> Tuning:
    """The shapes for a device."""
    return _forced or _tuning(device)


class Kernels:
    """The kernels for one type of elements on one device, compiled at first use.

    Args:
        device: ordinal of the device.
        dtype: one of :data:`ELEMENTS`.
        shapes: what they are compiled for.
    """

    def __init__(self, device: int, dtype: torch.dtype, shapes: Tuning) -> None:
        self.device = device
        self.shapes = shapes
        self.bits, self._options = ELEMENTS[dtype]
        self.word_bytes = 16 if self.bits == 64 else 8
        self.key = "u64" if self.bits == 64 else "u32"
        self.all_ones = (1 << self.bits) - 1
        self._made: dict[tuple[str, int, tuple[str, ...]], Callable[..., None]] = {}

    def launch(
        self, name: str, grid: tuple[int, int], local_bytes: int, *arguments: Any, options: tuple[str, ...] = ()
    ) -> None:
        """Enqueue a kernel on the current stream of the device.

        Args:
            name: of the kernel.
            grid: work-groups in x and y.
            local_bytes: local memory for its last argument; 0 where it takes none.
            arguments: the others.
            options: build options beside those that follow from the rest.
        """
        # Few sizes, so that few launchers are made; not powers of two, which may be all that a GPU's group has.
        step = 1 << max(local_bytes.bit_length() - 3, 0)
        local_bytes = -(-local_bytes // step) * step
        launch = self._made.get((name, local_bytes, options)) or self._make(name, local_bytes, options)
        launch(*grid, *arguments)

    def _make(self, name: str, local_bytes: int, options: tuple[str, ...]) -> Callable[..., None]:
        types, lanes, texts, shape = self._description(name)
        build = " ".join(("-cl-std=CL3.0", f"-DELEMENT_BITS={self.bits}", *self._options, *shape, *options))
        made = kernels.launcher(self.device, texts, build, name, types, lanes, local_bytes, _WORK.get(name, ()))
        self._made[name, local_bytes, options] = made
        return made

    def _description(self, name: str) -> tuple[list[str], int, tuple[str, ...], tuple[str, ...]]:
        """Argument types, lanes, texts and build options of a kernel."""
        shapes = self.shapes
        tail = ["u64", "u64", "u32", "u32", self.key]
        blocks = {
            "differ_blocks": ["*src", "*u32", "u64", "u32"],
            "count_blocks": ["*src", "*words", "*u32", "*u64", *tail],
            "scan_blocks": ["*u32", "*u64", "u64", "u32"],
            "scatter_blocks": ["*src", "*words", "*u32", "*u64", "*values", "*indices", *tail],
        }
        if name in blocks:
            options = (f"-DLANES={shapes.block_lanes}", f"-DDIGIT_BITS={shapes.block_digit_bits}")
            return blocks[name], shapes.block_lanes, ("sort_keys.cl", "sort_blocks.cl"), options
        options = (f"-DLANES={shapes.row_lanes}", f"-DDIGIT_BITS={shapes.row_digit_bits}")
        lanes = shapes.row_lanes if name == "radix_rows" else _SUB_GROUP
        rows = ["*src", "*words", "*values", "*indices", "*words", "u64", *tail]
        return rows, lanes, ("sort_keys.cl", "sort_rows.cl"), (*options, f"-DSUB_GROUP={_SUB_GROUP}")


@cache
def _kernels(device: int, dtype: torch.dtype, shapes: Tuning) -> Kernels:
    return Kernels(device, dtype, shapes)


def sort(source: Tensor, n: int, values: Tensor, indices: Tensor, descending: bool) -> None:
    """Sort every row, stably.

    Args:
        source: contiguous, rows of n elements whatever its shape is, of a dtype of :data:`ELEMENTS`; not empty.
        n: from 1 to :data:`LONGEST`.
        values: of as many elements, contiguous, of source's dtype; gets its rows in order.
        indices: of as many elements, contiguous, int64; gets where each element came from.
        descending: the largest first, and NaN before everything.
    """
    device, rows = source.get_device(), source.numel() // n
    made = _kernels(device, source.dtype, tuning(device))
    flip = made.all_ones if descending else 0
    name, piece = _sorter(made, rows, n)
    if piece >= n:
        _in_rows(made, name, source, n, None, n, n, n, values, indices, None, flip)
        return
    source, values, indices = (t.view(rows, n) for t in (source, values, indices))
    batch = max(1, min(65535, _SCRATCH // (2 * made.word_bytes * n)))
    for start in range(0, rows, batch):
        part = slice(start, min(start + batch, rows))
        _in_blocks(made, source[part], values[part], indices[part], flip)


def smallest(source: Tensor, n: int, keep: int, values: Tensor, indices: Tensor, largest: bool) -> None:
    """The ``keep`` smallest (or largest) elements of every row in order; of equal ones those with the lowest indices.

    Args:
        source: contiguous, rows of n elements whatever its shape is, of a dtype of :data:`ELEMENTS`; not empty.
        n: from 1 to :data:`LONGEST`.
        keep: from 1 to n.
        values: contiguous, keep elements for each row, of source's dtype.
        indices: contiguous, keep elements for each row, int64.
        largest: the largest first, and NaN before everything.
    """
    device, rows = source.get_device(), source.numel() // n
    made = _kernels(device, source.dtype, tuning(device))
    flip = made.all_ones if largest else 0
    words, length = None, n
    while True:
        name, piece = _selector(made, rows, length, keep)
        if piece == 0:
            break
        pieces = -(-length // piece)
        if pieces == 1:
            _in_rows(made, name, source, n, words, length, piece, keep, values, indices, None, flip)
            return
        collected = torch.empty(rows * pieces * keep * made.word_bytes, dtype=torch.uint8, device=source.device)
        _in_rows(made, name, source, n, words, length, piece, keep, None, None, collected, flip)
        words, length = collected, pieces * keep
    ordered, places = torch.empty_like(source), torch.empty_like(source, dtype=torch.int64)
    sort(source, n, ordered, places, largest)
    values.view(rows, keep).copy_(ordered.view(rows, n)[:, :keep])
    indices.view(rows, keep).copy_(places.view(rows, n)[:, :keep])


def _sorter(made: Kernels, rows: int, n: int) -> tuple[str, int]:
    """The kernel that sorts rows of n elements, and how many it can hold; 0: none can."""
    shapes = made.shapes
    if n * n <= shapes.insert_limit and rows >= _SUB_GROUP * shapes.units:
        return "insert_rows", n
    if n <= shapes.rank_limit:
        return "rank_rows", n
    held = shapes.row_bytes // (2 * made.word_bytes)
    if n <= held and (n <= shapes.whole or rows >= shapes.units):
        return "radix_rows", n
    return "", 0


def _selector(made: Kernels, rows: int, length: int, keep: int) -> tuple[str, int]:
    """The kernel that finds the smallest of rows, and how many elements it takes at a time; 0: rows must be sorted."""
    shapes = made.shapes
    if length * keep <= shapes.insert_limit and rows >= _SUB_GROUP * shapes.units:
        return "insert_rows", length
    if keep <= shapes.select_limit and length > _BATCH:
        # Cut as many pieces as there are idle units, but so long that what they leave is worth a second launch.
        cut = -(-length * rows // (2 * shapes.units)) if rows < shapes.units else length
        return "select_rows", min(length, max(cut, shapes.select_piece, 16 * keep))
    if length <= shapes.rank_limit:
        return "rank_rows", length
    held = shapes.row_bytes // (2 * made.word_bytes)
    # Each launch leaves a sixteenth, until a row is worth no further cut.
    cut = max(shapes.whole, 16 * keep)
    if length <= held and (length <= cut or rows >= shapes.units):
        return "radix_rows", length
    piece = min(held, cut)
    return "radix_rows", piece if 4 * keep <= piece else 0


def _in_rows(
    made: Kernels,
    name: str,
    source: Tensor,
    row: int,
    words: Tensor | None,
    length: int,
    piece: int,
    keep: int,
    values: Tensor | None,
    indices: Tensor | None,
    collected: Tensor | None,
    flip: int,
) -> None:
    """Launch one of the kernels of ``sort_rows.cl``; their arguments are described there."""
    rows = source.numel() // row
    shapes = made.shapes
    size = min(length, piece)
    if name == "insert_rows":
        local_bytes = keep * _SUB_GROUP * made.word_bytes
    elif name == "rank_rows":
        local_bytes = -(-size // _SUB_GROUP) * _SUB_GROUP * made.word_bytes
    elif name == "select_rows":
        local_bytes = (2 * (keep + 2 * _BATCH) + _SUB_GROUP) * made.word_bytes
    else:
        local_bytes = 2 * piece * made.word_bytes + 4 * ((shapes.row_lanes << shapes.row_digit_bits) + 2)
    groups = min(rows * -(-length // piece), 64 * shapes.units)
    made.launch(
        name, (groups, 1), local_bytes,
        source, words, values, indices, collected, rows, row, length, piece, keep, flip,
        options=_FORMS[words is not None, collected is not None],
    )  # fmt: skip


def _in_blocks(made: Kernels, source: Tensor, values: Tensor, indices: Tensor, flip: int) -> None:
    """Sort rows by the kernels of ``sort_blocks.cl``."""
    rows, n = source.shape
    shapes = made.shapes
    radix = 1 << shapes.block_digit_bits
    block = shapes.block
    blocks = -(-n // block)
    words = torch.empty(2 * rows * n * made.word_bytes, dtype=torch.uint8, device=source.device)
    differing = torch.zeros(rows, 2, dtype=torch.int32, device=source.device)
    counts = torch.empty(rows * radix * blocks, dtype=torch.int64, device=source.device)
    grid = (blocks, rows)
    made.launch("differ_blocks", grid, 0, source, differing, n, block)
    for shift in range(0, made.bits, shapes.block_digit_bits):
        made.launch("count_blocks", grid, 4 * radix, source, words, differing, counts, rows, n, block, shift, flip)
        made.launch("scan_blocks", (rows, 1), 0, differing, counts, blocks, shift)
        made.launch(
            "scatter_blocks", grid, 8 * radix * shapes.block_lanes,
            source, words, differing, counts, values, indices, rows, n, block, shift, flip,
        )  # fmt: skip
