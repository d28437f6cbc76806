"""Quotients and remainders of neighbouring lanes, which share a quotient wherever no multiple lies between them.

Inductor numbers a tensor's elements and divides to get their coordinates. Of neighbouring lanes the quotient is nearly
always one, and the remainders follow each other: what is read there is contiguous. A compiler cannot see it, as the
lanes may lie around a multiple of the divisor, and reads element by element (where addressing.py does not know better).
So a loop's body is printed twice, and the remainder of the first lane's number, a scalar, chooses; and a third time,
without masks, where masks are slow and those that look at the remainder hold of all lanes (the inside of an image that
windows reach over).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyxpu.triton import held
from anyxpu.triton import layout as layouts
from anyxpu.triton.addressing import constant_of, owner_of, scalars_and_range
from anyxpu.triton.ir import Op, Scalar, Tensor, Value
from anyxpu.triton.layout import BitMap

if TYPE_CHECKING:
    from anyxpu.triton.elements import Loop
    from anyxpu.triton.emit import Emitter

DIVISIONS = frozenset({"arith.divsi", "arith.divui", "arith.remsi", "arith.remui"})
MOST = 3
"""Divisions in one loop that a choice is made of: each makes it rarer."""

Key = tuple[Value, BitMap, str]
"""What is divided, in which register, and the C expression of the divisor."""


def divided(op: Op, index: BitMap, emitter: Emitter) -> Key | None:
    """What ``op`` divides, where the lanes' numbers follow each other and the divisor is theirs all."""
    left = op.operands[0]
    if op.name not in DIVISIONS or not isinstance(left.type, Tensor):
        return None
    element, divisor = left.type.element, _divisor(op.operands[1], emitter)
    if divisor is None or not isinstance(element, Scalar) or element.bits not in (32, 64):
        return None
    found = scalars_and_range(left)
    if found is None:
        return None
    step = layouts.strides(left.type.shape)[found[1][1]]
    following = tuple(step << i for i in range(layouts.log2(emitter.lanes)))
    return (left, index, divisor) if emitter.layout(left).lane == following else None


def _divisor(value: Value, emitter: Emitter) -> str | None:
    """A constant that is not less than the lanes, or a scalar; of 0 and less there is no quotient that all share."""
    constant = constant_of(value)
    if constant is not None:
        return str(constant) if constant >= emitter.lanes else None
    owner = owner_of(value)
    if owner is None or owner.name != "tt.splat":
        return None
    scalar = emitter.scalar(owner.operands[0])
    return f"({scalar} > 0 ? {scalar} : 1)"


def chosen(loop: Loop, keys: Iterable[Key]) -> tuple[str, dict[Key, tuple[str, str]]]:
    """Print the first lanes' quotients and remainders.

    Returns:
        The condition under which no lane wraps, and for each key its quotient and the first lane's remainder.
    """
    e, conditions, parts = loop.emitter, [], {}
    for key in keys:
        left, index, divisor = key
        assert isinstance(left.type, Tensor)
        element = left.type.element
        first = loop.temporary(element, f"{loop.value(left, index)} - lane")
        quotient = loop.temporary(element, f"{first} / {divisor}")
        rest = loop.temporary(element, f"{first} - {quotient} * {divisor}")
        # Neither below 0, nor so large that the lanes' numbers wrap.
        unsigned, last = ("ulong", 2**63) if element.bits == 64 else ("uint", 2**31)
        conditions.append(f"({unsigned}){first} <= {last - e.lanes}u{'l' if element.bits == 64 else ''}")
        conditions.append(f"{rest} <= {divisor} - {e.lanes}")
        parts[key] = (quotient, rest)
    return " && ".join(conditions), parts


def inside(loop: Loop, masks: Sequence[Value]) -> dict[Value, str]:
    """What masks are made of that holds for all lanes where none wraps, each with its condition.

    So are the edges of an image that windows reach over: most of it lies inside.
    """
    e = loop.emitter
    places: dict[tuple[Value, str], list[tuple[str, str]]] = {}
    for (left, _, divisor), part in loop.whole.items():
        places.setdefault((left, divisor), []).append(part)

    def known(value: Value) -> held.Terms | None:
        op = owner_of(value)
        if op is None or op.name not in DIVISIONS:
            return None
        divisor = _divisor(op.operands[1], e)
        found = places.get((op.operands[0], divisor), []) if divisor is not None else []
        if len(found) != 1:  # in several registers at once, which differ
            return None
        quotient, rest = found[0]
        return ([rest], 0, e.lanes - 1) if "rem" in op.name else ([quotient], 0, 0)

    more = {part: c for m in masks for part, c in held.parts(m, e.scalar, known).items()}
    plain = {part for m in masks for part in held.parts(m, e.scalar)}
    wanted = {part: c for part, c in more.items() if part not in plain and part not in loop.true}
    # What was computed in another loop, or came from other lanes, need not be this turn's remainder.
    return {part: c for part, c in wanted.items() if e.is_made_here(part)}


Bit = tuple[Value, BitMap]
"""A tensor of bits, and the register that is meant."""


@dataclass(frozen=True)
class Here:
    """Conditions, in the registers at hand, under which a bit is set in every lane, and in none (if that is known)."""

    all: str
    none: str | None = None


def inside_here(loop: Loop, masks: Sequence[Value]) -> dict[Bit, Here]:
    """The comparisons that masks are made of, in the registers at hand.

    Of a tile that is not all inside (rows of 1000 numbers, say, 256 at a time) most registers are.
    """
    found: dict[Bit, Here] = {}
    for mask in masks:
        _collect(loop, mask, loop.here, found)
    return found


def _collect(loop: Loop, mask: Value, index: BitMap, found: dict[Bit, Here]) -> None:
    op, e = owner_of(mask), loop.emitter
    if mask in loop.true or not mask.is_tensor or op is None:
        return
    source = e.viewed(mask)
    if source is not None:
        _collect(loop, source[0], source[1].after(index), found)
    elif op.name == "tt.splat":
        scalar = e.scalar(op.operands[0])
        found[mask, index] = Here(scalar, f"!{scalar}")
    elif op.name == "arith.andi" and e.is_recomputed(mask):
        for operand in op.operands:
            _collect(loop, operand, index, found)
    elif op.name == "arith.cmpi" and e.is_recomputed(mask):
        here = _compared(loop, op, index)
        if here is not None:
            found[mask, index] = here


def _compared(loop: Loop, op: Op, index: BitMap) -> Here | None:
    """Of a comparison of scalars and a range, whose lanes have one number or neighbours, with a scalar."""
    e, value, (left, right) = loop.emitter, op.words[0], op.operands
    bound = held.bound_of(right, e.scalar) if value in held.BELOW or value in held.ABOVE else None
    while True:
        source, made = e.viewed(left), owner_of(left)
        if source is not None:
            left, index = source[0], source[1].after(index)
        elif made is not None and made.name == "arith.extsi" and e.is_recomputed(left):
            left = made.operands[0]
        else:
            break
    ranged = scalars_and_range(left)
    if bound is None or ranged is None or not isinstance(left.type, Tensor):
        return None
    bases, step = e.layout(left).lane, layouts.strides(left.type.shape)[ranged[1][1]]
    exact, more = _is_exact(left), e.lanes - 1 if any(bases) else 0
    if left.element.bits < 32 or (left.element.bits > 32 and not exact):
        return None
    if more and bases != tuple(step << i for i in range(layouts.log2(e.lanes))):
        return None
    # The first lane's number, which wraps as Triton's integers do; and how far behind it the last one's is.
    terms = [*(e.scalar(v) for v in ranged[0]), loop.of_first_lane(ranged[1][0], index)]
    first = f"({' + '.join(terms)})" if exact else f"((int)({' + '.join(f'(uint){t}' for t in terms)}))"
    no_wrap = f"(long){first} <= {2**31 - 1 - more}L"
    if value in held.ABOVE:
        above = f"(long){first} + {held.ABOVE[value]}L >= {bound}"
        return Here(above if exact or not more else f"{above} && {no_wrap}")
    below = f"(long){first} + {more + held.BELOW[value]}L <= {bound}"
    none = f"(long){first} + {held.BELOW[value]}L > {bound}"
    return Here(below, none if exact or not more else f"{none} && {no_wrap}")


def _is_exact(value: Value) -> bool:
    """Whether no sum wraps that a number is made by (see addressing.py)."""
    op = owner_of(value)
    if op is None or op.name != "arith.addi":
        return op is None or all(_is_exact(o) for o in op.operands if o.is_tensor)
    return bool(op.attrs.get("exact")) and all(_is_exact(o) for o in op.operands if o.is_tensor)
