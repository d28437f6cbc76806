"""What ``torch.nn.TransformerEncoder`` calls when it is evaluated: a layer as one operator, and its attention.

Dense batches ``(B, L, D)``, and nested ones, whose parts are of different lengths: those go through the kernels of
packed sequences. A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes
it, or raises what CPU torch raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from anyxpu.ops import flash, nested

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_SOURCE, _PADDING, _WHOLE = 0, 1, 2  # kinds of masks: (L, L), (B, L), and (B, heads, L, L)


def _excluded(mask: Tensor | None, mask_type: int | None, batch: int, heads: int, length: int) -> Any:
    """What takes no part, in four dimensions; ``NotImplemented`` for a mask that torch refuses."""
    if mask is None:
        return None
    wanted = {
        _SOURCE: ((length, length), (1, 1, length, length)),
        _PADDING: ((batch, length), (batch, 1, 1, length)),
        _WHOLE: ((batch, heads, length, length), (batch, heads, length, length)),
    }
    if mask_type not in wanted or tuple(mask.shape) != wanted[mask_type][0]:
        return NotImplemented
    return mask.to(torch.bool).view(wanted[mask_type][1])


def masked_softmax(self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Any:
    """aten::_masked_softmax: the softmax over ``dim`` of what ``mask`` leaves; no number where it leaves nothing.

    Args:
        self: ``(..., L)``; ``(B, heads, L, L)`` with masks of type 0 and 1.
        mask: bool, true for what takes no part: of type 0 ``(L, L)``, 1 ``(B, L)`` and 2 of self's shape.
        dim: the last one where None.
        mask_type: 2 where None.
    """
    if mask.dtype is not torch.bool or self.dtype not in _FLOATS or self.numel() == 0 or mask.device != self.device:
        return NotImplemented
    kind = _WHOLE if mask_type is None else mask_type
    along = self.dim() - 1 if dim is None else dim
    if kind == _WHOLE:
        if mask.shape != self.shape:
            return NotImplemented
        out = mask
    elif self.dim() != 4 or along % 4 != 3:
        return NotImplemented
    else:
        out = _excluded(mask, kind, self.shape[0], self.shape[1], self.shape[3])
        if out is NotImplemented or (kind == _SOURCE and self.shape[2] != self.shape[3]):
            return NotImplemented
    return torch.softmax(self.masked_fill(out, -math.inf), along)


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Any:
    """aten::_masked_softmax_backward: as of a softmax, and 0 where ``mask``, of output's shape, is true."""
    if mask.dtype is not torch.bool or mask.shape != output.shape or grad.shape != output.shape:
        return NotImplemented
    if output.dtype not in _FLOATS or grad.dtype != output.dtype or output.numel() == 0:
        return NotImplemented
    along = output.dim() - 1 if dim is None else dim
    return torch.ops.aten._softmax_backward_data(grad, output, along, output.dtype).masked_fill(mask, 0)


def transform_bias_rescale_qkv(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> Any:
    """aten::_transform_bias_rescale_qkv: queries, keys and values by heads, the queries over the root of their size.

    Args:
        qkv: ``(B, L, 3 * D)``, without its bias; a nested one is padded with zeros.
        qkv_bias: ``(3 * D,)``.

    Returns:
        Three of ``(B, heads, L, D / heads)``.
    """
    if qkv.is_nested:
        qkv = nested.to_padded(qkv, 0.0)
        if qkv is NotImplemented:
            return NotImplemented
    if qkv.dim() != 3 or qkv.dtype not in _FLOATS or qkv.numel() == 0 or qkv_bias.dtype != qkv.dtype:
        return NotImplemented
    batch, length, width = qkv.shape
    if tuple(qkv_bias.shape) != (width,) or num_heads <= 0 or width % (3 * num_heads):
        return NotImplemented
    size = width // (3 * num_heads)
    parts = (qkv + qkv_bias).view(batch, length, 3, num_heads, size).permute(2, 0, 3, 1, 4)
    return parts[0] / math.sqrt(size), parts[1].contiguous(), parts[2].contiguous()


class _Attention:
    """One attention of heads: what is projected from rows, and how the rows of each sequence attend to each other."""

    def __init__(self, source: Tensor, embed_dim: int, heads: int, weight: Tensor, bias: Tensor) -> None:
        self.source, self.heads, self.weight, self.bias = source, heads, weight, bias
        self.size = embed_dim // heads if heads > 0 else 0
        self.fits = (
            source.dtype in _FLOATS
            and source.dim() == 3
            and heads > 0
            and embed_dim % heads == 0
            and tuple(weight.shape) == (3 * embed_dim, embed_dim)
            and tuple(bias.shape) == (3 * embed_dim,)
            and weight.dtype == bias.dtype == source.dtype
            and not (weight.is_nested or bias.is_nested)
        )

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows ``(..., D)`` -> queries, keys and values ``(..., heads, D / heads)``."""
        if query is key and key is value:
            made = functional.linear(query, self.weight, self.bias)
            q, k, v = made.view(*made.shape[:-1], 3, self.heads, self.size).unbind(-3)
        else:
            parts = zip((query, key, value), self.weight.chunk(3), self.bias.chunk(3), strict=True)
            q, k, v = (functional.linear(rows, w, b).unflatten(-1, (self.heads, self.size)) for rows, w, b in parts)
        return q, k, v


def _attend(q: Tensor, k: Tensor, v: Tensor, excluded: Tensor | None) -> Tensor:
    """``(B, L, heads, E)`` each -> the same, of sequences of one length."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    made = functional.scaled_dot_product_attention(q, k, v, attn_mask=None if excluded is None else ~excluded)
    if excluded is not None:
        # Who may look at nothing has no number here, as from a softmax of nothing; the fused form says 0.
        made = made.masked_fill(excluded.all(-1, keepdim=True), math.nan)
    return made.transpose(1, 2)


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """``(total, heads, E)`` each -> the same, of sequences one behind the other."""
    if q.shape[-1] > flash.LARGEST:
        parts = zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
        return torch.cat([_attend(a[None], b[None], c[None], None)[0] for a, b, c in parts])
    begins = nested.begins_of(lengths, q.device, torch.int32)
    most = max(lengths)
    return torch.ops.aten._flash_attention_forward(q, k, v, begins, begins, most, most, 0.0, False, False)[0]


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """aten::_native_multi_head_attention: projections, attention and the projection of what it gives.

    Args:
        query, key, value: ``(B, L, D)``, nested ones without a mask and without ``need_weights``.
        qkv_weight, qkv_bias: ``(3 * D, D)`` and ``(3 * D,)``.
        proj_weight, proj_bias: ``(D, D)`` and ``(D,)``.
        mask: true for what takes no part: of ``mask_type`` 0 ``(L, L)``, 1 ``(B, L)``, 2 ``(B, heads, L, L)``.

    Returns:
        ``(B, L, D)``, and the weights, ``(B, L, L)`` averaged or ``(B, heads, L, L)``, with ``need_weights``.
    """
    attention = _Attention(query, embed_dim, num_head, qkv_weight, qkv_bias)
    if not attention.fits or tuple(proj_weight.shape) != (embed_dim, embed_dim):
        return NotImplemented
    if any(t.dtype != query.dtype or t.dim() != 3 for t in (key, value, proj_weight[None], proj_bias[None, None])):
        return NotImplemented
    if query.is_nested:
        if mask is not None or need_weights or not (query is key and key is value):
            return NotImplemented
        rows = nested.rows_of(query)
        if rows is None or rows.shape[1] != embed_dim or 0 in nested.lengths_of(query):
            return NotImplemented
        made = _attend_packed(*attention.projected(rows, rows, rows), nested.lengths_of(query))
        return nested.with_rows(query, functional.linear(made.flatten(1), proj_weight, proj_bias)), None
    if query.shape != key.shape or query.shape != value.shape or query.shape[2] != embed_dim or query.numel() == 0:
        return NotImplemented
    batch, length, _ = query.shape
    excluded = _excluded(mask, mask_type, batch, num_head, length)
    if excluded is NotImplemented:
        return NotImplemented
    q, k, v = attention.projected(query, key, value)
    if not need_weights:
        return functional.linear(_attend(q, k, v, excluded).flatten(2), proj_weight, proj_bias), None
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = (q / math.sqrt(attention.size)) @ k.transpose(2, 3)
    weights = torch.softmax(scores if excluded is None else scores.masked_fill(excluded, -math.inf), -1)
    made = functional.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    return made, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """aten::_transformer_encoder_layer_fwd: ``torch.nn.TransformerEncoderLayer`` evaluated, of ``(B, L, D)``.

    Args:
        src: dense, or nested without a mask.
        use_gelu: gelu of the error function between the two products, else relu.
        norm_first: norms before attention and before the products, not behind their sums.
        mask, mask_type: as of :func:`multi_head_attention`.
    """
    attention = _Attention(src, embed_dim, num_heads, qkv_weight, qkv_bias)
    norms = (norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2)
    weights = (proj_weight, proj_bias, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, *norms)
    if not attention.fits or any(t.dtype != src.dtype or t.is_nested for t in weights):
        return NotImplemented
    if any(tuple(t.shape) != (embed_dim,) for t in (*norms, proj_bias, ffn_bias_2)):
        return NotImplemented
    inner = tuple(ffn_bias_1.shape)
    shapes = [tuple(t.shape) for t in (proj_weight, ffn_weight_1, ffn_weight_2)]
    if len(inner) != 1 or shapes != [(embed_dim, embed_dim), (*inner, embed_dim), (embed_dim, *inner)]:
        return NotImplemented
    rows = nested.rows_of(src) if src.is_nested else src.reshape(-1, src.shape[2])
    if rows is None or rows.shape[1] != embed_dim or rows.numel() == 0:
        return NotImplemented
    attend: Callable[[Tensor], Tensor]
    if src.is_nested:
        lengths = nested.lengths_of(src)
        if mask is not None or 0 in lengths:
            return NotImplemented

        def attend(rows: Tensor) -> Tensor:
            return _attend_packed(*attention.projected(rows, rows, rows), lengths).flatten(1)
    else:
        batch, length, _ = src.shape
        excluded = _excluded(mask, mask_type, batch, num_heads, length)
        if excluded is NotImplemented:
            return NotImplemented

        def attend(rows: Tensor) -> Tensor:
            sequences = rows.view(batch, length, embed_dim)
            return _attend(*attention.projected(sequences, sequences, sequences), excluded).reshape(-1, embed_dim)

    def norm(t: Tensor, which: int) -> Tensor:
        return functional.layer_norm(t, (embed_dim,), norms[2 * which], norms[2 * which + 1], eps)

    def products(t: Tensor) -> Tensor:
        inner = torch._addmm_activation(ffn_bias_1, t, ffn_weight_1.t(), use_gelu=use_gelu)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    t = rows
    made = functional.linear(attend(norm(t, 0) if norm_first else t), proj_weight, proj_bias) + t
    t = made if norm_first else norm(made, 0)
    made = products(norm(t, 1) if norm_first else t) + t
    made = made if norm_first else norm(made, 1)
    return nested.with_rows(src, made) if src.is_nested else made.view(src.shape)


# Operator -> the function of this module that serves it, for dense tensors; and for nested ones.
TABLE = {
    "_masked_softmax": "masked_softmax",
    "_masked_softmax_backward": "masked_softmax_backward",
    "_transform_bias_rescale_qkv": "transform_bias_rescale_qkv",
    "_native_multi_head_attention": "multi_head_attention",
    "_transformer_encoder_layer_fwd": "encoder_layer",
}
OF_NESTED = ("_transform_bias_rescale_qkv", "_native_multi_head_attention", "_transformer_encoder_layer_fwd")
