"""What the pointwise operators of ``pointwise.SPECIAL`` compute of one element, in Triton.

As in ``pointwise_functions.py`` operands come in the type that is computed in; no function of f32 needs f64. Constants
that f32 does not hold are factors or summands of a tensor, never values of ``tl.where``, which rounds them to f32.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import _quotient, abs, sqrt

_PI = tl.constexpr(3.141592653589793)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_SQRT_TWO_OVER_PI = tl.constexpr(0.7978845608028654)
_ONE_OVER_SQRT_PI = tl.constexpr(0.5641895835477563)
_ONE_OVER_SQRT_TWO_PI = tl.constexpr(0.3989422804014327)


@triton.jit
def _zero(x):
    return tl.where(x == x, 0.0, 0.0).to(x.dtype)


@triton.jit
def _most(x):
    return tl.max(x) if x.type.is_block() else x


@triton.jit
def _odd(n):
    """Of a whole number in a float."""
    return n - 2 * libdevice.floor(0.5 * n) == 1


# --- of numbers -----------------------------------------------------------------------------------------------------


@triton.jit
def angle(x):
    return tl.where(x != x, x, (x < 0).to(x.dtype) * _PI)


@triton.jit
def gcd(x, y):
    """Euclid's algorithm, as long as any lane's goes on."""
    a = abs(x) + (y ^ y)
    b = abs(y) + (x ^ x)
    while _most((a != 0).to(tl.int32)) != 0:
        rest = (b - _quotient(b, a) * a).to(x.dtype)
        b = tl.where(a == 0, b, a)
        a = tl.where(a == 0, a, rest)
    return b


@triton.jit
def lcm(x, y):
    common = gcd(x, y)
    return tl.where(common == 0, 0, abs((_quotient(x, common) * y).to(x.dtype))).to(x.dtype)


@triton.jit
def nextafter(x, y):
    return libdevice.nextafter(x, y)


@triton.jit
def _nextafter_16(x, y, T: tl.constexpr):
    """Neighbours in order have neighbouring bits."""
    bits = x.to(T).to(tl.int16, bitcast=True)
    away = (x < y) == (x > 0)
    beside = tl.where(away, bits + 1, bits - 1).to(tl.int16)
    beside = tl.where(x == 0, tl.where(y < 0, -32767, 1), beside).to(tl.int16)
    stepped = beside.to(T, bitcast=True).to(x.dtype)
    return tl.where(x != x, x, tl.where((y != y) | (x == y), y, stepped))


@triton.jit
def nextafter_bf16(x, y):
    return _nextafter_16(x, y, tl.bfloat16)


@triton.jit
def nextafter_fp16(x, y):
    return _nextafter_16(x, y, tl.float16)


@triton.jit
def round_decimals(x, decimals):
    power = decimals * 0 + 1
    for _ in range(tl.minimum(tl.abs(decimals), 400.0).to(tl.int32)):
        power = power * 10
    return tl.where(decimals < 0, libdevice.rint(x / power) * power, libdevice.rint(x * power) / power)


@triton.jit
def logit_backward(grad, x):
    end = (x == 0) | (x == 1)
    slope = tl.where(end, grad * float("inf"), grad / (x * (1 - x)))
    return tl.where((x < 0) | (x > 1), float("nan"), slope)


@triton.jit
def _logit_backward_within(grad, x, eps, T: tl.constexpr):
    """``T``: what the bounds are rounded to. A negative ``eps`` stands for none."""
    low = eps.to(T).to(x.dtype)
    high = (1 - low).to(T).to(x.dtype)
    return tl.where((eps >= 0) & ((x < low) | (x > high)), 0.0, logit_backward(grad, x))


@triton.jit
def logit_backward_within(grad, x, eps):
    return _logit_backward_within(grad, x, eps, x.dtype)


@triton.jit
def logit_backward_within_bf16(grad, x, eps):
    return _logit_backward_within(grad, x, eps, tl.bfloat16)


@triton.jit
def logit_backward_within_fp16(grad, x, eps):
    return _logit_backward_within(grad, x, eps, tl.float16)


@triton.jit
def entr(x):
    inside = x * libdevice.log(x) * -1.0
    return tl.where(x != x, x, tl.where(x > 0, inside, tl.where(x == 0, 0.0, float("-inf"))))


# --- of the error function ------------------------------------------------------------------------------------------


@triton.jit
def erfcx(x):
    """exp(x * x) * erfc(x). From 3 on by the continued fraction DLMF 7.9.3, from its end."""
    double: tl.constexpr = x.dtype == tl.float64
    far = tl.where(x > 3, x, 3.0).to(x.dtype)
    fraction = far
    for k in range(40 if double else 10):
        fraction = far + (0.5 * ((40 if double else 10) - k)) / fraction
    fraction = _ONE_OVER_SQRT_PI / fraction
    square = x * x
    rest = libdevice.fma(x, x, -1.0 * square)
    rest = tl.where(square < float("inf"), rest, 0.0)
    close = libdevice.exp(square)
    close = close * (1 + rest) * libdevice.erfc(x)
    return tl.where(x > 3, fraction, close)


@triton.jit
def log_ndtr(x):
    t = x * _SQRT_HALF
    below = libdevice.log(0.5 * erfcx(-1.0 * t)) - 0.5 * x * x
    above = libdevice.log1p(-0.5 * libdevice.erfc(t))
    return tl.where(x < -1, below, above)


@triton.jit
def ndtri(p):
    """The inverse of the normal distribution. From Abramowitz and Stegun's 26.2.22 by Halley's steps.

    In the tail they find where the logarithm of the distribution is that of p, whose terms are all of usual size; in
    the middle where the distribution is p, as 0.5 - p keeps its digits.
    """
    a = tl.where(p > 0.5, 1 - p, p)
    inside = tl.where(a > 0, a, 0.25).to(p.dtype)
    log_a = libdevice.log(inside)
    t = sqrt(-2.0 * log_a)
    y = (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t)) - t
    middle = inside > 0.2
    for _ in range(3):
        ratio = _SQRT_TWO_OVER_PI / erfcx(y * -_SQRT_HALF)  # density / distribution
        step = (log_ndtr(y) - log_a) / ratio
        step = step / (1 + 0.5 * step * (y + ratio))
        density = _ONE_OVER_SQRT_TWO_PI * libdevice.exp(-0.5 * y * y)
        straight = ((0.5 - inside) + 0.5 * libdevice.erf(y * _SQRT_HALF)) / density
        straight = straight / (1 + 0.5 * straight * y)
        y = y - tl.where(middle, straight, step)
    y = tl.where(a == 0, float("-inf"), tl.where(a > 0, y, float("nan")))
    return tl.where(p > 0.5, -1.0 * y, y)


# --- of the gamma function ------------------------------------------------------------------------------------------


@triton.jit
def digamma(x):
    """Upwards to 10 by the recurrence DLMF 5.5.2, there the expansion 5.11.2; of negative numbers by 5.5.4."""
    y = tl.where(x < 0, 1 - x, x)
    total = _zero(x)
    for _ in range(10):
        small = y < 10
        total = total - tl.where(small, 1.0 / y, 0.0)
        y = tl.where(small, y + 1, y)
    r = 1.0 / (y * y)
    tail = 1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760 - r * (1 / 12))))
    tail = r * (1 / 12 - r * (1 / 120 - r * tail))
    value = libdevice.log(y) - 0.5 / y - tail + total
    part = x - libdevice.trunc(x)
    value = tl.where(x < 0, value - _PI * libdevice.cospi(part) / libdevice.sinpi(part), value)
    value = tl.where((x < 0) & (x == libdevice.trunc(x)), float("nan"), value)
    return tl.where(x == 0, -1.0 / x, value)


# B(2j) / (2j)!, of the Bernoulli numbers
_BERNOULLI = tl.constexpr(
    (
        1 / 12,
        -1 / 720,
        1 / 30240,
        -1 / 1209600,
        1 / 47900160,
        -691 / 1307674368000,
        1 / 74724249600,
        -3617 / 10670622842880000,
    )
)


@triton.jit
def _zeta_above(s, q):
    """Hurwitz' zeta function of s > 1 and q > 0: ten terms, and Euler's and Maclaurin's formula for the others."""
    a = q
    total = _zero(s + q)
    for _ in range(10):
        total = total + libdevice.pow(a, -1.0 * s)
        a = a + 1
    last = libdevice.pow(a, -1.0 * s)
    rest = last * (a / (s - 1)) + 0.5 * last
    factor = last * (s / a)
    for j in tl.static_range(8):
        rest = rest + factor * _BERNOULLI[j]
        factor = factor * ((s + (2 * j + 1)) / a) * ((s + (2 * j + 2)) / a)
    return tl.where((last == 0) & (total > 0), total, total + rest)


@triton.jit
def zeta(s, q):
    """Hurwitz' zeta function; of negative q the sum of terms that are negative is a difference of two of its values.

    With f = ceil(q) - q: zeta(s, q) = zeta(s, 1 - f) + (-1)^s (zeta(s, f) - zeta(s, 1 - q)).
    """
    s = s + _zero(q)
    q = q + _zero(s)
    negative = q < 0
    value = _zero(q)
    sign = tl.where(_odd(s), -1.0, 1.0).to(q.dtype)
    above = libdevice.ceil(q) - q
    below = q - libdevice.floor(q)
    some = _most(negative.to(tl.int32))
    # The largest two first: of odd s they cancel where f is 1/2. Of positive q the middle one is all.
    for part in range(1 - some, 2 + some):
        of = tl.where(negative, tl.where(part == 0, above, tl.where(part == 1, below, 1 - q)), q)
        term = _zeta_above(s, of)
        term = tl.where(part == 0, sign * term, tl.where(part == 2, -1.0 * sign * term, term))
        value = value + tl.where(negative | (part == 1), term, 0.0)
    value = tl.where(negative & (s == float("inf")), float("inf"), value)
    value = tl.where(negative & (s != libdevice.floor(s)), float("nan"), value)
    value = tl.where((q <= 0) & (q == libdevice.floor(q)), float("inf"), value)
    value = tl.where(s < 1, float("nan"), value)
    return tl.where(s == 1, float("inf"), value)


@triton.jit
def polygamma(x, n):
    """(-1)^(n + 1) n! zeta(n + 1, x), DLMF 25.11.12."""
    tl.device_assert(n >= 0, "polygamma(n, x) does not support negative n.")
    if n == 0:
        value = digamma(x)
    else:
        factor = tl.where(_odd(n), 1.0, -1.0).to(x.dtype)
        for k in range(2, tl.minimum(n, 200.0).to(tl.int32) + 1):
            factor = factor * k
        value = factor * zeta(n + 1, x)
        value = tl.where((n == 1) & (x == float("inf")), 0.0, value)
        value = tl.where((n == 1) & (x == float("-inf")), float("nan"), value)
    return value


# log(gamma(1 + a)) / a for 0 <= a <= 1, as polynomials in 2 a - 1 through Chebyshev's points, to 5e-9 and 1e-16.
_LOG_GAMMA_F32 = tl.constexpr(
    (
        6.231419583089148e-06,
        -2.0667134582176008e-05,
        5.3866095292662394e-05,
        -0.00018581313242089833,
        0.0006726344839571714,
        -0.0024831549879129667,
        0.009820648805363943,
        -0.04435371412199461,
        0.278054450387209,
        -0.24156447897734395,
    )
)
_LOG_GAMMA_F64 = tl.constexpr(
    (
        -2.1842652100966035e-10,
        6.891258963369561e-10,
        -1.1425615893989382e-09,
        3.644509820610561e-09,
        -1.3746885372049384e-08,
        4.409875005579479e-08,
        -1.399038570786981e-07,
        4.539049161829536e-07,
        -1.484603765495509e-06,
        4.8929989807933096e-06,
        -1.6302846589599816e-05,
        5.509757431562688e-05,
        -0.00018982580434966613,
        0.0006721846882632636,
        -0.0024816898009418294,
        0.0098207056028325,
        -0.04435389911289874,
        0.278054449249072,
        -0.24156447527049044,
    )
)
# Temme's coefficients c0 to c3 (DLMF 8.12.9-11), the highest power of eta first: from the series of lambda in eta.
_TEMME_0 = tl.constexpr(
    (
        -4.382036018453353e-09,
        1.0261809784240309e-08,
        6.707853543401498e-09,
        -1.7665952736826078e-07,
        8.296711340953087e-07,
        -1.85406221071516e-06,
        -2.185448510679992e-06,
        3.919263178522438e-05,
        -0.0001787551440329218,
        0.0003527336860670194,
        0.0011574074074074073,
        -0.014814814814814815,
        0.08333333333333333,
        -0.3333333333333333,
    )
)
_TEMME_1 = tl.constexpr(
    (
        1.378633446915721e-07,
        4.647127802807434e-09,
        -1.6120900894563446e-06,
        7.64916091608111e-06,
        -1.8098550334489977e-05,
        -4.018775720164609e-07,
        0.00020576131687242798,
        -0.0009902263374485596,
        0.0026455026455026454,
        -0.003472222222222222,
        -0.001851851851851852,
    )
)
_TEMME_2 = tl.constexpr(
    (
        3.423578734096138e-08,
        -1.2760635188618728e-05,
        5.2923448829120125e-05,
        -0.0001073665322636516,
        2.0093878600823047e-06,
        0.0007716049382716049,
        -0.0026813271604938273,
        0.004133597883597883,
    )
)
_TEMME_3 = tl.constexpr(
    (
        -7.561801671883977e-05,
        0.00026772063206283885,
        -0.0004691894943952557,
        0.00022947209362139917,
        0.0006494341563786008,
    )
)


@triton.jit
def _horner(x, coefficients: tl.constexpr):
    total = _zero(x) + coefficients[0]
    for k in tl.static_range(1, len(coefficients)):
        total = total * x + coefficients[k]
    return total


@triton.jit
def _log_gamma_1p(a):
    if a.dtype == tl.float64:
        return a * _horner(2 * a - 1, _LOG_GAMMA_F64)
    else:
        return a * _horner(2 * a - 1, _LOG_GAMMA_F32)


@triton.jit
def _incomplete_gamma(a, x, UPPER: tl.constexpr):
    """Q(a, x) if UPPER, else P.

    P by its series (DLMF 8.11.4) below a, Q by its continued fraction (8.9.2) above. Where both need many terms, near
    large a, Temme's expansion (8.12); Q of little a and x by what is left of the series without its 1.
    """
    double: tl.constexpr = a.dtype == tl.float64
    terms: tl.constexpr = 180 if double else 70
    large: tl.constexpr = 200.0 if double else 40.0
    given_a = a + _zero(x)
    given_x = x + _zero(a)
    fine = (given_a > 0) & (given_a < float("inf")) & (given_x > 0) & (given_x < float("inf"))
    a = tl.where(fine, given_a, 1.0).to(given_a.dtype)
    x = tl.where(fine, given_x, 1.0).to(given_x.dtype)
    # phi = mu - log(1 + mu), by the series of log((1 + r) / (1 - r)) where mu is little
    mu = (x - a) / a
    r = mu / (2 + mu)
    square = r * r
    tail = _zero(x)
    for k in tl.static_range(20 if double else 10):
        tail = tail * square + 1 / (41 - 2 * k if double else 21 - 2 * k)
    phi = tl.where(tl.abs(mu) < 0.5, r * mu - 2 * r * square * tail, mu - libdevice.log(x / a))
    # factor = x^a exp(-x) / gamma(a + 1)
    little = tl.where(a < 1, a, 1.0).to(a.dtype)
    log_x = libdevice.log(x)
    log_gamma = tl.where(a < 1, _log_gamma_1p(little), libdevice.lgamma(a + 1))
    over = 1.0 / a
    over_2 = over * over
    stirling = over * (1 / 12 - over_2 * (1 / 360 - over_2 * (1 / 1260 - over_2 * (1 / 1680 - over_2 * (1 / 1188)))))
    bell = libdevice.exp(-1.0 * a * phi) * _ONE_OVER_SQRT_TWO_PI / sqrt(a)
    factor = tl.where(a < 10, libdevice.exp(a * log_x - x - log_gamma), bell * libdevice.exp(-1.0 * stirling))
    # all at once: the series, the fraction from its end, and the series without its 1
    term = _zero(x) + 1
    series = term
    fraction = x + (2 * terms + 1) - a
    other = term
    rest = _zero(x)
    for k in range(1, terms):
        term = term * (x / (a + k))
        series = series + term
        back = terms - k
        fraction = x + (2 * back - 1) - a - back * (back - a) / fraction
        if UPPER:
            other = other * (tl.minimum(x, 1.5) / (-1 * k))
            rest = rest + other / (little + k)
    lower = factor * series
    upper = factor * (a / fraction)
    by_fraction = (x > a) & (x > 1.1)
    eta = sqrt(2 * tl.maximum(phi, 0.0))
    eta = tl.where(mu < 0, -1.0 * eta, eta)
    correction = _horner(eta, _TEMME_0) + over * (
        _horner(eta, _TEMME_1) + over * (_horner(eta, _TEMME_2) + over * _horner(eta, _TEMME_3))
    )
    correction = bell * correction
    by_temme = (a > large) & (tl.abs(mu) < 0.4)
    if UPPER:
        value = tl.where(by_fraction, upper, 1 - lower)
        power = a * log_x - log_gamma
        left = -1.0 * libdevice.expm1(power) - libdevice.exp(power) * (little * rest)
        value = tl.where((a < 1) & (x <= 1.1), left, value)
        value = tl.where(by_temme, 0.5 * libdevice.erfc(eta * sqrt(0.5 * a)) + correction, value)
    else:
        value = tl.where(by_fraction, 1 - upper, lower)
        value = tl.where(by_temme, 0.5 * libdevice.erfc(eta * sqrt(0.5 * a) * -1.0) - correction, value)
    at_zero = 1.0 if UPPER else 0.0
    value = tl.where(fine, value, float("nan"))
    value = tl.where(given_x == float("inf"), 1.0 - at_zero, value)
    value = tl.where(given_a == float("inf"), tl.where(given_x == float("inf"), float("nan"), at_zero), value)
    value = tl.where(given_x == 0, at_zero, value)
    value = tl.where(given_a == 0, tl.where(given_x > 0, 1.0 - at_zero, float("nan")), value)
    return tl.where((given_a < 0) | (given_x < 0), float("nan"), value)


@triton.jit
def igamma(a, x):
    return _incomplete_gamma(a, x, False)


@triton.jit
def igammac(a, x):
    return _incomplete_gamma(a, x, True)
