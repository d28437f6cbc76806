"""scaled_dot_product_attention on xpu equals the CPU's, eagerly and compiled, with every kind of mask."""

from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from anyxpu import ops, supported
from anyxpu.ops import attention, attention_products, flash
from anyxpu.runtime.vectors import has_short_vectors
from anyxpu.shim import lib

FUSED = "_scaled_dot_product_fused_attention_overrideable"
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


DTYPES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
# batches, heads, heads of keys, L, S, E, F
SHAPES = [
    (2, 4, 4, 130, 130, 64, 64),
    (1, 6, 2, 33, 77, 40, 24),
    (2, 2, 1, 1, 200, 128, 128),
    (1, 3, 3, 1, 77, 80, 24),
    (1, 2, 2, 65, 64, 256, 8),
]


@pytest.mark.rotates(24)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "keys"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_and_their_gradients_equal_f64(xpu, shape, kind, dtype):
    batches, heads, groups, length, keys, size, width = shape
    query = torch.randn(batches, length, heads, size).to(dtype).transpose(1, 2)  # as models lay it out
    key, value = torch.randn(batches, groups, keys, size).to(dtype), torch.randn(batches, groups, keys, width).to(dtype)
    mask = {
        "bool": torch.rand(batches, 1, length, keys) > 0.3,
        "float": torch.randn(1, heads, length, keys).to(dtype),
        "keys": torch.rand(batches, 1, 1, keys) > 0.5,
    }.get(kind)
    grad = torch.randn(batches, heads, length, width).to(dtype)

    def run(to, attn_mask):
        leaves = [to(t).detach().requires_grad_() for t in (query, key, value)]
        out = scaled_dot_product_attention(
            *leaves, attn_mask=attn_mask, is_causal=kind == "causal", enable_gqa=heads != groups
        )
        out.backward(to(grad))
        return [out, *(leaf.grad for leaf in leaves)]

    exact = run(lambda t: t.double(), mask.double() if kind == "float" else mask)
    ops.reset_counters()
    ours = run(lambda t: t.to("xpu"), None if mask is None else mask.to("xpu"))
    served = ops.counters()
    assert served[f"aten::{FUSED}"] == {"compiled": 1} and served[f"aten::{FUSED}_backward"] == {"compiled": 1}
    for mine, theirs in zip(ours, exact, strict=True):
        most = theirs.abs().max().clamp(min=1)  # where one key is seen, gradients are differences of equal numbers
        assert (mine.cpu().double() - theirs).abs().max() <= 3 * DTYPES[dtype] * most


@pytest.mark.rotates(12)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["bool", "float", "keys", "learned"])
@pytest.mark.parametrize("shape", [(2, 4, 4, 61, 61), (1, 4, 2, 5, 150), (2, 4, 1, 1, 40), (1, 2, 2, 130, 33)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mask_holds_beside_is_causal_as_on_cuda(xpu, shape, kind, compiled, dtype):
    """Both at once, which Keras asks for with its bias; the reference has one mask made of the two."""
    batches, heads, groups, length, keys = shape
    query = torch.randn(batches, heads, length, 32).to(dtype)
    key, value = (torch.randn(batches, groups, keys, 32).to(dtype) for _ in range(2))
    mask = {
        "bool": torch.rand(batches, 1, length, keys) > 0.3,
        "keys": torch.rand(batches, 1, 1, keys) > 0.3,
    }.get(kind, torch.randn(1, heads, length, keys).to(dtype))
    learned = kind == "learned"
    grad = torch.randn(batches, heads, length, 32).to(dtype)
    seen = torch.ones(length, keys, dtype=torch.bool).tril()

    def run(call, to, attn_mask, given, **options):
        leaves = [to(t).detach().requires_grad_() for t in (query, key, value)]
        out = call(*leaves, attn_mask=given(attn_mask), enable_gqa=heads != groups, **options)
        out.backward(to(grad))
        return [out, *(leaf.grad for leaf in leaves), *([attn_mask.grad] if learned else [])]

    wide = mask if mask.dtype == torch.bool else mask.double().requires_grad_(learned)
    both = (lambda m: m & seen) if mask.dtype == torch.bool else lambda m: m.masked_fill(~seen, float("-inf"))
    exact = run(scaled_dot_product_attention, lambda t: t.double(), wide, both)
    torch._dynamo.reset()
    call = torch.compile(scaled_dot_product_attention, dynamic=False) if compiled else scaled_dot_product_attention
    there = mask.to(xpu) if not learned else mask.to(xpu).requires_grad_()
    ops.reset_counters()
    ours = run(call, lambda t: t.to(xpu), there, lambda m: m, is_causal=True)
    if not learned and not compiled:
        assert ops.counters()[f"aten::{FUSED}"] == {"compiled": 1}
    for mine, theirs in zip(ours, exact, strict=True):
        most = theirs.abs().max().clamp(min=1)
        assert (mine.cpu().double() - theirs).abs().max() <= 3 * DTYPES[dtype] * most


def test_the_composition_alone_refuses_both_in_torchs_words(xpu):
    x = torch.randn(1, 2, 4, 8, device=xpu)
    mask = torch.ones(4, 4, dtype=torch.bool, device=xpu)
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
        scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=True)


@pytest.mark.rotates(6)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("window", ["none", "causal"])
@pytest.mark.parametrize("length", [17, 50, 77, 80, 100, 129, 197, 577])
def test_lengths_that_fill_no_block_read_nothing_behind_them(xpu, length, window):
    room = length + 64
    kept = [torch.full((2, 3, room, 48), float("nan")) for _ in range(3)]
    for t in kept:
        t[:, :, :length] = torch.randn(2, 3, length, 48)
    kept[2][0, 0, length - 1, 5] = float("inf")  # once more behind the end it would be 0 times infinity
    query, key, value = (t[:, :, :length] for t in kept)
    ours = scaled_dot_product_attention(*(t.to(xpu)[:, :, :length] for t in kept), is_causal=window == "causal").cpu()
    exact = scaled_dot_product_attention(*(t.double() for t in (query, key, value)), is_causal=window == "causal")
    seen = torch.isfinite(exact)
    torch.testing.assert_close(ours[seen].double(), exact[seen], rtol=2e-5, atol=2e-6)
    assert (ours[0, 0, -1 if window == "causal" else slice(None), 5] == float("inf")).all()


@pytest.mark.rotates(9)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("window", ["none", "causal"])
@pytest.mark.parametrize("size", [40, 75, 80, 96, 150, 192])
def test_heads_in_two_pieces_read_nothing_behind_them(xpu, size, window):
    if torch.xpu.get_device_properties(xpu).type == "cpu":
        assert all(flash._pieces(xpu, size)) and sum(flash._pieces(xpu, size)) < 1 << size.bit_length()
    wide = [torch.full((1, 2, 50, size + 64), float("nan")) for _ in range(4)]
    for t in wide:
        t[..., :size] = torch.randn(1, 2, 50, size)

    def run(to):
        *leaves, grad = (to(t)[..., :size].detach() for t in wide)
        leaves = [t.requires_grad_() for t in leaves]
        out = scaled_dot_product_attention(*leaves, is_causal=window == "causal")
        return [out, *torch.autograd.grad(out, leaves, grad)]

    for ours, exact in zip(run(lambda t: t.to(xpu)), run(lambda t: t.double()), strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.rotates(12)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("at_once", [False, True], ids=["by queries, then by keys", "at once"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "float"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1]], ids=str)
def test_either_way_to_the_gradients_equals_f64(xpu, monkeypatch, shape, kind, dtype, at_once):
    asked = []
    monkeypatch.setattr(flash, "serves", lambda operands: False)  # oneDNN's products
    monkeypatch.setattr(flash, "_at_once", lambda p: asked.append(p) or at_once)
    replayed = lib().set_replay(False)
    try:
        test_the_kernels_and_their_gradients_equal_f64(xpu, shape, kind, dtype)
    finally:
        lib().set_replay(replayed)
    assert asked


def takes_products(monkeypatch, most: int) -> list[bool]:
    """Has products serve attention of any size, with no more than ``most`` scores at once; each appends to the list."""
    made: list[bool] = []
    product = attention_products.batched.product

    def counted(*operands: torch.Tensor) -> bool:
        made.append(product(*operands))
        return made[-1]

    monkeypatch.setattr(flash, "_fills_tiles", lambda problem, blocks, backward: False)
    monkeypatch.setattr(attention_products, "LEAST", 0)
    monkeypatch.setattr(attention_products, "NARROW", 0)
    monkeypatch.setattr(attention_products, "MOST", most)
    monkeypatch.setattr(attention_products, "FEWER", min(most, attention_products.FEWER))
    monkeypatch.setattr(attention_products.batched, "product", counted)
    return made


def has_products(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies such numbers on this CPU: of 16 bits where the CPU has instructions for them."""
    a, out = torch.zeros(1, 2, 16, 16, dtype=dtype, device="xpu"), torch.empty(1, 2, 16, 16, device="xpu")
    return attention_products.batched.product(a, a, out)


@pytest.mark.rotates(15)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("most", [1 << 22, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "keys"])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 3, 61, 79, 40, 24),
        (1, 2, 2, 600, 530, 64, 64),
        (2, 6, 2, 61, 79, 40, 24),  # heads of queries share one of keys, of which a part or several go at once
        (1, 4, 1, 100, 300, 64, 64),
        (1, 2, 2, 40, 1100, 32, 32),
    ],
    ids=str,
)
def test_products_and_their_gradients_equal_f64(xpu, monkeypatch, shape, kind, dtype, most):
    if torch.xpu.get_device_properties(0).type != "cpu":
        pytest.skip("a GPU has kernels for attention")
    served = has_products(dtype)
    made = takes_products(monkeypatch, most)
    test_the_kernels_and_their_gradients_equal_f64(xpu, shape, kind, dtype)
    if not served:
        assert made and not any(made) and dtype != torch.float32  # asked for, and the kernels do it all
        return
    one_head = shape[3] * shape[4]
    # A head with more scores goes by blocks of queries, and its gradients by the kernels.
    groups = 1 if most > one_head * shape[0] * shape[1] else shape[0] * shape[1]
    assert all(made) and (len(made) >= 7 * groups if one_head <= most else len(made) > 2 * groups)


@pytest.mark.rotates(3)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("lacking", [0, 1, 2, 4])
def test_where_a_product_is_lacking_the_kernels_do_it_all(xpu, monkeypatch, lacking):
    if torch.xpu.get_device_properties(0).type != "cpu":
        pytest.skip("a GPU has kernels for attention")
    made = takes_products(monkeypatch, 1 << 22)
    product = attention_products.batched.product
    monkeypatch.setattr(attention_products.batched, "product", lambda *ts: len(made) != lacking and product(*ts))
    test_the_kernels_and_their_gradients_equal_f64(xpu, (2, 3, 3, 61, 79, 40, 24), "none", torch.float32)
    assert len(made) == lacking if lacking > 1 else made[:lacking] == [True] * lacking


@pytest.mark.not_simulated("compares results")
def test_products_leave_alone_what_onednn_does_not_read(xpu, monkeypatch):
    made = takes_products(monkeypatch, 1 << 22)
    query, key = torch.randn(2, 4, 40, 16), torch.randn(2, 1, 40, 16).expand(2, 4, 40, 16)
    ours = scaled_dot_product_attention(query.to("xpu"), key[:, :1].to("xpu").expand(2, 4, 40, 16), key.to("xpu"))
    exact = scaled_dot_product_attention(query.double(), key.double(), key.double())
    assert (ours.cpu() - exact).abs().max() < 1e-5 and not any(made)  # repeated heads


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("products", [False, True])
def test_queries_that_may_see_nothing_give_zeros(xpu, monkeypatch, products):
    if products:
        takes_products(monkeypatch, 1 << 22)
    query, key, value = (torch.randn(1, 2, 40, 16).to("xpu").requires_grad_() for _ in range(3))
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[7] = False
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask.to("xpu"))
    out.sum().backward()
    assert (out[:, :, 7] == 0).all() and not out.isnan().any()
    assert all(not t.grad.isnan().any() for t in (query, key, value)) and (query.grad[:, :, 7] == 0).all()


@pytest.mark.not_simulated("compares results")
def test_dropout_drops_the_same_weights_forward_and_backward(xpu):
    query, key = (torch.randn(2, 4, 70, 32).to("xpu") for _ in range(2))
    value = torch.randn(2, 4, 70, 32).to("xpu").requires_grad_()
    torch.manual_seed(5)
    out = scaled_dot_product_attention(query, key, value, dropout_p=0.3)
    grad = torch.randn(2, 4, 70, 32).to("xpu")
    (by_value,) = torch.autograd.grad(out, value, grad)
    # What attention makes of the values is linear in them: the two products are one sum, if the weights are the same.
    torch.testing.assert_close((out * grad).sum(), (value * by_value).sum(), rtol=1e-4, atol=1e-3)
    torch.manual_seed(5)
    assert torch.equal(scaled_dot_product_attention(query, key, value, dropout_p=0.3), out)
    assert not torch.equal(scaled_dot_product_attention(query, key, value, dropout_p=0.3), out)
    ones = torch.ones_like(value)
    kept = scaled_dot_product_attention(torch.zeros_like(query), key, ones, dropout_p=0.3)  # equal weights
    assert abs(kept.mean().item() - 1) < 0.02 and 0.01 < kept.std().item() < 0.2


@pytest.mark.not_simulated("compares results")
def test_what_the_kernels_do_not_take(xpu):
    query = torch.randn(1, 2, 20, 16).to("xpu")
    assert (scaled_dot_product_attention(query, query, query, dropout_p=1.0) == 0).all()
    direct = torch.ops.aten._scaled_dot_product_flash_attention
    for operands, dropout in (((query, query.half(), query), 0.0), ((query, query, query), 1.0)):
        with pytest.raises(NotImplementedError, match="one dtype of float32"):
            direct(*operands, dropout)


@pytest.mark.not_simulated("compares results")
def test_sdpa_kernel_and_the_direct_operators(xpu):
    query, key, value = (torch.randn(1, 2, 50, 32).to("xpu") for _ in range(3))
    expected = scaled_dot_product_attention(*(t.cpu().double() for t in (query, key, value))).float()

    def used(*backends):
        ops.reset_counters()
        with sdpa_kernel(list(backends)):
            out = scaled_dot_product_attention(query, key, value)
        assert (out.cpu() - expected).abs().max() < 1e-5
        return f"aten::{FUSED}" in ops.counters()

    assert used(SDPBackend.FLASH_ATTENTION) and used(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    assert not used(SDPBackend.MATH)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        scaled_dot_product_attention(query.double(), key.double(), value.double())
    assert torch._fused_sdp_choice(query, key, value) == SDPBackend.OVERRIDEABLE.value
    aten = torch.ops.aten
    for out, logs, *_ in (
        aten._scaled_dot_product_flash_attention(query, key, value),
        aten._scaled_dot_product_efficient_attention(query, key, value, None, True),
    ):
        assert (out.cpu() - expected).abs().max() < 1e-5
        scores = query.cpu().double() @ key.cpu().double().mT / 32**0.5
        torch.testing.assert_close(logs[..., :50].cpu().double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


def _permuted(order, *shape):
    """Random numbers of ``shape``, whose dimensions lie in memory in that order, the slowest first."""
    return torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])


@pytest.mark.rotates(9)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_direct_operators_lie_as_a_compiled_graph_expects(xpu, dtype, order, masked):
    aten = torch.ops.aten
    given = [_permuted(order, 2, 3, rows, 16).to(dtype) for rows in (9, 37, 37)]
    mask = torch.randn(2, 3, 9, 37).to(dtype).to("xpu") if masked else None
    query, key, value = (torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="xpu").copy_(t) for t in given)
    exact = [t.double().requires_grad_() for t in given]
    want = scaled_dot_product_attention(*exact, None if mask is None else mask.cpu().double())
    grad = torch.randn(want.shape).to(dtype)
    want.backward(grad.double())
    bound = 1e-5 if dtype == torch.float32 else 2e-2

    def checked(operator, *operands):
        found = operator(*operands)
        with FakeTensorMode() as mode:
            fake = operator(*(mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in operands))
        for ours, theirs in zip(found, fake, strict=True):
            # Seeds and offsets are numbers of the host's, and dimensions of one element have any step.
            if isinstance(ours, torch.Tensor) and ours.dim() > 1:
                assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        return found

    def near(found, expected):
        assert (found.cpu().double() - expected).norm() <= bound * expected.norm()

    q, k, v = query, key, value
    forms = []
    out, logs, seed, offset = checked(aten._scaled_dot_product_efficient_attention, q, k, v, mask, True)
    backward = (aten._scaled_dot_product_efficient_attention_backward, grad.to("xpu"), q, k, v, mask, out, logs, seed)
    forms.append((out, checked(*backward, offset, 0.0, [True, True, True, False])))
    assert checked(aten._scaled_dot_product_efficient_attention, q, k, v, mask, False)[1].shape == (2, 3, 0)
    if mask is None:
        out, logs, cq, ck, nq, nk, seed, offset, _ = checked(aten._scaled_dot_product_flash_attention, q, k, v)
        backward = (aten._scaled_dot_product_flash_attention_backward, grad.to("xpu"), q, k, v, out, logs, cq, ck)
        forms.append((out, checked(*backward, nq, nk, 0.0, False, seed, offset)))
        rows = [t.transpose(1, 2) for t in (q, k, v)]
        last = (None, None, 9, 37, 0.0, False)
        out, logs, seed, offset, _ = checked(aten._flash_attention_forward, *rows, *last, False)
        backward = (aten._flash_attention_backward, grad.to("xpu").transpose(1, 2), *rows, out, logs, *last)
        made = checked(*backward, seed, offset)
        forms.append((out.transpose(1, 2), [t.transpose(1, 2) for t in made]))
    for out, made in forms:
        near(out, want.detach())
        for ours, leaf in zip(made, exact, strict=False):
            near(ours, leaf.grad)


@pytest.mark.not_simulated("compares results")
def test_the_efficient_form_is_trained_in_a_compiled_graph(xpu):
    def run(q, k, v):
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0] * 2

    given = [torch.randn(2, 3, 21, 16) for _ in range(3)]
    exact, ours = [t.double().requires_grad_() for t in given], [t.to("xpu").requires_grad_() for t in given]
    out, want = torch.compile(run)(*ours), scaled_dot_product_attention(*exact) * 2
    (out.square().sum()).backward()
    want.square().sum().backward()
    for got, expected in zip((out, *(t.grad for t in ours)), (want, *(t.grad for t in exact)), strict=True):
        assert (got.detach().cpu().double() - expected.detach()).norm() <= 1e-5 * expected.detach().norm()


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(("length", "trained"), [(60, True), (60, False), (3000, True)])
def test_a_compiled_graph_has_no_host_operator_and_large_scores_stay_out_of_memory(xpu, length, trained, monkeypatch):
    monkeypatch.setattr(attention, "has_short_vectors", lambda device: False)  # with them nothing is composed
    heads = 1 if length == 60 else 8

    def run(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    inputs = [torch.randn(1, heads, length, 16) for _ in range(3)]
    ours = [t.to("xpu").requires_grad_(trained) for t in inputs]
    compiled = torch.compile(run, dynamic=False)
    compiled(*ours)
    torch.xpu.synchronize()
    ops.reset_counters()
    torch.xpu.reset_peak_memory_stats()
    before = torch.xpu.memory_allocated()
    out = compiled(*ours)
    torch.xpu.synchronize()
    grown = torch.xpu.max_memory_allocated() - before
    assert not [name for name, ways in ops.counters().items() if ways.get("host")]
    # Before 2.13 the operator is chosen where torch does not say that it compiles.
    composed = length == 60 and trained and supported.within(torch.__version__, "2.13", "")
    assert (f"aten::{FUSED}" in ops.counters()) != composed
    assert grown < heads * length * length * 4 + (1 << 20) if length == 60 else grown < 48 << 20
    assert (out.detach().cpu() - run(*inputs)).abs().max() < 1e-5


@pytest.mark.rotates(5)
def test_the_kernels_are_launched_with_every_size_of_heads(xpu):
    for size in (16, 80, 256):
        for dtype in DTYPES:
            leaves = [torch.randn(1, 2, 96, size, dtype=dtype, device="xpu", requires_grad=True) for _ in range(3)]
            out = scaled_dot_product_attention(*leaves, is_causal=True)
            out.backward(torch.ones_like(out))
            assert out.shape == leaves[0].shape and all(t.grad.shape == t.shape for t in leaves)
    torch.xpu.synchronize()


@pytest.mark.not_simulated("compares results")
def test_transformations_of_functions_take_the_composition(xpu):
    inputs = torch.randn(3, 2, 2, 20, 16)

    def attend(t):
        return scaled_dot_product_attention(t, t, t, scale=0.5)

    exact = torch.stack([attend(t.double()) for t in inputs])
    assert (torch.vmap(attend)(inputs.to("xpu")).cpu() - exact).abs().max() < 1e-5
    one = inputs[0].to("xpu")  # and where not every operand is batched
    shared = torch.vmap(lambda k: scaled_dot_product_attention(one, k, k, scale=0.5))(inputs.to("xpu")).cpu()
    separate = [scaled_dot_product_attention(inputs[0].double(), k, k, scale=0.5) for k in inputs.double()]
    assert (shared - torch.stack(separate)).abs().max() < 1e-5
    assert (torch.vmap(attend)(inputs) - exact).abs().max() < 1e-5  # the CPU's rule goes on as it did

    def loss(t):
        return attend(t).square().sum()

    leaf = inputs.double().requires_grad_()
    (by_input,) = torch.autograd.grad(loss(leaf), leaf)
    assert (torch.vmap(torch.func.grad(loss))(inputs.to("xpu")).cpu() - by_input).abs().max() < 1e-3
    direction = torch.randn(2, 2, 20, 16)
    step = 1e-6
    there, here = (attend(inputs[0].double() + s * direction.double()) for s in (step, -step))
    _, along = torch.func.jvp(attend, (inputs[0].to("xpu"),), (direction.to("xpu"),))
    assert (along.cpu() - (there - here) / (2 * step)).abs().max() < 1e-3


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("products", [False, True])
def test_what_is_not_a_number_stays_so(xpu, monkeypatch, products):
    if products:
        takes_products(monkeypatch, 1 << 22)
    query, key, value = (torch.randn(1, 1, 40, 16) for _ in range(3))
    query[0, 0, 5, 3], value[0, 0, 7, 2] = float("nan"), float("inf")
    out = scaled_dot_product_attention(*(t.to("xpu") for t in (query, key, value))).cpu()
    assert out[0, 0, 5].isnan().all()
    assert out[0, 0, :5, 2].isinf().all() and out[0, 0, :5, :2].isfinite().all()


@pytest.mark.rotates(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["none", "bool", "half", "float"])
def test_keys_of_few_queries_are_cut_into_parts(xpu, monkeypatch, kind, dtype):
    # As in decoding for one: a device of many cores would wait for the few work-groups that queries make.
    joined = []
    original = flash._attend_by_parts
    monkeypatch.setattr(flash, "_room", lambda device: 37)
    monkeypatch.setattr(flash, "_attend_by_parts", lambda *args: (joined.append(args[-1]), original(*args))[1])
    for heads, groups, queries, keys, size in ((8, 1, 1, 2050, 64), (4, 2, 3, 1031, 80), (1, 1, 1, 8192, 128)):
        shapes = ((heads, queries), (groups, keys), (groups, keys))
        given = [torch.randn(1, h, n, size).to(dtype) for h, n in shapes]
        mask = {"bool": torch.rand(1, 1, queries, keys) > 0.3, "float": torch.randn(1, heads, queries, keys).to(dtype)}
        mask["half"] = (torch.arange(keys) < keys // 2).expand(1, 1, queries, keys)  # nothing for the last parts
        m = mask.get(kind)
        exact = m.double() if kind == "float" else m
        expected = scaled_dot_product_attention(*(t.double() for t in given), attn_mask=exact, enable_gqa=True)
        device = [None if t is None else t.to("xpu") for t in (*given, m)]
        out = scaled_dot_product_attention(*device[:3], attn_mask=device[3], enable_gqa=True)
        assert (out.cpu() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    assert len(joined) == 3 and all(4 <= parts <= 37 for parts in joined)


def test_parts_that_may_see_nothing_give_zeros(xpu, monkeypatch):
    monkeypatch.setattr(flash, "_room", lambda device: 8)
    query, key = torch.randn(1, 2, 1, 64, device="xpu"), torch.randn(1, 2, 1024, 64, device="xpu")
    nothing = torch.zeros(1, 1, 1, 1024, dtype=torch.bool, device="xpu")
    out, logs, _ = flash.forward(query, key, key, nothing, 0.0, False, None)
    assert out.abs().max() == 0 and (logs.cpu() == float("-inf")).all()
    out, logs, _ = flash.forward(query, key, key, None, 0.0, False, None)
    scores = (query.cpu().double() @ key.cpu().double().transpose(-1, -2))[:, :, 0] / 8
    assert (logs[..., 0].cpu() - scores.logsumexp(-1)).abs().max() < 1e-5


@pytest.mark.rotates(3)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "queries"), [(10, 2, 1), (4, 2, 1), (3, 3, 4), (2, 1, 7)])
def test_few_queries_over_the_same_keys_equal_f64(xpu, heads, groups, queries, dtype):
    # Of one query, heads that share keys are one block.
    shapes = (heads, queries, 144), (groups, 333, 144), (groups, 333, 72)
    given = [torch.randn(1, *shape).to(dtype) for shape in shapes]
    mask = torch.rand(1, heads, queries, 333) > 0.3
    exact = scaled_dot_product_attention(*(t.double() for t in given), attn_mask=mask, enable_gqa=True)
    with torch.no_grad():
        ours = scaled_dot_product_attention(*(t.to("xpu") for t in given), attn_mask=mask.to("xpu"), enable_gqa=True)
    assert (ours.cpu() - exact).abs().max() <= 3 * DTYPES[dtype] * exact.abs().max()


@pytest.mark.not_simulated("compares results")
def test_a_learned_mask_is_served_where_torch_has_a_fused_form_with_its_gradient():
    x = torch.randn(2, 3, 7, 16)
    bias = torch.randn(2, 3, 7, 7)
    want = bias.clone().requires_grad_()
    torch.nn.functional.scaled_dot_product_attention(x, x, x, want).square().sum().backward()
    mask = bias.to("xpu").requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        here = x.to("xpu")
        torch.nn.functional.scaled_dot_product_attention(here, here, here, mask).square().sum().backward()
    torch.testing.assert_close(mask.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)
    nothing = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.ERROR)
    with nothing, pytest.raises(RuntimeError, match="No viable backend"):
        torch.nn.functional.scaled_dot_product_attention(here, here, here)
    only_flash = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
    with only_flash, pytest.raises(RuntimeError, match="No available kernel"):
        torch.nn.functional.scaled_dot_product_attention(here, here, here, mask)


@pytest.mark.not_simulated("a CPU device alone is told how a mask lies; a GPU's registers would spill")
@pytest.mark.parametrize(("turned", "order"), [(False, "0, 1"), (True, "1, 0")], ids=["keys", "queries"])
def test_a_mask_is_read_along_what_lies_side_by_side(turned, order, tmp_path, monkeypatch):
    from anyxpu.ops.attention_kernels import attend

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    attend.device_caches.clear()  # what was compiled before left its text in another folder
    lib().forget_programs()
    mask = torch.randn(1, 2, 256, 256, device="xpu")
    given = torch.randn(1, 2, 256, 64, device="xpu")
    with torch.no_grad():
        scaled_dot_product_attention(given, given, given, mask.mT if turned else mask)
    torch.xpu.synchronize()
    (text,) = (path.read_text() for path in tmp_path.glob("*/attend.ttgir"))
    # Scores are keys by queries; the loop of whole blocks comes first. Long vectors turn what lies along the keys.
    order = order if has_short_vectors(mask.device) else "1, 0"
    layouts = dict(re.findall(r"^(#blocked\d*) = .* order = \[([\d, ]+)\]", text, re.MULTILINE))
    read = re.search(r"%added\w* = tt\.load %\w+ : tensor<\d+x\d+x!tt\.ptr<f32>, (#\w+)>", text)
    assert read and layouts[read.group(1)] == order
