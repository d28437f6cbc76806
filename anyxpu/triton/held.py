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

# Comparisons that hold of all where they hold of the largest (smallest) left side: what is added to it.
BELOW = {"slt": 1, "sle": 0}
ABOVE = {"sgt": -1, "sge": 0}

Terms = tuple[list[Value | str], int, int]
"""Scalars, or C expressions of such, and what is added to their sum at least and at most."""

Known = Callable[[Value], "Terms | None"]
"""What is known of a tensor besides what it is made of."""


def _nothing(value: Value) -> Terms | None:
    return None


def parts(mask: Value, name: Callable[[Value], str], known: Known = _nothing) -> dict[Value, str]:
    """The comparisons of which ``mask`` is the conjunction, each with a C condition under which it is true everywhere.

    The conditions are the same in every work-item. Comparisons of which none is known are left out.

    Args:
        mask: a tensor of bits.
        name: the C expression of a scalar.
        known: of what the caller knows more.
    """
    op = mask.owner
    if not isinstance(op, Op):
        return {}
    if op.name in _MOVES:
        return parts(op.operands[0], name, known)
    if op.name == "tt.splat" and isinstance(mask.type, Tensor):
        return {mask: name(op.operands[0])}
    if op.name == "arith.andi":
        return parts(op.operands[0], name, known) | parts(op.operands[1], name, known)
    if op.name != "arith.cmpi" or op.words[0] not in {**BELOW, **ABOVE} or not isinstance(mask.type, Tensor):
        return {}
    left, bound = _terms(op.operands[0], known), bound_of(op.operands[1], name)
    if left is None or bound is None:
        return {}
    scalars, least, most = left
    # In 64 bits, so that a sum of 32 that would wrap upwards is above the bound here.
    terms = [f"(long){v if isinstance(v, str) else name(v)}" for v in scalars]
    if op.words[0] in ABOVE:
        condition = f"{' + '.join([*terms, f'{least + ABOVE[op.words[0]]}L'])} >= {bound}"
        if len(scalars) + (most > 0) > 1:  # or would wrap upwards
            condition += f" && {' + '.join([*terms, f'{most}L'])} < {2**31}L"
        return {mask: condition}
    condition = f"{' + '.join([*terms, f'{most + BELOW[op.words[0]]}L'])} <= {bound}"
    if len(scalars) + (least < 0) > 1:  # or would wrap downwards
        condition += f" && {' + '.join([*terms, f'{least}L'])} >= {-(2**31)}L"
    return {mask: condition}


def _integer(value: Value) -> bool:
    element = value.type.element if isinstance(value.type, Tensor) else value.type
    return isinstance(element, Scalar) and not element.is_float and 32 <= element.bits <= 64


def bound_of(value: Value, name: Callable[[Value], str]) -> str | None:
    """The one scalar, or constant, that all elements are."""
    found = _terms(value)
    if found is None or found[1] != found[2] or len(found[0]) + (found[1] != 0) > 1:
        return None
    scalar = found[0][0] if found[0] else None
    assert not isinstance(scalar, str)
    return f"{found[1]}L" if scalar is None else f"(long){name(scalar)}"


def _terms(value: Value, known: Known = _nothing) -> Terms | None:
    """What all elements lie between."""
    op = value.owner
    if not isinstance(op, Op) or not isinstance(value.type, Tensor) or not _integer(value):
        return None
    if (more := known(value)) is not None:
        return more
    if op.name in _MOVES:
        return _terms(op.operands[0], known)
    if op.name == "tt.splat":
        return [op.operands[0]], 0, 0
    if op.name == "arith.constant":
        constant = op.attrs.get("value")
        return ([], constant, constant) if isinstance(constant, int) and not isinstance(constant, bool) else None
    if op.name == "tt.make_range":
        return [], int(op.attrs["start"]), int(op.attrs["end"]) - 1
    if op.name == RANGE_BITS:
        last = value.type.shape[int(op.attrs["dim"])] - 1
        return [], 0, (last >> int(op.attrs["shift"])) & int(op.attrs["mask"])
    if op.name == "arith.addi":
        first, second = (_terms(o, known) for o in op.operands)
        if first is None or second is None:
            return None
        return [*first[0], *second[0]], first[1] + second[1], first[2] + second[2]
    return None
