"""Matrix products on a CPU device: sums of outer products, eight accumulators of as many columns as there are lanes.

Lane l holds column l of the rows, as with a matrix engine, so that the sums stay in vector registers along k: each step
takes a vector of ``b`` and one number of each row of ``a``. Both come from local memory, in the type of the sums; ``b``
row-major, and ``a`` too unless it is the transpose of what is at hand, for its numbers may lie anywhere. Where lanes
already lie along ``b``'s columns and no number of it is wanted twice, it is read where it is: another copy of a
decoding attention's values would not fit in a core's first cache. Of fewer rows than eight, several vectors of ``b``
are taken at once.

The few rows of a decoding attention's scores, whose ``b`` is a transpose, are inner products instead: lanes lie along k
as they do in what ``b`` is the transpose of, and sixteen sums at a time are folded into one vector of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anyxpu.triton import layout as layouts
from anyxpu.triton import move, tables
from anyxpu.triton.emit import Array, Emitter, Loop, bit_expression
from anyxpu.triton.ir import Op, Scalar, Value
from anyxpu.triton.layout import ACCUMULATOR_ROWS, BitMap, Layout, log2

_F32 = Scalar("f32")
_SUMS = {"f32": _F32, "f16": _F32, "bf16": _F32, "f64": Scalar("f64"), "i32": Scalar("i32")}


def sums_of(op: Op) -> Scalar | None:
    """The type that a product is summed in; None where it accumulates in a type that products have not."""
    element = op.result.element
    return _SUMS.get(element.name) if isinstance(element, Scalar) else None


def fits(op: Op, lanes: int) -> bool:
    """Whether the result of a ``tt.dot`` has at least one vector of columns."""
    n = move.tensor_type(op.operands[1]).shape[-1]
    return sums_of(op) is not None and n >= lanes


def dot(e: Emitter, op: Op, a: Value, b: Value) -> None:
    """Print ``result = c + a · b``, one tile after the other."""
    e.flush()
    wide = sums_of(op)
    assert wide is not None
    c_type = tables.register_type(wide)
    m, k = move.tensor_type(a).shape[-2:]
    n = move.tensor_type(b).shape[-1]
    columns = _transposed(e, b) if m <= FEW_ROWS else None
    if columns is not None and _summable(e, columns):
        _inner(e, op, a, columns, wide)
        return
    source = _transposed(e, a)
    at_row, at_k = (k, 1) if source is None else (1, m)
    b = move.innermost(e, b)  # its columns are read side by side, so they are written so
    lying = _lying(e, b) if m <= ACCUMULATOR_ROWS else None
    places = _staged(e, [a if source is None else source, *([] if lying else [b])], wide)
    e.barrier()
    c, layout = op.operands[2], e.layout(op.result)
    out = e.declare(op.result.element, layout.registers)
    origin = Layout(layout.reg, (0,) * len(layout.lane), layout.warp)
    rows = min(m, ACCUMULATOR_ROWS)
    tile = rows  # registers: of all rows, and then of the next columns
    while (
        tile < min(ACCUMULATOR_ROWS, rows * n // e.lanes, layout.registers)
        and layout.reg[log2(tile)] == tile // rows * e.lanes
    ):
        tile *= 2
    with e.loop(layout.registers // tile) as loop:
        first = BitMap(tuple(b * tile for b in loop.here.bases))
        registers = [BitMap(first.bases, j) for j in range(tile)]
        place = e.variable("int", loop.offset(origin, first))
        row, column = f"({place} >> {log2(n)})", f"({place} & {n - 1})"
        x = e.variable(f"__local const {c_type}*", f"{places[0]} + {row} * {at_row}")
        matrix = f"({row} >> {log2(m)})"
        if lying:
            vector_at = lying.from_column(e, matrix, column)
        else:
            y = e.variable(f"__local const {c_type}*", f"{places[1]} + {matrix} * {k * n} + {column} + lane")
            vector_at = _from(y, n, e.lanes)
        totals = [loop.temporary(wide, loop.value(c, r)) for r in registers]
        q = e.fresh("k")
        with e.braces(f"for (int {q} = 0; {q} < {k}; ++{q})"):
            vectors = [e.variable(c_type, vector_at(q, i)) for i in range(tile // rows)]
            for j, total in enumerate(totals):
                number = f"{x}[{j % rows * at_row} + {q} * {at_k}]"
                e.line(f"{total} = {multiply_add(wide, number, vectors[j // rows], total)};")
        for r, total in zip(registers, totals, strict=True):
            e.line(f"{out.element(loop.register(r))} = {tables.rounded(total, op.result.element)};")
    e.barrier()
    e.tensors[op.result] = out


VectorAt = Callable[[str, int], str]
"""The C expression of one lane's part of a vector of ``b``: its row, and which of the next vectors of columns."""


def _from(pointer: str, n: int, lanes: int) -> VectorAt:
    return lambda q, i: f"{pointer}[{q} * {n} + {i * lanes}]"


@dataclass(frozen=True)
class _Lying:
    """A matrix in an array that loops may index, its lanes along the columns: which register holds what.

    ``rows``, ``vectors`` and ``matrices`` are the registers of the bits of a row's number, of that of a vector of
    columns, and of the matrix's.
    """

    array: Array
    rows: tuple[int, ...]
    vectors: tuple[int, ...]
    matrices: tuple[int, ...]
    const: int
    lanes: int

    def from_column(self, e: Emitter, matrix: str, column: str) -> VectorAt:
        """Vectors from a column on, whose number is a multiple of theirs."""
        first = f"({column} >> {log2(self.lanes)})"
        parts = [bit_expression(first, self.vectors, self.const), bit_expression(matrix, self.matrices)]
        start = e.variable("const int", " ^ ".join(parts))

        def vector_at(q: str, i: int) -> str:
            return self.array.element(f"{bit_expression(q, self.rows)} ^ {BitMap(self.vectors).linear(i)} ^ {start}")

        return vector_at


def _lying(e: Emitter, b: Value) -> _Lying | None:
    """``b`` where it is, if it can be read there."""
    array, layout, (k, n) = e.tensors[b], e.layout(b), move.tensor_type(b).shape[-2:]
    if e.warps != 1 or not isinstance(array, Array) or not array.item or array.registers == 1:
        return None
    rows, vectors = [n << i for i in range(log2(k))], [e.lanes << i for i in range(log2(n // e.lanes))]
    matrices = [k * n << i for i in range(log2(move.tensor_type(b).size // (k * n)))]
    lanes = tuple(1 << i for i in range(log2(e.lanes)))
    found = layouts.register_map(layout, Layout((*rows, *vectors, *matrices), lanes, layout.warp))
    if found is None:
        return None
    bases = iter(found.bases)
    parts = [tuple(itertools.islice(bases, len(bits))) for bits in (rows, vectors, matrices)]
    return _Lying(array, parts[0], parts[1], parts[2], found.const, e.lanes)


def _staged(e: Emitter, operands: Sequence[Value], wide: Scalar) -> list[str]:
    """Put operands into local memory, row-major and in the type of the sums; pointers to them."""
    places = e.locals((wide, move.tensor_type(v).size) for v in operands)
    for v, place in zip(operands, places, strict=True):
        with e.loop(e.layout(v).registers) as loop:
            e.line(f"{place}[{loop.offset(e.layout(v))}] = ({tables.register_type(wide)}){loop.value(v)};")
    return places


# --- few rows


# With more, turning ``b`` around once is less work than folding the sums of each row.
FEW_ROWS = 4


def _summable(e: Emitter, columns: Value) -> bool:
    """Whether lanes lie along k in what ``b`` is the transpose of."""
    layout, (n, k) = e.layout(columns), move.tensor_type(columns).shape
    along_k = tuple(1 << i for i in range(log2(e.lanes)))
    return e.warps == 1 and n >= e.lanes and k >= e.lanes and layout.lane == along_k


def _inner(e: Emitter, op: Op, a: Value, columns: Value, wide: Scalar) -> None:
    """``result = c + a · b`` as inner products of rows of ``a`` and of ``columns``, the transpose of ``b``."""
    (n, k), lanes = move.tensor_type(columns).shape, e.lanes
    m = move.tensor_type(a).shape[-2]
    (x,) = _staged(e, (a,), wide)
    e.barrier()
    c, layout = op.operands[2], e.layout(op.result)
    out = e.declare(op.result.element, layout.registers, indexed=True)
    c_type = tables.register_type(wide)
    # Of ``columns``, in its own offsets: as many columns as lanes, then steps along k, then further columns.
    steps, groups = log2(k // lanes), log2(n // lanes)
    beside = [k << i for i in range(log2(lanes))]
    reads = Layout(
        (*beside, *(lanes << i for i in range(steps)), *(k * lanes << i for i in range(groups))),
        e.layout(columns).lane,
        (),
    )
    places = layouts.register_map(e.layout(columns), reads)
    # Of the result: the rows, then further columns.
    writes = Layout((*(n << i for i in range(log2(m))), *(lanes << i for i in range(groups))), layout.lane, ())
    registers = layouts.register_map(layout, writes)
    assert places is not None and registers is not None
    at, row, step = e.fresh("k"), e.fresh("k"), e.fresh("k")
    with e.braces(f"for (int {at} = 0; {at} < {m << groups}; ++{at})"):
        e.line(f"const int {row} = {at} & {m - 1};")
        sums = [e.variable(c_type, "0") for _ in range(lanes)]
        with e.braces(f"for (int {step} = 0; {step} < {1 << steps}; ++{step})"):
            loop = Loop(e, 1 << steps + groups)
            e.line(f"const int {loop.counter} = {step} + ({at} >> {log2(m)} << {steps});")
            vector = e.variable(c_type, f"{x}[{row} * {k} + {step} * {lanes} + lane]")
            for i, total in enumerate(sums):
                index = BitMap(places.bases[log2(lanes) :], places.linear(i) ^ places.const)
                e.line(f"{total} = {multiply_add(wide, loop.value(columns, index), vector, total)};")
        for bit in reversed(range(log2(lanes))):
            sums = _folded(e, sums, wide, 1 << bit)
        result = Loop(e, m << groups)
        result.counter = at
        total = _sum(wide, sums[0], result.value(c, registers))
        e.line(f"{out.element(result.register(registers))} = {tables.rounded(total, op.result.element)};")
    e.barrier()
    e.tensors[op.result] = out


def _folded(e: Emitter, sums: Sequence[str], wide: Scalar, bit: int) -> list[str]:
    """Half as many sums: lanes without ``bit`` hold the first half's, over both lanes, those with it the second's."""
    c_type, half, out = tables.register_type(wide), len(sums) // 2, []
    for low, high in zip(sums[:half], sums[half:], strict=True):
        mine = e.variable(c_type, f"(lane & {bit}) ? {high} : {low}")
        given = e.variable(c_type, f"(lane & {bit}) ? {low} : {high}")
        out.append(e.variable(c_type, _sum(wide, mine, f"sub_group_shuffle_xor({given}, {bit})")))
    return out


def _transposed(e: Emitter, v: Value) -> Value | None:
    """What a matrix is the transpose of, where that is still at hand."""
    op = v.owner
    if not isinstance(op, Op) or op.name != "tt.trans" or len(move.tensor_type(v).shape) != 2:
        return None
    if list(op.attrs["order"]) != [1, 0]:
        return None
    source = op.operands[0]
    return e.renamed.get(source, source)


def _sum(t: Scalar, x: str, y: str) -> str:
    return f"({x} + {y})" if t.is_float else f"(int)((uint){x} + (uint){y})"


def multiply_add(t: Scalar, x: str, y: str, total: str) -> str:
    """``total + x * y``, in two's complement for integers."""
    if not t.is_float:
        return f"(int)((uint){total} + (uint)((int){x} * (int){y}))"
    c = tables.register_type(t)
    return tables.rounded(f"fma(({c}){x}, ({c}){y}, {total})", t)
