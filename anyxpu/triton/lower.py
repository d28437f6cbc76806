"""A whole TTGIR module to OpenCL C text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import (
    assembly,
    assertions,
    block_io,
    buffers,
    calls,
    collective,
    control,
    dot,
    matrix,
    memory,
    misc,
    move,
    outer,
    prefetch,
    printing,
    reads,
    storage,
    tables,
    tiles,
    work,
)
from anyxpu.triton.addressing import divide_ranges, mark_address_arithmetic, name_unit_dimensions
from anyxpu.triton.bounds import decide_masks
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import walk
from anyxpu.triton.layout import ACCUMULATOR_ROWS
from anyxpu.triton.parse import parse

_HANDLERS: dict[str, Handler] = {
    **assertions.HANDLERS,
    **buffers.HANDLERS,
    **collective.HANDLERS,
    **control.HANDLERS,
    **dot.HANDLERS,
    **memory.HANDLERS,
    **misc.HANDLERS,
    **printing.HANDLERS,
    **move.HANDLERS,
    **prefetch.HANDLERS,
}


@dataclass(frozen=True)
class Dialect:
    """What differs from one OpenCL C compiler to another.

    Attributes:
        name: also the name of its prelude file.
        options: what the source is built with.
        sub_group_attribute: prints the attribute that fixes the sub-group size.
        local_arrays: all but small arrays are in local memory (see :mod:`anyxpu.triton.storage`), else private.
        matrix: products of kernels with so many lanes go to a matrix engine (see :mod:`anyxpu.triton.matrix`).
        outer: products are outer products (see :mod:`anyxpu.triton.outer`) where no matrix engine does them.
        turns: a CPU transposes tensors by assembly for AVX-512 (see :func:`anyxpu.triton.move.turn`).
        tiles: but those that tile registers take (see :mod:`anyxpu.triton.tiles`).
        block_io: their operands may come by 2-D block loads (see :mod:`anyxpu.triton.block_io`).
    """

    name: str
    options: str = "-cl-std=CL3.0"
    sub_group_attribute: str = "__attribute__((intel_reqd_sub_group_size({0})))"
    local_arrays: bool = False
    matrix: int = 0
    outer: bool = False
    turns: bool = False
    tiles: bool = False
    block_io: bool = False


INTEL_CPU = Dialect("intel_cpu", local_arrays=True, outer=True)
INTEL_GPU = Dialect("intel_gpu")

# Work-items of a sub-group where the device does not decide it: Intel GPUs from Xe-HPC on take 16 or 32.
WARP_SIZE = 16


def warp_size(capability: Any) -> int:
    """Work-items of a sub-group on a device: as a CPU's vector registers have 32-bit lanes, 16 on GPUs.

    ``capability`` is the device's dictionary (``torch.xpu.get_device_capability()``), or a target's that names it.
    """
    if not isinstance(capability, dict) or capability.get("type") != "cpu":
        return WARP_SIZE
    lanes = int(capability.get("gpu_eu_simd_width") or WARP_SIZE)
    return 8 if lanes <= 8 and 8 in (capability.get("sub_group_sizes") or ()) else WARP_SIZE


# Devices with a matrix engine, and the size of the sub-groups it takes. Those of 16 have 2-D block loads, too.
MATRIX_LANES = {"dg2": 8, "pvc": 16, "bmg": 16, "lnl": 16, "ptl": 16, "cri": 16}


def dialect_of(device: str, matrix: int = 0, turns: bool = False, tiles: bool = False) -> Dialect:
    """The dialect for a device by its short name (see :func:`anyxpu.triton.compiler.device_kind`).

    ``matrix`` has a CPU do products as a GPU does whose engine takes so many lanes, instruction by instruction: slowly,
    to test how they are printed. ``turns``, ``tiles``: a CPU has what
    they need.
    """
    dialect = replace(INTEL_CPU, turns=turns, tiles=tiles) if device == "cpu" else INTEL_GPU
    lanes = matrix or MATRIX_LANES.get(device, 0)
    return replace(dialect, matrix=lanes, block_io=lanes == 16)


@dataclass(frozen=True)
class Rendered:
    """OpenCL C of one kernel.

    Attributes:
        text: all of it.
        name: the kernel's in the text.
        shared_bytes: of local memory that it declares.
        work: what one of its work-groups does (see :func:`anyxpu.triton.work.terms`).
        once: the same, where each loop goes round once (see :func:`anyxpu.triton.work.once`).
        assertions: their messages; a kernel that has some takes their record and its number as its last arguments.
        warps, lanes: sub-groups of a work-group, and work-items of a sub-group.
        makes_addresses: of integers, so that it may write where none of its arguments points.
        reads: which of its arguments are pointers that it only reads through.
    """

    text: str
    name: str
    shared_bytes: int
    work: tuple[work.Term, ...]
    once: int
    assertions: tuple[str, ...]
    warps: int
    lanes: int
    makes_addresses: bool
    reads: tuple[int, ...]


def c_name(name: str) -> str:
    """The kernel's name in C. Python lets a kernel be called ``kernel`` or ``max``; OpenCL C does not."""
    return name if name.startswith("triton_") else f"kernel_{name}"


def render(ttgir: str, dialect: Dialect, fp_fusion: bool = True, stages: int = 1) -> Rendered:
    """Print the one kernel of a TTGIR module.

    ``stages``: how many iterations of a loop with products have their operands on the way at once; 1: no prefetch.

    Raises:
        UnsupportedOperation: it has an operation or layout that this backend does not know; the message names it.
        ParseError: the text is not understood.
    """
    module = parse(ttgir)
    called = calls.inline(module)
    function = module.kernel
    lanes, warps = int(module.attrs["ttg.threads-per-warp"]), int(module.attrs["ttg.num-warps"])
    try:
        engine = dialect.matrix == lanes
        by_outer = dialect.outer and not engine
        assert function.body is not None
        by_tiles = by_outer and dialect.tiles and any(tiles.form_of(op, lanes, warps) for op in walk(function.body))
        assembly.translate(function)
        name_unit_dimensions(function)
        decide_masks(function)
        amount, once = work.terms(function), work.once(function)
        read = reads.only_read(function)
        if engine:
            prefetch.insert(function, lanes, warps, stages)
        if engine and dialect.block_io:
            block_io.find(function, lanes)
        divide_ranges(function)
        mark_address_arithmetic(function)
        assertions.mark_lookups(function)
        if engine:
            matrix.place_accumulators(function, lanes)
        elif by_outer:
            rows = tiles.ROWS if by_tiles else ACCUMULATOR_ROWS
            matrix.place_accumulators(function, lanes, outer.fits, rows)
        turns, ends = dialect.turns and lanes == WARP_SIZE and warps == 1, [tiles.LEAVE] if by_tiles else ()
        emitter = Emitter(
            function, _HANDLERS, warps, lanes, dialect.local_arrays, engine, by_outer, by_tiles, turns, ends
        )
        if by_tiles:
            tiles.find_reads(emitter)
        parameters = [_parameter(emitter, i) for i in range(len(function.args))]
        control.function_body(emitter)
        if emitter.assertions:
            parameters += ["__global int* assertions", "int assertions_number"]
    except UnsupportedOperation as error:
        raise UnsupportedOperation(f"kernel {function.name}: {error}") from error
    assert function.body is not None
    arrays, array_bytes = storage.place(emitter.lines, emitter.arrays, jumps=called or len(function.body.blocks) > 1)
    lines = [
        "#pragma OPENCL FP_CONTRACT " + ("ON" if fp_fusion else "OFF"),
        "",
        f"__attribute__((reqd_work_group_size({warps * lanes}, 1, 1)))",
        dialect.sub_group_attribute.format(lanes),
        f"__kernel void {c_name(function.name)}({', '.join(parameters)}) {{",
        *_work_item(emitter),
        *arrays,
        *(declaration for declaration, _ in emitter.buffers),
        *emitter.lines,
        "}",
        "",
    ]
    kernel = "\n".join(lines)
    return Rendered(
        prelude(dialect.name, kernel) + kernel,
        function.name,
        emitter.shared_bytes + array_bytes + sum(size for _, size in emitter.buffers),
        amount,
        once,
        tuple(emitter.assertions),
        warps,
        lanes,
        any(op.name == "tt.int_to_ptr" for op in walk(function.body)),
        read,
    )


def _work_item(e: Emitter) -> list[str]:
    lines = [
        "  const int lane = (int)get_sub_group_local_id();",
        "  const int warp = " + ("0;" if e.warps == 1 else "(int)get_sub_group_id();"),
        "  const int item = " + ("lane;" if e.warps == 1 else "(int)get_local_id(0);"),
    ]
    if e.tiles:
        lines += [f"  {line}" for line in tiles.ENTER]
    if e.shared_bytes:
        lines.append(f"  __local char shared[{e.shared_bytes}] __attribute__((aligned(64)));")
    return lines


def _parameter(e: Emitter, i: int) -> str:
    """A kernel's parameter; OpenCL C does not allow a bool."""
    value, name = e.function.args[i], f"arg{i}"
    c = tables.register_type(value.type)
    e.scalars[value] = f"((bool){name})" if c == "bool" else tables.rounded(name, value.type)
    return f"{'int' if c == 'bool' else c} {name}"


def launch_type(signature: str) -> str:
    """The launcher's name of a parameter's type, from Triton's.

    16-bit floats arrive as f32 and bools as i32, so that every kernel's parameters have types that C's promotions
    would give them (Inductor's static launcher knows no others).
    """
    return {"fp16": "fp32", "bf16": "fp32", "i1": "i32", "u1": "i32"}.get(signature, signature)


def rounds_to_nearest(source: str) -> bool:
    """Has OpenCL C that was printed here divisions or square roots that a compiler must not be off in?"""
    return "ax_div_rn(" in source or "ax_sqrt_rn(" in source


# A prelude's section begins with a comment that says what it defines: `/* --- ax_round_ ax_bits_: … */`.
_SECTION = re.compile(r"^/\* --- ((?:\w+ )*\w+):", re.MULTILINE)


_MORE = {"intel_cpu": ("intel_cpu_weights",)}
"""Files of a dialect beside the one that has its name."""


@cache
def _sections(dialect: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The prelude's sections in order, each with the prefixes of the names that it defines."""
    folder = resources.files("anyxpu.triton") / "prelude"
    out = []
    for file in (dialect, *_MORE.get(dialect, ()), "common", "math", "assertions"):
        text = (folder / f"{file}.cl").read_text()
        starts = [*_SECTION.finditer(text)]
        ends = [*(m.start() for m in starts[1:]), len(text)]
        out += [(tuple(m.group(1).split()), text[m.start() : end]) for m, end in zip(starts, ends, strict=True)]
    return tuple(out)


def prelude(dialect: str, kernel: str) -> str:
    """The sections that the kernel's text needs: the device's compiler takes its time for every function it reads.

    A section uses names of earlier ones only.
    """
    text, used = kernel, []
    for prefixes, section in reversed(_sections(dialect)):
        if any(p in text for p in prefixes):
            used.append(section)
            text += section
    return "".join(reversed(used))
