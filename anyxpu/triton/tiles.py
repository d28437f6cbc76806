"""Matrix products on a CPU device by its tile registers (AMX): which ones, how operands lie, and how they are printed.

One instruction multiplies 16 rows by 16 columns over 64 bytes of depth: 32 of bfloat16, summed in f32, or 64 of int8,
summed in int32. The left operand lies row-major. Of the right one each row holds, for every column, the four bytes
that follow each other along k (Intel, "Architecture Instruction Set Extensions", chapter on AMX), so that one that is
the transpose of a row-major matrix is that matrix with 32-bit words for elements, turned around. Operands are put so
into local memory: what a loop does not change before the loop, what nothing else wants straight from where it is
loaded or computed. Accumulators are in local memory too, tile after tile.

The instruction of bfloat16 takes numbers below the least normal one for 0, and makes none.
OpenCL C has no such instructions; the prelude's functions have them in assembly, which one lane runs for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anyxpu.triton import layout as layouts
from anyxpu.triton import move, outer, tables
from anyxpu.triton.elements import Array, Loop, Splat, View
from anyxpu.triton.emit import Emitter
from anyxpu.triton.ir import Encoding, Op, Scalar, Value, blocks
from anyxpu.triton.layout import BitMap, Layout, flat, log2, unflat

ROWS = 16
"""Rows, and columns, of a tile of accumulators: as many as a sub-group has lanes."""
_BEFORE, _KEPT = "tiles_before", "tiles_kept"
ENTER = (
    f"__local char {_BEFORE}[64] __attribute__((aligned(64))), {_KEPT}[512] __attribute__((aligned(64)));",
    f"if (lane == 0) ax_tiles_enter({_BEFORE});",
)
LEAVE = f"if (lane == 0) ax_tiles_leave({_BEFORE});"
"""At a kernel's beginning and at its ends: how many rows and bytes the tiles have, and what the thread had before."""
_ZEROS = ("0", "0x0.0p+0f", "0.0f")
ACCUMULATORS = Encoding("accumulator", (("warpsPerCTA", (1, 1)), ("columns", ROWS), ("rows", ROWS)))
_WORD = 4
"""Bytes along k that lie side by side in a right operand."""


@dataclass(frozen=True)
class Form:
    """A kind of product that tiles have.

    Attributes:
        depth: elements of k that one instruction sums.
        function: the prelude's.
        held: the C type that holds an operand's element in local memory.
        bytes: of an element.
    """

    depth: int
    function: str
    held: str
    bytes: int


_FORMS = {
    ("bf16", "f32"): Form(32, "ax_tiles_bf16", "short", 2),
    ("i8", "i32"): Form(64, "ax_tiles_i8", "char", 1),
}


def form_of(op: Op, lanes: int, warps: int) -> Form | None:
    """How tiles do this ``tt.dot``; None where they do not: another type, less than one tile, several matrices."""
    if op.name != "tt.dot" or lanes != ROWS or warps != 1:
        return None
    a, b = op.operands[:2]
    form = _FORMS.get((str(a.element), str(op.result.element))) if a.element == b.element else None
    left, right = move.tensor_type(a).shape, move.tensor_type(b).shape
    if form is None or len(left) != 2 or left[0] < ROWS or right[1] < ROWS or left[1] < form.depth:
        return None
    encoding = move.tensor_type(op.result).encoding
    # Before layouts are chosen it is what Triton gave it; then it must be tile after tile.
    placed = encoding is not None and (encoding.kind == "blocked" or is_placed(encoding))
    return form if placed else None


def is_placed(encoding: Encoding) -> bool:
    """Whether accumulators of that layout are tiles."""
    return encoding.kind == "accumulator" and encoding["rows"] == encoding["columns"] == ROWS


_BETWEEN = frozenset(tables.ELEMENTWISE) | {
    "arith.constant", "tt.addptr", "tt.broadcast", "tt.dot", "tt.expand_dims", "tt.load", "tt.make_range", "tt.reduce",
    "tt.reshape", "tt.splat", "tt.trans", "ttg.convert_layout",
}  # fmt: skip
"""Operations that change no memory."""


def find_reads(e: Emitter) -> None:
    """Mark the loads that products read by themselves: which nothing else wants, and behind which nothing is written
    until then. Where they stand they would have to be kept.
    """
    assert e.function.body is not None
    for block in blocks(e.function.body):
        changed = -1
        where = {op: i for i, op in enumerate(block.ops)}
        for i, product in enumerate(block.ops):
            if product.name not in _BETWEEN:
                changed = i
            if form_of(product, e.lanes, e.warps) is None:
                continue
            for v in product.operands[:2]:
                load = _operand(e, v).source.owner
                if not isinstance(load, Op) or load.name != "tt.load" or where.get(load, -1) <= changed:
                    continue
                plain = not load.attrs.get("isVolatile") and "looked_up" not in load.attrs
                if plain and outer.wanted_by(e, load.result, product):
                    load.attrs["at_product"] = True


def dot(e: Emitter, op: Op, form: Form, a: Value, b: Value) -> None:
    """Print ``result = c + a · b``."""
    c, result = op.operands[2], op.result
    m, n, k = move.tensor_type(a).shape[0], *reversed(move.tensor_type(b).shape)
    outer.join_later(e, op, c)
    operands = [_operand(e, v) for v in (a, b)]
    for operand in operands:
        if (rounded := operand.rounded) is not None and rounded in e.pending and outer.wanted_by(e, rounded.result, op):
            e.pending.remove(rounded)
        outer.read_later(e, op, operand.source)
    e.flush()
    left, right = (
        e.staged.get((v, side)) or _put(e, operand, side, form)
        for side, (v, operand) in enumerate(zip((a, b), operands, strict=True))
    )
    layout = e.layout(result)
    out = outer.accumulated_in_place(e, op)
    if out is None or not out.item:
        out = e.declare(result.element, layout.registers, layout, indexed=True)
    held = e.tensors[c]
    zero = isinstance(held, Splat) and held.expression.strip("()") in _ZEROS
    if not zero and held != out:
        with e.loop(layout.registers) as loop:
            e.line(f"{out.element(loop.counter)} = {loop.value(c)};")
    e.barrier()
    sizes = f"{m}, {n}, {k * form.bytes}, {int(zero)}"
    pointers = ", ".join(f"(__local const char*){name}" for name in (left, right))
    e.line(f"if (lane == 0) {form.function}({pointers}, (__local char*){out.name}, {sizes});")
    e.barrier()
    e.tensors[result] = out


def prepare(e: Emitter, op: Op) -> dict[tuple[Value, int], str]:
    """Before a loop of products is printed: put there what of their operands the loop does not change.

    Returns:
        Where each is, by the operand as the loop has it and its side.
    """
    block = op.regions[0].entry
    here = set(block.args) | {r for o in block.ops for r in o.results}
    found: dict[tuple[Value, int], str] = {}
    for product in block.ops:
        form = form_of(product, e.lanes, e.warps) if e.tiles else None
        if form is None:
            continue
        for side, v in enumerate(product.operands[:2]):
            operand = _operand(e, v)
            if operand.source in here or operand.source not in e.tensors:
                continue
            name = _put(e, operand, side, form)
            found |= {(u, side): name for u in _same(v)}
    return found


@dataclass(frozen=True)
class _Operand:
    """What an operand is made of, as tiles may read it.

    Attributes:
        source: a tensor.
        turned: it is the transpose of the operand.
        rounded: its elements become the operand's by this op, where there is one.
    """

    source: Value
    turned: bool
    rounded: Op | None

    def element(self, e: Emitter, loop: Loop, index: BitMap | None = None) -> str:
        """The bits of an element of the operand, where the source has it."""
        element, held = loop.value(self.source, index), self.source.element
        if self.rounded is not None:
            element, held = e.expression(self.rounded, [element]), self.rounded.result.element
        assert isinstance(held, Scalar)
        return tables.bits_of(element, held)


def _operand(e: Emitter, v: Value) -> _Operand:
    """The operand without the layout conversions, the transpose, and the rounding of f32 before it.

    What is printed already is what it is; what is not is looked through.
    """
    turned, rounded = False, None
    while isinstance(v.owner, Op):
        op = v.owner
        if op.name == "tt.trans" and not turned and list(op.attrs["order"]) == [1, 0]:
            turned = True
        elif op.name == "arith.truncf" and rounded is None and not isinstance(e.tensors.get(v), Array):
            rounded = op
        elif op.name == "tt.bitcast" and rounded is None and not isinstance(e.tensors.get(v), Array):
            pass  # an element's bits are what is read
        elif op.name != "ttg.convert_layout":
            break
        v = op.operands[0]
    return _Operand(e.renamed.get(v, v), turned, rounded)


def _same(v: Value) -> list[Value]:
    """An operand and what conversions give it of, which the product reads instead."""
    found = [v]
    while isinstance(v.owner, Op) and v.owner.name == "ttg.convert_layout":
        v = v.owner.operands[0]
        found.append(v)
    return found


def _put(e: Emitter, operand: _Operand, side: int, form: Form) -> str:
    """Put an operand, or what it is the transpose of, into local memory as tiles of that side read it; its array.

    What is on the left, or whose transpose is on the right, has elements along k side by side; what is on the right, or
    whose transpose is on the left, has them above each other. For a transpose the words of that are turned around.
    """
    e.flush()
    shape, layout = move.tensor_type(operand.source).shape, e.layout(operand.source)
    turned = operand.turned
    if layout.lane == tuple(shape[1] << i for i in range(log2(e.lanes))):  # then it had better be taken by columns
        layout = layout.map(lambda offset: flat(unflat(offset, shape)[::-1], shape[::-1]))
        shape, turned = shape[::-1], not turned
    else:
        operand = replace(operand, source=move.innermost(e, operand.source))
        layout = e.layout(operand.source)
    height, width = shape
    in_rows = turned == (side == 1)
    name = _rounded(e, operand, shape, in_rows)
    if in_rows:
        name, width = name or _rows(e, operand, layout, form), width * form.bytes // _WORD
    else:
        name, height = name or _words(e, operand, layout, shape, form), height * form.bytes // _WORD
    return _turned(e, name, height, width) if turned else name


def _rounded(e: Emitter, operand: _Operand, shape: tuple[int, ...], in_rows: bool) -> str | None:
    """What is rounded to bfloat16, as :func:`_rows` or :func:`_words` have it, where it lies in tiles of f32."""
    held = e.tensors[operand.source]
    if operand.rounded is None or not isinstance(held, Array) or not held.item or held.type != Scalar("f32"):
        return None
    tiled = layouts.encoded(shape, ACCUMULATORS)
    if min(shape) < ROWS or e.layout(operand.source) != tiled or str(operand.rounded.result.element) != "bf16":
        return None
    name = e.array("short", shape[0] * shape[1]) if in_rows else e.array("int", shape[0] * shape[1] // 2)
    kind = "rows" if in_rows else "words"
    _for_all(e, f"ax_tiles_round_{kind}", held.name, name, f"{_KEPT}, {shape[0]}, {shape[1]}")
    return name


def _for_all(e: Emitter, function: str, source: str, target: str, others: str) -> None:
    """One lane does it."""
    e.barrier()
    e.line(f"if (lane == 0) {function}((__local const char*){source}, (__local char*){target}, {others});")
    e.barrier()


def _rows(e: Emitter, operand: _Operand, layout: Layout, form: Form) -> str:
    """The elements row-major, as the layout has rows."""
    held, registers = e.elements(operand.source), layout.registers
    while isinstance(held, View) and held.map == layouts.identity(registers):
        held = e.elements(held.source)
    if isinstance(held, Array) and operand.rounded is None and _is_there(e, held, layout, form):
        return held.name
    name = e.array(form.held, move.tensor_type(operand.source).size)
    with e.loop(registers) as loop:
        e.line(f"{name}[{loop.offset(layout)}] = ({form.held}){operand.element(e, loop)};")
    return name


def _is_there(e: Emitter, held: Array, layout: Layout, form: Form) -> bool:
    """Whether an array's elements lie in local memory as they are to lie there."""
    return held.item == move.items(e) and tables.storage_type(held.type) == form.held and move.is_in_rows(e, layout)


def _words(e: Emitter, operand: _Operand, layout: Layout, shape: tuple[int, ...], form: Form) -> str:
    """Row-major words, each of the elements of a few rows that follow each other, the first in the lowest bits."""
    size, together = shape[0] * shape[1], _WORD // form.bytes

    def place(offset: int) -> int:
        row, column = unflat(offset, shape)
        return flat((row // together, column), shape)

    rows = [shape[1] << i for i in range(log2(together))]
    if any(row not in layout.reg for row in rows):  # then each by itself
        name = e.array(form.held, size)

        def alone(offset: int) -> int:
            return place(offset) * together + unflat(offset, shape)[0] % together

        with e.loop(layout.registers) as loop:
            e.line(f"{name}[{loop.offset(layout.map(alone))}] = ({form.held}){operand.element(e, loop)};")
        return name
    name = e.array("int", size // together)
    inside = [layout.reg.index(row) for row in rows]
    others = tuple(1 << i for i in range(len(layout.reg)) if i not in inside)
    with e.loop(layout.registers // together) as loop:
        parts = []
        for j in range(together):
            chosen = sum(1 << bit for i, bit in enumerate(inside) if j >> i & 1)
            bits = operand.element(e, loop, BitMap(others, chosen))
            parts.append(f"(uint){bits} << {8 * form.bytes * j}")
        e.line(f"{name}[{loop.offset(layout.map(place), BitMap(others))}] = (int)({' | '.join(parts)});")
    return name


def _turned(e: Emitter, name: str, height: int, width: int) -> str:
    """The transpose of a row-major matrix of words."""
    out = e.array("int", height * width)
    _for_all(e, "ax_tiles_turn", name, out, f"{_KEPT}, {height}, {width}")
    return out
