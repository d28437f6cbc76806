"""Elements of an image at places that a grid says, and the gradients of these, in Triton.

An image is ``(N, C, D, H, W)``, a grid ``(N, OD, OH, OW, DIMS)``, its last dimension x, y (and z), -1 being the image's
beginning and 1 its end. Programs are those of ``window_kernels.py`` over the grid's points; each goes through all
channels. MODE: 0 between neighbours, 1 the nearest, 2 by the cubic convolution of R. Keys (Cubic convolution
interpolation for digital image processing, 1981; a = -0.75). PADDING: outside there are 0 zeros, 1 the edge's elements,
2 mirrored ones. corners: 1, where -1 and 1 are the middles of the first and of the last element; 0, where they are
their outer edges.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.window_kernels import _positions, _rows


@triton.jit
def _edge(corners, OP: tl.constexpr):
    """How far the image goes beyond the middle of its first element."""
    return (1 - corners).to(OP) * 0.5


@triton.jit
def _inside(place, size, corners, PADDING: tl.constexpr, OP: tl.constexpr):
    """Where in the image a place is shown from, and how that goes with the place: 1, 0 or -1."""
    slope = tl.full(place.shape, 1.0, OP)
    if PADDING == 2:
        low = -_edge(corners, OP)
        span = (size - corners).to(OP)
        far = place - low
        slope = tl.where(far < 0, -1.0, 1.0).to(OP)
        far = tl.abs(far)
        twice = tl.where(span > 0, 2 * span, 1.0)
        far = far - libdevice.trunc(far / twice) * twice
        slope = tl.where(far > span, -slope, slope)
        place = tl.where(far > span, twice - far, far) + low
        place = tl.where(span > 0, place, 0.0)
    if PADDING > 0:
        last = (size - 1).to(OP)
        slope = tl.where((place > 0) & (place < last), slope, 0.0)
        place = tl.where(place > 0, place, 0.0)  # of NaN too
        place = tl.minimum(place, last)
    return place, slope


@triton.jit
def _integer(place):
    """Before the image what is too far for integers, or is not a number."""
    return tl.where((place > -1e6) & (place < 1073741824.0), place, -100.0).to(tl.int32)


@triton.jit
def _place(
    grid, inside, size, corners, MODE: tl.constexpr, PADDING: tl.constexpr, OP: tl.constexpr
):  # fmt: skip
    """Of a point, in one dimension: the first of its neighbours, how far it is from that, and the slope of that."""
    half = (size - corners).to(OP) * 0.5
    place = (tl.load(grid, mask=inside, other=0.0).to(OP) + 1) * half - _edge(corners, OP)
    slope = tl.full(place.shape, 1.0, OP)
    if MODE != 2:
        place, slope = _inside(place, size, corners, PADDING, OP)
    low = libdevice.rint(place) if MODE == 1 else libdevice.floor(place)
    return low, place - low, slope * half


@triton.jit
def _near(u):
    return (1.25 * u - 2.25) * u * u + 1


@triton.jit
def _far(u):
    return ((-0.75 * u + 3.75) * u - 6) * u + 3


@triton.jit
def _tap(low, t, k, size, corners, MODE: tl.constexpr, PADDING: tl.constexpr, OP: tl.constexpr):
    """The k-th neighbour, whether it is in the image, its part, and how that grows with t."""
    if MODE == 0:
        at = _integer(low) + k
        part = tl.where(k == 1, t, 1 - t)
        slope = tl.where(k == 1, 1.0, -1.0).to(OP) + t * 0
    elif MODE == 1:
        at = _integer(low)
        part = t * 0 + 1
        slope = t * 0
    else:
        shown, _ = _inside(low + (k - 1), size, corners, PADDING, OP)
        at = _integer(shown)
        u = tl.abs(t + (1 - k))
        middle = (k == 1) | (k == 2)
        part = tl.where(middle, _near(u), _far(u))
        slope = tl.where(middle, (3.75 * u - 4.5) * u, (-2.25 * u + 7.5) * u - 6)
        slope = tl.where(k < 2, slope, -slope)
    there = (at >= 0) & (at < size)
    if MODE != 2:  # of infinity and NaN, which are outside, part and slope would be NaN
        part = tl.where(there, part, 0.0)
        slope = tl.where(there, slope, 0.0)
    return at, there, part, slope


@triton.jit
def _depth(
    grid, at, inside, ID, corners,
    MODE: tl.constexpr, PADDING: tl.constexpr, DIMS: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """:func:`_place` of z; an image of two dimensions has one element there."""
    if DIMS == 3:
        low, t, slope = _place(grid + at * DIMS + 2, inside, ID, corners, MODE, PADDING, OP)
    else:
        low = tl.zeros(at.shape, OP)
        t = low
        slope = low
    return low, t, slope


@triton.jit
def _tap_of_depth(
    low, t, k, size, corners, MODE: tl.constexpr, PADDING: tl.constexpr, DIMS: tl.constexpr, OP: tl.constexpr
):  # fmt: skip
    """:func:`_tap` of z; of an image of two dimensions, its one element."""
    if DIMS == 3:
        at, there, part, slope = _tap(low, t, k, size, corners, MODE, PADDING, OP)
    else:
        at = low.to(tl.int32)
        there = at == 0
        part = t + 1
        slope = t
    return at, there, part, slope


@triton.jit
def sample(
    x, grid, out, rows, down, C, ID, IH, IW, OD, OH, OW, corners,
    MODE: tl.constexpr, PADDING: tl.constexpr, DIMS: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """``(N, C, OD, OH, OW)``: the image at each point."""
    TAPS: tl.constexpr = 2 if MODE == 0 else (1 if MODE == 1 else 4)
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        n, od, oh, ow, _, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        at = ((n * OD + od) * OH + oh) * OW + ow
        low_w, t_w, _ = _place(grid + at * DIMS, inside, IW, corners, MODE, PADDING, OP)
        low_h, t_h, _ = _place(grid + at * DIMS + 1, inside, IH, corners, MODE, PADDING, OP)
        low_d, t_d, _ = _depth(grid, at, inside, ID, corners, MODE, PADDING, DIMS, OP)
        for c in range(C):
            plane = x + (n * C + c) * (ID * IH * IW)
            total = tl.zeros((R, L), OP)
            for kd in tl.static_range(TAPS if DIMS == 3 else 1):
                d, in_d, part_d, _ = _tap_of_depth(low_d, t_d, kd, ID, corners, MODE, PADDING, DIMS, OP)
                for kh in tl.static_range(TAPS):
                    h, in_h, part_h, _ = _tap(low_h, t_h, kh, IH, corners, MODE, PADDING, OP)
                    for kw in tl.static_range(TAPS):
                        w, in_w, part_w, _ = _tap(low_w, t_w, kw, IW, corners, MODE, PADDING, OP)
                        there = inside & in_d & in_h & in_w
                        value = tl.load(plane + (d * IH + h) * IW + w, mask=there, other=0.0).to(OP)
                        total += value * (part_d * part_h * part_w)
            to = out + ((n * C + c) * OD + od) * (OH * OW) + oh * OW + ow
            tl.store(to, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def slope(
    grad, x, grid, out, rows, down, C, ID, IH, IW, OD, OH, OW, corners,
    MODE: tl.constexpr, PADDING: tl.constexpr, DIMS: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of the grid: how the image changes with each point, over all channels."""
    TAPS: tl.constexpr = 2 if MODE == 0 else (1 if MODE == 1 else 4)
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        n, od, oh, ow, _, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        at = ((n * OD + od) * OH + oh) * OW + ow
        low_w, t_w, along_w = _place(grid + at * DIMS, inside, IW, corners, MODE, PADDING, OP)
        low_h, t_h, along_h = _place(grid + at * DIMS + 1, inside, IH, corners, MODE, PADDING, OP)
        low_d, t_d, along_d = _depth(grid, at, inside, ID, corners, MODE, PADDING, DIMS, OP)
        total_w, total_h, total_d = tl.zeros((R, L), OP), tl.zeros((R, L), OP), tl.zeros((R, L), OP)
        for c in range(C):
            plane = x + (n * C + c) * (ID * IH * IW)
            of = grad + ((n * C + c) * OD + od) * (OH * OW) + oh * OW + ow
            weight = tl.load(of, mask=inside, other=0.0).to(OP)
            for kd in tl.static_range(TAPS if DIMS == 3 else 1):
                d, in_d, part_d, slope_d = _tap_of_depth(low_d, t_d, kd, ID, corners, MODE, PADDING, DIMS, OP)
                for kh in tl.static_range(TAPS):
                    h, in_h, part_h, slope_h = _tap(low_h, t_h, kh, IH, corners, MODE, PADDING, OP)
                    for kw in tl.static_range(TAPS):
                        w, in_w, part_w, slope_w = _tap(low_w, t_w, kw, IW, corners, MODE, PADDING, OP)
                        there = inside & in_d & in_h & in_w
                        value = tl.load(plane + (d * IH + h) * IW + w, mask=there, other=0.0).to(OP) * weight
                        total_w += value * (part_d * part_h * slope_w)
                        total_h += value * (part_d * slope_h * part_w)
                        if DIMS == 3:
                            total_d += value * (slope_d * part_h * part_w)
        to = out + at * DIMS
        tl.store(to, (total_w * along_w).to(out.dtype.element_ty), mask=inside)
        tl.store(to + 1, (total_h * along_h).to(out.dtype.element_ty), mask=inside)
        if DIMS == 3:
            tl.store(to + 2, (total_d * along_d).to(out.dtype.element_ty), mask=inside)


@triton.jit
def spread(
    grad, grid, places, parts, rows, down, C, ID, IH, IW, OD, OH, OW, corners, kd, kh, kw,
    MODE: tl.constexpr, PADDING: tl.constexpr, DIMS: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of each point's one neighbour: its place in the plane, ``(N, OD, OH, OW)``, and the gradients of ``(N, C, ..)``
    that it takes; zeros of the first element, where it is outside."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        n, od, oh, ow, _, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        at = ((n * OD + od) * OH + oh) * OW + ow
        low_w, t_w, _ = _place(grid + at * DIMS, inside, IW, corners, MODE, PADDING, OP)
        low_h, t_h, _ = _place(grid + at * DIMS + 1, inside, IH, corners, MODE, PADDING, OP)
        low_d, t_d, _ = _depth(grid, at, inside, ID, corners, MODE, PADDING, DIMS, OP)
        d, in_d, part_d, _ = _tap_of_depth(low_d, t_d, kd, ID, corners, MODE, PADDING, DIMS, OP)
        h, in_h, part_h, _ = _tap(low_h, t_h, kh, IH, corners, MODE, PADDING, OP)
        w, in_w, part_w, _ = _tap(low_w, t_w, kw, IW, corners, MODE, PADDING, OP)
        there = in_d & in_h & in_w
        tl.store(places + at, tl.where(there, (d * IH + h) * IW + w, 0).to(tl.int64), mask=inside)
        part = part_d * part_h * part_w
        for c in range(C):
            of = ((n * C + c) * OD + od) * (OH * OW) + oh * OW + ow
            value = tl.load(grad + of, mask=inside & there, other=0.0).to(OP)
            tl.store(parts + of, tl.where(there, value * part, 0.0), mask=inside)
