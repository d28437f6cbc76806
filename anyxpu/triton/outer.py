"""Matrix products on a CPU device: sums of outer products, eight rows by as many columns as the sub-group has lanes.

Lane l holds column l of the eight accumulated rows, as with a matrix engine, so that the sums stay in vector registers
along k: each step takes one vector of ``b`` and one number of each of eight rows of ``a``. Both come from local memory,
in the type of the sums; ``b`` row-major, and ``a`` too unless it is the transpose of what is at hand, for its numbers
may lie anywhere.
"""

from __future__ import annotations

from anyxpu.triton import move, tables
from anyxpu.triton.emit import Emitter
from anyxpu.triton.ir import Op, Scalar, Value
from anyxpu.triton.layout import ACCUMULATOR_ROWS, BitMap, Layout, log2

_F32 = Scalar("f32")
_SUMS = {"f32": _F32, "f16": _F32, "bf16": _F32, "f64": Scalar("f64"), "i32": Scalar("i32")}


def sums_of(op: Op) -> Scalar | None:
    """The type that a product is summed in; None where it accumulates in a type that products have not."""
    element = op.result.element
    return _SUMS.get(element.name) if isinstance(element, Scalar) else None


def fits(op: Op, lanes: int) -> bool:
    """Whether the result of a ``tt.dot`` has at least one tile."""
    m, n = move.tensor_type(op.operands[0]).shape[-2], move.tensor_type(op.operands[1]).shape[-1]
    return sums_of(op) is not None and m >= ACCUMULATOR_ROWS and n >= lanes


def dot(e: Emitter, op: Op, a: Value, b: Value) -> None:
    """Print ``result = c + a · b``, one tile after the other."""
    e.flush()
    wide = sums_of(op)
    assert wide is not None
    c_type = tables.register_type(wide)
    m, k = move.tensor_type(a).shape[-2:]
    n = move.tensor_type(b).shape[-1]
    source = _transposed(e, a)
    at_row, at_k = (k, 1) if source is None else (1, m)
    operands = (a if source is None else source, b)
    places = e.locals((wide, move.tensor_type(v).size) for v in operands)
    for v, place in zip(operands, places, strict=True):
        with e.loop(e.layout(v).registers) as loop:
            e.line(f"{place}[{loop.offset(e.layout(v))}] = ({c_type}){loop.value(v)};")
    e.barrier()
    c, layout = op.operands[2], e.layout(op.result)
    out = e.declare(op.result.element, layout.registers)
    origin = Layout(layout.reg, (0,) * len(layout.lane), layout.warp)
    with e.loop(layout.registers // ACCUMULATOR_ROWS) as loop:
        first = BitMap(tuple(b * ACCUMULATOR_ROWS for b in loop.here.bases))
        rows = [BitMap(first.bases, j) for j in range(ACCUMULATOR_ROWS)]
        place = e.variable("int", loop.offset(origin, first))
        row, column = f"({place} >> {log2(n)})", f"({place} & {n - 1})"
        x = e.variable(f"__local const {c_type}*", f"{places[0]} + {row} * {at_row}")
        y = e.variable(f"__local const {c_type}*", f"{places[1]} + ({row} >> {log2(m)}) * {k * n} + {column} + lane")
        totals = [loop.temporary(wide, loop.value(c, r)) for r in rows]
        q, w = e.fresh("k"), e.fresh("w")
        with e.braces(f"for (int {q} = 0; {q} < {k}; ++{q})"):
            e.line(f"const {c_type} {w} = {y}[{q} * {n}];")
            for j, total in enumerate(totals):
                e.line(f"{total} = {multiply_add(wide, f'{x}[{j * at_row} + {q} * {at_k}]', w, total)};")
        for r, total in zip(rows, totals, strict=True):
            e.line(f"{out.element(loop.register(r))} = {tables.rounded(total, op.result.element)};")
    e.barrier()
    e.tensors[op.result] = out


def _transposed(e: Emitter, v: Value) -> Value | None:
    """What a matrix is the transpose of, where that is still at hand."""
    op = v.owner
    if not isinstance(op, Op) or op.name != "tt.trans" or len(move.tensor_type(v).shape) != 2:
        return None
    if list(op.attrs["order"]) != [1, 0]:
        return None
    source = op.operands[0]
    return e.renamed.get(source, source)


def multiply_add(t: Scalar, x: str, y: str, total: str) -> str:
    """``total + x * y``, in two's complement for integers."""
    if not t.is_float:
        return f"(int)((uint){total} + (uint)((int){x} * (int){y}))"
    c = tables.register_type(t)
    return tables.rounded(f"fma(({c}){x}, ({c}){y}, {total})", t)
