"""Orthogonal polynomials of one element, of a degree each, in Triton; operands as in ``special_functions.py``."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import sqrt
from anyxpu.ops.special_functions import _zero

_DEGREES = tl.constexpr(1 << 30)  # a polynomial's, at most


@triton.jit
def _most(x):
    return tl.max(x) if x.type.is_block() else x


@triton.jit
def _degree(n, most: tl.constexpr):
    n = libdevice.trunc(n)
    return tl.where(n < most, n, most).to(tl.int32)


@triton.jit
def _polynomial(degree, value):
    return tl.where(degree < 0, 0.0, tl.where(degree == 0, 1.0, value))


@triton.jit
def _chebyshev(x, n, KIND: tl.constexpr, SHIFTED: tl.constexpr):
    """Up to degree 8 the recurrence, which is exact where the result is; beyond, cosines and sines (DLMF 18.5.1-4).

    These of the angle of |x|, found from its distance to 1, which has all digits. Beyond 1 they are hyperbolic ones.
    """
    y = (x - 1) + x if SHIFTED else x
    degree = _degree(n, _DEGREES) + (_zero(x) == 1).to(tl.int32)
    before = _zero(y + n) + 1
    here = y + _zero(n)
    if KIND != 0:
        here = here + y
    if KIND == 2:
        here = here - 1
    elif KIND == 3:
        here = here + 1
    for k in range(1, tl.minimum(_most(degree), 8)):
        following = 2 * y * here - before
        before = tl.where(k < degree, here, before)
        here = tl.where(k < degree, following, here)
    # From here on of -y, where y is negative: then the third kind is the fourth, and the other way round.
    minus = y < 0
    off = tl.where(minus, x, 1 - x) if SHIFTED else 0.5 * (1 - tl.abs(x))
    root = sqrt(tl.abs(off))
    inside = off >= 0
    half = tl.where(inside, libdevice.asin(tl.where(inside, root, 0.0)), libdevice.asinh(root))
    times = degree.to(x.dtype)
    if KIND == 0:
        angle = half * (2 * times)
    elif KIND == 1:
        angle = half * (2 * times + 2)
    else:
        angle = half * (2 * times + 1)
    cosines = tl.where(inside, libdevice.cos(angle), libdevice.cosh(angle))
    sines = tl.where(inside, libdevice.sin(angle), libdevice.sinh(angle))
    if KIND == 0:
        value = cosines
    elif KIND == 1:
        value = sines / tl.where(inside, libdevice.sin(2 * half), libdevice.sinh(2 * half))
        value = tl.where(half == 0, times + 1, value)
    else:
        third = cosines / tl.where(inside, libdevice.cos(half), libdevice.cosh(half))
        fourth = sines / tl.where(inside, libdevice.sin(half), libdevice.sinh(half))
        fourth = tl.where(half == 0, 2 * times + 1, fourth)
        value = tl.where(minus == (KIND == 3), third, fourth)
    value = tl.where(minus & ((degree & 1) == 1), -1.0 * value, value)
    value = tl.where(degree > 8, value, here)
    return _polynomial(degree, value)


@triton.jit
def chebyshev_polynomial_t(x, n):
    return _chebyshev(x, n, 0, False)


@triton.jit
def chebyshev_polynomial_u(x, n):
    return _chebyshev(x, n, 1, False)


@triton.jit
def chebyshev_polynomial_v(x, n):
    return _chebyshev(x, n, 2, False)


@triton.jit
def chebyshev_polynomial_w(x, n):
    return _chebyshev(x, n, 3, False)


@triton.jit
def shifted_chebyshev_polynomial_t(x, n):
    return _chebyshev(x, n, 0, True)


@triton.jit
def shifted_chebyshev_polynomial_u(x, n):
    return _chebyshev(x, n, 1, True)


@triton.jit
def shifted_chebyshev_polynomial_v(x, n):
    return _chebyshev(x, n, 2, True)


@triton.jit
def shifted_chebyshev_polynomial_w(x, n):
    return _chebyshev(x, n, 3, True)


@triton.jit
def _hermite(x, n, scale: tl.constexpr):
    """DLMF 18.9.1. Beyond a degree that torch sets the result is NaN."""
    most: tl.constexpr = 512 if x.dtype == tl.float64 else 128
    degree = _degree(n, most + 1) + (_zero(x) == 1).to(tl.int32)
    before = _zero(x + n) + 1
    here = x * scale + _zero(n)
    for k in range(1, tl.minimum(_most(degree), most)):
        following = x * scale * here - before * (k * scale)
        before = tl.where(k < degree, here, before)
        here = tl.where(k < degree, following, here)
    return tl.where(degree > most, float("nan"), _polynomial(degree, here))


@triton.jit
def hermite_polynomial_h(x, n):
    return _hermite(x, n, 2)


@triton.jit
def hermite_polynomial_he(x, n):
    return _hermite(x, n, 1)


@triton.jit
def laguerre_polynomial_l(x, n):
    degree = _degree(n, _DEGREES) + (_zero(x) == 1).to(tl.int32)
    before = _zero(x + n) + 1
    here = 1 - x + _zero(n)
    for k in range(1, _most(degree)):
        following = ((2 * k + 1 - x) * here - before * k) / (k + 1)
        before = tl.where(k < degree, here, before)
        here = tl.where(k < degree, following, here)
    return _polynomial(degree, tl.where(x == 0, 1.0, here))


@triton.jit
def legendre_polynomial_p(x, n):
    degree = _degree(n, _DEGREES) + (_zero(x) == 1).to(tl.int32)
    before = _zero(x + n) + 1
    here = x + _zero(n)
    for k in range(1, _most(degree)):
        following = (x * (2 * k + 1) * here - before * k) / (k + 1)
        before = tl.where(k < degree, here, before)
        here = tl.where(k < degree, following, here)
    here = tl.where(tl.abs(x) == 1, tl.where((degree & 1) == 1, x, 1.0), here)
    return _polynomial(degree, here)
