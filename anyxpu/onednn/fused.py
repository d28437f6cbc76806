"""Convolutions with what follows them, which Inductor makes of frozen graphs (``torch._inductor.config.freezing``).

``mkldnn::_convolution_pointwise`` and its forms with an addition have kernels for the CPU alone in a stock wheel. Here
they are one oneDNN primitive with post-ops, or the operators one by one where oneDNN has no such primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, functions
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.convolution import (
    CACHE,
    FORGETS_GAPS,
    FORGETS_ROWS,
    Forward,
    Geometry,
    describe,
    facts,
    forgets_gaps,
    forgets_rows,
    math_mode,
    readable,
)
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, Fallback, count, named
from anyxpu.onednn.functions import Unary
from anyxpu.onednn.matmul import SIXTEEN_BITS

_WHAT = "a convolution"


@dataclass(frozen=True)
class _Call:
    """``unary(convolution(source) + alpha * other)``.

    Attributes:
        unary: a function and its parameters.
        into: where the result goes; ``other`` itself in the form that works in place.
        channels_last: the result's layout, as Inductor reckons with it.
    """

    source: Tensor
    weight: Tensor
    bias: Tensor | None
    geometry: Geometry
    unary: Unary | None
    other: Tensor | None = None
    alpha: float = 1.0
    into: Tensor | None = None

    @property
    def channels_last(self) -> bool:
        return not self.source.is_contiguous() and self.source.stride(0) != 0

    @property
    def operands(self) -> str:
        """For the record of fallbacks."""
        return f"{str(self.source.dtype).removeprefix('torch.')} on {self.source.device}"

    def key(self) -> tuple[Any, ...]:
        """Of the cache of plans."""
        tensors = (self.source, self.weight, self.bias, self.other, self.into)
        modes = math_mode(self.source.dtype), torch._C._get_deterministic_algorithms()
        return ("fused", *(t if t is None else facts(t) for t in tensors), self.geometry, self.alpha, self.unary, modes)


class _Composed:
    """The operators one by one."""

    def __init__(self, call: _Call, reason: str | capi.Unavailable) -> None:
        if isinstance(reason, str):
            self.fallback = Fallback("convolution", call.operands, reason, COMPOSED)
        else:
            self.fallback = named("convolution", call.operands, call.source.device, reason, COMPOSED)

    def run(self, call: _Call) -> Tensor:
        count(self.fallback)
        g = call.geometry
        steps = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups)
        result = torch.ops.aten.convolution(call.source, call.weight, call.bias, *steps)
        if call.other is not None:
            result = torch.add(result, call.other, alpha=call.alpha)
        result = functions.apply(call.unary, result)
        if call.into is not None:
            return call.into.copy_(result)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        layout = formats[result.dim()] if call.channels_last else torch.contiguous_format
        return result.contiguous(memory_format=layout)


class _Fused:
    """One primitive."""

    def __init__(self, forward: Forward) -> None:
        self.step = forward.step

    def run(self, call: _Call) -> Tensor:
        into, other = call.into, call.other
        if other is not None and into is None:  # the primitive adds to what it finds in its result
            into = torch.empty_strided(*self.step.results[0], dtype=other.dtype, device=other.device).copy_(other)
        operands = (call.source, call.weight, call.bias)
        return self.step.run(*(t for t in operands if t is not None), into=into)[0]


class _Followed:
    """One primitive, then the function by a kernel of its own, where that is the faster way. Of 16 bits it is rounded
    in between, as in eager mode."""

    def __init__(self, forward: Forward) -> None:
        self.step = forward.step

    def run(self, call: _Call) -> Tensor:
        operands = (call.source, call.weight, call.bias)
        return functions.apply(call.unary, self.step.run(*(t for t in operands if t is not None))[0])


class _Widened:
    """16 bits where oneDNN lacks them: one primitive in float32, rounded once."""

    def __init__(self, call: _Call, error: capi.Unavailable) -> None:
        self.fallback = named("convolution", call.operands, call.source.device, error, FLOAT32)

    def run(self, call: _Call) -> Tensor:
        count(self.fallback)
        source, weight = call.source.float(), call.weight.float()
        bias, other = (None if t is None else t.float() for t in (call.bias, call.other))
        result = _run(replace(call, source=source, weight=weight, bias=bias, other=other, into=None))
        return result.to(call.source.dtype) if call.into is None else call.into.copy_(result)


Plan = _Fused | _Followed | _Composed | _Widened


def _plan(call: _Call) -> Plan:
    source, other = call.source, call.other
    tensors = {Arg.SRC: source, Arg.WEIGHTS: call.weight}
    if call.bias is not None:
        tensors[Arg.BIAS] = call.bias
    mode = math_mode(source.dtype)
    problem = describe(tensors, call.bias is not None, call.geometry, source, call.weight, mode)
    if isinstance(problem, str):
        return _Composed(call, problem)
    if source.dtype == torch.float64:
        return _Composed(call, "what follows it is computed in float32")
    if (gaps := forgets_gaps(problem)) or forgets_rows(problem):
        return _Composed(call, FORGETS_GAPS if gaps else FORGETS_ROWS)
    alone = call.unary is not None and other is None and functions.is_costly(call.unary[0], source.device)
    attributes = replace(
        problem.attributes,
        beta=0.0 if other is None else call.alpha,
        eltwise=None if alone else functions.eltwise(call.unary),
    )
    problem = replace(problem, attributes=attributes, channels_last=call.channels_last)
    if other is not None and (other.shape != problem.result or other.dtype != source.dtype):
        return _Composed(call, "what is added has another shape or dtype")
    if call.into is not None and call.into.stride() != problem.dense_strides(problem.result):
        return _Composed(call, "the result has another layout")
    try:
        forward = Forward(problem, tensors)
        return _Followed(forward) if alone else _Fused(forward)
    except capi.Unavailable as error:
        return _Widened(call, error) if source.dtype in SIXTEEN_BITS else _Composed(call, error)


def _run(call: _Call) -> Tensor:
    bias = None if call.bias is None else call.bias.contiguous()
    call = replace(call, source=readable(call.source), weight=readable(call.weight), bias=bias)
    plan: Plan = CACHE.get(call.key(), _plan, call)
    return plan.run(call)


def _geometry(padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
    return Geometry(tuple(stride), tuple(padding), tuple(dilation), False, (0,) * len(stride), groups)


def convolution_pointwise(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    attr: str,
    scalars: Sequence[float | None],
    algorithm: str | None,
) -> Tensor:
    """mkldnn::_convolution_pointwise: a function of a convolution in two or three dimensions.

    Args:
        source, weight, bias: as aten::convolution has them.
        attr: the function, one of those Inductor fuses, or ``none``.
        scalars: its parameters (leaky_relu: the slope; hardtanh: least and greatest).
        algorithm: of gelu, ``none`` or ``tanh``.

    Raises:
        ValueError: there is no such function here.
    """
    unary = functions.unary(attr, scalars, algorithm, _WHAT)
    return _run(_Call(source, weight, bias, _geometry(padding, stride, dilation, groups), unary))


def convolution_transpose_pointwise(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    attr: str,
    scalars: Sequence[float | None],
    algorithm: str | None,
) -> Tensor:
    """mkldnn::_convolution_transpose_pointwise: a function of a transposed convolution.

    Args:
        source, weight, bias: as aten::convolution has them where it is transposed.
        attr, scalars, algorithm: as :func:`convolution_pointwise` has them.
    """
    function = functions.unary(attr, scalars, algorithm, "a transposed convolution")
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), True, tuple(output_padding), groups)
    return _run(_Call(source, weight, bias, geometry, function))


def convolution_pointwise_binary(
    source: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    binary_attr: str,
    alpha: float | None,
    unary_attr: str | None,
    unary_scalars: Sequence[float | None],
    unary_algorithm: str | None,
) -> Tensor:
    """mkldnn::_convolution_pointwise.binary: ``other`` of the result's shape is added before the function."""
    factor = _factor(binary_attr, alpha)
    unary = functions.unary(unary_attr, unary_scalars, unary_algorithm, _WHAT)
    return _run(_Call(source, weight, bias, _geometry(padding, stride, dilation, groups), unary, other, factor))


def convolution_pointwise_binary_(
    other: Tensor,
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    binary_attr: str,
    alpha: float | None,
    unary_attr: str | None,
    unary_scalars: Sequence[float | None],
    unary_algorithm: str | None,
) -> Tensor:
    """mkldnn::_convolution_pointwise_.binary: as above, and ``other`` is where the result goes."""
    factor = _factor(binary_attr, alpha)
    unary = functions.unary(unary_attr, unary_scalars, unary_algorithm, _WHAT)
    return _run(_Call(source, weight, bias, _geometry(padding, stride, dilation, groups), unary, other, factor, other))


def _factor(binary_attr: str, alpha: float | None) -> float:
    if binary_attr != "add":
        raise ValueError(f"no {binary_attr!r} after a convolution on xpu; there is add")
    return 1.0 if alpha is None else float(alpha)
