"""Where the elements of a tensor come from, and the loop over registers in which they are wanted.

A kind of elements has ``inputs``, the values that reading it reads, and ``at``, the C expression of the element in one
register. How an op that is a statement prints its own element, its module says in :data:`ELEMENT_PRINTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyxpu.triton import layout as layouts
from anyxpu.triton import tables, wrapping
from anyxpu.triton.ir import Op, Pointer, Scalar, Tensor, Type, Value
from anyxpu.triton.layout import BitMap, Layout

if TYPE_CHECKING:
    from anyxpu.triton.emit import Emitter


@dataclass(frozen=True)
class Array:
    """An array (or, for one register, a variable) of elements of ``type``; ``item`` completes an element's index."""

    name: str
    registers: int
    type: Scalar | Pointer
    item: str = ""

    def inputs(self) -> Sequence[Value]:
        return ()

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        element = self.element(loop.register(index))
        if self.registers == 1 or self.item:
            return element
        # Read before it is chosen: see storage.py for what a choice between two private arrays comes to.
        return loop.temporary(self.type, element)

    def element(self, index: str) -> str:
        if self.registers == 1:
            return self.name
        return f"{self.name}[({index}){self.item}]" if self.item else f"{self.name}[{index}]"


@dataclass(frozen=True)
class Splat:
    """The same scalar everywhere."""

    expression: str

    def inputs(self) -> Sequence[Value]:
        return ()

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        return self.expression


@dataclass(frozen=True)
class Range:
    """``start`` plus the element's own offset."""

    start: int
    layout: Layout

    def inputs(self) -> Sequence[Value]:
        return ()

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        offset = loop.offset(self.layout, index)
        return offset if self.start == 0 else f"({offset} + {self.start})"


@dataclass(frozen=True)
class View:
    """Another tensor's registers in another order."""

    source: Value
    map: BitMap

    def inputs(self) -> Sequence[Value]:
        return (self.source,)

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        return loop.value(self.source, self.map.after(index))


@dataclass(frozen=True)
class Join:
    """One of two tensors, chosen by a bit of the register number."""

    sources: tuple[Value, Value]
    choice: int
    map: BitMap

    def inputs(self) -> Sequence[Value]:
        return self.sources

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        a, b = (loop.value(s, self.map.after(index)) for s in self.sources)
        chosen = BitMap(tuple((x >> self.choice) & 1 for x in index.bases), (index.const >> self.choice) & 1)
        bit = loop.register(chosen)
        return f"({bit} ? {b} : {a})"


@dataclass(frozen=True)
class Recomputed:
    """A cheap pure op, printed where its value is wanted."""

    op: Op
    cost: int

    def inputs(self) -> Sequence[Value]:
        return self.op.operands

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        if self.op.name in wrapping.DIVISIONS and (part := loop.divided(self.op, index)) is not None:
            return part
        args = [loop.value(o, index) for o in self.op.operands]
        return loop.temporary(value.element, loop.emitter.expression(self.op, args))


@dataclass(frozen=True)
class Read:
    """What a load gives, read where it is wanted."""

    op: Op

    def inputs(self) -> Sequence[Value]:
        return self.op.operands

    def at(self, loop: Loop, value: Value, index: BitMap) -> str:
        return str(ELEMENT_PRINTERS["tt.load"](loop, self.op, [loop.value(o, index) for o in self.op.operands]))


Elements = Array | Splat | Range | View | Join | Recomputed | Read


# --- one loop over registers


class Loop:
    """The inside of a loop ``for (int k = 0; k < count; ++k)``; for one iteration, no loop at all.

    An index is a :class:`BitMap` from the counter's bits to a register number. Where a reduction nests its loop,
    ``place`` is the number of the partial result at hand, and ``round`` counts what each has taken.
    """

    def __init__(self, emitter: Emitter, count: int) -> None:
        self.emitter, self.count = emitter, count
        self.counter = emitter.fresh("k")
        self.round, self.place = "0", "0"
        self.lane = "lane"  # which one, in C
        self.here = layouts.identity(count)
        self.known: dict[tuple[Value, BitMap], str] = {}
        self.checked: list[str] = []  # conditions of assertions on the elements at hand
        self.true: frozenset[Value] = frozenset()  # bits that are set here
        self.decided: dict[wrapping.Bit, str] = {}  # and what bits of one register are
        self.divisions: dict[wrapping.Key, None] = {}  # that were asked for; see wrapping.py
        self.whole: dict[wrapping.Key, tuple[str, str]] = {}  # those that no lane wraps in here

    def value(self, value: Value, index: BitMap | None = None) -> str:
        """The C expression of ``value``'s element in the register that ``index`` gives."""
        if not isinstance(value.type, Tensor):
            return self.emitter.scalar(value)
        index = self.here if index is None else index
        key = (value, index)
        if value in self.true:
            return "true"
        if key in self.decided:
            return self.decided[key]
        if key not in self.known:
            self.known[key] = self.emitter.elements(value).at(self, value, index)
        return self.known[key]

    def divided(self, op: Op, index: BitMap) -> str | None:
        """The expression of a division of numbers that follow each other, where no lane wraps."""
        key = wrapping.divided(op, index, self.emitter) if self.emitter.divides else None
        if key is None:
            return None
        self.divisions[key] = None
        if key not in self.whole:
            return None
        quotient, rest = self.whole[key]
        return f"({rest} + lane)" if "rem" in op.name else quotient

    def of_first_lane(self, ranged: Value, index: BitMap) -> str:
        """What :meth:`value` gives in lane 0, of a range."""
        known = self.known
        self.known, self.lane = {}, "0"
        expression = self.value(ranged, index)
        self.known, self.lane = known, "lane"
        return expression

    def temporary(self, type: Type, expression: str) -> str:
        return self.emitter.variable(tables.register_type(type), expression)

    def register(self, index: BitMap) -> str:
        return bit_expression(self.counter, index.bases, index.const)

    def offset(self, layout: Layout, index: BitMap | None = None) -> str:
        """The row-major offset of the element in the register that ``index`` gives."""
        index = self.here if index is None else index
        bases = BitMap(layout.reg).after(index)
        parts = [
            (self.counter, bases.bases, bases.const),
            (self.lane, layout.lane, 0),
            ("warp", layout.warp, 0),
        ]
        seen, disjoint = 0, True
        for _, b, const in parts:
            for x in (*b, const):
                disjoint &= not seen & x
                seen |= x
        terms = [t for t in (bit_expression(*p) for p in parts) if t != "0"]
        return f"({(' + ' if disjoint else ' ^ ').join(terms)})" if terms else "0"


def bit_expression(variable: str, bases: Sequence[int], const: int = 0) -> str:
    """The linear map of ``variable``'s bits as shifts and masks: runs of bits that stay together move together."""
    runs: list[tuple[int, int, int]] = []  # first bit, length, base of the first
    for i, base in enumerate(bases):
        if base == 0:
            continue
        if runs:
            first, length, start = runs[-1]
            if first + length == i and base == start << length and _one_bit(base):
                runs[-1] = (first, length + 1, start)
                continue
        runs.append((i, 1, base))
    seen, disjoint = const, True
    terms = []
    for first, length, start in runs:
        covered = start * ((1 << length) - 1) if _one_bit(start) else start
        disjoint &= not seen & covered
        seen |= covered
        terms.append(_run(variable, first, length, start, len(bases)))
    if const:
        terms.append(str(const))
    if not terms:
        return "0"
    return terms[0] if len(terms) == 1 else f"({(' + ' if disjoint else ' ^ ').join(terms)})"


def _one_bit(x: int) -> bool:
    return x & (x - 1) == 0


def _run(variable: str, first: int, length: int, base: int, width: int) -> str:
    if not _one_bit(base):
        return f"((({variable} >> {first}) & 1) * {base})"
    to = base.bit_length() - 1
    if first + length == width:
        term = variable if first == 0 else f"({variable} >> {first})"
    else:
        term = f"({variable if first == 0 else f'({variable} >> {first})'} & {(1 << length) - 1})"
    return term if to == 0 else f"({term} << {to})"


ElementPrinter = Callable[[Loop, Op, Sequence[str]], "str | None"]

# Ops that wait for a loop but are printed as statements; filled by the modules that know them.
ELEMENT_PRINTERS: dict[str, ElementPrinter] = {}
