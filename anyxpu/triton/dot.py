"""Matrix products: on the matrix engine, on a CPU by its tiles or as outer products, else number by number."""

from __future__ import annotations

from collections.abc import Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import block_io, matrix, move, outer, tables, tiles
from anyxpu.triton import layout as layouts
from anyxpu.triton.elements import Loop
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Encoding, Op, Scalar, Tensor, Type, Value
from anyxpu.triton.layout import flat, log2, unflat

_F32 = Scalar("f32")


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
    """``result[…, m, n] = c[…, m, n] + Σ_k a[…, m, k] · b[…, k, n]``, summed in order of k in the result's type, or in
    f32 and rounded once where that has 16 bits.
    """
    a, b = (e.renamed.get(o, o) for o in op.operands[:2])
    if e.matrix and (form := matrix.form_of(op, e.lanes)):
        (block_io if "tiles" in op.attrs else matrix).dot(e, op, form, a, b)
        return
    if e.tiles and (tiled := tiles.form_of(op, e.lanes, e.warps)):
        tiles.dot(e, op, tiled, a, b)
        return
    if e.outer and outer.fits(op, e.lanes):
        outer.dot(e, op, a, b)
        return
    e.flush()
    places = e.locals((v.element, move.tensor_type(v).size) for v in (a, b))
    for v, place in zip((a, b), places, strict=True):
        with e.loop(e.layout(v).registers) as loop:
            e.line(f"{place}[{loop.offset(e.layout(v))}] = {loop.value(v)};")
    e.barrier()
    _sum_of_products(e, op, places, [move.tensor_type(v).shape for v in (a, b)])


def _sum_of_products(e: Emitter, op: Op, places: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
    """The product of two matrices that lie row-major at ``places``, plus the op's third operand."""
    c, result = op.operands[2], op.result
    k, n = shapes[0][-1], shapes[1][-1]
    if not isinstance(result.element, Scalar) or result.element.name not in ("f32", "f64", "f16", "bf16", "i32"):
        raise UnsupportedOperation(f"{op.name} that accumulates in {result.element}")
    out = e.declare(result.element, e.layout(result).registers)
    wide = _F32 if result.element.name in ("f16", "bf16") else result.element  # which is rounded once
    with e.loop(out.registers) as loop:
        row, column = _start(e, loop, result, shapes[0], -1), _start(e, loop, result, shapes[1], -2)
        total = loop.temporary(wide, loop.value(c))
        q = e.fresh("k")
        with e.braces(f"for (int {q} = 0; {q} < {k}; ++{q})"):
            x, y = f"{places[0]}[{row} + {q}]", f"{places[1]}[{column} + {q} * {n}]"
            e.line(f"{total} = {outer.multiply_add(wide, x, y, total)};")
        e.line(f"{out.element(loop.counter)} = {tables.rounded(total, result.element)};")
    e.barrier()
    e.tensors[result] = out


def _start(e: Emitter, loop: Loop, result: Value, shape: Sequence[int], summed: int) -> str:
    """Where an operand's row or column for this element of the result begins; ``summed`` is its dimension k."""
    result_shape = move.tensor_type(result).shape

    def place(offset: int) -> int:
        coordinates = list(unflat(offset, result_shape))
        coordinates[summed] = 0
        return flat(coordinates, shape)

    return loop.offset(e.layout(result).map(place), layouts.identity(e.layout(result).registers))


# --- products of scaled operands (OCP Microscaling Formats 1.0, and e4m3 scales over 16 elements)


def _dot_scaled(e: Emitter, op: Op) -> None:
    """As ``tt.dot``, each operand first multiplied by one scale for every few elements along k, in f32."""
    slots = op.attrs["operands"]  # a, its scale, b, its scale; None where there is none
    a, scale_a, b, scale_b = slots
    rows = _Operand(a, scale_a, str(op.attrs["lhs"]), bool(op.attrs.get("lhs_k_pack", True)), summed=-1)
    columns = _Operand(b, scale_b, str(op.attrs["rhs"]), bool(op.attrs.get("rhs_k_pack", True)), summed=-2)
    e.flush()
    wanted: list[tuple[Type, int]] = [(_F32, o.size) for o in (rows, columns)]
    scales = [o.scale for o in (rows, columns) if o.scale is not None]
    wanted += [(s.element, move.tensor_type(s).size) for s in scales]
    places = e.locals(wanted)
    scale_places = dict(zip(scales, places[2:], strict=True))
    for s, place in scale_places.items():
        with e.loop(e.layout(s).registers) as loop:
            e.line(f"{place}[{loop.offset(e.layout(s))}] = {loop.value(s)};")
    if scales:
        e.barrier()
    for operand, place in zip((rows, columns), places, strict=False):
        operand.write(e, place, scale_places.get(operand.scale) if operand.scale is not None else None)
    e.barrier()
    _sum_of_products(e, op, places, [rows.shape, columns.shape])


class _Operand:
    """One side of a scaled product.

    Args:
        value: its elements; two a byte, along k or along the other dimension, where ``form`` is e2m1.
        scale: one number for several elements along k, in rows that run along k; None: 1.
        summed: which of the value's dimensions is k.
    """

    def __init__(self, value: Value, scale: Value | None, form: str, along_k: bool, summed: int) -> None:
        self.value, self.scale, self.summed = value, scale, summed
        self.packed = form == "e2m1"
        self.pack_dim = summed if along_k else -3 - summed
        shape = list(move.tensor_type(value).shape)
        if self.packed:
            shape[self.pack_dim] *= 2
        self.shape = tuple(shape)
        self.size = move.tensor_type(value).size * (2 if self.packed else 1)

    def write(self, e: Emitter, place: str, scale_place: str | None) -> None:
        """Put the scaled elements at ``place`` as f32, row-major."""
        stored = move.tensor_type(self.value).shape
        with e.loop(e.layout(self.value).registers) as loop:
            offset = e.variable("int", loop.offset(e.layout(self.value)))
            element = loop.value(self.value)
            row = f"({offset} >> {log2(stored[-1])})"  # batches and rows in one
            column = f"({offset} & {stored[-1] - 1})"
            for half in range(2 if self.packed else 1):
                r, c = row, column
                if self.packed and self.pack_dim == -2:
                    r = f"(2 * {row} + {half})"
                elif self.packed:
                    c = f"(2 * {column} + {half})"
                x = f"ax_from_e2m1((uchar){element} >> {4 * half})" if self.packed else element
                if scale_place is not None:
                    x = f"{x} * {self._scale_at(scale_place, r, c)}"
                e.line(f"{place}[{r} * {self.shape[-1]} + {c}] = {x};")

    def _scale_at(self, place: str, row: str, column: str) -> str:
        assert self.scale is not None
        t = move.tensor_type(self.scale)
        k, groups = self.shape[self.summed], t.shape[-1]
        group = log2(k // groups)
        if self.summed == -1:
            index = f"{row} * {groups} + ({column} >> {group})"
        else:  # rows are batches of k; the scale's rows are batches of columns
            n = self.shape[-1]
            index = f"(({row} >> {log2(k)}) * {n} + {column}) * {groups} + (({row} & {k - 1}) >> {group})"
        return f"ax_from_e8m0((uchar){place}[{index}])" if t.element == Scalar("i8") else f"{place}[{index}]"


HANDLERS: dict[str, Handler] = {
    "tt.dot": _dot,
    "tt.dot_scaled": _dot_scaled,
    "ttg.convert_layout": _convert_layout,
}
