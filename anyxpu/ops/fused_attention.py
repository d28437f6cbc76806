"""torch's operators of fused attention on xpu, each by the kernels of :mod:`anyxpu.ops.flash`.

``_scaled_dot_product_fused_attention_overrideable`` is what ``scaled_dot_product_attention`` takes (see
:mod:`anyxpu.ops.attention`), in compiled graphs too; the flash and memory-efficient forms answer who calls them by
name. A function here raises NotImplementedError for operands that the kernels do not take.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.ops import flash, packed_attention

Results = tuple[Any, ...]


def _require(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> None:
    if not flash.takes(query, key, value, mask, dropout):
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value, *(() if mask is None else (mask,))))
        raise NotImplementedError(
            f"anyxpu: the attention kernels do not take {query.dtype} operands of the shapes {shapes}: they want four "
            "dimensions, none of them empty, one dtype of float32, bfloat16 and float16, heads of up to "
            f"{flash.LARGEST} elements, and a dropout below 1. "
            "torch.nn.functional.scaled_dot_product_attention composes what they do not take"
        )


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _require(query, key, value, mask, dropout)
    out, logs, seed = flash.forward(query, key, value, mask, dropout, causal, scale, into)
    offset = torch.zeros((), dtype=torch.int64)  # torch.tensor takes longer
    return out, logs, torch.tensor(seed, dtype=torch.int64) if seed else torch.zeros_like(offset), offset


def overrideable(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_fused_attention_overrideable.

    Args:
        query: (batches, heads, L, E). key, value: (batches, heads of keys, S, E) and (…, S, F).
        attn_bias: bool or a float, broadcastable to (batches, heads, L, S).

    Returns:
        Attention, the logarithms of the sums, None twice, L, S, the seed and offset of dropout, None.
    """
    out, logs, seed, offset = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return out, logs, None, None, query.shape[2], key.shape[2], seed, offset, None


def overrideable_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_fused_attention_overrideable_backward; the bias has no gradient here."""
    seed = int(philox_seed.item()) if dropout_p > 0 else 0
    made = flash.backward(grad_out, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, seed, scale)
    return *made, None


def by_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_flash_attention."""
    out, logs, seed, offset = _forward(query, key, value, None, dropout_p, is_causal, scale)
    none = query.new_empty(0)
    return out, logs, None, None, query.shape[2], key.shape[2], seed, offset, none


def by_flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_flash_attention_backward."""
    seed = int(philox_seed.item()) if dropout_p > 0 else 0
    return flash.backward(grad_out, query, key, value, None, out, logsumexp, dropout_p, is_causal, seed, scale)


def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_efficient_attention.

    Laid out as CUDA's, which is what a compiled graph counts on: rows before heads in memory, and the logarithms'
    rows rounded up to 32, none unless they are asked for.
    """
    _require(query, key, value, attn_bias, dropout_p)
    batches, heads, rows, _ = query.shape
    room = query.new_empty((batches, rows, heads, value.shape[-1])).transpose(1, 2)
    out, logs, seed, offset = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale, room)
    if not compute_log_sumexp:
        logs = logs.new_empty((batches, heads, 0))
    elif rows % packed_attention.LOGS_ARE_MULTIPLES_OF:
        logs = F.pad(logs, (0, -rows % packed_attention.LOGS_ARE_MULTIPLES_OF), value=-math.inf)
    return out, logs, seed, offset


def efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """aten::_scaled_dot_product_efficient_attention_backward; the bias has no gradient here."""
    if grad_input_mask[3]:
        raise NotImplementedError(
            "anyxpu: a bias of _scaled_dot_product_efficient_attention has no gradient on xpu; "
            "torch.nn.functional.scaled_dot_product_attention gives it one"
        )
    seed = int(philox_seed.item()) if dropout_p > 0 else 0
    logs = logsumexp[..., : query.shape[2]].contiguous()
    made = flash.backward(grad_out_, query, key, value, attn_bias, out, logs, dropout_p, is_causal, seed, scale)
    return *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in made), None


def choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """aten::_fused_sdp_choice: the number of the SDPBackend that scaled_dot_product_attention takes."""
    from anyxpu.ops.attention import chosen

    return int(chosen(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa).value)
