"""flex_attention, compiled: what its template computes on xpu equals attention of whole score matrices in f64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from anyxpu.inductor import heuristics

Score = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """``batches, heads, groups, queries, keys, size, width`` of the operands, and what flex_attention is given.

    ``score`` makes the change of the scores from ``table``, a tensor whose gradient is taken as well.
    """

    shape: tuple[int, int, int, int, int, int, int]
    mask: Score | None = None
    score: Callable[[Tensor], Score] | None = None
    table: tuple[int, ...] = ()
    scale: float | None = None
    dynamic: bool | None = None
    trained: bool = True
    blocks: int = 128


def causal(b, h, q, k):
    return q >= k


def sliding(b, h, q, k):
    return (q >= k) & (q - k < 70)


def prefix(b, h, q, k):
    return (k < 37) | (q >= k)


def half_of_the_rows(b, h, q, k):
    return (q >= k) & (q >= 50)


def documents(b, h, q, k):
    return (q // 45 == k // 45) & (q >= k)


CASES = {
    "full": Case((2, 4, 4, 128, 128, 64, 64)),
    "causal": Case((1, 4, 4, 256, 256, 64, 64), causal),
    "ragged causal": Case((2, 3, 3, 197, 197, 64, 64), causal),
    "sliding window, shared keys": Case((1, 8, 2, 300, 300, 32, 32), sliding),
    "documents": Case((2, 2, 2, 150, 150, 64, 64), documents),
    "alibi": Case((1, 4, 4, 130, 200, 48, 48), score=lambda _: lambda s, b, h, q, k: s + (k - q) * 0.1 * (h + 1)),
    "soft cap, prefix": Case(
        (1, 2, 2, 160, 160, 64, 64), prefix, lambda _: lambda s, b, h, q, k: 5 * torch.tanh(s / 5)
    ),
    "learnt bias": Case(
        (1, 2, 2, 128, 128, 64, 64), score=lambda t: lambda s, b, h, q, k: s + t[h, q, k], table=(2, 128, 128)
    ),
    "learnt relative bias": Case(
        (1, 2, 2, 140, 140, 64, 64), score=lambda t: lambda s, b, h, q, k: s + t[h, q - k + 139], table=(2, 279)
    ),
    "wider values": Case((1, 2, 2, 140, 140, 64, 128), causal),
    "rows without keys": Case((1, 2, 2, 128, 128, 64, 64), half_of_the_rows),
    "any length": Case((1, 2, 2, 150, 150, 64, 64), causal, dynamic=True),
    "long heads": Case((1, 2, 2, 130, 130, 256, 256), causal),
    "short heads": Case((1, 2, 2, 130, 130, 16, 16), causal),
    "heads of 80": Case((1, 2, 2, 130, 130, 80, 80), causal),
    "own scale": Case((1, 2, 2, 130, 130, 64, 64), scale=0.3),
    "large blocks of the mask": Case((1, 2, 2, 300, 300, 64, 64), sliding, blocks=256),
    "one query": Case((2, 8, 8, 1, 500, 64, 64), trained=False),
    "one query, shared keys": Case((2, 8, 2, 1, 500, 64, 64), lambda b, h, q, k: k < 401, trained=False),
    "four queries": Case((2, 4, 4, 4, 256, 128, 128), lambda b, h, q, k: q + 250 >= k, trained=False),
    "four queries, trained": Case((2, 4, 4, 4, 256, 64, 64), lambda b, h, q, k: q + 250 >= k),
}
# How far a result may be from f64, of its largest element.
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def composed(q: Tensor, k: Tensor, v: Tensor, case: Case, score: Score | None) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the sums, from the whole matrix of scores."""
    batches, heads, queries, size = q.shape
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    at = torch.meshgrid(*(torch.arange(n) for n in (batches, heads, queries, k.shape[2])), indexing="ij")
    scores = (q @ k.mT) * (case.scale or size**-0.5)
    if score is not None:
        scores = score(scores, *at)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(*at), -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.detach().cpu().double() - expected).abs().max() / expected.abs().max().clamp_min(1e-3))


@pytest.mark.rotates(45)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_equals_attention_of_whole_matrices(xpu, name, dtype):
    case = CASES[name]
    batches, heads, groups, queries, keys, size, width = case.shape
    shapes = [(batches, heads, queries, size), (batches, groups, keys, size), (batches, groups, keys, width)]
    made = [torch.randn(s).to(dtype) for s in shapes] + [torch.randn(case.table).to(dtype)] * bool(case.table)
    exact = [t.double().requires_grad_(case.trained) for t in made]
    leaves = [t.to(xpu).requires_grad_(case.trained) for t in made]

    def score(operands: list[Tensor]) -> Score | None:
        return case.score and case.score(operands[-1])

    block_mask = case.mask and create_block_mask(case.mask, None, None, queries, keys, xpu, BLOCK_SIZE=case.blocks)
    torch._dynamo.reset()
    got, aux = torch.compile(flex_attention, dynamic=case.dynamic)(
        *leaves[:3],
        score_mod=score(leaves),
        block_mask=block_mask,
        scale=case.scale,
        enable_gqa=heads != groups,
        return_aux=AuxRequest(lse=True),
    )
    expected, sums = composed(*exact[:3], case, score(exact))
    limit = DTYPES[dtype]
    assert got.dtype == dtype and error(got, expected.detach()) < limit
    reached = torch.isfinite(sums)
    assert error(aux.lse[reached.to(xpu)], sums[reached].detach()) < 1e-5
    if case.trained:
        gradient = torch.randn_like(expected).to(dtype)
        ours = torch.autograd.grad(got, leaves, gradient.to(xpu))
        theirs = torch.autograd.grad(expected, exact, gradient.double())
        assert all(error(a, b) < limit for a, b in zip(ours, theirs, strict=True))


@pytest.mark.not_simulated("compares results")
def test_longer_sequences_compile_nothing_once_lengths_are_dynamic(xpu):
    torch._dynamo.reset()
    compiles = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    call = torch.compile(flex_attention, dynamic=True, backend=compiles)
    for length in (150, 260, 391, 520):
        q, k, v = torch.randn(3, 1, 2, length, 32)
        block_mask = create_block_mask(causal, None, None, length, length, xpu)
        case = Case((1, 2, 2, length, length, 32, 32), causal)
        expected, _ = composed(q.double(), k.double(), v.double(), case, None)
        assert error(call(q.to(xpu), k.to(xpu), v.to(xpu), block_mask=block_mask), expected) < 1e-5
    assert compiles.frame_count == 2  # how many blocks the first mask has is taken for a constant, on any device


def test_blocks_on_a_gpu_are_ours_and_elsewhere_those_in_tree(monkeypatch):
    from torch._inductor import choices, config

    made = choices.InductorChoices()

    def blocks(device: str, dtype: torch.dtype = torch.bfloat16, size: int = 128) -> list[tuple[int, int]]:
        return [(c.block_m, c.block_n) for c in made.get_flex_attention_fwd_configs(size, dtype, device)]

    monkeypatch.setattr(heuristics, "only_cpu_devices", lambda: False)
    assert blocks("xpu") == [(128, 16)] and blocks("xpu", torch.float32) == [(64, 16)]
    assert blocks("mtia") != [(128, 16)]  # as any other device
    assert blocks("xpu", size=512) == [(64, 32)]  # in-tree's
    assert [c.block_n for c in made.get_flex_decode_configs(256, torch.bfloat16, "xpu")] == [32]
    assert [c.block_n for c in made.get_flex_decode_configs(128, torch.bfloat16, "xpu")] == [64]
    with config.patch(max_autotune=True):
        assert blocks("xpu")[-1] == (128, 16) and len(blocks("xpu")) > 2
    monkeypatch.setattr(heuristics, "only_cpu_devices", lambda: True)
    assert blocks("xpu") == [(128, 64)]
