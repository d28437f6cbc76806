"""``tl.device_assert``: a program ends where a condition does not hold, and the host is told (shim/assertions.cpp).

A condition on a tensor is looked at for all elements of a loop, and the program ends behind it: a way out of the loop
would keep the device's compiler from vectorising it. Until then, accesses whose addresses are made of loaded values
are masked by the condition, or wait until the loop has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyxpu.triton.elements import ELEMENT_PRINTERS, Loop
from anyxpu.triton.emit import LOOP_ENDS, Emitter, Handler
from anyxpu.triton.ir import Function, Op, Value, walk

_ACCESSES = ("tt.load", "tt.store")
_LOADED = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas")


def mark_lookups(function: Function) -> None:
    """Set ``looked_up`` on the accesses of a kernel with assertions whose addresses are made of loaded values."""
    assert function.body is not None
    ops = list(walk(function.body))
    if not any(op.name == "tt.assert" for op in ops):
        return
    data: set[Value] = set()
    while True:
        before = len(data)
        for op in ops:
            reached = op.name in _LOADED or any(o in data for o in op.operands)
            inner = [i for region in op.regions for i in walk(region)]
            if reached or any(r in data for i in inner for r in i.results):
                data.update(op.results, *(block.args for region in op.regions for block in region.blocks))
        if len(data) == before:
            break
    for op in ops:
        if op.name in _ACCESSES and op.operands[0] in data:
            op.attrs["looked_up"] = True


def _assert(e: Emitter, op: Op) -> None:
    e.assertions.append(f"{e.function.name}: {(op.attrs.get('values') or [''])[0]}")
    op.attrs["message"] = len(e.assertions) - 1
    condition = op.operands[0]
    if condition.is_tensor:
        op.attrs["held"] = e.variable("bool", "true")
        e.pending.append(op)
        return
    e.flush()
    with e.braces(f"if (!{e.scalar(condition)})"):
        e.line(_failure(op))
        e.leave()


def _failure(op: Op) -> str:
    return f"ax_fail(assertions, assertions_number, {op.attrs['message']});"


def _look_at_element(loop: Loop, op: Op, args: Sequence[str]) -> None:
    held = op.attrs["held"]
    loop.emitter.line(f"{held} = {held} & {args[0]};")
    loop.checked.append(args[0])


def _end(e: Emitter, op: Op) -> None:
    """All work-items end together: others would wait for those that did."""
    failed = f"!{op.attrs['held']}"
    with e.braces(f"if ({'sub' if e.warps == 1 else 'work'}_group_any({failed}))"):
        e.line(f"if ({failed}) {_failure(op)}")
        e.leave()


ELEMENT_PRINTERS["tt.assert"] = _look_at_element
LOOP_ENDS["tt.assert"] = _end
HANDLERS: dict[str, Handler] = {"tt.assert": _assert}
