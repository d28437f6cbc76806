"""What pointwise operators compute of one element, in Triton.

Operands come in the type that is computed in: f32 for 16-bit floats, else the type that they have in common. What
they become of NaN, infinities, zeros and overflow is what ATen's CPU kernels make of them.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

_ALL = tl.constexpr(tl.PropagateNan.ALL)
_PI = tl.constexpr(3.141592653589793)


# --- arithmetic -----------------------------------------------------------------------------------------------


@triton.jit
def add(x, y, alpha):
    if x.dtype == tl.int1:
        return x | (y & alpha)
    else:
        return x + y * alpha


@triton.jit
def sub(x, y, alpha):
    return x - y * alpha


@triton.jit
def rsub(x, y, alpha):  # of operands that the shim has changed round
    return x - y * alpha


@triton.jit
def mul(x, y):
    if x.dtype == tl.int1:
        return x & y
    else:
        return x * y


@triton.jit
def scaled(x, mask, factor):
    return x * mask * factor


@triton.jit
def div(x, y):
    """To the nearest, on GPUs too, whose compilers are off by 2 units in the last place unless told so."""
    return tl.div_rn(x, y) if x.dtype == tl.float32 else x / y


@triton.jit
def _minus_one(x):
    """All bits of an integer, signed or not."""
    return (x ^ x) - 1


@triton.jit
def _quotient(x, y):
    """Integers towards zero, without the two divisions that a CPU traps; -1 where y is 0, as on CUDA."""
    if x.dtype.is_int_signed():
        minus = y == -1
        whole = x // tl.where((y == 0) | minus, 1, y).to(x.dtype)
        whole = tl.where(minus, 0 - x, whole).to(x.dtype)
    else:
        whole = x // tl.where(y == 0, 1, y).to(x.dtype)
    return tl.where(y == 0, _minus_one(x), whole).to(x.dtype)


@triton.jit
def _div_trunc(x, y, T: tl.constexpr):
    if x.dtype.is_floating():
        return libdevice.trunc(div(x, y).to(T).to(x.dtype))
    else:
        return _quotient(x, y)


@triton.jit
def _div_floor(x, y, T: tl.constexpr):
    """``T``: what every step is rounded to, as the CPU and CUDA do in the operands' type (c10's div_floor_floating)."""
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
        whole = div((x - rest).to(T).to(x.dtype), y).to(T).to(x.dtype)
        whole = tl.where((rest != 0) & ((y < 0) != (rest < 0)), (whole - 1).to(T).to(x.dtype), whole)
        below = libdevice.floor(whole)
        below = tl.where(whole - below > 0.5, (below + 1).to(T).to(x.dtype), below)
        ratio = div(x, y).to(T).to(x.dtype)
        below = tl.where(whole != 0, below, libdevice.copysign(whole * 0, ratio))
        return tl.where(y == 0, ratio, below)
    else:
        whole = _quotient(x, y)
        if x.dtype.is_int_signed():
            rest = x - whole * y
            whole = tl.where((rest != 0) & ((rest < 0) != (y < 0)) & (y != 0), whole - 1, whole).to(x.dtype)
        return whole


@triton.jit
def div_trunc(x, y):
    return _div_trunc(x, y, x.dtype)


@triton.jit
def div_floor(x, y):
    return _div_floor(x, y, x.dtype)


@triton.jit
def div_trunc_bf16(x, y):
    return _div_trunc(x, y, tl.bfloat16)


@triton.jit
def div_trunc_fp16(x, y):
    return _div_trunc(x, y, tl.float16)


@triton.jit
def div_floor_bf16(x, y):
    return _div_floor(x, y, tl.bfloat16)


@triton.jit
def div_floor_fp16(x, y):
    return _div_floor(x, y, tl.float16)


@triton.jit
def fmod(x, y):
    if x.dtype.is_floating():
        return libdevice.fmod(x, y)
    else:
        return tl.where(y == 0, _minus_one(x), x - _quotient(x, y) * y).to(x.dtype)


@triton.jit
def remainder(x, y):
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
        return tl.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)
    else:
        rest = x - _quotient(x, y) * y
        if x.dtype.is_int_signed():
            rest = tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest).to(x.dtype)
        return tl.where(y == 0, _minus_one(x), rest).to(x.dtype)


@triton.jit
def neg(x):
    return x * -1.0 if x.dtype.is_floating() else 0 - x  # 0 - x has no -0.0


@triton.jit
def abs(x):
    if x.dtype == tl.int1:
        return x
    else:
        return tl.abs(x)


@triton.jit
def sign(x):
    if x.dtype == tl.int1:
        return x
    else:
        return ((x > 0).to(tl.int8) - (x < 0).to(tl.int8)).to(x.dtype)


@triton.jit
def square(x):
    return x * x


@triton.jit
def cube(x):
    return x * x * x


@triton.jit
def inverse_square(x):
    return 1.0 / (x * x)


@triton.jit
def pow(x, y):
    if x.dtype.is_floating():
        return libdevice.pow(x, y)
    else:
        base = x
        result = (x ^ x) + 1
        rest = y
        bits: tl.constexpr = x.dtype.primitive_bitwidth
        for _ in tl.static_range(bits):
            result = tl.where((rest & 1) != 0, result * base, result).to(x.dtype)
            base = (base * base).to(x.dtype)
            rest = rest >> 1
        if x.dtype.is_int_signed():  # 1 / x ** -y, towards zero
            odd = (y & 1) != 0
            negative = tl.where(x == 1, 1, tl.where(x == -1, tl.where(odd, -1, 1), 0)).to(x.dtype)
            result = tl.where(y < 0, negative, result).to(x.dtype)
        return result


@triton.jit
def reciprocal(x):
    return div((x == x).to(x.dtype), x)  # 1 / x; 0 / x of what is no number


@triton.jit
def addcmul(x, a, b, value):
    return x + value * a * b


@triton.jit
def addcdiv(x, a, b, value):
    return x + div(value * a, b)


@triton.jit
def lerp(start, end, weight):
    return tl.where(tl.abs(weight) < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


# --- rounding -------------------------------------------------------------------------------------------------


@triton.jit
def ceil(x):
    return libdevice.ceil(x) if x.dtype.is_floating() else x


@triton.jit
def floor(x):
    return libdevice.floor(x) if x.dtype.is_floating() else x


@triton.jit
def trunc(x):
    return libdevice.trunc(x) if x.dtype.is_floating() else x


@triton.jit
def round(x):
    return libdevice.rint(x) if x.dtype.is_floating() else x


@triton.jit
def frac(x):
    return x - libdevice.trunc(x)


# --- the larger, the smaller ------------------------------------------------------------------------------------


@triton.jit
def maximum(x, y):
    if x.dtype.is_floating():
        return tl.maximum(x, y, propagate_nan=_ALL)
    elif x.dtype == tl.int1:
        return x | y
    else:
        return tl.maximum(x, y)


@triton.jit
def minimum(x, y):
    if x.dtype.is_floating():
        return tl.minimum(x, y, propagate_nan=_ALL)
    elif x.dtype == tl.int1:
        return x & y
    else:
        return tl.minimum(x, y)


@triton.jit
def clamp(x, low, high):
    return minimum(maximum(x, low), high)


@triton.jit
def fmax(x, y):
    if x.dtype.is_floating():
        return tl.where((x != x) | (y > x), y, x)
    else:
        return maximum(x, y)


@triton.jit
def fmin(x, y):
    if x.dtype.is_floating():
        return tl.where((x != x) | (y < x), y, x)
    else:
        return minimum(x, y)


# --- comparisons and logic -----------------------------------------------------------------------------------------


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def logical_and(x, y):
    return (x != 0) & (y != 0)


@triton.jit
def logical_or(x, y):
    return (x != 0) | (y != 0)


@triton.jit
def logical_xor(x, y):
    return (x != 0) ^ (y != 0)


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isposinf(x):
    return x == float("inf") if x.dtype.is_floating() else x != x


@triton.jit
def isneginf(x):
    return x == float("-inf") if x.dtype.is_floating() else x != x


@triton.jit
def signbit(x):
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) < 0
    elif x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x < 0


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def bitwise_not(x):
    if x.dtype == tl.int1:
        return x == 0
    else:
        return ~x


@triton.jit
def left_shift(x, y):
    width: tl.constexpr = x.dtype.primitive_bitwidth
    outside = (y < 0) | (y >= width)
    return tl.where(outside, 0, x << tl.where(outside, 0, y).to(x.dtype)).to(x.dtype)


@triton.jit
def right_shift(x, y):
    most: tl.constexpr = x.dtype.primitive_bitwidth - (1 if x.dtype.is_int_signed() else 0)
    last: tl.constexpr = x.dtype.primitive_bitwidth - 1
    outside = (y < 0) | (y >= most)
    shifted = x >> tl.where(outside, last, y).to(x.dtype)
    if x.dtype.is_int_signed():
        return shifted
    else:
        return tl.where(outside, 0, shifted).to(x.dtype)


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


@triton.jit
def masked_fill(x, mask, value):
    return tl.where(mask, value, x)


@triton.jit
def copysign(x, y):
    return libdevice.copysign(x, y)


@triton.jit
def heaviside(x, at_zero):
    return tl.where(x == 0, at_zero, (x > 0).to(x.dtype))


# --- functions ------------------------------------------------------------------------------------------------------


@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    return libdevice.exp2(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def sqrt(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)


@triton.jit
def rsqrt(x):
    return 1.0 / sqrt(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def erf(x):
    return libdevice.erf(x)


@triton.jit
def erfinv(x):
    return libdevice.erfinv(x)


@triton.jit
def lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def i0(x):
    return libdevice.cyl_bessel_i0(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def sinc(x):
    turned = x * _PI
    return tl.where(x == 0, 1.0, libdevice.sin(turned) / turned)


@triton.jit
def atan2(x, y):
    return libdevice.atan2(x, y)


@triton.jit
def hypot(x, y):
    return libdevice.hypot(x, y)


@triton.jit
def logaddexp(x, y):
    larger = tl.maximum(x, y, propagate_nan=_ALL)
    equal = (x == y) & (tl.abs(x) == float("inf"))
    return tl.where(equal, x, larger + libdevice.log1p(libdevice.exp(-tl.abs(x - y))))


@triton.jit
def logaddexp2(x, y):
    larger = tl.maximum(x, y, propagate_nan=_ALL)
    equal = (x == y) & (tl.abs(x) == float("inf"))
    per_e: tl.constexpr = 1.4426950408889634
    return tl.where(equal, x, larger + libdevice.log1p(libdevice.exp2(-tl.abs(x - y))) * per_e)


@triton.jit
def xlogy(x, y):
    return tl.where(y != y, y, tl.where(x == 0, 0.0, x * libdevice.log(y)))


@triton.jit
def xlog1py(x, y):
    return tl.where(y != y, y, tl.where(x == 0, 0.0, x * libdevice.log1p(y)))


@triton.jit
def logit(x):
    return libdevice.log(x / (1 - x))


@triton.jit
def logit_within(x, eps):
    within = tl.where(x < eps, eps, tl.where(x > 1 - eps, 1 - eps, x))
    return libdevice.log(within / (1 - within))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))
