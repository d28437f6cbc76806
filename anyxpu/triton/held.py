"""Masks that hold for every element of a tensor at once, said by comparisons of scalars.

A mask of a tile is true of all its elements nearly always: all tiles but the last lie inside. Where a device has slow
masked accesses (AVX2, and AMD's processors above all, whose masked stores take tens of cycles), the printer makes two
loops, one of them without masks, and what is found here chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable

from anyxpu.triton.addressing import RANGE_BITS
from anyxpu.triton.ir import Op, Scalar, Tensor, Value

_MOVES = frozenset({"tt.broadcast", "tt.expand_dims", "tt.reshape", "ttg.convert_layout", "arith.extsi"})

# Comparisons that hold of all where they hold of the largest left and the smallest right side: what is added to the
# left one.
_BELOW = {"slt": 1, "sle": 0}

Terms = tuple[list[Value], int]
"""Scalars, and a constant: their sum."""


def parts(mask: Value, name: Callable[[Value], str]) -> dict[Value, str]:
    """The comparisons of which ``mask`` is the conjunction, each with a C condition under which it is true everywhere.

    The conditions are the same in every work-item. Comparisons of which none is known are left out.

    Args:
        mask: a tensor of bits.
        name: the C expression of a scalar.
    """
    op = mask.owner
    if not isinstance(op, Op):
        return {}
    if op.name in _MOVES:
        return parts(op.operands[0], name)
    if op.name == "arith.andi":
        return parts(op.operands[0], name) | parts(op.operands[1], name)
    if op.name != "arith.cmpi" or op.words[0] not in _BELOW or not isinstance(mask.type, Tensor):
        return {}
    left, right = _largest(op.operands[0]), _splat(op.operands[1])
    if left is None or right is None:
        return {}
    # In 64 bits: a sum that would wrap is not below anything.
    total = " + ".join([*(f"(long){name(v)}" for v in left[0]), f"{left[1] + _BELOW[op.words[0]]}L"])
    bound = " + ".join([*(f"(long){name(v)}" for v in right[0]), f"{right[1]}L"])
    return {mask: f"{total} <= {bound}"}


def _integer(value: Value) -> bool:
    element = value.type.element if isinstance(value.type, Tensor) else value.type
    return isinstance(element, Scalar) and not element.is_float and 32 <= element.bits <= 64


def _splat(value: Value) -> Terms | None:
    """What one scalar, or constant, for all elements is."""
    found = _largest(value)
    return found if found is not None and _same(value) else None


def _same(value: Value) -> bool:
    """Whether all elements are alike."""
    op = value.owner
    if not isinstance(op, Op):
        return False
    if op.name in _MOVES:
        return _same(op.operands[0])
    return op.name == "tt.splat" or (op.name == "arith.constant" and isinstance(op.attrs.get("value"), int))


def _largest(value: Value) -> Terms | None:
    """A sum that no element is above."""
    op = value.owner
    if not isinstance(op, Op) or not isinstance(value.type, Tensor) or not _integer(value):
        return None
    if op.name in _MOVES:
        return _largest(op.operands[0])
    if op.name == "tt.splat":
        return [op.operands[0]], 0
    if op.name == "arith.constant":
        constant = op.attrs.get("value")
        return ([], constant) if isinstance(constant, int) and not isinstance(constant, bool) else None
    if op.name == "tt.make_range":
        return [], int(op.attrs["end"]) - 1
    if op.name == RANGE_BITS:
        last = value.type.shape[int(op.attrs["dim"])] - 1
        return [], (last >> int(op.attrs["shift"])) & (int(op.attrs["mask"]) if op.attrs["mask"] != -1 else last)
    if op.name == "arith.addi":
        sides = [_largest(o) for o in op.operands]
        if sides[0] is None or sides[1] is None:
            return None
        return [*sides[0][0], *sides[1][0]], sides[0][1] + sides[1][1]
    return None
