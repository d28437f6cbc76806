"""Functions that a primitive applies to what it computes: Inductor's names of them, oneDNN's and torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.onednn.capi import Algorithm
from anyxpu.runtime.vectors import has_short_vectors

Eltwise = tuple[tuple[Algorithm, float, float], ...]
"""oneDNN's algorithms, one after the other, each with its two factors."""

Unary = tuple[str, tuple[float, ...]]
"""A name of the table below, and the function's parameters."""

# oneDNN's relu makes 0 of NaN, and a NaN that is lost is not found again: it is x * min(max(x * greatest, 0), 1), and
# then 1 * that + 0, which makes 0 of -0. What differs from torch's is the value at -inf, NaN.
RELU: Eltwise = (
    (Algorithm.ELTWISE_HARDSWISH, torch.finfo(torch.float32).max, 0.0),
    (Algorithm.ELTWISE_LINEAR, 1.0, 0.0),
)

# Inductor's name of a function -> oneDNN's with its two factors, given Inductor's scalars; and torch's.
_UNARY: dict[str, tuple[Callable[..., Eltwise], Callable[..., Tensor]]] = {
    "relu": (lambda: RELU, F.relu),
    "leaky_relu": (lambda slope: ((Algorithm.ELTWISE_RELU, slope, 0.0),), F.leaky_relu),
    "sigmoid": (lambda: ((Algorithm.ELTWISE_LOGISTIC, 0.0, 0.0),), torch.sigmoid),
    "tanh": (lambda: ((Algorithm.ELTWISE_TANH, 0.0, 0.0),), torch.tanh),
    "hardswish": (lambda: ((Algorithm.ELTWISE_HARDSWISH, 1 / 6, 0.5),), F.hardswish),
    "hardsigmoid": (lambda: ((Algorithm.ELTWISE_HARDSIGMOID, 1 / 6, 0.5),), F.hardsigmoid),
    "hardtanh": (lambda low, high: ((Algorithm.ELTWISE_CLIP, low, high),), F.hardtanh),
    "swish": (lambda: ((Algorithm.ELTWISE_SWISH, 1.0, 0.0),), F.silu),
    "elu": (lambda alpha: ((Algorithm.ELTWISE_ELU, alpha, 0.0),), F.elu),
    "mish": (lambda: ((Algorithm.ELTWISE_MISH, 0.0, 0.0),), F.mish),
    "gelu none": (lambda: ((Algorithm.ELTWISE_GELU_ERF, 0.0, 0.0),), F.gelu),
    "gelu tanh": (lambda: ((Algorithm.ELTWISE_GELU_TANH, 0.0, 0.0),), lambda x: F.gelu(x, approximate="tanh")),
}

PRELU: Unary = ("prelu", ())
"""Negative numbers times slopes, which are an operand of their own: one, or one a channel."""

# Inductor's name of an operator with a second operand -> oneDNN's and torch's.
BINARY: dict[str, tuple[Algorithm, Callable[..., Tensor]]] = {
    "add": (Algorithm.BINARY_ADD, torch.add),
    "sub": (Algorithm.BINARY_SUB, torch.sub),
    "mul": (Algorithm.BINARY_MUL, torch.mul),
    "div": (Algorithm.BINARY_DIV, torch.div),
}

# Measured with oneDNN 3.13 and AVX2 after products of 394 x 384 x 1536 to 256 x 4096 x 14336, over the product alone:
# these take 24 to 79 %, and up to 12 % as kernels of their own; sigmoid, hardswish and leaky_relu take up to 8 %. Elu
# takes up to 11 % and mish up to 22 % after such products, 2 to 17 % and 3 to 38 % after convolutions of ResNet-50's
# sizes, prelu 1 to 21 % there; each is more as a kernel of its own in every case (prelu 8 to 37 %).
_COSTLY = ("swish", "tanh", "gelu")


def is_costly(name: str, device: torch.device) -> bool:
    """Whether a function takes longer inside oneDNN's primitives than in a kernel after them, on this device.

    Args:
        name: Inductor's, gelu's with or without its algorithm.
    """
    return name.partition(" ")[0] in _COSTLY and has_short_vectors(device)


def unary(
    name: str | None, scalars: Sequence[float | None], algorithm: str | None, after: str, slopes: Tensor | None = None
) -> Unary | None:
    """The function that Inductor calls so, or None for none.

    Args:
        name, scalars, algorithm: as the operators of ``mkldnn::`` have them.
        after: what it follows, for the message.
        slopes: of a ``prelu``, where that is one of the functions.

    Raises:
        ValueError: there is no such function here.
    """
    if name is None or name == "none":
        return None
    if name == PRELU[0] and slopes is not None:
        return PRELU
    if name == "gelu":
        name = f"gelu {algorithm or 'none'}"
    if name not in _UNARY:
        raise ValueError(f"no function {name!r} after {after} on xpu; there are {', '.join(_UNARY)}")
    # The operators want scalars even where a function has none; Inductor then gives [-1].
    wanted = {"leaky_relu": 1, "elu": 1, "hardtanh": 2}.get(name, 0)
    given = tuple(float(s) for s in scalars if s is not None)
    if len(given) < wanted:
        raise ValueError(f"{name!r} after {after} wants {wanted} scalars, not {len(given)}")
    return name, given[:wanted]


def eltwise(function: Unary | None) -> Eltwise:
    """As oneDNN has it; empty for none, and for one with slopes (Attributes.slopes)."""
    return () if function in (None, PRELU) else _UNARY[function[0]][0](*function[1])


def apply(function: Unary | None, x: Tensor, slopes: Tensor | None = None) -> Tensor:
    """As torch has it."""
    if function == PRELU:
        assert slopes is not None
        return F.prelu(x, slopes.to(x.dtype))
    return x if function is None else _UNARY[function[0]][1](x, *function[1])
