"""The two kernels that apply a function to every element: one over a run of elements, one over several dimensions.

Which function, which types and how operands lie are constants of a build; sizes and strides are not, so that a new
size never compiles. A kernel's arguments are the result, the operands (a pointer, or a number), the function's further
numbers, and the sizes and strides that are no constants.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl

# How an operand lies along a dimension; shim/pointwise.cpp has the same numbers.
NUMBER = tl.constexpr(0)  # it is a number, not memory
ONE = tl.constexpr(1)  # one element for all: stride 0
DENSE = tl.constexpr(2)  # stride 1
STRIDED = tl.constexpr(3)


@triton.jit
def _converted(value, RAW: tl.constexpr, COMMON: tl.constexpr, OP: tl.constexpr):
    """What the function gets: first as the type that operands have in common, then as the one that is computed in."""
    if RAW:
        return value.to(tl.int1)
    else:
        return value.to(COMMON).to(OP)


@triton.jit
def _written(value, LOGICAL: tl.constexpr, COMMON: tl.constexpr, OUT: tl.constexpr):
    if LOGICAL:
        return value.to(tl.int1).to(OUT)
    else:
        return value.to(COMMON).to(OUT)


@triton.jit
def _numbers(params, OP: tl.constexpr):
    made = ()
    for k in tl.static_range(len(params)):
        made = made + (params[k].to(OP),)  # noqa: RUF005 - Triton's tuples
    return made


@triton.jit
def line(
    out,
    ins,
    params,
    n,
    strides,
    step,
    F: tl.constexpr,
    KIND: tl.constexpr,
    RAW: tl.constexpr,
    COMMON: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    LOGICAL: tl.constexpr,
    C: tl.constexpr,
):
    """``out[i * s] = F(ins[0][i * s0], ..., *params)`` for ``step`` of the ``n`` elements a program, C at a time."""
    first = tl.program_id(0) * step
    left = n - first  # so that no index goes beyond 32 bits
    shared = ()  # read once: between the others' reads it would part the loop in two
    for k in tl.static_range(len(ins)):
        one = _converted(tl.load(ins[k]), RAW[k], COMMON, OP) if KIND[k + 1] == ONE else 0
        shared = shared + (one,)  # noqa: RUF005 - Triton's tuples
    for start in range(0, step, C):
        lanes = start + tl.arange(0, C)
        inside = lanes < left
        values = ()
        for k in tl.static_range(len(ins)):
            if KIND[k + 1] == NUMBER:
                value = ins[k].to(OP)
            elif KIND[k + 1] == ONE:
                value = shared[k]
            else:
                at = ins[k] + first * strides[k + 1] + lanes * strides[k + 1]
                value = _converted(tl.load(at, mask=inside), RAW[k], COMMON, OP)
            values = values + (value,)  # noqa: RUF005 - Triton's tuples
        result = _written(F(*values, *_numbers(params, OP)), LOGICAL, COMMON, OUT)
        tl.store(out + first * strides[0] + lanes * strides[0], result, mask=inside)


@triton.jit
def _start(p, row, first, sizes, strides, k: tl.constexpr, ND: tl.constexpr):
    """Where operand k's part begins: of the dimensions beyond the second a program has one index each."""
    at = first * strides[0][k] + row * strides[1][k]
    for d in tl.static_range(2, ND):
        at += (p % sizes[d]) * strides[d][k]
        p = p // sizes[d]
    return at


@triton.jit
def grid(
    out,
    ins,
    params,
    sizes,
    strides,
    step,
    rows,
    F: tl.constexpr,
    KIND: tl.constexpr,
    RAW: tl.constexpr,
    COMMON: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    LOGICAL: tl.constexpr,
    ND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The same over ND dimensions, the fastest first: ``rows`` of the second and ``step`` of the first a program.

    They are walked in tiles of R x C. ``strides[d][k]``: of operand k (0: the result) along dimension d, in elements.
    """
    p = tl.program_id(0)
    across = tl.cdiv(sizes[0], step)
    down = tl.cdiv(sizes[1], rows)
    first = (p % across) * step
    p = p // across
    row = (p % down) * rows
    p = p // down
    left = sizes[0] - first
    below = sizes[1] - row
    for r in range(0, tl.minimum(rows, below), R):
        j = (r + tl.arange(0, R))[:, None]
        shared = ()
        for k in tl.static_range(len(ins)):
            if KIND[k + 1] == ONE:
                column = ins[k] + _start(p, row, first, sizes, strides, k + 1, ND)
                there = j < below if R > 1 else None
                one = _converted(tl.load(column + j * strides[1][k + 1], mask=there), RAW[k], COMMON, OP)
            else:
                one = 0
            shared = shared + (one,)  # noqa: RUF005 - Triton's tuples
        for c in range(0, step, C):
            i = (c + tl.arange(0, C))[None, :]
            inside = (i < left) & (j < below) if R > 1 else i < left
            values = ()
            for k in tl.static_range(len(ins)):
                if KIND[k + 1] == NUMBER:
                    value = ins[k].to(OP)
                elif KIND[k + 1] == ONE:
                    value = shared[k]
                else:
                    at = ins[k] + _start(p, row, first, sizes, strides, k + 1, ND)
                    value = tl.load(at + j * strides[1][k + 1] + i * strides[0][k + 1], mask=inside)
                    value = _converted(value, RAW[k], COMMON, OP)
                values = values + (value,)  # noqa: RUF005 - Triton's tuples
            result = _written(F(*values, *_numbers(params, OP)), LOGICAL, COMMON, OUT)
            at = out + _start(p, row, first, sizes, strides, 0, ND)
            tl.store(at + j * strides[1][0] + i * strides[0][0], result, mask=inside)
