"""Activations and their gradients, of one element, in Triton; operands and results as in ``pointwise_functions.py``."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.pointwise_functions import clamp, sigmoid

_ALL = tl.constexpr(tl.PropagateNan.ALL)
_SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)
_CUBIC = tl.constexpr(0.044715)  # of gelu's approximation by tanh
_DENSITY = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
_SQRT_HALF = tl.constexpr(0.7071067811865476)


@triton.jit
def sigmoid_backward(grad, y):
    return grad * (1 - y) * y


@triton.jit
def tanh_backward(grad, y):
    return grad * (1 - y * y)


@triton.jit
def relu(x):
    if x.dtype.is_floating():
        return tl.maximum(x, 0.0, propagate_nan=_ALL)
    else:
        return tl.maximum(x, 0).to(x.dtype)


@triton.jit
def threshold(x, limit, value):
    return tl.where(x <= limit, value, x)


@triton.jit
def threshold_backward(grad, x, limit):
    return tl.where(x <= limit, 0, grad).to(grad.dtype)


@triton.jit
def leaky_relu(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def leaky_relu_backward(grad, x, slope):
    return tl.where(x > 0, grad, grad * slope)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + libdevice.erf(x * _SQRT_HALF))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + libdevice.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)))


@triton.jit
def gelu_backward(grad, x):
    below = 0.5 * (1.0 + libdevice.erf(x * _SQRT_HALF))
    return grad * (below + x * _DENSITY * libdevice.exp(-0.5 * x * x))


@triton.jit
def gelu_tanh_backward(grad, x):
    # (1 + tanh(u)) / 2 is the logistic function s of 2 u, and (1 - tanh(u)**2) / 2 is 2 s (1 - s), both without the
    # digits that 1 - tanh(u) ** 2 loses near 0.
    inner = _SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)
    small = libdevice.exp(-2 * tl.abs(inner))
    large = 1 / (1 + small)
    s = tl.where(inner < 0, small * large, large)
    slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)
    return grad * (s + 2 * x * (small * large * large) * slope)


@triton.jit
def silu(x):
    return x / (1.0 + libdevice.exp(-x))


@triton.jit
def silu_backward(grad, x):
    s = sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@triton.jit
def _of_softplus(x):
    """w for which the tanh of x's softplus is w / (w + 2); beyond 20 that is 1."""
    z = libdevice.exp(tl.minimum(x, 20.0))
    return z * (z + 2)


@triton.jit
def mish(x):
    w = _of_softplus(x)
    return x * (w / (w + 2))


@triton.jit
def mish_backward(grad, x):
    w = _of_softplus(x)
    bend = tl.where(x > 20, 0.0, 4 * (w + 1) / ((w + 2) * (w + 2)))  # 1 - tanh^2, without its cancellation
    return grad * (w / (w + 2) + x * sigmoid(x) * bend)


@triton.jit
def softplus(x, beta, limit):
    return tl.where(x * beta > limit, x, libdevice.log1p(libdevice.exp(x * beta)) / beta)


@triton.jit
def softplus_backward(grad, x, beta, limit):
    z = libdevice.exp(x * beta)
    return tl.where(x * beta > limit, grad, grad * z / (z + 1))


@triton.jit
def hardtanh(x, low, high):
    return clamp(x, low, high)


@triton.jit
def hardtanh_backward(grad, x, low, high):
    return tl.where((x <= low) | (x >= high), 0.0, grad)


@triton.jit
def hardsigmoid(x):
    return clamp(x + 3, 0.0, 6.0) / 6


@triton.jit
def hardsigmoid_backward(grad, x):
    return tl.where((x > -3) & (x < 3), grad / 6, 0.0)


@triton.jit
def hardswish(x):
    return x * clamp(x + 3, 0.0, 6.0) / 6


@triton.jit
def hardswish_backward(grad, x):
    return tl.where(x <= -3, 0.0, tl.where(x < 3, grad * (x / 3 + 0.5), grad))


@triton.jit
def elu(x, alpha, scale, input_scale):
    return tl.where(x < 0, libdevice.expm1(x * input_scale) * (alpha * scale), x * scale)


@triton.jit
def elu_backward(grad, x, alpha, scale, input_scale):
    slope = grad * input_scale * (alpha * scale) * libdevice.exp(x * input_scale)
    return tl.where(x <= 0, slope, grad * scale)


@triton.jit
def elu_backward_of_result(grad, y, alpha, scale, input_scale):
    return tl.where(y <= 0, grad * input_scale * (y + alpha * scale), grad * scale)


@triton.jit
def softshrink(x, limit):
    return tl.where(x > limit, x - limit, tl.where(x < -limit, x + limit, x * 0))


@triton.jit
def hardshrink(x, limit):
    return tl.where((x >= -limit) & (x <= limit), 0.0, x)


@triton.jit
def shrink_backward(grad, x, limit):
    return tl.where((x >= -limit) & (x <= limit), 0.0, grad)
