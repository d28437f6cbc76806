"""What attention by products does between them, in Triton: rows of scores to weights, and to gradients of scores."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.attention_kernels import LN2, LOG2E

# Arguments that change from call to call and of which no layout depends, as in attention_kernels.
_CHANGING = ["bias_batch", "bias_head", "logs_batch", "logs_head", "first", "L", "S"]


@triton.jit
def _masked(
    scores, bias, bias_query, bias_key, queries, keys, inside, scale, first, BIAS: tl.constexpr, CAUSAL: tl.constexpr
):
    """Scores to the base of 2, -inf where nothing is allowed."""
    scores *= scale
    if BIAS != "none":
        places = bias + queries.to(tl.int64)[:, None] * bias_query + keys.to(tl.int64)[None, :] * bias_key
        added = tl.load(places, mask=inside, other=0)
        if BIAS == "bool":
            scores = tl.where(added != 0, scores, float("-inf"))
        else:
            scores += added.to(tl.float32) * LOG2E
    if CAUSAL:
        scores = tl.where(keys[None, :] <= queries[:, None] + first, scores, float("-inf"))
    return tl.where(inside, scores, float("-inf"))


@triton.jit(do_not_specialize=_CHANGING)
def to_weights(
    scores,
    bias,
    weights,
    logs,
    bias_batch,
    bias_head,
    bias_query,
    bias_key,
    logs_batch,
    logs_head,
    scale,
    first,
    L,
    S,
    R: tl.constexpr,
    SP: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """R rows of one head: their softmax, and the logarithms of their sums.

    Grid: (blocks of rows, heads, batches). Scores and weights are dense, and may be the same memory. ``scale`` is to
    the base of 2; ``first`` is the number of the first query.
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, keys = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, SP)
    row = (batch * tl.num_programs(1) + head) * L + queries
    places = row.to(tl.int64)[:, None] * S + keys[None, :]
    inside = (queries < L)[:, None] & (keys < S)[None, :]
    bias += batch * bias_batch + head * bias_head
    found = tl.load(scores + places, mask=inside, other=0.0)
    found = _masked(found, bias, bias_query, bias_key, queries, keys, inside, scale, first, BIAS, CAUSAL)
    top = tl.max(found, 1)
    raised = tl.exp2(found - tl.where(top == float("-inf"), 0.0, top)[:, None])
    total = tl.sum(raised, 1)
    seen = total != 0  # a sum that is NaN stays what it is
    made = raised * tl.where(seen, 1.0 / total, 0.0)[:, None]
    tl.store(weights + places, made.to(weights.dtype.element_ty), mask=inside)
    line = logs + batch * logs_batch + head * logs_head + queries
    tl.store(line, tl.where(seen, (top + tl.log2(total)) * LN2, float("-inf")), mask=queries < L)


@triton.jit(do_not_specialize=[*_CHANGING, "out_batch", "grad_batch"])
def to_gradients(
    scores,
    grads,
    bias,
    out,
    grad_out,
    logs,
    weights,
    score_grads,
    bias_batch,
    bias_head,
    bias_query,
    bias_key,
    out_batch,
    out_head,
    out_row,
    grad_batch,
    grad_head,
    grad_row,
    logs_batch,
    logs_head,
    scale,
    factor,
    L,
    S,
    F,
    R: tl.constexpr,
    SP: tl.constexpr,
    FP: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """R rows of one head: their weights anew, and the gradients of their scores from those of the weights.

    Grid: (blocks of rows, heads, batches). Weights may lie where the scores do, and the scores' gradients where those
    of the weights do. ``scale`` is to the base of 2, ``factor`` is what the products were multiplied by.
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, keys, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, SP), tl.arange(0, FP)
    row = (batch * tl.num_programs(1) + head) * L + queries
    places = row.to(tl.int64)[:, None] * S + keys[None, :]
    inside = (queries < L)[:, None] & (keys < S)[None, :]
    bias += batch * bias_batch + head * bias_head
    there = (queries < L)[:, None] & (columns < F)[None, :]
    lines = queries.to(tl.int64)[:, None]
    ours = tl.load(
        out + batch * out_batch + head * out_head + lines * out_row + columns[None, :], mask=there, other=0.0
    )
    theirs = tl.load(
        grad_out + batch * grad_batch + head * grad_head + lines * grad_row + columns[None, :], mask=there, other=0.0
    )
    delta = tl.sum(ours.to(tl.float32) * theirs.to(tl.float32), 1)
    log = tl.load(logs + batch * logs_batch + head * logs_head + queries, mask=queries < L, other=0.0) * LOG2E
    found = tl.load(scores + places, mask=inside, other=0.0)
    found = _masked(found, bias, bias_query, bias_key, queries, keys, inside, scale, 0, BIAS, CAUSAL)
    made = tl.exp2(found - tl.where(log == float("-inf"), 0.0, log)[:, None])
    tl.store(weights + places, made.to(weights.dtype.element_ty), mask=inside)
    by_weight = tl.load(grads + places, mask=inside, other=0.0)
    by_score = made * (by_weight - delta[:, None]) * factor
    tl.store(score_grads + places, by_score.to(score_grads.dtype.element_ty), mask=inside)
