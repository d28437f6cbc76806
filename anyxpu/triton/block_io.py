"""Operands of matrix products that come from memory straight into registers, by 2-D block loads.

A block load reads a rectangle of a matrix: given the matrix's base, width, height and pitch and the rectangle's corner,
it gives zero for what is outside, and puts the elements into registers as the matrix instruction takes them: neither
local memory nor a barrier is needed. A load of a tile is one if its address is ``base + row * pitch + column`` and its
mask says that row and column are in bounds, which is what tensor descriptors, block pointers and kernels written by
hand come to. What the instruction demands of base, pitch and sizes only the running kernel knows: both ways are
printed, and the prelude's ``ax_block_fits`` chooses.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from anyxpu.triton import matrix
from anyxpu.triton.elements import Array, Loop, bit_expression
from anyxpu.triton.emit import Emitter
from anyxpu.triton.ir import Function, Op, Pointer, Scalar, Tensor, Value, blocks, walk
from anyxpu.triton.layout import ACCUMULATOR_ROWS, BitMap, log2

# Ops whose result has the elements of their first operand.
_MOVES = frozenset({"tt.broadcast", "ttg.convert_layout", "arith.extsi"})

# Between a load and the product that reads memory in its stead, nothing may write memory or wait for others.
_ORDERED = ("tt.store", "tt.atomic", "tt.call", "scf.", "cf.", "gpu.", "ttg.barrier", "ttg.local", "tt.descriptor")


@dataclass(frozen=True)
class Sum:
    """Scalars of the kernel and a number, added."""

    scalars: frozenset[Value] = frozenset()
    number: int = 0


@dataclass
class Tile:
    """A load as a rectangle of a row-major matrix; all in elements.

    Attributes:
        load: the op.
        base: the pointer that the matrix begins at, and what is added to it.
        pitch: from one row to the next.
        corner: row and column of the rectangle's first element.
        limits: the matrix's height and width; None where the rectangle is known to be inside.
    """

    load: Op
    base: Value
    offsets: list[Value]
    pitch: Value | int
    corner: tuple[Sum, Sum]
    limits: dict[int, Value | int] = field(default_factory=dict)


def find(function: Function, lanes: int) -> None:
    """Set the attribute ``tiles`` of products (a Tile or None an operand) and ``deferred`` of the tiles' loads."""
    assert function.body is not None
    users: dict[Value, list[Op]] = defaultdict(list)
    for op in walk(function.body):
        for operand in op.operands:
            users[operand].append(op)
    for block in blocks(function.body):
        for place, op in enumerate(block.ops):
            if op.name != "tt.dot":
                continue
            form = matrix.form_of(op, lanes)
            if form is None or form.fragments is None or len(_shape(op.operands[0])) != 2:
                continue
            tiles = [_tile(v, users, block.ops[:place]) for v in op.operands[:2]]
            for tile in tiles:
                if tile is not None:
                    tile.load.attrs["deferred"] = True
            if any(tiles):
                op.attrs["tiles"] = tiles


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, Tensor)
    return value.type.shape


def _owner(value: Value) -> Op | None:
    return value.owner if isinstance(value.owner, Op) else None


def _tile(operand: Value, users: dict[Value, list[Op]], before: list[Op]) -> Tile | None:
    """The rectangle that ``operand`` of a product is, if only that product wants it and it is loaded just before."""
    load = _owner(operand)
    if load is not None and load.name == "ttg.convert_layout" and len(users[operand]) == 1 and _is_free(operand):
        load = _owner(load.operands[0])
    if load is None or load.name != "tt.load" or load not in before or len(users[load.result]) != 1:
        return None
    if any(op.name.startswith(_ORDERED) for op in before[before.index(load) :]):
        return None
    if load.attrs.get("isVolatile") or (len(load.operands) > 2 and load.operands[2].integer != 0):
        return None
    tile = _address(load)
    if tile is None or (len(load.operands) > 1 and not _limit(load.operands[1], (0, 1), tile)):
        return None
    return tile


def _is_free(operand: Value) -> bool:
    """Is the layout one that products alone ask for? Nothing is printed for the conversion then."""
    assert isinstance(operand.type, Tensor)
    return operand.type.encoding is not None and operand.type.encoding.kind == "dot_op"


# --- addresses and masks as sums and bounds


def _address(load: Op) -> Tile | None:
    pointers, terms, offsets = load.operands[0], list[Value](), list[Value]()
    while pointers.is_tensor:
        op = _owner(pointers)
        if op is None or op.name not in ("tt.addptr", "tt.splat", *_MOVES):
            return None
        if op.name == "tt.addptr":
            terms.append(op.operands[1])
        pointers = op.operands[0]
    rows: list[tuple[Sum, Value | int]] = []
    columns: list[Sum] = []
    while terms:
        term = terms.pop()
        op, scalar = _owner(term), _scalar(term)
        column = _index(term, 1)
        row = _multiple(term)
        if scalar is not None:
            if isinstance(scalar, Value):
                offsets.append(scalar)
            elif scalar != 0:
                return None
        elif column is not None:
            columns.append(column)
        elif row is not None:
            rows.append(row)
        elif op is not None and (op.name == "arith.addi" or op.name in _MOVES):
            terms += op.operands
        else:
            return None
    if len(rows) != 1 or len(columns) != 1:
        return None
    (row_index, pitch), column_index = rows[0], columns[0]
    return Tile(load, pointers, offsets, pitch, (row_index, column_index))


def _multiple(value: Value) -> tuple[Sum, Value | int] | None:
    """Rows: their number, times a pitch."""
    op = _owner(value)
    if op is None:
        return None
    if op.name in _MOVES:
        return _multiple(op.operands[0])
    if op.name != "arith.muli":
        return None
    for index, factor in (op.operands, op.operands[::-1]):
        row, pitch = _index(index, 0), _scalar(factor)
        if row is not None and pitch is not None:
            return row, pitch
    return None


def _scalar(value: Value) -> Value | int | None:
    """What is the same in every element, if the value is."""
    op = _owner(value)
    if not value.is_tensor:
        number = value.integer
        return value if number is None else number
    if op is None:
        return None
    if op.name == "arith.constant":
        return value.integer
    if op.name in ("tt.splat", "tt.expand_dims", *_MOVES):
        return _scalar(op.operands[0])
    return None


def _index(value: Value, dim: int) -> Sum | None:
    """The sum, if the value is that plus the element's coordinate along ``dim``."""
    op = _owner(value)
    if op is None or not value.is_tensor:
        return None
    if op.name == "tt.make_range":
        return Sum(number=int(op.attrs["start"])) if dim == 0 else None
    if op.name == "tt.expand_dims":
        axis = int(op.attrs["axis"])
        return None if axis == dim else _index(op.operands[0], dim - (axis < dim))
    if op.name in _MOVES:
        source = op.operands[0]
        # An extent of one has been copied: its coordinate is gone.
        return None if _shape(source)[dim] != _shape(value)[dim] else _index(source, dim)
    if op.name != "arith.addi":
        return None
    for index, added in (op.operands, op.operands[::-1]):
        total, scalar = _index(index, dim), _scalar(added)
        if total is None or scalar is None:
            continue
        if isinstance(scalar, int):
            return Sum(total.scalars, total.number + scalar)
        return None if scalar in total.scalars else Sum(total.scalars | {scalar}, total.number)
    return None


def _limit(mask: Value, dims: tuple[int, ...], tile: Tile) -> bool:
    """Take a mask's bounds into the tile; False if it says anything else. ``dims``: which of the tile's it has."""
    op = _owner(mask)
    if op is None:
        return False
    if op.name == "arith.andi":
        return all(_limit(o, dims, tile) for o in op.operands)
    if op.name == "arith.constant":
        return bool(op.attrs["value"])
    if op.name == "tt.expand_dims":
        axis = int(op.attrs["axis"])
        return _limit(op.operands[0], dims[:axis] + dims[axis + 1 :], tile)
    if op.name in _MOVES:
        return _limit(op.operands[0], dims, tile)
    if op.name != "arith.cmpi":
        return False
    index, bound = op.operands
    limit = _scalar(bound)
    place = next((d for i, d in enumerate(dims) if _index(index, i) == tile.corner[d]), None)
    if place is None or limit is None:
        return False
    if op.words[0] == "sge":  # negative coordinates go the other way
        return limit == 0
    if op.words[0] != "slt" or tile.limits.get(place, limit) != limit:
        return False
    tile.limits[place] = limit
    return True


# --- printing


def dot(e: Emitter, op: Op, form: matrix.Form, a: Value, b: Value) -> None:
    """Print the product both ways: by block loads, and as without them."""
    e.flush()
    tiles: list[Tile | None] = op.attrs["tiles"]
    out = e.declare(op.result.element, e.layout(op.result).registers)
    places = [None if t is None else _Place(e, t, v) for t, v in zip(tiles, (a, b), strict=True)]
    fits = e.variable("bool", " && ".join(f"ax_block_fits({p.arguments})" for p in places if p is not None))
    with e.braces(f"if ({fits})"):
        _by_blocks(e, op, form, (a, b), places, out)
    with e.braces("else"):
        e.pending += [t.load for t in tiles if t is not None]
        matrix.staged_dot(e, op, form, a, b, out)
    e.tensors[op.result] = out


class _Place:
    """A tile in C: base, and in bytes but for rows: width, height, pitch, and the corner's column and row."""

    def __init__(self, e: Emitter, tile: Tile, value: Value) -> None:
        pointer = tile.base.element
        assert isinstance(pointer, Pointer) and isinstance(pointer.pointee, Scalar)
        self.bytes = pointer.pointee.bits // 8
        base = " + ".join([e.scalar(tile.base), *(e.scalar(v) for v in tile.offsets)])
        self.base = e.variable("__global void*", f"(__global void*)({base})")
        row, column = (e.variable("long", _sum(e, s)) for s in tile.corner)
        edges = [f"{c} + {extent}" for c, extent in zip((row, column), _shape(value), strict=True)]
        height, width = (_scalar_text(e, tile.limits[d]) if d in tile.limits else edges[d] for d in (0, 1))
        pitch = _scalar_text(e, tile.pitch)
        self.height = e.variable("long", height)
        self.width, self.pitch = (e.variable("long", f"({x}) * {self.bytes}") for x in (width, pitch))
        self.row, self.column = row, column
        numbers = (self.width, self.height, self.pitch, f"{column} * {self.bytes}", row)
        self.arguments = f"{self.base}, {', '.join(numbers)}"

    def fragment(self, row: str, column: str) -> str:
        """Arguments of ``ax_block_…``: the fragment ``row`` and ``column`` away from the tile's corner."""
        at = f"(int){self.column} + {column}, (int){self.row} + {row}"
        return f"{self.base}, (int){self.width}, (int){self.height}, (int){self.pitch}, {at}"


def _scalar_text(e: Emitter, value: Value | int) -> str:
    return f"{value}l" if isinstance(value, int) else f"(long){e.scalar(value)}"


def _sum(e: Emitter, total: Sum) -> str:
    scalars = sorted(_scalar_text(e, v) for v in total.scalars)
    return " + ".join([*scalars, *([_scalar_text(e, total.number)] if total.number or not scalars else [])])


def _by_blocks(
    e: Emitter, op: Op, form: matrix.Form, operands: tuple[Value, Value], places: list[_Place | None], out: Array
) -> None:
    """For one step along k after the other: fragments of all the rows and columns of the sub-group, then products."""
    (a, b), c = operands, op.operands[2]
    n, k = _shape(b)[1], _shape(a)[1]
    staged = [v for v, place in zip((a, b), places, strict=True) if place is None]
    local = dict(zip(staged, matrix.stage(e, form, staged), strict=True))
    layout = e.layout(op.result)
    bits = layout.reg[log2(ACCUMULATOR_ROWS) :]
    rows, columns = [x for x in bits if x >= n], [x for x in bits if x < n]
    warp = e.variable("int", bit_expression("warp", layout.warp))
    row, column = e.variable("int", f"{warp} >> {log2(n)}"), e.variable("int", f"{warp} & {n - 1}")
    total, x, y = e.fresh(), e.fresh(), e.fresh()
    e.line(f"{form.accumulator} {total}[{1 << len(bits)}];")
    with e.loop(1 << len(bits), unroll=True) as loop:
        registers = _registers(loop)
        values = ", ".join(loop.value(c, r) for r in registers)
        e.line(f"{total}[{loop.register(loop.here)}] = ({form.accumulator})({values});")
    q = e.fresh("k")
    with e.braces(f"for (int {q} = 0; {q} < {k}; {q} += {form.depth})"):
        e.line(f"short8 {x}[{1 << len(rows)}];")
        with e.loop(1 << len(rows), unroll=True) as loop:
            at = f"{row} + {loop.register(BitMap(tuple(r // n for r in rows)))}"
            e.line(f"{x}[{loop.register(loop.here)}] = {_fragment('a', form, places[0], local.get(a), at, q, k)};")
        e.line(f"int8 {y}[{1 << len(columns)}];")
        with e.loop(1 << len(columns), unroll=True) as loop:
            at = f"{column} + {loop.register(BitMap(tuple(columns)))}"
            e.line(f"{y}[{loop.register(loop.here)}] = {_fragment('b', form, places[1], local.get(b), q, at, n)};")
        with e.loop(1 << len(bits), unroll=True) as loop:
            here = f"{total}[{loop.register(loop.here)}]"
            left = loop.register(BitMap(tuple(1 << rows.index(z) if z in rows else 0 for z in bits)))
            right = loop.register(BitMap(tuple(1 << columns.index(z) if z in columns else 0 for z in bits)))
            e.line(f"{here} = intel_sub_group_{form.instruction}({x}[{left}], {y}[{right}], {here});")
    with e.loop(1 << len(bits), unroll=True) as loop:
        for j, r in enumerate(_registers(loop)):
            e.line(f"{out.element(loop.register(r))} = {total}[{loop.register(loop.here)}].s{j};")
    if staged:
        e.barrier()


def _registers(loop: Loop) -> list[BitMap]:
    """The registers of the tile that the loop is at."""
    first = tuple(b * ACCUMULATOR_ROWS for b in loop.here.bases)
    return [BitMap(first, j) for j in range(ACCUMULATOR_ROWS)]


def _fragment(
    side: str, form: matrix.Form, place: _Place | None, local: str | None, row: str, column: str, columns: int
) -> str:
    """What one matrix instruction takes of an operand, from memory or from where it is staged."""
    if place is not None:
        return f"ax_block_{side}{form.fragments}({place.fragment(row, column)})"
    return f"ax_local_{side}{form.fragments}({local} + ({row}) * {columns} + {column}, {columns}, lane)"
