"""Kernels that are an operator's own, in whichever ``*_kernels.py``: how they are named, built and launched.

Words of a signature class: ``"module.function"``, what its pointers point to, and its constants.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching
from anyxpu.ops.current_device import current
from anyxpu.shim import lib

# What each kernel takes behind its pointers; the module is `<name>_kernels.py`.
_TAKES = {
    "taking.take": "iiii" + "i" * 8,
    "taking.put": "iiii" + "i" * 8,
    "taking.put_slices": "iiii",
    "taking.pour": "ii",
    "taking.roll": "iiiiiiii",
    "taking.scatter": "iiii",
    "taking.scatter_number": "iiii",
    "taking.count": "ii",
    "taking.flip": "iii",
    "taking.places": "iiiiiii",
    "scan.rows": "iii",
    "scan.columns": "iii",
    "scan.extremes": "iii",
    "scan.log_sums": "iii",
    "scan.extremes_of_rows": "iii",
    "algebra.dot": "ii",
    "algebra.cross": "ii",
    "bags.forward": "iiiiiii",
    "extreme.rows": "iiiii",
    "extreme.columns": "iiiii",
    "maxima.spread": "iiii",
    "sparse.rows": "iiii##",
    "counting.parts": "iii",
    "searching.bounds": "iiii",
    "distances.forward": "iii#",
    "distances.backward": "iii#",
    "regions.align": "i" * 9 + "##",
    "regions.align_backward": "i" * 9 + "##",
    "regions.channels": "i" * 8 + "##",
    "regions.channels_backward": "i" * 8 + "##",
    "regions.pool": "i" * 8 + "#",
    "regions.pool_backward": "i" * 8,
    "regions.mean": "i" * 8 + "#",
    "regions.mean_backward": "i" * 8 + "#",
    "regions.overlaps": "ii#",
    "regions.keep": "ii",
    "deformable.columns": "i" * 16,
    "deformable.spread": "i" * 16,
    "deformable.moves": "i" * 16,
    "ctc.alphas": "iiiii",
    "ctc.posteriors": "iiiii",
    "filling.arange": "i##",
    "filling.arange_integers": "ill",
    "filling.triangle": "iiiil",
    "variance.rows": "iii#",
    "variance.columns": "iiii#",
    "variance.together": "iiiii#",
    "padding.pad_rows": "i" * 11,
    "loss.each": "i#",
    "loss.summed": "ii##",
    "loss.slopes": "i##",
    "loss.picked": "iiil",
    "loss.picked_sums": "iiiil",
    "loss.spread": "iiil",
}
NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
_SHARE = 1 << 14  # elements of a sum that a program has, where that keeps the device busy
MOST = 2**31 - 2**16  # elements, that kernels count in 32 bits


def arguments(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> list[str]:
    """The types of what a kernel takes; words as for :func:`source`."""
    return launching.types_of(types, _TAKES[kernel], constants)


def source(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> Any:
    """What to compile for one signature class.

    Args:
        kernel: ``"scan.rows"`` of ``scan_kernels.py``.
        types: what its pointers point to, in order.
        constants: names and values.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    module, _, name = kernel.partition(".")
    function = getattr(importlib.import_module(f"anyxpu.ops.{module}_kernels"), name)
    return launching.ast_source(function, arguments(kernel, types, constants), constants)


def launch(
    kernel: str,
    pointers: Sequence[Tensor],
    groups: int,
    elements: int,
    *numbers: Any,
    types: Sequence[str] | None = None,
    **constants: Any,
) -> bool:
    """Launch a kernel; False where it is not there.

    Args:
        pointers: what it takes first, in order.
        groups: programs.
        elements: that they make.
        numbers: what it takes behind the pointers.
        types: what pointers point to, where that is not their dtype.
        constants: its own.
    """
    device = pointers[0].get_device()
    given = tuple(types or (NAMES[t.dtype] for t in pointers))
    run = launching.kernel(device, "whole", kernel, given, tuple(constants.items()))
    if run is None:
        return False
    with current(pointers[0].device):
        run(groups, elements, *pointers, *numbers)
    return True


def served(t: Tensor) -> bool:
    """Can kernels compute with its elements, as many as they are, on its device?"""
    if t.dtype not in NAMES or t.numel() > MOST or t.layout is not torch.strided:
        return False
    return t.dtype is not torch.float64 or bool(lib().properties(t.get_device()).has_fp64)


def bits(t: Tensor) -> str | None:
    """Unsigned integers of the width of its elements, that are moved as they are; None where there are none so wide."""
    return None if t.element_size() > 8 else f"u{8 * t.element_size()}"


def shares(n: int, device: int) -> tuple[int, int, int]:
    """How a sum of n elements is shared: lanes of its kernel, elements of a program, and programs, of a part each."""
    cpu = launching.on_cpu(device)
    lanes = 64 if cpu else 1024
    parts = max(1, min(-(-n // _SHARE), launching.programs(device) * (4 if cpu else 1)))
    chunk = -(-n // (parts * lanes)) * lanes
    return lanes, chunk, -(-n // chunk)


def line(device: int) -> int:
    """Lanes of a kernel over a run of elements."""
    return 256 if launching.on_cpu(device) else 1024
