"""Ops that move elements: layout conversions, reshapes, transposes, broadcasts, joins, gathers.

Every one of them is a question of which offset of the source each element of the result comes from. Where each lane
already holds what it wants, the result is a view (no code at all); otherwise the elements go through local memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import layout as layouts
from anyxpu.triton import tables
from anyxpu.triton.addressing import RANGE_BITS
from anyxpu.triton.elements import Array, Elements, Join, Range, Splat, View, bit_expression
from anyxpu.triton.emit import UNROLL_LIMIT, Emitter, Handler
from anyxpu.triton.ir import Op, Pointer, Tensor, Value
from anyxpu.triton.layout import BitMap, Layout, Route, axis_bits, flat, log2, strides, unflat
from anyxpu.triton.memory import owner_conditions
from anyxpu.triton.storage import size_of


def tensor_type(value: Value) -> Tensor:
    assert isinstance(value.type, Tensor)
    return value.type


def move(e: Emitter, result: Value, source: Value, wanted: Layout, const: int = 0) -> None:
    """Define ``result`` as the elements of ``source`` at the offsets ``wanted`` (each XOR ``const``)."""
    for held in (source, e.elsewhere.get(source)):
        moved = layouts.register_map(e.layout(held), wanted, const) if held is not None else None
        if held is not None and moved is not None:
            e.tensors[result] = View(held, moved)
            return
    e.tensors[result] = exchange(e, source, wanted, const)


# Of a conversion without local memory: so many registers are read, by shuffles and by choices, instead of two barriers.
MOST_SHUFFLES = 64
MOST_CHOICES = 64


def exchange(e: Emitter, source: Value, wanted: Layout, const: int = 0) -> Elements:
    """To another layout: within the sub-groups if that is little work, else through local memory.

    There every lane writes what it has, then reads what ``wanted`` asks for.
    """
    route = layouts.route(e.layout(source), wanted, const)
    if route is not None and wanted.registers * route.choices <= (MOST_CHOICES if route.stays else MOST_SHUFFLES):
        return _rerouted(e, source, wanted, route)
    if (turned := turn(e, source, wanted.lane)) is not None:
        moved = layouts.register_map(e.layout(turned), wanted, const)
        if moved is not None:
            return View(turned, moved)
    s = spill(e, source)
    out = e.declare(source.element, wanted.registers)
    with e.loop(wanted.registers) as loop:
        place = loop.offset(wanted) + (f" ^ {const}" if const else "")
        e.line(f"{out.element(loop.counter)} = {unspilled(source, f'{s}[{place}]')};")
    e.barrier()
    return out


def turn(e: Emitter, source: Value, lanes: Sequence[int]) -> Value | None:
    """The same elements with ``lanes`` as the lanes' bases, where bits of lanes and registers can change places.

    Each pair of bits costs a shuffle for two registers: a lane gives the one of them that its partner keeps. With
    AVX-512 four pairs of bits that follow each other are transposes of 16 by 16, in assembly: a fifth of the time of
    what the compiler makes of the shuffles.
    """
    found = layouts.swaps(e.layout(source), lanes)
    if found is None or isinstance(source.element, Pointer) or not e.outer:
        return None
    layout, pairs = found
    first = pairs[0][1] if pairs else 0
    words = size_of(tables.storage_type(source.element)) == 4
    if e.turns and words and pairs == [(i, first + i) for i in range(log2(e.lanes))]:
        return _transposed(e, source, layout, first)
    inner = sorted({register for _, register in pairs})
    if len(inner) > log2(UNROLL_LIMIT):
        return None
    e.flush()
    outer = [i for i in range(len(layout.reg)) if i not in inner]
    registers, c = e.layout(source).registers, tables.storage_type(source.element)
    result = Value(source.name, source.type)
    out = e.declare(source.element, registers, indexed=len(outer) > 0)
    with e.loop(1 << len(outer), unroll=registers <= UNROLL_LIMIT) as loop:
        held = [_part(inner, number) for number in range(1 << len(inner))]
        outer_bases = tuple(1 << i for i in outer)
        values = [loop.value(source, BitMap(outer_bases, at)) for at in held]
        names = [e.variable(c, v) for v in values]
        for lane, register in pairs:
            names = _swapped(e, names, c, f"(lane & {1 << lane})", 1 << lane, 1 << inner.index(register))
        for at, name in zip(held, names, strict=True):
            e.line(f"{out.element(bit_expression(loop.counter, outer_bases, at))} = {name};")
    e.tensors[result], e.layouts[result] = out, layout
    return result


def _transposed(e: Emitter, source: Value, layout: Layout, first: int) -> Value:
    """As :func:`turn`, of all lanes' bits and those of registers from ``first`` on."""
    e.flush()
    registers, held = e.layout(source).registers, e.tensors[source]
    if not (isinstance(held, Array) and held.item == items(e)):
        held = e.declare(source.element, registers, indexed=True)
        with e.loop(registers) as loop:
            e.line(f"{held.element(loop.counter)} = {loop.value(source)};")
    result = Value(source.name, source.type)
    out, kept = e.declare(source.element, registers, indexed=True), e.array("char", 512)
    pointers = f"(__local const char*){held.name}, (__local char*){out.name}, {kept}"
    e.barrier()
    e.line(f"if (lane == 0) ax_turn({pointers}, {1 << first}, {registers >> first + log2(e.lanes)});")
    e.barrier()
    e.tensors[result], e.layouts[result] = out, layout
    return result


def innermost(e: Emitter, source: Value) -> Value:
    """The same elements with lanes along the last dimension, where bits of lanes and registers can change places."""
    layout, extent = e.layout(source), tensor_type(source).shape[-1]
    if extent < e.lanes or layout.lane == (wanted := tuple(1 << i for i in range(log2(e.lanes)))):
        return source
    return turn(e, source, wanted) or source


def _part(bits: Sequence[int], number: int) -> int:
    """The register number whose ``bits`` are those of ``number``."""
    return sum(1 << bit for i, bit in enumerate(bits) if number >> i & 1)


def _swapped(e: Emitter, names: list[str], c: str, upper: str, lane: int, register: int) -> list[str]:
    """A bit of the lane and one of the register change places."""
    out = list(names)
    for at in range(len(names)):
        if at & register:
            continue
        low, high = names[at], names[at | register]
        given = e.variable(c, f"{upper} ? {low} : {high}")
        got = e.variable(c, f"sub_group_shuffle_xor({given}, {lane})")
        out[at] = e.variable(c, f"{upper} ? {got} : {low}")
        out[at | register] = e.variable(c, f"{upper} ? {high} : {got}")
    return out


def _rerouted(e: Emitter, source: Value, wanted: Layout, route: Route) -> Array:
    """Each element from the lane and the register that ``route`` says, by shuffles and by choices of the lane."""
    e.flush()
    out = e.declare(source.element, wanted.registers, wanted)
    pointer = isinstance(source.element, Pointer)
    c = tables.register_type(source.element)
    own = bit_expression("lane", route.lanes)
    with e.loop(wanted.registers) as loop:
        turned = loop.register(route.turned)
        lane = f"({own} ^ {turned})" if own != "0" != turned else own if turned == "0" else turned

        def read(change: int) -> str:
            at = BitMap(route.registers.bases, route.registers.const ^ change)
            held = loop.value(source, at)
            if route.stays:
                return held
            if pointer:  # under a name of its own: only one side of a choice is computed, and a shuffle wants all lanes
                return e.variable(c, unspilled(source, f"sub_group_shuffle((ulong){held}, {lane})"))
            held = e.variable(tables.storage_type(source.element), held)
            return e.variable(tables.storage_type(source.element), f"sub_group_shuffle({held}, {lane})")

        changes = [(f"({name} & {1 << i})", p) for name, picks in route.picks.items() for i, p in enumerate(picks) if p]
        wanted_at = [{0}]  # behind all choices, then before each, the last one first
        for _, p in reversed(changes):
            wanted_at.append({at ^ change for at in wanted_at[-1] for change in (0, p)})
        values = {at: read(at) for at in wanted_at.pop()}
        for bit, p in changes:
            values = {at: e.variable(c, f"{bit} ? {values[at ^ p]} : {values[at]}") for at in wanted_at.pop()}
        e.line(f"{out.element(loop.counter)} = {values[0]};")
    return out


def spill(e: Emitter, source: Value) -> str:
    """Write a tensor to local memory in row-major order; the pointer. A barrier has passed when this ends."""
    e.flush()
    s = e.local(source.element, tensor_type(source).size)
    with e.loop(e.layout(source).registers) as loop:
        value = loop.value(source)
        if isinstance(source.element, Pointer):
            value = f"(ulong){value}"
        e.line(f"{s}[{loop.offset(e.layout(source))}] = {value};")
    e.barrier()
    return s


def unspilled(source: Value, expression: str) -> str:
    if isinstance(source.element, Pointer):
        return f"({tables.register_type(source.element)}){expression}"
    return expression


# --- views: each gives the result's layout in the source's offsets


def same_offsets(e: Emitter, op: Op) -> None:
    """Conversions, reshapes, new dimensions: each element keeps its row-major offset."""
    move(e, op.result, op.operands[0], e.layout(op.result))


def _broadcast(e: Emitter, op: Op) -> None:
    source, result = tensor_type(op.operands[0]), tensor_type(op.result)

    def back(offset: int) -> int:
        c = unflat(offset, result.shape)
        return flat([0 if s == 1 else x for x, s in zip(c, source.shape, strict=True)], source.shape)

    move(e, op.result, op.operands[0], e.layout(op.result).map(back))


def _transpose(e: Emitter, op: Op) -> None:
    source, result = tensor_type(op.operands[0]), tensor_type(op.result)
    order = op.attrs["order"]

    def back(offset: int) -> int:
        c = [0] * len(order)
        for i, x in enumerate(unflat(offset, result.shape)):
            c[order[i]] = x
        return flat(c, source.shape)

    move(e, op.result, op.operands[0], e.layout(op.result).map(back))


def _splat(e: Emitter, op: Op) -> None:
    e.tensors[op.result] = Splat(e.scalar(op.operands[0]))


def _unsplat(e: Emitter, op: Op) -> None:
    e.flush()
    with e.loop(1) as loop:
        e.define(op.result, loop.value(op.operands[0], BitMap(())))


def _make_range(e: Emitter, op: Op) -> None:
    e.tensors[op.result] = Range(int(op.attrs["start"]), e.layout(op.result))


def _constant(e: Emitter, op: Op) -> None:
    text = tables.literal(op.attrs["value"], op.result.element)
    if op.result.is_tensor:
        e.tensors[op.result] = Splat(text)
    else:
        e.scalars[op.result] = text


def _poison(e: Emitter, op: Op) -> None:
    element = op.result.element
    text = f"({tables.register_type(element)})0"
    if op.result.is_tensor:
        e.tensors[op.result] = Splat(text)
    else:
        e.scalars[op.result] = text


# --- two tensors in, or out


def _join(e: Emitter, op: Op) -> None:
    """A new innermost dimension of two: bit 0 of the result's offset chooses the operand."""
    wanted = e.layout(op.result)
    choosers = [i for i, b in enumerate(wanted.reg) if b & 1]
    rest = wanted.map(lambda b: b >> 1)
    elsewhere = any(b & 1 for b in (*wanted.lane, *wanted.warp))
    maps = [layouts.register_map(e.layout(o), rest) for o in op.operands]
    in_registers = len(choosers) == 1 and wanted.reg[choosers[0]] == 1 and not elsewhere
    if in_registers and maps[0] is not None and maps[0] == maps[1]:
        e.tensors[op.result] = Join((op.operands[0], op.operands[1]), choosers[0], maps[0])
        return
    if _pair(e, op):
        return
    _interleave(e, op, [lambda offset: f"2 * {offset}", lambda offset: f"2 * {offset} + 1"])


def is_in_rows(e: Emitter, layout: Layout) -> bool:
    """Whether all elements of a tensor are in row-major order where it is held in local memory."""
    reg = tuple(e.lanes << i for i in range(log2(layout.registers)))
    return e.warps == 1 and layout.reg == reg and layout.lane == tuple(1 << i for i in range(log2(e.lanes)))


def items(e: Emitter) -> str:
    """How :class:`Array` completes an index, where each lane has its own elements."""
    return f" * {e.lanes * e.warps} + item"


def _pair(e: Emitter, op: Op) -> bool:
    """A join of operands that lie alike, lane beside lane, as words of two elements, which a CPU writes without gaps.

    Where the result has its own elements lane beside lane as well, row after row, they are those words.
    """
    left, right = op.operands
    layout, wanted, c = e.layout(left), e.layout(op.result), tables.storage_type(op.result.element)
    in_turn = tuple(1 << i for i in range(log2(e.lanes)))
    if not e.outer or e.warps > 1 or c not in _WORDS or layout.lane != in_turn or e.layout(right) != layout:
        return False
    if wanted.registers <= UNROLL_LIMIT:  # written out, such words and what is read of them end Intel's compiler
        return False
    e.flush()
    size, registers = tensor_type(op.result).size, wanted.registers
    bits, word = _WORDS[c]
    whole = is_in_rows(e, wanted)
    out = e.declare(op.result.element, registers, indexed=whole)
    s = out.name if whole and out.item else e.local(op.result.element, size)
    with e.loop(layout.registers) as loop:
        low, high = (f"as_{bits}(({c}){loop.value(o)})" for o in op.operands)
        place = f"((__local {word}*){s})[{loop.offset(layout)}]"
        e.line(f"{place} = ({word})(({word}){low} | ({word}){high} << {8 * size_of(c)});")
    e.barrier()
    if s != out.name:
        with e.loop(registers) as loop:
            e.line(f"{out.element(loop.counter)} = {s}[{loop.offset(wanted)}];")
        e.barrier()
    e.tensors[op.result] = out
    return True


_WORDS = {
    "char": ("uchar", "ushort"),
    "uchar": ("uchar", "ushort"),
    "short": ("ushort", "uint"),
    "int": ("uint", "ulong"),
    "float": ("uint", "ulong"),
}
"""C types: what their bits are, and a word of two of them."""


def _interleave(e: Emitter, op: Op, places: list[Callable[[str], str]]) -> None:
    """Write every operand to its places of the result's row-major order in local memory, then read the result."""
    e.flush()
    s = e.local(op.result.element, tensor_type(op.result).size)
    for operand, place in zip(op.operands, places, strict=True):
        with e.loop(e.layout(operand).registers) as loop:
            e.line(f"{s}[{place(loop.offset(e.layout(operand)))}] = {loop.value(operand)};")
    e.barrier()
    out = e.declare(op.result.element, e.layout(op.result).registers)
    with e.loop(out.registers) as loop:
        e.line(f"{out.element(loop.counter)} = {s}[{loop.offset(e.layout(op.result))}];")
    e.barrier()
    e.tensors[op.result] = out


def _split(e: Emitter, op: Op) -> None:
    for i, result in enumerate(op.results):
        move(e, result, op.operands[0], e.layout(result).map(lambda b: b << 1), const=i)


def _cat(e: Emitter, op: Op) -> None:
    size = tensor_type(op.operands[0]).size
    _interleave(e, op, [lambda offset: offset, lambda offset: f"{size} + {offset}"])


# --- by index


def _gather(e: Emitter, op: Op) -> None:
    """``result[i…] = source[i… with the coordinate along axis replaced by index[i…]]``."""
    source, index = op.operands
    axis, shape = int(op.attrs["axis"]), tensor_type(source).shape
    s = spill(e, source)
    stride = layouts.strides(shape)[axis]
    layout = e.layout(op.result)
    index_shape = tensor_type(index).shape
    along_axis = axis_bits(axis, index_shape)
    others = layout.map(lambda b: flat(unflat(b & ~along_axis, index_shape), shape))
    out = e.declare(op.result.element, layout.registers)
    with e.loop(layout.registers) as loop:
        along = f"(({loop.value(index)} & {shape[axis] - 1}) * {stride})"
        e.line(f"{out.element(loop.counter)} = {unspilled(source, f'{s}[{loop.offset(others)} + {along}]')};")
    e.barrier()
    e.tensors[op.result] = out


def _histogram(e: Emitter, op: Op) -> None:
    """Counts by atomics in local memory. Values outside of the bins are counted nowhere."""
    source = op.operands[0]
    bins = tensor_type(op.result).size
    e.flush()
    s = e.local(op.result.element, bins)
    if op.result.element.bits != 32:
        raise UnsupportedOperation("tt.histogram with counts other than i32")
    total = e.lanes * e.warps
    e.line(f"for (int i = warp * {e.lanes} + lane; i < {bins}; i += {total}) {s}[i] = 0;")
    e.barrier()
    with e.loop(e.layout(source).registers) as loop:
        value = loop.value(source)
        conditions = [*owner_conditions(e.layout(source)), f"{value} >= 0", f"{value} < {bins}"]
        if len(op.operands) > 1:
            conditions.append(loop.value(op.operands[1]))
        e.line(f"if ({' && '.join(conditions)}) atomic_inc({s} + {value});")
    e.barrier()
    out = e.declare(op.result.element, e.layout(op.result).registers)
    with e.loop(out.registers) as loop:
        e.line(f"{out.element(loop.counter)} = {s}[{loop.offset(e.layout(op.result))}];")
    e.barrier()
    e.tensors[op.result] = out


def _range_bits(e: Emitter, op: Op) -> None:
    """Some bits of the coordinate along one dimension: a linear map of the element's offset."""
    shape, dim = tensor_type(op.result).shape, int(op.attrs["dim"])
    stride, extent = strides(shape)[dim], shape[dim]
    shift, mask = int(op.attrs["shift"]), int(op.attrs["mask"])
    layout = e.layout(op.result).map(lambda offset: ((offset // stride & (extent - 1)) >> shift) & mask)
    e.tensors[op.result] = Range(0, layout)


HANDLERS: dict[str, Handler] = {
    RANGE_BITS: _range_bits,
    "arith.constant": _constant,
    "tt.broadcast": _broadcast,
    "tt.cat": _cat,
    "tt.expand_dims": same_offsets,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.join": _join,
    "tt.make_range": _make_range,
    "tt.reshape": same_offsets,
    "tt.splat": _splat,
    "tt.split": _split,
    "tt.trans": _transpose,
    "tt.unsplat": _unsplat,
    "ub.poison": _poison,
}
