"""Convolution, transposed or not, forward and backward, in one to three dimensions.

torch reaches a backend like this one through two operators, ``convolution_overrideable`` and
``convolution_backward_overrideable``; shapes are checked before they come here. The layout of every result is the one
torch predicts for xpu: channels-last where the input or the weight is, contiguous otherwise. oneDNN picks the layouts
its kernels like (weights always, activations where they are contiguous) and the operands are reordered to and from
them.

As in matmul, ``NotImplemented`` is returned for a call that oneDNN does not serve, and why is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Algorithm, Arg, Prop
from anyxpu.onednn.fallbacks import FLOAT32, HOST, Declined, Fallback, count, named
from anyxpu.onednn.matmul import FLOATS, SIXTEEN_BITS, contiguous_strides
from anyxpu.onednn.primitive import (
    Attributes,
    Change,
    Executable,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    describable,
    dims,
    form,
    reorder,
    run,
)
from anyxpu.shim import lib

CACHE: SignatureCache[Any] = SignatureCache(capacity=1024)

_fp32_precision = torch._C._get_fp32_precision_getter
_deterministic = torch._C._get_deterministic_algorithms

gradients_as_predicted = False
"""Set where torch cannot be had to predict :func:`gradient_format`: compiled graphs rely on what it predicts."""

CHANNELS = 1 << 1
"""oneDNN's mask of the dimension that channels have in activations."""

# Directions of the work, and of each: the operands read, and the one to three results.
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "forward", "backward_data", "backward_weights"


@dataclass(frozen=True)
class Geometry:
    """What a convolution does along its 1 to 3 spatial dimensions.

    Attributes:
        stride, padding, dilation, output_padding: one entry a dimension, as torch's convolution has them.
        transposed: the gradient of a convolution with regard to its input, as an operator of its own.
        groups: input and output channels are split into that many independent convolutions.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def leaves_gaps(self, source: Sequence[int], kernel: Sequence[int], result: Sequence[int]) -> bool:
        """Are there results that no element of the source reaches, between others or at an end?

        Args:
            source, kernel, result: their spatial sizes.
        """
        if not self.transposed:
            return False
        each = zip(source, kernel, result, self.stride, self.padding, self.dilation, strict=True)
        return any(
            len({o for i in range(n) for k in range(taps) if 0 <= (o := i * step + k * d - pad) < out}) < out
            for n, taps, out, step, pad, d in each
        )

    @property
    def kind(self) -> str:
        """oneDNN's name of the primitive."""
        return "deconvolution" if self.transposed else "convolution"

    @property
    def algorithm(self) -> Algorithm:
        return Algorithm.DECONVOLUTION_DIRECT if self.transposed else Algorithm.CONVOLUTION_DIRECT

    def output_shape(self, source: Sequence[int], weight: Sequence[int]) -> tuple[int, ...]:
        """``(batch, channels, *spatial)`` of the result for such an input and weight."""
        spatial = []
        for i, (size, kernel) in enumerate(zip(source[2:], weight[2:], strict=True)):
            reach = self.dilation[i] * (kernel - 1)
            if self.transposed:
                full = (size - 1) * self.stride[i] + reach + 1
                spatial.append(full - 2 * self.padding[i] + self.output_padding[i])
            else:
                spatial.append((size + 2 * self.padding[i] - reach - 1) // self.stride[i] + 1)
        channels = weight[1] * self.groups if self.transposed else weight[0]
        return (source[0], channels, *spatial)

    def expressible(self) -> bool:
        """Whether oneDNN can say it: it cannot put whole strides of untouched rows behind the result."""
        rows = zip(self.output_padding, self.padding, self.stride, strict=True)
        return all(extra - padding < stride for extra, padding, stride in rows)

    def window(self, source: Sequence[int], weight: Sequence[int], result: Sequence[int]) -> tuple[Any, ...]:
        """oneDNN's strides, dilations, padding before and padding after, as four dnnl_dims_t.

        The padding after is what makes the sizes fit exactly: less than the padding before where a stride skips the
        last rows or ``output_padding`` adds some.
        """
        small, large = (source, result) if self.transposed else (result, source)
        after = [
            (small[i + 2] - 1) * self.stride[i] + self.dilation[i] * (weight[i + 2] - 1) + 1 - large[i + 2] - pad
            for i, pad in enumerate(self.padding)
        ]
        # Along a size of 1 no step is taken; the least that oneDNN accepts keeps clear of :func:`forgets_rows`.
        stride = [
            max(1, 1 - behind) if small[i + 2] == 1 else step
            for i, (step, behind) in enumerate(zip(self.stride, after, strict=True))
        ]
        return dims(stride), dims([d - 1 for d in self.dilation]), dims(self.padding), dims(after)


@dataclass(frozen=True)
class Problem:
    """Everything but the addresses.

    Attributes:
        source, weight, result: torch's shapes; the same for forward and backward.
        bias: whether the result has a bias (its gradient is wanted, in the backward direction).
        channels_last: the layout of activations and of their gradients.
        weight_last: the layout of the weight's gradient.
    """

    geometry: Geometry
    dtype: torch.dtype
    device: torch.device
    source: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    bias: bool
    channels_last: bool
    weight_last: bool
    attributes: Attributes

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.geometry.kind} of {self.source} with {self.weight} {dtype}, {self.geometry}"

    def dense_strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of a fresh tensor in the layout of this problem."""
        return channels_last_strides(shape) if self.channels_last else contiguous_strides(shape)

    def gradient_strides(self, arg: Arg, shape: Sequence[int]) -> tuple[int, ...]:
        """Of a fresh gradient."""
        last = self.weight_last if arg == Arg.DIFF_WEIGHTS else self.channels_last and len(shape) > 1
        return channels_last_strides(shape) if last else contiguous_strides(shape)

    def weight_operand(self, strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of a torch weight as oneDNN reads it: ``[groups,] out, in, *kernel``.

        torch keeps ``out, in / groups`` first, and ``in, out / groups`` for a transposed convolution.
        """
        groups, (first, second) = self.geometry.groups, self.weight[:2]
        shape: tuple[int, ...] = (first // groups, second)
        steps: tuple[int, ...] = tuple(strides[:2])
        if self.geometry.transposed:
            shape, steps = shape[::-1], steps[::-1]
        if groups > 1:
            shape, steps = (groups, *shape), (first // groups * strides[0], *steps)
        return (*shape, *self.weight[2:]), (*steps, *strides[2:])


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a fresh tensor ``(batch, channels, *spatial)`` in that layout."""
    batch, channels, *spatial = shape
    permuted = contiguous_strides((batch, *spatial, channels))
    return (permuted[0], permuted[-1], *permuted[1:-1])


_FEW_CHANNELS = 16  # as of pictures


class Step:
    """One primitive of a convolution with the reorders around it.

    Args:
        problem: the convolution.
        description: the chosen primitive.
        inputs: argument and torch's layout of each operand read.
        outputs: the same for each result, with its shape.
        slopes: argument and layout of a prelu's, if one follows.
    """

    def __init__(
        self,
        problem: Problem,
        description: PrimitiveDesc,
        inputs: dict[Arg, MemoryDesc],
        outputs: dict[Arg, tuple[tuple[int, ...], tuple[int, ...], MemoryDesc]],
        slopes: dict[Arg, MemoryDesc],
    ) -> None:
        home, what = engine.engine(problem.device.index), str(problem)
        self.device, self.index, self.dtype = problem.device, problem.device.index, problem.dtype
        self.executable = Executable(home, description, (*inputs, *outputs), slopes)
        self.before: list[Change | None] = []
        for arg, given in inputs.items():
            wanted = self.executable.layout(arg)
            number = form(given.blob(), wanted.blob()) if arg == Arg.WEIGHTS else None
            self.before.append(None if wanted == given else Change(home, given, wanted, what, number))
        self.after: list[tuple[Executable, int] | None] = []
        self.results = []
        for arg, (shape, strides, given) in outputs.items():
            made = self.executable.layout(arg)
            same = made == given
            self.after.append(None if same else (reorder(home, made, given, what), made.nbytes))
            self.results.append((shape, strides))

    def run(self, *operands: Tensor, into: Tensor | None = None, slopes: Tensor | None = None) -> list[Tensor]:
        """Enqueue it all on the device's current stream; returns the results.

        Args:
            operands: in the order of the inputs.
            into: the one result, of the layout that was asked for, where it is there already.
            slopes: a prelu's, float32 and dense.
        """
        stream, device = engine.stream(self.index), self.device
        # Kept until everything is enqueued: only then may the allocator hand them to later work of this stream.
        temporaries: list[Tensor] = []
        addresses = []
        for operand, change in zip(operands, self.before, strict=True):
            if change is not None:
                operand = change.run(operand, stream)
                temporaries.append(operand)
            addresses.append(operand.data_ptr())
        if into is not None:
            lib().note_written(into.data_ptr())
        results = [into] if into is not None else self.fresh()
        changes = []
        for result, back in zip(results, self.after, strict=True):
            address = result.data_ptr()
            if back is not None:
                primitive, nbytes = back
                temporary = torch.empty(nbytes, dtype=torch.uint8, device=device)
                temporaries.append(temporary)
                changes.append((primitive, temporary.data_ptr(), address))
                address = temporary.data_ptr()
            addresses.append(address)
        if slopes is not None:
            addresses.append(slopes.data_ptr())
        run(self.executable, stream, device, *addresses)
        for primitive, source, target in changes:
            run(primitive, stream, device, source, target)
        return results

    def fresh(self) -> list[Tensor]:
        """Memory for the results, in their layouts."""
        return [torch.empty_strided(*layout, dtype=self.dtype, device=self.device) for layout in self.results]


class Builder:
    """Makes the steps of one problem; the operands' strides are those of the tensors that will be passed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.what = str(problem)
        self.engine = engine.engine(problem.device.index)

    def step(self, direction: str, strides: dict[Arg, tuple[int, ...]]) -> Step:
        """The step of one direction.

        Args:
            direction: FORWARD, BACKWARD_DATA or BACKWARD_WEIGHTS.
            strides: of the operands read.
        """
        attributes = self.problem.attributes.create(self.what)
        try:
            description = self._describe(direction, attributes)
        finally:
            capi.library().primitive_attr_destroy(attributes)
        shapes = self._shapes()
        inputs = {arg: self._given(arg, shapes[arg], strides[arg]) for arg in _INPUTS[direction] if arg in strides}
        outputs = {}
        for arg in _OUTPUTS[direction]:
            if arg == Arg.DIFF_BIAS and not self.problem.bias:
                continue
            dense = self.problem.gradient_strides(arg, shapes[arg])
            outputs[arg] = (shapes[arg], dense, self._given(arg, shapes[arg], dense))
        return Step(self.problem, description, inputs, outputs, self._slopes())

    def _slopes(self) -> dict[Arg, MemoryDesc]:
        p = self.problem
        if p.attributes.slopes is None:
            return {}
        shape = [1] * len(p.result)
        if p.attributes.slopes == CHANNELS:
            shape[1] = p.result[1]
        return {p.attributes.slopes_arg: MemoryDesc.plain(shape, torch.float32, contiguous_strides(shape))}

    def _shapes(self) -> dict[Arg, tuple[int, ...]]:
        """torch's shape of every operand there may be."""
        p = self.problem
        bias = (p.result[1],)
        return {
            **dict.fromkeys((Arg.SRC, Arg.DIFF_SRC), p.source),
            **dict.fromkeys((Arg.WEIGHTS, Arg.DIFF_WEIGHTS), p.weight),
            **dict.fromkeys((Arg.DST, Arg.DIFF_DST, Arg.FIRST_POST_OP), p.result),
            **dict.fromkeys((Arg.BIAS, Arg.DIFF_BIAS), bias),
        }

    def _given(self, arg: Arg, shape: tuple[int, ...], strides: tuple[int, ...]) -> MemoryDesc:
        """The layout of a torch tensor that is this operand."""
        if arg in (Arg.WEIGHTS, Arg.DIFF_WEIGHTS):
            shape, strides = self.problem.weight_operand(strides)
        return MemoryDesc.plain(shape, self.problem.dtype, strides)

    def _wanted(self, shape: tuple[int, ...]) -> MemoryDesc:
        """What to ask of oneDNN for an activation: channels-last as it is, otherwise the layout it likes best."""
        if self.problem.channels_last:
            return MemoryDesc.plain(shape, self.problem.dtype, self.problem.dense_strides(shape))
        return MemoryDesc.any(shape, self.problem.dtype)

    def _likes_blocks(self) -> bool:
        """Whether reordering counts for more than the convolution itself: on a CPU, where channels come last neither
        before nor behind it, and an element of the result is made of few."""
        p = self.problem
        if p.channels_last or p.geometry.transposed or lib().properties(p.device.index).type != "cpu":
            return False
        return p.geometry.groups > 1 or p.source[1] < _FEW_CHANNELS or math.prod(p.weight[2:]) == 1

    @staticmethod
    def _in_blocks(forward_of: Callable[[Prop], PrimitiveDesc]) -> PrimitiveDesc | None:
        """What oneDNN chooses for training: channels in blocks, where for inference it has them last on a CPU.

        Planes are reordered into blocks in a fraction of the time. With AVX2, where each channel is by itself a whole
        call is 2 to 3 times as fast so, of 1 x 1 1.3 to 1.8 times, of 3 channels 1.6 times; of 3 x 3 and 512 channels
        0.8 times, so that such are not asked for.
        """
        try:
            found = forward_of(Prop.FORWARD_TRAINING)
        except capi.Unavailable:
            return None
        return None if found.is_reference() else found

    def _describe(self, direction: str, attributes: int) -> PrimitiveDesc:
        p, geometry = self.problem, self.problem.geometry
        source, result = self._wanted(p.source), self._wanted(p.result)
        if p.attributes.beta or p.attributes.binary:  # what is added, or added to, lies where torch put it
            result = MemoryDesc.plain(p.result, p.dtype, p.dense_strides(p.result))
        weight = MemoryDesc.any(p.weight_operand(contiguous_strides(p.weight))[0], p.dtype)
        bias = MemoryDesc.plain((p.result[1],), p.dtype, (1,)) if p.bias else None
        window = geometry.window(p.source, p.weight, p.result)
        kind, algorithm, what = geometry.kind, int(geometry.algorithm), self.what
        operands: tuple[int | None, ...]
        operands = (source.handle, weight.handle, bias.handle if bias else None, result.handle)

        def forward_of(prop: Prop) -> PrimitiveDesc:
            given = (self.engine.handle, int(prop), algorithm, *operands, *window, attributes)
            return PrimitiveDesc(f"{kind}_forward", *given, what=what)

        if direction == FORWARD:
            found = self._in_blocks(forward_of) if self._likes_blocks() else None
            return found or forward_of(Prop.FORWARD_INFERENCE)
        forward = forward_of(Prop.FORWARD_TRAINING)
        if direction == BACKWARD_DATA:
            operands = (source.handle, weight.handle, result.handle)
        tail = (*window, forward.handle, attributes)
        return PrimitiveDesc(f"{kind}_{direction}", self.engine.handle, algorithm, *operands, *tail, what=what)


_INPUTS = {
    FORWARD: (Arg.SRC, Arg.WEIGHTS, Arg.BIAS, Arg.FIRST_POST_OP),
    BACKWARD_DATA: (Arg.DIFF_DST, Arg.WEIGHTS),
    BACKWARD_WEIGHTS: (Arg.SRC, Arg.DIFF_DST),
}
_OUTPUTS = {
    FORWARD: (Arg.DST,),
    BACKWARD_DATA: (Arg.DIFF_SRC,),
    BACKWARD_WEIGHTS: (Arg.DIFF_WEIGHTS, Arg.DIFF_BIAS),
}


class _Widened:
    """A 16-bit convolution that the device's oneDNN lacks or gets wrong: computed in float32, rounded once."""

    def __init__(self, dtype: torch.dtype, fallback: Fallback) -> None:
        self.dtype, self.fallback = dtype, fallback

    def forward(self, source: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Any:
        wide = forward(source.float(), weight.float(), None if bias is None else bias.float(), *geometry)
        if wide is NotImplemented:
            return wide
        count(self.fallback)
        return wide.to(self.dtype)

    def backward(self, gradient: Tensor, source: Tensor, weight: Tensor, *rest: Any) -> Any:
        wide = backward(gradient.float(), source.float(), weight.float(), *rest)
        if wide is NotImplemented:
            return wide
        count(self.fallback)
        return tuple(None if t is None else t.to(self.dtype) for t in wide)


class Forward:
    """The plan of a convolution that oneDNN serves."""

    def __init__(self, problem: Problem, tensors: dict[Arg, Tensor]) -> None:
        self.step = Builder(problem).step(FORWARD, {arg: t.stride() for arg, t in tensors.items()})

    def forward(self, source: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        operands = (source, weight) if bias is None else (source, weight, bias)
        return self.step.run(*operands)[0]


class _Backward:
    def __init__(self, problem: Problem, tensors: dict[Arg, Tensor], mask: Sequence[bool]) -> None:
        builder = Builder(problem)
        strides = {arg: t.stride() for arg, t in tensors.items()}
        self.mask = tuple(mask)
        self.data = builder.step(BACKWARD_DATA, strides) if mask[0] else None
        self.weights = builder.step(BACKWARD_WEIGHTS, strides) if mask[1] else None

    def backward(self, gradient: Tensor, source: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
        by_source = by_weight = by_bias = None
        if self.data:
            by_source = self.data.run(gradient, weight)[0]
        if self.weights:
            by_weight, *more = self.weights.run(source, gradient)
            by_bias = more[0] if more else None
        elif self.mask[2]:
            by_bias = gradient.sum((0, *range(2, gradient.dim())))
        return by_source, by_weight, by_bias


def result_format(source: Tensor, weight: Tensor) -> torch.memory_format:
    """The memory format that torch predicts for the result on xpu and for the gradient by the input."""
    if source.dim() < 4:
        return torch.contiguous_format
    backend = torch._C._ConvBackend.Overrideable  # type: ignore[attr-defined]
    return torch._C._conv_determine_backend_memory_format(source, weight, backend)


def gradient_format(source: Tensor, weight: Tensor) -> torch.memory_format:
    """The memory format of the gradient by the weight: a contiguous weight's is contiguous.

    torch predicts the result's (:func:`anyxpu.inductor.gradients.like_weights` has it predict this). Autograd copies a
    parameter's gradient into the parameter's layout: that copy of every weight in every step is saved.
    """
    if weight.is_contiguous() and not gradients_as_predicted:
        return torch.contiguous_format
    return result_format(source, weight)


def readable(tensor: Tensor) -> Tensor:
    """The tensor, or a dense copy where oneDNN cannot describe how its elements lie."""
    strides = tensor.stride()
    if 0 not in strides and (tensor.is_contiguous() or describable(tensor.shape, strides)):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


_DO_NOT_FIT = "the operands do not fit together; CPU torch says how, or computes it"


def describe(
    tensors: dict[Arg, Tensor], bias: bool, geometry: Geometry, source: Tensor, weight: Tensor, mode: str
) -> Problem | str:
    """The facts of a call, or why oneDNN does not serve it."""
    dtype, device = source.dtype, source.device
    if dtype not in FLOATS:
        return "convolutions of this dtype are not asked of oneDNN"
    if any(t.dtype != dtype or t.device != device for t in tensors.values()):
        return _DO_NOT_FIT
    if not 3 <= source.dim() <= 5 or weight.dim() != source.dim():
        return _DO_NOT_FIT
    if not geometry.expressible():
        return f"oneDNN cannot say {geometry}: whole strides of untouched rows behind the result"
    if not engine.available():
        return "the driver's queues are not SYCL's"
    shapes = tuple(source.shape), tuple(weight.shape)
    result = geometry.output_shape(*shapes)
    if math.prod(shapes[0]) * math.prod(shapes[1]) * math.prod(result) == 0 or min(result) < 0:
        return "an operand or the result has no elements"
    channels_last = result_format(source, weight) != torch.contiguous_format
    weight_last = gradient_format(source, weight) != torch.contiguous_format
    attributes = Attributes(math_mode=mode, deterministic=_deterministic())
    return Problem(geometry, dtype, device, *shapes, result, bias, channels_last, weight_last, attributes)


def _named(source: Tensor) -> str:
    return f"{str(source.dtype).removeprefix('torch.')} on {source.device}"


def _instead(source: Tensor, geometry: Geometry, why: str | capi.Unavailable) -> Any:
    """The plan of a call that oneDNN does not serve as it comes."""
    operands = _named(source)
    if isinstance(why, str):
        return Declined(Fallback(geometry.kind, operands, why))
    widen = source.dtype in SIXTEEN_BITS
    fallback = named(geometry.kind, operands, source.device, why, FLOAT32 if widen else HOST)
    return _Widened(source.dtype, fallback) if widen else Declined(fallback)


def forgets_gaps(problem: Problem) -> bool:
    """Would oneDNN's primitive leave something out where no element of the source reaches a result?

    Its kernels for 16 bits on CPUs with AMX do (oneDNN 3.13): bias and functions, and some such results are not even
    written.
    """
    sizes = (shape[2:] for shape in (problem.source, problem.weight, problem.result))
    return problem.dtype in SIXTEEN_BITS and problem.geometry.leaves_gaps(*sizes)


def forgets_rows(problem: Problem) -> bool:
    """Would oneDNN's primitive write the first row alone, of a result that is 1 wide?

    Its kernels for bfloat16 on CPUs with AMX do (oneDNN 3.13) where the stride along the width is more than 1.
    """
    geometry, result = problem.geometry, problem.result
    stride = geometry.window(problem.source, problem.weight, result)[0][len(result) - 3]
    return (
        problem.dtype in SIXTEEN_BITS
        and not geometry.transposed
        and result[-1] == 1
        and stride > 1
        and problem.weight[-1] > 1
        and math.prod(result[2:]) > 1
    )


FORGETS_ROWS = "oneDNN's kernels for 16 bits write the first row alone of what is 1 wide"
FORGETS_GAPS = "oneDNN's kernels for 16 bits leave results out that no element of the source reaches"


def _plan_forward(source: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, mode: str) -> Any:
    tensors = {Arg.SRC: source, Arg.WEIGHTS: weight}
    if bias is not None:
        tensors[Arg.BIAS] = bias
    problem = describe(tensors, bias is not None, geometry, source, weight, mode)
    if isinstance(problem, str):
        return _instead(source, geometry, problem)
    if (gaps := forgets_gaps(problem)) or forgets_rows(problem):
        why = FORGETS_GAPS if gaps else FORGETS_ROWS
        return _Widened(source.dtype, Fallback(geometry.kind, _named(source), why, FLOAT32))
    try:
        return Forward(problem, tensors)
    except capi.Unavailable as error:
        return _instead(source, geometry, error)


def _plan_backward(
    gradient: Tensor, source: Tensor, weight: Tensor, geometry: Geometry, mask: tuple[bool, ...], mode: str
) -> Any:
    tensors = {Arg.DIFF_DST: gradient, Arg.SRC: source, Arg.WEIGHTS: weight}
    problem = describe(tensors, mask[2], geometry, source, weight, mode)
    if isinstance(problem, str):
        return _instead(source, geometry, problem)
    if tuple(gradient.shape) != problem.result:
        return _instead(source, geometry, _DO_NOT_FIT)
    try:
        return _Backward(problem, tensors, mask)
    except capi.Unavailable as error:
        return _instead(source, geometry, error)


def facts(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.get_device(), tensor.shape, tensor.stride()


def math_mode(dtype: torch.dtype) -> str:
    return _fp32_precision("mkldnn", "conv") if dtype is torch.float32 else "none"


def forward(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """aten::convolution_overrideable.

    Args:
        source: ``(batch, in, *spatial)`` with 1 to 3 spatial dimensions, float32, bfloat16 or float16
            (float64 on a GPU that computes in it).
        weight: ``(out, in / groups, *kernel)``; ``(in, out / groups, *kernel)`` where ``transposed``.
        bias: ``(out,)`` or None.

    Returns:
        ``(batch, out, *spatial)``; ``NotImplemented`` where oneDNN does not serve the call.
    """
    geometry = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    source, weight = readable(source), readable(weight)
    if bias is not None:
        bias = bias.contiguous()
    mode = math_mode(source.dtype)
    key = (facts(source), facts(weight), None if bias is None else facts(bias), geometry, mode, _deterministic())
    plan = CACHE.get(key, _plan_forward, source, weight, bias, Geometry(*geometry), mode)
    return plan.forward(source, weight, bias, *geometry)


def backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """aten::convolution_backward_overrideable.

    Args:
        gradient: of the result, ``(batch, out, *spatial)``; the other tensors as in :func:`forward`.
        output_mask: which of the gradients by input, weight and bias are wanted.

    Returns:
        The three gradients, None for each that is not wanted; ``NotImplemented`` as in :func:`forward`.
    """
    geometry = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    mask = tuple(output_mask)
    gradient, source, weight = readable(gradient), readable(source), readable(weight)
    mode = math_mode(source.dtype)
    key = (facts(gradient), facts(source), facts(weight), geometry, mask, mode, _deterministic())
    plan = CACHE.get(key, _plan_backward, gradient, source, weight, Geometry(*geometry), mask, mode)
    return plan.backward(gradient, source, weight, *geometry, mask)
