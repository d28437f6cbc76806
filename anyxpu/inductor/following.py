"""What follows a product or a convolution in a graph and may become part of its primitive, frozen or not.

Functions of the result (gelu, silu, relu, tanh …), where oneDNN's own are not the slower way, and tensors that it is
put together with, wherever nobody else wants what lies between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from anyxpu.inductor.expressions import Expression, Found, Parameter, is_closed
from anyxpu.onednn import functions

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
# How many nodes after a product are looked at for the end of a function; the longest has 12.
_FARTHEST = 24

_SLOPE = Parameter(-0.4375)


@dataclass(frozen=True)
class _Function:
    """Attributes:
    name, algorithm: what ``mkldnn::_linear_pointwise`` calls it.
    compute: in torch's words.
    parameters: what ``compute`` is given besides the tensors.
    slopes: whether it is given a tensor of slopes, one or one a channel.
    """

    name: str
    compute: Callable[..., Tensor]
    algorithm: str = ""
    parameters: tuple[Parameter, ...] = ()
    slopes: bool = False


def _new_gelu(x: Tensor) -> Tensor:
    """As transformers' GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _fast_gelu(x: Tensor) -> Tensor:
    """As transformers' FastGELU writes it."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


# Not hardtanh and hardsigmoid: oneDNN's turn NaN into a number, and a NaN that is lost is not found again.
_FUNCTIONS = (
    _Function("relu", F.relu),
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
    _Function("elu", F.elu, parameters=(_SLOPE,)),
    _Function("mish", F.mish),
    _Function("prelu", torch._prelu_kernel, slopes=True),
)


@cache
def _expressions(dtype: torch.dtype) -> dict[Any, list[tuple[_Function, Expression]]]:
    """The functions by the operator that ends them."""
    table: dict[Any, list[tuple[_Function, Expression]]] = {}
    for function in _FUNCTIONS:
        tensors = [torch.ones(2, dtype=dtype) for _ in range(1 + function.slopes)]
        expression = Expression(function.compute, tensors, function.parameters)
        table.setdefault(expression.end.target, []).append((function, expression))
    return table


def value_of(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def following(start: Node) -> Iterator[Node]:
    """The nodes after ``start`` that hang on it, in no order, as far as the end of a function may lie."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < _FARTHEST:
        for user in waiting.pop(0).users:
            if user not in seen and user.op == "call_function":
                seen.add(user)
                waiting.append(user)
                yield user


@dataclass
class Followed:
    """A function in a graph.

    Attributes:
        end: whose value it makes.
        arguments: its name, scalars and algorithm, as ``mkldnn::_linear_pointwise`` has them.
        nodes: how many make it.
        slopes: a prelu's.
    """

    end: Node
    arguments: tuple[str, list[float], str]
    nodes: int
    slopes: Node | None = None


def function_of(start: Node, with_slopes: bool = False) -> Followed | None:
    """The longest function of what ``start`` makes that a product may take along, and that nobody else looks into.

    Args:
        with_slopes: may it be a prelu along the second dimension?
    """
    value = value_of(start)
    assert value is not None
    table, best = _expressions(value.dtype), None
    for end in following(start):
        for function, expression in table.get(end.target, ()):
            if functions.is_costly(function.name, value.device) or (function.slopes and not with_slopes):
                continue
            found = expression.find(end, start)
            if found is None or not is_closed(found, end, start) or (best and len(best[2].nodes) >= len(found.nodes)):
                continue
            if function.slopes and not _is_by_channel(found.operands.get(0), value):
                continue
            best = function, end, found
    if best is None:
        return None
    function, end, found = best
    scalars = _scalars(function, found)
    if scalars is None:
        return None
    return Followed(end, (function.name, scalars, function.algorithm), len(found.nodes), found.operands.get(0))


def _is_by_channel(node: Any, value: Tensor) -> bool:
    """Whether it has one number, or one for each of the second dimension, as it is broadcast to ``value``."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    slopes = value_of(node)
    if slopes is None or (slopes.dtype, slopes.device) != (value.dtype, value.device) or slopes.dim() > value.dim():
        return False
    sizes = [1] * (value.dim() - slopes.dim()) + list(slopes.shape)
    channels = sizes.pop(1)
    return all(statically_known_true(size == 1) for size in sizes) and (
        statically_known_true(channels == 1) or statically_known_true(channels == value.shape[1])
    )


def _scalars(function: _Function, found: Found) -> list[float] | None:
    """The function's parameters; [-1] where it has none, as Inductor's own passes have it. None: it is not taken."""
    values = [found.parameters.get(p.value) for p in function.parameters]
    if None in values or 0.0 in values:  # of slope 0 it is relu, which loses a NaN
        return None
    return [v for v in values if v is not None] or [-1]


def is_at_hand(other: Node, value: Tensor) -> bool:
    """Whether the other operand is in memory anyhow, in the result's shape: no kernel would compute it on the way."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

    found = value_of(other)
    if found is None or (found.dtype, found.device) != (value.dtype, value.device):
        return False
    if not all(
        statically_known_true(sym_eq(a, b)) for a, b in ((found.shape, value.shape), (found.stride(), value.stride()))
    ):
        return False
    while other.target in VIEWS and len(other.users) == 1:
        other = other.args[0]  # type: ignore[assignment]
    tags = getattr(other.target, "tags", ())
    computed = torch.Tag.pointwise in tags or other.target == torch.ops.prims.convert_element_type.default
    return len(other.users) > 1 or not computed
