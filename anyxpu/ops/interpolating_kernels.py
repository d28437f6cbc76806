"""Resizing by cubic convolution and with antialiasing, and the gradients of these, in Triton.

Memory and programs are those of ``window_kernels.py``. Gradients are gathered: an element of the source looks for the
elements of the result that it is in, and no two programs write one element.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.window_kernels import _address, _inner, _places, _positions, _rows, _taken


@triton.jit
def _place(o, scale, CORNERS: tl.constexpr, OP: tl.constexpr):
    """The element before the o-th, and how far that is from it."""
    place = o.to(OP) * scale if CORNERS else (o.to(OP) + 0.5) * scale - 0.5
    low = libdevice.floor(place)
    return low.to(tl.int32), place - low


@triton.jit
def _keys(u, sharp: tl.constexpr):
    """R. Keys' cubic convolution kernel at a distance from 0 to 2 on; ``sharp`` is his a."""
    near = ((sharp + 2) * u - (sharp + 3)) * u * u + 1
    far = ((sharp * u - 5 * sharp) * u + 8 * sharp) * u - 4 * sharp
    return tl.where(u <= 1, near, far)


@triton.jit
def cubic(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, fh, fw,
    CORNERS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Each element from 4 x 4 neighbours, those outside being the edge's (a = -0.75)."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        low_h, th = _place(oh, fh, CORNERS, OP)
        low_w, tw = _place(ow, fw, CORNERS, OP)
        total = tl.zeros((R, L), OP)
        for kh in range(4):
            h = tl.minimum(tl.maximum(low_h + (kh - 1), 0), IH - 1)
            line = tl.zeros((R, L), OP)
            for kw in tl.static_range(4):
                w = tl.minimum(tl.maximum(low_w + (kw - 1), 0), IW - 1)
                value = tl.load(x + _address(plane, od, h, w, c, C, ID, IH, IW, LAST), mask=inside, other=0.0)
                line += value.to(OP) * _keys(tl.abs(tw + (1 - kw)), -0.75)
            total += line * _keys(tl.abs(th + (1 - kh)), -0.75)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _share(i, o, scale, size, CORNERS: tl.constexpr, OP: tl.constexpr):
    """How much of the i-th element there is in the o-th of the result."""
    low, t = _place(o, scale, CORNERS, OP)
    part = t * 0
    for k in tl.static_range(4):
        at = tl.minimum(tl.maximum(low + (k - 1), 0), size - 1)
        part += tl.where(at == i, _keys(tl.abs(t + (1 - k)), -0.75), 0.0)
    return part


@triton.jit
def _soonest(i, scale, CORNERS: tl.constexpr):
    """Before the first element of the result that the i-th may be in."""
    place = (i.to(tl.float32) - (2.0 if CORNERS else 1.5)) / tl.maximum(scale.to(tl.float32), 1e-30)
    return tl.maximum(tl.minimum(tl.maximum(place - 0.5, 0.0), 1e9).to(tl.int32) - 1, 0)


@triton.jit
def cubic_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, KH, KW, fh, fw,
    CORNERS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x; it is in at most KH x KW elements from the soonest on."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _places(first, strip, end, C, ID, IH, IW, LAST, R, L)
        h0, w0 = _soonest(h, fh, CORNERS), _soonest(w, fw, CORNERS)
        total = tl.zeros((R, L), OP)
        for kh in range(KH):
            oh = h0 + kh
            by_h = _share(h, oh, fh, IH, CORNERS, OP)
            for kw in range(KW):
                ow = w0 + kw
                part = by_h * _share(w, ow, fw, IW, CORNERS, OP)
                there = (oh < OH) & (ow < OW) & (part != 0)
                at = _inner(plane, d, oh, ow, c, C, OD, OH, OW, LAST)
                total += tl.where(there, _taken(grad + at, inside, LAST).to(OP) * part, 0.0)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


# --- with antialiasing ----------------------------------------------------------------------------------------------


@triton.jit
def _filter(u, KIND: tl.constexpr):
    """At distances in elements of the larger of source and result. KIND: 0 a triangle, 1 Keys' (a = -0.5), 2 Lanczos'
    (sinc(u) sinc(u / 3); C. Duchon, "Lanczos filtering in one and two dimensions", 1979)."""
    u = tl.abs(u)
    if KIND == 0:
        part = tl.maximum(1 - u, 0.0)
    elif KIND == 1:
        part = tl.where(u < 2, _keys(u, -0.5), 0.0)
    else:
        turn = tl.maximum(u, 1e-6) * 3.141592653589793
        waves = libdevice.sin(turn) * libdevice.sin(turn / 3) * 3 / (turn * turn)
        part = tl.where(u < 1e-6, 1.0, tl.where(u < 3, waves, 0.0))
    return part


@triton.jit
def _span(o, scale, support, size, OP: tl.constexpr):
    """Of the o-th of the result: its middle, and the first and behind the last element that it is made of."""
    middle = (o.to(OP) + 0.5) * scale
    low = tl.maximum((middle - support + 0.5).to(tl.int32), 0)
    return middle, low, tl.minimum((middle + support + 0.5).to(tl.int32), size)


@triton.jit
def filtered(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, K, scale, support, narrow,
    ALONG_W: tl.constexpr, KIND: tl.constexpr, NORMAL: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Along W or H, each element the weighted mean of those within ``support`` of it, at most K; not NORMAL: the sum.

    ``scale``: elements of the source for one of the result; ``narrow``: elements of the filter for one of the source.
    """
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _positions(first, strip, end, C, OD, OH, OW, LAST, R, L)
        middle, low, behind = _span(ow if ALONG_W else oh, scale, support, IW if ALONG_W else IH, OP)
        total = tl.zeros((R, L), OP)
        weights = middle * 0
        for k in range(K):
            i = low + k
            there = inside & (i < behind)
            part = tl.where(i < behind, _filter((i.to(OP) - middle + 0.5) * narrow, KIND), 0.0)
            at = _address(plane, od, oh if ALONG_W else i, i if ALONG_W else ow, c, C, ID, IH, IW, LAST)
            total += tl.load(x + at, mask=there, other=0.0).to(OP) * part
            weights += part
        if NORMAL:
            total = total / tl.where(weights != 0, weights, 1.0)
        at = _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def filtered_backward(
    grad, sums, out, rows, down, C, ID, IH, IW, OD, OH, OW, K, scale, support, narrow,
    ALONG_W: tl.constexpr, KIND: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x, of which each element is in at most K; ``sums``: of the weights of each of the result's."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        i = w if ALONG_W else h
        outs = OW if ALONG_W else OH
        soonest = (i.to(OP) + 0.5 - support) / tl.maximum(scale, 1e-30) - 0.5
        start = tl.maximum(tl.minimum(tl.maximum(soonest, 0.0), 1e9).to(tl.int32) - 1, 0)
        total = tl.zeros((R, L), OP)
        for k in range(K):
            o = start + k
            middle, low, behind = _span(o, scale, support, IW if ALONG_W else IH, OP)
            there = inside & (o < outs) & (i >= low) & (i < behind)
            part = _filter((i.to(OP) - middle + 0.5) * narrow, KIND)
            weights = tl.load(sums + o, mask=there, other=1.0).to(OP)
            at = _address(plane, d, h if ALONG_W else o, o if ALONG_W else w, c, C, OD, OH, OW, LAST)
            total += tl.load(grad + at, mask=there, other=0.0).to(OP) * (part / weights)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)
