"""Convolutions of compiled graphs with what follows them, as one oneDNN primitive.

Inductor's own passes do it in frozen graphs alone, and take a bias away from a convolution on a GPU. Here a convolution
keeps its bias and takes along a batch norm in inference, a tensor that is added and a function (relu, leaky_relu,
hardswish …), wherever nobody else wants what lies between, and where that leaves no kernel to be launched after it. A
frozen graph's takes along the functions that those passes do not know: elu, mish, and prelu with its slopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from anyxpu.inductor.expressions import Expression, Parameter, is_closed
from anyxpu.inductor.following import DTYPES, Followed, following, function_of, is_at_hand, value_of
from anyxpu.onednn.primitive import keeps_copies

aten = torch.ops.aten
_OPERATOR = torch.ops.anyxpu._convolution_pointwise
_CONVOLUTION = aten.convolution.default
_EPS = Parameter(0.0078125)

_lowered: set[Any] = set()
"""The operator, once Inductor compiles it (:func:`lower`)."""


@dataclass
class _Norm:
    """A batch norm in inference.

    Attributes:
        mean, variance, scale, shift: parameters and buffers of the graph.
        end: whose value it makes.
        nodes: how many make it.
    """

    mean: Node
    variance: Node
    scale: Node | None
    shift: Node | None
    eps: float
    end: Node
    nodes: int


@dataclass
class _Convolution:
    """A convolution in a graph, and as much of what follows as belongs to it.

    Attributes:
        sum: with another tensor, after the norm.
        function: after that.
    """

    node: Node
    norm: _Norm | None
    sum: Node | None = None
    function: Followed | None = None

    @property
    def normed(self) -> Node:
        """Whose value it makes with its norm."""
        return self.node if self.norm is None else self.norm.end


def fuse(graph: Graph) -> None:
    """Let every convolution of the graph take along what follows it."""
    from torch._dynamo.utils import counters
    from torch._inductor import config

    if not _lowered or config.max_autotune or config.max_autotune_conv_backends != _BACKENDS:
        return
    if config.emulate_precision_casts:
        return  # rounding in between is asked for
    with_norms = keeps_copies() and _is_inference(graph)
    found = [_convolution(node, with_norms) for node in graph.find_nodes(op="call_function", target=_CONVOLUTION)]
    all_ = [each for each in found if each is not None]
    ends = {each.normed for each in all_ if each.norm is not None}
    for each in all_:
        each.function = function_of(each.normed, with_slopes=True)
    sums: set[Node] = set()
    for each in reversed(all_):  # of two that are added, the later one takes along the other, which is there by then
        if each.function is None:
            user = _addition(each.normed, ends)
            if user is not None and user not in sums:
                sums.add(user)
                each.sum, each.function = user, function_of(user, with_slopes=True)
    for each in all_:
        for kind, nodes in _put(graph, each, sums).items():
            counters["inductor"][f"{kind}_matcher_count"] += 1
            counters["inductor"][f"{kind}_matcher_nodes"] += nodes
    for nodes in _complete(graph):
        counters["inductor"]["mkldnn_unary_fusion_matcher_count"] += 1
        counters["inductor"]["mkldnn_unary_fusion_matcher_nodes"] += nodes


_BACKENDS = "ATEN,TRITON"
"""What Inductor chooses from where nobody asks for anything else."""


def _is_inference(graph: Graph) -> bool:
    """Whether no gradients are wanted, so that parameters stay as they are: autograd's graphs name what they get."""
    return not any(node.name.startswith(("primals", "tangents")) for node in graph.find_nodes(op="placeholder"))


def _convolution(node: Node, with_norms: bool) -> _Convolution | None:
    """The convolution at ``node``, with its norm, where it can be one primitive."""
    value, (source, weight, bias, *_, transposed, _, _) = value_of(node), node.args
    if value is None or value.device.type != "xpu" or value.dtype not in DTYPES or transposed or node.kwargs:
        return None
    operands = [value_of(t) for t in (source, weight, bias) if t is not None]
    if any(t is None or t.dtype != value.dtype for t in operands) or not 3 <= value.dim() <= 5:
        return None
    kept = with_norms and all(_is_parameter(t) for t in (weight, bias) if t is not None)
    return _Convolution(node, _norm(node, value) if kept else None)


def _is_parameter(node: Any) -> bool:
    """Whether it is of the model, and this is all that is made of it in this graph."""
    return value_of(node) is not None and node.op in ("placeholder", "get_attr") and len(node.users) == 1


def _norm(node: Node, value: Tensor) -> _Norm | None:
    """The batch norm of the convolution's value, that nobody else looks into."""
    best = None
    for end in following(node):
        for expression in _norms(value.dtype, value.dim()):
            found = expression.find(end, node) if expression.end.target == end.target else None
            if found is None or not is_closed(found, end, node) or (best and best.nodes >= len(found.nodes)):
                continue
            operands = [found.operands.get(place) for place in range(4)]
            eps = found.parameters.get(_EPS.value)
            result = value_of(end)
            if eps is None or result is None or (result.dtype, result.shape) != (value.dtype, value.shape):
                continue
            if not all(_is_parameter(t) and value_of(t).shape == value.shape[1:2] for t in operands if t is not None):  # type: ignore[union-attr]
                continue
            mean, variance, scale, shift = operands
            assert mean is not None and variance is not None
            best = _Norm(mean, variance, scale, shift, eps, end, len(found.nodes))
    return best


@cache
def _norms(dtype: torch.dtype, rank: int) -> list[Expression]:
    """Batch norms by what they are of: parameters of that dtype or of float32, with a scale and a shift or without."""

    def with_both(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Any:
        return aten._native_batch_norm_legit_no_training(x, scale, shift, mean, variance, 0.1, eps)[0]

    def bare(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Any:
        return aten._native_batch_norm_legit_no_training(x, None, None, mean, variance, 0.1, eps)[0]

    x = torch.ones((1, 2, *(1,) * (rank - 2)), dtype=dtype)
    made = []
    for kind in {dtype, torch.float32}:
        numbers = [torch.ones(2, dtype=kind) for _ in range(4)]
        made.append(Expression(with_both, (x, *numbers), (_EPS,)))
        made.append(Expression(bare, (x, *numbers[:2]), (_EPS,)))
    return made


def _addition(start: Node, ends: set[Node]) -> Node | None:
    """The sum with a tensor of its shape that is all that ``start`` is used for."""
    if len(start.users) != 1:
        return None
    (user,) = start.users
    value, result = value_of(start), value_of(user)
    if user.target != aten.add.Tensor or user.kwargs or value is None or result is None:
        return None
    others = [a for a in user.args if a is not start]
    if len(others) != 1 or not isinstance(others[0], Node) or result.dtype != value.dtype:
        return None
    other: Node = others[0]
    of_other = value_of(other)
    if other in ends and len(other.users) == 1:  # a convolution's, that becomes one primitive
        return user if of_other is not None and of_other.shape == value.shape else None
    return user if is_at_hand(other, value) else None


def _put(graph: Graph, convolution: _Convolution, sums: set[Node]) -> dict[str, int]:
    """Put one operator in the place of a convolution and what it takes along, if it takes anything.

    Returns:
        Inductor's words for what became of it, with how many nodes that replaces.
    """
    norm, added, function = convolution.norm, convolution.sum, convolution.function
    if function is None and added is None and (norm is None or not _ends_here(norm.end, sums)):
        return {}  # a kernel follows anyhow, and takes the norm along
    other, counted = None, {}
    if norm is not None:
        counted["norm_folding"] = norm.nodes + 1
    if added is not None:
        (other,) = (a for a in added.args if a is not convolution.normed)
        counted["mkldnn_conv_binary_fusion" if function is None else "mkldnn_conv_binary_unary_fusion"] = 2
    elif function is not None:
        counted["mkldnn_unary_fusion"] = function.nodes + 1
    end = function.end if function else added or convolution.normed
    source, weight, bias, stride, padding, dilation, _, _, groups = convolution.node.args
    four = (None,) * 4 if norm is None else (norm.mean, norm.variance, norm.scale, norm.shift)
    with graph.inserting_before(end):
        operands = (source, weight, bias, *four, norm.eps if norm else 0.0, other, stride, padding, dilation, groups)
        arguments = (*function.arguments, function.slopes) if function else ("none", [-1], "", None)
        result = graph.call_function(_OPERATOR.default, (*operands, *arguments))
        result.meta.update(end.meta)
        result.meta["val"] = convolution.node.meta["val"]
    end.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    return counted


def _complete(graph: Graph) -> Iterator[int]:
    """Let a frozen graph's convolutions take along the functions that Inductor's own passes leave to a kernel.

    Yields:
        Of each how many nodes that replaces.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for node in graph.find_nodes(op="call_function", target=torch.ops.mkldnn._convolution_pointwise.default):
        value, (source, weight, bias, padding, stride, dilation, groups, attr, *_) = value_of(node), node.args
        if value is None or value.device.type != "xpu" or value.dtype not in DTYPES or attr != "none":
            continue
        function = function_of(node, with_slopes=True)
        if function is None:
            continue
        with graph.inserting_before(function.end):
            steps = (None, None, None, None, 0.0, None, stride, padding, dilation, groups)
            operands = (source, weight, bias, *steps, *function.arguments, function.slopes)
            result = graph.call_function(_OPERATOR.default, operands)
            result.meta.update(function.end.meta)
            result.meta["val"] = value
        function.end.replace_all_uses_with(result)
        yield function.nodes + 1


def _ends_here(end: Node, sums: set[Node]) -> bool:
    """Whether no kernel reads it that could compute it on the way."""
    whole = (_CONVOLUTION, _OPERATOR.default)
    return all(user.op == "output" or user.target in whole or user in sums for user in end.users)


def lower(module: ModuleType) -> None:
    """Compile the operator, with operands as ``torch._inductor.kernel.conv`` wants those of a convolution.

    Activations are channels-last where Inductor has the graph's convolutions so; weights stay as they are.
    """
    from torch._inductor.lowering import fallback_handler, lowerings

    ir, operator = module.ir, _OPERATOR.default
    as_it_is = fallback_handler(operator, add_to_fallback_set=False)

    def lowering(source: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        from torch._inductor.virtualized import V

        *four, eps, other, stride, padding, dilation, groups, name, scalars, algorithm, slopes = rest
        source.realize()
        weight.realize()
        if V.graph.layout_opt and len(source.get_size()) == 4:
            V.graph.num_channels_last_conv += 1
            order = ir.NHWC_STRIDE_ORDER
        else:
            steps = {"stride": stride, "padding": padding, "dilation": dilation, "transposed": False}
            more = {"output_padding": [0] * len(stride), "groups": groups}
            layout = module.conv_layout(source, weight, None, **steps, **more)
            order = ir.get_stride_order(V.graph.sizevars.guarding_hints_or_throw(layout.stride))
        source = ir.ExternKernel.require_stride_order(source, order)
        if other is not None:
            other = ir.ExternKernel.require_stride_order(other, order)
        steps_ = (stride, padding, dilation, groups)
        return as_it_is(source, weight, bias, *four, eps, other, *steps_, name, scalars, algorithm, slopes)

    lowerings[operator] = lowering
    _lowered.add(operator)


def prefer_channels_last(module: ModuleType) -> None:
    """Have ``torch._inductor.graph`` count the operator among convolutions when it decides on layouts."""
    original = module.is_mkldnn_conv

    def is_mkldnn_conv(node: Node) -> bool:
        return node.target is _OPERATOR.default or bool(original(node))

    module.is_mkldnn_conv = is_mkldnn_conv  # type: ignore[attr-defined]
