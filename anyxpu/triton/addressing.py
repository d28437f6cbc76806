"""Finds the integer arithmetic that computes addresses, and divides ranges by constants while it is there.

Triton's integers wrap. Were every index printed with wrapping arithmetic, the device's vectoriser could not tell that
neighbouring lanes read neighbouring elements: the index might wrap between them. So arithmetic is printed as C's own,
where overflow is undefined, if it both is built from nothing but ranges, program numbers, loop counters, constants,
integer arguments and rounded floats, and goes linearly into an address. Such a value that wrapped would address memory
no tensor has, so no program whose masks are right depends on it; hashes and random numbers are not touched.
"""

from __future__ import annotations

from collections import defaultdict

from anyxpu.triton.ir import Function, Op, Pointer, Scalar, Tensor, Type, Value, blocks, walk

_LINEAR = frozenset({"arith.addi", "arith.subi", "arith.muli"})
_TRANSPARENT = frozenset({"arith.extsi", "tt.splat", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout"})
# The last: of coordinates that were scaled, as in resampling.
_INDEX_SOURCES = frozenset(
    {"range_bits", "tt.make_range", "tt.get_program_id", "tt.get_num_programs", "arith.constant", "arith.fptosi"}
)
_INDEX_OPS = _LINEAR | _TRANSPARENT | {"arith.divsi", "arith.remsi", "arith.minsi", "arith.maxsi", "arith.trunci"}


def mark_address_arithmetic(function: Function) -> None:
    """Set the attribute ``exact`` on the ops described above."""
    assert function.body is not None
    ops = list(walk(function.body))
    structured: set[Value] = {a for a in function.args if isinstance(a.type, Scalar) and not a.type.is_float}
    for op in ops:
        if op.name == "scf.for":
            structured.add(op.regions[0].entry.args[0])
        if op.name in _INDEX_SOURCES or (op.name in _INDEX_OPS and all(o in structured for o in op.operands)):
            structured.update(op.results)
    owners = {r: op for op in ops for r in op.results}
    seen: dict[Op, bool] = defaultdict(bool)
    work = [op.operands[1] for op in ops if op.name == "tt.addptr"]
    while work:
        source = owners.get(work.pop())
        if source is None or seen[source] or source.name not in _LINEAR | _TRANSPARENT:
            continue
        op = source
        seen[op] = True
        if op.name in _LINEAR and op.result in structured:
            op.attrs["exact"] = True
        work += op.operands


# --- quotients and remainders of ranges


def divide_ranges(function: Function) -> None:
    """Take division by a constant out of ``scalars + range``, where the range does not cross a multiple unevenly.

    Inductor numbers a tensor's elements and divides to get their coordinates. Where the scalars are multiples of the
    divisor, a power of two, the quotient is the scalars' plus the range's, which is the same for as many lanes as the
    divisor, and the remainder is the range's alone. Where they are multiples of the range's length and that divides the
    divisor, the quotient is the scalars' and the remainder is the scalars' plus the range. Printed so, from the range's
    bits, the device's compiler sees loads that all lanes share and others that are contiguous.
    """
    assert function.body is not None
    multiples: dict[Value, int] = {}
    for op in walk(function.body):
        if op.name == "scf.for":
            lower, _, step = op.operands[:3]
            if _is_not_negative(lower, multiples) and (constant_of(step) or 0) > 0:
                counter = op.regions[0].entry.args[0]
                multiples[counter] = min(_multiple_of(lower, multiples), _multiple_of(step, multiples))
    for block in blocks(function.body):
        ops: list[Op] = []
        for op in block.ops:
            ops += _divided(op, multiples) or _compared(op, multiples) or [op]
        block.ops = ops


# The name of the op that gives some bits of a range: coordinate ``dim``, shifted right by ``shift``, and ``mask``.
RANGE_BITS = "range_bits"


def _divided(op: Op, multiples: dict[Value, int]) -> list[Op] | None:
    """The ops that stand for a division, or None where it stays; ``multiples``: see :func:`_multiple_of`."""
    if op.name not in ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui") or not op.results[0].is_tensor:
        return None
    divisor = constant_of(op.operands[1])
    if divisor is None or divisor < 2:
        return None
    found = scalars_and_range(op.operands[0])
    if found is None:
        return None
    scalars, (ranged, dim) = found
    if divisor & (divisor - 1):
        return _divided_in_groups(op, divisor, scalars, ranged, dim, multiples)
    multiple = min([divisor, *(_multiple_of(s, multiples) for s in scalars)])
    assert isinstance(ranged.type, Tensor)
    if multiple < divisor and ranged.type.shape[dim] > multiple:
        return None
    remainder, shift = "rem" in op.name, divisor.bit_length() - 1
    bits = {"dim": dim, "shift": 0 if remainder else shift, "mask": divisor - 1 if remainder else -1}
    if not scalars or (remainder and multiple == divisor):
        return [_renamed(Op(RANGE_BITS, [], attrs=bits), op.result)]
    maker = _Maker(op.result)
    total = scalars[0]
    for scalar in scalars[1:]:
        total = maker.add("arith.addi", [total, scalar], total.type)
    by = maker.add("arith.constant", [], total.type, value=divisor)
    part = maker.add("arith.remsi" if remainder else "arith.divsi", [total, by], total.type)
    splat = maker.add("tt.splat", [part], op.result.type)
    ranged_part = maker.add(RANGE_BITS, [], op.result.type, **bits)
    return [*maker.ops, _renamed(Op("arith.addi", [splat, ranged_part]), op.result)]


SHORTEST_GROUP = 16
"""Lanes that had better share a quotient: as many as a sub-group has."""


def _divided_in_groups(
    op: Op, divisor: int, scalars: list[Value], ranged: Value, dim: int, multiples: dict[Value, int]
) -> list[Op] | None:
    """The same of a divisor that is no power of two but a multiple of one.

    The elements of an aligned group of so many have one quotient, and their remainders are that of the group's first
    and what follows: a division for each group, and remainders that are seen to be contiguous.
    """
    group = min([divisor & -divisor, *(_multiple_of(s, multiples) for s in scalars)])
    if group < SHORTEST_GROUP:
        return None
    assert isinstance(ranged.type, Tensor) and isinstance(op.result.type, Tensor)
    number, maker = op.result.type.element, _Maker(op.result)
    assert isinstance(number, Scalar)
    total = scalars[0] if scalars else maker.add("arith.constant", [], number, value=0)
    for scalar in scalars[1:]:
        total = maker.add("arith.addi", [total, scalar], number)
    by = maker.add("arith.constant", [], number, value=divisor)
    if ranged.type.shape[dim] <= group:
        part = maker.add("tt.splat", [maker.add(op.name, [total, by], number)], op.result.type)
    else:
        coarse = maker.add(RANGE_BITS, [], op.result.type, dim=dim, shift=0, mask=-group)
        firsts, divisors = (maker.add("tt.splat", [v], op.result.type) for v in (total, by))
        first = maker.add("arith.addi", [firsts, coarse], op.result.type)
        part = maker.add(op.name, [first, divisors], op.result.type)
    if "div" in op.name:
        return [*maker.ops[:-1], _renamed(maker.ops[-1], op.result)]
    fine = maker.add(RANGE_BITS, [], op.result.type, dim=dim, shift=0, mask=group - 1)
    return [*maker.ops, _renamed(Op("arith.addi", [part, fine]), op.result)]


def _compared(op: Op, multiples: dict[Value, int]) -> list[Op] | None:
    """The ops that stand for ``scalars + range < bound``, without the range's bits that cannot decide it.

    Where the scalars and the bound are multiples of a power of two, that is as true of an element as of the first
    of its aligned group of so many. A mask that all lanes share is a branch, and no mask on their loads and stores.
    """
    if op.name != "arith.cmpi" or op.words[0] not in ("slt", "sge") or not op.operands[0].is_tensor:
        return None
    left, right = op.operands
    owner = owner_of(left)
    if owner is not None and owner.name == "arith.extsi":
        left = owner.operands[0]
    found = scalars_and_range(left)
    if found is None:
        return None
    scalars, (ranged, dim) = found
    bound = constant_of(right)
    splat = _splat(right) if bound is None else None
    assert isinstance(ranged.type, Tensor) and isinstance(left.type, Tensor)
    if bound is not None:
        if not 0 < bound < 1 << 31:
            return None
        step = bound & -bound
    elif splat is not None and right.type == left.type:
        step = _divisor_of(splat[0][0], multiples)
    else:
        return None
    step = min([step, *(_divisor_of(s, multiples) for s in scalars)])
    if step < 2:
        return None
    maker = _Maker(op.result)
    assert not isinstance(left.type.element, Pointer)
    number = left.type.element
    limit = splat[0][0] if splat is not None else maker.add("arith.constant", [], number, value=bound)
    total = scalars[0] if scalars else maker.add("arith.constant", [], number, value=0)
    for scalar in scalars[1:]:
        total = maker.add("arith.addi", [total, scalar], number)
    if ranged.type.shape[dim] <= step:
        decided = maker.add("arith.cmpi", [total, limit], Scalar("i1"))
        maker.ops[-1].words = list(op.words)
        return [*maker.ops, _renamed(Op("tt.splat", [decided]), op.result)]
    coarse = maker.add(RANGE_BITS, [], left.type, dim=dim, shift=0, mask=-step)
    sides = [maker.add("tt.splat", [v], left.type) for v in (total, limit)]
    first = maker.add("arith.addi", [sides[0], coarse], left.type)
    return [*maker.ops, _renamed(Op("arith.cmpi", [first, sides[1]], words=list(op.words)), op.result)]


def _renamed(op: Op, result: Value) -> Op:
    op.results = [result]
    result.owner = op
    return op


class _Maker:
    """Makes ops for the value that they lead to."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.ops: list[Op] = []

    def add(self, name: str, operands: list[Value], type: Type, **attrs: object) -> Value:
        op = Op(name, operands, attrs=attrs)
        self.ops.append(_renamed(op, Value(f"{self.value.name}_{len(self.ops)}", type)))
        return op.result


def owner_of(value: Value) -> Op | None:
    return value.owner if isinstance(value.owner, Op) else None


def name_unit_dimensions(function: Function) -> None:
    """A reshape that puts in one dimension of a single place becomes ``tt.expand_dims``, which addresses are known by.

    Triton 3.9 rewrites descriptors by reshapes.
    """
    assert function.body is not None
    for op in walk(function.body):
        if op.name != "tt.reshape" or op.attrs.get("allow_reorder") or "allow_reorder" in op.words:
            continue
        shape, source = op.result.type.shape, op.operands[0].type.shape  # type: ignore[union-attr]
        for axis, extent in enumerate(shape):
            if extent == 1 and (*shape[:axis], *shape[axis + 1 :]) == source:
                op.name, op.attrs, op.words = "tt.expand_dims", {"axis": axis}, []
                break


def constant_of(value: Value) -> int | None:
    op = owner_of(value)
    if op is not None and op.name == "tt.splat":
        return constant_of(op.operands[0])
    return value.integer


def scalars_and_range(value: Value) -> tuple[list[Value], tuple[Value, int]] | None:
    """The non-negative scalars and the one range from 0 (with its dimension) that ``value`` is the sum of."""
    op = owner_of(value)
    if op is None:
        return None
    if op.name == "arith.addi":
        sides = [scalars_and_range(o) or _splat(o) for o in op.operands]
        if any(s is None for s in sides):
            return None
        ranges = [s[1] for s in sides if s is not None and s[1] is not None]
        scalars = [v for s in sides if s is not None for v in s[0]]
        return (scalars, ranges[0]) if len(ranges) == 1 and ranges[0] is not None else None
    dim = _range_dimension(value)
    return None if dim is None else ([], (value, dim))


def _splat(value: Value) -> tuple[list[Value], None] | None:
    op = owner_of(value)
    if op is not None and op.name in ("tt.broadcast", "ttg.convert_layout", "tt.expand_dims"):
        return _splat(op.operands[0])
    return ([op.operands[0]], None) if op is not None and op.name == "tt.splat" else None


def _range_dimension(value: Value) -> int | None:
    """Along which dimension ``value`` counts from 0, if that is all it does."""
    op = owner_of(value)
    if op is None:
        return None
    if op.name == "tt.make_range":
        return 0 if op.attrs["start"] == 0 else None
    if op.name == RANGE_BITS:
        assert isinstance(value.type, Tensor)
        dim, last = int(op.attrs["dim"]), value.type.shape[int(op.attrs["dim"])] - 1
        return dim if op.attrs["shift"] == 0 and int(op.attrs["mask"]) & last == last else None
    if op.name in ("tt.broadcast", "ttg.convert_layout"):
        return _range_dimension(op.operands[0])
    if op.name == "tt.expand_dims":
        inner = _range_dimension(op.operands[0])
        return inner if inner is None or inner < int(op.attrs["axis"]) else inner + 1
    return None


def _multiple_of(value: Value, multiples: dict[Value, int]) -> int:
    """A power of two that divides the scalar, which is known not to be negative; 1 where nothing is known.

    ``multiples`` has it for the counters of loops.
    """
    if value in multiples:
        return multiples[value]
    op = owner_of(value)
    if op is None:
        return 1
    if op.name == "arith.constant":
        number = int(op.attrs["value"])
        return number & -number if number > 0 else 1 << 31 if number == 0 else 1
    if op.name in ("arith.remsi", "arith.remui") and _is_not_negative(op.operands[0], multiples):
        return min(_multiple_of(o, multiples) for o in op.operands)
    if op.name in ("arith.muli", "arith.addi") and all(_is_not_negative(o, multiples) for o in op.operands):
        a, b = (_multiple_of(o, multiples) for o in op.operands)
        return a * b if op.name == "arith.muli" else min(a, b)
    return 1


def _divisor_of(value: Value, multiples: dict[Value, int]) -> int:
    """A power of two that divides the scalar, which may be negative."""
    return value.multiple & -value.multiple if value.multiple > 1 else _multiple_of(value, multiples)


def _is_not_negative(value: Value, multiples: dict[Value, int]) -> bool:
    if value in multiples:
        return True
    op = owner_of(value)
    if op is None:
        return False
    if op.name == "arith.constant":
        return int(op.attrs["value"]) >= 0
    if op.name in ("arith.muli", "arith.addi", "arith.divsi", "arith.remsi"):
        return all(_is_not_negative(o, multiples) for o in op.operands)
    return op.name == "tt.get_program_id"
