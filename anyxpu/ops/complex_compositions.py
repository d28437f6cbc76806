"""Functions of complex numbers that are a few others in a row: logarithms, exponentials, gates, logic, products of all.

As in :mod:`anyxpu.ops.complex_numbers`, whose functions of the parts they are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import complex_numbers as numbers
from anyxpu.ops import pointwise, serve
from anyxpu.shim import lib

Function = Callable[..., Any]


def _of(compute: Callable[[Tensor], Tensor]) -> Function:
    """A function of a complex tensor that this device computes with."""

    def call(x: Tensor) -> Any:
        return compute(x) if numbers._alike(x) else NotImplemented

    return call


def _joined(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.view_as_complex(torch.stack((real, imaginary), -1))


def _over(x: Tensor, number: float) -> Tensor:
    """Both parts by a real number, so that an infinite one leaves the other as it is."""
    return torch.view_as_complex(torch.view_as_real(x) / number)


def _expm1(x: Tensor) -> Tensor:
    half = torch.sin(0.5 * x.imag)
    return _joined(torch.expm1(x.real) * torch.cos(x.imag) - 2 * half * half, torch.exp(x.real) * torch.sin(x.imag))


def _log1p(x: Tensor) -> Tensor:
    """Where 1 + x is near the unit circle, by what its square has more than 1."""
    a, b = x.real, x.imag
    near = 0.5 * torch.log1p(a * (2 + a) + b * b)
    far = torch.log(torch.hypot(a + 1, b))
    return _joined(torch.where(torch.hypot(a, b) < 0.5, near, far), torch.atan2(b, a + 1))


def _sinc(x: Tensor) -> Tensor:
    turned = x * math.pi
    return torch.where(x == 0, torch.ones_like(x), torch.sin(turned) / turned)


def _sigmoid(x: Tensor) -> Tensor:
    return torch.reciprocal(torch.exp(-x) + 1)


def lerp(x: Tensor, end: Tensor, weight: Any) -> Any:
    """aten::lerp.Scalar and lerp.Tensor: from the nearer end, as everywhere in torch."""
    if isinstance(weight, Tensor):
        if not numbers._alike(x, end, weight):
            return NotImplemented
        far = end - x
        return torch.where(weight.abs() < 0.5, x + weight * far, end - far * (1 - weight))
    if not numbers._alike(x, end):
        return NotImplemented
    return x + weight * (end - x) if abs(weight) < 0.5 else end - (end - x) * (1 - weight)


def _logical(join: Function) -> Function:
    def call(x: Tensor, other: Tensor) -> Any:
        if numbers._device(x, other) is None or not (x.is_complex() or other.is_complex()):
            return NotImplemented
        try:
            return join(x != 0, other != 0)
        except RuntimeError:  # of shapes that do not fit: in torch's words
            return NotImplemented

    return call


def product(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """aten::prod: of pairs, then of pairs of those, and so on."""
    if not numbers._alike(x) or dtype not in (None, x.dtype) or x.numel() == 0:
        return NotImplemented
    if dim is not None and not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    if x.dim() == 0:
        return x.clone()
    x, along = (x.reshape(-1), 0) if dim is None else (x, dim % x.dim())
    while (n := x.shape[along]) > 1:
        made = x.narrow(along, 0, n // 2) * x.narrow(along, n // 2, n // 2)
        x = torch.cat([made, x.narrow(along, n - 1, 1)], along) if n % 2 else made
    return x.clone() if keepdim and dim is not None else x.squeeze(along).clone()


def _truth(reduce: Function) -> Function:
    """Of which elements are not zero."""

    def call(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if not numbers._alike(x) or x.numel() == 0:
            return NotImplemented
        return reduce(x != 0) if dim is None else reduce(x != 0, dim, keepdim)

    return call


# Overload of a row of pointwise.py -> what serves its complex calls.
TABLE: dict[str, Function] = {
    "exp2": _of(lambda x: torch.exp(_over(x, 1 / math.log(2)))),
    "expm1": _of(_expm1),
    "log2": _of(lambda x: _over(torch.log(x), math.log(2))),
    "log10": _of(lambda x: _over(torch.log(x), math.log(10))),
    "log1p": _of(_log1p),
    "sinc": _of(_sinc),
    "sigmoid": _of(_sigmoid),
    "silu": _of(lambda x: x * _sigmoid(x)),
    "isnan": _of(lambda x: torch.isnan(x.real) | torch.isnan(x.imag)),
    "lerp.Scalar": lerp,
    "lerp.Tensor": lerp,
    "logical_not": _of(lambda x: x == 0),
    "logical_and": _logical(torch.logical_and),
    "logical_or": _logical(torch.logical_or),
    "logical_xor": _logical(torch.logical_xor),
}
REDUCED: dict[str, Function] = {
    "prod": lambda x, *, dtype=None: product(x, dtype=dtype),
    "prod.dim_int": product,
    "all": _truth(torch.all),
    "all.dim": _truth(torch.all),
    "any": _truth(torch.any),
    "any.dim": _truth(torch.any),
}


def register() -> None:
    """Give the shim what serves complex operands of the operators that it serves itself. Starts no driver."""
    for overload, function in TABLE.items():
        for form in pointwise.forms(overload):
            lib().serve_complex(f"aten::{form}", serve.counted(form, numbers.into_form(form, function)))
    for name, function in REDUCED.items():
        lib().serve_complex(f"aten::{name}", serve.counted(name, function))
