"""Products of a few rows with matrices of 16-bit floats in Triton, for CPUs that have no instructions for those.

What counts is that a matrix is read once: its numbers become float32 in registers, and meet every row there.
"""
# mypy: disable-error-code="no-untyped-def, assignment, var-annotated, index"
# Tuples grow in loops that Triton unrolls.

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops import activation_functions as activations
from anyxpu.ops import pointwise_functions as functions
from anyxpu.ops.weight_only_kernels import read_below
from anyxpu.triton.hints import fetch_line

_AHEAD = tl.constexpr(1024)
"""How many numbers before a row's numbers are read they are asked for."""
_BITS_AHEAD, _LINE_BITS = tl.constexpr(256), tl.constexpr(512)
"""The same in rows, where columns of one are taken, times a number's bits; and the bits of a cache line."""


@triton.jit
def _chunk(totals, x, rows, start, K, M: tl.constexpr, MASKED: tl.constexpr, BK: tl.constexpr):
    """Add the products of BK columns to the sums of the lanes: for each row of ``w`` one for each of ``x``."""
    lanes, made = start + tl.arange(0, BK), ()
    for n in tl.static_range(len(rows)):
        fetch_line((rows[n] + (start + _AHEAD)).to(tl.int64))
        number = read_below(rows[n] + lanes, lanes, K, MASKED).to(tl.float32)
        for m in tl.static_range(M):
            value = read_below(x + m * K + lanes, lanes, K, MASKED).to(tl.float32)
            made += (tl.fma(number, value, totals[n * M + m]),)
    return made


@triton.jit
def _with(x, other, at, mask, OPERATOR: tl.constexpr):
    """What an operator by Inductor's name makes of a product and of ``other``, read where the result goes."""
    if OPERATOR == "add":
        x = x + tl.load(other + at, mask=mask, other=0.0).to(tl.float32)
    elif OPERATOR == "sub":
        x = x - tl.load(other + at, mask=mask, other=0.0).to(tl.float32)
    elif OPERATOR == "mul":
        x = x * tl.load(other + at, mask=mask, other=0.0).to(tl.float32)
    elif OPERATOR == "div":
        x = x / tl.load(other + at, mask=mask, other=1.0).to(tl.float32)
    return x


@triton.jit
def _then(x, FUNCTION: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    """A function of float32 by Inductor's name, of the numbers P and Q."""
    if FUNCTION == "relu":
        x = activations.relu(x)
    elif FUNCTION == "leaky_relu":
        x = activations.leaky_relu(x, P)
    elif FUNCTION == "sigmoid":
        x = functions.sigmoid(x)
    elif FUNCTION == "tanh":
        x = functions.tanh(x)
    elif FUNCTION == "hardswish":
        x = activations.hardswish(x)
    elif FUNCTION == "hardsigmoid":
        x = activations.hardsigmoid(x)
    elif FUNCTION == "hardtanh":
        x = activations.hardtanh(x, P, Q)
    elif FUNCTION == "swish":
        x = activations.silu(x)
    elif FUNCTION == "gelu none":
        x = activations.gelu(x)
    elif FUNCTION == "gelu tanh":
        x = activations.gelu_tanh(x)
    elif FUNCTION == "elu":
        x = activations.elu(x, P, 1.0, 1.0)
    elif FUNCTION == "mish":
        x = activations.mish(x)
    else:
        tl.static_assert(FUNCTION == "none", "a function that is not known here")
    return x


@triton.jit
def by_rows(
    x,
    w,
    bias,
    other,
    out,
    N,
    K,
    ROW,
    M: tl.constexpr,
    BIAS: tl.constexpr,
    OPERATOR: tl.constexpr,
    FUNCTION: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    TAIL: tl.constexpr,
    SUMS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """``x @ w.t() + bias``, then :func:`_with` and :func:`_then`. Grid: (a BN-th of w's rows,).

    A program's rows lie as far from each other as they can (see :func:`weight_only_kernels.few_rows`).
    x ``(M, K)``, contiguous; w ``(N, K)``, ROW numbers apart. ``TAIL``: BK does not
    divide K. ``SUMS``: M * BN, or the power of two above it.
    """
    first, part = tl.program_id(0), tl.num_programs(0)
    totals, places = (), ()
    for n in tl.static_range(BN):
        places += (w + tl.minimum(first + n * part, N - 1).to(tl.int64) * ROW,)
        for _ in tl.static_range(M):
            totals += (tl.zeros([BK], tl.float32),)
    end = K // BK * BK
    for start in range(0, end, BK):
        totals = _chunk(totals, x, places, start, K, M, False, BK)
    if TAIL:
        totals = _chunk(totals, x, places, end, K, M, True, BK)
    index = tl.arange(0, SUMS)
    gathered = tl.zeros([SUMS, BK], tl.float32)
    for i in tl.static_range(M * BN):
        gathered = tl.where(index[:, None] == i, totals[i][None, :], gathered)
    rows = first + index // M * part
    known = (rows < N) & (index < M * BN)
    result = tl.sum(gathered, 1)
    if BIAS:
        result += tl.load(bias + rows, mask=known, other=0.0).to(tl.float32)
    at = (index % M).to(tl.int64) * N + rows
    result = _then(_with(result, other, at, known, OPERATOR), FUNCTION, P, Q)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=known)


@triton.jit
def by_columns(
    x,
    w,
    bias,
    other,
    out,
    N,
    K,
    ROW,
    M: tl.constexpr,
    BIAS: tl.constexpr,
    OPERATOR: tl.constexpr,
    FUNCTION: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    MASKED: tl.constexpr,
    BN: tl.constexpr,
):
    """``x @ w + bias``, then :func:`_with` and :func:`_then`. Grid: (blocks of BN columns,).

    x ``(M, K)``, contiguous; w ``(K, N)``, ROW numbers apart. ``MASKED``: BN does not divide N.
    """
    columns, totals = tl.program_id(0) * BN + tl.arange(0, BN), ()
    inside = columns < N
    BITS: tl.constexpr = w.dtype.element_ty.primitive_bitwidth
    for _ in tl.static_range(M):
        totals += (tl.zeros([BN], tl.float32),)
    for k in range(K):
        row, more = w + tl.cast(k, tl.int64) * ROW + columns, ()
        # Each row is of another page, where nothing is fetched unasked.
        for line in tl.static_range(0, BN, _LINE_BITS // BITS):
            place = (tl.cast(k, tl.int64) + _BITS_AHEAD // BITS) * ROW + tl.program_id(0) * BN + line
            fetch_line((w + place).to(tl.int64))
        number = read_below(row, columns, N, MASKED).to(tl.float32)
        for m in tl.static_range(M):
            value = tl.full([BN], tl.load(x + m * K + k).to(tl.float32), tl.float32)
            more += (tl.fma(number, value, totals[m]),)
        totals = more
    for m in tl.static_range(M):
        result = totals[m]
        if BIAS:
            result += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
        at = tl.full([BN], m, tl.int64) * N + columns
        result = _then(_with(result, other, at, inside, OPERATOR), FUNCTION, P, Q)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
