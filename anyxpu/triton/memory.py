"""Loads, stores and atomics. A lane that is masked out touches no memory."""

from __future__ import annotations

from collections.abc import Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import tables
from anyxpu.triton.elements import ELEMENT_PRINTERS, Array, Loop, Read
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Op, Pointer, Scalar, Type
from anyxpu.triton.layout import Layout


def load_expression(address: str, t: Type, volatile: bool = False) -> str:
    suffix = tables.NARROW_FLOATS.get(t.name) if isinstance(t, Scalar) else None
    if volatile:
        address = f"((volatile __global {tables.memory_type(t)}*){address})"
    if suffix:
        return f"ax_from_bits_{suffix}(*{address})"
    if isinstance(t, Pointer) or str(t) == "i1":
        return f"({tables.register_type(t)})*{address}"
    return f"*{address}"


def store_statement(address: str, value: str, t: Type) -> str:
    suffix = tables.NARROW_FLOATS.get(t.name) if isinstance(t, Scalar) else None
    if suffix:
        value = f"ax_bits_{suffix}({value})"
    elif isinstance(t, Pointer):
        value = f"(ulong){value}"
    return f"*{address} = {value};"


def zero(t: Type) -> str:
    return "0" if isinstance(t, Pointer) else tables.literal(0, t)


def _element_load(loop: Loop, op: Op, args: Sequence[str]) -> str:
    t = op.result.element
    value = load_expression(args[0], t, bool(op.attrs.get("isVolatile")))
    conditions = [a for a in args[1:2] if a != "true"] + _checked(loop, op)
    if not conditions:
        return loop.temporary(t, value)
    name = loop.temporary(t, args[2] if len(args) > 2 else zero(t))
    loop.emitter.line(f"if ({' && '.join(conditions)}) {name} = {value};")
    return name


def _element_store(loop: Loop, op: Op, args: Sequence[str]) -> None:
    statement = store_statement(args[0], args[1], op.operands[1].element)
    owners = owner_conditions(loop.emitter.layout(op.operands[0]))
    conditions = [a for a in args[2:] if a != "true"] + _checked(loop, op) + owners
    loop.emitter.line(f"if ({' && '.join(conditions)}) {statement}" if conditions else statement)


def _checked(loop: Loop, op: Op) -> list[str]:
    """The conditions that the access's address hangs on."""
    return loop.checked if "looked_up" in op.attrs else []


ELEMENT_PRINTERS["tt.load"] = _element_load
ELEMENT_PRINTERS["tt.store"] = _element_store


def owner_conditions(layout: Layout) -> list[str]:
    """What holds in exactly one of the lanes that have copies of the same element."""
    out = []
    for name, bases in (("lane", layout.lane), ("warp", layout.warp)):
        mask = sum(1 << i for i, b in enumerate(bases) if b == 0)
        if mask:
            out.append(f"{name} == 0" if mask == (1 << len(bases)) - 1 else f"({name} & {mask}) == 0")
    return out


def _memory(e: Emitter, op: Op) -> None:
    if op.attrs.get("deferred"):  # the product that wants it prints it (see block_io.py)
        return
    if op.attrs.get("at_product"):  # see tiles.py
        e.tensors[op.result] = Read(op)
        return
    if op.operands[0].is_tensor:
        e.pending.append(op)
        return
    # Where it may come first, reading one number does not part the elements' loop in two.
    if op.name != "tt.load" or op.attrs.get("isVolatile") or not e.reads_before_waiting():
        e.flush()
    args = [e.scalar(o) for o in op.operands]
    if op.name == "tt.store":
        conditions = [*args[2:], *first_item(e)]
        e.line(f"if ({' && '.join(conditions)}) {store_statement(args[0], args[1], op.operands[1].element)}")
        return
    t = op.result.element
    value = load_expression(args[0], t, bool(op.attrs.get("isVolatile")))
    if len(args) == 1:
        e.define(op.result, value)
    else:
        e.define(op.result, args[2] if len(args) > 2 else zero(t))
        e.line(f"if ({args[1]}) {e.scalar(op.result)} = {value};")


def first_item(e: Emitter) -> list[str]:
    return ["lane == 0"] if e.warps == 1 else ["lane == 0", "warp == 0"]


# --- atomics

# Triton's kinds that a C atomic serves, by whether the element is an integer.
_ATOMIC_FUNCTIONS = {
    "and": "and",
    "or": "or",
    "xor": "xor",
    "add": "add",
    "fadd": "fadd",
    "max": "max",
    "min": "min",
    "umax": "umax",
    "umin": "umin",
    "exch": "xchg",
}


def _atomic_expression(op: Op, args: Sequence[str]) -> str:
    """A call of the prelude's ``ax_atomic_<kind>_<type>(address, value…)``, which returns the old value."""
    t = op.operands[1].element
    if not isinstance(t, Scalar) or t.bits < 16:
        raise UnsupportedOperation(f"{op.name} on {t} is not supported")
    kind = "cas" if op.name == "tt.atomic_cas" else _ATOMIC_FUNCTIONS[op.words[0]]
    if kind in ("cas", "xchg") and t.is_float:  # by bits, as the hardware compares
        name = f"i{t.bits}"
        bits = [f"({tables.register_type(Scalar(name))}){tables.bits_of(a, t)}" for a in args[1:]]
        old = f"ax_atomic_{kind}_{name}((__global {tables.memory_type(Scalar(name))}*){args[0]}, {', '.join(bits)})"
        return tables.from_bits(f"({tables.BITS_TYPES[t.bits]}){old}", t)
    return f"ax_atomic_{kind}_{t.name}({', '.join(args)})"


def _atomic(e: Emitter, op: Op) -> None:
    values = 3 if op.name == "tt.atomic_cas" else 2
    e.flush()
    if not op.operands[0].is_tensor:
        _scalar_atomic(e, op, values)
        return
    t = op.result.element
    layout = e.layout(op.operands[0])
    out = e.declare(t, layout.registers)
    owners = owner_conditions(layout)
    with e.loop(layout.registers) as loop:
        args = [loop.value(o) for o in op.operands]
        conditions = owners + [a for a in args[values:] if a != "true"]
        target = out.element(loop.counter)
        e.line(f"{target} = {zero(t)};")
        guard = f"if ({' && '.join(conditions)}) " if conditions else ""
        e.line(f"{guard}{target} = {_atomic_expression(op, args[:values])};")
    e.tensors[op.result] = out
    if owners and e.users[op.result]:
        _share(e, op, layout, out)


def _share(e: Emitter, op: Op, layout: Layout, out: Array) -> None:
    """Give the copies of each element what its owner got."""
    assert op.result.is_tensor
    s = e.local(op.result.element, op.result.type.size)  # type: ignore[union-attr]
    owners = " && ".join(owner_conditions(layout))
    with e.loop(layout.registers) as loop:
        e.line(f"if ({owners}) {s}[{loop.offset(layout)}] = {out.element(loop.counter)};")
    e.barrier()
    with e.loop(layout.registers) as loop:
        e.line(f"{out.element(loop.counter)} = {s}[{loop.offset(layout)}];")
    e.barrier()


def _scalar_atomic(e: Emitter, op: Op, values: int) -> None:
    args = [e.scalar(o) for o in op.operands]
    t = op.result.type
    expression = _atomic_expression(op, args[:values])
    conditions = " && ".join([*first_item(e), *args[values:]])
    e.define(op.result, zero(t))
    name = e.scalar(op.result)
    e.line(f"if ({conditions}) {name} = {expression};")
    # The barriers also order this atomic against the work-group's other accesses, which a lock built on it needs.
    s = e.local(t, 1)
    e.line(f"if ({' && '.join(first_item(e))}) {s}[0] = {name};")
    e.barrier("CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE")
    e.line(f"{name} = {s}[0];")
    e.barrier()


HANDLERS: dict[str, Handler] = {
    "tt.load": _memory,
    "tt.store": _memory,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_cas": _atomic,
}
