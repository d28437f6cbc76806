"""The gradients of attention without the matrix of scores in memory, in Triton: by queries, by keys, or both at once.

As ``attention_kernels.py`` in all: the source, packed sequences, what a query may see.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops import attention_pieces as pieces
from anyxpu.ops.attention_kernels import _CHANGING, LN2, LOG2E, _extent, _kept, _scores, _view
from anyxpu.triton.hints import power_of_2


@triton.jit
def _query_block(
    sums,
    start,
    turned,
    turned_grad,
    log,
    delta,
    queries,
    row,
    k,
    v,
    bias,
    k_row,
    v_row,
    bias_query,
    bias_key,
    scale,
    dropout,
    seed,
    L,
    S,
    low,
    reach,
    most_queries,
    most_keys,
    E: tl.constexpr,
    F: tl.constexpr,
    EP: tl.constexpr,
    ER: tl.constexpr,
    FP: tl.constexpr,
    FR: tl.constexpr,
    BN: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):
    keys = start + tl.arange(0, BN)
    left = pieces.read(k, keys, k_row, S, E, EP, ER, MASKED, WIDE)
    scores = _scores(
        left, turned, queries[None, :], keys[:, None], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
        CAUSAL, LEFT, MASKED,
    )  # fmt: skip
    weights = power_of_2(scores - log[None, :])
    by_weight = pieces.product(pieces.read(v, keys, v_row, S, F, FP, FR, MASKED, WIDE), turned_grad)
    if DROPOUT:
        kept = _kept(seed, row, queries[None, :], keys[:, None], most_queries, most_keys, dropout)
        by_weight = tl.where(kept, by_weight / (1.0 - dropout), 0.0)
    by_score = weights * (by_weight - delta[None, :])
    return pieces.add_product(tl.trans(by_score), left, sums)


@triton.jit(do_not_specialize=_CHANGING)
def by_queries(
    q,
    k,
    v,
    bias,
    out,
    grad,
    logs,
    deltas,
    q_grad,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    grad_batch,
    grad_head,
    grad_row,
    into_batch,
    into_head,
    into_row,
    bias_batch,
    bias_head,
    bias_query,
    bias_key,
    scale,
    dropout,
    seed,
    L,
    S,
    q_offsets,
    k_offsets,
    logs_batch,
    logs_head,
    logs_row,
    left,
    right,
    GROUP: tl.constexpr,
    E: tl.constexpr,
    F: tl.constexpr,
    EP: tl.constexpr,
    ER: tl.constexpr,
    FP: tl.constexpr,
    FR: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PACKED: tl.constexpr,
    DROPOUT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient by a block of queries of one head, and each query's Σ grad · out, which :func:`by_keys` wants.

    Grid: (blocks of queries, heads, batches).
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(1) + head
    most_queries, most_keys = L, S
    first, L = _extent(q_offsets, batch, L, PACKED)
    if PACKED:  # noqa: SIM102 (the second is not known when it is compiled)
        if block * BM >= L:
            return
    first_key, S = _extent(k_offsets, batch, S, PACKED)
    low, reach = _view(L, S, left, right, ALIGNED)
    queries = block * BM + tl.arange(0, BM)
    inside = queries < L
    out += batch * out_batch + head * out_head + first * out_row
    grad += batch * grad_batch + head * grad_head + first * grad_row
    grads = pieces.read(grad, queries, grad_row, L, F, FP, FR, True, WIDE)
    delta = pieces.row_sums(pieces.read(out, queries, out_row, L, F, FP, FR, True, True), grads)
    place = batch * logs_batch + head * logs_head + first * logs_row
    tl.store(deltas + place + queries, delta, mask=inside)
    log = tl.load(logs + place + queries, mask=inside, other=0.0)
    log = tl.where(log == float("-inf"), 0.0, log * LOG2E)
    q += batch * q_batch + head * q_head + first * q_row
    turned = pieces.turned(pieces.read(q, queries, q_row, L, E, EP, ER, True, WIDE))
    turned_grad = pieces.turned(grads)
    k += batch * k_batch + (head // GROUP) * k_head + first_key * k_row
    v += batch * v_batch + (head // GROUP) * v_head + first_key * v_row
    if BIAS != "none":
        bias += batch * bias_batch + head * bias_head
    sums = pieces.nothing(BM, EP, ER)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (block + 1) * BM + reach)
    whole = S // BN * BN
    if CAUSAL:
        whole = tl.minimum(whole, tl.maximum(block * BM + reach, 0) // BN * BN)
    if LEFT:
        whole = tl.maximum(block * BM + low, 0) // BN * BN
    for start in range(0, 0 if LEFT else whole, BN):
        sums = _query_block(
            sums, start, turned, turned_grad, log, delta, queries, row, k, v, bias, k_row, v_row, bias_query, bias_key,
            scale, dropout, seed, L, S, low, reach, most_queries, most_keys, E, F, EP, ER, FP, FR, BN, BIAS, CAUSAL,
            LEFT, DROPOUT, False, WIDE,
        )  # fmt: skip
    for start in range(whole, end, BN):
        sums = _query_block(
            sums, start, turned, turned_grad, log, delta, queries, row, k, v, bias, k_row, v_row, bias_query, bias_key,
            scale, dropout, seed, L, S, low, reach, most_queries, most_keys, E, F, EP, ER, FP, FR, BN, BIAS, CAUSAL,
            LEFT, DROPOUT, True, WIDE,
        )  # fmt: skip
    q_grad += batch * into_batch + head * into_head + first * into_row
    pieces.write(q_grad, queries, into_row, inside, pieces.scaled(sums, scale * LN2), E)


@triton.jit
def _keys_block(
    by_key,
    by_value,
    start,
    turned_keys,
    turned_values,
    keys,
    row,
    q,
    grad,
    logs,
    deltas,
    bias,
    q_row,
    grad_row,
    bias_query,
    bias_key,
    scale,
    dropout,
    seed,
    L,
    S,
    low,
    reach,
    most_queries,
    most_keys,
    E: tl.constexpr,
    F: tl.constexpr,
    EP: tl.constexpr,
    ER: tl.constexpr,
    FP: tl.constexpr,
    FR: tl.constexpr,
    BM: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """What a block of queries adds to the gradients by keys and values, and the gradients of its scores."""
    queries = start + tl.arange(0, BM)
    inside = queries < L
    rows = pieces.read(q, queries, q_row, L, E, EP, ER, True, WIDE)
    grads = pieces.read(grad, queries, grad_row, L, F, FP, FR, True, WIDE)
    log = tl.load(logs + queries, mask=inside, other=float("inf"))
    log = tl.where(log == float("-inf"), 0.0, log * LOG2E)
    delta = tl.load(deltas + queries, mask=inside, other=0.0)
    scores = _scores(
        rows, turned_keys, queries[:, None], keys[None, :], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
        CAUSAL, LEFT, MASKED,
    )  # fmt: skip
    weights = power_of_2(scores - log[:, None])
    by_weight = pieces.product(grads, turned_values)
    used = weights
    if DROPOUT:
        kept = _kept(seed, row, queries[:, None], keys[None, :], most_queries, most_keys, dropout)
        by_weight = tl.where(kept, by_weight / (1.0 - dropout), 0.0)
        used = tl.where(kept, weights / (1.0 - dropout), 0.0)
    by_value = pieces.add_product(tl.trans(used), grads, by_value)
    by_score = weights * (by_weight - delta[:, None])
    by_key = pieces.add_product(tl.trans(by_score), rows, by_key)
    return by_key, by_value, by_score


@triton.jit(do_not_specialize=_CHANGING)
def by_keys(
    q,
    k,
    v,
    bias,
    grad,
    logs,
    deltas,
    k_grad,
    v_grad,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    grad_batch,
    grad_head,
    grad_row,
    into_batch,
    into_head,
    into_row,
    also_batch,
    also_head,
    also_row,
    bias_batch,
    bias_head,
    bias_query,
    bias_key,
    scale,
    dropout,
    seed,
    L,
    S,
    q_offsets,
    k_offsets,
    logs_batch,
    logs_head,
    logs_row,
    left,
    right,
    GROUP: tl.constexpr,
    E: tl.constexpr,
    F: tl.constexpr,
    EP: tl.constexpr,
    ER: tl.constexpr,
    FP: tl.constexpr,
    FR: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PACKED: tl.constexpr,
    DROPOUT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradients by a block of keys and of values of one head that a group of queries' heads shares.

    Grid: (blocks of keys, heads of keys, batches).
    """
    block, group, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    most_queries, most_keys = L, S
    first_key, S = _extent(k_offsets, batch, S, PACKED)
    if PACKED:  # noqa: SIM102 (the second is not known when it is compiled)
        if block * BN >= S:
            return
    first_query, L = _extent(q_offsets, batch, L, PACKED)
    low, reach = _view(L, S, left, right, ALIGNED)
    keys = block * BN + tl.arange(0, BN)
    k += batch * k_batch + group * k_head + first_key * k_row
    v += batch * v_batch + group * v_head + first_key * v_row
    turned_keys = pieces.turned(pieces.read(k, keys, k_row, S, E, EP, ER, True, WIDE))
    turned_values = pieces.turned(pieces.read(v, keys, v_row, S, F, FP, FR, True, WIDE))
    by_key, by_value = pieces.nothing(BN, EP, ER), pieces.nothing(BN, FP, FR)
    first, last = 0, L
    if CAUSAL:
        first = tl.maximum(block * BN - reach, 0) // BM * BM
    if LEFT:
        last = tl.minimum(L, (block + 1) * BN - low)
    for member in range(GROUP):
        head = group * GROUP + member
        row = batch * (tl.num_programs(1) * GROUP) + head
        q_here = q + batch * q_batch + head * q_head + first_query * q_row
        grad_here = grad + batch * grad_batch + head * grad_head + first_query * grad_row
        place = batch * logs_batch + head * logs_head + first_query * logs_row
        bias_here = bias
        if BIAS != "none":
            bias_here = bias + batch * bias_batch + head * bias_head
        for start in range(first, last, BM):
            by_key, by_value, _ = _keys_block(
                by_key, by_value, start, turned_keys, turned_values, keys, row, q_here, grad_here, logs + place,
                deltas + place, bias_here, q_row, grad_row, bias_query, bias_key, scale, dropout, seed, L, S, low,
                reach, most_queries, most_keys, E, F, EP, ER, FP, FR, BM, BIAS, CAUSAL, LEFT, DROPOUT, True, WIDE,
            )  # fmt: skip
    k_grad += batch * into_batch + group * into_head + first_key * into_row
    pieces.write(k_grad, keys, into_row, keys < S, pieces.scaled(by_key, scale * LN2), E)
    v_grad += batch * also_batch + group * also_head + first_key * also_row
    pieces.write(v_grad, keys, also_row, keys < S, by_value, F)


@triton.jit
def _add_rows(into, at, left, right, stride, count, SIZE: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr):
    """Add ``left · right`` to rows of a matrix."""
    product = pieces.add_product(left, right, pieces.nothing(left.shape[0], FIRST, REST))
    before = pieces.read(into, at, stride, count, SIZE, FIRST, REST, True, True)
    pieces.write(into, at, stride, at < count, pieces.added(before, product), SIZE)


@triton.jit(do_not_specialize=_CHANGING)
def by_both(
    q,
    k,
    v,
    bias,
    out,
    grad,
    logs,
    deltas,
    q_sums,
    q_grad,
    k_grad,
    v_grad,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    grad_batch,
    grad_head,
    grad_row,
    sums_batch,
    sums_head,
    sums_row,
    first_batch,
    first_head,
    first_row,
    into_batch,
    into_head,
    into_row,
    also_batch,
    also_head,
    also_row,
    bias_batch,
    bias_head,
    bias_query,
    bias_key,
    scale,
    dropout,
    seed,
    L,
    S,
    q_offsets,
    k_offsets,
    logs_batch,
    logs_head,
    logs_row,
    left,
    right,
    GROUP: tl.constexpr,
    E: tl.constexpr,
    F: tl.constexpr,
    EP: tl.constexpr,
    ER: tl.constexpr,
    FP: tl.constexpr,
    FR: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PACKED: tl.constexpr,
    DROPOUT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """All gradients of one head of keys, in five products a pair of blocks where the other two kernels need seven.

    Grid: (heads of keys, batches), for devices with fewer cores than that. ``q_sums`` is zeros of f32 and may be
    ``q_grad``.
    """
    group, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    most_queries, most_keys = L, S
    first_key, S = _extent(k_offsets, batch, S, PACKED)
    first_query, L = _extent(q_offsets, batch, L, PACKED)
    low, reach = _view(L, S, left, right, ALIGNED)
    for member in range(GROUP):
        head = group * GROUP + member
        out_here = out + batch * out_batch + head * out_head + first_query * out_row
        grad_here = grad + batch * grad_batch + head * grad_head + first_query * grad_row
        place = batch * logs_batch + head * logs_head + first_query * logs_row
        for start in range(0, L, BM):
            queries = start + tl.arange(0, BM)
            results = pieces.read(out_here, queries, out_row, L, F, FP, FR, True, True)
            grads = pieces.read(grad_here, queries, grad_row, L, F, FP, FR, True, True)
            tl.store(deltas + place + queries, pieces.row_sums(results, grads), mask=queries < L)
    tl.debug_barrier()  # what follows is read by others of the group than wrote it
    k += batch * k_batch + group * k_head + first_key * k_row
    v += batch * v_batch + group * v_head + first_key * v_row
    k_grad += batch * into_batch + group * into_head + first_key * into_row
    v_grad += batch * also_batch + group * also_head + first_key * also_row
    for begin in range(0, S, BN):
        keys = begin + tl.arange(0, BN)
        rows_of_keys = pieces.read(k, keys, k_row, S, E, EP, ER, True, WIDE)
        turned_keys = pieces.turned(rows_of_keys)
        turned_values = pieces.turned(pieces.read(v, keys, v_row, S, F, FP, FR, True, WIDE))
        by_key, by_value = pieces.nothing(BN, EP, ER), pieces.nothing(BN, FP, FR)
        first, last = 0, L
        if CAUSAL:
            first = tl.maximum(begin - reach, 0) // BM * BM
        if LEFT:
            last = tl.minimum(L, begin + BN - low)
        # Up to ``cut`` some of the scores are masked, and behind it none.
        cut = last
        if not LEFT:
            cut = first
            if CAUSAL:
                cut = tl.minimum(last, tl.maximum(begin + BN - 1 - reach + BM - 1, 0) // BM * BM)
            if begin + BN > S:
                cut = last
            cut = tl.maximum(cut, first)
        for member in range(GROUP):
            head = group * GROUP + member
            row = batch * (tl.num_programs(0) * GROUP) + head
            q_here = q + batch * q_batch + head * q_head + first_query * q_row
            grad_here = grad + batch * grad_batch + head * grad_head + first_query * grad_row
            sums_here = q_sums + batch * sums_batch + head * sums_head + first_query * sums_row
            place = batch * logs_batch + head * logs_head + first_query * logs_row
            bias_here = bias
            if BIAS != "none":
                bias_here = bias + batch * bias_batch + head * bias_head
            for start in range(first, cut, BM):
                by_key, by_value, by_score = _keys_block(
                    by_key, by_value, start, turned_keys, turned_values, keys, row, q_here, grad_here, logs + place,
                    deltas + place, bias_here, q_row, grad_row, bias_query, bias_key, scale, dropout, seed, L, S, low,
                    reach, most_queries, most_keys, E, F, EP, ER, FP, FR, BM, BIAS, CAUSAL, LEFT, DROPOUT, True, WIDE,
                )  # fmt: skip
                at = start + tl.arange(0, BM)
                _add_rows(sums_here, at, by_score, rows_of_keys, sums_row, L, E, EP, ER)
            for start in range(cut, last, BM):
                by_key, by_value, by_score = _keys_block(
                    by_key, by_value, start, turned_keys, turned_values, keys, row, q_here, grad_here, logs + place,
                    deltas + place, bias_here, q_row, grad_row, bias_query, bias_key, scale, dropout, seed, L, S, low,
                    reach, most_queries, most_keys, E, F, EP, ER, FP, FR, BM, BIAS, CAUSAL, LEFT, DROPOUT, False, WIDE,
                )  # fmt: skip
                at = start + tl.arange(0, BM)
                _add_rows(sums_here, at, by_score, rows_of_keys, sums_row, L, E, EP, ER)
        pieces.write(k_grad, keys, into_row, keys < S, pieces.scaled(by_key, scale * LN2), E)
        pieces.write(v_grad, keys, also_row, keys < S, by_value, F)
        tl.debug_barrier()
    for member in range(GROUP):
        head = group * GROUP + member
        sums_here = q_sums + batch * sums_batch + head * sums_head + first_query * sums_row
        into = q_grad + batch * first_batch + head * first_head + first_query * first_row
        for start in range(0, L, BM):
            queries = start + tl.arange(0, BM)
            sums = pieces.read(sums_here, queries, sums_row, L, E, EP, ER, True, True)
            pieces.write(into, queries, first_row, queries < L, pieces.scaled(sums, scale * LN2), E)
