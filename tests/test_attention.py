"""scaled_dot_product_attention on xpu equals the CPU's, eagerly and compiled, with every kind of mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, LENGTH, SIZE = 4, 33, 16


def masks() -> dict[str, torch.Tensor | None]:
    allowed = torch.rand(2, 1, LENGTH, LENGTH) > 0.4
    allowed[..., 0] = True
    return {"none": None, "bool": allowed, "float": torch.randn(2, 1, LENGTH, LENGTH)}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "causal"])
def test_attention_equals_the_cpu_in_f64(xpu, kind, compiled):
    query, key, value = (torch.randn(2, HEADS, LENGTH, SIZE) for _ in range(3))
    mask, causal = masks().get(kind), kind == "causal"

    def run(q, k, v, m):
        return scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=causal)

    exact = mask.double() if kind == "float" else mask
    reference = run(query.double(), key.double(), value.double(), exact)
    call = torch.compile(run, dynamic=False) if compiled else run
    out = call(query.to("xpu"), key.to("xpu"), value.to("xpu"), None if mask is None else mask.to("xpu"))
    assert (out.cpu() - reference).abs().max() < 1e-5


def test_attention_has_gradients(xpu):
    inputs = [torch.randn(2, HEADS, LENGTH, SIZE) for _ in range(3)]
    allowed = masks()["bool"]
    exact = [x.double().requires_grad_() for x in inputs]
    scaled_dot_product_attention(*exact, attn_mask=allowed).square().sum().backward()
    ours = [x.to("xpu").requires_grad_() for x in inputs]
    scaled_dot_product_attention(*ours, attn_mask=allowed.to("xpu")).square().sum().backward()
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine.grad.cpu() - theirs.grad).norm() < 1e-5 * theirs.grad.norm()


def test_mixed_dtypes_are_refused_as_on_the_cpu(xpu):
    query = torch.randn(1, HEADS, LENGTH, SIZE)

    def words(device: str) -> str:
        q = query.to(device)
        with pytest.raises(RuntimeError) as caught:
            scaled_dot_product_attention(q, q.half(), q)
        return str(caught.value).split(", but")[0]

    assert words("xpu") == words("cpu")
