"""Reductions and softmax of dense memory, in Triton.

A reduction sees memory as ``(A, N, B)``, B fastest, and reduces N. Sizes are no constants of a build. Where there are
too few sums to occupy a device, each is made in ``parts``, and those are reduced again.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import div, sqrt

_ALL = tl.constexpr(tl.PropagateNan.ALL)
# Numbers that are added one after the other before their sum is added to the whole one: rounding grows with this and
# with the number of such sums, not with the number of numbers.
BLOCK = tl.constexpr(64)


# --- what is done to an element, to two of them, and to the result ------------------------------------------------


@triton.jit
def same(x, p):
    return x


@triton.jit
def square(x, p):
    return x * x


@triton.jit
def absolute(x, p):
    return tl.abs(x)


@triton.jit
def nonzero(x, p):
    return (x != 0).to(x.dtype)


@triton.jit
def power(x, p):
    return libdevice.pow(tl.abs(x), p.to(x.dtype))


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def multiply(x, y):
    return x * y


@triton.jit
def larger(x, y):
    if x.dtype.is_floating():
        return tl.maximum(x, y, propagate_nan=_ALL)
    else:
        return tl.maximum(x, y)


@triton.jit
def smaller(x, y):
    if x.dtype.is_floating():
        return tl.minimum(x, y, propagate_nan=_ALL)
    else:
        return tl.minimum(x, y)


@triton.jit
def divided(x, p, count):
    return div(x, count.to(x.dtype))


@triton.jit
def root(x, p, count):
    return sqrt(x)


@triton.jit
def power_root(x, p, count):
    return libdevice.pow(x, 1.0 / p.to(x.dtype))


@triton.jit
def done(x, p, count):
    return x


@triton.jit
def _reduced(acc, AXIS: tl.constexpr, COMBINE: tl.constexpr):
    """``tl.reduce`` takes no function out of a constant, so that they are named."""
    if COMBINE == "add":
        return tl.reduce(acc, AXIS, add)
    elif COMBINE == "multiply":
        return tl.reduce(acc, AXIS, multiply)
    elif COMBINE == "larger":
        return tl.reduce(acc, AXIS, larger)
    else:
        return tl.reduce(acc, AXIS, smaller)


@triton.jit
def _combined(x, y, COMBINE: tl.constexpr):
    if COMBINE == "add":
        return add(x, y)
    elif COMBINE == "multiply":
        return multiply(x, y)
    elif COMBINE == "larger":
        return larger(x, y)
    else:
        return smaller(x, y)


@triton.jit
def rows_inside(inside, row, A, R: tl.constexpr):
    """What is inside of rows that there are; of one row at a time it is known."""
    return inside & (row < A) if R > 1 else inside


# --- reductions ---------------------------------------------------------------------------------------------------


@triton.jit
def rows(
    x,
    out,
    A,
    N,
    down,
    parts,
    chunk,
    p,
    count,
    MAP: tl.constexpr,
    COMBINE: tl.constexpr,
    FINISH: tl.constexpr,
    COMMON: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    NEUTRAL: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """``out[a, part]`` of ``x (A, N)``: ``down`` times R rows a program, C numbers of each at a time."""
    part = tl.program_id(0) % parts
    begin = (tl.program_id(0) // parts) * down
    first = part * chunk
    left = tl.minimum(N - first, chunk)
    for some_rows in range(begin, tl.minimum(begin + down, tl.cdiv(A, R))):
        row = some_rows * R + tl.arange(0, R)[:, None]
        at = x + row.to(tl.int64) * N + first
        acc = tl.full((R, C), NEUTRAL, OP)
        for block in range(0, left, C * BLOCK):
            some = tl.full((R, C), NEUTRAL, OP)
            for start in range(block, tl.minimum(left, block + C * BLOCK), C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < left, row, A, R)
                value = MAP(tl.load(at + lanes, mask=inside).to(COMMON).to(OP), p)
                some = _combined(some, tl.where(inside, value, tl.full((R, C), NEUTRAL, OP)), COMBINE)
            acc = _combined(acc, some, COMBINE)
        made = FINISH(_reduced(acc, 1, COMBINE), p, count)
        index = some_rows * R + tl.arange(0, R)
        tl.store(out + index.to(tl.int64) * parts + part, made.to(OUT), mask=index < A)


@triton.jit
def columns(
    x,
    out,
    A,
    N,
    B,
    parts,
    chunk,
    p,
    count,
    MAP: tl.constexpr,
    COMBINE: tl.constexpr,
    FINISH: tl.constexpr,
    COMMON: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    NEUTRAL: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """``out[a, part, b]`` of ``x (A, N, B)``: C columns a program, R numbers of each at a time."""
    strips = tl.cdiv(B, C)
    strip = tl.program_id(0) % strips
    part = (tl.program_id(0) // strips) % parts
    a = (tl.program_id(0) // strips) // parts
    column = strip * C + tl.arange(0, C)[None, :]
    first = part * chunk
    left = tl.minimum(N - first, chunk)
    at = x + (a.to(tl.int64) * N + first) * B + column
    acc = tl.full((R, C), NEUTRAL, OP)
    for block in range(0, left, R * BLOCK):
        some = tl.full((R, C), NEUTRAL, OP)
        for start in range(block, tl.minimum(left, block + R * BLOCK), R):
            lanes = start + tl.arange(0, R)[:, None]
            inside = (lanes < left) & (column < B)
            value = MAP(tl.load(at + lanes.to(tl.int64) * B, mask=inside).to(COMMON).to(OP), p)
            some = _combined(some, tl.where(inside, value, tl.full((R, C), NEUTRAL, OP)), COMBINE)
        acc = _combined(acc, some, COMBINE)
    made = FINISH(_reduced(acc, 0, COMBINE), p, count)
    index = strip * C + tl.arange(0, C)
    tl.store(out + (a.to(tl.int64) * parts + part) * B + index, made.to(OUT), mask=index < B)


# --- softmax ------------------------------------------------------------------------------------------------------


@triton.jit
def _row(source, at, inside, OTHER: tl.constexpr, OP: tl.constexpr):
    return tl.where(inside, tl.load(source + at, mask=inside).to(OP), OTHER)


@triton.jit
def softmax(
    x,
    out,
    A,
    N,
    down,
    LOG: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    READS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Softmax (LOG: its logarithm) of the rows of ``x (A, N)``, each of which is read so often.

    READS: 1, a row is at most C numbers; 2; or 3, for less arithmetic.
    """
    begin = tl.program_id(0) * down
    for some_rows in range(begin, tl.minimum(begin + down, tl.cdiv(A, R))):
        row = some_rows * R + tl.arange(0, R)[:, None]
        at = row.to(tl.int64) * N
        if READS == 1:
            lanes = tl.arange(0, C)[None, :]
            inside = rows_inside(lanes < N, row, A, R)
            value = _row(x, at + lanes, inside, float("-inf"), OP)
            # Of what is outside the power is never asked: a CPU's exp takes infinite numbers lane by lane.
            value = tl.where(inside, value - tl.max(value, 1, keep_dims=True), 0.0)
            power = tl.where(inside, libdevice.exp(value), 0.0)
            total = tl.sum(power, 1, keep_dims=True)
            made = value - libdevice.log(total) if LOG else power / total
            tl.store(out + at + lanes, made.to(OUT), mask=inside)
        elif READS == 3:
            most = tl.full((R, C), float("-inf"), OP)
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                value = _row(x, at + lanes, inside, float("-inf"), OP)
                most = tl.maximum(most, value, propagate_nan=_ALL)
            largest = tl.reduce(most, 1, larger)[:, None]
            total = tl.zeros((R, C), OP)
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                value = _row(x, at + lanes, inside, 0.0, OP) - largest
                power = tl.where(inside, libdevice.exp(tl.where(inside, value, 0.0)), 0.0)
                total += power
                if not LOG and OUT == OP:  # which keeps them as they are
                    tl.store(out + at + lanes, power, mask=inside)
            whole = tl.sum(total, 1, keep_dims=True)
        else:
            # Each lane's largest number and the sum of the powers of what it has seen: Milakov and Gimelshein, "Online
            # normalizer calculation for softmax", 2018.
            most = tl.full((R, C), float("-inf"), OP)
            total = tl.zeros((R, C), OP)
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                value = _row(x, at + lanes, inside, float("-inf"), OP)
                now = tl.maximum(most, value, propagate_nan=tl.PropagateNan.ALL)
                safe = tl.where(now == float("-inf"), 0.0, now)
                total = total * libdevice.exp(most - safe) + libdevice.exp(value - safe)
                most = now
            largest = tl.max(most, 1, keep_dims=True)
            total = tl.where(most == float("-inf"), 0.0, total * libdevice.exp(most - largest))
            whole = tl.sum(total, 1, keep_dims=True)
        if READS > 1:
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                if READS == 3 and not LOG and OUT == OP:
                    made = _row(out, at + lanes, inside, 0.0, OP) / whole
                else:
                    value = _row(x, at + lanes, inside, 0.0, OP) - largest
                    made = value - libdevice.log(whole) if LOG else libdevice.exp(value) / whole
                tl.store(out + at + lanes, made.to(OUT), mask=inside)


@triton.jit
def softmax_backward(
    grad,
    y,
    out,
    A,
    N,
    down,
    LOG: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    READS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The gradient of what :func:`softmax` read, of ``grad`` and its result ``y``, all ``(A, N)``."""
    begin = tl.program_id(0) * down
    for some_rows in range(begin, tl.minimum(begin + down, tl.cdiv(A, R))):
        row = some_rows * R + tl.arange(0, R)[:, None]
        at = row.to(tl.int64) * N
        if READS == 1:
            lanes = tl.arange(0, C)[None, :]
            inside = rows_inside(lanes < N, row, A, R)
            g = _row(grad, at + lanes, inside, 0.0, OP)
            result = _row(y, at + lanes, inside, 0.0, OP)
            total = tl.sum(g if LOG else g * result, 1, keep_dims=True)
            made = g - libdevice.exp(result) * total if LOG else (g - total) * result
            tl.store(out + at + lanes, made.to(OUT), mask=inside)
        else:
            sums = tl.zeros((R, C), OP)
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                g = _row(grad, at + lanes, inside, 0.0, OP)
                sums += g if LOG else g * _row(y, at + lanes, inside, 0.0, OP)
            total = tl.sum(sums, 1, keep_dims=True)
            for start in range(0, N, C):
                lanes = start + tl.arange(0, C)[None, :]
                inside = rows_inside(lanes < N, row, A, R)
                g = _row(grad, at + lanes, inside, 0.0, OP)
                result = _row(y, at + lanes, inside, 0.0, OP)
                made = g - libdevice.exp(result) * total if LOG else (g - total) * result
                tl.store(out + at + lanes, made.to(OUT), mask=inside)


# Over dimensions that do not lie together in memory. A strip of columns stays in a cache of a CPU between its readings.


@triton.jit
def _strip(N, B, C: tl.constexpr):
    """The C columns of this program, and where the first of their N numbers lie."""
    strips = tl.cdiv(B, C)
    column = (tl.program_id(0) % strips) * C + tl.arange(0, C)[None, :]
    return column, (tl.program_id(0) // strips).to(tl.int64) * N * B + column


@triton.jit
def softmax_columns(
    x,
    out,
    A,
    N,
    B,
    LOG: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Softmax (LOG: its logarithm) over N of ``x (A, N, B)``: C columns a program, R numbers of each at a time."""
    column, at = _strip(N, B, C)
    most = tl.full((R, C), float("-inf"), OP)
    for start in range(0, N, R):
        lanes = start + tl.arange(0, R)[:, None]
        inside = (lanes < N) & (column < B)
        value = _row(x, at + lanes.to(tl.int64) * B, inside, float("-inf"), OP)
        most = tl.maximum(most, value, propagate_nan=_ALL)
    largest = tl.reduce(most, 0, larger)[None, :]
    total = tl.zeros((R, C), OP)
    for start in range(0, N, R):
        lanes = start + tl.arange(0, R)[:, None]
        inside = (lanes < N) & (column < B)
        value = _row(x, at + lanes.to(tl.int64) * B, inside, float("-inf"), OP) - largest
        total += tl.where(inside, libdevice.exp(value), 0.0)
    whole = tl.sum(total, 0)[None, :]
    for start in range(0, N, R):
        lanes = start + tl.arange(0, R)[:, None]
        inside = (lanes < N) & (column < B)
        place = at + lanes.to(tl.int64) * B
        value = _row(x, place, inside, 0.0, OP) - largest
        made = value - libdevice.log(whole) if LOG else libdevice.exp(value) / whole
        tl.store(out + place, made.to(OUT), mask=inside)


@triton.jit
def softmax_columns_backward(
    grad,
    y,
    out,
    A,
    N,
    B,
    LOG: tl.constexpr,
    OP: tl.constexpr,
    OUT: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The gradient of what :func:`softmax_columns` read, of ``grad`` and its result ``y``."""
    column, at = _strip(N, B, C)
    sums = tl.zeros((R, C), OP)
    for start in range(0, N, R):
        lanes = start + tl.arange(0, R)[:, None]
        inside = (lanes < N) & (column < B)
        place = at + lanes.to(tl.int64) * B
        g = _row(grad, place, inside, 0.0, OP)
        sums += g if LOG else g * _row(y, place, inside, 0.0, OP)
    total = tl.sum(sums, 0)[None, :]
    for start in range(0, N, R):
        lanes = start + tl.arange(0, R)[:, None]
        inside = (lanes < N) & (column < B)
        place = at + lanes.to(tl.int64) * B
        g = _row(grad, place, inside, 0.0, OP)
        result = _row(y, place, inside, 0.0, OP)
        made = g - libdevice.exp(result) * total if LOG else (g - total) * result
        tl.store(out + place, made.to(OUT), mask=inside)
