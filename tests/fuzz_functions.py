"""What random kernels call besides Triton's own functions: how two elements, or pairs of them, are combined."""

import triton
import triton.language as tl


@triton.jit
def keep_last(a, b):
    return b


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def bit_and(a, b):
    return a & b


@triton.jit
def compose(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def larger_first(v1, i1, v2, i2):
    first = (v1 > v2) | ((v1 == v2) & (i1 < i2))
    return tl.where(first, v1, v2), tl.where(first, i1, i2)


@triton.jit
def by_cases(a, b):
    if a > b:
        if a > 10:
            return a - b
        return a + b
    if b == 3:
        return a * 2
    return b - a


@triton.jit
def exchanged(pair):
    return pair[1], pair[0]
