"""Inline assembly that only names a function: many kernels ask for CUDA's fast ones so, which Triton has no words for.

An op of one PTX instruction of the table below becomes the external function that it is. Here such a function is as
exact as any other, subnormal numbers included.
"""

from __future__ import annotations

import re

from anyxpu.triton import libdevice_table
from anyxpu.triton.ir import Function, Op, Scalar, walk

OP = "tt.elementwise_inline_asm"

# PTX's instruction, without how exact it is (.approx, .ftz, .rn) and its type -> the function of libdevice's.
_FUNCTIONS = {
    "cos": "cos",
    "ex2": "exp2",
    "lg2": "log2",
    "rcp": "rcp_rn",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "sqrt": "sqrt",
    "tanh": "tanh",
}
_INSTRUCTION = re.compile(r"\s*(\w+)\.(?:approx|rn)(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*")
_TO_TF32 = re.compile(r"\s*cvt\.rna\.tf32\.f32\s+\$0\s*,\s*\$1\s*;?\s*")


def text_of(op: Op) -> str:
    """The assembly itself."""
    return str((op.attrs.get("values") or [""])[0])


def translate(function: Function) -> None:
    """Make external functions of the ops that are one instruction of the table, of one f32."""
    for op in walk(function.body) if function.body is not None else ():
        symbol = _symbol(op) if op.name == OP else None
        if symbol is not None:
            op.name, op.attrs = "tt.extern_elementwise", {"symbol": symbol}


def _symbol(op: Op) -> str | None:
    if [v.element for v in (*op.operands, *op.results)] != [Scalar("f32")] * 2:
        return None
    if _TO_TF32.fullmatch(text_of(op)):
        return libdevice_table.TO_TF32
    instruction = _INSTRUCTION.fullmatch(text_of(op))
    name = _FUNCTIONS.get(instruction[1]) if instruction else None
    return None if name is None else libdevice_table.symbol(name, ("fp32",))
