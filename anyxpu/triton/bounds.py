"""Comparisons that the bounds of their operands decide: masks that hold everywhere are not computed.

Inductor masks every row of a looped reduction, as its text does not know the size of the block; with the block's
size and the loop's bounds at hand, most of those masks are true. Bounds are those of the exact result: where it
would not fit its type, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable

from anyxpu.triton.ir import Function, Op, Scalar, Tensor, Value, blocks, walk

Bounds = tuple[int, int]  # the least and the largest value

# Ops whose result has the elements of their first operand.
_MOVES = frozenset(
    {
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
        "ttg.convert_layout",
        "arith.extsi",
        "arith.index_cast",
    }
)


def _products(a: Bounds, b: Bounds) -> Bounds:
    all_four = [x * y for x in a for y in b]
    return min(all_four), max(all_four)


def _quotient(a: Bounds, b: Bounds) -> Bounds | None:
    return (a[0] // b[1], a[1] // b[0]) if a[0] >= 0 and b[0] > 0 else None


def _remainder(a: Bounds, b: Bounds) -> Bounds | None:
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 and b[0] > 0 else None


_RULES: dict[str, Callable[[Bounds, Bounds], Bounds | None]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": _products,
    "arith.divsi": _quotient,
    "arith.remsi": _remainder,
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "arith.andi": lambda a, b: (0, min(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else None,
}

_COMPARISONS: dict[str, Callable[[Bounds, Bounds], bool]] = {
    "slt": lambda a, b: a[1] < b[0],
    "sle": lambda a, b: a[1] <= b[0],
    "sgt": lambda a, b: a[0] > b[1],
    "sge": lambda a, b: a[0] >= b[1],
}


def decide_masks(function: Function) -> None:
    """Replace each comparison that always holds by the constant true, and take true out of what is built on it."""
    assert function.body is not None
    known: dict[Value, Bounds] = {}
    same: dict[Value, Value] = {}  # what stands for a value from here on
    true: set[Value] = set()
    unused: set[Op] = set()
    for op in walk(function.body):
        op.operands = [same.get(o, o) for o in op.operands]
        op.successors = [(label, [same.get(o, o) for o in values]) for label, values in op.successors]
        if op.name == "scf.for":
            _counter(op, known)
        elif op.name == "arith.cmpi":
            _decide(op, known, true)
        elif op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout") and op.operands[0] in true:
            _become_true(op, true)
        elif op.name == "arith.andi" and any(o in true for o in op.operands):
            first, second = op.operands
            same[op.result] = second if first in true else first
            unused.add(op)
        elif op.name == "arith.select" and op.operands[0] in true:
            same[op.result] = op.operands[1]
            unused.add(op)
        elif len(op.results) == 1:
            bounds = _bounds(op, known)
            if bounds is not None:
                known[op.result] = bounds
    for block in blocks(function.body):
        block.ops = [op for op in block.ops if op not in unused]


def _integer(value: Value) -> Scalar | None:
    element = value.type.element if isinstance(value.type, Tensor) else value.type
    return element if isinstance(element, Scalar) and not element.is_float and element.bits > 1 else None


def _bounds(op: Op, known: dict[Value, Bounds]) -> Bounds | None:
    """The result's bounds, or None where they are not known to fit its type."""
    element = _integer(op.result)
    if element is None:
        return None
    found: Bounds | None = None
    if op.name == "arith.constant":
        value = op.attrs.get("value")
        found = (int(value), int(value)) if isinstance(value, int) else None
    elif op.name == "tt.make_range":
        found = (int(op.attrs["start"]), int(op.attrs["end"]) - 1)
    elif op.name in _MOVES:
        found = known.get(op.operands[0])
    elif op.name in _RULES:
        sides = [known.get(o) for o in op.operands]
        if sides[0] is not None and sides[1] is not None:
            found = _RULES[op.name](sides[0], sides[1])
    if found is None or found[0] < -(1 << element.bits - 1) or found[1] >= 1 << element.bits - 1:
        return None
    return found


def _counter(op: Op, known: dict[Value, Bounds]) -> None:
    lower, upper, step = (known.get(o) for o in op.operands[:3])
    if op.attrs.get("unsigned") or lower is None or upper is None or step is None:
        return
    # All three are constants as a rule. Otherwise the last value is known only to be under the upper bound.
    exact = lower[0] == lower[1] and step[0] == step[1] and step[0] > 0
    last = upper[1] - 1
    if exact and last >= lower[0]:
        last = lower[0] + (last - lower[0]) // step[0] * step[0]
    if step[0] > 0 and last >= lower[0]:
        known[op.regions[0].entry.args[0]] = (lower[0], last)


def _decide(op: Op, known: dict[Value, Bounds], true: set[Value]) -> None:
    sides = [known.get(o) for o in op.operands]
    rule = _COMPARISONS.get(op.words[0])
    if rule is not None and sides[0] is not None and sides[1] is not None and rule(sides[0], sides[1]):
        _become_true(op, true)


def _become_true(op: Op, true: set[Value]) -> None:
    op.name, op.operands, op.words, op.attrs = "arith.constant", [], [], {"value": True}
    true.add(op.result)
