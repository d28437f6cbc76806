"""Nested tensors on xpu give what the CPU's give, their gradients too; nothing of them ends the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.not_simulated("compares results")


def parts(*lengths: int, width: tuple[int, ...] = (4,)) -> list[Tensor]:
    return [torch.randn(n, *width) for n in lengths]


def flat(value: Tensor | tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    """Every dense tensor in it."""
    if isinstance(value, tuple | list):
        return [t for v in value for t in flat(v)]
    return list(value.unbind()) if value.is_nested else [value]


def gradient(n: Tensor) -> Tensor:
    n = n.detach().requires_grad_()
    torch.nested.to_padded_tensor(n * 3, 0.0).square().sum().backward()
    assert n.grad is not None
    return n.grad


OPERATORS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "to_padded_tensor": lambda n: torch.nested.to_padded_tensor(n, -1.0),
    "add": lambda n: n + n,
    "mul": lambda n: n * 2,
    "relu": lambda n: n.relu(),
    "relu_": lambda n: n.relu_(),
    "softmax": lambda n: n.softmax(-1),
    "matmul": lambda n: n @ n.transpose(1, 2),
    "linear": lambda n: torch.nn.functional.linear(n, torch.arange(12.0, device=n.device).view(3, 4)),
    "layer_norm": lambda n: torch.nn.LayerNorm(4).to(n.device)(n).detach(),
    "sum": lambda n: n.sum(-1, keepdim=True),
    "unbind": lambda n: n.unbind(),
    "clone": lambda n: n.detach().clone(),
    "half": lambda n: n.half().float(),
    "gradient": gradient,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_strided(xpu: torch.device, name: str) -> None:
    given = parts(3, 5, 1)
    expected = flat(OPERATORS[name](torch.nested.nested_tensor(given)))
    found = flat(OPERATORS[name](torch.nested.nested_tensor(given, device=xpu)))
    assert all(t.device.type == "xpu" for t in found)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


# Of two nested tensors alike, and of tables for them; differentiable in all of these.
DIFFERENTIABLE: dict[str, Callable[..., Tensor]] = {
    "linear": lambda n, m, w, b: torch.nn.functional.linear(n, w, b),
    "layer_norm": lambda n, m, w, b: torch.nn.functional.layer_norm(n, (4,), w[0], b),
    "matmul": lambda n, m, w, b: torch.matmul(n, m.transpose(1, 2)),
    "bmm": lambda n, m, w, b: torch.bmm(n, m.transpose(1, 2)),
    "softmax": lambda n, m, w, b: torch.softmax(n * m, -1),
    "softmax_of_lengths": lambda n, m, w, b: torch.softmax(torch.matmul(n, m.transpose(1, 2)), -1),
    "gelu": lambda n, m, w, b: torch.nn.functional.gelu(n) + m,
    "silu": lambda n, m, w, b: torch.nn.functional.silu(n) - m,
    "relu": lambda n, m, w, b: torch.relu(n) * 3,
    "sum": lambda n, m, w, b: (n * m).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_strided_and_its_gradients_on_the_device(xpu: torch.device, no_host: None, name: str) -> None:
    given = [parts(3, 5, 1), parts(3, 5, 1)]
    dense = [torch.randn(4, 4), torch.randn(4)]
    results = []
    for device in (torch.device("cpu"), xpu):
        leaves = [torch.nested.nested_tensor(p, device=device, requires_grad=True) for p in given]
        leaves += [t.detach().to(device).requires_grad_() for t in dense]
        made = DIFFERENTIABLE[name](*leaves)
        padded = torch.nested.to_padded_tensor(made, 0.0)
        grads = torch.autograd.grad(padded.square().sum(), leaves, allow_unused=True)
        results.append([padded.detach(), *(t for grad in grads if grad is not None for t in flat(grad))])
    assert len(results[0]) == len(results[1]) > 1
    for want, got in zip(*results, strict=True):
        assert got.device.type == "xpu"
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_strided_of_indices_and_dropped(xpu: torch.device, no_host: None) -> None:
    table, rows = torch.randn(9, 4), [torch.tensor([1, 8, 3]), torch.tensor([0])]
    found = torch.nn.functional.embedding(torch.nested.nested_tensor(rows, device=xpu), table.to(xpu))
    for got, at in zip(found.unbind(), rows, strict=True):
        assert torch.equal(got.cpu(), table[at])
    ones = torch.nested.nested_tensor([torch.ones(500, 4), torch.ones(300, 4)], device=xpu)
    kept = torch.cat([t.flatten() for t in torch.nn.functional.dropout(ones, 0.25).unbind()]).cpu()
    assert sorted(kept.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert abs((kept == 0).float().mean() - 0.25) < 0.04


def test_a_part_of_what_lies_there_is_not_taken_for_the_whole(xpu: torch.device) -> None:
    given = parts(2, 3)
    for device in (torch.device("cpu"), xpu):
        n = torch.nested.nested_tensor(given, device=device)
        first, second = n.chunk(2, -1)
        with pytest.raises(RuntimeError, match="contiguous"):
            first.mul_(2.0)
        for found, part in zip((second * 3).unbind(), given, strict=True):
            torch.testing.assert_close(found.cpu(), part[:, 2:] * 3)
        for found, part in zip(n.unbind(), given, strict=True):
            assert torch.equal(found.cpu(), part)


def test_padded_of_more_than_two_dimensions_and_back(xpu: torch.device, no_host: None) -> None:
    given = [torch.randn(2, 3, 4), torch.randn(5, 1, 4)]
    n = torch.nested.nested_tensor(given, device=xpu)
    padded = torch.nested.to_padded_tensor(n, 7.0, (2, 6, 3, 5))
    want = torch.nested.to_padded_tensor(torch.nested.nested_tensor(given), 7.0, (2, 6, 3, 5))
    assert torch.equal(padded.cpu(), want)
    for got, part in zip(torch._nested_from_padded_and_nested_example(padded, n).unbind(), given, strict=True):
        assert torch.equal(got.cpu(), part)
    heads, sizes = torch.randn(2, 3, 4, 5), torch.tensor([[4, 15], [2, 15]])
    want = torch._nested_from_padded(heads, sizes, True)
    for got, part in zip(torch._nested_from_padded(heads.to(xpu), sizes, True).unbind(), want.unbind(), strict=True):
        assert torch.equal(got.cpu(), part)


def test_of_a_mask(xpu: torch.device, no_host: None) -> None:
    x, lengths = torch.randn(3, 5, 4), torch.tensor([2, 5, 1])
    mask = torch.arange(5) < lengths[:, None]
    aligned = torch._nested_tensor_from_mask_left_aligned
    assert aligned(x.to(xpu), mask.to(xpu)) and not aligned(x.to(xpu), ~mask.to(xpu))
    for got, part, n in zip(torch._nested_tensor_from_mask(x.to(xpu), mask.to(xpu)).unbind(), x, lengths, strict=True):
        assert torch.equal(got.cpu(), part[:n])
    with pytest.raises(RuntimeError, match="left-aligned"):
        torch._nested_tensor_from_mask(x.to(xpu), ~mask.to(xpu))
    with pytest.raises(RuntimeError, match="Bool"):
        torch._nested_tensor_from_mask(x.to(xpu), mask.int().to(xpu))
    empty = torch._nested_tensor_from_mask(x.to(xpu), torch.zeros_like(mask).to(xpu))
    assert [tuple(t.shape) for t in empty.unbind()] == [(0, 4)] * 3


def test_to_and_from_the_device_and_printed(xpu: torch.device) -> None:
    given = parts(2, 4)
    moved = torch.nested.nested_tensor(given).to(xpu)
    assert moved.device.type == "xpu" and "xpu" in repr(moved)
    for a, b in zip(moved.cpu().unbind(), given, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(moved.unbind(), given, strict=True):
        assert torch.equal(a.cpu(), b)


def test_the_encoder_with_padding(xpu: torch.device) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0, 4:] = True
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        found = encoder.to(xpu)(x.to(xpu), src_key_padding_mask=mask.to(xpu))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_attention_over_jagged(xpu: torch.device, with_gradient: bool) -> None:
    given = parts(3, 5, width=(2, 8))

    def attention(device: torch.device | str) -> list[Tensor]:
        q = torch.nested.nested_tensor(given, layout=torch.jagged, device=device, requires_grad=with_gradient)
        heads = q.transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        if not with_gradient:
            return [out.values().cpu()]
        out.values().square().sum().backward()
        return [out.values().detach().cpu(), q.grad.values().cpu()]

    for a, b in zip(attention(xpu), attention("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


BACKENDS = [None, *(getattr(torch.nn.attention.SDPBackend, n) for n in ("MATH", "FLASH_ATTENTION", "OVERRIDEABLE"))]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("one_query", [False, True])
def test_attention_over_strided(xpu: torch.device, backend: Any, one_query: bool) -> None:
    """Each part as if alone, its gradients too; one batch of queries, or one head of keys, goes with many."""
    lengths, heads = (3, 6, 1), 4
    given = [
        [torch.randn(n, h, 16, requires_grad=True) for n in ((5,) if one and one_query else lengths)]
        for one, h in ((True, heads), (False, 1), (False, 1))
    ]
    nested = [
        torch.nested.as_nested_tensor([t.detach().to(xpu) for t in parts], layout=torch.strided).requires_grad_()
        for parts in given
    ]
    with contextlib.nullcontext() if backend is None else torch.nn.attention.sdpa_kernel(backend):
        made = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in nested))
    assert made.is_nested and made.size(1) == heads
    back = made.transpose(1, 2)
    expected = []
    for q, k, v in zip(given[0] * 3 if one_query else given[0], *given[1:], strict=True):
        scores = torch.einsum("lhe,she->hls", q.double(), k.double().expand(-1, heads, -1)) / 4
        expected.append(torch.einsum("hls,she->lhe", scores.softmax(-1), v.double().expand(-1, heads, -1)))
    for found, want in zip(back.unbind(), expected, strict=True):
        torch.testing.assert_close(found.cpu(), want.float(), rtol=1e-4, atol=1e-5)
    sum(t.square().sum() for t in back.unbind()).backward()
    sum(t.square().sum() for t in expected).backward()
    for n, parts in zip(nested, given, strict=True):
        assert n.grad is not None
        for found, leaf in zip(n.grad.unbind(), parts, strict=True):
            torch.testing.assert_close(found.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)


def test_what_attention_over_strided_does_not_take(xpu: torch.device) -> None:
    n = torch.nested.nested_tensor(parts(2, 3, width=(2, 8)), device=xpu).transpose(1, 2)
    with pytest.raises(RuntimeError, match="no attn_mask"):
        torch.nn.functional.scaled_dot_product_attention(n, n, n, torch.zeros(2, 2, 3, 3, device=xpu))
    with pytest.raises(RuntimeError, match="four dimensions"):
        flat = torch.nested.nested_tensor(parts(2, 3), device=xpu)
        torch.nn.functional.scaled_dot_product_attention(flat, flat, flat)
    with pytest.raises(RuntimeError, match="2, 3, 3 batches"):
        more = torch.nested.nested_tensor(parts(2, 3, 1, width=(2, 8)), device=xpu).transpose(1, 2)
        torch.nn.functional.scaled_dot_product_attention(n, more, more)


def test_attention_over_strided_of_the_cpu_is_torchs_own() -> None:
    n = torch.nested.nested_tensor(parts(2, 3, width=(2, 8))).transpose(1, 2).contiguous()
    for found, part in zip(torch.nn.functional.scaled_dot_product_attention(n, n, n).unbind(), n.unbind(), strict=True):
        want = torch.nn.functional.scaled_dot_product_attention(part[None], part[None], part[None])[0]
        torch.testing.assert_close(found, want)
