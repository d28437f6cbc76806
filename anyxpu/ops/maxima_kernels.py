"""The largest elements of windows that cover an image, evenly or at random, in Triton.

Memory and programs are those of ``window_kernels.py``; indices are of elements within their plane. NaN is the largest.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.window_kernels import (
    _address,
    _behind,
    _first,
    _inner,
    _of_lanes,
    _places,
    _positions,
    _rows,
    _taken,
    _window,
)


@triton.jit
def adaptive(
    x, out, indices, rows, down, C, ID, IH, IW, OD, OH, OW, KD, KH, KW,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of each of OD x OH x OW windows that cover the source; none is larger than KD x KH x KW."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        d0, d1 = _first(od, ID, OD), _behind(od, ID, OD)
        h0, h1 = _first(oh, IH, OH), _behind(oh, IH, OH)
        w0, w1 = _first(ow, IW, OW), _behind(ow, IW, OW)
        best = tl.full((R, L), float("-inf"), OP)
        where = tl.full((R, L), -1, tl.int32)
        for kd in range(KD):
            for kh in range(KH):
                for kw in range(KW):
                    d, h, w = d0 + kd, h0 + kh, w0 + kw
                    there = (d < d1) & (h < h1) & (w < w1)
                    value = _taken(x + _inner(plane, d, h, w, c, C, ID, IH, IW, LAST), inside, LAST).to(OP)
                    better = there & ((where < 0) | (value > best) | (value != value))
                    best = tl.where(better, value, best)
                    where = tl.where(better, (d * IH + h) * IW + w, where)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, best.to(out.dtype.element_ty), mask=inside)
        tl.store(indices + at, where.to(tl.int64), mask=inside)


@triton.jit
def along(
    x, places, out, indices, rows, down, C, ID, IH, IW, OD, OH, OW, K, before, behind, channels,
    FIRST: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """:func:`adaptive` along W alone, of elements whose indices are ``places``; FIRST: where they are.

    Then ``before`` elements of a plane are before that dimension, and ``behind`` of each channel behind it.
    """
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    of_lanes = _of_lanes(strip, IW, OW, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        w0, w1 = _window(ow, IW, OW) if LAST else of_lanes
        best = tl.full((R, L), float("-inf"), OP)
        where = tl.full((R, L), -1, tl.int32)
        for k in range(K):
            w = w0 + k
            at = _inner(plane, od, oh, w, c, C, ID, IH, IW, LAST)
            value = _taken(x + at, inside, LAST).to(OP)
            mine = (plane % before * IW + w) * behind + c // channels if FIRST else _taken(places + at, inside, LAST)
            # The first of equals, and of NaNs the last.
            better = (where < 0) | (value > best) | ((value == best) & (mine < where))
            better = better | ((value != value) & ((best == best) | (mine > where)))
            better = better & (w < w1)
            best = tl.where(better, value, best)
            where = tl.where(better, mine, where)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, best.to(out.dtype.element_ty), mask=inside)
        tl.store(indices + at, where.to(indices.dtype.element_ty), mask=inside)


@triton.jit
def adaptive_backward(
    grad, indices, out, rows, down, C, ID, IH, IW, OD, OH, OW, KD, KH, KW,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x: to each element those of its windows, KD x KH x KW at most, whose largest it was."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        me = (d * IH + h) * IW + w
        d0, d1 = _first(d, OD, ID), _behind(d, OD, ID)
        h0, h1 = _first(h, OH, IH), _behind(h, OH, IH)
        w0, w1 = _first(w, OW, IW), _behind(w, OW, IW)
        total = tl.zeros((R, L), OP)
        for kd in range(KD):
            for kh in range(KH):
                for kw in range(KW):
                    od, oh, ow = d0 + kd, h0 + kh, w0 + kw
                    there = inside & (od < d1) & (oh < h1) & (ow < w1)
                    at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
                    mine = there & (tl.load(indices + at, mask=there, other=-1).to(tl.int32) == me)
                    total += tl.load(grad + at, mask=mine, other=0.0).to(OP)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def spread(grad, indices, out, planes, C, windows, elements, L: tl.constexpr):
    """:func:`adaptive_backward` from windows to elements, into zeros: L planes side by side, each by itself.

    A CPU walks few windows sooner than many elements; a GPU wants more programs than there are planes.
    """
    plane = tl.program_id(0) * L + tl.arange(0, L)
    there = plane < planes
    n, c = plane // C, plane % C
    for window in range(windows):
        at = (n * windows + window) * C + c
        where = tl.load(indices + at, mask=there, other=-1).to(tl.int32)
        to = out + (n * elements + where) * C + c
        valid = there & (where >= 0) & (where < elements)
        share = tl.load(grad + at, mask=valid, other=0.0).to(out.dtype.element_ty)
        tl.store(to, tl.load(to, mask=valid, other=0.0) + share, mask=valid)


@triton.jit
def _begin(sample, o, K, size, outs, step, T: tl.constexpr, OP: tl.constexpr):
    """Where the o-th window begins; every step of it is rounded to the elements' type, as the CPU's are."""
    plus = (o.to(OP).to(T).to(OP) + sample).to(T).to(OP)
    far = (plus * step).to(T).to(OP).to(tl.int32) - (sample * step).to(T).to(OP).to(tl.int32)
    return tl.where(o == outs - 1, size - K, far)


@triton.jit
def fractional(
    x, samples, out, indices, rows, down, C, ID, IH, IW, OD, OH, OW, KD, KH, KW, step_d, step_h, step_w,
    DIMS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of windows of KD x KH x KW that begin at random; ``samples`` are ``(planes, DIMS)``: (d, h, w), or (w, h)."""
    T: tl.constexpr = x.dtype.element_ty
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        row = samples + plane * DIMS
        by_h = tl.load(row + 1 + plane * 0, mask=inside, other=0.0).to(OP)
        by_w = tl.load(row + (2 if DIMS == 3 else 0), mask=inside, other=0.0).to(OP)
        d0 = od * 0
        if DIMS == 3:
            d0 = _begin(tl.load(row, mask=inside, other=0.0).to(OP), od, KD, ID, OD, step_d, T, OP)
        h0 = _begin(by_h, oh, KH, IH, OH, step_h, T, OP)
        w0 = _begin(by_w, ow, KW, IW, OW, step_w, T, OP)
        best = tl.full((R, L), float("-inf"), OP)
        where = tl.full((R, L), -1, tl.int32)
        for kd in range(KD):
            for kh in range(KH):
                for kw in range(KW):
                    d, h, w = d0 + kd, h0 + kh, w0 + kw
                    there = inside & (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW)
                    value = tl.load(x + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), mask=there, other=0.0).to(OP)
                    better = there & ((where < 0) | (value > best) | (value != value))
                    best = tl.where(better, value, best)
                    where = tl.where(better, (d * IH + h) * IW + w, where)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, best.to(out.dtype.element_ty), mask=inside)
        tl.store(indices + at, where.to(tl.int64), mask=inside)
