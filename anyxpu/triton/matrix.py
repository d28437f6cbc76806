"""Matrix products on Intel's matrix engines: which ones, how their accumulators lie, and how they are printed.

One instruction (``dpas``) multiplies 8 rows by as many columns as the sub-group has lanes, 8 on Xe-HPG and 16 on
the others, over a depth that the element type gives: lane l holds column l of the eight accumulated rows. The
accumulators' tensors are given that layout for all of a kernel, so that a loop carries them in registers; what other
code wants of them goes through the usual conversions. Operands come from local memory, row-major.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anyxpu.triton import move, tables
from anyxpu.triton.elements import Array
from anyxpu.triton.emit import Emitter
from anyxpu.triton.ir import Encoding, Function, Op, Scalar, Tensor, Type, Value, walk
from anyxpu.triton.layout import ACCUMULATOR_ROWS, BitMap, Layout, log2


@dataclass(frozen=True)
class Form:
    """A kind of product the engine has.

    Attributes:
        depth: how much of k one instruction sums.
        suffix: of the prelude's ``ax_dpas8_`` and ``ax_dpas16_`` functions.
        bits: the type that holds an operand's element in local memory.
        accumulator: the C type of eight rows.
        prepared: what becomes of an operand's element first.
        instruction: behind ``intel_sub_group_``; of 16 lanes it takes a short8 and an int8.
        fragments: of the prelude's functions that give it these; None where block loads do not (see block_io.py).
    """

    depth: int
    suffix: str
    bits: Scalar
    accumulator: str
    prepared: str = "{0}"
    instruction: str = ""
    fragments: str | None = None


# A product of such operands in Triton's text.
_ELIGIBLE = re.compile(r"tt\.dot .*x(?:f16|bf16|i8)[,>].* \* ")
_ELIGIBLE_TF32 = re.compile(r"tt\.dot .*inputPrecision = tf32\b.*xf32[,>].* \* ")

_FORMS = {
    ("f16", "f32"): Form(16, "f16", Scalar("i16"), "float8", instruction="f16_f16_matrix_mad_k16", fragments="16"),
    ("bf16", "f32"): Form(16, "bf16", Scalar("i16"), "float8", instruction="bf16_bf16_matrix_mad_k16", fragments="16"),
    # Summed in f32 and rounded once, from local memory.
    ("f16", "f16"): Form(16, "f16", Scalar("i16"), "float8"),
    ("bf16", "bf16"): Form(16, "bf16", Scalar("i16"), "float8"),
    ("i8", "i32"): Form(32, "i8", Scalar("i8"), "int8", instruction="i8_i8_matrix_mad_k32", fragments="8"),
}
# Of f32, where the kernel allows it; engines for sub-groups of 8 do not have it.
_TF32 = Form(8, "tf32", Scalar("i32"), "float8", "ax_round_tf32({0})")


def has_products(ttir: str, lanes: int) -> bool:
    """Whether an engine for so many lanes may have something to do in a module before its layouts are chosen."""
    return _ELIGIBLE.search(ttir) is not None or (lanes == 16 and _ELIGIBLE_TF32.search(ttir) is not None)


def form_of(op: Op, lanes: int) -> Form | None:
    """How the engine does this ``tt.dot``, or None where it does not: another type, or less than one tile."""
    a, b = op.operands[:2]
    if a.element != b.element:
        return None
    types = (str(a.element), str(op.result.element))
    form = _FORMS.get(types)
    if types == ("f32", "f32") and op.attrs.get("inputPrecision") == "tf32" and lanes == 16:
        form = _TF32
    m, k = move.tensor_type(a).shape[-2:]
    n = move.tensor_type(b).shape[-1]
    large = form is not None and m >= ACCUMULATOR_ROWS and n >= lanes and k >= form.depth
    return form if large else None


def place_accumulators(
    function: Function, lanes: int, tiled: Callable[[Op, int], object] = form_of, rows: int = ACCUMULATOR_ROWS
) -> None:
    """Give every tensor that shares its encoding with the result of a product the accumulators' layout.

    ``tiled``: whether a product is summed in tiles of them, given the lanes. ``rows``: of such a tile.
    """
    assert function.body is not None
    placed: dict[Encoding, Encoding] = {}
    operations = list(walk(function.body))
    for op in operations:
        encoding = op.result.type.encoding if op.name == "tt.dot" and isinstance(op.result.type, Tensor) else None
        if encoding is not None and encoding.kind == "blocked" and tiled(op, lanes):
            parameters = (("warpsPerCTA", encoding["warpsPerCTA"]), ("columns", lanes), ("rows", rows))
            placed[encoding] = Encoding("accumulator", parameters)
    if not placed:
        return
    for value in _values(function, operations):
        value.type = _replaced(value.type, placed)


def _values(function: Function, operations: list[Op]) -> list[Value]:
    regions = [function.body, *(region for op in operations for region in op.regions)]
    values = {id(v): v for op in operations for v in (*op.results, *op.operands)}
    values |= {id(v): v for region in regions if region for block in region.blocks for v in block.args}
    return list(values.values())


def _replaced(type: Type, placed: dict[Encoding, Encoding]) -> Type:
    if not isinstance(type, Tensor) or type.encoding is None:
        return type
    return Tensor(type.shape, type.element, _replaced_encoding(type.encoding, placed))


def _replaced_encoding(encoding: Encoding, placed: dict[Encoding, Encoding]) -> Encoding:
    """Also inside slices; an operand's layout (``dot_op``) stays what it was."""
    if encoding in placed:
        return placed[encoding]
    if encoding.kind != "slice":
        return encoding
    parent = _replaced_encoding(encoding["parent"], placed)
    return Encoding("slice", tuple((k, parent if k == "parent" else v) for k, v in encoding.params))


def dot(e: Emitter, op: Op, form: Form, a: Value, b: Value) -> None:
    """Print ``result = c + a · b``, one accumulator tile after the other."""
    e.flush()
    out = e.declare(op.result.element, e.layout(op.result).registers)
    staged_dot(e, op, form, a, b, out)
    e.tensors[op.result] = out


def stage(e: Emitter, form: Form, operands: Sequence[Value]) -> list[str]:
    """Put operands into local memory, row-major; pointers to them. A barrier has passed where there is any."""
    e.flush()
    places = e.locals((form.bits, move.tensor_type(v).size) for v in operands)
    for v, place in zip(operands, places, strict=True):
        assert isinstance(v.element, Scalar)
        with e.loop(e.layout(v).registers) as loop:
            bits = tables.bits_of(form.prepared.format(loop.value(v)), v.element)
            e.line(f"{place}[{loop.offset(e.layout(v))}] = ({tables.register_type(form.bits)}){bits};")
    if operands:
        e.barrier()
    return places


def staged_dot(e: Emitter, op: Op, form: Form, a: Value, b: Value, out: Array) -> None:
    """Print ``out = c + a · b`` with operands from local memory."""
    c, layout = op.operands[2], e.layout(op.result)
    k, n = move.tensor_type(a).shape[-1], move.tensor_type(b).shape[-1]
    m = move.tensor_type(a).shape[-2]
    places = stage(e, form, (a, b))
    origin = Layout(layout.reg, (0,) * len(layout.lane), layout.warp)
    with e.loop(layout.registers // ACCUMULATOR_ROWS, unroll=True) as loop:
        first = BitMap(tuple(b * ACCUMULATOR_ROWS for b in loop.here.bases))
        rows = [BitMap(first.bases, j) for j in range(ACCUMULATOR_ROWS)]
        place = e.variable("int", loop.offset(origin, first))
        row, column = f"({place} >> {log2(n)})", f"({place} & {n - 1})"
        x = e.variable(f"__local const {tables.register_type(form.bits)}*", f"{places[0]} + {row} * {k}")
        y = f"{places[1]} + ({row} >> {log2(m)}) * {k * n} + {column}"
        y = e.variable(f"__local const {tables.register_type(form.bits)}*", y)
        total = e.variable(form.accumulator, f"({form.accumulator})({', '.join(loop.value(c, r) for r in rows)})")
        q = e.fresh("k")
        with e.braces(f"for (int {q} = 0; {q} < {k}; {q} += {form.depth})"):
            e.line(f"{total} = ax_dpas{e.lanes}_{form.suffix}({x} + {q}, {k}, {y} + {q} * {n}, {n}, lane, {total});")
        for j, r in enumerate(rows):
            e.line(f"{out.element(loop.register(r))} = {tables.rounded(f'{total}.s{j}', op.result.element)};")
    e.barrier()
