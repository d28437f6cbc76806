"""What operators compute of one complex number or two, in Triton: ``_re`` and ``_im`` of each function, and ``_pair``.

Operands of the first two are the real and imaginary parts, in the type that is computed in. Those of the last, and its
result, are integers that hold both parts, the real one in their lower half: int64 of float32, int32 of float16.
Quotients are c10::complex's (Smith's method, as NumPy has it), square roots Kahan's ("Branch cuts for complex
elementary functions", 1987).
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


# --- both parts at once ---------------------------------------------------------------------------------------------


@triton.jit
def _parts(pair):
    if pair.dtype == tl.int64:
        real = pair.to(tl.int32).to(tl.float32, bitcast=True)
        return real, (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        real = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return real, (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _joined(real, imaginary, INTEGER: tl.constexpr):
    if tl.int64 == INTEGER:
        low = real.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        return imaginary.to(tl.int32, bitcast=True).to(tl.int64) << 32 | low
    else:
        low = real.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return imaginary.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16 | low


@triton.jit
def mul_pair(x, y):
    a, b = _parts(x)
    c, d = _parts(y)
    return _joined(mul_re(a, b, c, d), mul_im(a, b, c, d), x.dtype)


@triton.jit
def div_pair(x, y):
    a, b = _parts(x)
    c, d = _parts(y)
    return _joined(div_re(a, b, c, d), div_im(a, b, c, d), x.dtype)


@triton.jit
def exp_pair(x):
    a, b = _parts(x)
    return _joined(exp_re(a, b), exp_im(a, b), x.dtype)


@triton.jit
def log_pair(x):
    a, b = _parts(x)
    return _joined(log_re(a, b), log_im(a, b), x.dtype)


@triton.jit
def sqrt_pair(x):
    a, b = _parts(x)
    return _joined(sqrt_re(a, b), sqrt_im(a, b), x.dtype)


@triton.jit
def sin_pair(x):
    a, b = _parts(x)
    return _joined(sin_re(a, b), sin_im(a, b), x.dtype)


@triton.jit
def cos_pair(x):
    a, b = _parts(x)
    return _joined(cos_re(a, b), cos_im(a, b), x.dtype)


@triton.jit
def tan_pair(x):
    a, b = _parts(x)
    return _joined(tan_re(a, b), tan_im(a, b), x.dtype)


@triton.jit
def sinh_pair(x):
    a, b = _parts(x)
    return _joined(sinh_re(a, b), sinh_im(a, b), x.dtype)


@triton.jit
def cosh_pair(x):
    a, b = _parts(x)
    return _joined(cosh_re(a, b), cosh_im(a, b), x.dtype)


@triton.jit
def tanh_pair(x):
    a, b = _parts(x)
    return _joined(tanh_re(a, b), tanh_im(a, b), x.dtype)


@triton.jit
def reciprocal_pair(x):
    a, b = _parts(x)
    return _joined(reciprocal_re(a, b), reciprocal_im(a, b), x.dtype)


@triton.jit
def sgn_pair(x):
    a, b = _parts(x)
    return _joined(sgn_re(a, b), sgn_im(a, b), x.dtype)
