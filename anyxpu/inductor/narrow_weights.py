"""Products of compiled graphs with weights of 8 bits, by the operators that read such a weight as it is.

torchao's weight-only layers convert the weight to the activations' dtype, which in a compiled graph is a kernel that
writes it to memory before each product, twice as wide as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TURNS = (aten.permute.default, aten.t.default)
_CONVERT = torch.ops.prims.convert_element_type.default
_MOST_ROWS, _MOST_ROWS_OF_FLOAT8 = 32, 128
"""Beyond which a product takes longer than the conversion, and by more where the weight is not converted at once.

Measured with AMX, a float8 weight of 4096 x 4096 by 128 rows of bfloat16: 0.6 of the time.
"""


def fuse(graph: Graph) -> None:
    """Let every product with a converted weight of 8 bits take the weight itself."""
    from torch._inductor import config

    if config.emulate_precision_casts:
        return  # rounding in between is asked for
    for target in (aten.mm.default, aten.addmm.default):
        for node in graph.find_nodes(op="call_function", target=target):
            value = _value(node)
            if value is None or value.device.type != "xpu" or value.dtype not in _DTYPES or node.kwargs:
                continue
            if _are_few(value.shape[0], _MOST_ROWS) and _take_int8(graph, node, value):
                continue
            if _are_few(value.shape[0], _MOST_ROWS_OF_FLOAT8):
                _take_float8(graph, node, value)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _are_few(rows: Any, most: int) -> bool:
    """Whether they may be few: of a dynamic number the operators decide."""
    return not isinstance(rows, int) or rows <= most


def _take_int8(graph: Graph, node: Node, value: Tensor) -> bool:
    """``mm(x, convert(w.t())) * scales``, w int8: ``_weight_int8pack_mm``."""
    source, weight = node.args[-2:]
    if node.target != aten.mm.default or len(node.users) != 1 or not _converts(weight, value.dtype):
        return False
    narrow, (user,) = _turned(weight.args[0]), node.users  # type: ignore[union-attr]
    of_narrow = _value(narrow)
    if of_narrow is None or of_narrow.dtype != torch.int8 or user.target != aten.mul.Tensor or user.kwargs:
        return False
    scales = user.args[1] if user.args[0] is node else user.args[0]
    of_scales = _value(scales)
    if of_scales is None or of_scales.dtype != value.dtype or tuple(of_scales.shape) != (of_narrow.shape[0],):
        return False
    _put(graph, user, aten._weight_int8pack_mm.default, (source, narrow, scales))
    return True


def _take_float8(graph: Graph, node: Node, value: Tensor) -> bool:
    """``mm(x, convert(convert(w.t()) * scales))``, w float8_e4m3fn, one scale or one a row: ``_weight_float8_mm``.

    Of an ``addmm`` too, whose bias is added after.
    """
    source, weight = node.args[-2:]
    made, turned = _untwisted(weight)
    if _converts(made, value.dtype):
        made, again = _untwisted(made.args[0])
        turned ^= again
    elif value.dtype != torch.float32:
        return False
    if not isinstance(made, Node) or made.target != aten.mul.Tensor or made.kwargs:
        return False
    for wide, scales in (made.args, made.args[::-1]):
        if not _converts(wide, torch.float32):
            continue
        narrow, again = _untwisted(wide.args[0])  # type: ignore[union-attr]
        of_narrow, of_scales = _value(narrow), _value(scales)
        if of_narrow is None or of_narrow.dtype != torch.float8_e4m3fn or of_scales is None or turned == again:
            continue
        rows, shape = of_narrow.shape[0], tuple(of_scales.shape)
        by_rows = shape == ((rows, 1) if turned else (1, rows))
        if of_scales.dtype != torch.float32 or (not by_rows and any(size != 1 for size in shape)):
            continue
        with graph.inserting_before(node):
            flat = graph.call_function(aten.reshape.default, (scales, [-1]))
            flat.meta["val"] = of_scales.reshape(-1)
        _put(graph, node, torch.ops.anyxpu._weight_float8_mm.default, (source, narrow, flat))
        return True
    return False


def _untwisted(node: Any) -> tuple[Any, bool]:
    """What ``node`` is, but for transposes, and whether they turn it."""
    turned = False
    while (inner := _turned(node)) is not None:
        node, turned = inner, not turned
    return node, turned


def _converts(node: Any, dtype: torch.dtype) -> bool:
    return isinstance(node, Node) and node.target == _CONVERT and bool(node.args[1] == dtype)


def _turned(node: Any) -> Node | None:
    """What ``node`` is the transpose of."""
    if not isinstance(node, Node) or node.target not in _TURNS:
        return None
    if node.target == aten.permute.default and list(node.args[1]) not in ([1, 0], [-1, -2]):  # type: ignore[arg-type]
        return None
    return node.args[0]  # type: ignore[return-value]


def _put(graph: Graph, node: Node, target: Any, args: tuple[Any, ...]) -> None:
    """An operator in the place of ``node``, and a sum after it where ``node`` adds a bias."""
    with graph.inserting_before(node):
        made = graph.call_function(target, args)
        made.meta.update(node.meta)
        if node.target == aten.addmm.default:
            made = graph.call_function(aten.add.Tensor, (made, node.args[0]))
            made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
