"""Program numbers, hints, external functions: what fits no other file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import assembly, libdevice_table, tables
from anyxpu.triton.elements import ELEMENT_PRINTERS, Loop
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Op

_AXES = {"x": 0, "y": 1, "z": 2}


def _program_id(e: Emitter, op: Op) -> None:
    e.define(op.result, f"(int)get_group_id({_AXES[op.words[0]]})")


def _num_programs(e: Emitter, op: Op) -> None:
    e.define(op.result, f"(int)get_num_groups({_AXES[op.words[0]]})")


def _barrier(e: Emitter, op: Op) -> None:
    e.flush()
    e.barrier("CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE")


def _nothing(e: Emitter, op: Op) -> None:
    """A hint: the values need not exist."""


# --- libdevice


def _external_expression(op: Op, args: Sequence[str]) -> str:
    symbol = op.attrs["symbol"]
    template = libdevice_table.SYMBOLS.get(symbol)
    if template is None:
        raise UnsupportedOperation(f"tt.extern_elementwise of {symbol!r}: no such function is known for this device")
    return tables.rounded(template.format(*args), op.result.element)


def _element_external(loop: Loop, op: Op, args: Sequence[str]) -> str:
    return loop.temporary(op.result.element, _external_expression(op, args))


def _external(e: Emitter, op: Op) -> None:
    if op.result.is_tensor:
        e.pending.append(op)
    else:
        e.define(op.result, _external_expression(op, [e.scalar(o) for o in op.operands]))


ELEMENT_PRINTERS["tt.extern_elementwise"] = _element_external


_DEPENDENT_LAUNCH = re.compile(r"griddepcontrol\.(wait|launch_dependents);\s*(//.*)?")


def _inline_assembly(e: Emitter, op: Op) -> None:
    text = assembly.text_of(op)
    if _DEPENDENT_LAUNCH.fullmatch(text):
        # tl.extra.cuda.gdc_wait and gdc_launch_dependents: a kernel here begins when the one before it has ended, so
        # that nothing is left to wait for, and no hint to begin the next one earlier is needed. The result is a dummy.
        e.define(op.result, "0")
        return
    raise UnsupportedOperation(
        f"tl.inline_asm_elementwise: the inline assembly {text!r} is of another device; write it with triton.language"
    )


HANDLERS: dict[str, Handler] = {
    assembly.OP: _inline_assembly,
    "gpu.barrier": _barrier,
    "llvm.intr.assume": _nothing,
    "tt.extern_elementwise": _external,
    "tt.get_num_programs": _num_programs,
    "tt.get_program_id": _program_id,
    "ttg.barrier": _barrier,
}
