"""Pooling over windows, resizing, and their gradients, in Triton.

Memory is ``(N, C, D, H, W)``, W fastest; LAST: C fastest. A program goes through ``down`` rows of L lanes, R at once: W
is the lanes, and all else the rows; LAST: C is the lanes. Every gradient is gathered, so that no two programs write one
element: an element of the source looks for the windows, or the places, that took it.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _rows(rows, down, C, W, LAST: tl.constexpr, L: tl.constexpr):
    """The rows that this program goes through, and where its lanes begin."""
    strips = tl.cdiv(C if LAST else W, L)
    first = (tl.program_id(0) // strips) * down
    return first, tl.minimum(first + down, rows), (tl.program_id(0) % strips) * L


@triton.jit
def _positions(first, strip, end, C, D, H, W, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """R rows of a tensor of such sizes from the first on: plane (LAST: of N), d, h, w, c, and which there are."""
    row = first + tl.arange(0, R)[:, None]
    lane = strip + tl.arange(0, L)[None, :]
    inside = (row < end) & (lane < (C if LAST else W))
    if LAST:
        w, c = row % W, lane
        rest = row // W
    else:
        w, c = lane, row * 0
        rest = row
    h = rest % H
    rest = rest // H
    return rest // D, rest % D, h, w, c, inside


@triton.jit
def _places(first, strip, end, C, D, H, W, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """:func:`_positions`, for what is read by :func:`_taken`: where there is none, the last one, if lanes are of W."""
    lane = strip + tl.arange(0, L)[None, :]
    inside = (first + tl.arange(0, R)[:, None] < end) & (lane < (C if LAST else W))
    row = tl.minimum(first + tl.arange(0, R)[:, None], end - 1)
    if LAST:
        w, c = row % W, lane
        rest = row // W
    else:
        w, c = tl.minimum(lane, W - 1), row * 0
        rest = row
    h = rest % H
    rest = rest // H
    return rest // D, rest % D, h, w, c, inside


@triton.jit
def _taken(at, inside, LAST: tl.constexpr):
    """What lies at places that are all there, unless lanes are of C.

    A CPU reads lanes at places of their own one after the other, and where there is a mask has a branch for each.
    """
    return tl.load(at, mask=inside) if LAST else tl.load(at)


@triton.jit
def _address(plane, d, h, w, c, C, D, H, W, LAST: tl.constexpr):
    at = ((plane * D + d) * H + h) * W + w
    return at * C + c if LAST else at


@triton.jit
def _inner(plane, d, h, w, c, C, D, H, W, LAST: tl.constexpr):
    """:func:`_address`, of the last element where one is beyond it."""
    return _address(plane, tl.minimum(d, D - 1), tl.minimum(h, H - 1), tl.minimum(w, W - 1), c, C, D, H, W, LAST)


# --- the largest of a window --------------------------------------------------------------------------------------


@triton.jit
def max_pool(
    x, out, indices, rows, down, C, ID, IH, IW, OD, OH, OW,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, A: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The largest element of each window (NaN, where there is one), and its index within the plane.

    K, S, P, A: size, step, padding and dilation, of (D, H, W).
    """
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        if LAST or S[2] == 1:
            plane, od, oh, ow, c, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        else:
            plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        best = tl.full((R, L), float("-inf"), OP)
        where = tl.full((R, L), -1, tl.int32)
        for kd in range(K[0]):
            d = od * S[0] - P[0] + kd * A[0]
            for kh in range(K[1]):
                h = oh * S[1] - P[1] + kh * A[1]
                for kw in range(K[2]):
                    w = ow * S[2] - P[2] + kw * A[2]
                    there = (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW)
                    if LAST or S[2] == 1:  # lanes are neighbours in memory
                        at = _address(plane, d, h, w, c, C, ID, IH, IW, LAST)
                        value = tl.load(x + at, mask=inside & there, other=0.0).to(OP)
                    else:
                        d_, h_, w_ = tl.maximum(d, 0), tl.maximum(h, 0), tl.maximum(w, 0)
                        value = _taken(x + _inner(plane, d_, h_, w_, c, C, ID, IH, IW, LAST), inside, LAST).to(OP)
                    better = there & ((where < 0) | (value > best) | (value != value))
                    best = tl.where(better, value, best)
                    where = tl.where(better, (d * IH + h) * IW + w, where)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, best.to(out.dtype.element_ty), mask=inside)
        tl.store(indices + at, where.to(tl.int64), mask=inside)


@triton.jit
def max_pool_backward(
    grad, indices, out, rows, down, C, ID, IH, IW, OD, OH, OW,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, A: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x: to each element those of the windows whose largest it was."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        me = (d * IH + h) * IW + w
        last_d, last_h, last_w = (d + P[0]) // S[0], (h + P[1]) // S[1], (w + P[2]) // S[2]
        total = tl.zeros((R, L), OP)
        for kd in range(((K[0] - 1) * A[0]) // S[0] + 1):
            od = last_d - kd
            for kh in range(((K[1] - 1) * A[1]) // S[1] + 1):
                oh = last_h - kh
                for kw in range(((K[2] - 1) * A[2]) // S[2] + 1):
                    ow = last_w - kw
                    there = inside & (od >= 0) & (od < OD) & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
                    at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
                    mine = there & (tl.load(indices + at, mask=there, other=-1).to(tl.int32) == me)
                    total += tl.load(grad + at, mask=mine, other=0.0).to(OP)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


# --- the mean of a window -----------------------------------------------------------------------------------------


@triton.jit
def _span(o, size, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr):
    """Of the window of output o: its first element and the one behind its last, within memory, and its padded size."""
    begin = o * S - P
    end = tl.minimum(begin + K, size + P)
    return tl.maximum(begin, 0), tl.minimum(end, size), end - begin


@triton.jit
def _divisor(od, oh, ow, ID, IH, IW, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, PADDED: tl.constexpr):
    d0, d1, dp = _span(od, ID, K[0], S[0], P[0])
    h0, h1, hp = _span(oh, IH, K[1], S[1], P[1])
    w0, w1, wp = _span(ow, IW, K[2], S[2], P[2])
    return dp * hp * wp if PADDED else (d1 - d0) * (h1 - h0) * (w1 - w0)


@triton.jit
def avg_pool(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, divisor,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, PADDED: tl.constexpr, DIVISOR: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The mean of each window. PADDED: padding counts as zeros. DIVISOR: the sum is divided by that instead."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        if LAST or S[2] == 1:
            plane, od, oh, ow, c, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        else:
            plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        total = tl.zeros((R, L), OP)
        for kd in range(K[0]):
            d = od * S[0] - P[0] + kd
            for kh in range(K[1]):
                h = oh * S[1] - P[1] + kh
                for kw in range(K[2]):
                    w = ow * S[2] - P[2] + kw
                    there = (d >= 0) & (d < ID) & (h >= 0) & (h < IH) & (w >= 0) & (w < IW)
                    if LAST or S[2] == 1:  # lanes are neighbours in memory
                        at = _address(plane, d, h, w, c, C, ID, IH, IW, LAST)
                        total += tl.load(x + at, mask=inside & there, other=0.0).to(OP)
                    else:
                        d_, h_, w_ = tl.maximum(d, 0), tl.maximum(h, 0), tl.maximum(w, 0)
                        value = _taken(x + _inner(plane, d_, h_, w_, c, C, ID, IH, IW, LAST), inside, LAST).to(OP)
                        total += tl.where(there, value, 0.0)
        total = total / divisor.to(OP) if DIVISOR else total / _divisor(od, oh, ow, ID, IH, IW, K, S, P, PADDED).to(OP)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def avg_pool_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, divisor,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, PADDED: tl.constexpr, DIVISOR: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x: to each element its share of those of the windows that it is in."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        last_d, last_h, last_w = (d + P[0]) // S[0], (h + P[1]) // S[1], (w + P[2]) // S[2]
        total = tl.zeros((R, L), OP)
        for kd in range((K[0] - 1) // S[0] + 1):
            od = last_d - kd
            for kh in range((K[1] - 1) // S[1] + 1):
                oh = last_h - kh
                for kw in range((K[2] - 1) // S[2] + 1):
                    ow = last_w - kw
                    there = inside & (od >= 0) & (od < OD) & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
                    # The last window that begins before this element may end before it, too, where steps are longer.
                    there = there & (d + P[0] < od * S[0] + K[0]) & (h + P[1] < oh * S[1] + K[1])
                    there = there & (w + P[2] < ow * S[2] + K[2])
                    value = tl.load(grad + _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST), mask=there, other=0.0)
                    if DIVISOR:
                        total += value.to(OP) / divisor.to(OP)
                    else:
                        count = _divisor(od, oh, ow, ID, IH, IW, K, S, P, PADDED)
                        total += value.to(OP) / tl.where(there, count, 1).to(OP)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _first(o, size, outs):
    """The first of ``size`` elements that the o-th of ``outs`` windows has: they overlap where outs divides not."""
    return (o.to(tl.int64) * size // outs).to(tl.int32)


@triton.jit
def _behind(o, size, outs):
    return (((o + 1).to(tl.int64) * size + outs - 1) // outs).to(tl.int32)


@triton.jit
def _window(o, size, outs):
    return _first(o, size, outs), _behind(o, size, outs)


@triton.jit
def _of_lanes(strip, size, outs, L: tl.constexpr):
    """The windows of a program's lanes, for all of its rows at once: a compiler does not move divisions out of loops,
    as there may be no round."""
    return _window(tl.minimum(strip + tl.arange(0, L)[None, :], outs - 1), size, outs)


@triton.jit
def adaptive_avg_pool(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, K,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The mean of each of OW windows that cover W; none is larger than K, and D and H are 1."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    of_lanes = _of_lanes(strip, IW, OW, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        w0, w1 = _window(ow, IW, OW) if LAST else of_lanes
        total = tl.zeros((R, L), OP)
        for k in range(K):
            w = w0 + k
            value = _taken(x + _inner(plane, od, oh, w, c, C, ID, IH, IW, LAST), inside, LAST).to(OP)
            total += tl.where(w < w1, value, 0.0)
        total = total / (w1 - w0).to(OP)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def adaptive_avg_pool_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, K,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x along W; an element is in at most K windows, and D and H are 1."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    of_lanes = _of_lanes(strip, OW, IW, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _places(first, strip, end, C, ID, IH, IW, LAST, R, L)
        w0, w1 = _window(w, OW, IW) if LAST else of_lanes
        total = tl.zeros((R, L), OP)
        for k in range(K):
            ow = w0 + k
            value = _taken(grad + _inner(plane, d, h, ow, c, C, OD, OH, OW, LAST), inside, LAST).to(OP)
            size = _behind(ow, IW, OW) - _first(ow, IW, OW)
            total += tl.where(ow < w1, value / size.to(OP), 0.0)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


# --- resizing -----------------------------------------------------------------------------------------------------


@triton.jit
def _nearest(o, scale, size, EXACT: tl.constexpr, OP: tl.constexpr):
    """Where the o-th element comes from; EXACT: its middle counts, not its beginning."""
    place = (o.to(OP) + 0.5) * scale if EXACT else o.to(OP) * scale
    return tl.minimum(libdevice.floor(place).to(tl.int32), size - 1)


@triton.jit
def nearest(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, fd, fh, fw,
    EXACT: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Each element from its nearest one; ``fd, fh, fw``: steps of the source for one of the result."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        d, h, w = _nearest(od, fd, ID, EXACT, OP), _nearest(oh, fh, IH, EXACT, OP), _nearest(ow, fw, IW, EXACT, OP)
        value = _taken(x + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), inside, LAST)
        tl.store(out + _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST), value, mask=inside)


@triton.jit
def _earliest(i, scale):
    """Before the first element that may come from the i-th: what is too early is sorted out."""
    return tl.maximum(((i.to(tl.float32) - 0.5) / scale.to(tl.float32)).to(tl.int32) - 1, 0)


@triton.jit
def nearest_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, KD, KH, KW, fd, fh, fw,
    EXACT: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x; at most KD x KH x KW elements from its earliest on may come from one."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _places(first, strip, end, C, ID, IH, IW, LAST, R, L)
        d0, h0, w0 = _earliest(d, fd), _earliest(h, fh), _earliest(w, fw)
        total = tl.zeros((R, L), OP)
        for kd in range(KD):
            od = d0 + kd
            in_d = inside & (od < OD) & (_nearest(od, fd, ID, EXACT, OP) == d)
            for kh in range(KH):
                oh = h0 + kh
                in_h = in_d & (oh < OH) & (_nearest(oh, fh, IH, EXACT, OP) == h)
                for kw in range(KW):
                    ow = w0 + kw
                    there = in_h & (ow < OW) & (_nearest(ow, fw, IW, EXACT, OP) == w)
                    at = _inner(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
                    total += tl.where(there, _taken(grad + at, inside, LAST).to(OP), 0.0)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _between(o, scale, size, CORNERS: tl.constexpr, OP: tl.constexpr):
    """The two elements that the o-th lies between, and how much of the second there is in it."""
    place = o.to(OP) * scale if CORNERS else tl.maximum((o.to(OP) + 0.5) * scale - 0.5, 0.0)
    low = tl.minimum(place.to(tl.int32), size - 1)
    return low, tl.minimum(low + 1, size - 1), tl.minimum(place - low.to(OP), 1.0)


@triton.jit
def linear(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, fd, fh, fw,
    CORNERS: tl.constexpr, DIMS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Each element between its neighbours in the last DIMS dimensions.

    CORNERS: those of source and result lie together.
    """
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        d0, d1, td = _between(od, fd, ID, CORNERS, OP)
        h0, h1, th = _between(oh, fh, IH, CORNERS, OP)
        w0, w1, tw = _between(ow, fw, IW, CORNERS, OP)
        total = tl.zeros((R, L), OP)
        for kd in tl.static_range(2 if DIMS == 3 else 1):
            for kh in tl.static_range(2 if DIMS > 1 else 1):
                a = _address(plane, d1 if kd else d0, h1 if kh else h0, w0, c, C, ID, IH, IW, LAST)
                b = _address(plane, d1 if kd else d0, h1 if kh else h0, w1, c, C, ID, IH, IW, LAST)
                left = _taken(x + a, inside, LAST).to(OP)
                right = _taken(x + b, inside, LAST).to(OP)
                part = left * (1 - tw) + right * tw
                if DIMS > 1:
                    part = part * (th if kh else 1 - th)
                if DIMS == 3:
                    part = part * (td if kd else 1 - td)
                total += part
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _share(i, o, scale, size, CORNERS: tl.constexpr, OP: tl.constexpr):
    """How much of the i-th element there is in the o-th of the result."""
    low, high, part = _between(o, scale, size, CORNERS, OP)
    return tl.where(low == i, 1 - part, 0.0) + tl.where(high == i, part, 0.0)


@triton.jit
def _soonest(i, scale, CORNERS: tl.constexpr):
    """Before the first element of the result that the i-th may be in."""
    place = (i.to(tl.float32) - 1) / tl.maximum(scale.to(tl.float32), 1e-30)
    if not CORNERS:
        place = (i.to(tl.float32) - 0.5) / scale.to(tl.float32) - 0.5
    return tl.maximum(tl.minimum(tl.maximum(place, 0.0), 1e9).to(tl.int32) - 1, 0)


@triton.jit
def linear_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, KD, KH, KW, fd, fh, fw,
    CORNERS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x; it is in at most KD x KH x KW elements from the soonest on."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _places(first, strip, end, C, ID, IH, IW, LAST, R, L)
        d0, h0, w0 = _soonest(d, fd, CORNERS), _soonest(h, fh, CORNERS), _soonest(w, fw, CORNERS)
        total = tl.zeros((R, L), OP)
        for kd in range(KD):
            od = d0 + kd
            by_d = _share(d, od, fd, ID, CORNERS, OP)
            for kh in range(KH):
                oh = h0 + kh
                by_h = by_d * _share(h, oh, fh, IH, CORNERS, OP)
                for kw in range(KW):
                    ow = w0 + kw
                    part = by_h * _share(w, ow, fw, IW, CORNERS, OP)
                    there = (od < OD) & (oh < OH) & (ow < OW) & (part != 0)
                    at = _inner(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
                    total += tl.where(there, _taken(grad + at, inside, LAST).to(OP) * part, 0.0)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)
