"""Software prefetch: a loop asks for the operands of its matrix products some iterations before it loads them.

A load that a matrix product of the engine waits for, and whose address and mask in a later iteration can be computed
from the loop's counter and from what the loop carries, gets a companion: the tile that will be loaded
``num_stages - 1`` iterations later is fetched into the cache. The companion computes the load's addresses by copies of
the ops that these come from, but of one element a cache line (the encoding ``lines``), so that the lines of a tile are
spread over the work-items. Pointers that the loop carries it carries once more, of those elements alone.

Nothing is touched that the load itself would not touch: not past the last iteration, and not where the mask is false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from anyxpu.triton import matrix, tables
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Block, Encoding, Function, Op, Pointer, Region, Scalar, Tensor, Type, Value, blocks, walk
from anyxpu.triton.memory import owner_conditions

# The name of the op: addresses, and a mask where there is one.
PREFETCH = "prefetch"

# Bytes of a cache line, on all of Intel's GPUs that have a matrix engine.
LINE = 64

# Ops besides tables.RECOMPUTED that are copied: each result's element comes from one element of the operands.
_STRUCTURE = frozenset(
    {
        "arith.constant",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.get_num_programs",
        "tt.get_program_id",
        "tt.make_range",
        "tt.splat",
        "ttg.convert_layout",
    }
)
# Ops through which an operand of a product comes from a load, besides elementwise ones.
_MOVES = frozenset({"tt.broadcast", "tt.expand_dims", "tt.join", "tt.reshape", "tt.trans", "ttg.convert_layout"})


def insert(function: Function, lanes: int, warps: int, stages: int) -> None:
    """Add the prefetches to every loop; ``stages`` is for loops that do not say how many they want."""
    assert function.body is not None
    users: dict[Value, list[Op]] = defaultdict(list)
    initial: dict[Value, Value] = {}  # what carried values are when their loops begin
    for op in walk(function.body):
        for operand in op.operands:
            users[operand].append(op)
        if op.name == "scf.for":
            initial.update(zip(op.regions[0].entry.args[1:], op.operands[3:], strict=True))
    for block in blocks(function.body):
        ops: list[Op] = []
        for op in block.ops:
            if op.name == "scf.for" and len(op.regions[0].blocks) == 1:
                distance = int(op.attrs.get("tt.num_stages", stages)) - 1
                loads = [o for o in op.regions[0].entry.ops if _is_wanted(o, users, lanes)]
                shapes = {o: e for o in loads if (e := _lines_of(o.operands[0], initial, lanes, warps)) is not None}
                ops += _into_loop(op, shapes, distance) if distance > 0 else []
            ops.append(op)
        block.ops = ops


def _is_wanted(op: Op, users: dict[Value, list[Op]], lanes: int) -> bool:
    """Is it a load of a tile that the matrix engine multiplies?"""
    if op.name != "tt.load" or not op.result.is_tensor or op.attrs.get("isVolatile"):
        return False
    work, seen = [op.result], {op.result}
    while work:
        value = work.pop()
        for user in users[value]:
            if user.name == "tt.dot" and value in user.operands[:2] and matrix.form_of(user, lanes) is not None:
                return True
            if user.name in _MOVES or user.name in tables.ELEMENTWISE:
                work += [r for r in user.results if r not in seen]
                seen.update(user.results)
    return False


def _into_loop(loop: Op, loads: dict[Op, Encoding], distance: int) -> list[Op]:
    """Put the prefetches for ``loads``, each laid out as it says, into the loop; the ops to go before it."""
    made = [m for m in (_companion(loop, load, lines, distance) for load, lines in loads.items()) if m is not None]
    if not made:
        return []
    body = loop.regions[0].entry
    *ops, end = body.ops
    for companion in made:
        companion.carry(end)
    body.ops = [
        *_guarded(loop, [op for m in made for op in m.later.ops], distance, first=False),
        *ops,
        *(op for m in made for op in m.end.ops),
        end,
    ]
    # What the first iterations load nobody has asked for; the very first is too late for.
    early = (
        _guarded(loop, [op for m in made for op in m.first[n].ops], n + 1, first=True) for n in range(distance - 1)
    )
    return [*(op for m in made for op in m.outside.ops), *(op for ops in early for op in ops)]


# --- which elements


def _lines_of(pointers: Value, initial: dict[Value, Value], lanes: int, warps: int) -> Encoding | None:
    """The layout in which each cache line of a tile has one element; None where it is not known how lines lie."""
    assert isinstance(pointers.type, Tensor) and isinstance(pointers.element, Pointer)
    shape, encoding, element = pointers.type.shape, pointers.type.encoding, pointers.element.pointee
    assert isinstance(element, (Scalar, Pointer))
    step = LINE * 8 // max(8, element.bits)  # an i1 is a byte
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1 and _stride(pointers, dim, initial) == 1:
            return _lines(shape, dim, step, lanes, warps)
    if encoding is not None and encoding.kind == "blocked":
        # Triton gives a thread several elements where its own analysis, which knows more, found them contiguous.
        first = int(encoding["order"][0])
        if encoding["sizePerThread"][first] > 1:
            return _lines(shape, first, step, lanes, warps)
    return None


def _lines(shape: tuple[int, ...], dim: int, step: int, lanes: int, warps: int) -> Encoding:
    """One element in ``step`` along ``dim``, neighbouring ones in neighbouring lanes; see layout.py."""
    order = (dim, *(d for d in reversed(range(len(shape))) if d != dim))
    left = [-(-extent // step) if d == dim else extent for d, extent in enumerate(shape)]
    spread: dict[str, tuple[int, ...]] = {}
    for key, count in (("threadsPerWarp", lanes), ("warpsPerCTA", warps)):
        taken = [1] * len(shape)
        for d in order:
            taken[d] = min(count, left[d])
            count //= taken[d]
            left[d] //= taken[d]
        taken[dim] *= count  # more work-items than lines
        spread[key] = tuple(taken)
    return Encoding("lines", (("dim", dim), ("step", step), *spread.items(), ("order", order)))


def _stride(value: Value, dim: int, initial: dict[Value, Value]) -> int | None:
    """By how much neighbours along ``dim`` differ, in elements; None where that is not a known constant."""
    op = value.owner
    if not value.is_tensor:
        return 0
    if value in initial:  # a carried pointer advances by the same amount everywhere, as a rule
        return _stride(initial[value], dim, initial)
    if not isinstance(op, Op):
        return None
    if op.name == "tt.make_range":
        return 1
    if op.name == "arith.constant" or op.name == "tt.splat":
        return 0
    if op.name == "tt.expand_dims":
        axis = int(op.attrs["axis"])
        return 0 if axis == dim else _stride(op.operands[0], dim - (axis < dim), initial)
    if op.name == "tt.broadcast":
        assert isinstance(op.operands[0].type, Tensor)
        return 0 if op.operands[0].type.shape[dim] == 1 else _stride(op.operands[0], dim, initial)
    if op.name not in tables.RECOMPUTED and op.name != "ttg.convert_layout":
        return None
    strides = [_stride(o, dim, initial) for o in op.operands]
    if None in strides:
        return None
    if op.name in ("arith.addi", "tt.addptr"):
        return sum(s for s in strides if s is not None)
    if op.name in ("ttg.convert_layout", "arith.extsi", "arith.extui", "arith.trunci"):
        return strides[0]
    return None if any(strides) else 0


# --- copies of what addresses and masks come from


def _companion(loop: Op, load: Op, lines: Encoding, distance: int) -> _Companion | None:
    """The prefetches of one load, not yet in the loop; None where a later iteration's address is not known."""
    companion = _Companion(loop, distance)
    try:
        for place in (companion.later, *companion.first):
            operands = [companion.copy(place, v, lines, place.ahead) for v in load.operands[:2]]
            place.ops.append(Op(PREFETCH, operands))
    except _Unknown:
        return None
    return companion


class _Unknown(Exception):
    """A value of a later iteration that cannot be computed in this one."""


@dataclass
class _Place:
    """Ops that run together, ``ahead`` iterations before what they compute, and what each of them is a copy of.

    ``first``: in front of the loop, where the current iteration is the first.
    """

    ahead: int = 0
    first: bool = False
    ops: list[Op] = field(default_factory=list)
    made: dict[tuple[Value, int, Encoding | None], Value] = field(default_factory=dict)

    def add(
        self, name: str, operands: Iterable[Value], type: Type, words: Iterable[str] = (), **attrs: object
    ) -> Value:
        op = Op(name, [*operands], attrs=attrs, words=[*words])
        op.results = [Value(f"ahead{len(self.ops)}", type, op)]
        self.ops.append(op)
        return op.result


class _Companion:
    """Copies, in other layouts and of other iterations, of the values that one load in a loop needs.

    Attributes:
        outside: ops in front of the loop, of values that do not change in it.
        first: ops in front of the loop for the iterations 1, 2, ... that the loop would ask for too late.
        later: ops in the loop, for an iteration ``distance`` ahead.
        end: ops at the loop's end, of what it carries.
    """

    def __init__(self, loop: Op, distance: int) -> None:
        self.loop = loop
        self.body = loop.regions[0].entry
        self.inside = {r for op in walk(loop.regions[0]) for r in op.results} | {*self.body.args}
        self.outside, self.end = _Place(), _Place()
        self.first = [_Place(ahead, first=True) for ahead in range(1, distance)]
        self.later = _Place(distance)
        self.carried: dict[tuple[Value, Encoding], tuple[Value, Value, Value]] = {}  # argument, at first, next

    def carry(self, end: Op) -> None:
        """Have the loop carry what the prefetches need it to; ``end`` is its terminator."""
        for (original, _), (argument, initial, following) in self.carried.items():
            self.loop.operands.append(initial)
            self.loop.results.append(Value(f"{original.name}_lines", argument.type, self.loop))
            self.body.args.append(argument)
            end.operands.append(following)

    def copy(self, place: _Place, value: Value, encoding: Encoding | None, ahead: int) -> Value:
        """``value`` as it will be ``ahead`` iterations later; a tensor in the layout of ``encoding``."""
        if not value.is_tensor:
            encoding = None
        if value not in self.inside:
            if encoding is None:
                return value
            place = self.outside
        key = (value, ahead, encoding)
        if key not in place.made:
            place.made[key] = self._copied(place, value, encoding, ahead)
        return place.made[key]

    def _copied(self, place: _Place, value: Value, encoding: Encoding | None, ahead: int) -> Value:
        op = value.owner
        if value in self.body.args:
            if value is self.body.args[0]:
                return self._counter(place, ahead)
            return self._carried(place, value, encoding, ahead)
        if isinstance(op, Op) and (op.name in tables.RECOMPUTED or op.name in _STRUCTURE):
            return self._copied_op(place, op, encoding, ahead)
        if value in self.inside:
            raise _Unknown
        return place.add("ttg.convert_layout", [value], _laid_out(value, encoding))

    def _copied_op(self, place: _Place, op: Op, encoding: Encoding | None, ahead: int) -> Value:
        if op.name == "ttg.convert_layout":
            return self.copy(place, op.operands[0], encoding, ahead)
        wanted = encoding
        if op.name == "tt.expand_dims":
            wanted = Encoding("slice", (("dim", int(op.attrs["axis"])), ("parent", encoding)))
        operands = [self.copy(place, o, wanted, ahead) for o in op.operands]
        return place.add(op.name, operands, _laid_out(op.result, encoding), op.words, **op.attrs)

    def _counter(self, place: _Place, ahead: int) -> Value:
        start, step = (self.loop.operands[0] if place.first else self.body.args[0]), self.loop.operands[2]
        if ahead == 0:
            return start
        times = place.add("arith.constant", [], start.type, value=ahead)
        return place.add("arith.addi", [start, place.add("arith.muli", [step, times], start.type)], start.type)

    def _carried(self, place: _Place, value: Value, encoding: Encoding | None, ahead: int) -> Value:
        index = self.body.args.index(value) - 1
        following = self.body.ops[-1].operands[index]
        if ahead > 0:
            return self.copy(place, following, encoding, ahead - 1)
        initial = self.loop.operands[3 + index]
        if place.first:
            return self.copy(place, initial, encoding, 0)
        if encoding is None:
            return value
        key = (value, encoding)
        if key not in self.carried:
            argument = Value(f"{value.name}_lines", _laid_out(value, encoding), self.body)
            at_first = self.copy(self.outside, initial, encoding, 0)
            self.carried[key] = (argument, at_first, argument)  # known before what follows is, which may need it
            self.carried[key] = (argument, at_first, self.copy(self.end, following, encoding, 0))
        return self.carried[key][0]


def _laid_out(value: Value, encoding: Encoding | None) -> Type:
    t = value.type
    return Tensor(t.shape, t.element, encoding) if isinstance(t, Tensor) else t


def _guarded(loop: Op, ops: list[Op], ahead: int, first: bool) -> list[Op]:
    """``ops`` where the loop has an iteration ``ahead`` of the current one, or of the first."""
    lower, upper, step = loop.operands[:3]
    place, number, truth = _Place(), lower.type, Scalar("i1")
    now = lower if first else loop.regions[0].entry.args[0]
    # upper - now > ahead * step, without a product or a difference that does not fit its type.
    left = place.add("arith.subi", [upper, now], number)
    left = place.add("arith.subi", [left, place.add("arith.constant", [], number, value=1)], number)
    if ahead > 1:
        left = place.add("arith.divui", [left, place.add("arith.constant", [], number, value=ahead)], number)
    guard = place.add("arith.cmpi", [left, step], truth, ["uge"])
    if first:
        some = place.add("arith.cmpi", [lower, upper], truth, ["ult" if loop.attrs.get("unsigned") else "slt"])
        guard = place.add("arith.andi", [some, guard], truth)
    region = Region([Block("", [], [*ops, Op("scf.yield")])])
    return [*place.ops, Op("scf.if", [guard], regions=[region])]


# --- printing


def _prefetch(e: Emitter, op: Op) -> None:
    e.flush()
    layout = e.layout(op.operands[0])
    owners = owner_conditions(layout)
    with e.loop(layout.registers) as loop:
        address, *mask = [loop.value(o) for o in op.operands]
        conditions = owners + [m for m in mask if m != "true"]
        guard = f"if ({' && '.join(conditions)}) " if conditions else ""
        e.line(f"{guard}ax_prefetch((__global const char*){address});")


HANDLERS: dict[str, Handler] = {PREFETCH: _prefetch}
