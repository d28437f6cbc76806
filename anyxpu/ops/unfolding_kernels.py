"""Columns of images (im2col) and images of columns (col2im), in Triton.

An image is ``(N * C, H, W)``; its columns are ``(N * C, K, OH, OW)``, K being a window's KH x KW elements and OH x OW
the windows. Programs are those of ``window_kernels.py``. An image is gathered from its columns, so that no two programs
write one element.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.window_kernels import _positions, _rows


@triton.jit
def im2col(
    x, out, rows, down, C, ID, H, W, K, OH, OW, KW, step_h, step_w, pad_h, pad_w, apart_h, apart_w,
    NEXT: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Each window's elements; those of the padding are zeros. NEXT: windows of a row are one element apart."""
    begin, end, strip = _rows(rows, down, C, OW, LAST, L)
    for first in range(begin, end, R):
        plane, k, oh, ow, _, inside = _positions(first, strip, end, C, K, OH, OW, LAST, R, L)
        h = oh * step_h - pad_h + (k // KW) * apart_h
        w = (ow if NEXT else ow * step_w) - pad_w + (k % KW) * apart_w
        there = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        value = tl.load(x + (plane * H + h) * W + w, mask=there, other=0)
        tl.store(out + ((plane * K + k) * OH + oh) * OW + ow, value, mask=inside)


@triton.jit
def col2im(
    columns, out, rows, down, C, ID, H, W, K, OH, OW, KH, KW, step_h, step_w, pad_h, pad_w, apart_h, apart_w,
    NEXT: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """To each element of the image, the sum of where it is in windows."""
    begin, end, strip = _rows(rows, down, C, W, LAST, L)
    for first in range(begin, end, R):
        plane, _d, h, w, _, inside = _positions(first, strip, end, C, 1, H, W, LAST, R, L)
        total = tl.zeros((R, L), OP)
        for kh in range(KH):
            from_h = h + pad_h - kh * apart_h
            oh = from_h // step_h
            in_h = inside & (from_h >= 0) & (from_h % step_h == 0) & (oh < OH)
            for kw in range(KW):
                from_w = w + pad_w - kw * apart_w
                ow = from_w if NEXT else from_w // step_w
                there = in_h & (from_w >= 0) & (ow < OW)
                if not NEXT:
                    there = there & (from_w % step_w == 0)
                at = ((plane * K + kh * KW + kw) * OH + oh) * OW + ow
                total += tl.load(columns + at, mask=there, other=0.0).to(OP)
        tl.store(out + (plane * H + h) * W + w, total.to(out.dtype.element_ty), mask=inside)
