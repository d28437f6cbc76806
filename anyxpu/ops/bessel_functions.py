"""Bessel functions and Airy's of one element, in Triton; operands as in ``special_functions.py``."""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import sqrt
from anyxpu.ops.special_functions import _zero

_PI = tl.constexpr(3.141592653589793)
_TWO_OVER_PI = tl.constexpr(0.6366197723675814)
_ONE_OVER_SQRT_TWO_PI = tl.constexpr(0.3989422804014327)
_EULER_LESS_LOG_2 = tl.constexpr(-0.11593151565841245)


@triton.jit
def _series(x, terms, ORDER: tl.constexpr, SIGN: tl.constexpr, SECOND: tl.constexpr):
    """Sum of (SIGN x^2 / 4)^k / (k! (k + ORDER)!), the power series of I and J of order 0 or 1 (DLMF 10.25.2, 10.2.2).

    Of K and Y (10.31.1, 10.8.1): each term times log(x / 2) less the mean of digamma(k + 1) and digamma(k + ORDER + 1).
    """
    t = x * x * (0.25 * SIGN)
    term = _zero(x) + 1
    harmonic = libdevice.log(x) + (_EULER_LESS_LOG_2 - 0.5 * ORDER)
    total = harmonic if SECOND else term
    for k in range(1, terms):
        term = term * (t / (k * (k + ORDER)))
        if SECOND:
            less = _zero(x) + 1
            harmonic = harmonic - (less / k if ORDER == 0 else 0.5 * less / k + 0.5 * less / (k + 1))
            total = total + term * harmonic
        else:
            total = total + term
    return total


@triton.jit
def _i_scaled(x, ORDER: tl.constexpr):
    """exp(-|x|) I(|x|): its power series, whose terms are all of one sign; far out Hankel's expansion, DLMF 10.40.1."""
    double: tl.constexpr = x.dtype == tl.float64
    far_from: tl.constexpr = 20.0 if double else 9.0
    a = tl.abs(x)
    near = tl.where(a < far_from, a, far_from).to(x.dtype)
    close = _series(near, 56 if double else 28, ORDER, 1, False) * libdevice.exp(-1.0 * near)
    if ORDER == 1:
        close = close * (0.5 * near)
    far = tl.where(a > far_from, a, far_from).to(x.dtype)
    term = _zero(x) + 1
    total = term
    for k in range(1, 32 if double else 14):
        odd = 2 * k - 1
        term = term * ((odd * odd - 4 * ORDER) / (8 * k * far))
        total = total + term
    value = tl.where(a > far_from, total * _ONE_OVER_SQRT_TWO_PI / sqrt(far), close)
    return tl.where(x != x, x, value)


@triton.jit
def _i(x, ORDER: tl.constexpr):
    root = libdevice.exp(0.5 * tl.abs(x))  # may be finite where its square is not
    return root * (root * _i_scaled(x, ORDER))


@triton.jit
def i0e(x):
    return _i_scaled(x, 0)


@triton.jit
def i1e(x):
    value = _i_scaled(x, 1)
    return tl.where(x < 0, -1.0 * value, value)


@triton.jit
def modified_bessel_i0(x):
    return _i(x, 0)


@triton.jit
def i1(x):
    value = _i(x, 1)
    return tl.where(x < 0, -1.0 * value, value)


@triton.jit
def _k_far(x, NU: tl.constexpr):
    """exp(x) K(x) for x >= 1: the integral DLMF 10.32.9 by the trapezoidal rule, which converges exponentially.

    Its step is such that its error, about exp(-2 pi^2 / (step^2 x)) far out, is below the type's.
    """
    double: tl.constexpr = x.dtype == tl.float64
    step = tl.minimum((0.7 if double else 1.0) / sqrt(x), 0.22 if double else 0.4)
    total = _zero(x) + 0.5
    for k in range(1, 24 if double else 12):
        u = libdevice.expm1(step * k)
        w = u * u / (2 + 2 * u)  # cosh(t) - 1
        term = libdevice.exp(-1.0 * ((x * u) * (u / (2 + 2 * u))))
        if NU == 1:
            term = term * (1 + w)
        elif NU != 0:
            term = term * libdevice.cosh((step * k) * NU)
        total = total + term
    return total * step


@triton.jit
def _k(x, ORDER: tl.constexpr, SCALED: tl.constexpr):
    double: tl.constexpr = x.dtype == tl.float64
    near = tl.where(x < 1, x, 1.0).to(x.dtype)
    close = _series(near, 12 if double else 7, ORDER, 1, True)
    close = close * (0.5 * near) + 1.0 / near if ORDER == 1 else close * -1.0
    far = tl.where(x > 1, x, 1.0).to(x.dtype)
    beyond = _k_far(far, ORDER)
    if SCALED:
        close = close * libdevice.exp(near)
    else:
        beyond = beyond * libdevice.exp(-1.0 * far)
    value = tl.where(x > 1, beyond, close)
    value = tl.where(x == float("inf"), 0.0, value)
    value = tl.where(x == 0, float("inf"), value)
    return tl.where(x >= 0, value, float("nan"))


@triton.jit
def modified_bessel_k0(x):
    return _k(x, 0, False)


@triton.jit
def modified_bessel_k1(x):
    return _k(x, 1, False)


@triton.jit
def scaled_modified_bessel_k0(x):
    return _k(x, 0, True)


@triton.jit
def scaled_modified_bessel_k1(x):
    return _k(x, 1, True)


@triton.jit
def _hankel(x, NU: tl.constexpr):
    """a and b, where Hankel's function H1(x) is exp(i x) (a + i b) exp(-i pi NU / 2) / (i pi), for x >= 1.

    DLMF 10.9.10 along the steepest path from its saddle, t = s + i y with cos(y) cosh(s) = 1, where it is
    exp(-x sinh(s) tanh(s)); by the trapezoidal rule in s, which converges exponentially.
    """
    double: tl.constexpr = x.dtype == tl.float64
    step = tl.minimum((0.42 if double else 0.6) / sqrt(x), 0.15 if double else 0.3)
    a = _zero(x) + 0.5
    b = _zero(x) + 0.5
    for k in range(1, 34 if double else 15):
        s = step * k
        sinh = libdevice.sinh(s)
        cosine = 1.0 / libdevice.cosh(s)  # of y
        weight = libdevice.exp(-1.0 * ((x * sinh) * (sinh * cosine)))
        if NU == 0:
            a = a + weight
            b = b + weight * cosine
        elif NU == 1:
            a = a + weight * (cosine * cosine)
            b = b + weight * (cosine + sinh * (sinh * cosine))
        else:
            y = libdevice.atan(sinh)
            real = libdevice.cosh(s * NU) * libdevice.cos(y * NU)
            imaginary = libdevice.sinh(s * NU) * libdevice.sin(y * NU)
            a = a + weight * (real - imaginary * cosine)
            b = b + weight * (real * cosine + imaginary)
    return 2 * step * a, 2 * step * b


@triton.jit
def _jy(x, ORDER: tl.constexpr, SECOND: tl.constexpr):
    double: tl.constexpr = x.dtype == tl.float64
    m = tl.abs(x)
    near = tl.where(m < 1, m, 1.0).to(x.dtype)
    close = _series(near, 12 if double else 7, ORDER, -1, SECOND)
    if ORDER == 1:
        close = close * (0.5 * near)
    if SECOND:
        close = close * _TWO_OVER_PI
        if ORDER == 1:
            close = close - _TWO_OVER_PI / near
    far = tl.where(m < 1, 1.0, m).to(x.dtype)
    a, b = _hankel(far, ORDER)
    sine = libdevice.sin(far)
    cosine = libdevice.cos(far)
    if (ORDER == 0) == SECOND:  # -Re of exp(i x) (a + i b)
        beyond = (b * sine - a * cosine) * (1 / _PI)
    else:  # Im, or of Y1 -Im
        beyond = (a * sine + b * cosine) * (-1 / _PI if SECOND else 1 / _PI)
    value = tl.where(m < 1, close, beyond)
    if SECOND:
        value = tl.where(x == 0, float("-inf"), value)
        return tl.where(x >= 0, value, float("nan"))
    elif ORDER == 1:
        return tl.where(x < 0, -1.0 * value, tl.where(x == 0, x, value))
    else:
        return value


@triton.jit
def bessel_j0(x):
    return _jy(x, 0, False)


@triton.jit
def bessel_j1(x):
    return _jy(x, 1, False)


@triton.jit
def bessel_y0(x):
    return _jy(x, 0, True)


@triton.jit
def bessel_y1(x):
    return _jy(x, 1, True)


@triton.jit
def spherical_bessel_j0(x):
    value = libdevice.sin(x) / x
    return tl.where(x == 0, 1.0, tl.where(tl.abs(x) == float("inf"), 0.0, value))


@triton.jit
def airy_ai(x):
    """Airy's function Ai: near zero its power series (DLMF 9.4.1), beyond by functions of order 1/3 (9.6.2, 9.6.6)."""
    near = tl.where(tl.abs(x) < 1.5, x, 0.0).to(x.dtype)
    cube = near * near * near
    term = _zero(x) + 0.3550280538878172
    other = near * -0.2588194037928068
    close = term + other
    for k in range(1, 14):
        term = term * (cube / (3 * k * (3 * k - 1)))
        other = other * (cube / (3 * k * (3 * k + 1)))
        close = close + (term + other)
    far = tl.where(tl.abs(x) < 1.5, 1.5, tl.abs(x)).to(x.dtype)
    # z = 2 / 3 far^1.5, and what rounding takes from it.
    root = sqrt(far)
    root_rest = libdevice.fma(-1.0 * root, root, far) / (2 * root)
    power = 2 * far * root
    power_rest = libdevice.fma(2 * far, root, -1.0 * power) + 2 * far * root_rest
    z = power / 3
    z_rest = (libdevice.fma(_zero(x) - 3, z, power) + power_rest) / 3
    outer = sqrt(far / 3) * (1 / _PI)
    above = outer * _k_far(z, 1 / 3) * (libdevice.exp(-1.0 * z) * (1 - z_rest))
    a, b = _hankel(z, 1 / 3)
    sine = libdevice.sin(z)
    cosine = libdevice.cos(z)
    below = outer * (a * (sine + cosine * z_rest) + b * (cosine - sine * z_rest))
    value = tl.where(tl.abs(x) < 1.5, close, tl.where(x > 0, above, below))
    value = tl.where(x > 104, 0.0, value)
    return tl.where(tl.abs(x) < float("inf"), value, float("nan"))
