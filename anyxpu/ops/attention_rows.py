"""What attention by products does between them, in Triton: rows of scores to weights, and to gradients of scores.

For CPU devices. A program goes over its rows one by one, and over a row's scores some registers at a time, of which
none but the last have a mask; what a causal mask hides is neither read nor computed. A row that is gone over more than
once is in the first cache by then.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops.attention_kernels import LN2, LOG2E
from anyxpu.triton.hints import power_of_2

# Arguments that change from call to call and of which no layout depends, as in attention_kernels.
_CHANGING = ["bias_batch", "bias_head", "logs_batch", "logs_head", "first", "L", "S", "down"]


@triton.jit
def _found(scores, keys, count, scale, bias, bias_key, BIAS: tl.constexpr, MASKED: tl.constexpr):
    """Scores of a row to the base of 2, -inf where nothing is allowed or no key is."""
    inside = keys < count
    found = tl.load(scores + keys, mask=inside, other=float("-inf")) if MASKED else tl.load(scores + keys)
    found *= scale
    if BIAS != "none":
        places = bias + keys.to(tl.int64) * bias_key
        added = tl.load(places, mask=inside, other=0) if MASKED else tl.load(places)
        if BIAS == "bool":
            found = tl.where(added != 0, found, float("-inf"))
        else:
            found += added.to(tl.float32) * LOG2E
    return tl.where(inside, found, float("-inf")) if MASKED else found


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
    down,
    C: tl.constexpr,
    SHORT: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Rows of one head: their softmax, and the logarithms of their sums.

    Grid: (blocks of ``down`` rows, heads, batches). Scores and weights are dense, and may be the same memory; what is
    left of scores does not count. ``scale`` is to the base of 2; ``first`` is the number of the first query. C scores
    are looked at at a time; SHORT: a row has no more.
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * down
    lanes = tl.arange(0, C)
    bias += batch * bias_batch + head * bias_head
    logs += batch * logs_batch + head * logs_head
    before = (batch * tl.num_programs(1) + head) * L
    for query in range(begin, tl.minimum(begin + down, L)):
        line = scores + (before + query) * S
        into = weights + (before + query) * S
        allowed = bias + tl.cast(query, tl.int64) * bias_query
        count = tl.minimum(S, query + first + 1) if CAUSAL else S
        if SHORT:
            found = _found(line, lanes, count, scale, allowed, bias_key, BIAS, True)
            top = tl.max(found, 0)
            safe = tl.where(top == float("-inf"), 0.0, top)
            raised = power_of_2(found - safe)
            total = tl.sum(raised, 0)
            seen = total != 0  # a sum that is NaN stays what it is
            made = raised * tl.where(seen, 1.0 / total, 0.0)
            tl.store(into + lanes, made.to(weights.dtype.element_ty), mask=lanes < S)
        else:
            whole = tl.minimum(S, count // C * C)
            rest = whole + lanes
            most = tl.full((C,), float("-inf"), tl.float32)
            for start in range(0, whole, C):
                most = tl.maximum(most, _found(line, start + lanes, S, scale, allowed, bias_key, BIAS, False))
            if whole < count:
                most = tl.maximum(most, _found(line, rest, count, scale, allowed, bias_key, BIAS, True))
            top = tl.max(most, 0)
            safe = tl.where(top == float("-inf"), 0.0, top)
            sums = tl.zeros((C,), tl.float32)
            for start in range(0, whole, C):
                raised = power_of_2(_found(line, start + lanes, S, scale, allowed, bias_key, BIAS, False) - safe)
                sums += raised
                tl.store(line + start + lanes, raised)
            last = power_of_2(_found(line, rest, count, scale, allowed, bias_key, BIAS, True) - safe)
            total = tl.sum(sums + last, 0)
            seen = total != 0
            share = tl.where(seen, 1.0 / total, 0.0)
            for start in range(0, whole, C):
                made = tl.load(line + start + lanes) * share
                tl.store(into + start + lanes, made.to(weights.dtype.element_ty))
            tl.store(into + rest, (last * share).to(weights.dtype.element_ty), mask=rest < S)
            if CAUSAL:  # what is behind
                for start in range(0, tl.minimum(S, S - whole - C), C):
                    behind = start + C + rest
                    tl.store(into + behind, tl.zeros((C,), weights.dtype.element_ty), mask=behind < S)
        tl.store(logs + query, tl.where(seen, (top + tl.log2(total)) * LN2, float("-inf")))


@triton.jit
def _gradients_of(
    line, slopes, into, onto, keys, count, S, scale, factor, safe, delta, bias, bias_key,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Some of a row's weights, and its scores' gradients; both 0 where no key is or none is allowed."""
    made = power_of_2(_found(line, keys, count, scale, bias, bias_key, BIAS, MASKED) - safe)
    by_weight = tl.load(slopes + keys, mask=keys < count, other=0.0) if MASKED else tl.load(slopes + keys)
    by_score = made * (by_weight - delta) * factor
    if MASKED:
        tl.store(into + keys, made.to(into.dtype.element_ty), mask=keys < S)
        tl.store(onto + keys, by_score.to(onto.dtype.element_ty), mask=keys < S)
    else:
        tl.store(into + keys, made.to(into.dtype.element_ty))
        tl.store(onto + keys, by_score.to(onto.dtype.element_ty))


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
    down,
    C: tl.constexpr,
    FP: tl.constexpr,
    SHORT: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Rows of one head: their weights anew, and the gradients of their scores from those of the weights.

    Grid: (blocks of ``down`` rows, heads, batches). Weights may lie where the scores do, and the scores' gradients
    where those of the weights do. ``scale`` is to the base of 2, ``factor`` is what the products were multiplied by.
    FP is a power of two that holds F elements; C and SHORT are as :func:`to_weights` has them.
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * down
    lanes, columns = tl.arange(0, C), tl.arange(0, FP)
    bias += batch * bias_batch + head * bias_head
    logs += batch * logs_batch + head * logs_head
    out += batch * out_batch + head * out_head
    grad_out += batch * grad_batch + head * grad_head
    before = (batch * tl.num_programs(1) + head) * L
    for query in range(begin, tl.minimum(begin + down, L)):
        line, slopes = scores + (before + query) * S, grads + (before + query) * S
        into, onto = weights + (before + query) * S, score_grads + (before + query) * S
        number = tl.cast(query, tl.int64)
        allowed = bias + number * bias_query
        ours = tl.load(out + number * out_row + columns, mask=columns < F, other=0.0)
        theirs = tl.load(grad_out + number * grad_row + columns, mask=columns < F, other=0.0)
        delta = tl.sum(ours.to(tl.float32) * theirs.to(tl.float32), 0)
        log = tl.load(logs + query) * LOG2E
        safe = tl.where(log == float("-inf"), 0.0, log)
        count = tl.minimum(S, query + 1) if CAUSAL else S
        if SHORT:
            _gradients_of(
                line, slopes, into, onto, lanes, count, S, scale, factor, safe, delta, allowed, bias_key, BIAS, True
            )
        else:
            whole = tl.minimum(S, count // C * C)
            for start in range(0, whole, C):
                keys = start + lanes
                _gradients_of(
                    line, slopes, into, onto, keys, S, S, scale, factor, safe, delta, allowed, bias_key, BIAS, False
                )
            rest = whole + lanes
            _gradients_of(
                line, slopes, into, onto, rest, count, S, scale, factor, safe, delta, allowed, bias_key, BIAS, True
            )
            if CAUSAL:  # what is behind
                for start in range(0, tl.minimum(S, S - whole - C), C):
                    behind = start + C + rest
                    tl.store(into + behind, tl.zeros((C,), weights.dtype.element_ty), mask=behind < S)
                    tl.store(onto + behind, tl.zeros((C,), score_grads.dtype.element_ty), mask=behind < S)
