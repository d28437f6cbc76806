"""Matrix products without matrix instructions: both operands in local memory, one multiply-add at a time."""

from __future__ import annotations

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import layout as layouts
from anyxpu.triton import move, tables
from anyxpu.triton.emit import Emitter, Handler, Loop
from anyxpu.triton.ir import Encoding, Op, Scalar, Tensor, Value
from anyxpu.triton.layout import flat, unflat


def _convert_layout(e: Emitter, op: Op) -> None:
    """An operand of products alone needs no place of its own: the product reads its source from local memory."""
    t = op.result.type
    assert isinstance(t, Tensor)
    encoding = t.encoding
    if (
        isinstance(encoding, Encoding)
        and encoding.kind == "dot_op"
        and all(u.name == "tt.dot" for u in e.users[op.result])
    ):
        e.renamed[op.result] = op.operands[0]
        return
    move.same_offsets(e, op)


def _dot(e: Emitter, op: Op) -> None:
    """``result[…, m, n] = c[…, m, n] + Σ_k a[…, m, k] · b[…, k, n]``, summed in the result's type in order of k."""
    a, b = (e.renamed.get(o, o) for o in op.operands[:2])
    c, result = op.operands[2], op.result
    (_, k) = move.tensor_type(a).shape[-2:]
    if not isinstance(result.element, Scalar) or result.element.name not in ("f32", "f64", "f16", "bf16", "i32"):
        raise UnsupportedOperation(f"tt.dot that accumulates in {result.element}")
    e.flush()
    sa, sb = _spill(e, a, b)
    out = e.declare(result.element, e.layout(result).registers)
    with e.loop(out.registers) as loop:
        row, column = _start(e, loop, result, a, -2), _start(e, loop, result, b, -1)
        total = loop.temporary(result.element, loop.value(c))
        q = e.fresh("k")
        with e.braces(f"for (int {q} = 0; {q} < {k}; ++{q})"):
            x, y = f"{sa}[{row} + {q}]", f"{sb}[{column} + {q} * {move.tensor_type(b).shape[-1]}]"
            e.line(f"{total} = {_multiply_add(result.element, x, y, total)};")
        e.line(f"{out.element(loop.counter)} = {total};")
    e.barrier()
    e.tensors[result] = out


def _spill(e: Emitter, a: Value, b: Value) -> tuple[str, str]:
    """Both operands in local memory, each in row-major order."""
    size = max(move.tensor_type(v).size for v in (a, b))
    names = e.locals([a.element, b.element], size)
    for v, s in zip((a, b), names, strict=True):
        with e.loop(e.layout(v).registers) as loop:
            e.line(f"{s}[{loop.offset(e.layout(v))}] = {loop.value(v)};")
    e.barrier()
    return names[0], names[1]


def _start(e: Emitter, loop: Loop, result: Value, operand: Value, kept: int) -> str:
    """Where the operand's row or column of this element begins: batch and the ``kept`` dimension of the result."""
    shape, target = move.tensor_type(result).shape, move.tensor_type(operand).shape

    def place(offset: int) -> int:
        coordinates = list(unflat(offset, shape))
        coordinates[-1 if kept == -2 else -2] = 0
        return flat(coordinates, target)

    return loop.offset(e.layout(result).map(place), layouts.identity(e.layout(result).registers))


def _multiply_add(t: Scalar, x: str, y: str, total: str) -> str:
    if not t.is_float:
        return f"(int)((uint){total} + (uint)((int){x} * (int){y}))"
    c = tables.register_type(t)
    return tables.rounded(f"fma(({c}){x}, ({c}){y}, {total})", t)


HANDLERS: dict[str, Handler] = {"tt.dot": _dot, "ttg.convert_layout": _convert_layout}
