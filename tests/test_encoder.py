"""What torch.nn.TransformerEncoder calls when it is evaluated runs on xpu, dense and nested; a reference in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

import anyxpu.ops
from anyxpu import simulate

pytestmark = pytest.mark.usefixtures("no_host")
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}
WIDTH, HEADS = 24, 4


def near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert (got.device.type, got.dtype, got.shape) == ("xpu", dtype, want.shape)
    if not simulate.active():
        bound = BOUNDS[dtype]
        torch.testing.assert_close(got.cpu().double(), want.double(), rtol=bound, atol=bound, equal_nan=True)


def reference(layer: torch.nn.TransformerEncoderLayer, x: Tensor, excluded: Tensor | None) -> Tensor:
    """The layer in float64, by its definition; ``excluded`` goes with (B, heads, L, L)."""
    layer = copy.deepcopy(layer).double()
    x = x.double()

    def attend(rows: Tensor) -> Tensor:
        made = rows @ layer.self_attn.in_proj_weight.t() + layer.self_attn.in_proj_bias
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in made.chunk(3, -1))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if excluded is not None:
            scores = scores.masked_fill(excluded, -math.inf)
        return layer.self_attn.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def products(rows: Tensor) -> Tensor:
        inner = layer.linear1(rows)
        relu = layer.activation_relu_or_gelu == 1
        return layer.linear2(inner.clamp(min=0) if relu else inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))))

    with torch.no_grad():
        if layer.norm_first:
            x = x + attend(layer.norm1(x))
            return x + products(layer.norm2(x))
        x = layer.norm1(x + attend(x))
        return layer.norm2(x + products(x))


def layer(dtype: torch.dtype, **options: object) -> torch.nn.TransformerEncoderLayer:
    made = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 40, batch_first=True, **options)  # type: ignore[arg-type]
    for parameter in made.parameters():
        parameter.data.uniform_(-0.4, 0.4)
    return made.eval().to(dtype)


def mask_of(kind: str, length: int) -> tuple[dict[str, Tensor], Tensor | None]:
    source = torch.ones(length, length, dtype=torch.bool).triu(1)
    padding = torch.zeros(4, length, dtype=torch.bool)
    padding[0, length // 2 :] = padding[2, 1:] = True
    arguments: dict[str, Tensor] = {}
    excluded = torch.zeros(4, 1, length, length, dtype=torch.bool)
    if kind in ("source", "both"):
        arguments["src_mask"] = source
        excluded = excluded | source
    if kind in ("padding", "both"):
        arguments["src_key_padding_mask"] = padding
        excluded = excluded | padding[:, None, None]
    return arguments, excluded if arguments else None


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("kind", ["none", "source", "padding", "both"])
def test_a_layer_evaluated(dtype: torch.dtype, norm_first: bool, kind: str) -> None:
    model = layer(dtype, norm_first=norm_first, activation="gelu" if kind in ("none", "both") else "relu")
    x = torch.randn(4, 9, WIDTH).to(dtype)
    arguments, excluded = mask_of(kind, 9)
    with torch.no_grad():
        got = copy.deepcopy(model).to("xpu")(x.to("xpu"), **{k: v.to("xpu") for k, v in arguments.items()})
    near(got, reference(model, x, excluded), dtype)
    assert anyxpu.ops.counters()["aten::_transformer_encoder_layer_fwd"].get("compiled")


def test_a_sequence_that_is_padding_alone_has_no_numbers() -> None:
    model, x = layer(torch.float32), torch.randn(2, 5, WIDTH)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1] = True
    with torch.no_grad():
        want = model(x, src_key_padding_mask=padding)
        got = model.to("xpu")(x.to("xpu"), src_key_padding_mask=padding.to("xpu"))
    assert bool(want[1].isnan().all())
    near(got, want, torch.float32)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_layer_of_nested_sequences(dtype: torch.dtype) -> None:
    model = layer(dtype, activation="gelu")
    sequences = [torch.randn(n, WIDTH).to(dtype) for n in (4, 9, 1, 6)]
    with torch.no_grad():
        made = copy.deepcopy(model).to("xpu")(torch.nested.nested_tensor(sequences, device="xpu"))
    assert made.is_nested
    for got, sequence in zip(made.unbind(), sequences, strict=True):
        near(got, reference(model, sequence[None], None)[0], dtype)


@pytest.mark.not_simulated("lengths are read from the device")
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_an_encoder_of_sequences_of_their_own_lengths(dtype: torch.dtype) -> None:
    """TransformerEncoder makes them nested; beyond their ends it says 0."""
    stack = torch.nn.TransformerEncoder(layer(dtype), 2).eval()
    for parameter in stack.parameters():
        parameter.data.uniform_(-0.4, 0.4)
    x, lengths = torch.randn(4, 9, WIDTH).to(dtype), (4, 9, 1, 6)
    padding = torch.arange(9) >= torch.tensor(lengths)[:, None]
    with torch.no_grad():
        got = copy.deepcopy(stack).to("xpu")(x.to("xpu"), src_key_padding_mask=padding.to("xpu"))
    want = x.double()
    for one in stack.layers:
        want = reference(one, want, padding[:, None, None])
    near(got, want.masked_fill(padding[..., None], 0), dtype)


@pytest.mark.parametrize("same", [True, False], ids=["one source", "three"])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("mask_type", [None, 0, 1, 2])
def test_attention_and_its_weights(same: bool, average: bool, mask_type: int | None) -> None:
    sources = [torch.randn(2, 6, WIDTH) for _ in range(3)]
    weights = [torch.randn(3 * WIDTH, WIDTH) / 4, torch.randn(3 * WIDTH), torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)]
    shape = {None: (), 0: (6, 6), 1: (2, 6), 2: (2, HEADS, 6, 6)}[mask_type]
    mask = None if mask_type is None else (torch.rand(shape) < 0.3).index_fill_(-1, torch.tensor(0), False)
    results = []
    for device in ("cpu", "xpu"):
        q, k, v = (t.to(device) for t in sources)
        operands = (q, q, q) if same else (q, k, v)
        on = None if mask is None else mask.to(device)
        arguments = (*operands, WIDTH, HEADS, *(w.to(device) for w in weights), on)
        for need in (True, False):
            results += torch._native_multi_head_attention(*arguments, need, average, mask_type)
    want, of_weights, again, none = results[:4]
    near(results[4], want, torch.float32)
    near(results[5], of_weights, torch.float32)
    near(results[6], again, torch.float32)
    assert none is None and results[7] is None


def test_softmax_of_what_a_mask_leaves_and_its_gradient() -> None:
    x = torch.randn(2, 3, 5, 5)
    for mask_type, shape in ((0, (5, 5)), (1, (2, 5)), (2, (2, 3, 5, 5)), (None, (2, 3, 5, 5))):
        mask = torch.rand(shape) < 0.4
        want = torch._masked_softmax(x, mask, 3, mask_type)
        got = torch._masked_softmax(x.to("xpu"), mask.to("xpu"), 3, mask_type)
        near(got, want, torch.float32)
    grad = torch.randn_like(x)
    want = torch.ops.aten._masked_softmax_backward(grad, want, mask, 3)
    near(torch.ops.aten._masked_softmax_backward(grad.to("xpu"), got, mask.to("xpu"), 3), want, torch.float32)


def test_queries_keys_and_values_by_heads() -> None:
    qkv, bias = torch.randn(2, 7, 3 * WIDTH), torch.randn(3 * WIDTH)
    found = torch._transform_bias_rescale_qkv(qkv.to("xpu"), bias.to("xpu"), HEADS)
    for got, want in zip(found, torch._transform_bias_rescale_qkv(qkv, bias, HEADS), strict=True):
        near(got, want, torch.float32)
