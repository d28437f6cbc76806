"""``tl.device_print``: a line for each element, in the format of Triton's own GPU backends.

``pid (x, y, z) idx (i, j)prefix(operand n) value``: indices are padded to the width of the largest, ``idx ()`` is a
scalar's, the operand's number is there where one call prints several. A program prints each element and each scalar
once, whatever the number of work-items that hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyxpu.triton import tables
from anyxpu.triton.emit import Emitter, Handler
from anyxpu.triton.ir import Op, Pointer, Scalar, Tensor, Type
from anyxpu.triton.memory import first_item, owner_conditions

_PIDS = [f"(int)get_group_id({axis})" for axis in range(3)]


def _print(e: Emitter, op: Op) -> None:
    prefix = (op.attrs.get("values") or [""])[0].replace("%", "%%")
    e.flush()
    if not op.operands:
        _line(e, first_item(e), prefix, [])
    for number, operand in enumerate(op.operands):
        label = prefix + (f"(operand {number}) " if len(op.operands) > 1 else "")
        form = _Form(operand.element, bool(op.attrs.get("hex")), _is_signed(op, number))
        if not isinstance(operand.type, Tensor):
            _line(e, first_item(e), f" idx (){label}{form.text}", [form.value(e.scalar(operand))])
            continue
        layout = e.layout(operand)
        with e.loop(layout.registers) as loop:
            value, offset = loop.value(operand), loop.offset(layout)
            widths = ", ".join(f"%{_digits(extent)}d" for extent in operand.type.shape)
            indices = _coordinates(f"(int)({offset})", operand.type.shape)
            _line(e, owner_conditions(layout), f" idx ({widths}){label}{form.text}", [*indices, form.value(value)])


def _line(e: Emitter, conditions: Sequence[str], text: str, values: Sequence[str]) -> None:
    call = f"printf({_c_string(f'pid (%d, %d, %d){text}' + chr(10))}, {', '.join([*_PIDS, *values])});"
    e.line(f"if ({' && '.join(conditions)}) {call}" if conditions else call)


def _is_signed(op: Op, number: int) -> bool:
    """Triton's ``isSigned`` of one operand, ``array<i32: 1, 0>``; not there in versions that have no such attribute."""
    signs = op.attrs.get("isSigned")
    return signs is None or bool(signs[number])


class _Form:
    """How a value is printed: ``text`` is its conversion, :meth:`value` the argument that goes with it."""

    def __init__(self, element: Type, hex: bool, signed: bool) -> None:
        self.element, self.hex = element, hex
        if isinstance(element, Pointer):
            self.text = "%p"
            return
        assert isinstance(element, Scalar)
        wide = "l" if element.bits > 32 and (hex or not element.is_float) else ""
        if hex:
            self.text, self.type = f"0x%0{max(element.bits // 4, 1)}{wide}x", f"u{'long' if wide else 'int'}"
        elif element.is_float:
            self.text, self.type = "%f", "double" if element.bits == 64 else "float"
        else:
            self.text = f"%{wide}{'d' if signed else 'u'}"
            self.type = ("" if signed else "u") + ("long" if wide else "int")

    def value(self, text: str) -> str:
        if isinstance(self.element, Pointer):
            return text
        assert isinstance(self.element, Scalar)
        # An unsigned number is held in a signed variable: its own width's bits first, then the wider type.
        if (self.hex or self.type.startswith("u")) and self.element.bits > 1:
            text = tables.bits_of(text, self.element)
        return f"({self.type})({text})"


def _digits(extent: int) -> int | str:
    """The width of the largest index of a dimension; none is asked for where that is a single place."""
    digits = len(str(extent - 1))
    return digits if digits > 1 else ""


def _coordinates(offset: str, shape: Sequence[int]) -> list[str]:
    """The indices of an element from its row-major offset; extents are powers of two."""
    stride, found = 1, []
    for i, extent in reversed(list(enumerate(shape))):
        rest = offset if stride == 1 else f"({offset} / {stride})"
        found.append(rest if i == 0 else f"({rest} % {extent})")
        stride *= extent
    return found[::-1]


def _c_string(text: str) -> str:
    """A string literal: ASCII as it is, any other byte of its UTF-8 in octal."""
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(plain.get(chr(b)) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()) + '"'


HANDLERS: dict[str, Handler] = {"tt.print": _print}
