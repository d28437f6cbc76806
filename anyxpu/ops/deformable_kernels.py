"""Deformable convolutions in Triton: windows whose pixels lie where offsets say, between pixels.

``offset (N, 2 * groups * KH * KW, OH, OW)``: of each window's pixel how far down and right it is moved; ``mask (N,
groups * KH * KW, OH, OW)``: what it is multiplied with. Columns are ``(C * KH * KW, N * OH * OW)``.
Sources: Dai et al., "Deformable Convolutional Networks", 2017; Zhu et al., "Deformable ConvNets v2", 2019.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _moved(
    offset, mask, n, group, tap, p, y, x, inside, KW, GROUPS, TAPS, POINTS, SY, SX, PY, PX, DY, DX,
    MASKED: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """Where a window's pixel lies, what it is multiplied with, and the places of its offset and its factor."""
    pair = ((n * GROUPS + group).to(tl.int64) * (2 * TAPS) + 2 * tap) * POINTS + p
    single = ((n * GROUPS + group).to(tl.int64) * TAPS + tap) * POINTS + p
    down = tl.load(offset + pair, mask=inside, other=0).to(OP)
    right = tl.load(offset + pair + POINTS, mask=inside, other=0).to(OP)
    factor = tl.full(down.shape, 1.0, OP)
    if MASKED:
        factor = tl.load(mask + single, mask=inside, other=0).to(OP)
    place_y = (y * SY - PY + (tap // KW) * DY) + down
    place_x = (x * SX - PX + (tap % KW) * DX) + right
    return place_y, place_x, factor, pair, single


@triton.jit
def _corners(y, x, H, W):
    """Around a place: the upper left pixel, how far beyond it the place is, and which of the four are in the image."""
    # Far outside nothing is in the image, whatever the number is cut to.
    top, left = (
        libdevice.floor(tl.minimum(tl.maximum(y, -4.0), H + 4.0)),
        libdevice.floor(tl.minimum(tl.maximum(x, -4.0), W + 4.0)),
    )
    i, j = top.to(tl.int32), left.to(tl.int32)
    upper, lower = (i >= 0) & (i < H), (i + 1 >= 0) & (i + 1 < H)
    before, after = (j >= 0) & (j < W), (j + 1 >= 0) & (j + 1 < W)
    return i, j, y - top, x - left, upper & before, upper & after, lower & before, lower & after


@triton.jit
def _four(x, i, j, W, inside, a, b, c, d, OP: tl.constexpr):
    first = x + i * W + j
    return (
        tl.load(first, mask=inside & a, other=0).to(OP),
        tl.load(first + 1, mask=inside & b, other=0).to(OP),
        tl.load(first + W, mask=inside & c, other=0).to(OP),
        tl.load(first + W + 1, mask=inside & d, other=0).to(OP),
    )


@triton.jit
def _element(
    offset, mask, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX,
    MASKED: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Of each lane the column's element, whether there is one, its plane, its place, whether that is near the image."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < COUNT
    points = OH * OW
    p, n = at % points, (at // points) % N
    tap, c = (at // (points * N)) % TAPS, at // (points * N * TAPS)
    group = c // (C // GROUPS)
    place_y, place_x, factor, _, _ = _moved(
        offset, mask, n, group, tap, p, p // OW, p % OW, inside, KW, GROUPS, TAPS, points, SY, SX, PY, PX, DY, DX,
        MASKED, OP,
    )  # fmt: skip
    near = inside & (place_y > -1.0) & (place_x > -1.0) & (place_y < H) & (place_x < W)
    return at, inside, n * C + c, place_y, place_x, factor, near


@triton.jit
def columns(
    x, offset, mask, out, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX,
    MASKED: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Every window's pixels. Elements are counted as ``out`` has them."""
    at, inside, plane, place_y, place_x, factor, near = _element(
        offset, mask, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX, MASKED, OP, L
    )
    i, j, fy, fx, a, b, c_, d = _corners(place_y, place_x, H, W)
    v1, v2, v3, v4 = _four(x + plane.to(tl.int64) * H * W, i, j, W, near, a, b, c_, d, OP)
    upper, lower = v1 * (1.0 - fx) + v2 * fx, v3 * (1.0 - fx) + v4 * fx
    value = upper * (1.0 - fy) + lower * fy
    tl.store(out + at, factor * tl.where(near, value, 0.0), mask=inside)


@triton.jit
def spread(
    grad, offset, mask, out, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX,
    MASKED: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of :func:`columns` to the image, added to ``out (N, C, H, W)`` of OP."""
    at, inside, plane, place_y, place_x, factor, near = _element(
        offset, mask, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX, MASKED, OP, L
    )
    i, j, fy, fx, a, b, c_, d = _corners(place_y, place_x, H, W)
    share = tl.load(grad + at, mask=inside, other=0).to(OP) * factor
    first = out + plane.to(tl.int64) * H * W + i * W + j
    upper, lower = share * (1.0 - fy), share * fy
    tl.atomic_add(first, upper * (1.0 - fx), mask=near & a)
    tl.atomic_add(first + 1, upper * fx, mask=near & b)
    tl.atomic_add(first + W, lower * (1.0 - fx), mask=near & c_)
    tl.atomic_add(first + W + 1, lower * fx, mask=near & d)


@triton.jit
def moves(
    grad, x, offset, mask, to_offset, to_mask, COUNT, N, C, H, W, KW, TAPS, OH, OW, GROUPS, SY, SX, PY, PX, DY, DX,
    MASKED: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradients of :func:`columns` to the offsets and factors. Elements are counted as factors are."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < COUNT
    points = OH * OW
    p, tap = at % points, (at // points) % TAPS
    group, n = (at // (points * TAPS)) % GROUPS, at // (points * TAPS * GROUPS)
    place_y, place_x, factor, pair, single = _moved(
        offset, mask, n, group, tap, p, p // OW, p % OW, inside, KW, GROUPS, TAPS, points, SY, SX, PY, PX, DY, DX,
        MASKED, OP,
    )  # fmt: skip
    near = (place_y > -1.0) & (place_x > -1.0) & (place_y < H) & (place_x < W)
    i, j, fy, fx, a, b, c_, d = _corners(place_y, place_x, H, W)
    each = C // GROUPS
    down, right, times = tl.zeros((L,), OP), tl.zeros((L,), OP), tl.zeros((L,), OP)
    for channel in range(each):
        c = group * each + channel
        plane = x + (n * C + c).to(tl.int64) * H * W
        v1, v2, v3, v4 = _four(plane, i, j, W, inside, a, b, c_, d, OP)
        column = ((c * TAPS + tap).to(tl.int64) * N + n) * points + p
        share = tl.load(grad + column, mask=inside, other=0).to(OP)
        down += share * ((v3 - v1) * (1.0 - fx) + (v4 - v2) * fx)
        right += share * ((v2 - v1) * (1.0 - fy) + (v4 - v3) * fy)
        upper, lower = v1 * (1.0 - fx) + v2 * fx, v3 * (1.0 - fx) + v4 * fx
        times += tl.where(near, share * (upper * (1.0 - fy) + lower * fy), 0.0)
    tl.store(to_offset + pair, down * factor, mask=inside)
    tl.store(to_offset + pair + points, right * factor, mask=inside)
    if MASKED:
        tl.store(to_mask + single, times, mask=inside)
