"""Normalization of rows and its gradients, in Triton."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.reduction_kernels import rows_inside

# Sizes, so that one build serves all of them.
_SIZES = ["M", "N", "down", "CHUNK", "eps", "bits"]


@triton.jit
def _some(source, rows, columns, inside, N, TO: tl.constexpr):
    return tl.load(source + rows.to(tl.int64) * N + columns, mask=inside, other=0.0).to(TO)


@triton.jit
def _factor(weight, columns, N, TO: tl.constexpr, GIVEN: tl.constexpr):
    """What columns are multiplied by."""
    if GIVEN:
        return tl.load(weight + columns, mask=columns < N, other=0.0).to(TO)
    return tl.full(columns.shape, 1.0, TO)


@triton.jit(do_not_specialize=_SIZES)
def layer_norm(
    x,
    weight,
    bias,
    out,
    mean,
    rstd,
    M,
    N,
    down,
    eps,
    bits,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    RMS: tl.constexpr,
    ONE: tl.constexpr,
    R: tl.constexpr,
    BN: tl.constexpr,
):
    """``(x - mean) * rstd * weight + bias`` of R rows of N numbers a program; ONE: of at most BN, read once.

    The variance is the mean of squares of what is left when the mean is taken away, so that rows far from 0 keep their
    digits; the mean is that of what is left of a first one, so that of rows of one number nothing is left. RMS: there
    is no mean (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). ``bits``: eps as a float64's, which
    a number of a kernel's arguments is not.
    """
    acc: tl.constexpr = tl.float64 if WIDE else tl.float32
    small = bits.to(tl.int64).to(tl.float64, bitcast=True) if WIDE else eps
    lanes = tl.arange(0, BN)[None, :]
    count = N.to(acc)
    begin = tl.program_id(0) * down
    for some_rows in range(begin, tl.minimum(begin + down, tl.cdiv(M, R))):
        rows = (some_rows * R + tl.arange(0, R))[:, None]
        if ONE:
            inside = rows_inside(lanes < N, rows, M, R)
            value = _some(x, rows, lanes, inside, N, acc)
            middle = tl.zeros([R, 1], acc)
            left = value
            if not RMS:
                middle = (tl.sum(value, 1) / count)[:, None]
                middle += (tl.sum(tl.where(inside, value - middle, 0.0), 1) / count)[:, None]
                left = tl.where(inside, value - middle, 0.0)
            spread = tl.sum(left * left, 1) / count
            scale = (1 / tl.sqrt(spread + small))[:, None]
            value = left * scale * _factor(weight, lanes, N, acc, WEIGHT)
            if BIAS:
                value += tl.load(bias + lanes, mask=lanes < N, other=0.0).to(acc)
            tl.store(out + rows.to(tl.int64) * N + lanes, value.to(out.dtype.element_ty), mask=inside)
        else:
            middle = tl.zeros([R, 1], acc)
            if not RMS:
                for _ in tl.static_range(2):
                    sums = tl.zeros([R, BN], acc)
                    for start in range(0, N, BN):
                        columns = start + lanes
                        inside = rows_inside(columns < N, rows, M, R)
                        sums += tl.where(inside, _some(x, rows, columns, inside, N, acc) - middle, 0.0)
                    middle += (tl.sum(sums, 1) / count)[:, None]
            squares = tl.zeros([R, BN], acc)
            for start in range(0, N, BN):
                columns = start + lanes
                inside = rows_inside(columns < N, rows, M, R)
                left = tl.where(inside, _some(x, rows, columns, inside, N, acc) - middle, 0.0)
                squares += left * left
            scale = (1 / tl.sqrt(tl.sum(squares, 1) / count + small))[:, None]
            for start in range(0, N, BN):
                columns = start + lanes
                inside = rows_inside(columns < N, rows, M, R)
                value = (_some(x, rows, columns, inside, N, acc) - middle) * scale
                value *= _factor(weight, columns, N, acc, WEIGHT)
                if BIAS:
                    value += tl.load(bias + columns, mask=columns < N, other=0.0).to(acc)
                tl.store(out + rows.to(tl.int64) * N + columns, value.to(out.dtype.element_ty), mask=inside)
        if not RMS:
            tl.store(mean + rows, middle, mask=rows < M)
        tl.store(rstd + rows, scale, mask=rows < M)


@triton.jit(do_not_specialize=_SIZES)
def layer_norm_rows(
    grad,
    x,
    mean,
    rstd,
    weight,
    out,
    M,
    N,
    down,
    WEIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    RMS: tl.constexpr,
    ONE: tl.constexpr,
    R: tl.constexpr,
    BN: tl.constexpr,
):
    """The gradient of ``x``: ``rstd * (g - mean(g) - n * mean(g * n))``, g being ``grad * weight``, n the numbers
    normalized (Ba, Kiros and Hinton, 2016); RMS: without ``mean(g)``. ``down`` times R rows a program; ONE: of at
    most BN numbers, read once.
    """
    acc: tl.constexpr = tl.float64 if WIDE else tl.float32
    lanes = tl.arange(0, BN)[None, :]
    count = N.to(acc)
    begin = tl.program_id(0) * down
    for some_rows in range(begin, tl.minimum(begin + down, tl.cdiv(M, R))):
        rows = (some_rows * R + tl.arange(0, R))[:, None]
        middle = tl.zeros([R, 1], acc) if RMS else tl.load(mean + rows, mask=rows < M, other=0.0).to(acc)
        scale = tl.load(rstd + rows, mask=rows < M, other=0.0).to(acc)
        if ONE:
            inside = rows_inside(lanes < N, rows, M, R)
            g = _some(grad, rows, lanes, inside, N, acc) * _factor(weight, lanes, N, acc, WEIGHT)
            normal = tl.where(inside, (_some(x, rows, lanes, inside, N, acc) - middle) * scale, 0.0)
            first = tl.zeros([R, 1], acc) if RMS else (tl.sum(g, 1) / count)[:, None]
            second = (tl.sum(g * normal, 1) / count)[:, None]
            value = (g - first - normal * second) * scale
            tl.store(out + rows.to(tl.int64) * N + lanes, value.to(out.dtype.element_ty), mask=inside)
        else:
            gs, products = tl.zeros([R, BN], acc), tl.zeros([R, BN], acc)
            for start in range(0, N, BN):
                columns = start + lanes
                inside = rows_inside(columns < N, rows, M, R)
                g = _some(grad, rows, columns, inside, N, acc) * _factor(weight, columns, N, acc, WEIGHT)
                gs += g
                products += g * (_some(x, rows, columns, inside, N, acc) - middle) * scale
            first = tl.zeros([R, 1], acc) if RMS else (tl.sum(gs, 1) / count)[:, None]
            second = (tl.sum(products, 1) / count)[:, None]
            for start in range(0, N, BN):
                columns = start + lanes
                inside = rows_inside(columns < N, rows, M, R)
                g = _some(grad, rows, columns, inside, N, acc) * _factor(weight, columns, N, acc, WEIGHT)
                normal = (_some(x, rows, columns, inside, N, acc) - middle) * scale
                value = (g - first - normal * second) * scale
                tl.store(out + rows.to(tl.int64) * N + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def layer_norm_columns(
    grad,
    x,
    mean,
    rstd,
    weights,
    biases,
    M,
    N,
    CHUNK,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    RMS: tl.constexpr,
    R: tl.constexpr,
    BN: tl.constexpr,
):
    """Sums over CHUNK rows of ``grad * normalized`` to ``weights[part]``, of ``grad`` to ``biases[part]``.

    Grid: (blocks of BN columns, parts of CHUNK rows).
    """
    acc: tl.constexpr = tl.float64 if WIDE else tl.float32
    part = tl.program_id(1)
    columns = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    products, sums = tl.zeros([R, BN], acc), tl.zeros([R, BN], acc)
    for start in range(0, CHUNK, R):
        within = start + tl.arange(0, R)[:, None]
        rows = part * CHUNK + within
        held = (within < CHUNK) & (rows < M)
        inside = held & (columns < N)
        g = _some(grad, rows, columns, inside, N, acc)
        sums += g
        if WEIGHT:
            middle = tl.zeros([R, 1], acc) if RMS else tl.load(mean + rows, mask=held, other=0.0).to(acc)
            scale = tl.load(rstd + rows, mask=held, other=0.0).to(acc)
            products += g * ((_some(x, rows, columns, inside, N, acc) - middle) * scale)
    to = part.to(tl.int64) * N + tl.program_id(0) * BN + tl.arange(0, BN)
    kept = tl.program_id(0) * BN + tl.arange(0, BN) < N
    if WEIGHT:
        tl.store(weights + to, tl.sum(products, 0).to(weights.dtype.element_ty), mask=kept)
    if BIAS:
        tl.store(biases + to, tl.sum(sums, 0).to(biases.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["N", "PARTS"])
def totals(parts, out, N, PARTS, BN: tl.constexpr):
    """Sums over ``parts (PARTS, N)``, rounded once. Grid: blocks of BN columns."""
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], parts.dtype.element_ty)
    some = parts + columns
    for _ in range(PARTS):
        total += tl.load(some, mask=columns < N, other=0.0)
        some += N
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=columns < N)
