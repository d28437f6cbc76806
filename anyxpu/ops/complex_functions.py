"""What operators compute of one complex number or two, part by part, in Triton: ``_re`` and ``_im`` of each function.

Operands are the real and imaginary parts, in the type that is computed in. Quotients are c10::complex's (Smith's
method, as NumPy has it), square roots Kahan's ("Branch cuts for complex elementary functions", 1987).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

_FAR = tl.constexpr(20.0)  # from here on tanh is 1 in float64 too


@triton.jit
def mul_re(a, b, c, d):
    return a * c - b * d


@triton.jit
def mul_im(a, b, c, d):
    return a * d + b * c


@triton.jit
def _smith(c, d):
    """Whether c is the larger part, the ratio of the smaller to it, and 1 over what they divide by."""
    first = libdevice.abs(c) >= libdevice.abs(d)
    ratio = tl.where(first, d / c, c / d)
    return first, ratio, 1.0 / tl.where(first, c + d * ratio, c * ratio + d)


@triton.jit
def div_re(a, b, c, d):
    first, ratio, scale = _smith(c, d)
    zero = (c == 0) & (d == 0)
    return tl.where(zero, a / libdevice.abs(c), tl.where(first, a + b * ratio, a * ratio + b) * scale)


@triton.jit
def div_im(a, b, c, d):
    first, ratio, scale = _smith(c, d)
    zero = (c == 0) & (d == 0)
    return tl.where(zero, b / libdevice.abs(d), tl.where(first, b - a * ratio, b * ratio - a) * scale)


@triton.jit
def reciprocal_re(a, b):
    first, ratio, scale = _smith(a, b)
    return tl.where(first, 1.0, ratio) * scale


@triton.jit
def reciprocal_im(a, b):
    first, ratio, scale = _smith(a, b)
    return tl.where(first, 0.0 - ratio, -1.0) * scale


@triton.jit
def exp_re(a, b):
    return tl.where(b == 0, libdevice.exp(a), libdevice.exp(a) * libdevice.cos(b))


@triton.jit
def exp_im(a, b):
    return tl.where(b == 0, b, libdevice.exp(a) * libdevice.sin(b))


@triton.jit
def log_re(a, b):
    return libdevice.log(libdevice.hypot(a, b))


@triton.jit
def log_im(a, b):
    return libdevice.atan2(b, a)


@triton.jit
def _half_root(a, b):
    """The larger part of the root. Halves first, so that no sum overflows."""
    return libdevice.sqrt(libdevice.abs(a) * 0.5 + libdevice.hypot(a, b) * 0.5)


@triton.jit
def sqrt_re(a, b):
    root = _half_root(a, b)
    other = libdevice.abs(b) / (2 * root)
    value = tl.where(a >= 0, root, tl.where(root == 0, 0.0, other))
    return tl.where(libdevice.isinf(b) != 0, libdevice.abs(b), value)


@triton.jit
def sqrt_im(a, b):
    root = _half_root(a, b)
    value = tl.where(a >= 0, tl.where(root == 0, b, b / (2 * root)), libdevice.copysign(root, b))
    return tl.where(libdevice.isinf(b) != 0, b, value)


@triton.jit
def sin_re(a, b):
    return libdevice.sin(a) * libdevice.cosh(b)


@triton.jit
def sin_im(a, b):
    return libdevice.cos(a) * libdevice.sinh(b)


@triton.jit
def cos_re(a, b):
    return libdevice.cos(a) * libdevice.cosh(b)


@triton.jit
def cos_im(a, b):
    return 0.0 - libdevice.sin(a) * libdevice.sinh(b)


@triton.jit
def sinh_re(a, b):
    return libdevice.sinh(a) * libdevice.cos(b)


@triton.jit
def sinh_im(a, b):
    return libdevice.cosh(a) * libdevice.sin(b)


@triton.jit
def cosh_re(a, b):
    return libdevice.cosh(a) * libdevice.cos(b)


@triton.jit
def cosh_im(a, b):
    return libdevice.sinh(a) * libdevice.sin(b)


@triton.jit
def tanh_re(a, b):
    near = tl.where(libdevice.abs(a) > _FAR, 0.0, a)
    value = libdevice.sinh(2 * near) / (libdevice.cosh(2 * near) + libdevice.cos(2 * b))
    return tl.where(libdevice.abs(a) > _FAR, libdevice.copysign(a * 0 + 1, a), value)


@triton.jit
def tanh_im(a, b):
    near = tl.where(libdevice.abs(a) > _FAR, 0.0, a)
    value = libdevice.sin(2 * b) / (libdevice.cosh(2 * near) + libdevice.cos(2 * b))
    far = 2 * libdevice.sin(2 * b) * libdevice.exp(-2 * libdevice.abs(a))
    return tl.where(libdevice.abs(a) > _FAR, far, value)


@triton.jit
def tan_re(a, b):
    # tan z = -i tanh(iz), and iz is (-b, a).
    return tanh_im(0.0 - b, a)


@triton.jit
def tan_im(a, b):
    return 0.0 - tanh_re(0.0 - b, a)


@triton.jit
def sgn_re(a, b):
    length = libdevice.hypot(a, b)
    return tl.where(length == 0, 0.0, a / length)


@triton.jit
def sgn_im(a, b):
    length = libdevice.hypot(a, b)
    return tl.where(length == 0, 0.0, b / length)
