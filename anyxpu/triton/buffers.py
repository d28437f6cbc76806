"""Buffers in local memory that a TTGIR file names itself: ``ttg.local_alloc``, ``local_load``, ``local_store``.

This compiler's own stages make none. A buffer's elements lie row-major whatever its encoding says, since it is only
written and read whole; a part of one (``ttg.memdesc_index``, …) is refused by the name of its operation.
"""

from __future__ import annotations

import re

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import tables
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Op, Opaque, Scalar, Value
from anyxpu.triton.move import tensor_type
from anyxpu.triton.storage import size_of

_TYPE = re.compile(r"!ttg\.memdesc<((?:\d+x)+)(\w+),")


def _alloc(e: Emitter, op: Op) -> None:
    described = op.result.type
    m = _TYPE.match(described.text) if isinstance(described, Opaque) else None
    if m is None:
        raise UnsupportedOperation(f"ttg.local_alloc of {described}")
    elements, c = 1, tables.storage_type(Scalar(m[2]))
    for extent in m[1].split("x")[:-1]:
        elements *= int(extent)
    name = e.scalars[op.result] = e.fresh("buffer")
    e.buffers.append((f"  {c} __local {name}[{elements}] __attribute__((aligned(64)));", elements * size_of(c)))
    if op.operands:
        _write(e, op.operands[0], name)


def _write(e: Emitter, source: Value, name: str) -> None:
    e.flush()
    e.barrier()  # others may still read what was there
    layout = e.layout(source)
    with e.loop(layout.registers) as loop:
        e.line(f"{name}[{loop.offset(layout)}] = {loop.value(source)};")
    e.barrier()


def _store(e: Emitter, op: Op) -> None:
    _write(e, op.operands[0], e.scalar(op.operands[1]))


def _load(e: Emitter, op: Op) -> None:
    e.flush()
    name, layout = e.scalar(op.operands[0]), e.layout(op.result)
    out = e.declare(tensor_type(op.result).element, layout.registers)
    with e.loop(layout.registers) as loop:
        e.line(f"{out.element(loop.counter)} = {name}[{loop.offset(layout)}];")
    e.tensors[op.result] = out


def _dealloc(e: Emitter, op: Op) -> None:
    """The buffer's memory stays the kernel's."""


HANDLERS: dict[str, Handler] = {
    "ttg.local_alloc": _alloc,
    "ttg.local_dealloc": _dealloc,
    "ttg.local_load": _load,
    "ttg.local_store": _store,
}
