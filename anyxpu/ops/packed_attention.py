"""``_flash_attention_forward`` and ``_efficient_attention_forward``: attention of (batches, L, heads, E), and of packed
sequences, (rows of all, heads, E).

``torch.nn.attention.varlen`` and nested tensors of the jagged layout call them. The kernels are those of
:mod:`anyxpu.ops.flash`. A function here raises NotImplementedError for what they do not take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import flash
from anyxpu.ops.flash import Packing, Places, Problem, Window

Results = tuple[Any, ...]


@dataclass
class _Call:
    """Operands of either operator as :mod:`anyxpu.ops.flash` has them: (batches, heads, L, E).

    Attributes:
        packing: None where batches are no packed sequences.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    window: Window
    packing: Packing | None
    bias: Tensor | None = None

    @property
    def sequences(self) -> int:
        return self.query.shape[0] if self.packing is None else self.packing.queries.shape[0] - 1

    @property
    def empty(self) -> bool:
        lengths = () if self.packing is None else (self.packing.most_queries, self.packing.most_keys)
        return 0 in (*self.query.shape, *self.key.shape, *self.value.shape, self.sequences, *lengths)

    def problem(self, dropout: float) -> Problem:
        return Problem(self.query, self.key, self.value, self.bias, dropout, self.window, self.packing)


def _places(logs: Tensor) -> Places:
    """Of (sequences, heads, L), or of packed sequences (heads, rows)."""
    return (logs.stride(0), logs.stride(1), 0) if logs.dim() == 3 else (0, logs.stride(0), 1)


def _refuse(what: str) -> None:
    raise NotImplementedError(f"anyxpu: the attention kernels of xpu {what}")


def _heads_first(t: Tensor) -> Tensor:
    """(batches, L, heads, E) or (rows, heads, E) as (batches, heads, L, E)."""
    return (t if t.dim() == 4 else t.unsqueeze(0)).transpose(1, 2)


def _ints(offsets: Tensor | None) -> Tensor | None:
    return None if offsets is None else offsets.to(torch.int32).contiguous()


def _require(call: _Call, dropout: float) -> None:
    query, key, value = call.query, call.key, call.value
    if not (query.dim() == key.dim() == value.dim() == 4):
        _refuse(f"want operands of three or four dimensions, not {query.dim()}, {key.dim()} and {value.dim()}")
    if not (query.dtype == key.dtype == value.dtype and query.dtype in flash.DTYPES):
        _refuse(f"take float32, bfloat16 and float16, all three alike, not {query.dtype}, {key.dtype}, {value.dtype}")
    if max(query.shape[-1], value.shape[-1]) > flash.LARGEST:
        _refuse(f"take heads of up to {flash.LARGEST} elements, not {query.shape[-1]} and {value.shape[-1]}")
    alike = query.shape[-1] == key.shape[-1] and key.shape[:3] == value.shape[:3]
    if not alike or not key.shape[1] or query.shape[1] % key.shape[1]:
        _refuse(f"do not fit {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)} together")
    if len({t.device for t in (query, key, value)}) > 1:
        _refuse(f"want operands of one device, not {query.device}, {key.device} and {value.device}")
    if call.packing is not None:
        _require_packing(call, call.packing)
    elif key.shape[0] != query.shape[0]:
        _refuse(f"want as many batches of keys as of queries, not {key.shape[0]} and {query.shape[0]}")
    if not 0.0 <= dropout < 1.0:
        _refuse(f"take a dropout from 0 up to 1, not {dropout}")


def _require_packing(call: _Call, packing: Packing) -> None:
    """What the kernels would else read beyond: they take the offsets' values as they are."""
    batches = 1 if packing.pages is not None else call.key.shape[0]
    if call.query.shape[0] != 1 or batches != 1:
        _refuse("want packed sequences as rows of one batch: (rows, heads, E), or one batch of them")
    sequences = call.sequences
    for name, book, numbers, dims in (
        ("queries' offsets", packing.queries, sequences + 1, 1),
        ("keys' offsets", packing.keys, sequences + 1, 1),
        ("numbers of used keys", packing.used, sequences, 1),
        ("tables of pages", packing.pages, sequences, 2),
    ):
        if book is None:
            continue
        if book.dim() != dims or book.shape[0] != numbers:
            _refuse(f"want the {name} of {sequences} sequences, {numbers}, not {tuple(book.shape)}")
        if book.device != call.query.device:
            _refuse(f"want the {name} on {call.query.device}, not {book.device}")


def _flash_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool,
    left: int | None,
    right: int | None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
) -> _Call:
    left, right = (None if n is None or n < 0 else int(n) for n in (left, right))
    window = Window(left, 0 if is_causal else right, aligned=True)
    operands = _heads_first(query), _heads_first(key), _heads_first(value)
    if cum_seq_q is None or not cum_seq_q.numel():
        if seqused_k is not None or block_table is not None or query.dim() != 4:
            _refuse("take used keys and pages with packed queries alone: give cum_seq_q")
        if window.left is None and operands[0].shape[2] == operands[1].shape[2]:
            window = Window(None, window.right)  # the same, as products know it
        return _Call(*operands, window, None)
    if cum_seq_k is None and (block_table is None or seqused_k is None):
        _refuse("want cum_seq_k of packed queries, or block_table and seqused_k")
    if block_table is not None:
        if seqused_k is None:
            _refuse("want seqused_k where keys lie in pages")
        cum_seq_k, max_k = None, block_table.shape[1] * operands[1].shape[2]
    queries = _ints(cum_seq_q)
    assert queries is not None
    used, pages = _ints(seqused_k), _ints(block_table)
    packing = Packing(queries, _ints(cum_seq_k), int(max_q), int(max_k), used, pages)
    return _Call(*operands, window, packing)


def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    into: Tensor | None = None,
) -> Results:
    """aten::_flash_attention_forward.

    Args:
        query, key, value: (batches, L, heads, E), or (rows of all sequences, heads, E) with ``cum_seq_q``; keys and
            values (pages, rows of a page, heads, E) with ``block_table``. Fewer heads of keys are shared.
        cum_seq_q, cum_seq_k: where the sequences begin and the last one ends.
        max_q, max_k: at least the length of the longest.
        is_causal, window_size_left, window_size_right: which keys a query sees, counted from the ends of both.
        seqused_k: how many keys each sequence has, of those that have room.
        block_table: (sequences, pages): the pages of each sequence.
        num_splits: nothing is split here; the results do not depend on the batch.
        into: where attention goes; nothing is dropped then.

    Returns:
        Attention, laid out like query; the logarithms of the sums, (batches, heads, L) or (heads, rows); the state of
        dropout; two tensors that say nothing.
    """
    call = _flash_call(
        query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right,
        seqused_k, block_table,
    )  # fmt: skip
    if alibi_slopes is not None:
        _refuse("know no alibi_slopes; scaled_dot_product_attention takes such a bias as attn_mask")
    shape = (*query.shape[:-1], value.shape[-1])
    if into is not None and (dropout_p != 0 or into.shape != shape or into.dtype != query.dtype):
        _refuse(f"write {shape} of {query.dtype}, without dropout, not into {tuple(into.shape)} of {into.dtype}")
    out = flash.laid_out_like(query, shape[-1]) if into is None else into
    if into is None and call.packing is not None:
        out.zero_()  # between packed sequences there may be rows that are nobody's
    logs = _logs(call)
    seed = _forward(call, out, logs, dropout_p, scale)
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    if seed:
        state.copy_(torch.tensor([seed, 0], dtype=torch.uint64))
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    return out, logs, state, unused, query.new_empty(0)


def flash_forward_into(out: Tensor, *operands: Any, **options: Any) -> Tensor:
    """aten::_flash_attention_forward_no_dropout_inplace: :func:`flash_forward` into ``out``; the logarithms alone."""
    return flash_forward(*operands, into=out, **options)[1]  # type: ignore[no-any-return]


def _logs(call: _Call) -> Tensor:
    """Room for the logarithms of the sums, as flash-attn has them."""
    batches, heads, rows, _ = call.query.shape
    shape = (batches, heads, rows) if call.packing is None else (heads, rows)
    return torch.full(shape, float("-inf"), dtype=torch.float32, device=call.query.device)


def _forward(call: _Call, out: Tensor, logs: Tensor, dropout: float, scale: float | None) -> int:
    """Write attention into ``out``, and the logarithms of the sums; the seed."""
    _require(call, dropout)
    if call.empty:
        out.zero_()
        return 0
    return flash.attend(call.problem(dropout), _heads_first(out), logs, _places(logs), dropout, scale)


def flash_backward(
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
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Results:
    """aten::_flash_attention_backward: the gradients by query, key and value, of their layouts."""
    call = _flash_call(
        query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right
    )
    seed = int(rng_state[0].item()) if dropout_p > 0 else 0
    return _backward(call, grad_out, out, logsumexp, dropout_p, seed, scale)


def _backward(
    call: _Call, grad: Tensor, out: Tensor, logs: Tensor, dropout: float, seed: int, scale: float | None
) -> tuple[Tensor, ...]:
    """The gradients by query, key and value, laid out as the operator was given them."""
    _require(call, dropout)
    if call.empty:
        made: tuple[Tensor, ...] = tuple(torch.zeros_like(t) for t in (call.query, call.key, call.value))
    else:
        operands = _heads_first(grad), _heads_first(out), logs, _places(logs)
        made = flash.gradients(call.problem(dropout), *operands, dropout, seed, scale)
    rows_first = (t.transpose(1, 2) for t in made)
    return tuple(t if grad.dim() == 4 else t.squeeze(0) for t in rows_first)


def _efficient_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    custom_mask_type: int,
    window_size: int | None,
    seqlen_k: Tensor | None = None,
) -> _Call:
    if custom_mask_type not in _MASKS:
        _refuse(f"know the mask types {', '.join(map(str, _MASKS))}, not {custom_mask_type}")
    window = _MASKS[custom_mask_type]
    if window_size is not None and window_size > 0:
        if window.right is None:
            _refuse("take a window_size with a causal mask type alone")
        window = replace(window, left=int(window_size) - 1)
    operands = _heads_first(query), _heads_first(key), _heads_first(value)
    queries, keys = _ints(cu_seqlens_q), _ints(cu_seqlens_k)
    if queries is None:
        if seqlen_k is not None:
            _refuse("take seqlen_k with packed queries alone: give cu_seqlens_q")
        if window.left is None and operands[0].shape[2] == operands[1].shape[2]:
            window = Window(None, window.right)
        return _Call(*operands, window, None, bias)
    if keys is None or max_seqlen_q is None or query.shape[0] != 1:
        _refuse("want cu_seqlens_k, max_seqlen_q and operands of one batch with cu_seqlens_q")
    if bias is not None:
        _refuse("add no bias to packed sequences")
    most_keys = operands[1].shape[2] if max_seqlen_k is None else int(max_seqlen_k)
    packing = Packing(queries, keys, int(max_seqlen_q or 0), most_keys, _ints(seqlen_k))
    return _Call(*operands, window, packing)


_MASKS = {0: Window(), 1: Window(right=0), 2: Window(right=0, aligned=True)}
"""Of ``_efficient_attention_forward``: none, causal from the beginnings, causal from the ends."""

LOGS_ARE_MULTIPLES_OF = 32


def efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> Results:
    """aten::_efficient_attention_forward.

    Args:
        query, key, value: (batches, L, heads, E); one batch with ``cu_seqlens_q``.
        bias: bool or a float, broadcastable to (batches, heads, L, S).
        cu_seqlens_q, cu_seqlens_k: where packed sequences begin and the last one ends.
        max_seqlen_q, max_seqlen_k: at least the length of the longest.
        custom_mask_type: 0 for none, 1 causal, 2 causal from the ends of queries and keys.
        seqlen_k: how many keys each packed sequence has, of those that have room.
        window_size: how many keys a query of a causal mask sees at most, its own among them.

    Returns:
        Attention, laid out like query; the logarithms of the sums, (sequences, heads, L rounded up to 32), with L 0
        unless asked for; seed and offset of dropout; the longest query and key.
    """
    call = _efficient_call(
        query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, custom_mask_type, window_size,
        seqlen_k,
    )  # fmt: skip
    if bias is not None and not flash.takes(call.query, call.key, call.value, bias, dropout_p):
        _refuse(f"do not add {bias.dtype} of {tuple(bias.shape)} to these scores")
    longest = (call.query.shape[2], call.key.shape[2])
    if call.packing is not None:
        longest = call.packing.most_queries, call.packing.most_keys
    room = -(-longest[0] // LOGS_ARE_MULTIPLES_OF) * LOGS_ARE_MULTIPLES_OF
    shape = (call.sequences, call.query.shape[1], room)
    logs = torch.full(shape, float("-inf"), dtype=torch.float32, device=query.device)
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    seed = _forward(call, out, logs, dropout_p, scale)
    made = logs if compute_log_sumexp else logs[..., :0].contiguous()
    return out, made, torch.tensor(seed), torch.tensor(0), *longest


def efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> Results:
    """aten::_efficient_attention_backward; the bias has no gradient here."""
    if bias_requires_grad:
        _refuse("give a bias no gradient; torch.nn.functional.scaled_dot_product_attention does")
    call = _efficient_call(
        query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, custom_mask_type, window_size
    )
    seed = int(philox_seed.item()) if dropout_p > 0 else 0
    return *_backward(call, grad_out_, out, logsumexp, dropout_p, seed, scale), None
