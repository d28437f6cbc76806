"""Which of its arguments a kernel only reads: copies that are kept of a weight outlive a kernel that reads it."""

from __future__ import annotations

from collections.abc import Iterable

from anyxpu.triton.ir import Function, Op, Pointer, Tensor, Value, blocks, walk

_READS = frozenset({"tt.load", "prefetch", "tt.ptr_to_int", "tt.print"})
# What hands pointers on to blocks of its own, or to other ones.
_STRUCTURE = frozenset({"scf.for", "scf.if", "scf.while", "scf.yield", "scf.condition", "cf.br", "cf.cond_br"})

_Reach = dict[Value, frozenset[int]]
"""The arguments that a pointer may be made of."""


def only_read(function: Function) -> tuple[int, ...]:
    """The indices of those pointers among its arguments that nothing is written through.

    An operation that takes a pointer and is not known to read alone writes; a pointer that was loaded, was made of a
    number or came through a jump may be any argument's.
    """
    assert function.body is not None
    reach: _Reach = {arg: frozenset([i]) for i, arg in enumerate(function.args) if _points(arg)}
    everything = frozenset[int]().union(*reach.values())
    for block in blocks(function.body):
        reach.update((arg, everything) for arg in block.args if _points(arg) and arg not in reach)
    ops = list(walk(function.body))
    for op in ops:
        if op.name == "scf.for":
            reach.update((arg, frozenset()) for arg in op.regions[0].entry.args if _points(arg))
    known = -1
    while known != (known := sum(map(len, reach.values()))):
        for op in ops:
            _follow(op, reach, everything)
    written = (_union(op.operands, reach) for op in ops if _writes(op))
    return tuple(sorted(everything.difference(*written)))


def _points(value: Value) -> bool:
    element = value.type.element if isinstance(value.type, Tensor) else value.type
    return isinstance(element, Pointer)


def _union(values: Iterable[Value], reach: _Reach) -> frozenset[int]:
    return frozenset[int]().union(*(reach.get(v, frozenset()) for v in values))


def _writes(op: Op) -> bool:
    if op.name in _READS or op.name in _STRUCTURE:
        return False
    return op.name.startswith(("tt.store", "tt.atomic")) or not any(map(_points, op.results))


def _follow(op: Op, reach: _Reach, everything: frozenset[int]) -> None:
    """Note what the op's results, and what a loop carries, are made of, as far as that is known by now."""
    if op.name == "scf.for":
        body = op.regions[0].entry
        carried = body.args[1:]
        for one, *others in zip(carried, op.results, op.operands[3:], body.ops[-1].operands, strict=True):
            if _points(one):
                reach[one] = reach[others[0]] = _union((one, *others), reach)
        return
    for i, result in enumerate(op.results):
        if not _points(result):
            continue
        if op.name == "scf.if":
            reach[result] = _union((region.entry.ops[-1].operands[i] for region in op.regions), reach)
        elif op.regions or op.name in _READS or not any(map(_points, op.operands)):
            reach[result] = everything
        else:
            reach[result] = _union(op.operands, reach)
