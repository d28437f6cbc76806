"""Functions as Inductor's graphs have them: the pointwise operators they were decomposed to, found in a graph again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

_COMMUTATIVE = (torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor)
_CONVERT = torch.ops.prims.convert_element_type.default


@dataclass(frozen=True)
class Parameter:
    """Stands for a number that a function is given.

    Attributes:
        value: what the function is traced with; no other constant of it may have this value.
    """

    value: float


@dataclass
class Found:
    """Where an expression stands in a graph.

    Attributes:
        nodes: of it, the last one among them, the one it starts from not.
        parameters: the numbers it is given there, by those it was traced with.
        operands: the tensors it is given there besides the first, by their places.
    """

    nodes: set[Node] = field(default_factory=set)
    parameters: dict[float, float] = field(default_factory=dict)
    operands: dict[int, Node] = field(default_factory=dict)


class Expression:
    """A function as Inductor decomposes it.

    Args:
        function: of the tensors, then of ``parameters``.
        examples: of the tensors; Inductor converts 16 bits on the way. Of the first it is sought, and may be found with
            any others.
        parameters: as which numbers the function is traced with.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        examples: Sequence[torch.Tensor],
        parameters: Sequence[Parameter] = (),
    ) -> None:
        from torch._inductor.decomposition import select_decomp_table
        from torch.fx.experimental.proxy_tensor import make_fx

        values = [parameter.value for parameter in parameters]
        trace = make_fx(lambda *tensors: function(*tensors, *values), select_decomp_table(), tracing_mode="fake")
        graph = trace(*examples).graph
        for node in graph.find_nodes(op="call_function", target=_CONVERT):
            if node.args[0].meta["val"].dtype == node.args[1]:  # Inductor takes these away
                node.replace_all_uses_with(node.args[0])
        graph.eliminate_dead_code()
        self._start, *operands = graph.find_nodes(op="placeholder")
        self._operands: dict[Node, int] = {operand: place for place, operand in enumerate(operands)}
        self.end: Node = graph.output_node().args[0]  # type: ignore[assignment]
        self._parameters = frozenset(values)

    def find(self, end: Node, start: Node) -> Found | None:
        """This function of ``start`` where its value is ``end``, or None if it is not that."""
        found = Found()
        return found if self._same(self.end, end, start, found) else None

    def _same(self, mine: Any, theirs: Any, start: Node, found: Found) -> bool:
        if mine is self._start:
            return theirs is start
        if mine in self._operands:
            return isinstance(theirs, Node) and found.operands.setdefault(self._operands[mine], theirs) is theirs
        if isinstance(mine, Node):
            if not isinstance(theirs, Node) or theirs.op != "call_function" or theirs.target != mine.target:
                return False
            if theirs.kwargs != mine.kwargs:
                return False
            before = set(found.nodes), dict(found.parameters), dict(found.operands)
            orders = [theirs.args]
            if mine.target in _COMMUTATIVE:
                orders.append(theirs.args[::-1])
            for order in orders:
                if self._all_same(mine.args, order, start, found):
                    found.nodes.add(theirs)
                    return True
                nodes, parameters, operands = before
                found.nodes, found.parameters, found.operands = set(nodes), dict(parameters), dict(operands)
            return False
        if isinstance(mine, list | tuple):
            return isinstance(theirs, list | tuple) and self._all_same(mine, theirs, start, found)
        if isinstance(mine, int | float) and not isinstance(mine, bool):
            return self._same_number(float(mine), theirs, found)
        return bool(mine == theirs)

    def _all_same(self, mine: Sequence[Any], theirs: Sequence[Any], start: Node, found: Found) -> bool:
        return len(mine) == len(theirs) and all(
            self._same(a, b, start, found) for a, b in zip(mine, theirs, strict=True)
        )

    def _same_number(self, mine: float, theirs: Any, found: Found) -> bool:
        if not isinstance(theirs, int | float) or isinstance(theirs, bool):
            return False
        if mine in self._parameters:
            return found.parameters.setdefault(mine, float(theirs)) == float(theirs)
        # People write sqrt(2 / pi) with more and fewer digits.
        return math.isclose(mine, theirs, rel_tol=1e-6)


def is_closed(found: Found, end: Node, start: Node) -> bool:
    """Whether nothing but ``end`` is used by others than the expression itself; ``start`` is used by it alone."""
    inside: Mapping[Node, None] = dict.fromkeys(found.nodes)
    return all(user in inside for node in (start, *found.nodes) if node is not end for user in node.users)
