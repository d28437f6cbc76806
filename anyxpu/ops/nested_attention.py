"""``scaled_dot_product_attention`` of strided nested tensors on xpu: that of each of their parts.

ATen's composite asks a table of C++ kernels, where a stock wheel has no row for xpu, before it looks whether operands
are nested; jagged ones are served by torch's own Python, which calls the packed kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops.attention import _NAME, attention

_registered: list[torch.library.Library] = []


def nested_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale) @ value, batch by batch.

    Args:
        query, key, value: (B, heads, L, E), nested or dense; one batch, or one head, goes with many.

    Returns:
        (B, heads, L, Ev), nested, each part of it as fused kernels leave it: (L, heads, Ev), transposed.

    Raises:
        RuntimeError: a mask, which torch does not take with nested tensors; batches or heads that do not fit.
    """
    if attn_mask is not None:
        raise RuntimeError(f"anyxpu: {_NAME} takes no attn_mask where query, key or value is nested")
    if {query.dim(), key.dim(), value.dim()} != {4}:
        raise RuntimeError(
            f"anyxpu: {_NAME} of nested tensors wants four dimensions, (batches, heads, length, size), and got "
            f"{query.dim()}, {key.dim()} and {value.dim()}"
        )
    parts = [t.unbind(0) for t in (query, key, value)]
    batches = max(map(len, parts))
    if any(len(p) not in (1, batches) for p in parts):
        raise RuntimeError(
            f"anyxpu: {_NAME} got {', '.join(str(len(p)) for p in parts)} batches of query, key and value"
        )
    made = []
    for q, k, v in zip(*(p if len(p) == batches else p * batches for p in parts), strict=True):
        if not enable_gqa:
            heads = max(t.shape[0] for t in (q, k, v))
            q, k, v = (t.expand(heads, -1, -1) for t in (q, k, v))
        out = attention(q[None], k[None], v[None], None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        made.append(out[0].transpose(0, 1))
    return torch.nested.as_nested_tensor(made, layout=torch.strided).transpose(1, 2)


def register() -> None:
    """Put it above and below autograd; other devices' nested tensors go on as they did. Idempotent."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    operator = torch.ops.aten.scaled_dot_product_attention.default
    in_tree = functools.partial(operator._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)

    def above(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        ours = query.device.type == "xpu"
        return (nested_attention if ours else in_tree)(query, key, value, *args, **kwargs)

    library.impl(_NAME, nested_attention, "NestedTensorXPU")
    library.impl(_NAME, above, "AutogradNestedTensor")
    _registered.append(library)
