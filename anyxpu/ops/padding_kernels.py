"""Padding by mirrored and by repeated elements, and the gradients of these, in Triton.

Memory and programs are those of ``window_kernels.py``. Gradients are gathered: an element of the source sums the places
that took it, and no two programs write one element.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.window_kernels import _address, _places, _positions, _rows, _taken


@triton.jit
def _origin(o, before, size, REFLECT: tl.constexpr):
    """Which of ``size`` elements the o-th place shows, ``before`` places being before the first."""
    i = o - before
    if REFLECT:
        i = tl.where(i < 0, -i, i)
        i = tl.where(i >= size, 2 * (size - 1) - i, i)
    else:
        i = tl.minimum(tl.maximum(i, 0), size - 1)
    return i


@triton.jit
def pad(
    x, out, rows, down, C, ID, IH, IW, OD, OH, OW, before_d, before_h, before_w,
    REFLECT: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Each element of the result from the one that it shows; REFLECT: mirrored at the edges, else the edge's."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, od, oh, ow, c, inside = _places(first, strip, end, C, OD, OH, OW, LAST, R, L)
        d = _origin(od, before_d, ID, REFLECT)
        h = _origin(oh, before_h, IH, REFLECT)
        w = _origin(ow, before_w, IW, REFLECT)
        value = _taken(x + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), inside, LAST)
        tl.store(out + _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST), value, mask=inside)


@triton.jit
def pad_rows(
    x, out, rows, down, ID, IH, IW, OD, OH, OW, before_d, before_h, before_w,
    REFLECT: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """:func:`pad` where W is the fastest: ``down`` rows a program, their inner part L at once, their edges singly."""
    first = tl.program_id(0) * down
    left, right = tl.maximum(before_w, 0), tl.minimum(before_w + IW, OW)
    oh = first % OH
    od = first // OH % OD
    plane = first // OH // OD
    for row in range(first, tl.minimum(first + down, rows)):
        h, d = _origin(oh, before_h, IH, REFLECT), _origin(od, before_d, ID, REFLECT)
        source = x + ((plane * ID + d) * IH + h) * IW
        target = out + row * OW
        for start in range(left, right, L):
            lane = start + tl.arange(0, L)
            tl.store(target + lane, tl.load(source + (lane - before_w), mask=lane < right), mask=lane < right)
        for o in range(tl.minimum(left, OW)):
            tl.store(target + o, tl.load(source + _origin(o, before_w, IW, REFLECT)))
        for o in range(tl.maximum(right, 0), OW):
            tl.store(target + o, tl.load(source + _origin(o, before_w, IW, REFLECT)))
        oh += 1
        if oh == OH:
            oh = 0
            od += 1
            if od == OD:
                od = 0
                plane += 1


@triton.jit
def _image(i, before, size, outs, k: tl.constexpr):
    """The place that shows the i-th element itself (k = 0), mirrored at the first (1) or at the last (2), if any."""
    if k == 0:
        o = i + before
        there = i >= 0
    elif k == 1:
        o = before - i
        there = i > 0
    else:
        o = before + 2 * (size - 1) - i
        there = i < size - 1
    return o, there & (o >= 0) & (o < outs)


@triton.jit
def reflection_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, before_d, before_h, before_w,
    DIMS: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x: padding being smaller than it, three places at most show an element in each dimension."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        total = tl.zeros((R, L), OP)
        for kd in tl.static_range(3 if DIMS > 2 else 1):
            od, in_d = _image(d, before_d, ID, OD, kd)
            for kh in tl.static_range(3 if DIMS > 1 else 1):
                oh, in_h = _image(h, before_h, IH, OH, kh)
                for kw in tl.static_range(3):
                    ow, in_w = _image(w, before_w, IW, OW, kw)
                    there = inside & in_d & in_h & in_w
                    value = tl.load(grad + _address(plane, od, oh, ow, c, C, OD, OH, OW, LAST), mask=there, other=0.0)
                    total += value.to(OP)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _run(i, before, size, outs):
    """The first place that shows the i-th element and how many do: all beyond the edge, where it is the edge's."""
    low = tl.maximum(tl.where(i == 0, 0, i + before), 0)
    high = tl.minimum(tl.where(i == size - 1, outs - 1, i + before), outs - 1)
    return low, high - low + 1


@triton.jit
def replication_backward(
    grad, out, rows, down, C, ID, IH, IW, OD, OH, OW, before_d, before_h, before_w,
    OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of x. Only programs at an edge go through more than one place in its dimension."""
    begin, end, strip = _rows(rows, down, C, IW, LAST, L)
    for first in range(begin, end, R):
        plane, d, h, w, c, inside = _positions(first, strip, end, C, ID, IH, IW, LAST, R, L)
        low_d, count_d = _run(d, before_d, ID, OD)
        low_h, count_h = _run(h, before_h, IH, OH)
        low_w, count_w = _run(w, before_w, IW, OW)
        total = tl.zeros((R, L), OP)
        for kd in range(tl.max(count_d)):
            for kh in range(tl.max(count_h)):
                for kw in range(tl.max(count_w)):
                    there = inside & (kd < count_d) & (kh < count_h) & (kw < count_w)
                    at = _address(plane, low_d + kd, low_h + kh, low_w + kw, c, C, OD, OH, OW, LAST)
                    total += tl.load(grad + at, mask=there, other=0.0).to(OP)
        tl.store(out + _address(plane, d, h, w, c, C, ID, IH, IW, LAST), total.to(out.dtype.element_ty), mask=inside)
