"""Attention over nested tensors of the jagged layout: which of torch's forms it takes on xpu."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def choose(module: ModuleType) -> None:
    """Have ``torch.nested._internal.sdpa`` take the fused forms on xpu, which are ours, where they may be taken.

    It asks CUDA's tables, which know no xpu, and goes on with strided nested tensors, which the host serves.
    """
    import torch

    original = module._select_sdp_backend

    def _select_sdp_backend(
        query: Any, key: Any, value: Any, attn_mask: Any, dropout: float, is_causal: bool, enable_gqa: bool
    ) -> Any:
        operands = (query, key, value, attn_mask, dropout, is_causal, enable_gqa)
        if query.device.type == "xpu" and attn_mask is None and _fits(query, key, value):
            parameters = module.SDPAParams(*operands)
            if torch._C._get_flash_sdp_enabled() and module._can_use_flash_sdpa_jagged(parameters):
                return module.SDPBackend.FLASH_ATTENTION
            if torch._C._get_mem_efficient_sdp_enabled() and module._can_use_efficient_sdpa_jagged(parameters):
                return module.SDPBackend.EFFICIENT_ATTENTION
        return original(*operands)

    module._select_sdp_backend = _select_sdp_backend  # type: ignore[attr-defined]


def _fits(query: Any, key: Any, value: Any) -> bool:
    from anyxpu.ops import flash

    largest = max(query.size(-1), value.size(-1))
    return query.dtype == key.dtype == value.dtype and query.dtype in flash.DTYPES and largest <= flash.LARGEST
