"""The gradients of attention without the matrix of scores in memory, in Triton: by queries, by keys, or both at once.

As ``attention_kernels.py`` in all: the source, packed sequences, what a query may see.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.attention_kernels import _CHANGING, LN2, LOG2E, _extent, _kept, _rows, _scores, _view


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
    FP: tl.constexpr,
    BN: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):
    keys = start + tl.arange(0, BN)
    left = _rows(k, keys, k_row, S, tl.arange(0, EP), E, MASKED, WIDE)
    scores = _scores(
        left, turned, queries[None, :], keys[:, None], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
        CAUSAL, LEFT, MASKED,
    )  # fmt: skip
    weights = tl.exp2(scores - log[None, :])
    values = _rows(v, keys, v_row, S, tl.arange(0, FP), F, MASKED, WIDE)
    by_weight = tl.dot(values, turned_grad, input_precision="ieee")
    if DROPOUT:
        kept = _kept(seed, row, queries[None, :], keys[:, None], most_queries, most_keys, dropout)
        by_weight = tl.where(kept, by_weight / (1.0 - dropout), 0.0)
    by_score = weights * (by_weight - delta[None, :])
    return tl.dot(tl.trans(by_score).to(left.dtype), left, sums, input_precision="ieee")


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
    FP: tl.constexpr,
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
    columns = tl.arange(0, FP)
    out += batch * out_batch + head * out_head + first * out_row
    grad += batch * grad_batch + head * grad_head + first * grad_row
    results = _rows(out, queries, out_row, L, columns, F, True, True)
    grads = _rows(grad, queries, grad_row, L, columns, F, True, WIDE)
    delta = tl.sum(results * grads.to(tl.float32), 1)
    place = batch * logs_batch + head * logs_head + first * logs_row
    tl.store(deltas + place + queries, delta, mask=inside)
    log = tl.load(logs + place + queries, mask=inside, other=0.0)
    log = tl.where(log == float("-inf"), 0.0, log * LOG2E)
    q += batch * q_batch + head * q_head + first * q_row
    turned = tl.trans(_rows(q, queries, q_row, L, tl.arange(0, EP), E, True, WIDE))
    turned_grad = tl.trans(grads)
    k += batch * k_batch + (head // GROUP) * k_head + first_key * k_row
    v += batch * v_batch + (head // GROUP) * v_head + first_key * v_row
    if BIAS != "none":
        bias += batch * bias_batch + head * bias_head
    sums = tl.zeros([BM, EP], tl.float32)
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
            scale, dropout, seed, L, S, low, reach, most_queries, most_keys, E, F, EP, FP, BN, BIAS, CAUSAL, LEFT,
            DROPOUT, False, WIDE,
        )  # fmt: skip
    for start in range(whole, end, BN):
        sums = _query_block(
            sums, start, turned, turned_grad, log, delta, queries, row, k, v, bias, k_row, v_row, bias_query, bias_key,
            scale, dropout, seed, L, S, low, reach, most_queries, most_keys, E, F, EP, FP, BN, BIAS, CAUSAL, LEFT,
            DROPOUT, True, WIDE,
        )  # fmt: skip
    q_grad += batch * into_batch + head * into_head + first * into_row
    at = tl.arange(0, EP)
    places = q_grad + queries.to(tl.int64)[:, None] * into_row + at[None, :]
    tl.store(places, (sums * (scale * LN2)).to(q_grad.dtype.element_ty), mask=inside[:, None] & (at < E)[None, :])


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
    FP: tl.constexpr,
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
    rows = _rows(q, queries, q_row, L, tl.arange(0, EP), E, True, WIDE)
    grads = _rows(grad, queries, grad_row, L, tl.arange(0, FP), F, True, WIDE)
    log = tl.load(logs + queries, mask=inside, other=float("inf"))
    log = tl.where(log == float("-inf"), 0.0, log * LOG2E)
    delta = tl.load(deltas + queries, mask=inside, other=0.0)
    scores = _scores(
        rows, turned_keys, queries[:, None], keys[None, :], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
        CAUSAL, LEFT, MASKED,
    )  # fmt: skip
    weights = tl.exp2(scores - log[:, None])
    by_weight = tl.dot(grads, turned_values, input_precision="ieee")
    used = weights
    if DROPOUT:
        kept = _kept(seed, row, queries[:, None], keys[None, :], most_queries, most_keys, dropout)
        by_weight = tl.where(kept, by_weight / (1.0 - dropout), 0.0)
        used = tl.where(kept, weights / (1.0 - dropout), 0.0)
    by_value = tl.dot(tl.trans(used).to(grads.dtype), grads, by_value, input_precision="ieee")
    by_score = weights * (by_weight - delta[:, None])
    by_key = tl.dot(tl.trans(by_score).to(rows.dtype), rows, by_key, input_precision="ieee")
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
    FP: tl.constexpr,
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
    at, columns = tl.arange(0, EP), tl.arange(0, FP)
    k += batch * k_batch + group * k_head + first_key * k_row
    v += batch * v_batch + group * v_head + first_key * v_row
    turned_keys = tl.trans(_rows(k, keys, k_row, S, at, E, True, WIDE))
    turned_values = tl.trans(_rows(v, keys, v_row, S, columns, F, True, WIDE))
    by_key = tl.zeros([BN, EP], tl.float32)
    by_value = tl.zeros([BN, FP], tl.float32)
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
                reach, most_queries, most_keys, E, F, EP, FP, BM, BIAS, CAUSAL, LEFT, DROPOUT, True, WIDE,
            )  # fmt: skip
    inside_keys = (keys < S)[:, None]
    k_grad += batch * into_batch + group * into_head + first_key * into_row
    places = k_grad + keys.to(tl.int64)[:, None] * into_row + at[None, :]
    tl.store(places, (by_key * (scale * LN2)).to(k_grad.dtype.element_ty), mask=inside_keys & (at < E)[None, :])
    v_grad += batch * also_batch + group * also_head + first_key * also_row
    places = v_grad + keys.to(tl.int64)[:, None] * also_row + columns[None, :]
    tl.store(places, by_value.to(v_grad.dtype.element_ty), mask=inside_keys & (columns < F)[None, :])


@triton.jit
def _add_rows(into, start, rows, stride, count, SIZE: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr):
    """Add rows to those of a matrix."""
    at, columns = start + tl.arange(0, BM), tl.arange(0, WIDTH)
    places = into + at.to(tl.int64)[:, None] * stride + columns[None, :]
    inside = (at < count)[:, None] & (columns < SIZE)[None, :]
    tl.store(places, tl.load(places, mask=inside, other=0.0) + rows, mask=inside)


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
    FP: tl.constexpr,
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
    at, columns = tl.arange(0, EP), tl.arange(0, FP)
    for member in range(GROUP):
        head = group * GROUP + member
        out_here = out + batch * out_batch + head * out_head + first_query * out_row
        grad_here = grad + batch * grad_batch + head * grad_head + first_query * grad_row
        place = batch * logs_batch + head * logs_head + first_query * logs_row
        for start in range(0, L, BM):
            queries = start + tl.arange(0, BM)
            results = _rows(out_here, queries, out_row, L, columns, F, True, True)
            grads = _rows(grad_here, queries, grad_row, L, columns, F, True, True)
            tl.store(deltas + place + queries, tl.sum(results * grads, 1), mask=queries < L)
    tl.debug_barrier()  # what follows is read by others of the group than wrote it
    k += batch * k_batch + group * k_head + first_key * k_row
    v += batch * v_batch + group * v_head + first_key * v_row
    k_grad += batch * into_batch + group * into_head + first_key * into_row
    v_grad += batch * also_batch + group * also_head + first_key * also_row
    for begin in range(0, S, BN):
        keys = begin + tl.arange(0, BN)
        rows_of_keys = _rows(k, keys, k_row, S, at, E, True, WIDE)
        turned_keys = tl.trans(rows_of_keys)
        turned_values = tl.trans(_rows(v, keys, v_row, S, columns, F, True, WIDE))
        by_key = tl.zeros([BN, EP], tl.float32)
        by_value = tl.zeros([BN, FP], tl.float32)
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
                    reach, most_queries, most_keys, E, F, EP, FP, BM, BIAS, CAUSAL, LEFT, DROPOUT, True, WIDE,
                )  # fmt: skip
                _add_rows(
                    sums_here, start, tl.dot(by_score.to(rows_of_keys.dtype), rows_of_keys, input_precision="ieee"),
                    sums_row, L, E, EP, BM,
                )  # fmt: skip
            for start in range(cut, last, BM):
                by_key, by_value, by_score = _keys_block(
                    by_key, by_value, start, turned_keys, turned_values, keys, row, q_here, grad_here, logs + place,
                    deltas + place, bias_here, q_row, grad_row, bias_query, bias_key, scale, dropout, seed, L, S, low,
                    reach, most_queries, most_keys, E, F, EP, FP, BM, BIAS, CAUSAL, LEFT, DROPOUT, False, WIDE,
                )  # fmt: skip
                _add_rows(
                    sums_here, start, tl.dot(by_score.to(rows_of_keys.dtype), rows_of_keys, input_precision="ieee"),
                    sums_row, L, E, EP, BM,
                )  # fmt: skip
        inside_keys = (keys < S)[:, None]
        places = k_grad + keys.to(tl.int64)[:, None] * into_row + at[None, :]
        tl.store(places, (by_key * (scale * LN2)).to(k_grad.dtype.element_ty), mask=inside_keys & (at < E)[None, :])
        places = v_grad + keys.to(tl.int64)[:, None] * also_row + columns[None, :]
        tl.store(places, by_value.to(v_grad.dtype.element_ty), mask=inside_keys & (columns < F)[None, :])
        tl.debug_barrier()
    for member in range(GROUP):
        head = group * GROUP + member
        sums_here = q_sums + batch * sums_batch + head * sums_head + first_query * sums_row
        into = q_grad + batch * first_batch + head * first_head + first_query * first_row
        for start in range(0, L, BM):
            queries = start + tl.arange(0, BM)
            sums = _rows(sums_here, queries, sums_row, L, at, E, True, True)
            places = into + queries.to(tl.int64)[:, None] * first_row + at[None, :]
            inside = (queries < L)[:, None] & (at < E)[None, :]
            tl.store(places, (sums * (scale * LN2)).to(q_grad.dtype.element_ty), mask=inside)
