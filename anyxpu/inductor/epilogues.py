"""Products of compiled graphs with what follows them, as one oneDNN primitive.

Inductor's own passes make ``mkldnn::_linear_pointwise`` of frozen graphs for the CPU alone, and take a bias away from a
product on a GPU, to add it in the kernel that follows. Here a product keeps its bias and takes along the function of
its result (gelu, silu, tanh …) or the sum or product with another tensor and a function of that, frozen or not, in
inference and in training, wherever nobody else wants what lies between, and where oneDNN's own function is not the
slower way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

from anyxpu.inductor.expressions import Expression, Found, Parameter, is_closed
from anyxpu.onednn import functions

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_BINARY = {aten.add.Tensor: "add", aten.mul.Tensor: "mul", aten.sub.Tensor: "sub", aten.div.Tensor: "div"}
# How many nodes after a product are looked at for the end of a function; the longest has 12.
_FARTHEST = 24

_SLOPE = Parameter(-0.4375)

_lowered: set[Any] = set()
"""The operators that Inductor compiles for xpu (:func:`as_they_are`)."""


@dataclass(frozen=True)
class _Function:
    """Attributes:
    name, algorithm: what ``mkldnn::_linear_pointwise`` calls it.
    compute: in torch's words.
    parameters: what ``compute`` is given besides the tensor.
    """

    name: str
    compute: Callable[..., Tensor]
    algorithm: str = ""
    parameters: tuple[Parameter, ...] = ()


def _new_gelu(x: Tensor) -> Tensor:
    """As transformers' GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _fast_gelu(x: Tensor) -> Tensor:
    """As transformers' FastGELU writes it."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


# Not relu, hardtanh and hardsigmoid: oneDNN's turn NaN into a number, and a NaN that is lost is not found again.
_FUNCTIONS = (
    _Function("gelu", F.gelu, "none"),
    _Function("gelu", lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "none"),
    _Function("gelu", lambda x: F.gelu(x, approximate="tanh"), "tanh"),
    _Function("gelu", _new_gelu, "tanh"),
    _Function("gelu", _fast_gelu, "tanh"),
    _Function("swish", F.silu),
    _Function("swish", lambda x: x * torch.sigmoid(x)),
    _Function("hardswish", F.hardswish),
    _Function("leaky_relu", F.leaky_relu, parameters=(_SLOPE,)),
    _Function("sigmoid", torch.sigmoid),
    _Function("tanh", torch.tanh),
)


@cache
def _expressions(dtype: torch.dtype) -> dict[Any, list[tuple[_Function, Expression]]]:
    """The functions by the operator that ends them."""
    table: dict[Any, list[tuple[_Function, Expression]]] = {}
    for function in _FUNCTIONS:
        expression = Expression(function.compute, dtype, function.parameters)
        table.setdefault(expression.end.target, []).append((function, expression))
    return table


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


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _product(node: Node) -> _Product | None:
    """What belongs to the product at ``node``: its bias, and views of it."""
    value = _value(node)
    if value is None or value.device.type != "xpu" or value.dtype not in _DTYPES or node.kwargs:
        return None
    if not isinstance(value.shape[-1], int):
        return None
    operands: Any = node.args if len(node.args) == 3 else (None, *node.args)
    bias, source, weight = operands
    if any(t is None or t.dtype != value.dtype for t in map(_value, (source, weight))):
        return None
    if bias is not None and not _is_row(bias, value):
        return None
    product = _Product(node, source, weight, bias, node)
    while len(product.end.users) == 1:
        (user,) = product.end.users
        if user.target in _VIEWS and user.args[0] is product.end:
            product.view = user.args[1]
        elif product.bias is None and user.target == aten.add.Tensor and not user.kwargs:
            others = [a for a in user.args if a is not product.end]
            end = _value(product.end)
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

    value = _value(node)
    return (
        value is not None
        and value.dim() == 1
        and (value.dtype, value.device) == (product.dtype, product.device)
        and statically_known_true(value.shape[0] == product.shape[-1])
    )


def _following(start: Node) -> Iterator[Node]:
    """The nodes after ``start`` that hang on it, in no order, as far as the end of a function may lie."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < _FARTHEST:
        for user in waiting.pop(0).users:
            if user not in seen and user.op == "call_function":
                seen.add(user)
                waiting.append(user)
                yield user


@dataclass
class _Followed:
    """A function in a graph.

    Attributes:
        end: whose value it makes.
        arguments: its name, scalars and algorithm, as ``mkldnn::_linear_pointwise`` has them.
        nodes: how many make it.
    """

    end: Node
    arguments: tuple[str, list[float], str]
    nodes: int


def _function_of(start: Node) -> _Followed | None:
    """The longest function of what ``start`` makes that a product may take along, and that nobody else looks into."""
    value = _value(start)
    assert value is not None
    table, best = _expressions(value.dtype), None
    for end in _following(start):
        for function, expression in table.get(end.target, ()):
            if functions.is_costly(function.name, value.device):
                continue
            found = expression.find(end, start)
            if found is None or not is_closed(found, end, start) or (best and len(best[2].nodes) >= len(found.nodes)):
                continue
            best = function, end, found
    if best is None:
        return None
    function, end, found = best
    scalars = _scalars(function, found)
    if scalars is None:
        return None
    return _Followed(end, (function.name, scalars, function.algorithm), len(found.nodes))


def _take_function(graph: Graph, product: _Product) -> int:
    """Let it take along a function of its result; how many nodes that replaces, 0 if there is none."""
    found = _function_of(product.end)
    if found is None:
        return 0
    target = torch.ops.mkldnn._linear_pointwise.default
    _replace(graph, product, found.end, target, lambda weight: (weight, product.bias, *found.arguments))
    return found.nodes + 1


def _scalars(function: _Function, found: Found) -> list[float] | None:
    """The function's parameters; [-1] where it has none, as Inductor's own passes have it. None: it is not taken."""
    values = [found.parameters.get(p.value) for p in function.parameters]
    if None in values or 0.0 in values:  # of slope 0 it is relu, which loses a NaN
        return None
    return [v for v in values if v is not None] or [-1]


def _take_operand(graph: Graph, product: _Product) -> int:
    """Let it take along a sum, difference, product or quotient with a tensor of its shape, and a function of that.

    Returns:
        How many nodes that replaces: 0 for none, 2 for an operator alone.
    """
    if len(product.end.users) != 1:
        return 0
    (user,) = product.end.users
    value, result = _value(product.end), _value(user)
    if user.target not in _BINARY or user.kwargs or value is None or result is None:
        return 0
    left, right = user.args
    other = right if left is product.end else left
    if left is not product.end and user.target in (aten.sub.Tensor, aten.div.Tensor):
        return 0
    if not isinstance(other, Node) or other is product.end or not _is_at_hand(other, value):
        return 0
    attribute, then = _BINARY[user.target], _function_of(user)
    target = torch.ops.mkldnn._linear_pointwise.binary if then is None else torch.ops.anyxpu._linear_pointwise.default

    def arguments(weight: Node) -> tuple[Any, ...]:
        second = other if product.view is None else _flat(graph, other, product)
        return (second, weight, product.bias, attribute, *(() if then is None else then.arguments))

    _replace(graph, product, user if then is None else then.end, target, arguments)
    return 2 if then is None else 2 + then.nodes


def _is_at_hand(other: Node, value: Tensor) -> bool:
    """Whether the other operand is in memory anyhow, in the product's shape: no kernel would compute it on the way."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

    found = _value(other)
    if found is None or (found.dtype, found.device) != (value.dtype, value.device):
        return False
    if not all(
        statically_known_true(sym_eq(a, b)) for a, b in ((found.shape, value.shape), (found.stride(), value.stride()))
    ):
        return False
    while other.target in _VIEWS and len(other.users) == 1:
        other = other.args[0]  # type: ignore[assignment]
    tags = getattr(other.target, "tags", ())
    computed = torch.Tag.pointwise in tags or other.target == torch.ops.prims.convert_element_type.default
    return len(other.users) > 1 or not computed


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


@cache
def _backend_pass() -> Any:
    """:func:`fuse` as Inductor takes passes from a device's backend."""
    from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files

    from anyxpu.inductor import expressions, narrow_weights

    class Epilogues(CustomGraphModulePass):
        def __call__(self, gm: torch.fx.GraphModule) -> None:
            narrow_weights.fuse(gm.graph)
            fuse(gm.graph)
            gm.graph.eliminate_dead_code()

        def uuid(self) -> Any:
            # A graph may be kept for a machine with other registers. No device of ours, no graph of ours.
            short = torch.xpu.is_initialized() and functions.is_costly("gelu", torch.device("xpu", 0))
            files = (__file__, expressions.__file__, narrow_weights.__file__, functions.__file__)
            return get_hash_for_files(files, f"short vectors: {short}")

    return Epilogues()


def offer(module: ModuleType) -> None:
    """Have ``torch._inductor.codegen.common`` take :func:`fuse` for a pass of xpu's backend."""
    original = module.register_backend_for_device

    def register_backend_for_device(device: str, *args: Any, **options: Any) -> None:
        original(device, *args, **options)
        if device == "xpu" and module.custom_backend_passes.get(device) is None:
            module.custom_backend_passes[device] = _backend_pass()

    module.register_backend_for_device = register_backend_for_device  # type: ignore[attr-defined]


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
