"""Compiled graphs: a product takes along what follows it, where nobody else wants what lies between."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import anyxpu.ops
from anyxpu.bench import fusions
from anyxpu.inductor import epilogues
from anyxpu.onednn import functions
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN needs the sycl driver, and the operators a torch that has them",
)

BOUND = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
FUNCTIONS = {
    "gelu": F.gelu,
    "gelu in words": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gpt2's gelu": lambda x: (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "fast gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "silu": F.silu,
    "silu in words": lambda x: torch.sigmoid(x) * x,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": lambda x: F.elu(x, 0.7),
    "mish": F.mish,
}
FUSED = ("mkldnn::_linear_pointwise", "mkldnn::_linear_pointwise.binary")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    # As on a GPU and with AVX-512, whatever this machine is.
    monkeypatch.setattr(functions, "has_short_vectors", lambda device: False)


def compiled(model, *inputs, **options):
    """The result of the second call of a compiled graph, how often it called each fused operator, and whom else."""
    function = torch.compile(model, **options)
    function(*inputs)
    anyxpu.ops.reset_counters()
    got = function(*inputs)
    served = anyxpu.ops.counters()
    assert not [name for name, ways in served.items() if "host" in ways]
    return got, tuple(sum(served.get(name, {}).values()) for name in FUSED), served


def relative(got, want) -> float:
    return float((got.detach().cpu().double() - want).norm() / want.norm())


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_a_product_is_taken_along(function, dtype):
    compute = FUNCTIONS[function]
    shapes = (torch.randn(2, 9, 24), torch.randn(24, 40) / 5, torch.randn(40))
    x, w, b = (t.to(dtype) for t in shapes)
    on = [t.xpu() for t in (x, w, b)]
    with torch.no_grad():
        # A weight either way round, a bias or none, more than two dimensions or two.
        got, calls, _ = compiled(lambda x, w, b: compute(F.linear(x, w.t(), b)), *on)
        assert calls == (1, 0)
        assert counters["inductor"]["mkldnn_unary_fusion_matcher_count"] == 1
        assert relative(got, compute(F.linear(x.double(), w.double().t(), b.double()))) < BOUND[dtype]
        if dtype != torch.float32:
            return
        got, calls, _ = compiled(lambda x, w: compute(x[0] @ w), *on[:2])
        assert calls == (1, 0)
        assert relative(got, compute(x[0].double() @ w.double())) < BOUND[dtype]
        got, calls, _ = compiled(lambda x, w, b: compute(x @ w + b), *on)
        assert calls == (1, 0)
        assert relative(got, compute(x.double() @ w.double() + b.double())) < BOUND[dtype]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_with_short_registers_those_stay_alone_that_onednn_is_slow_at(function, monkeypatch):
    monkeypatch.setattr(functions, "has_short_vectors", lambda device: True)
    compute, (x, w) = FUNCTIONS[function], (torch.randn(6, 8), torch.randn(8, 12))
    with torch.no_grad():
        got, calls, _ = compiled(lambda x, w: compute(x @ w), x.xpu(), w.xpu())
    assert calls == (int(function in ("hardswish", "leaky_relu", "sigmoid", "relu", "elu", "mish")), 0)
    assert relative(got, compute(x.double() @ w.double())) < BOUND[torch.float32]


def test_a_function_with_another_constant_is_another_function():
    x, w = torch.randn(6, 8), torch.randn(8, 12)
    with torch.no_grad():
        for almost in (
            lambda x: 0.5 * x * (1 + torch.erf(x / 2)),
            lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.05 * torch.pow(x, 3.0)))),
            lambda x: x * torch.sigmoid(1.702 * x),
        ):
            got, calls, _ = compiled(lambda x, w, f=almost: f(x @ w), x.xpu(), w.xpu())
            assert calls[0] <= 1
            assert relative(got, almost(x.double() @ w.double())) < BOUND[torch.float32]


def test_relu_keeps_nan_and_makes_zeros_without_a_sign():
    values = [math.nan, math.inf, 2.0, 1e-30, 0.0, -0.0, -1e-30, -2.0, -1e30]
    x, w = torch.tensor([[value, 0.0] for value in values]), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    for rows in (x, x.repeat(40, 1)):  # few, of which a kernel of ours may make the product, and many
        with torch.no_grad():
            got, calls, _ = compiled(lambda x, w: torch.relu(x @ w), rows.xpu(), w.xpu())
        assert calls == (1, 0)
        torch.testing.assert_close(got.cpu(), torch.relu(rows @ w), rtol=0, atol=0, equal_nan=True)
        assert not got.cpu().signbit().any()


def test_functions_that_would_lose_a_nan_stay_where_they_are():
    x, w = torch.randn(6, 8), torch.randn(8, 12)
    x[0, 0] = math.nan
    with torch.no_grad():
        for function in (F.hardsigmoid, F.relu6, lambda x: F.leaky_relu(x, 0.0)):
            got, calls, _ = compiled(lambda x, w, f=function: f(x @ w), x.xpu(), w.xpu())
            assert calls == (0, 0)
            assert got[0].isnan().all() and not got[1:].isnan().any()


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_a_block_of_a_transformer(dtype):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(24, 56, bias=False), nn.Linear(24, 56, bias=False)
            self.down, self.norm = nn.Linear(56, 24), nn.LayerNorm(24)

        def forward(self, x):
            return self.norm(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    model, x = Block().to(dtype).eval(), torch.randn(2, 7, 24).to(dtype)
    with torch.no_grad():
        want = Block.forward(model.double(), x.double())
        model.to(dtype).xpu()
        # silu with the first product, its product with the second, the sum with the third
        got, calls, served = compiled(model, x.xpu())
    assert calls == (1, 2) and "aten::mm" not in served and "aten::addmm" not in served
    assert relative(got, want) < 2 * BOUND[dtype]


@pytest.mark.parametrize("operator", [torch.add, torch.mul, torch.sub, torch.div], ids=lambda f: f.__name__)
def test_an_operator_with_a_tensor_in_memory(operator):
    # All positive: quotients by products near 0 would amplify rounding.
    x, w, o = torch.rand(4, 5, 8) + 0.1, torch.rand(8, 12) + 0.1, torch.rand(4, 5, 12) + 0.5
    on = [t.xpu() for t in (x, w, o)]
    with torch.no_grad():
        got, calls, _ = compiled(lambda x, w, o: operator(x @ w, o), *on)
        assert calls == (0, 1) and relative(got, operator(x.double() @ w.double(), o.double())) < 1e-6
        got, calls, _ = compiled(lambda x, w, o: operator(o, x @ w), *on)
        assert calls == (0, int(operator in (torch.add, torch.mul)))
        assert relative(got, operator(o.double(), x.double() @ w.double())) < 1e-5
        # Broadcast, of another dtype, by a factor, or computed by the kernel that would have added it: left alone.
        for other in (
            lambda x, w, o: operator(x @ w, o[:1]),
            lambda x, w, o: operator(x @ w, o.double().float().cos()),
            lambda x, w, o: operator(x @ w, o.mT.contiguous().mT),
        ):
            got, _, _ = compiled(other, *on)
            assert relative(got, other(*(t.double() for t in (x, w, o)))) < 1e-5
        got, calls, _ = compiled(lambda x, w, o: torch.add(x @ w, o, alpha=0.5), *on)
        assert calls == (0, 0) and relative(got, x.double() @ w.double() + 0.5 * o.double()) < 1e-6


CHAIN = "anyxpu::_linear_pointwise"


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_operator_and_then_a_function(function, dtype):
    compute = FUNCTIONS[function]
    operator = random.choice((torch.add, torch.mul, torch.sub, torch.div))
    inputs = torch.randn(2, 9, 24), torch.randn(24, 40) / 5, torch.randn(40), torch.rand(2, 9, 40) + 0.5
    x, w, b, o = (t.to(dtype) for t in inputs)

    def layer(x, w, b, o):
        return compute(operator(F.linear(x, w.t(), b), o))

    with torch.no_grad():
        got, calls, served = compiled(layer, *(t.xpu() for t in (x, w, b, o)))
        assert calls == (0, 0) and sum(served[CHAIN].values()) == 1
        assert counters["inductor"]["mkldnn_binary_unary_fusion_matcher_count"] == 1
        assert relative(got, layer(*(t.double() for t in (x, w, b, o)))) < BOUND[dtype]


def test_of_an_operator_and_a_function_that_is_taken_which_nobody_looks_into(monkeypatch):
    x, w, o = torch.randn(2, 6, 8), torch.randn(8, 12), torch.randn(2, 6, 12)
    on, wide = [t.xpu() for t in (x, w, o)], [t.double() for t in (x, w, o)]

    def looked_into(x, w, o):
        y = x @ w + o
        return torch.sigmoid(y), y

    with torch.no_grad():
        got, calls, served = compiled(looked_into, *on)
        assert calls == (0, 1) and CHAIN not in served
        for ours, theirs in zip(got, looked_into(*wide), strict=True):
            assert relative(ours, theirs) < 1e-6
        got, calls, served = compiled(lambda x, w, o: F.relu6(x @ w + o), *on)  # loses a NaN in oneDNN
        assert calls == (0, 1) and CHAIN not in served
        assert relative(got, F.relu6(wide[0] @ wide[1] + wide[2])) < 1e-6
        monkeypatch.setattr(functions, "has_short_vectors", lambda device: True)
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True):
            for function, many in ((torch.tanh, 0), (torch.sigmoid, 1)):
                got, calls, served = compiled(lambda x, w, o, f=function: f(x @ w + o), *on)
                assert calls == (0, 1 - many) and sum(served.get(CHAIN, {}).values()) == many
                assert relative(got, function(wide[0] @ wide[1] + wide[2])) < 1e-6


def test_what_others_want_is_left_to_them():
    x, w = torch.randn(6, 8).xpu(), torch.randn(8, 12).xpu()
    with torch.no_grad():

        def both(x, w):
            y = x @ w
            return F.gelu(y), y

        got, calls, _ = compiled(both, x, w)
        assert calls == (0, 0)
        wide = x.cpu().double() @ w.cpu().double()
        assert relative(got[0], F.gelu(wide)) < 1e-6 and relative(got[1], wide) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_has_the_gradients_of_the_cpu(dtype):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4), nn.Tanh()).to(
        dtype
    )
    x = torch.randn(6, 8).to(dtype)
    wide = nn.Sequential(*[type(m)(*m.weight.shape[::-1]) if isinstance(m, nn.Linear) else m for m in model]).double()
    wide.load_state_dict(model.state_dict())
    wide(x.double()).square().sum().backward()
    model.xpu()
    step = torch.compile(lambda x: model(x).square().sum())
    step(x.xpu()).backward()
    for ours, theirs in zip(model.parameters(), wide.parameters(), strict=True):
        assert relative(ours.grad, theirs.grad) < 10 * BOUND[dtype]


def test_rows_that_change_need_no_other_graph():
    w, b = torch.randn(24, 40), torch.randn(40)
    function = torch.compile(lambda x, w, b, o: F.silu(F.linear(x, w.t(), b)) + x @ w - o, dynamic=True)
    with torch.no_grad():
        for rows in (3, 8, 1, 17):
            x, o = torch.randn(2, rows, 24), torch.randn(2, rows, 40)
            got = function(*(t.xpu() for t in (x, w, b, o)))
            x, wide, o = x.double(), w.double(), o.double()
            assert relative(got, F.silu(F.linear(x, wide.t(), b.double())) + x @ wide - o) < 1e-6


def test_where_they_are_not_asked_for_or_cannot_be_compiled_products_stay_alone(monkeypatch):
    x, w = torch.randn(6, 8).xpu(), torch.randn(8, 12).xpu()
    with torch.no_grad():
        with torch._inductor.config.patch(emulate_precision_casts=True):
            _, calls, _ = compiled(lambda x, w: F.gelu(x @ w), x, w)
        assert calls == (0, 0)
        torch._dynamo.reset()
        monkeypatch.setattr(epilogues, "_lowered", set())
        with torch._inductor.config.patch(force_disable_caches=True):
            _, calls, _ = compiled(lambda x, w: F.gelu(x @ w), x, w)
        assert calls == (0, 0)


def test_a_frozen_graph_takes_them_along_too():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval(), torch.randn(5, 8)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        want = model.double()(x.double())
        model.float().xpu()
        got, calls, _ = compiled(model, x.xpu())
    assert calls == (1, 0) and relative(got, want) < 1e-6


class _Heads(nn.Module):
    """Queries, keys and values of one operand, and their attention."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64, bias) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (part(x).view(2, 16, 4, 16).transpose(1, 2) for part in self.parts)
        return F.scaled_dot_product_attention(*heads)


@pytest.mark.parametrize("bias", (True, False), ids=("with biases", "without"))
def test_a_frozen_graph_makes_queries_keys_and_values_by_one_product(bias):
    model, x = _Heads(bias).eval(), torch.randn(2, 16, 64)
    with torch.no_grad():
        want = _Heads(bias).double()
        want.load_state_dict(model.state_dict())
        want = want(x.double())
        alone, products = (model.xpu(), "addmm" if bias else "mm")
        for frozen, many in ((False, 3), (True, 1)):
            torch._dynamo.reset()
            with torch._inductor.config.patch(freezing=frozen):
                got, _, served = compiled(alone, x.xpu())
            assert sum(ways["library"] for name, ways in served.items() if name.startswith(f"aten::{products}")) == many
            assert fusions.fired()["merged_products"] == int(frozen)
            assert relative(got, want) < BOUND[torch.float32]


def test_a_weight_that_the_model_joins_is_not_counted_as_merged():
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(8, 12)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.cat((self.a, self.b), 1)

    model, x = Joined().eval(), torch.randn(5, 8)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        want = x.double() @ torch.cat((model.a, model.b), 1).double()
        got, _, _ = compiled(model.xpu(), x.xpu())
    assert relative(got, want) < 1e-6 and "merged_products" not in fusions.fired()
