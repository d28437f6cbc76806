"""Attention of packed sequences, of windows and of pages: what varlen_attn and jagged tensors call, and they too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from anyxpu import ops

aten = torch.ops.aten
BOUND = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
WINDOWS = [(None, None), (None, 0), (7, 0), (3, 5), (None, 4), (6, None)]
# heads, heads of keys, E, F, lengths of queries, of keys
SEQUENCES = [
    (4, 4, 16, 16, [5, 70, 1, 33], [5, 70, 1, 33]),
    (6, 2, 40, 24, [3, 130, 0, 64], [77, 150, 9, 40]),
    (2, 1, 128, 128, [1, 1, 1], [200, 1, 64]),
]


def exact(q: Tensor, k: Tensor, v: Tensor, left: int | None, right: int | None) -> tuple[Tensor, Tensor]:
    """One sequence, (L, heads, E), by the definition; and the logarithms of the sums."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("lhe,she->hls", q, k) / math.sqrt(q.shape[-1])
    distance = torch.arange(k.shape[0]) - (torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0])
    unseen = torch.zeros_like(distance, dtype=torch.bool)
    if left is not None:
        unseen |= distance < -left
    if right is not None:
        unseen |= distance > right
    scores = scores.masked_fill(unseen, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)  # of a query that sees nothing
    return torch.einsum("hls,shf->lhf", weights, v), scores.logsumexp(-1)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.detach().cpu().double() - want).norm() / want.norm())


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def operands(dtype: torch.dtype, heads: int, groups: int, size: int, width: int, queries: list[int], keys: list[int]):
    """On the CPU in float64, and on xpu; with gradients."""
    shapes = (sum(queries), heads, size), (sum(keys), groups, size), (sum(keys), groups, width)
    wide = [torch.randn(shape).to(dtype).double().requires_grad_() for shape in shapes]
    return wide, [t.detach().to(dtype).xpu().requires_grad_() for t in wide]


def one_by_one(wide: list[Tensor], queries: list[int], keys: list[int], window) -> tuple[Tensor, Tensor]:
    q, k, v = wide[0].split(queries), wide[1].split(keys), wide[2].split(keys)
    each = [exact(*sequence, *window) for sequence in zip(q, k, v, strict=True)]
    return torch.cat([out for out, _ in each]), torch.cat([logs for _, logs in each], 1)


def problems():
    """Every form of sequences, window and dtype; everyday ones meet each of the three in some form."""
    everyday = {(0, 0, 0), (1, 1, 0), (1, 2, 0), (0, 3, 0), (2, 4, 0), (1, 5, 0), (0, 1, 1), (2, 0, 2)}
    for i, sequences in enumerate(SEQUENCES):
        for j, window in enumerate(WINDOWS):
            for k, dtype in enumerate(BOUND):
                marks = () if (i, j, k) in everyday else pytest.mark.full
                yield pytest.param(sequences, window, dtype, marks=marks, id=f"{i}-{window}-{dtype}")


@pytest.mark.rotates(9)
@pytest.mark.parametrize("sequences, window, dtype", problems())
def test_packed_sequences_and_their_gradients(xpu, sequences, window, dtype):
    *shape, queries, keys = sequences
    wide, ours = operands(dtype, *shape, queries, keys)
    want, logs = one_by_one(wide, queries, keys, window)
    grad = torch.randn_like(want)
    want.backward(grad)
    ops.reset_counters()
    left, right = window
    got, found, *_ = aten._flash_attention_forward(
        *ours, offsets(queries).xpu(), offsets(keys).xpu(), max(queries), max(keys), 0.0, False, False,
        window_size_left=left, window_size_right=right,
    )  # fmt: skip
    got.backward(grad.to(dtype).xpu())
    served = ops.counters()
    assert served["aten::_flash_attention_forward"] == served["aten::_flash_attention_backward"] == {"compiled": 1}
    assert got.dtype == dtype and got.shape == want.shape
    assert relative(got, want.detach()) < BOUND[dtype]
    torch.testing.assert_close(found.cpu(), logs.detach().float(), rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(ours, wide, strict=True):
        assert relative(mine.grad, theirs.grad) < 2 * BOUND[dtype]


@pytest.mark.rotates(3)
@pytest.mark.parametrize("causal", [False, True])
def test_batches_as_flash_attention_lays_them_out(xpu, causal):
    for length, keys in ((33, 33), (20, 50)):
        wide = [torch.randn(2, n, 4, 16, dtype=torch.float64, requires_grad=True) for n in (length, keys, keys)]
        ours = [t.detach().float().xpu().requires_grad_() for t in wide]
        each = [exact(*(t[b] for t in wide), None, 0 if causal else None) for b in range(2)]
        want = torch.stack([out for out, _ in each])
        want.square().sum().backward()
        got, logs, *_ = aten._flash_attention_forward(*ours, None, None, length, keys, 0.0, causal, False)
        got.square().sum().backward()
        assert relative(got, want.detach()) < 1e-6
        assert relative(logs, torch.stack([logs for _, logs in each]).detach()) < 1e-6
        for mine, theirs in zip(ours, wide, strict=True):
            assert relative(mine.grad, theirs.grad) < 2e-6


@pytest.mark.rotates(5)
@pytest.mark.parametrize("mask", [0, 1, 2])
def test_the_efficient_form(xpu, mask):
    queries, keys = [20, 1, 45], [20, 7, 50]
    wide, ours = operands(torch.float32, 4, 4, 16, 24, queries, keys)
    window = (None, 0 if mask else None)
    if mask == 1:  # from the beginnings: as if the keys ended with the queries
        pairs = zip(queries, wide[1].split(keys), wide[2].split(keys), strict=True)
        cut = [(k[:n], v[:n]) for n, k, v in pairs]
        each = [exact(q, *kv, *window) for q, kv in zip(wide[0].split(queries), cut, strict=True)]
        want, logs = torch.cat([o for o, _ in each]), torch.cat([s for _, s in each], 1)
    else:
        want, logs = one_by_one(wide, queries, keys, window)
    want.square().sum().backward()
    got, found, _, _, longest_query, longest_key = aten._efficient_attention_forward(
        *(t.unsqueeze(0) for t in ours), None, offsets(queries).xpu(), offsets(keys).xpu(), 45, 50, 0.0, mask, True
    )
    got.square().sum().backward()
    assert got.shape == (1, 66, 4, 24) and found.shape == (3, 4, 64) and (longest_query, longest_key) == (45, 50)
    assert relative(got[0], want.detach()) < 1e-6
    for mine, theirs in zip(ours, wide, strict=True):
        assert relative(mine.grad, theirs.grad) < 2e-6
    for place, (mine, theirs) in enumerate(zip(found, logs.split(queries, 1), strict=True)):
        torch.testing.assert_close(mine[:, : queries[place]].cpu(), theirs.detach().float(), rtol=1e-5, atol=1e-5)
    none = aten._efficient_attention_forward(
        *(t.detach().unsqueeze(0) for t in ours), None, None, None, None, None, 0.0, 2
    )
    assert none[1].shape == (1, 4, 0)


def test_the_efficient_form_adds_a_bias_to_batches(xpu):
    q, k, v = (torch.randn(2, n, 4, 16) for n in (20, 33, 33))
    bias = torch.randn(2, 4, 20, 33)
    want = scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)), attn_mask=bias.double())
    got, *_ = aten._efficient_attention_forward(
        q.xpu(), k.xpu(), v.xpu(), bias.xpu(), None, None, None, None, 0.0, 0, True
    )
    assert relative(got, want.transpose(1, 2)) < 1e-6


def test_dropout_drops_the_same_weights_forward_and_backward(xpu):
    lengths = [40, 64]
    _, (q, k, _) = operands(torch.float32, 2, 2, 16, 16, lengths, lengths)
    at = offsets(lengths).xpu()
    # With an identity for values, the results are the weights themselves.
    v = torch.zeros(104, 2, 64, device=xpu)
    for first, n in ((0, 40), (40, 64)):
        v[first : first + n, :, :n] = torch.eye(n, device=xpu).unsqueeze(1).expand(n, 2, n)
    v.requires_grad_()
    torch.xpu.manual_seed(3)
    weights, *_ = aten._flash_attention_forward(q, k, v, at, at, 64, 64, 0.25, False, False)
    kept = weights.detach().cpu() != 0
    part = kept[:40, :, :40].float().mean(), kept[40:].float().mean()
    assert all(abs(p - 0.75) < 0.05 for p in part) and not torch.equal(kept[:40, :, :40], kept[40:80, :, :40])
    grad = torch.randn(104, 2, 64)
    (by_value,) = torch.autograd.grad(weights, v, grad.xpu())
    for first, n in ((0, 40), (40, 64)):
        here = weights.detach().cpu()[first : first + n, :, :n].double()
        want = torch.einsum("lhs,lhf->shf", here, grad[first : first + n].double())
        assert relative(by_value[first : first + n], want) < 1e-6


@pytest.mark.rotates(5)
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (16, 0)], ids=str)
def test_varlen_attn(xpu, window):
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no varlen_attn")
    queries = [30, 61, 2]
    wide, ours = operands(torch.bfloat16, 4, 4, 32, 32, queries, queries)
    want, _ = one_by_one(wide, queries, queries, tuple(None if n < 0 else n for n in window))
    want.square().sum().backward()
    at = offsets(queries).xpu()
    got = varlen.varlen_attn(*ours, at, at, 61, 61, window_size=window)
    got.square().sum().backward()
    assert relative(got, want.detach()) < BOUND[torch.bfloat16]
    for mine, theirs in zip(ours, wide, strict=True):
        assert relative(mine.grad, theirs.grad) < 2 * BOUND[torch.bfloat16]
    with torch.no_grad():
        compiled = torch.compile(varlen.varlen_attn)(*ours, at, at, 61, 61, window_size=window)
        assert relative(compiled, want.detach()) < BOUND[torch.bfloat16]


@pytest.mark.skipif(
    "block_table" not in str(aten._flash_attention_forward.default._schema), reason="this torch has no pages"
)
@pytest.mark.parametrize(("page", "size"), [(16, 32), (7, 40)])
def test_pages_of_keys(xpu, page, size):
    """A cache as servers keep it: any page may belong to any sequence, the last of which is not full."""
    queries, used, heads, groups = [1, 4, 1], [37, 50, 3], 4, 2
    q = torch.randn(sum(queries), heads, size)
    pages = [-(-n // page) for n in used]
    table = torch.zeros(3, max(pages), dtype=torch.int32)
    order = torch.randperm(sum(pages) + 2)
    for row, n in enumerate(pages):
        table[row, :n] = order[sum(pages[:row]) : sum(pages[: row + 1])].int()
    cache = torch.randn(2, len(order), page, groups, size)
    keys, values = ([c[table[row, :n].long()].flatten(0, 1)[: used[row]] for row, n in enumerate(pages)] for c in cache)
    wide = [q.double(), torch.cat(keys).double(), torch.cat(values).double()]
    want, logs = one_by_one(wide, queries, used, (None, 0))
    cumulated = offsets(queries).xpu()
    rest = (cumulated, None, max(queries), max(used), 0.0, True, False)
    options = {"seqused_k": torch.tensor(used, dtype=torch.int32).xpu(), "block_table": table.xpu()}
    got, found, *_ = aten._flash_attention_forward(q.xpu(), *cache.xpu(), *rest, **options)
    assert relative(got, want) < 1e-6 and relative(found, logs) < 1e-6
    out = torch.empty_like(got)
    aten._flash_attention_forward_no_dropout_inplace(out, q.xpu(), *cache.xpu(), *rest, **options)
    assert torch.equal(out, got)
    # As many keys as are used, of keys that are packed with room to spare.
    roomy = torch.randn(2, 3 * 60, groups, size)
    for c, parts in zip(roomy, (keys, values), strict=True):
        for row, part in enumerate(parts):
            c[row * 60 : row * 60 + len(part)] = part
    rest = (cumulated, offsets([60] * 3).xpu(), max(queries), 60, 0.0, True, False)
    spare, *_ = aten._flash_attention_forward(q.xpu(), *roomy.xpu(), *rest, seqused_k=options["seqused_k"])
    assert relative(spare, want) < 1e-6


def jagged(parts: list[Tensor], device) -> Tensor:
    made = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, requires_grad=True)
    return made


@pytest.mark.rotates(6)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", [8, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_jagged_tensors_goes_to_the_kernels(xpu, size, causal, compiled):
    lengths = [12, 31, 1]
    parts = [[torch.randn(n, 4, size) for n in lengths] for _ in range(3)]
    wide = [torch.cat(each).double().requires_grad_() for each in parts]
    want, _ = one_by_one(wide, lengths, lengths, (None, 0 if causal else None))
    want.square().sum().backward()
    ours = [jagged(each, xpu) for each in parts]

    def attend(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    ops.reset_counters()
    out = (torch.compile(attend) if compiled else attend)(*ours)
    out.values().square().sum().backward()
    served = ops.counters()
    name = "_flash_attention" if size % 8 == 0 else "_efficient_attention"
    assert "compiled" in served[f"aten::{name}_forward"] and "compiled" in served[f"aten::{name}_backward"]
    assert relative(out.values(), want.detach()) < 1e-6
    for mine, theirs in zip(ours, wide, strict=True):
        assert relative(mine.grad.values(), theirs.grad) < 2e-6
    if not compiled and not causal:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            ops.reset_counters()
            assert relative(attend(*ours).values(), want.detach()) < 1e-6
            assert f"aten::{name}_forward" not in ops.counters()


def test_what_is_refused_says_why(xpu):
    q = torch.randn(10, 2, 16, device=xpu)
    at = offsets([4, 6]).xpu()

    def forward(query=q, key=q, queries=at, keys=at, dropout=0.0, **options):
        return aten._flash_attention_forward(query, key, key, queries, keys, 6, 6, dropout, False, False, **options)

    for message, call in {
        "float32, bfloat16 and float16": lambda: forward(q.double(), q.double()),
        "up to 256 elements, not 264": lambda: forward(*[torch.randn(10, 2, 264, device=xpu)] * 2),
        "do not fit": lambda: forward(key=torch.randn(10, 3, 16, device=xpu)),
        "dropout from 0 up to 1, not 1.0": lambda: forward(dropout=1.0),
        "alibi_slopes": lambda: forward(alibi_slopes=torch.ones(2, device=xpu)),
        "want cum_seq_k": lambda: forward(keys=None),
        "give cum_seq_q": lambda: forward(q[None], q[None], None, None, seqused_k=at[1:]),
        "mask types 0, 1, 2, not 3": lambda: aten._efficient_attention_forward(*[q[None]] * 3, *[None] * 5, 0.0, 3),
        "no bias to packed": lambda: aten._efficient_attention_forward(*[q[None]] * 3, q, at, at, 6, 6, 0.0, 0),
        "rows of one batch": lambda: forward(torch.randn(2, 10, 2, 16, device=xpu), q[None]),
        "one batch of them": lambda: forward(q[None], torch.randn(2, 10, 2, 16, device=xpu)),
        "the keys' offsets of 2 sequences, 3, not": lambda: forward(keys=offsets([4, 3, 3]).xpu()),
        "numbers of used keys of 2 sequences, 2, not": lambda: forward(seqused_k=at),
        "queries' offsets on xpu:0, not cpu": lambda: forward(queries=at.cpu()),
    }.items():
        with pytest.raises(NotImplementedError, match=message):
            call()
    assert forward()[0].shape == q.shape


def test_nothing_to_attend_to(xpu):
    q, none = torch.randn(0, 2, 16, device=xpu, requires_grad=True), offsets([0, 0]).xpu()
    out, logs, *_ = aten._flash_attention_forward(q, q, q, none, none, 0, 0, 0.0, False, False)
    out.sum().backward()
    assert out.shape == q.shape and logs.shape == (2, 0) and q.grad.shape == q.shape
    # No keys at all: results of 0, as of any query that sees none.
    q = torch.randn(3, 2, 16, device=xpu)
    k = torch.randn(4, 2, 16, device=xpu)
    out, logs, *_ = aten._flash_attention_forward(
        q, k, k, offsets([3, 0]).xpu(), offsets([0, 4]).xpu(), 3, 4, 0.0, False, False
    )
    assert not out.cpu().any() and logs.isneginf().all()
