"""Nested tensors of the jagged layout: which of torch's forms of attention they take on xpu, and their padded form."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def choose(module: ModuleType) -> None:
    """Have ``torch.nested._internal.sdpa`` take the fused forms on xpu, which are ours, where they may be taken.

    It asks CUDA's tables, which know no xpu, and goes on with strided nested tensors, which the host serves.
    """
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


def to_padded(values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding_value: float = 0.0) -> Any:
    """aten::_jagged_to_padded_dense_forward: rows of ``values`` as a batch of sequences, padded or cut.

    Args:
        values: ``(total, D)``.
        offsets: of one ragged dimension, ``(B + 1,)``, where each sequence begins.
        max_lengths: ``[L]``.

    Returns:
        ``(B, L, D)``.
    """
    if len(offsets) != 1 or values.dim() != 2 or values.numel() == 0 or values.is_complex():
        return NotImplemented
    begins, ends = offsets[0][:-1, None], offsets[0][1:, None]
    at = begins + torch.arange(max_lengths[0], device=values.device)
    if at.numel() == 0:
        return NotImplemented
    rows = values.index_select(0, at.clamp_max(len(values) - 1).reshape(-1)).view(*at.shape, values.shape[1])
    return torch.where((at < ends).unsqueeze(-1), rows, padding_value).to(values.dtype)


def from_padded(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Any:
    """aten::_padded_dense_to_jagged_forward: the rows of a padded batch that sequences have; 0 beyond the padded ones.

    Args:
        dense: ``(B, L, D)``.
        offsets: of one ragged dimension, ``(B + 1,)``, where each sequence begins.
        total_L: how many rows; waits for the device where that is not said.

    Returns:
        ``(total_L, D)``.
    """
    if len(offsets) != 1 or dense.dim() != 3 or dense.numel() == 0 or dense.is_complex():
        return NotImplemented
    total = int(offsets[0][-1]) if total_L is None else total_L
    if total == 0:
        return NotImplemented
    length = dense.shape[1]
    row = torch.arange(total, device=dense.device, dtype=offsets[0].dtype)
    which = (torch.searchsorted(offsets[0], row, right=True) - 1).clamp(0, len(dense) - 1)
    at = row - offsets[0].index_select(0, which)
    rows = dense.reshape(-1, dense.shape[2]).index_select(0, which * length + at.clamp(0, length - 1))
    return torch.where((at < length).unsqueeze(-1), rows, 0).to(dense.dtype)
