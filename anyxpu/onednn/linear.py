"""Linear layers with what follows them: ``mkldnn::_linear_pointwise`` and its form with a second operand.

They have kernels for the CPU alone in a stock wheel. Here they are one oneDNN matmul with post-ops, or the operators
one by one where oneDNN has no such primitive. ``anyxpu::_linear_pointwise``, which torch lacks for linear layers and
has for convolutions, is both: an operator, then a function. Compiled graphs get them from
:mod:`anyxpu.inductor.epilogues`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.onednn import functions
from anyxpu.onednn.fallbacks import COMPOSED, Fallback, count
from anyxpu.onednn.matmul import SIXTEEN_BITS, Then, product

_WHAT = "a linear layer"
DTYPES = (torch.float32, *SIXTEEN_BITS)


def linear_pointwise(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attr: str,
    scalars: Sequence[float | None],
    algorithm: str | None,
) -> Tensor:
    """mkldnn::_linear_pointwise: a function of a linear layer.

    Args:
        source: ``(…, k)``.
        weight: ``(n, k)``, of any strides.
        bias: ``(n,)``.
        attr: the function, one of those Inductor fuses, or ``none``.
        scalars: its parameters (leaky_relu: the slope; hardtanh: least and greatest).
        algorithm: of gelu, ``none`` or ``tanh``.

    Returns:
        A contiguous tensor ``(…, n)`` of the source's dtype.

    Raises:
        ValueError: there is no such function here.
        RuntimeError: the operands do not fit together.
    """
    function = functions.unary(attr, scalars, algorithm, _WHAT)
    reason = _misfit(source, weight, bias)
    if reason is None:
        result = _product(source, weight, bias, Then(None, functions.eltwise(function)), None)
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
        reason = "oneDNN does not make this product"
    _count(source, reason)
    return functions.apply(function, F.linear(source, weight, bias)).contiguous()


def linear_pointwise_binary(source: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, attr: str) -> Tensor:
    """mkldnn::_linear_pointwise.binary: a linear layer, then an operator (add, sub, mul, div) with ``other``.

    Args:
        source, weight, bias: as :func:`linear_pointwise` has them.
        other: of the result's shape.

    Raises:
        ValueError: there is no such operator here.
        RuntimeError: the operands do not fit together.
    """
    return linear_pointwise_chain(source, other, weight, bias, attr, None, (), None)


def linear_pointwise_chain(
    source: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    binary_attr: str,
    unary_attr: str | None,
    unary_scalars: Sequence[float | None],
    unary_algorithm: str | None,
) -> Tensor:
    """anyxpu::_linear_pointwise: a linear layer, then an operator with ``other``, then a function.

    Args:
        source, weight, bias, other, binary_attr: as :func:`linear_pointwise_binary` has them.
        unary_attr, unary_scalars, unary_algorithm: the function, as :func:`linear_pointwise` has it.

    Raises:
        ValueError: there is no such operator or function here.
        RuntimeError: the operands do not fit together.
    """
    if binary_attr not in functions.BINARY:
        raise ValueError(f"no operator {binary_attr!r} after {_WHAT} on xpu; there are {', '.join(functions.BINARY)}")
    algorithm, operator = functions.BINARY[binary_attr]
    function = functions.unary(unary_attr, unary_scalars, unary_algorithm, _WHAT)
    reason = _misfit(source, weight, bias)
    if reason is None and (other.dtype, other.shape) != (source.dtype, (*source.shape[:-1], weight.shape[0])):
        reason = "what follows has another shape or dtype"
    if reason is None:
        result = _product(source, weight, bias, Then(algorithm, functions.eltwise(function)), other)
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
        reason = "oneDNN does not make this product"
    _count(source, reason)
    return functions.apply(function, operator(F.linear(source, weight, bias), other)).contiguous()


def _misfit(source: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why it is not one primitive, as far as that is seen here."""
    if source.dtype not in DTYPES:
        return "what follows it is computed in float32"
    if weight.dim() != 2 or not source.dim() or 0 in source.shape or 0 in weight.shape:
        return "something is empty, or is no matrix"
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        return "the bias is no row of the result"
    return None


def _product(source: Tensor, weight: Tensor, bias: Tensor | None, then: Then, other: Tensor | None) -> Tensor:
    rows = source if source.dim() == 2 else source.reshape(-1, source.shape[-1])
    if other is not None:
        other = other.reshape(-1, other.shape[-1]).contiguous()
    if bias is not None:
        bias = bias.contiguous()
    result = product(bias, rows, weight.t(), None, 1.0, 0.0 if bias is None else 1.0, then, other)
    if result is NotImplemented or source.dim() == 2:
        return result  # type: ignore[no-any-return]
    return result.view(*source.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]


def _count(source: Tensor, reason: str) -> None:
    operands = f"{str(source.dtype).removeprefix('torch.')} on {source.device}"
    count(Fallback("matmul", operands, reason, COMPOSED))
