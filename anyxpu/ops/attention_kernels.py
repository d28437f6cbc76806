"""Attention without the matrix of scores in memory, in Triton; its gradients are in ``attention_gradient_kernels.py``.

After Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023). Scores are kept
with the keys down and the queries across where a query's scores are summed, so that the sums run along registers and
not across lanes; the sums of each program are in f32. Elements are read by strides, the last of which is 1.

Sequences may be packed: then they lie one after the other along the rows, ``offsets`` says where each begins (one more
than there are sequences), and L and S are no sequence's length but bounds of all. Keys and values may lie in pages,
which a table lists for each sequence. A query may see the keys from ``low`` places before its own to ``reach`` after
it, where the places are counted from the start of both, or from the end (ALIGNED), as in flash-attn.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.ops import attention_pieces as pieces
from anyxpu.triton.hints import power_of_2

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Arguments that change from call to call and of which no layout depends: a kernel of their own for each that is 1 or
# divisible by 16 would only be the same code once more. Of the last one a layout should not depend on a GPU: where
# Triton knows that a mask's keys lie side by side it spreads all scores over lanes as that is best read, and their sums
# across lanes spill (17 KB on Xe2). A CPU device is told, by None: rows that are a power of 2 apart share few sets of
# its first cache, and read lane by lane floats of 1,024 keys cost twice the time of attention without a mask.
_CHANGING = [
    *("seed", "L", "S", "logs_batch", "logs_head", "logs_row", "bias_batch", "bias_head", "left", "right"),
    "bias_key",
]


@triton.jit
def _extent(offsets, sequence, count, PACKED: tl.constexpr):
    """Where a sequence's rows begin, and how many there are."""
    if PACKED:
        first = tl.load(offsets + sequence).to(tl.int64)
        return first, (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    else:
        return 0, count


@triton.jit
def _view(L, S, left, right, ALIGNED: tl.constexpr):
    """How many places before and after its own a query may see."""
    if ALIGNED:
        return S - L - left, S - L + right
    else:
        return -left, right


@triton.jit
def _scores(
    left,
    right,
    queries,
    keys,
    bias,
    bias_query,
    bias_key,
    scale,
    L,
    S,
    low,
    reach,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    MASKED: tl.constexpr,
    FEW: tl.constexpr = False,
):
    """``left · right`` to the base of 2, masked; ``queries`` and ``keys`` are their indices, as they broadcast.

    Of FEW, ``right`` and the scores are transposed, the queries down, so that they are not padded to the columns of a
    product's tile. Of one, the sums are written out: faster still.
    """
    if FEW:
        if right[0].shape[0] == 1:
            scores = tl.sum(left[0][None, :, :].to(tl.float32) * right[0][:, None, :].to(tl.float32), 2)
            if len(left) == 2:
                scores += tl.sum(left[1][None, :, :].to(tl.float32) * right[1][:, None, :].to(tl.float32), 2)
        else:
            scores = pieces.product(right, pieces.turned(left))
    else:
        scores = pieces.product(left, right)
    scores *= scale
    if BIAS != "none":
        # What is read behind the last query is nobody's, and what is read behind the last key is masked below.
        at = tl.minimum(queries, L - 1).to(tl.int64) * bias_query
        along = (tl.minimum(keys, S - 1) if MASKED else keys).to(tl.int64)
        if (BIAS == "float rows" or BIAS == "bool rows") and queries.shape[0] == 1:
            # Where a turn costs less than reading down the columns.
            added = tl.load(bias + tl.trans(at) + tl.trans(along))
            added = tl.trans(added.to(tl.int32) if BIAS == "bool rows" else added.to(tl.float32))
        else:
            added = tl.load(bias + at + (along if bias_key is None else along * bias_key))
        if BIAS == "bool" or BIAS == "bool rows":
            scores = tl.where(added != 0, scores, float("-inf"))
        else:
            scores += added.to(tl.float32) * LOG2E
    if CAUSAL and MASKED:
        scores = tl.where(keys <= queries + reach, scores, float("-inf"))
    if LEFT and MASKED:
        scores = tl.where(keys >= queries + low, scores, float("-inf"))
    if MASKED:
        scores = tl.where(keys < S, scores, float("-inf"))
    return scores


@triton.jit
def _kept(seed, row, queries, keys, L, S, dropout):
    """Which elements of the matrix of weights dropout keeps."""
    return tl.rand(seed, ((row * L + queries) * S + keys).to(tl.int32)) >= dropout


@triton.jit
def _forward_block(
    top,
    total,
    sums,
    start,
    turned,
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
    pages,
    k_page,
    v_page,
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
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    FEW: tl.constexpr,
):
    keys = start + tl.arange(0, BN)
    if PAGE:
        left = pieces.read_pages(k, keys, k_row, S, pages, k_page, E, EP, ER, PAGE, WIDE)
    else:
        left = pieces.read(k, keys, k_row, S, E, EP, ER, MASKED, WIDE)
    if FEW:
        scores = _scores(
            left, turned, queries[:, None], keys[None, :], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
            CAUSAL, LEFT, MASKED, True,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(scores, 1))
    else:
        scores = _scores(
            left, turned, queries[None, :], keys[:, None], bias, bias_query, bias_key, scale, L, S, low, reach, BIAS,
            CAUSAL, LEFT, MASKED,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(scores, 0))
    shift = tl.where(new == float("-inf"), 0.0, new)  # of a query that nothing is allowed for yet
    shrunk = tl.exp2(top - shift)
    if FEW:
        weights = power_of_2(scores - shift[:, None])
        total = total * shrunk + tl.sum(weights, 1)
    else:
        weights = power_of_2(scores - shift[None, :])
        total = total * shrunk + tl.sum(weights, 0)
    if DROPOUT:
        if FEW:
            kept = _kept(seed, row, queries[:, None], keys[None, :], most_queries, most_keys, dropout)
        else:
            kept = _kept(seed, row, queries[None, :], keys[:, None], most_queries, most_keys, dropout)
        weights = tl.where(kept, weights, 0.0)
    if PAGE:
        values = pieces.read_pages(v, keys, v_row, S, pages, v_page, F, FP, FR, PAGE, WIDE)
    else:
        values = pieces.read(v, keys, v_row, S, F, FP, FR, MASKED, WIDE)
    sums = pieces.scaled(sums, shrunk[:, None])
    if FEW:
        sums = (
            pieces.add_weighted(weights, values, sums)
            if weights.shape[0] == 1
            else pieces.add_product(weights, values, sums)
        )
    else:
        sums = pieces.add_product(tl.trans(weights), values, sums)
    return new, total, sums


@triton.jit(do_not_specialize=[*_CHANGING, "page_row", "part"])
def attend(
    q,
    k,
    v,
    bias,
    out,
    logs,
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
    used,
    pages,
    page_row,
    part,
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
    BT: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PACKED: tl.constexpr,
    PACKED_KEYS: tl.constexpr,
    USED: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    DROPOUT: tl.constexpr,
    WIDE: tl.constexpr,
    FEW: tl.constexpr,
):
    """A block of queries of one head: their results, and the logarithms of their sums.

    Grid: (blocks of queries, heads, batches). ``scale`` is to the base of 2. Keys that not all of the queries see are
    taken in blocks of BT. Of PARTS, what stands for batches are parts of one batch's keys, ``part`` each, one after the
    other.
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(1) + head
    most_queries, most_keys = L, S
    first, L = _extent(q_offsets, batch, L, PACKED)
    if PACKED:  # noqa: SIM102 (the second is not known when it is compiled)
        if block * BM >= L:
            return
    first_key, S = _extent(k_offsets, batch, S, PACKED_KEYS)
    if USED:
        S = tl.load(used + batch).to(tl.int32)
    if PARTS:
        S = tl.minimum(part, S - batch * part).to(tl.int32)
    low, reach = _view(L, S, left, right, ALIGNED)
    queries = block * BM + tl.arange(0, BM)
    q += batch * q_batch + head * q_head + first * q_row
    turned = pieces.read(q, queries, q_row, L, E, EP, ER, True, WIDE)
    if not FEW:
        turned = pieces.turned(turned)
    k_page, v_page = k_batch, v_batch
    if PAGE:
        pages += batch * page_row
    else:
        k += batch * k_batch + first_key * k_row
        v += batch * v_batch + first_key * v_row
    k += (head // GROUP) * k_head
    v += (head // GROUP) * v_head
    if BIAS != "none":
        bias += batch * bias_batch + head * bias_head
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = pieces.nothing(BM, FP, FR)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (block + 1) * BM + reach)
    whole = S // BN * BN
    if CAUSAL:
        whole = tl.minimum(whole, tl.maximum(block * BM + reach, 0) // BN * BN)
    if LEFT:
        whole = tl.maximum(block * BM + low, 0) // BN * BN
    for start in range(0, 0 if LEFT else whole, BN):
        top, total, sums = _forward_block(
            top, total, sums, start, turned, queries, row, k, v, bias, k_row, v_row, bias_query, bias_key, scale,
            dropout, seed, L, S, low, reach, most_queries, most_keys, pages, k_page, v_page, E, F, EP, ER, FP, FR, BN,
            BIAS, CAUSAL, LEFT, DROPOUT, PAGE, False, WIDE, FEW,
        )  # fmt: skip
    for start in range(whole, end, BT):
        top, total, sums = _forward_block(
            top, total, sums, start, turned, queries, row, k, v, bias, k_row, v_row, bias_query, bias_key, scale,
            dropout, seed, L, S, low, reach, most_queries, most_keys, pages, k_page, v_page, E, F, EP, ER, FP, FR, BT,
            BIAS, CAUSAL, LEFT, DROPOUT, PAGE, True, WIDE, FEW,
        )  # fmt: skip
    inside = queries < L
    seen = total != 0  # a sum that is NaN stays what it is
    logs += batch * logs_batch + head * logs_head + first * logs_row
    tl.store(logs + queries, tl.where(seen, (top + tl.log2(total)) * LN2, float("-inf")), mask=inside)
    kept = 1.0
    if DROPOUT:
        kept = 1.0 - dropout
    results = pieces.scaled(sums, tl.where(seen, 1.0 / (total * kept), 0.0)[:, None])
    pieces.write(out + batch * out_batch + head * out_head + first * out_row, queries, out_row, inside, results, F)


@triton.jit(do_not_specialize=["PARTS", "out_head"])
def join(parts, part_logs, out, logs, out_head, out_row, PARTS, F: tl.constexpr, FP: tl.constexpr, PP: tl.constexpr):
    """One query's results of one head, and the logarithm of its sum, of those of the parts of its keys.

    Grid: (queries, heads). ``parts`` (PARTS, heads, queries, F) and ``part_logs`` (PARTS, heads, queries) are dense; PP
    is the power of 2 that PARTS fit in.
    """
    query, head = tl.program_id(0), tl.program_id(1)
    place, step = head * tl.num_programs(0) + query, tl.num_programs(0) * tl.num_programs(1)
    numbers, columns = tl.arange(0, PP), tl.arange(0, FP)
    theirs = tl.load(part_logs + numbers * step + place, mask=numbers < PARTS, other=float("-inf"))
    top = tl.max(theirs, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)  # of a query that no part allows anything for
    total = tl.sum(tl.exp(theirs - shift), 0)
    # Row by row: all of them at once would not fit in a small GPU's registers.
    rows = tl.zeros((FP,), tl.float32)
    for part in range(PARTS):
        at = (part * step + place).to(tl.int64)
        weight = tl.exp(tl.load(part_logs + at) - shift)
        rows += tl.load(parts + at * F + columns, mask=columns < F, other=0.0) * weight
    result = rows * tl.where(total == 0, 0.0, 1.0 / total)
    places = out + head * out_head + query * out_row + columns
    tl.store(places, result.to(out.dtype.element_ty), mask=columns < F)
    tl.store(logs + place, tl.where(total == 0, float("-inf"), shift + tl.log(total)))


# Triton's digest of a kernel depends on which of those that call the same functions it has seen before (3.6 to 3.9).
# With one of them first everywhere, what another process compiled is found.
attend.cache_key  # noqa: B018
