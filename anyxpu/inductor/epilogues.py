"""Products of compiled graphs with what follows them, as one oneDNN primitive.

Inductor's own passes make ``mkldnn::_linear_pointwise`` of frozen graphs for the CPU alone, and take a bias away from a
product on a GPU, to add it in the kernel that follows. Here a product keeps its bias and takes along the function of
its result (gelu, silu, tanh …) or the sum or product with another tensor and a function of that, frozen or not, in
inference and in training, wherever nobody else wants what lies between, and where oneDNN's own function is not the
slower way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from anyxpu.inductor.following import DTYPES, VIEWS, function_of, is_at_hand, value_of

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default)
_BINARY = {aten.add.Tensor: "add", aten.mul.Tensor: "mul", aten.sub.Tensor: "sub", aten.div.Tensor: "div"}

_lowered: set[Any] = set()
"""The operators that Inductor compiles for xpu (:func:`as_they_are`)."""


@dataclass
class _Product:
    """A product in a graph, and as much of what follows as belongs to it.

    Attributes:
        source, weight, bias: what ``mkldnn::_linear_pointwise`` is given, but for the weight, which is ``(k, n)``.
        end: whose value they make.
        view: the sizes it is given as, where those are not the product's.
    """

    node: Node
    source: Node
    weight: Node
    bias: Node | None
    end: Node
    view: Any = None


def fuse(graph: Graph) -> None:
    """Let every product of the graph take along what follows it."""
    from torch._dynamo.utils import counters
    from torch._inductor import config

    if not _lowered:
        return  # Inductor would not compile the operators, or torch has none
    if config.max_autotune or config.max_autotune_gemm or config.emulate_precision_casts:
        return  # Triton's templates have epilogues of their own; rounding in between is asked for
    for target in _PRODUCTS:
        for node in graph.find_nodes(op="call_function", target=target):
            product = _product(node)
            if product is None:
                continue
            nodes = _take_function(graph, product)
            if nodes:
                counters["inductor"]["mkldnn_unary_fusion_matcher_count"] += 1
                counters["inductor"]["mkldnn_unary_fusion_matcher_nodes"] += nodes
    graph.eliminate_dead_code()  # of what they replaced nothing is to be found again
    for target in _PRODUCTS:  # a product's second operand may be another product's function
        for node in graph.find_nodes(op="call_function", target=target):
            product = _product(node)
            nodes = 0 if product is None else _take_operand(graph, product)
            if nodes:
                kind = "binary" if nodes == 2 else "binary_unary"
                counters["inductor"][f"mkldnn_{kind}_fusion_matcher_count"] += 1
                counters["inductor"][f"mkldnn_{kind}_fusion_matcher_nodes"] += nodes


def _product(node: Node) -> _Product | None:
    """What belongs to the product at ``node``: its bias, and views of it."""
    value = value_of(node)
    if value is None or value.device.type != "xpu" or value.dtype not in DTYPES or node.kwargs:
        return None
    if not isinstance(value.shape[-1], int):
        return None
    operands: Any = node.args if len(node.args) == 3 else (None, *node.args)
    bias, source, weight = operands
    if any(t is None or t.dtype != value.dtype for t in map(value_of, (source, weight))):
        return None
    if bias is not None and not _is_row(bias, value):
        return None
    product = _Product(node, source, weight, bias, node)
    while len(product.end.users) == 1:
        (user,) = product.end.users
        if user.target in VIEWS and user.args[0] is product.end:
            product.view = user.args[1]
        elif product.bias is None and user.target == aten.add.Tensor and not user.kwargs:
            others = [a for a in user.args if a is not product.end]
            end = value_of(product.end)
            if len(others) != 1 or end is None or not _is_row(others[0], end) or not _is_row(others[0], value):
                break
            product.bias = others[0]  # type: ignore[assignment]
        else:
            break
        product.end = user
    return product


def _is_row(node: Any, product: Tensor) -> bool:
    """Whether it is added to every row of the product."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    value = value_of(node)
    return (
        value is not None
        and value.dim() == 1
        and (value.dtype, value.device) == (product.dtype, product.device)
        and statically_known_true(value.shape[0] == product.shape[-1])
    )


def _take_function(graph: Graph, product: _Product) -> int:
    """Let it take along a function of its result; how many nodes that replaces, 0 if there is none."""
    found = function_of(product.end)
    if found is None:
        return 0
    target = torch.ops.mkldnn._linear_pointwise.default
    _replace(graph, product, found.end, target, lambda weight: (weight, product.bias, *found.arguments))
    return found.nodes + 1


def _take_operand(graph: Graph, product: _Product) -> int:
    """Let it take along a sum, difference, product or quotient with a tensor of its shape, and a function of that.

    Returns:
        How many nodes that replaces: 0 for none, 2 for an operator alone.
    """
    if len(product.end.users) != 1:
        return 0
    (user,) = product.end.users
    value, result = value_of(product.end), value_of(user)
    if user.target not in _BINARY or user.kwargs or value is None or result is None:
        return 0
    left, right = user.args
    other = right if left is product.end else left
    if left is not product.end and user.target in (aten.sub.Tensor, aten.div.Tensor):
        return 0
    if not isinstance(other, Node) or other is product.end or not is_at_hand(other, value):
        return 0
    attribute, then = _BINARY[user.target], function_of(user)
    target = torch.ops.mkldnn._linear_pointwise.binary if then is None else torch.ops.anyxpu._linear_pointwise.default

    def arguments(weight: Node) -> tuple[Any, ...]:
        second = other if product.view is None else _flat(graph, other, product)
        return (second, weight, product.bias, attribute, *(() if then is None else then.arguments))

    _replace(graph, product, user if then is None else then.end, target, arguments)
    return 2 if then is None else 2 + then.nodes


def _replace(
    graph: Graph, product: _Product, end: Node, target: Any, operands: Callable[[Node], tuple[Any, ...]]
) -> None:
    """Put one operator in the place of a product and all that follows it up to ``end``.

    Args:
        operands: of the operator after the source, given the weight as ``(n, k)``.
    """
    with graph.inserting_before(end):
        result = graph.call_function(target, (product.source, *operands(_transposed(graph, product.weight))))
        result.meta.update(end.meta)
        result.meta["val"] = product.node.meta["val"]
        if product.view is not None:
            result = _viewed(graph, result, product.view, end)
    end.replace_all_uses_with(result)


def _transposed(graph: Graph, weight: Node) -> Node:
    if weight.target in (aten.permute.default, aten.t.default):
        return weight.args[0]  # type: ignore[return-value]
    made = graph.call_function(aten.permute.default, (weight, [1, 0]))
    made.meta["val"] = weight.meta["val"].permute(1, 0)
    return made


def _viewed(graph: Graph, node: Node, sizes: Any, like: Node) -> Node:
    made = graph.call_function(aten.reshape.default, (node, sizes))
    made.meta.update(like.meta)
    return made


def _flat(graph: Graph, other: Node, product: _Product) -> Node:
    """The other operand in the product's two dimensions."""
    made = graph.call_function(aten.reshape.default, (other, [-1, product.weight.meta["val"].shape[-1]]))
    made.meta["val"] = product.node.meta["val"]
    return made


def as_they_are(module: ModuleType) -> None:
    """Have the lowerings of ``torch._inductor.mkldnn_lowerings`` hand operands on as they are, on xpu.

    They make weights contiguous, as the CPU's kernels want them; a transposed one would be copied at every call.
    """
    from torch._inductor.lowering import fallback_handler, lowerings

    if not torch.backends.mkldnn.is_available():
        return
    operator, chain = torch.ops.mkldnn._linear_pointwise, torch.ops.anyxpu._linear_pointwise.default

    def change() -> None:
        lowerings[chain] = fallback_handler(chain, False)
        for overload in (operator.default, operator.binary):
            lowerings[overload] = _by_device(lowerings[overload], fallback_handler(overload, False))
            _lowered.add(overload)

    if operator.default in lowerings:
        change()
        return
    original = module.register_onednn_fusion_ops  # before torch 2.13 this is called once the module is there

    def register_onednn_fusion_ops() -> None:
        original()
        change()

    module.register_onednn_fusion_ops = register_onednn_fusion_ops  # type: ignore[attr-defined]


def _by_device(cpus: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def lowering(x: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if x.get_device().type == "xpu" else cpus)(x, *args, **kwargs)

    return lowering
