"""Finds the integer arithmetic that computes addresses.

Triton's integers wrap. Were every index printed with wrapping arithmetic, the device's vectoriser could not tell that
neighbouring lanes read neighbouring elements: the index might wrap between them. So arithmetic is printed as C's own,
where overflow is undefined, if it both is built from nothing but ranges, program numbers, loop counters, constants and
integer arguments, and goes linearly into an address. Such a value that wrapped would address memory no tensor has, so
no program whose masks are right depends on it; hashes and random numbers are not touched.
"""

from __future__ import annotations

from collections import defaultdict

from anyxpu.triton.ir import Function, Op, Scalar, Value, walk

_LINEAR = frozenset({"arith.addi", "arith.subi", "arith.muli"})
_TRANSPARENT = frozenset({"arith.extsi", "tt.splat", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout"})
_INDEX_SOURCES = frozenset({"tt.make_range", "tt.get_program_id", "tt.get_num_programs", "arith.constant"})
_INDEX_OPS = _LINEAR | _TRANSPARENT | {"arith.divsi", "arith.remsi", "arith.minsi", "arith.maxsi", "arith.trunci"}


def mark_address_arithmetic(function: Function) -> None:
    """Set the attribute ``exact`` on the ops described above."""
    assert function.body is not None
    ops = list(walk(function.body))
    structured: set[Value] = {a for a in function.args if isinstance(a.type, Scalar) and not a.type.is_float}
    for op in ops:
        if op.name == "scf.for":
            structured.add(op.regions[0].entry.args[0])
        if op.name in _INDEX_SOURCES or (op.name in _INDEX_OPS and all(o in structured for o in op.operands)):
            structured.update(op.results)
    owners = {r: op for op in ops for r in op.results}
    seen: dict[Op, bool] = defaultdict(bool)
    work = [op.operands[1] for op in ops if op.name == "tt.addptr"]
    while work:
        source = owners.get(work.pop())
        if source is None or seen[source] or source.name not in _LINEAR | _TRANSPARENT:
            continue
        op = source
        seen[op] = True
        if op.name in _LINEAR and op.result in structured:
            op.attrs["exact"] = True
        work += op.operands
