"""Regions of interest in Triton, a lane for each element of what is pooled: the operators of torchvision's detectors.

``rois (K, 5)``: an image's number, and left, top, right and bottom. Elements are counted over ``(K, CO, PH, PW)``.
Sources: Girshick, "Fast R-CNN", 2015 (the largest of a bin); He et al., "Mask R-CNN", 2017 (samples of a bin, between
pixels); Dai et al., "R-FCN", 2016 (a channel for each bin).
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _place(N, CO, PH, PW, EACH: tl.constexpr, L: tl.constexpr):
    """Of each lane: its element, whether there is one, its region, the channel that it reads, its bin."""
    at = tl.program_id(0) * L + tl.arange(0, L)
    inside = at < N
    pw, ph = at % PW, (at // PW) % PH
    c, k = (at // (PW * PH)) % CO, at // (PW * PH * CO)
    if EACH:
        c = (c * PH + ph) * PW + pw
    return at, inside, k, c, ph, pw


@triton.jit
def _whole(value):
    """As an integer; what is beyond 2**24, infinite or no number becomes one of those far outside every image."""
    return tl.minimum(tl.maximum(value.to(tl.float32), -16777216.0), 16777216.0).to(tl.int32)


@triton.jit
def _plane(rois, k, c, inside, IMAGES, C, H, W):
    """Where the image's plane begins, in elements, and whether there is such an image."""
    image = _whole(tl.load(rois + k * 5, mask=inside, other=0))
    inside = inside & (image >= 0) & (image < IMAGES)
    return (tl.where(inside, image, 0).to(tl.int64) * C + c) * H * W, inside


@triton.jit
def _span(rois, k, low: tl.constexpr, p, P, inside, GRID, SCALE, SHIFT, LEAST: tl.constexpr, OP: tl.constexpr):
    """Along an axis: where a bin begins, how long it is, how many samples are taken of it."""
    first = rois + k * 5 + low
    begin = tl.load(first, mask=inside, other=0).to(OP) * SCALE - SHIFT
    length = tl.load(first + 2, mask=inside, other=0).to(OP) * SCALE - SHIFT - begin
    if LEAST:
        length = tl.maximum(length, 1.0)
    each = length / P
    # Of a region without an end no samples are taken: nothing would come to theirs.
    samples = tl.where(GRID > 0, GRID, _whole(libdevice.ceil(tl.where(tl.abs(each) < 1e6, each, 0.0))))
    return begin + p * each, each, tl.where(inside, samples, 0)


@triton.jit
def _between(place, size):
    """The two pixels that a place lies between, the share of the second, and whether it is near the image."""
    near = (place >= -1.0) & (place <= size)
    place = tl.where(near, tl.maximum(place, 0.0), 0.0)
    low = place.to(tl.int32)
    last = low >= size - 1
    low = tl.where(last, size - 1, low)
    return low, tl.where(last, low, low + 1), tl.where(last, 0.0, place - low), near


@triton.jit
def _bin(rois, PH, PW, BLOCKS, IMAGES, C, H, W, GRID, SCALE, SHIFT, LEAST: tl.constexpr, OP: tl.constexpr,
         L: tl.constexpr):  # fmt: skip
    """What a program of all channels of one bin needs to know, and where its samples lie."""
    block, at = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    pw, ph, k = at % PW, (at // PW) % PH, at // (PW * PH)
    lane = block * L + tl.arange(0, L)
    image = _whole(tl.load(rois + k * 5))
    there = (image >= 0) & (image < IMAGES)
    first = tl.where(there, image, 0).to(tl.int64) * H * W * C
    top, high, rows = _span(rois, k, 2, ph, PH, there, GRID, SCALE, SHIFT, LEAST, OP)
    left, wide, columns = _span(rois, k, 1, pw, PW, there, GRID, SCALE, SHIFT, LEAST, OP)
    element = (k.to(tl.int64) * C + lane) * (PH * PW) + ph * PW + pw
    return lane, lane < C, first, element, top, high, rows, left, wide, columns


@triton.jit
def channels(
    x, rois, out, C, PH, PW, BLOCKS, IMAGES, H, W, GRID, SCALE, SHIFT,
    LEAST: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Means of samples between pixels, of all channels of a bin by a program: ``x (N, H, W, C)``.

    ``LEAST``: regions are a pixel long at least. Grid: bins x blocks of channels, those first.
    """
    lane, inside, first, element, top, high, rows, left, wide, columns = _bin(
        rois, PH, PW, BLOCKS, IMAGES, C, H, W, GRID, SCALE, SHIFT, LEAST, OP, L
    )
    total = tl.zeros((L,), OP)
    for i in range(rows):
        y, y_next, y_share, y_near = _between(top + (i + 0.5) * high / rows, H)
        for j in range(columns):
            x_, x_next, x_share, x_near = _between(left + (j + 0.5) * wide / columns, W)
            if y_near & x_near:
                upper, lower = x + first + y * W * C + lane, x + first + y_next * W * C + lane
                a = tl.load(upper + x_ * C, mask=inside, other=0).to(OP)
                b = tl.load(upper + x_next * C, mask=inside, other=0).to(OP)
                c = tl.load(lower + x_ * C, mask=inside, other=0).to(OP)
                d = tl.load(lower + x_next * C, mask=inside, other=0).to(OP)
                above, below = a + (b - a) * x_share, c + (d - c) * x_share
                total += above + (below - above) * y_share
    tl.store(out + element, total / tl.maximum(rows * columns, 1), mask=inside)


@triton.jit
def channels_backward(
    grad, rois, out, C, PH, PW, BLOCKS, IMAGES, H, W, GRID, SCALE, SHIFT,
    LEAST: tl.constexpr, OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of :func:`channels`, added to ``out (N, H, W, C)`` of OP."""
    lane, inside, first, element, top, high, rows, left, wide, columns = _bin(
        rois, PH, PW, BLOCKS, IMAGES, C, H, W, GRID, SCALE, SHIFT, LEAST, OP, L
    )
    share = tl.load(grad + element, mask=inside, other=0).to(OP) / tl.maximum(rows * columns, 1)
    for i in range(rows):
        y, y_next, y_share, y_near = _between(top + (i + 0.5) * high / rows, H)
        for j in range(columns):
            x_, x_next, x_share, x_near = _between(left + (j + 0.5) * wide / columns, W)
            if y_near & x_near:
                upper, lower = out + first + y * W * C + lane, out + first + y_next * W * C + lane
                above, below = share * (1.0 - y_share), share * y_share
                tl.atomic_add(upper + x_ * C, above * (1.0 - x_share), mask=inside)
                tl.atomic_add(upper + x_next * C, above * x_share, mask=inside)
                tl.atomic_add(lower + x_ * C, below * (1.0 - x_share), mask=inside)
                tl.atomic_add(lower + x_next * C, below * x_share, mask=inside)


@triton.jit
def align(
    x, rois, out, N, CO, PH, PW, IMAGES, C, H, W, GRID, SCALE, SHIFT,
    OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Means of samples between pixels, each bin of its own channel; of no sample, NaN as torchvision's."""
    at, inside, k, c, ph, pw = _place(N, CO, PH, PW, True, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    top, high, rows = _span(rois, k, 2, ph, PH, there, GRID, SCALE, SHIFT, False, OP)
    left, wide, columns = _span(rois, k, 1, pw, PW, there, GRID, SCALE, SHIFT, False, OP)
    total = tl.zeros((L,), OP)
    for i in range(tl.max(rows, 0)):
        y, y_next, y_share, y_near = _between(top + (i + 0.5) * high / rows, H)
        for j in range(tl.max(columns, 0)):
            x_, x_next, x_share, x_near = _between(left + (j + 0.5) * wide / columns, W)
            taken = there & (i < rows) & (j < columns) & y_near & x_near
            a = tl.load(x + plane + y * W + x_, mask=taken, other=0).to(OP)
            b = tl.load(x + plane + y * W + x_next, mask=taken, other=0).to(OP)
            c_ = tl.load(x + plane + y_next * W + x_, mask=taken, other=0).to(OP)
            d = tl.load(x + plane + y_next * W + x_next, mask=taken, other=0).to(OP)
            upper, lower = a + (b - a) * x_share, c_ + (d - c_) * x_share
            total += tl.where(taken, upper + (lower - upper) * y_share, 0.0)
    tl.store(out + at, tl.where(there, total / (rows * columns), 0.0), mask=inside)


@triton.jit
def align_backward(
    grad, rois, out, N, CO, PH, PW, IMAGES, C, H, W, GRID, SCALE, SHIFT,
    OP: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The gradient of :func:`align`, added to ``out`` of OP."""
    at, inside, k, c, ph, pw = _place(N, CO, PH, PW, True, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    top, high, rows = _span(rois, k, 2, ph, PH, there, GRID, SCALE, SHIFT, False, OP)
    left, wide, columns = _span(rois, k, 1, pw, PW, there, GRID, SCALE, SHIFT, False, OP)
    share = tl.load(grad + at, mask=inside, other=0).to(OP) / tl.maximum(rows * columns, 1)
    for i in range(tl.max(rows, 0)):
        y, y_next, y_share, y_near = _between(top + (i + 0.5) * high / rows, H)
        for j in range(tl.max(columns, 0)):
            x_, x_next, x_share, x_near = _between(left + (j + 0.5) * wide / columns, W)
            taken = there & (i < rows) & (j < columns) & y_near & x_near
            upper, lower = share * (1.0 - y_share), share * y_share
            first = out + plane
            tl.atomic_add(first + y * W + x_, upper * (1.0 - x_share), mask=taken)
            tl.atomic_add(first + y * W + x_next, upper * x_share, mask=taken)
            tl.atomic_add(first + y_next * W + x_, lower * (1.0 - x_share), mask=taken)
            tl.atomic_add(first + y_next * W + x_next, lower * x_share, mask=taken)


@triton.jit
def _nearest(value):
    """The nearest whole number; of two, the one farther from 0."""
    return _whole(tl.where(value < 0, libdevice.ceil(value - 0.5), libdevice.floor(value + 0.5)))


@triton.jit
def _range(rois, k, low: tl.constexpr, p, P, inside, MOST, SCALE, LAST: tl.constexpr, OP: tl.constexpr):
    """Along an axis, the pixels of a bin, from the first to before the second."""
    first = rois + k * 5 + low
    begin = _nearest(tl.load(first, mask=inside, other=0).to(OP) * SCALE)
    end = _nearest(tl.load(first + 2, mask=inside, other=0).to(OP) * SCALE)
    each = tl.maximum(end - begin + LAST, 1).to(OP) / P
    lower = libdevice.floor(p * each).to(tl.int32) + begin
    upper = libdevice.ceil((p + 1) * each).to(tl.int32) + begin
    return tl.minimum(tl.maximum(lower, 0), MOST), tl.minimum(tl.maximum(upper, 0), MOST)


@triton.jit
def pool(
    x, rois, out, where, N, CO, PH, PW, IMAGES, C, H, W, SCALE, OP: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """The largest of each bin and where it is in its plane, -1 where the bin is empty."""
    at, inside, k, c, ph, pw = _place(N, CO, PH, PW, False, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    top, bottom = _range(rois, k, 2, ph, PH, there, H, SCALE, 1, OP)
    left, right = _range(rois, k, 1, pw, PW, there, W, SCALE, 1, OP)
    empty = (bottom <= top) | (right <= left) | (there == 0)
    most = tl.where(empty, 0.0, tl.full((L,), -3.4028234663852886e38, OP))
    found = tl.full((L,), -1, tl.int32)
    for i in range(tl.max(tl.where(empty, 0, bottom - top), 0)):
        for j in range(tl.max(tl.where(empty, 0, right - left), 0)):
            taken = (empty == 0) & (top + i < bottom) & (left + j < right)
            pixel = (top + i) * W + left + j
            value = tl.load(x + plane + pixel, mask=taken, other=float("-inf")).to(OP)
            larger = taken & (value > most)
            most, found = tl.where(larger, value, most), tl.where(larger, pixel, found)
    tl.store(out + at, most, mask=inside)
    tl.store(where + at, found, mask=inside)


@triton.jit
def pool_backward(
    grad, rois, where, out, N, CO, PH, PW, IMAGES, C, H, W, OP: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """The gradient of :func:`pool`, added to ``out`` of OP."""
    at, inside, k, c, _, _ = _place(N, CO, PH, PW, False, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    pixel = tl.load(where + at, mask=inside, other=-1)
    there = there & (pixel >= 0) & (pixel < H * W)
    tl.atomic_add(out + plane + pixel, tl.load(grad + at, mask=there, other=0).to(OP), mask=there)


@triton.jit
def mean(
    x, rois, out, N, CO, PH, PW, IMAGES, C, H, W, SCALE, OP: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """The mean of each bin's pixels, in the bin's own channel; an image's last row and column are in no bin."""
    at, inside, k, c, ph, pw = _place(N, CO, PH, PW, True, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    top, bottom = _range(rois, k, 2, ph, PH, there, H - 1, SCALE, 0, OP)
    left, right = _range(rois, k, 1, pw, PW, there, W - 1, SCALE, 0, OP)
    rows = tl.where(there, tl.maximum(bottom - top, 0), 0)
    columns = tl.where(there, tl.maximum(right - left, 0), 0)
    total = tl.zeros((L,), OP)
    for i in range(tl.max(rows, 0)):
        for j in range(tl.max(columns, 0)):
            taken = there & (i < rows) & (j < columns)
            total += tl.load(x + plane + (top + i) * W + left + j, mask=taken, other=0).to(OP)
    tl.store(out + at, total / tl.maximum(rows * columns, 1), mask=inside)


@triton.jit
def mean_backward(
    grad, rois, out, N, CO, PH, PW, IMAGES, C, H, W, SCALE, OP: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """torchvision's gradient of :func:`mean`, which leaves out nothing of an image; added to ``out`` of OP."""
    at, inside, k, c, ph, pw = _place(N, CO, PH, PW, True, L)
    plane, there = _plane(rois, k, c, inside, IMAGES, C, H, W)
    top, bottom = _range(rois, k, 2, ph, PH, there, H, SCALE, 0, OP)
    left, right = _range(rois, k, 1, pw, PW, there, W, SCALE, 0, OP)
    rows = tl.where(there, tl.maximum(bottom - top, 0), 0)
    columns = tl.where(there, tl.maximum(right - left, 0), 0)
    share = tl.load(grad + at, mask=inside, other=0).to(OP) / tl.maximum(rows * columns, 1)
    for i in range(tl.max(rows, 0)):
        for j in range(tl.max(columns, 0)):
            taken = there & (i < rows) & (j < columns)
            tl.atomic_add(out + plane + (top + i) * W + left + j, share, mask=taken)


@triton.jit
def overlaps(boxes, out, N, WORDS, MOST, OP: tl.constexpr, R: tl.constexpr):
    """Of each box a bit for each later one that it covers more of than MOST. Grid: rows x words, words first.

    ``boxes (N, 4)``: left, top, right, bottom. ``out (N, WORDS)``: 64 bits each. Covered is the share that both have
    of what either has.
    """
    word, rows = tl.program_id(0) % WORDS, tl.program_id(0) // WORDS * R + tl.arange(0, R)
    bit = tl.arange(0, 64)
    columns = word * 64 + bit
    a, b = boxes + rows * 4, boxes + columns * 4
    row, column = rows < N, columns < N
    left, top = tl.load(a, mask=row, other=0).to(OP), tl.load(a + 1, mask=row, other=0).to(OP)
    right, bottom = tl.load(a + 2, mask=row, other=0).to(OP), tl.load(a + 3, mask=row, other=0).to(OP)
    left_, top_ = tl.load(b, mask=column, other=0).to(OP), tl.load(b + 1, mask=column, other=0).to(OP)
    right_, bottom_ = tl.load(b + 2, mask=column, other=0).to(OP), tl.load(b + 3, mask=column, other=0).to(OP)
    wide = tl.minimum(right[:, None], right_[None, :]) - tl.maximum(left[:, None], left_[None, :])
    high = tl.minimum(bottom[:, None], bottom_[None, :]) - tl.maximum(top[:, None], top_[None, :])
    both = tl.maximum(wide, 0.0) * tl.maximum(high, 0.0)
    either = ((right - left) * (bottom - top))[:, None] + ((right_ - left_) * (bottom_ - top_))[None, :] - both
    covers = (both / either > MOST) & (columns[None, :] > rows[:, None]) & column[None, :]
    bits = tl.sum(tl.where(covers, (tl.full((64,), 1, tl.int64) << bit)[None, :], 0), axis=1)
    tl.store(out + rows.to(tl.int64) * WORDS + word, bits, mask=row)


@triton.jit
def keep(bits, out, N, WORDS, L: tl.constexpr):
    """Which boxes no kept one before them covers. One program: what is kept depends on what was."""
    lane = tl.arange(0, L)
    covered = tl.zeros((L,), tl.int64)
    for word in range(WORDS):
        here = tl.sum(tl.where(lane == word, covered, 0), 0)
        for bit in range(tl.minimum(64, N - word * 64)):
            box = word * 64 + bit
            row = bits + tl.cast(box, tl.int64) * WORDS
            kept = ((here >> bit) & 1) == 0
            tl.store(out + box, kept)
            if kept:
                here |= tl.load(row + word)
                covered |= tl.load(row + lane, mask=lane < WORDS, other=0)
