"""Structured loops and branches (``scf``), basic blocks (``cf``), and what a function begins and ends with.

Carried tensors live in private arrays that the body overwrites at its end. All of them change at once in MLIR, so
what a yield reads is secured before anything is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import calls, outer, tables, tiles
from anyxpu.triton.elements import Elements
from anyxpu.triton.emit import ASSIGN, Emitter, Handler
from anyxpu.triton.ir import Op, Region, Scalar, Value
from anyxpu.triton.layout import BitMap


def _declare(e: Emitter, value: Value) -> None:
    if value.is_tensor:
        e.tensors[value] = e.declare(value.element, e.layout(value).registers)
    else:
        e.scalars[value] = e.variable(tables.register_type(value.type))


def _same(e: Emitter, target: Value, source: Value) -> bool:
    if target.is_tensor:
        return e.tensors.get(source) is e.tensors[target]
    return e.scalars[source] == e.scalars[target]


def assign(e: Emitter, user: Op, targets: Sequence[Value], sources: Sequence[Value]) -> None:
    """``targets = sources``, all at once; targets are declared variables and arrays, sources operands of ``user``."""
    pairs = [(t, s) for t, s in zip(targets, sources, strict=True) if not _same(e, t, s)]
    # Tensors first: what they are recomputed from may include the scalars that change below.
    _assign_tensors(e, user, [(e.tensors[t], s) for t, s in pairs if t.is_tensor])
    scalars = [(t, s) for t, s in pairs if not t.is_tensor]
    held = [e.scalar(s) for _, s in scalars]
    if len(scalars) > 1:
        held = [e.variable(tables.register_type(s.type), h) for (_, s), h in zip(scalars, held, strict=True)]
    for (t, _), h in zip(scalars, held, strict=True):
        e.line(f"{e.scalar(t)} = {h};")


def _assign_tensors(e: Emitter, user: Op, pairs: list[tuple[Elements, Value]]) -> None:
    """Let the assignments wait together with the ops that compute their sources, so that they share loops."""
    overwritten = {t for t, _ in pairs}
    secured = [(t, _secured(e, s, overwritten)) for t, s in pairs]
    for (target, source), (_, read) in zip(pairs, secured, strict=True):
        op = Op(ASSIGN, [read], attrs={"target": target})
        e.users[source].remove(user)
        e.users[read].append(op)
        e.pending.append(op)
    e.flush()


def _secured(e: Emitter, source: Value, overwritten: set[Elements]) -> Value:
    """``source``, or a copy of it where it reads an overwritten array elsewhere than in the register it goes to."""
    waiting = {r for op in e.pending for r in op.results}
    if all(leaf not in overwritten or index.is_identity for leaf, index in e.sources(source, waiting)):
        return source
    e.flush()
    copy = Value(source.name, source.type)
    array = e.declare(source.element, e.layout(source).registers)
    with e.loop(array.registers) as loop:
        e.line(f"{array.element(loop.counter)} = {loop.value(source)};")
    e.tensors[copy] = array
    return copy


def _body(e: Emitter, region: Region, targets: Sequence[Value]) -> None:
    """A one-block region whose terminator's operands become ``targets``."""
    if len(region.blocks) != 1:
        raise UnsupportedOperation("a structured region with several blocks is not supported")
    *ops, last = region.entry.ops
    for op in ops:
        e.op(op)
    assign(e, last, targets, last.operands)


def _for(e: Emitter, op: Op) -> None:
    lower, upper, step, *initial = op.operands
    counter, *carried = op.regions[0].entry.args
    e.flush()
    for value in carried:
        _declare(e, value)
    assign(e, op, carried, initial)
    c = tables.register_type(counter.type)
    i = e.scalars[counter] = e.fresh("i")
    u = f"({tables.unsigned(counter.type)})" if op.attrs.get("unsigned") else ""
    head = f"for ({c} {i} = {e.scalar(lower)}; {u}{i} < {u}{e.scalar(upper)}; {i} += {e.scalar(step)})"
    around = e.turned, e.staged, e.carried
    e.turned, e.staged = e.turned | outer.prepare(e, op), e.staged | tiles.prepare(e, op)
    yielded = op.regions[0].entry.ops[-1].operands
    e.carried = {y: v for y, v in zip(yielded, carried, strict=True) if v.is_tensor}
    with e.braces(head):
        _body(e, op.regions[0], carried)
        e.turned, e.staged, e.carried = around
        if (largest := _overflows(op)) is not None:
            e.line(f"if ({u}{i} > {u}({largest} - {e.scalar(step)})) break;")
    _alias(e, op.results, carried)


def _overflows(op: Op) -> int | None:
    """The largest value of the counter's type, if the last step may pass it: such a loop would not end."""
    upper, step = (v.integer for v in op.operands[1:3])
    counter = op.regions[0].entry.args[0].type
    assert isinstance(counter, Scalar)
    if step == 1 or counter.bits > 32:  # nothing counts to 2**63
        return None
    largest = (1 << counter.bits - (not op.attrs.get("unsigned"))) - 1
    if upper is not None and step is not None and 0 <= upper <= largest - step + 1:
        return None
    return largest


def _alias(e: Emitter, results: Sequence[Value], carried: Sequence[Value]) -> None:
    """A loop's results are what its carried variables hold when it ends."""
    for r, c in zip(results, carried, strict=True):
        if r.is_tensor:
            e.tensors[r] = e.tensors[c]
        else:
            e.scalars[r] = e.scalars[c]


def _if(e: Emitter, op: Op) -> None:
    e.flush()
    for r in op.results:
        _declare(e, r)
    with e.braces(f"if ({e.scalar(op.operands[0])})"):
        _body(e, op.regions[0], op.results)
    if len(op.regions) > 1:
        with e.braces("else"):
            _body(e, op.regions[1], op.results)


def _while(e: Emitter, op: Op) -> None:
    before, after = op.regions
    e.flush()
    for value in (*before.entry.args, *op.results):
        _declare(e, value)
    assign(e, op, before.entry.args, op.operands)
    with e.braces("for (;;)"):
        *ops, condition = before.entry.ops
        for inner in ops:
            e.op(inner)
        assign(e, condition, op.results, condition.operands[1:])
        e.line(f"if (!{e.scalar(condition.operands[0])}) break;")
        _alias(e, after.entry.args, op.results)
        _body(e, after, before.entry.args)


# --- basic blocks


def function_body(e: Emitter) -> None:
    """The whole function: one block after the other, with labels and jumps where there are several."""
    assert e.function.body is not None
    _blocks(e, e.function.body)


def _blocks(e: Emitter, region: Region) -> None:
    around, e.labels = e.labels, {b.label: (b, e.fresh("block")) for b in region.blocks}
    for block in region.blocks[1:]:
        for arg in block.args:
            _declare(e, arg)
    for i, block in enumerate(region.blocks):
        if i:
            e.line(f"{e.labels[block.label][1]}:;")
        e.block(block)
    e.labels = around


def _jump(e: Emitter, op: Op, successor: tuple[str, list[Value]]) -> None:
    name, values = successor
    block, label = e.labels[name]
    assign(e, op, block.args, values)
    e.line(f"goto {label};")


def _branch(e: Emitter, op: Op) -> None:
    e.flush()
    _jump(e, op, op.successors[0])


def _conditional_branch(e: Emitter, op: Op) -> None:
    e.flush()
    with e.braces(f"if ({e.scalar(op.operands[0])})"):
        _jump(e, op, op.successors[0])
    _jump(e, op, op.successors[1])


def _inlined(e: Emitter, op: Op) -> None:
    """A function's blocks where it is called (calls.py)."""
    e.flush()
    for result in op.results:
        _declare(e, result)
    arguments = op.regions[0].entry.args
    for argument in arguments:
        _declare(e, argument)
    assign(e, op, arguments, op.operands)
    around, e.called = e.called, (op.results, e.fresh("end"))
    _blocks(e, op.regions[0])
    e.line(f"{e.called[1]}:;")
    e.called = around


def _return(e: Emitter, op: Op) -> None:
    e.flush()
    if e.called is not None:
        results, end = e.called
        assign(e, op, results, op.operands)
        e.line(f"goto {end};")
        return
    if op.operands:
        raise UnsupportedOperation("a kernel that returns a value")
    e.leave()


# --- scalar functions over tensors


def _map_elementwise(e: Emitter, op: Op) -> None:
    """A region of scalar ops, branches and all, for each ``pack`` registers of the operands."""
    pack, region = int(op.attrs["pack"]), op.regions[0]
    registers = e.layout(op.operands[0]).registers
    if registers % pack:
        raise UnsupportedOperation(f"map_elementwise of {pack} elements at once over {registers} a lane")
    e.flush()
    results = [e.declare(r.element, registers) for r in op.results]
    with e.loop(registers // pack) as loop:
        packed = [BitMap(tuple(b * pack for b in loop.here.bases), j) for j in range(pack)]
        args = [loop.value(v, index) for v in op.operands for index in packed]
        e.scalars.update(zip(region.entry.args, args, strict=True))
        targets = [array.element(loop.register(index)) for array in results for index in packed]
        around, e.mapped = e.mapped, (targets, e.fresh("end"))
        _blocks(e, region)
        e.line(f"{e.mapped[1]}:;")
        e.mapped = around
    e.tensors.update(zip(op.results, results, strict=True))


def _map_return(e: Emitter, op: Op) -> None:
    targets, end = e.mapped
    for target, value in zip(targets, op.operands, strict=True):
        e.line(f"{target} = {e.scalar(value)};")
    e.line(f"goto {end};")


HANDLERS: dict[str, Handler] = {
    "tt.map_elementwise": _map_elementwise,
    "tt.map_elementwise.return": _map_return,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "cf.br": _branch,
    "cf.cond_br": _conditional_branch,
    "tt.return": _return,
    calls.INLINED: _inlined,
}
