"""Losses in Triton: of two tensors an element at a time, and of classes; whole, with their sum, or their gradients."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import div
from anyxpu.ops.reduction_kernels import BLOCK

_LEAST = tl.constexpr(-100.0)  # of a logarithm in cross entropy
_TINY = tl.constexpr(1e-12)  # the least divisor in its gradient


# --- of two tensors -----------------------------------------------------------------------------------------------


@triton.jit
def _loss(x, y, p, KIND: tl.constexpr):
    far = tl.abs(x - y)
    if KIND == "mse":
        return far * far
    elif KIND == "smooth_l1":
        return tl.where(far < p, div(0.5 * far * far, p), far - 0.5 * p)
    elif KIND == "huber":
        return tl.where(far < p, 0.5 * far * far, p * (far - 0.5 * p))
    else:
        # A NaN is neither of the two and stays one.
        low, high = libdevice.log(x), libdevice.log1p(-x)
        return (y - 1) * tl.where(high < _LEAST, _LEAST, high) - y * tl.where(low < _LEAST, _LEAST, low)


@triton.jit
def _slope(x, y, p, KIND: tl.constexpr):
    """The derivative of :func:`_loss` by x."""
    away = x - y
    if KIND == "mse":
        return away * 2
    elif KIND == "smooth_l1":
        return tl.where(away <= -p, -1.0, tl.where(away >= p, 1.0, div(away, p)))
    elif KIND == "huber":
        return tl.where(away <= -p, -p, tl.where(away >= p, p, away))
    else:
        spread = (1 - x) * x
        return div(away, tl.where(spread < _TINY, _TINY, spread))


@triton.jit
def _losses(x, y, w, at, inside, p, KIND: tl.constexpr, WEIGHTED: tl.constexpr, OP: tl.constexpr):
    value = tl.load(x + at, mask=inside, other=0.5).to(OP)
    if KIND == "binary_cross_entropy":
        tl.device_assert(
            (value >= 0) & (value <= 1), "binary_cross_entropy: all elements of input should be between 0 and 1"
        )
    made = _loss(value, tl.load(y + at, mask=inside, other=0.5).to(OP), p, KIND)
    if WEIGHTED:
        made = made * tl.load(w + at, mask=inside, other=0.0).to(OP)
    return made


@triton.jit
def each(
    x, y, w, out, n, p,
    OP: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[i]``: the loss of ``x[i]`` and ``y[i]``, times ``w[i]`` where WEIGHTED."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < n
    made = _losses(x, y, w, at, inside, p, KIND, WEIGHTED, OP)
    tl.store(out + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def summed(
    x, y, w, out, n, chunk, p, over,
    OP: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[program]``: the sum of the losses of ``chunk`` of n elements, divided by ``over``."""
    begin = tl.program_id(0) * chunk
    end = tl.minimum(begin + chunk, n)
    total = tl.zeros([L], OP)
    for block in range(begin, end, L * BLOCK):
        some = tl.zeros([L], OP)
        for start in range(block, tl.minimum(end, block + L * BLOCK), L):
            at = start + tl.arange(0, L)
            made = _losses(x, y, w, at, at < end, p, KIND, WEIGHTED, OP)
            some += tl.where(at < end, made, 0.0)
        total += some
    tl.store(out + tl.program_id(0), div(tl.sum(total, 0), over).to(out.dtype.element_ty))


@triton.jit
def slopes(
    grad, x, y, w, out, n, p, over,
    OP: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr, ONE: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[i]``: the gradient of ``x[i]``, divided by ``over``. ONE: ``grad`` is a number for all."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < n
    made = _slope(
        tl.load(x + at, mask=inside, other=0.5).to(OP), tl.load(y + at, mask=inside, other=0.5).to(OP), p, KIND
    )
    if WEIGHTED:
        made = made * tl.load(w + at, mask=inside, other=0.0).to(OP)
    given = tl.load(grad) if ONE else tl.load(grad + at, mask=inside, other=0.0)
    tl.store(out + at, div(made * given.to(OP), over).to(out.dtype.element_ty), mask=inside)


# --- of classes ---------------------------------------------------------------------------------------------------


@triton.jit
def _of_rows(target, w, row, N, C, inner, ignored, WEIGHTED: tl.constexpr, OP: tl.constexpr):
    """Of rows of ``x (N / inner, C, inner)``: whether each counts, where its class's number lies, and its factor."""
    wanted = tl.load(target + row, mask=row < N, other=ignored)
    keep = wanted != ignored
    fine = (wanted >= 0) & (wanted < C)
    tl.device_assert(fine | ~keep, "nll_loss: a class is out of range")
    keep = keep & fine
    wanted = tl.where(keep, wanted, 0)
    at = (row // inner).to(tl.int64) * C * inner + row % inner + wanted * inner
    factor = tl.load(w + wanted, mask=keep, other=0.0).to(OP) if WEIGHTED else keep.to(OP)
    return keep, at, factor


@triton.jit
def picked(
    x, target, w, out, N, C, inner, ignored,
    OP: tl.constexpr, WEIGHTED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[row]``: minus the number of the row's class, times that class's weight; 0 where it does not count."""
    row = tl.program_id(0) * L + tl.arange(0, L)
    keep, at, factor = _of_rows(target, w, row, N, C, inner, ignored, WEIGHTED, OP)
    made = tl.where(keep, tl.load(x + at, mask=keep, other=0.0).to(OP) * -factor, 0.0)
    tl.store(out + row, made.to(out.dtype.element_ty), mask=row < N)


@triton.jit
def picked_sums(
    x, target, w, out, factors, N, C, inner, chunk, ignored,
    OP: tl.constexpr, WEIGHTED: tl.constexpr, MEAN: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``out[program]``, ``factors[program]``: sums of :func:`picked` and of the weights over ``chunk`` rows.

    MEAN: the first is divided by the second; there is one program.
    """
    begin = tl.program_id(0) * chunk
    end = tl.minimum(begin + chunk, N)
    total, whole = tl.zeros([L], OP), tl.zeros([L], OP)
    for start in range(begin, end, L):
        row = start + tl.arange(0, L)
        keep, at, factor = _of_rows(target, w, row, end, C, inner, ignored, WEIGHTED, OP)
        total += tl.where(keep, tl.load(x + at, mask=keep, other=0.0).to(OP) * -factor, 0.0)
        whole += tl.where(keep, factor, 0.0)
    made, weight = tl.sum(total, 0), tl.sum(whole, 0)
    tl.store(out + tl.program_id(0), (div(made, weight) if MEAN else made).to(out.dtype.element_ty))
    tl.store(factors + tl.program_id(0), weight.to(factors.dtype.element_ty))


@triton.jit
def spread(
    grad, x_grad, target, w, total, N, C, inner, ignored,
    OP: tl.constexpr, WEIGHTED: tl.constexpr, MEAN: tl.constexpr, ONE: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of every row's class into ``x_grad``, which is zero elsewhere. MEAN: divided by ``total``."""
    row = tl.program_id(0) * L + tl.arange(0, L)
    keep, at, factor = _of_rows(target, w, row, N, C, inner, ignored, WEIGHTED, OP)
    given = tl.load(grad) if ONE else tl.load(grad + row, mask=keep, other=0.0)
    made = factor * -given.to(OP)
    if MEAN:
        made = div(made, tl.load(total).to(OP))
    tl.store(x_grad + at, made.to(x_grad.dtype.element_ty), mask=keep)
