"""Convolutions with what follows them.

``mkldnn::_convolution_pointwise`` and its forms with an addition, which Inductor makes of frozen graphs
(``torch._inductor.config.freezing``), have kernels for the CPU alone in a stock wheel. Here they are one oneDNN
primitive with post-ops, or the operators one by one where oneDNN has no such primitive. So is
``anyxpu::_convolution_pointwise``, which other graphs get from :mod:`anyxpu.inductor.convolutions`, and which takes a
batch norm along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, functions
from anyxpu.onednn.capi import Algorithm, Arg
from anyxpu.onednn.convolution import (
    CACHE,
    CHANNELS,
    FORGETS_GAPS,
    FORGETS_ROWS,
    FORWARD,
    Builder,
    Geometry,
    Problem,
    Step,
    describe,
    facts,
    forgets_gaps,
    forgets_rows,
    math_mode,
    readable,
    result_format,
)
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, Fallback, count, named
from anyxpu.onednn.folded import Folded, Norm
from anyxpu.onednn.functions import Unary
from anyxpu.onednn.matmul import SIXTEEN_BITS

_WHAT = "a convolution"


@dataclass(frozen=True)
class _Call:
    """``unary(norm(convolution(source)) + alpha * other)``.

    Attributes:
        unary: a function and its parameters.
        slopes: of a prelu, float32: one, or one a channel.
        channels_last: the result's layout.
        into: where the result goes; ``other`` itself in the form that works in place.
    """

    source: Tensor
    weight: Tensor
    bias: Tensor | None
    geometry: Geometry
    unary: Unary | None
    channels_last: bool
    other: Tensor | None = None
    alpha: float = 1.0
    into: Tensor | None = None
    norm: Norm | None = None
    slopes: Tensor | None = None

    @property
    def operands(self) -> str:
        """For the record of fallbacks."""
        return f"{str(self.source.dtype).removeprefix('torch.')} on {self.source.device}"

    def key(self) -> tuple[Any, ...]:
        """Of the cache of plans."""
        tensors = (self.source, self.weight, self.bias, self.other, self.into)
        modes = math_mode(self.source.dtype), torch._C._get_deterministic_algorithms()
        norm = None if self.norm is None else self.norm.key()
        facts_ = (t if t is None else facts(t) for t in tensors)
        slopes = None if self.slopes is None else (self.slopes.numel(), self.slopes.get_device())
        return ("fused", *facts_, slopes, self.geometry, self.alpha, self.unary, self.channels_last, norm, modes)


def _one_by_one(call: _Call) -> Tensor:
    g = call.geometry
    steps = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups)
    result = torch.ops.aten.convolution(call.source, call.weight, call.bias, *steps)
    if call.norm is not None:
        result = call.norm.apply(result)
    if call.other is not None:
        result = torch.add(result, call.other, alpha=call.alpha)
    result = functions.apply(call.unary, result, call.slopes)
    if call.into is not None:
        return call.into.copy_(result)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats[result.dim()] if call.channels_last else torch.contiguous_format
    return result.contiguous(memory_format=layout)


class _Composed:
    """The operators one by one."""

    def __init__(self, call: _Call, reason: str | capi.Unavailable) -> None:
        if isinstance(reason, str):
            self.fallback = Fallback("convolution", call.operands, reason, COMPOSED)
        else:
            self.fallback = named("convolution", call.operands, call.source.device, reason, COMPOSED)

    def run(self, call: _Call) -> Tensor:
        count(self.fallback)
        return _one_by_one(call)


class _Fused:
    """One primitive.

    Args:
        beside: what is added is an operand of its own. Else the primitive adds to what it finds in its result.
    """

    def __init__(self, step: Step, beside: bool) -> None:
        self.step, self.beside = step, beside

    def run(self, call: _Call) -> Tensor:
        into, other = call.into, call.other
        operands = [call.source, call.weight]
        if call.bias is not None:
            operands.append(call.bias)
        if other is not None and self.beside:
            operands.append(other)
        elif other is not None and into is None:
            into = self.step.fresh()[0].copy_(other)
        return self.step.run(*operands, into=into, slopes=call.slopes)[0]


class _Normed:
    """One primitive with a norm in its weights, or the operators one by one where such weights cannot be kept."""

    def __init__(self, folded: Folded, call: _Call, alone: bool) -> None:
        self.folded, self.alone = folded, alone
        self.fallback = _Composed(call, "what a norm is folded into cannot be kept")

    def run(self, call: _Call) -> Tensor:
        assert call.norm is not None
        parts = self.folded.find(call.weight, call.bias, call.norm)
        if parts is None:
            return self.fallback.run(call)
        step, dtype = self.folded.step, self.folded.dtype
        others = []
        if call.other is not None:
            same = call.other.dtype == dtype and call.other.stride() == step.results[0][1]
            others.append(call.other if same else step.fresh()[0].copy_(call.other))
        result = step.run(call.source.to(dtype), *parts, *others, slopes=call.slopes)[0].to(call.source.dtype)
        return functions.apply(call.unary, result) if self.alone else result


class _Followed:
    """One primitive, then the function by a kernel of its own, where that is the faster way. Of 16 bits it is rounded
    in between, as in eager mode."""

    def __init__(self, step: Step) -> None:
        self.step = step

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


Plan = _Fused | _Followed | _Normed | _Composed | _Widened


def _plan(call: _Call) -> Plan:
    source, other = call.source, call.other
    tensors = {Arg.SRC: source, Arg.WEIGHTS: call.weight}
    if call.bias is not None:
        tensors[Arg.BIAS] = call.bias
    with_bias = call.bias is not None or call.norm is not None
    problem = describe(tensors, with_bias, call.geometry, source, call.weight, math_mode(source.dtype))
    if isinstance(problem, str):
        return _Composed(call, problem)
    if call.slopes is not None and not _fits(call.slopes, problem):
        return _Composed(call, "the slopes are of another number than channels, or elsewhere")
    if source.dtype == torch.float64:
        return _Composed(call, "what follows it is computed in float32")
    if (gaps := forgets_gaps(problem)) or forgets_rows(problem):
        return _Composed(call, FORGETS_GAPS if gaps else FORGETS_ROWS)
    alone = call.unary is not None and other is None and functions.is_costly(call.unary[0], source.device)
    slopes = None if call.slopes is None else CHANNELS if call.slopes.numel() > 1 else 0
    attributes = replace(problem.attributes, eltwise=() if alone else functions.eltwise(call.unary), slopes=slopes)
    problem = replace(problem, channels_last=call.channels_last)
    beside, strides = False, {arg: t.stride() for arg, t in tensors.items()}
    if other is not None:
        if other.shape != problem.result or other.dtype != source.dtype:
            return _Composed(call, "what is added has another shape or dtype")
        # Measured with oneDNN 3.13 and AVX2, 1x1 convolutions of ResNet-50's sizes: 0.75 to 1.15 of the time of a copy
        # that is added to.
        dense = problem.dense_strides(problem.result)
        beside = call.norm is not None or (call.into is None and call.alpha == 1 and other.stride() == dense)
        if beside:
            operand = (Algorithm.BINARY_ADD, problem.result, dense, other.dtype)
            attributes, strides[Arg.FIRST_POST_OP] = replace(attributes, binary=operand), dense
        else:
            attributes = replace(attributes, beta=call.alpha)
    if call.into is not None and call.into.stride() != problem.dense_strides(problem.result):
        return _Composed(call, "the result has another layout")
    problem = replace(problem, attributes=attributes)
    try:
        if call.norm is not None:
            return _Normed(_folded(problem, strides, call.norm), call, alone)
        step = Builder(problem).step(FORWARD, strides)
        return _Followed(step) if alone else _Fused(step, beside)
    except capi.Unavailable as error:
        return _Widened(call, error) if source.dtype in SIXTEEN_BITS and call.norm is None else _Composed(call, error)


def _fits(slopes: Tensor, problem: Problem) -> bool:
    return slopes.numel() in (1, problem.result[1]) and slopes.device == problem.device


def _folded(problem: Problem, strides: dict[Arg, tuple[int, ...]], norm: Norm) -> Folded:
    """In float32 where oneDNN lacks 16 bits."""
    try:
        return Folded(problem, strides, norm)
    except capi.Unavailable:
        if problem.dtype not in SIXTEEN_BITS:
            raise
    attributes = replace(problem.attributes, math_mode=math_mode(torch.float32))
    if attributes.binary is not None:
        attributes = replace(attributes, binary=(*attributes.binary[:-1], torch.float32))
    return Folded(replace(problem, dtype=torch.float32, attributes=attributes), strides, norm)


def _run(call: _Call) -> Tensor:
    bias = None if call.bias is None else call.bias.contiguous()
    slopes = None if call.slopes is None else call.slopes.reshape(-1).float().contiguous()
    call = replace(call, source=readable(call.source), weight=readable(call.weight), bias=bias, slopes=slopes)
    plan: Plan = CACHE.get(call.key(), _plan, call)
    return plan.run(call)


def _is_channels_last(source: Tensor) -> bool:
    """The result's layout, as Inductor reckons with it for torch's own operators."""
    return not source.is_contiguous() and source.stride(0) != 0


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
    geometry = _geometry(padding, stride, dilation, groups)
    return _run(_Call(source, weight, bias, geometry, unary, _is_channels_last(source)))


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
    return _run(_Call(source, weight, bias, geometry, function, _is_channels_last(source)))


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
    geometry = _geometry(padding, stride, dilation, groups)
    return _run(_Call(source, weight, bias, geometry, unary, _is_channels_last(source), other, factor))


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
    geometry = _geometry(padding, stride, dilation, groups)
    return _run(_Call(source, weight, bias, geometry, unary, _is_channels_last(source), other, factor, other))


def convolution_chain(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    eps: float,
    other: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    attr: str | None,
    scalars: Sequence[float | None],
    algorithm: str | None,
    slopes: Tensor | None = None,
) -> Tensor:
    """anyxpu::_convolution_pointwise: a convolution, a batch norm in inference, ``other``, a function, as far as given.

    Args:
        source, weight, bias: as aten::convolution has them, of one to three spatial dimensions.
        mean, variance, scale, shift, eps: of the norm; no mean is no norm.
        other: added before the function; of the result's shape.
        attr, scalars, algorithm: as :func:`convolution_pointwise` has them, or ``prelu``.
        slopes: a prelu's, one or one a channel, of any floating dtype and rank.

    Returns:
        A tensor in the layout that torch predicts for the convolution.

    Raises:
        ValueError: there is no such function here.
    """
    unary = functions.unary(attr, scalars, algorithm, _WHAT, slopes)
    slopes = slopes if unary == functions.PRELU else None
    last = result_format(source, weight) != torch.contiguous_format
    norm = None if mean is None or variance is None else Norm(mean, variance, scale, shift, eps)
    geometry = _geometry(padding, stride, dilation, groups)
    return _run(_Call(source, weight, bias, geometry, unary, last, other, norm=norm, slopes=slopes))


def _factor(binary_attr: str, alpha: float | None) -> float:
    if binary_attr != "add":
        raise ValueError(f"no {binary_attr!r} after a convolution on xpu; there is add")
    return 1.0 if alpha is None else float(alpha)
