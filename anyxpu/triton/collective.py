"""Reductions and scans: within a lane's registers, then across lanes by sub-group shuffles, then across warps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from anyxpu.triton import layout as layouts
from anyxpu.triton import tables
from anyxpu.triton.elements import ELEMENT_PRINTERS, Array, Loop, bit_expression
from anyxpu.triton.emit import ACCUMULATE, UNROLL_LIMIT, Emitter, Handler
from anyxpu.triton.ir import Op, Scalar, Tensor, Value
from anyxpu.triton.layout import BitMap, Layout, axis_bits, flat, log2, unflat
from anyxpu.triton.move import exchange, move, tensor_type

# Combine functions of one such op give bitwise the same whichever operand comes first.
_COMMUTATIVE = frozenset(
    f"arith.{name}"
    for group in (
        ("addf", "mulf", "maxnumf", "minnumf", "maximumf", "minimumf"),
        ("addi", "muli", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui"),
    )
    for name in group
)

# What such an op leaves the other operand as it is with, by the number of the type's bits.
_NEUTRAL: dict[str, Callable[[int], float | int]] = {
    "arith.addf": lambda bits: -0.0,
    "arith.mulf": lambda bits: 1.0,
    "arith.maxnumf": lambda bits: math.nan,
    "arith.minnumf": lambda bits: math.nan,
    "arith.maximumf": lambda bits: -math.inf,
    "arith.minimumf": lambda bits: math.inf,
    "arith.addi": lambda bits: 0,
    "arith.muli": lambda bits: 1,
    "arith.andi": lambda bits: -1,
    "arith.ori": lambda bits: 0,
    "arith.xori": lambda bits: 0,
    "arith.maxsi": lambda bits: -(1 << bits - 1),
    "arith.minsi": lambda bits: (1 << bits - 1) - 1,
    "arith.maxui": lambda bits: 0,
    "arith.minui": lambda bits: -1,
}


class _Axis:
    """The operands of a reduction or scan, in a layout whose bases lie either along the axis or across it."""

    def __init__(self, e: Emitter, op: Op) -> None:
        self.e, self.region = e, op.regions[0]
        self.axis = int(op.attrs["axis"])
        self.shape = tensor_type(op.operands[0]).shape
        self.mask = axis_bits(self.axis, self.shape)
        self.values = list(op.operands)
        self.layout = e.layout(self.values[0])
        bases = (*self.layout.reg, *self.layout.lane, *self.layout.warp)
        self.moved = any(b & self.mask and b & ~self.mask for b in bases)
        if self.moved:
            self.use(self.canonical())
        body = self.region.entry.ops
        self.commutative = len(body) == 2 and body[0].name in _COMMUTATIVE
        self.neutral: str | None = None
        element = self.values[0].element
        if self.commutative and set(body[0].operands) == set(self.region.entry.args) and isinstance(element, Scalar):
            self.neutral = tables.literal(_NEUTRAL[body[0].name](element.bits), element)

    def canonical(self) -> Layout:
        order = [self.axis, *(d for d in reversed(range(len(self.shape))) if d != self.axis)]
        return layouts.canonical(self.shape, self.e.lanes, self.e.warps, order)

    def use(self, layout: Layout) -> None:
        """Move the operands to another layout."""
        self.e.flush()
        self.layout = layout
        moved = []
        for v in self.values:
            new = Value(v.name, v.type)
            self.e.tensors[new] = exchange(self.e, v, layout)
            self.e.layouts[new] = layout
            moved.append(new)
        self.values = moved

    def along(self, bases: Sequence[int]) -> list[int]:
        """Which bits of the registers, lanes or warps go along the axis."""
        return [i for i, b in enumerate(bases) if b & self.mask]

    def across(self, bases: Sequence[int]) -> list[int]:
        return [i for i, b in enumerate(bases) if not b & self.mask]

    def combine(self, first: Sequence[str], second: Sequence[str]) -> list[str]:
        return self.e.inline(self.region, [*first, *second])

    def set(self, arrays: Sequence[Array], index: str, values: Sequence[str]) -> None:
        self.store([a.element(index) for a in arrays], values)

    def store(self, targets: Sequence[str], values: Sequence[str]) -> None:
        for target, value in zip(targets, values, strict=True):
            self.e.line(f"{target} = {value};")

    def hold(self, expressions: Sequence[str]) -> list[str]:
        """The expressions in variables, so that they are computed once."""
        types = [tables.storage_type(v.element) for v in self.values]
        return [self.e.variable(c, x) for c, x in zip(types, expressions, strict=True)]


# --- reduce


def _reduce(e: Emitter, op: Op) -> None:
    a = _Axis(e, op)
    if a.layout.registers > ACCUMULATORS and a.along(a.layout.reg) and not a.moved:
        totals = _reduce_waiting(a, op)
    else:
        e.flush()
        totals = _reduce_registers(a)
    totals, left = _reduce_lanes(a, totals)
    _reduce_warps(a, totals)
    for result, total in zip(op.results, totals, strict=True):
        if not isinstance(result.type, Tensor):
            e.scalars[result] = total.name
            continue
        held = Value(result.name, result.type)
        e.tensors[held], e.layouts[held] = total, left
        if layouts.register_map(left, e.layout(result)) is None:
            if all(user.name == "ttg.convert_layout" for user in e.users[result]):
                e.tensors[result], e.layouts[result] = total, left
                continue
            e.elsewhere[result] = held
        move(e, result, held, e.layout(result))


def _without_axis(a: _Axis) -> Layout:
    """What is left of the layout when the axis is gone: lanes along it hold copies."""
    rest = tuple(s for i, s in enumerate(a.shape) if i != a.axis)

    def drop(offset: int) -> int:
        return flat([c for i, c in enumerate(unflat(offset, a.shape)) if i != a.axis], rest)

    left = a.layout.map(drop)
    return Layout(tuple(left.reg[i] for i in a.across(a.layout.reg)), left.lane, left.warp)


# Independent partial results that hide the latency of combining.
ACCUMULATORS = 4


# Loops of more waiting ops than this are not unrolled for the sake of several partial results: the code would grow too
# long to compile, and combining is little of what they do.
_SHORT_LOOP = 16


@dataclass(frozen=True)
class _Nest:
    """How the loop over registers is nested while they are reduced: which of their bits each loop counts.

    ``rows`` choose rows that are reduced one after the other. Inside, ``rest`` goes along the axis, and what is
    unrolled within it has a partial result each: ``beside`` are rows of neighbouring registers, ``apart`` goes along
    the axis as well.
    """

    rows: list[int]
    rest: list[int]
    beside: list[int]
    apart: list[int]

    @property
    def partial(self) -> int:
        return 1 << len(self.beside) + len(self.apart)

    @property
    def short(self) -> bool:
        """Are the inner loops so short that the device's compiler may write them out?"""
        return len(self.rest) > 0 and self.partial << len(self.rest) <= UNROLL_LIMIT


def _nest(a: _Axis, waiting: int) -> _Nest:
    along, across = a.along(a.layout.reg), a.across(a.layout.reg)
    beside: list[int] = []
    apart = 0  # how many of the bits along the axis
    if waiting <= _SHORT_LOOP:
        beside = [i for i in across if i < along[0]][: log2(UNROLL_LIMIT)]
        apart = max(0, log2(ACCUMULATORS) - len(beside))
    return _Nest([i for i in across if i not in beside], along[apart:], beside, along[:apart])


def _reduce_waiting(a: _Axis, op: Op) -> list[Array]:
    """The registers along the axis while their elements are being computed: they need no place of their own."""
    e = a.e
    nest = _nest(a, len(e.pending))
    indexed = len(nest.rows) > 0 and a.layout.registers > UNROLL_LIMIT
    totals = [e.declare(v.element, 1 << len(a.across(a.layout.reg)), indexed=indexed) for v in a.values]
    names = [e.fresh("s") for _ in a.values]
    attrs = {"axis": a, "names": names, "loop": lambda: _nested(a, nest, names, totals)}
    taking = Op(ACCUMULATE, list(op.operands), attrs=attrs)
    for operand in op.operands:
        e.users[operand].remove(op)
        e.users[operand].append(taking)
    e.pending.append(taking)
    e.flush()
    return totals


@contextlib.contextmanager
def _nested(a: _Axis, nest: _Nest, names: Sequence[str], totals: Sequence[Array]) -> Iterator[Loop]:
    """The loops of ``nest`` around what makes and takes the elements; what they come to goes to ``totals``."""
    e = a.e
    loop = Loop(e, a.layout.registers)
    inner = [*nest.beside, *nest.apart]
    unroll = a.layout.registers <= UNROLL_LIMIT
    with _counted(e, nest.rows, unroll) as (row, rows_part):
        for v, name in zip(a.values, names, strict=True):
            # Where nothing is neutral, what is combined with it is not used; but it must not trap.
            start = a.neutral or ("1" if isinstance(v.element, Scalar) else "0")
            starts = ", ".join([start] * nest.partial)
            e.line(f"{tables.storage_type(v.element)} {name}[{nest.partial}] = {{{starts}}};")
        with (
            _counted(e, nest.rest, unroll or nest.short) as (loop.round, rest_part),
            _counted(e, inner, True) as (loop.place, inner_part),
        ):
            parts = [part for part in (rows_part, rest_part, inner_part) if part != "0"]
            e.line(f"const int {loop.counter} = {' + '.join(parts)};")
            yield loop
        rows = a.across(a.layout.reg)
        for beside in range(1 << len(nest.beside)):
            partial = [
                a.hold([f"{name}[{beside + (apart << len(nest.beside))}]" for name in names])
                for apart in range(1 << len(nest.apart))
            ]
            while len(partial) > 1:
                partial = [a.hold(a.combine(x, y)) for x, y in zip(partial[::2], partial[1::2], strict=True)]
            here = sum(1 << rows.index(b) for i, b in enumerate(nest.beside) if beside >> i & 1)
            place = bit_expression(row, [1 << rows.index(b) for b in nest.rows], here)
            a.set(totals, place, partial[0])


@contextlib.contextmanager
def _counted(e: Emitter, bits: Sequence[int], unroll: bool) -> Iterator[tuple[str, str]]:
    """A loop over some bits of the register number: its counter, and what that comes to in the register number."""
    if not bits:
        yield "0", "0"
        return
    name = e.fresh("k")
    if unroll:
        e.line("#pragma unroll")
    with e.braces(f"for (int {name} = 0; {name} < {1 << len(bits)}; ++{name})"):
        yield name, bit_expression(name, [1 << b for b in bits])


def _take(loop: Loop, op: Op, args: Sequence[str]) -> None:
    a: _Axis = op.attrs["axis"]
    partial = [f"{name}[{loop.place}]" for name in op.attrs["names"]]
    values = a.hold(args)
    combined = a.hold(a.combine(partial, values))
    if a.neutral is None:
        # Not a branch: in a loop that has another one, of a masked access, Intel's CPU compiler then loses the
        # addresses of private and local arrays.
        combined = [f"{loop.round} ? {c} : {v}" for c, v in zip(combined, values, strict=True)]
    a.store(partial, combined)


ELEMENT_PRINTERS[ACCUMULATE] = _take


def _reduce_registers(a: _Axis) -> list[Array]:
    """Over the registers along the axis: for each row a few variables that take in turn what comes."""
    e = a.e
    across, along = ([1 << i for i in bits(a.layout.reg)] for bits in (a.across, a.along))
    totals = [e.declare(v.element, 1 << len(across)) for v in a.values]
    inner, outer = along[: log2(ACCUMULATORS)], along[log2(ACCUMULATORS) :]
    starts = [sum(b for bit, b in enumerate(inner) if j >> bit & 1) for j in range(1 << len(inner))]
    with e.loop(totals[0].registers) as row:
        partial = [a.hold([row.value(v, BitMap(tuple(across), start)) for v in a.values]) for start in starts]
        if outer:
            _accumulate(a, partial, row, BitMap((*across, *outer)), starts)
        while len(partial) > 1:
            partial = [a.hold(a.combine(x, y)) for x, y in zip(partial[::2], partial[1::2], strict=True)]
        a.set(totals, row.counter, partial[0])
    return totals


def _accumulate(a: _Axis, partial: list[list[str]], row: Loop, places: BitMap, starts: list[int]) -> None:
    """Combine into ``partial`` what else its row has; ``places``: the register for the row's and the rest's bits."""
    e = a.e
    loop = Loop(e, 1 << len(places.bases))
    rest = e.fresh("k")
    if e.layout(a.values[0]).registers <= UNROLL_LIMIT:
        e.line("#pragma unroll")
    with e.braces(f"for (int {rest} = 1; {rest} < {loop.count // row.count}; ++{rest})"):
        shift = log2(row.count)
        e.line(f"const int {loop.counter} = " + (f"({rest} << {shift}) | {row.counter};" if shift else f"{rest};"))
        for start, mine in zip(starts, partial, strict=True):
            index = BitMap(places.bases, start)
            combined = a.hold(a.combine(mine, [loop.value(v, index) for v in a.values]))
            for name, x in zip(mine, combined, strict=True):
                e.line(f"{name} = {x};")


def _reduce_lanes(a: _Axis, totals: list[Array]) -> tuple[list[Array], Layout]:
    """Each row's total over the lanes, and where the totals then are.

    Of several rows each step halves the rows of a lane: it gives the half that the other lane keeps, and takes what
    that one has of its own half. So rows end up spread over lanes, with as many shuffles as there are rows, not as many
    for each.
    """
    e = a.e
    left = _without_axis(a)
    bits = a.along(a.layout.lane)
    while bits and totals[0].registers > 1:
        totals, left = _halve_rows(a, totals, left, bits.pop())
    if not bits:
        return totals, left
    with e.loop(totals[0].registers) as loop:
        mine = a.hold([t.element(loop.counter) for t in totals])
        for bit in bits:
            mine = a.hold(_across_lanes(a, bit, mine, mine))
        a.set(totals, loop.counter, mine)
    return totals, left


def _across_lanes(a: _Axis, bit: int, mine: Sequence[str], given: Sequence[str]) -> list[str]:
    """``mine`` combined with what the lane that differs in ``bit`` gives."""
    got = a.hold([f"sub_group_shuffle_xor({g}, {1 << bit})" for g in given])
    first, second = mine, got
    if not a.commutative:  # every lane must combine in the same order, to get the same bits
        upper = f"(lane & {1 << bit})"
        first = a.hold([f"{upper} ? {g} : {m}" for m, g in zip(mine, got, strict=True)])
        second = a.hold([f"{upper} ? {m} : {g}" for m, g in zip(mine, got, strict=True)])
    return a.combine(first, second)


def _halve_rows(a: _Axis, totals: list[Array], left: Layout, bit: int) -> tuple[list[Array], Layout]:
    """Lanes without ``bit`` keep the first half of the rows that each holds, those with it the second."""
    e = a.e
    half = totals[0].registers // 2
    kept = [e.declare(v.element, half) for v in a.values]
    upper = f"(lane & {1 << bit})"
    with e.loop(half) as loop:
        bases = [1 << i for i in range(log2(half))]
        low = a.hold([t.element(bit_expression(loop.counter, bases)) for t in totals])
        high = a.hold([t.element(bit_expression(loop.counter, bases, half)) for t in totals])
        mine = a.hold([f"{upper} ? {h} : {w}" for w, h in zip(low, high, strict=True)])
        given = a.hold([f"{upper} ? {w} : {h}" for w, h in zip(low, high, strict=True)])
        a.set(kept, loop.counter, _across_lanes(a, bit, mine, given))
    lanes = tuple(left.reg[-1] if i == bit else b for i, b in enumerate(left.lane))
    return kept, Layout(left.reg[:-1], lanes, left.warp)


def _reduce_warps(a: _Axis, totals: list[Array]) -> None:
    """Each warp leaves its partial results in local memory; all read and combine them in the same order."""
    e = a.e
    bits = a.along(a.layout.warp)
    if not bits:
        return
    kept = totals[0].registers
    # Where register k of the lane is kept for a warp.
    place = "({k} * {warps} + {warp}) * {lanes} + lane"
    base = f"(warp & {~sum(1 << b for b in bits) & (e.warps - 1)})"
    for_warp = e.fresh("w")
    along = [1 << b for b in bits]
    slots = kept * e.warps * e.lanes
    pointers = e.locals((v.element, slots) for v in a.values)
    with e.loop(kept) as loop:
        k = loop.counter if kept > 1 else "0"
        for p, t in zip(pointers, totals, strict=True):
            slot = place.format(k=k, warp="warp", warps=e.warps, lanes=e.lanes)
            e.line(f"{p}[{slot}] = {t.element(k)};")
    e.barrier()
    with e.loop(kept) as loop:
        k = loop.counter if kept > 1 else "0"

        def read(warp: str) -> list[str]:
            slot = place.format(k=k, warp=warp, warps=e.warps, lanes=e.lanes)
            return [f"{p}[{slot}]" for p in pointers]

        mine = a.hold(read(base))
        with e.braces(f"for (int {for_warp} = 1; {for_warp} < {1 << len(bits)}; ++{for_warp})"):
            other = a.hold(read(f"({base} | {bit_expression(for_warp, along)})"))
            for name, value in zip(mine, a.hold(a.combine(mine, other)), strict=True):
                e.line(f"{name} = {value};")
        a.set(totals, loop.counter, mine)
    e.barrier()


# --- scan


def _scan(e: Emitter, op: Op) -> None:
    a = _Axis(e, op)
    e.flush()
    if not _scannable(a):
        a.use(a.canonical())
    reverse = bool(op.attrs.get("reverse"))
    out = _scan_lanes(a, reverse)
    _scan_registers(a, out, reverse)
    for result, array in zip(op.results, out, strict=True):
        held = Value(result.name, result.type)
        e.tensors[held], e.layouts[held] = array, a.layout
        move(e, result, held, e.layout(result))


def _scannable(a: _Axis) -> bool:
    """Lanes must be the inner part of the axis and registers the outer; warps have no part in it."""
    lanes = [b for b in a.layout.lane if b & a.mask]
    registers = [b for b in a.layout.reg if b & a.mask]
    in_order = lanes == sorted(lanes)
    return in_order and not a.along(a.layout.warp) and (not lanes or not registers or max(lanes) < min(registers))


def _scan_lanes(a: _Axis, reverse: bool) -> list[Array]:
    """Sklansky's scan over the lanes, one shuffle a bit, for every register by itself."""
    e = a.e
    count = a.layout.registers
    out = [e.declare(v.element, count) for v in a.values]
    bits = a.along(a.layout.lane)
    with e.loop(count) as loop:
        mine = a.hold([loop.value(v) for v in a.values])
        lower = 0
        for bit in (1 << b for b in bits):
            # A lane in the later half of its group takes in the total of the earlier half, held by its last lane.
            source = f"(lane & {~(bit | lower) & (e.lanes - 1)}) | {bit if reverse else lower}"
            total = a.hold([f"sub_group_shuffle({m}, {source})" for m in mine])
            both = a.hold(a.combine(total, mine))
            later = f"(lane & {bit}) {'=' if reverse else '!'}= 0"
            mine = a.hold([f"({later}) ? {b} : {m}" for b, m in zip(both, mine, strict=True)])
            lower |= bit
        a.set(out, loop.counter, mine)
    return out


def _scan_registers(a: _Axis, out: list[Array], reverse: bool) -> None:
    """Carry each register's total into the next one along the axis."""
    e = a.e
    along = sorted(a.along(a.layout.reg), key=lambda i: a.layout.reg[i])
    across = a.across(a.layout.reg)
    if not along:
        return
    n = 1 << len(along)
    lanes = sum(1 << b for b in a.along(a.layout.lane))
    last = f"(lane & {~lanes & (e.lanes - 1)})" + ("" if reverse or not lanes else f" | {lanes}")
    i = e.fresh("k")
    head = f"for (int {i} = {n - 2}; {i} >= 0; --{i})" if reverse else f"for (int {i} = 1; {i} < {n}; ++{i})"
    with e.loop(1 << len(across)) as loop:
        rest = bit_expression(loop.counter, [1 << b for b in across])
        with e.braces(head):
            bases = [1 << b for b in along]
            here = e.variable("int", f"{bit_expression(i, bases)} + {rest}")
            step = e.variable("int", f"{i} {'+' if reverse else '-'} 1")
            before = e.variable("int", f"{bit_expression(step, bases)} + {rest}")
            totals = [o.element(before) for o in out]
            carry = a.hold([f"sub_group_shuffle({t}, {last})" for t in totals] if lanes else totals)
            mine = a.hold([o.element(here) for o in out])
            a.set(out, here, a.combine(carry, mine))


HANDLERS: dict[str, Handler] = {"tt.reduce": _reduce, "tt.scan": _scan}
