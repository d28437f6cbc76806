"""An estimate of what a kernel does, for the driver to know what is little work before it runs.

A work-group's work is a sum of terms: so many simple operations on an element, times the rounds of the loops around
them. Loops that count to a constant or to an argument of the kernel, or over a part of as many, are known; of a
kernel with any other loop nothing is said, for it may run for ever.
"""

from __future__ import annotations

from anyxpu.triton.calls import INLINED
from anyxpu.triton.ir import Function, Op, Region, Scalar, Value
from anyxpu.triton.libdevice_table import WEIGHTS_BY_TILES

Term = tuple[int, tuple[tuple[int, int], ...]]
"""Operations, and for each loop around them whose bound is an argument: its index and the loop's step."""

# Operations that an op stands for on each element of its result, or of its operand where it has no result. Only their
# order of magnitude matters.
_COSTS = {
    "tt.load": 4,
    "tt.store": 4,
    "tt.atomic_rmw": 50,
    "tt.atomic_cas": 50,
    "tt.extern_elementwise": 20,
    "tt.gather": 8,
    "tt.histogram": 50,
    "tt.fp_to_fp": 4,
    "arith.divf": 4,
    "arith.extf": 3,
    "arith.truncf": 3,
    "arith.divsi": 10,
    "arith.divui": 10,
    "arith.remsi": 10,
    "arith.remui": 10,
    "arith.remf": 20,
    "ttg.convert_layout": 4,
}
_MATH = 10
_CHUNK = 128
"""Of k, and for so many what :func:`anyxpu.triton.hints.weights_by_tiles` does with 32 rows: two on a number."""
_OF_A_CHUNK = 2 * 32 * _CHUNK
# Of these nothing is left in a compiled kernel, or next to nothing.
_FREE = frozenset(
    {
        "arith.constant",
        "tt.addptr",
        "tt.assert",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.get_program_id",
        "tt.make_range",
        "tt.return",
        "tt.splat",
        "scf.yield",
        "tt.reduce.return",
        "tt.scan.return",
    }
)
# How often a loop without a counter goes round is not known, nor how long printing takes.
_UNKNOWN = frozenset({"tt.print", INLINED, "scf.while"})
_SAME_NUMBER = frozenset({"arith.extsi", "arith.index_cast", "arith.trunci"})


class _Unknown(Exception):
    """Nothing can be said of the kernel."""


def terms(function: Function) -> tuple[Term, ...]:
    """What one work-group of the kernel does; ``()`` where that is not known."""
    assert function.body is not None
    bounds: dict[Value, int | tuple[int]] = {v: (i,) for i, v in enumerate(function.args)}
    found: dict[tuple[tuple[int, int], ...], int] = {}
    try:
        _count(function.body, 1, (), bounds, found)
    except _Unknown:
        return ()
    return tuple((operations, loops) for loops, operations in found.items() if operations)


def once(function: Function) -> int:
    """Operations of one work-group where each of its loops goes round once, but those that count to a constant."""
    assert function.body is not None
    return _once(function.body, {})


def _once(region: Region, bounds: dict[Value, int | tuple[int]]) -> int:
    total = 0
    for block in region.blocks:
        for op in block.ops:
            if op.name == "arith.constant" and isinstance(op.attrs.get("value"), int):
                bounds[op.result] = int(op.attrs["value"])
            elif op.name in ("scf.for", "scf.while", "scf.if"):
                try:
                    rounds, _ = _rounds(op, bounds) if op.name == "scf.for" else (1, ())
                except _Unknown:
                    rounds = 1
                total += rounds * sum(_once(inner, bounds) for inner in op.regions)
            elif op.name not in _UNKNOWN:
                total += _operations(op)
    return total


def _count(
    region: Region,
    times: int,
    loops: tuple[tuple[int, int], ...],
    bounds: dict[Value, int | tuple[int]],
    found: dict[tuple[tuple[int, int], ...], int],
) -> None:
    """Add what is done in ``region`` to ``found``. ``bounds`` has constants, and arguments as one-tuples of indices."""
    if len(region.blocks) != 1:
        raise _Unknown
    for op in region.entry.ops:
        if op.name in _UNKNOWN:
            raise _Unknown
        if op.name == "arith.constant" and isinstance(op.attrs.get("value"), int):
            bounds[op.result] = int(op.attrs["value"])
        elif op.name in _SAME_NUMBER and op.operands[0] in bounds:
            bounds[op.result] = bounds[op.operands[0]]
        elif op.name == "scf.for":
            rounds, more = _rounds(op, bounds)
            _count(op.regions[0], times * rounds, loops + more, bounds, found)
        elif op.name == "scf.if":
            for inner in op.regions:
                _count(inner, times, loops, bounds, found)
        else:
            inside = loops + _inside(op, bounds)
            found[inside] = found.get(inside, 0) + times * _operations(op)


def _inside(op: Op, bounds: dict[Value, int | tuple[int]]) -> tuple[tuple[int, int], ...]:
    """The loop that is not printed: of a function that multiplies a weight, over its k."""
    if op.attrs.get("symbol") != WEIGHTS_BY_TILES:
        return ()
    k = bounds.get(op.operands[9])
    if not isinstance(k, tuple):
        raise _Unknown
    return ((*k, _CHUNK),)


def _rounds(op: Op, bounds: dict[Value, int | tuple[int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Rounds of a loop that are known now, and those that an argument decides; at most so many of each."""
    lower, step = (bounds.get(op.operands[i]) for i in (0, 2))
    if not isinstance(step, int) or step <= 0:
        raise _Unknown
    length = _length(op.operands[0], op.operands[1], bounds)
    if isinstance(length, int):
        return max(0, -(-length // step)), ()
    bound = op.operands[1].type
    if length is None or (isinstance(lower, int) and lower < 0) or not isinstance(bound, Scalar):
        raise _Unknown
    if bound.bits not in (32, 64):
        raise _Unknown
    return 1, ((length[0], step),)


def _length(lower: Value, upper: Value, bounds: dict[Value, int | tuple[int]]) -> int | tuple[int] | None:
    """How far it is at most from ``lower`` to ``upper``, as ``bounds`` has it; None where that is not known."""
    known, first = bounds.get(upper), bounds.get(lower)
    if isinstance(known, int):
        return known - first if isinstance(first, int) else None
    if known is not None:
        return known if isinstance(first, int) else None
    op = upper.owner
    if not isinstance(op, Op):
        return None
    if op.name in _SAME_NUMBER:
        return _length(lower, op.operands[0], bounds)
    if op.name == "arith.minsi":
        found = [_length(lower, o, bounds) for o in op.operands]
        return next((length for length in found if length is not None), None)
    if op.name == "arith.addi" and lower in op.operands:
        return bounds.get(op.operands[1 - op.operands.index(lower)])
    return None


def _size(value: Value) -> int:
    return int(getattr(value.type, "size", 1))


def _operations(op: Op) -> int:
    if op.name in _FREE:
        return 0
    if op.name in ("tt.dot", "tt.dot_scaled"):
        depth = getattr(op.operands[0].type, "shape", (1,))[-1]
        return int(_size(op.result) * depth) * (1 if op.name == "tt.dot" else 8)
    if op.name in ("tt.reduce", "tt.scan"):
        combined = sum(1 for inner in op.regions[0].entry.ops if inner.name not in _FREE)
        return _size(op.operands[0]) * combined * (2 if op.name == "tt.reduce" else 8)
    if op.attrs.get("symbol") == WEIGHTS_BY_TILES:
        return _OF_A_CHUNK
    elements = _size(op.results[0] if op.results else op.operands[0]) if op.results or op.operands else 1
    cost = _COSTS.get(op.name, _MATH if op.name.startswith("math.") else 1)
    return elements * cost
