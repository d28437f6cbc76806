"""Matrix products on a CPU device: sums of outer products, eight accumulators of as many columns as there are lanes.

Lane l holds column l of the rows, as with a matrix engine, so that the sums stay in vector registers along k: each step
takes vectors of ``b`` and one number of each row of ``a``. Both are read where they are, if that is an array in local
memory whose elements have the type of the sums (and, of ``b``, with lanes along the columns); else they are put there,
row-major. What a loop does not change is turned before it, and sums that a loop carries stay where they are.

The few rows of a decoding attention's scores, whose ``b`` is a transpose, are inner products instead: lanes lie along k
as they do in what ``b`` is the transpose of, and sixteen sums at a time are folded into one vector of the result. What
such rows are multiplied by is used once, so that it is read where it is used, if it comes from memory and nothing else
wants it: a copy of it would cost as much as the product.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anyxpu.triton import layout as layouts
from anyxpu.triton import move, tables
from anyxpu.triton.elements import Array, Loop, Read, Recomputed, View, bit_expression
from anyxpu.triton.emit import UNROLL_LIMIT, Emitter
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
    c = op.operands[2]
    join_later(e, op, c)
    wide = sums_of(op)
    assert wide is not None
    c_type = tables.register_type(wide)
    m, n = move.tensor_type(a).shape[-2], move.tensor_type(b).shape[-1]
    columns = transposed(e, b) if m <= FEW_ROWS else None
    if columns is not None and _summable(e, columns):
        read_later(e, op, columns)
        e.flush()
        _inner(e, op, a, columns, wide)
        return
    if m <= FEW_ROWS and _in_rows(e, op, b) and read_later(e, op, b):
        e.flush()
        _by_rows(e, op, a, b, wide)
        return
    e.flush()
    source = transposed(e, a)
    left = _matrix(e, a, wide) if source is None else _matrix(e, source, wide).transposed()
    right = _matrix(e, e.turned.get(b) or move.innermost(e, b), wide, log2(e.lanes))
    left, right = _staged(e, [left, right], wide)
    e.barrier()
    layout = e.layout(op.result)
    out = accumulated_in_place(e, op) or e.declare(op.result.element, layout.registers)
    tile = _tile(layout, m, n, e.lanes)
    origin = Layout(layout.reg, (0,) * len(layout.lane), layout.warp)
    # Arrays of more registers are in memory, so that a loop may index them: written out it would be long for nothing.
    with e.loop(layout.registers >> len(tile.rows + tile.vectors), unroll=layout.registers <= UNROLL_LIMIT) as loop:
        others = (i for i in range(len(layout.reg)) if i not in (*tile.rows, *tile.vectors))
        bases = tuple(1 << i for i in others)
        # Registers of the tile: a vector of columns' rows, and then the next one's.
        registers = [BitMap(bases, _chosen(tile.rows + tile.vectors, j)) for j in range(tile.size)]
        place = e.variable("int", loop.offset(origin, BitMap(bases)))
        row, column = e.variable("int", f"{place} >> {log2(n)}"), f"({place} & {n - 1})"
        matrix = bit_expression(f"({row} >> {log2(m)})", right.matrices)
        x = e.variable("int", bit_expression(row, left.rows + left.matrices))
        y = e.variable("int", f"{bit_expression(column, right.columns)} + {matrix} + lane")
        totals = [loop.temporary(wide, loop.value(c, r)) for r in registers]
        with contextlib.ExitStack() as loops:
            at_left, at_right = x, y
            for first, length in reversed(_runs(left.columns, right.rows)):
                q = e.fresh("k")
                loops.enter_context(e.braces(f"for (int {q} = 0; {q} < {1 << length}; ++{q})"))
                at_left += f" + {q} * {left.columns[first]}"
                at_right += f" + {q} * {right.rows[first]}"
            vectors = [
                e.variable(c_type, right.at(f"{at_right} + {_chosen_bases(right.columns[log2(e.lanes) :], i)}"))
                for i in range(1 << len(tile.vectors))
            ]
            for j, total in enumerate(totals):
                number = left.at(f"{at_left} + {_chosen_bases(left.rows, j % tile.height)}")
                e.line(f"{total} = {multiply_add(wide, number, vectors[j // tile.height], total)};")
        for r, total in zip(registers, totals, strict=True):
            e.line(f"{out.element(loop.register(r))} = {tables.rounded(total, op.result.element)};")
    e.barrier()
    e.tensors[op.result] = out


def prepare(e: Emitter, op: Op) -> dict[Value, Value]:
    """Before a loop of products is printed: the ``b`` of each that is there already, with lanes along its columns."""
    here = set(op.regions[0].entry.args) | {r for o in op.regions[0].entry.ops for r in o.results}
    found = {}
    for product in op.regions[0].entry.ops:
        if product.name != "tt.dot" or not e.outer or not fits(product, e.lanes):
            continue
        b = product.operands[1]
        while b in here and isinstance(b.owner, Op) and b.owner.name == "ttg.convert_layout":
            b = b.owner.operands[0]
        b = e.renamed.get(b, b)
        few = move.tensor_type(product.operands[0]).shape[-2] <= FEW_ROWS
        if b in here or b not in e.tensors or (few and transposed(e, b) is not None):
            continue
        turned = move.innermost(e, b)
        if turned is not b:
            found[b] = turned
    return found


# --- sums that need no place of their own


def join_later(e: Emitter, op: Op, c: Value) -> None:
    """Let what ``c`` is scaled by, or the like, be done while the product reads it, where nothing else wants it."""
    maker = c.owner
    if isinstance(maker, Op) and maker in e.pending and maker.name in tables.ELEMENTWISE and e.users[c] == [op]:
        e.pending.remove(maker)
        e.tensors[c] = Recomputed(maker, 1)


def accumulated_in_place(e: Emitter, op: Op) -> Array | None:
    """The array of the variable that a loop carries the product in, where each element is read before it is written."""
    carried = e.carried.get(op.result)
    if carried is None or len(e.users[op.result]) != 1:
        return None
    c, array = op.operands[2], e.tensors[carried]
    made = e.tensors[c]
    readers = [made.op] if isinstance(made, Recomputed) else [op]
    alone = e.users[carried] == readers and e.users[c] == [op] and (c is carried or readers != [op])
    return array if alone and isinstance(array, Array) else None


# --- where operands are


@dataclass(frozen=True)
class _Matrix:
    """A matrix, or several, in local memory: what each bit of a row's number, of a column's and of the matrix's adds.

    ``of`` is the tensor that must be put there first, at ``name`` then, row-major; None where it lies there.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    matrices: tuple[int, ...]
    of: Value | None = None

    def at(self, index: str) -> str:
        return f"{self.name}[{index}]"

    def transposed(self) -> _Matrix:
        return replace(self, rows=self.columns, columns=self.rows)


def _matrix(e: Emitter, v: Value, wide: Scalar, together: int = 0) -> _Matrix:
    """Where ``v`` is, if it can be read there with ``2 ** together`` columns side by side; else where it will be."""
    shape = move.tensor_type(v).shape
    heights = [log2(math.prod(shape[:-2])), log2(shape[-2]), log2(shape[-1])]
    places = _lying(e, v, wide)
    inside = places is not None and all(places.get(1 << i) == 1 << i for i in range(together))
    array = _array(e, v)
    if places is None or not inside or array is None:
        places, array = {1 << i: 1 << i for i in range(sum(heights))}, None
    bits = iter(places[1 << i] for i in range(sum(heights)))
    columns, rows, matrices = (tuple(itertools.islice(bits, n)) for n in reversed(heights))
    return _Matrix("" if array is None else array[0].name, rows, columns, matrices, v if array is None else None)


def _array(e: Emitter, v: Value) -> tuple[Array, BitMap] | None:
    """The array whose registers, by the map, are the tensor's."""
    held = e.tensors[v]
    if isinstance(held, Array):
        return held, layouts.identity(held.registers)
    if not isinstance(held, View):
        return None
    found = _array(e, held.source)
    return None if found is None else (found[0], found[1].after(held.map))


def _lying(e: Emitter, v: Value, wide: Scalar) -> dict[int, int] | None:
    """What each bit of an element's offset adds to its index in an array that loops may index."""
    found, layout = _array(e, v), e.layout(v)
    if found is None or e.warps != 1:
        return None
    array, registers = found
    own = tables.storage_type(v.element) == tables.register_type(wide)
    if not own or not array.item or array.registers == 1 or not any(layout.lane) or registers.const:
        return None
    places = {b: 1 << i for i, b in enumerate(layout.lane)}
    places |= {b: r * e.lanes for b, r in zip(layout.reg, registers.bases, strict=True)}
    one_each = all(p & (p - 1) == 0 for p in places.values())
    whole = set(places) == {1 << i for i in range(log2(move.tensor_type(v).size))}
    return places if one_each and whole and len(layout.reg) + len(layout.lane) == len(places) else None


def _staged(e: Emitter, matrices: Sequence[_Matrix], wide: Scalar) -> list[_Matrix]:
    """Put into local memory what is not there, in the type of the sums."""
    missing = [m.of for m in matrices if m.of is not None]
    names = iter(_put(e, missing, wide))
    return [m if m.of is None else replace(m, name=next(names), of=None) for m in matrices]


def _put(e: Emitter, operands: Sequence[Value], wide: Scalar) -> list[str]:
    """Put tensors into local memory, row-major and in the type of the sums; pointers to them."""
    places = e.locals((wide, move.tensor_type(v).size) for v in operands)
    for v, place in zip(operands, places, strict=True):
        with e.loop(e.layout(v).registers) as loop:
            e.line(f"{place}[{loop.offset(e.layout(v))}] = ({tables.register_type(wide)}){loop.value(v)};")
    return places


def _runs(*maps: Sequence[int]) -> list[tuple[int, int]]:
    """Bits that each of several maps keeps side by side: the first of them, and how many there are."""
    starts = [i for i in range(len(maps[0])) if i == 0 or any(m[i] != 2 * m[i - 1] for m in maps)]
    return [(i, j - i) for i, j in itertools.pairwise([*starts, len(maps[0])])]


# --- tiles


@dataclass(frozen=True)
class _Tile:
    """What is summed at once: bits of registers that count its rows, and its vectors of columns."""

    rows: tuple[int, ...]
    vectors: tuple[int, ...]

    @property
    def height(self) -> int:
        return 1 << len(self.rows)

    @property
    def size(self) -> int:
        return 1 << len(self.rows) + len(self.vectors)


def _tile(layout: Layout, m: int, n: int, lanes: int) -> _Tile:
    """Sums that stay in registers: 16 of AVX-512's 32, four vectors of columns wide where there are so many.

    Each step reads a vector of ``b`` for each of the tile's and a number for each row: of four by four that is one read
    for two sums, so that adding is what takes the time (measured, against eight by one: 1.1 to 1.3 times as fast).
    AVX2, whose lanes are eight, has 16 registers, for eight sums: two vectors of four rows.
    """
    most, wide = (16, 4) if lanes > 8 else (8, 2)
    wide = max(wide, most // m)  # of fewer rows
    vectors = _found(layout, [lanes << i for i in range(log2(min(wide, n // lanes)))])
    rows = _found(layout, [n << i for i in range(log2(min(m, most >> len(vectors), most // 2)))])
    return _Tile(rows, vectors)


def _found(layout: Layout, bases: Sequence[int]) -> tuple[int, ...]:
    """The registers' bits of the first of ``bases`` that registers have."""
    there = itertools.takewhile(lambda b: b in layout.reg, bases)
    return tuple(layout.reg.index(b) for b in there)


def _chosen(bits: Sequence[int], number: int) -> int:
    return _chosen_bases([1 << b for b in bits], number)


def _chosen_bases(bases: Sequence[int], number: int) -> int:
    return sum(b for i, b in enumerate(bases) if number >> i & 1)


# --- few rows


# With more, turning ``b`` around once is less work than folding the sums of each row.
FEW_ROWS = 4


def _summable(e: Emitter, columns: Value) -> bool:
    """Whether lanes lie along k in what ``b`` is the transpose of."""
    layout, (n, k) = e.layout(columns), move.tensor_type(columns).shape
    along_k = tuple(1 << i for i in range(log2(e.lanes)))
    return e.warps == 1 and n >= e.lanes and k >= e.lanes and layout.lane == along_k


def read_later(e: Emitter, product: Op, v: Value) -> bool:
    """Let ``v`` be read where the product uses it, if a load that waits makes it for nothing else; says whether it is.

    A store that waits as well would come first, and an assertion would be about what has been read already.
    """
    load = v.owner
    if not isinstance(load, Op) or load.name != "tt.load" or load not in e.pending or load.attrs.get("isVolatile"):
        return False
    if not e.reads_before_waiting() or not wanted_by(e, v, product):
        return False
    e.pending.remove(load)
    e.tensors[v] = Read(load)
    return True


_PASSED = frozenset({"tt.trans", "ttg.convert_layout", "arith.truncf"})


def wanted_by(e: Emitter, v: Value, product: Op) -> bool:
    """Whether the product is all that wants ``v``, as it is or turned around."""
    return all(user is product or (user.name in _PASSED and wanted_by(e, user.result, product)) for user in e.users[v])


def _where_masks_hold(e: Emitter, v: Value, body: Callable[[frozenset[Value]], None]) -> None:
    """Print what reads ``v`` in a loop: once without masks, where that is worth it, and once with them."""
    read = e.tensors[v]
    whole = e.held_at_once([read.op]) if isinstance(read, Read) else {}
    if not whole:
        body(frozenset())
        return
    with e.braces(f"if ({' && '.join(dict.fromkeys(whole.values()))})"):
        body(frozenset(whole))
    with e.braces("else"):
        body(frozenset())


def _rows_and_sums(e: Emitter, op: Op, a: Value, wide: Scalar) -> tuple[str, Array]:
    """A pointer to the few rows, put into local memory, and the array of the result."""
    (x,) = _put(e, (a,), wide)
    e.barrier()
    return x, e.declare(op.result.element, e.layout(op.result).registers, indexed=True)


def _inner(e: Emitter, op: Op, a: Value, columns: Value, wide: Scalar) -> None:
    """``result = c + a · b`` as inner products of rows of ``a`` and of ``columns``, the transpose of ``b``."""
    (n, k), lanes = move.tensor_type(columns).shape, e.lanes
    m, c_type = move.tensor_type(a).shape[-2], tables.register_type(wide)
    c, layout = op.operands[2], e.layout(op.result)
    x, out = _rows_and_sums(e, op, a, wide)
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
    indices = [BitMap(places.bases[log2(lanes) :], places.linear(i) ^ places.const) for i in range(lanes)]

    def body(true: frozenset[Value]) -> None:
        at, row, step = e.fresh("k"), e.fresh("k"), e.fresh("k")
        with e.braces(f"for (int {at} = 0; {at} < {m << groups}; ++{at})"):
            e.line(f"const int {row} = {at} & {m - 1};")
            sums = [e.variable(c_type, "0") for _ in range(lanes)]
            with e.braces(f"for (int {step} = 0; {step} < {1 << steps}; ++{step})"):
                loop = Loop(e, 1 << steps + groups)
                loop.true = true
                e.line(f"const int {loop.counter} = {step} + ({at} >> {log2(m)} << {steps});")
                vector = e.variable(c_type, f"{x}[{row} * {k} + {step} * {lanes} + lane]")
                for index, total in zip(indices, sums, strict=True):
                    e.line(f"{total} = {multiply_add(wide, loop.value(columns, index), vector, total)};")
            for bit in reversed(range(log2(lanes))):
                sums = _folded(e, sums, wide, 1 << bit)
            result = Loop(e, m << groups)
            result.counter = at
            total = _sum(wide, sums[0], result.value(c, registers))
            e.line(f"{out.element(result.register(registers))} = {tables.rounded(total, op.result.element)};")

    _where_masks_hold(e, columns, body)
    e.barrier()
    e.tensors[op.result] = out


def _in_rows(e: Emitter, op: Op, b: Value) -> bool:
    """Whether lanes lie along the columns, in ``b`` and in the result."""
    along = tuple(1 << i for i in range(log2(e.lanes)))
    return (
        e.warps == 1 and len(move.tensor_type(b).shape) == 2 and e.layout(b).lane == e.layout(op.result).lane == along
    )


def _by_rows(e: Emitter, op: Op, a: Value, b: Value, wide: Scalar) -> None:
    """``result = c + a · b``, each row of ``b`` read once for all of the few rows of ``a``."""
    (k, n), lanes = move.tensor_type(b).shape, e.lanes
    m, c_type = move.tensor_type(a).shape[-2], tables.register_type(wide)
    c, layout = op.operands[2], e.layout(op.result)
    x, out = _rows_and_sums(e, op, a, wide)
    vectors = min(n // lanes, ACCUMULATOR_ROWS // m)
    beside, further = log2(vectors), log2(n // lanes // vectors)
    columns = [lanes << i for i in range(beside + further)]
    # Of both: the vectors that are summed at once, then rows, then further vectors.
    reads = Layout((*columns[:beside], *(n << i for i in range(log2(k))), *columns[beside:]), e.layout(b).lane, ())
    writes = Layout((*columns[:beside], *(n << i for i in range(log2(m))), *columns[beside:]), layout.lane, ())
    places, registers = layouts.register_map(e.layout(b), reads), layouts.register_map(layout, writes)
    assert places is not None and registers is not None
    indices = [BitMap(places.bases[beside:], places.linear(i) ^ places.const) for i in range(vectors)]
    bases = registers.bases[beside + log2(m) :]
    results = [BitMap(bases, registers.linear(i) ^ registers.const) for i in range(vectors * m)]

    def body(true: frozenset[Value]) -> None:
        group, row = Loop(e, 1 << further), e.fresh("k")
        at = group.counter
        with e.braces(f"for (int {at} = 0; {at} < {1 << further}; ++{at})"):
            totals = [group.temporary(wide, group.value(c, index)) for index in results]
            with e.braces(f"for (int {row} = 0; {row} < {k}; ++{row})"):
                loop = Loop(e, k << further)
                loop.true = true
                e.line(f"const int {loop.counter} = {row} + ({at} << {log2(k)});")
                read = [e.variable(c_type, loop.value(b, index)) for index in indices]
                for i, total in enumerate(totals):
                    number = f"{x}[{i // vectors * k} + {row}]"
                    e.line(f"{total} = {multiply_add(wide, number, read[i % vectors], total)};")
            for index, total in zip(results, totals, strict=True):
                e.line(f"{out.element(group.register(index))} = {tables.rounded(total, op.result.element)};")

    _where_masks_hold(e, b, body)
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


def transposed(e: Emitter, v: Value) -> Value | None:
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
