"""Products of a few rows by our kernels, against products in float64."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from anyxpu import ops
from anyxpu.onednn import functions as onednn_functions
from anyxpu.ops import few_rows
from anyxpu.runtime import vectors
from anyxpu.shim import lib

pytestmark = pytest.mark.not_simulated("of CPU devices")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True, params=("short", "long"))
def registers(request, monkeypatch):
    """As on a CPU without instructions for numbers of 16 bits, and for small matrices too; what its registers are."""
    monkeypatch.setattr(few_rows, "has_short_vectors", lambda device: request.param == "short")
    monkeypatch.setattr(few_rows, "_is_ours", lambda *facts: True)
    monkeypatch.setattr(few_rows, "LEAST", 1)
    monkeypatch.setattr(few_rows, "LEAST_OF_F32", 1)
    return request.param


@pytest.fixture
def taken(monkeypatch):
    """How many products the kernels made."""
    calls, product = [], few_rows._product
    monkeypatch.setattr(few_rows, "_product", lambda *args, **kwargs: (calls.append(args), product(*args, **kwargs))[1])
    return calls


def close(actual, exact, dtype):
    bound = torch.finfo(dtype).eps * (32 if dtype == torch.float32 else 1)  # which sums round to at every step
    torch.testing.assert_close(actual.cpu().double(), exact, rtol=bound, atol=bound * float(exact.abs().max()) / 8)


def matrix(k: int, n: int, dtype: torch.dtype, way: str) -> torch.Tensor:
    """``(k, n)`` in rows, in columns, or with something between either."""
    more = 5 if "apart" in way else 0
    if "columns" in way:
        return torch.randn(n, k + more, dtype=dtype)[:, :k].t()
    return torch.randn(k, n + more, dtype=dtype)[:, :n]


def on_xpu(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="xpu").copy_(t)


IS_OURS = few_rows._is_ours


@pytest.mark.parametrize("has", ("nothing", "registers", "tiles"))
def test_whose_products_are_fast_keeps_them(registers, has, monkeypatch):
    monkeypatch.setattr(few_rows, "multiplies", lambda device, dtype: has != "nothing")
    monkeypatch.setattr(few_rows, "has_tiles", lambda device, dtype: has == "tiles")
    device = torch.device("xpu", 0)
    taken = {dtype: [rows for rows in (1, 2, 3, 8) if IS_OURS(device, dtype, rows)] for dtype in DTYPES}
    if registers == "short":
        assert taken == dict(zip(DTYPES, ([1, 2, 3, 8], [1, 2, 3, 8], []), strict=True))
    else:
        bfloat16 = [3, 8] if has == "nothing" else []
        assert taken == dict(zip(DTYPES, (bfloat16, [] if has == "tiles" else [1, 2, 3, 8], [1, 2, 3, 8]), strict=True))


def test_a_gpu_keeps_all_of_its_products(monkeypatch):
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(type="gpu"))
    for asked in (vectors.has_short_vectors, vectors.multiplies, vectors.has_tiles):
        monkeypatch.setattr(few_rows, asked.__name__, asked.__wrapped__)  # what they know of this device stays true
    assert not any(IS_OURS(torch.device("xpu", 0), dtype, rows) for dtype in DTYPES for rows in (1, 2, 3, 8))


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", ("rows", "columns", "rows apart", "columns apart"))
@pytest.mark.parametrize("m", (1, 2, 3, 5, 8))
def test_products_and_what_is_added(taken, m, way, dtype):
    k, n = random.choice((1, 7, 16, 100, 259)), random.choice((2, 5, 64, 130))
    x, w, bias = torch.randn(m, k, dtype=dtype), matrix(k, n, dtype, way), torch.randn(n, dtype=dtype)
    there = on_xpu(w)
    close(x.xpu() @ there, x.double() @ w.double(), dtype)
    close(torch.addmm(bias.xpu(), x.xpu(), there), x.double() @ w.double() + bias.double(), dtype)
    out = torch.full((m, n), 7.0, dtype=dtype, device="xpu")
    assert torch.mm(x.xpu(), there, out=out) is out
    close(out, x.double() @ w.double(), dtype)
    torch.addmm(bias.xpu(), x.xpu(), there, out=out)
    close(out, x.double() @ w.double() + bias.double(), dtype)
    left = dtype == torch.float32 and "rows" in way and m > 1
    assert len(taken) == (0 if left else 4), (k, n)
    sliced = torch.randn(m, 2 * k, dtype=dtype)[:, ::2]
    close(on_xpu(sliced) @ there, sliced.double() @ w.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_layer_and_what_follows_it(taken, dtype):
    x, w, bias = torch.randn(2, 3, 40, dtype=dtype), torch.randn(24, 40, dtype=dtype), torch.randn(24, dtype=dtype)
    other = torch.randn(2, 3, 24, dtype=dtype)
    exact = F.linear(x.double(), w.double(), bias.double())
    close(F.linear(x.xpu(), w.xpu(), bias.xpu()), exact, dtype)
    fused = torch.ops.mkldnn._linear_pointwise
    close(fused(x.xpu(), w.xpu(), bias.xpu(), "relu", [], ""), exact.relu(), dtype)
    close(fused(x.xpu(), w.xpu(), None, "gelu", [], "tanh"), F.gelu((exact - bias), approximate="tanh"), dtype)
    close(fused.binary(x.xpu(), other.xpu(), w.xpu(), bias.xpu(), "add"), exact + other.double(), dtype)
    assert len(taken) == 4


FOLLOWING = [
    ("relu", [], ""),
    ("leaky_relu", [0.2], ""),
    ("sigmoid", [-1], ""),
    ("tanh", [], ""),
    ("hardswish", [], ""),
    ("hardsigmoid", [], ""),
    ("hardtanh", [-0.5, 2.0], ""),
    ("swish", [], ""),
    ("gelu", [], "none"),
    ("gelu", [], "tanh"),
    ("elu", [0.7], ""),
    ("mish", [], ""),
]


def test_those_are_all_functions_that_may_follow():
    names = {f"gelu {algorithm}" if algorithm else name for name, _, algorithm in FOLLOWING}
    assert names == set(onednn_functions._UNARY)


@pytest.mark.parametrize(("name", "numbers", "algorithm"), FOLLOWING, ids=str)
def test_every_function_that_follows_a_layer(taken, name, numbers, algorithm):
    x, w = torch.randn(random.choice((1, 4)), 40, dtype=torch.float16), torch.randn(24, 40, dtype=torch.float16) / 4
    _, function = onednn_functions._UNARY[f"gelu {algorithm}" if algorithm else name]
    exact = function(F.linear(x.double(), w.double()), *(n for n in numbers if n != -1))
    close(torch.ops.mkldnn._linear_pointwise(x.xpu(), w.xpu(), None, name, numbers, algorithm), exact, x.dtype)
    assert taken


@pytest.mark.parametrize("name", ("add", "sub", "mul", "div"))
def test_every_operator_that_follows_a_layer(taken, name):
    x, w = torch.randn(2, 40, dtype=torch.float16), torch.randn(24, 40, dtype=torch.float16) / 4
    other = (torch.rand(24, 2) + 0.5).to(torch.float16).t()
    exact = getattr(torch, name)(F.linear(x.double(), w.double()), other.double())
    close(torch.ops.mkldnn._linear_pointwise.binary(x.xpu(), other.xpu(), w.xpu(), None, name), exact, x.dtype)
    assert taken


@pytest.mark.parametrize(("name", "numbers", "algorithm"), FOLLOWING, ids=str)
def test_an_operator_and_then_a_function_follow_a_layer(taken, name, numbers, algorithm):
    x, w = torch.randn(random.choice((1, 4)), 40, dtype=torch.float16), torch.randn(24, 40, dtype=torch.float16) / 4
    other, operator = torch.rand(len(x), 24).half() + 0.5, random.choice(("add", "sub", "mul", "div"))
    _, function = onednn_functions._UNARY[f"gelu {algorithm}" if algorithm else name]
    made = getattr(torch, operator)(F.linear(x.double(), w.double()), other.double())
    exact = function(made, *(n for n in numbers if n != -1))
    follows = operator, name, numbers, algorithm
    close(torch.ops.anyxpu._linear_pointwise(x.xpu(), other.xpu(), w.xpu(), None, *follows), exact, x.dtype)
    assert taken


def test_a_compiled_layer_leaves_nothing_to_the_host(taken):
    """Also where kernels may be built in the background."""
    lib().set_eager("auto")
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Tanh(), torch.nn.Linear(24, 8)).bfloat16().xpu()
    x = torch.randn(4, 40, dtype=torch.bfloat16, device="xpu")
    ops.reset_counters()
    try:
        with torch.no_grad():
            torch.compile(model)(x)
    finally:
        lib().set_eager("compile")
    assert taken and not [name for name, ways in ops.counters().items() if "host" in ways]


def test_numbers_that_are_none_arrive(taken):
    x, w = torch.randn(2, 33, dtype=torch.bfloat16), torch.randn(6, 33, dtype=torch.bfloat16)
    w[1, 32], w[2, 0], x[1, 5] = float("nan"), float("inf"), float("inf")
    got, wanted = (x.xpu() @ w.xpu().t()).cpu(), (x.float() @ w.float().t()).bfloat16()
    assert taken and torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())


@pytest.mark.parametrize(
    ("c", "a", "b"),
    [
        (None, (9, 16), (16, 8)),
        (None, (2, 0), (0, 8)),
        (None, (0, 16), (16, 8)),
        ((2, 8), (2, 16), (16, 8)),
        ((1,), (2, 16), (16, 8)),
    ],
    ids=str,
)
def test_other_products_are_onednns(taken, c, a, b):
    a, b = (torch.randn(shape, dtype=torch.bfloat16) for shape in (a, b))
    if c is None:
        got, exact = a.xpu() @ b.xpu(), a.double() @ b.double()
        torch.testing.assert_close(got.cpu().double(), exact, rtol=1e-2, atol=5e-2)
    else:
        c = torch.randn(c, dtype=torch.bfloat16)
        close(torch.addmm(c.xpu(), a.xpu(), b.xpu()), c.double() + a.double() @ b.double(), torch.bfloat16)
    assert not taken


def test_an_out_that_it_cannot_write_is_onednns(taken):
    x, w = torch.randn(3, 16, dtype=torch.bfloat16), torch.randn(16, 16, dtype=torch.bfloat16)
    exact = x.double() @ w.double()
    for shape, strides in (((3, 16), (1, 3)), ((0,), (1,)), ((3, 16), (32, 2))):
        given = torch.empty_strided(shape, strides, dtype=torch.bfloat16, device="xpu")
        close(torch.mm(x.xpu(), w.xpu(), out=given), exact, torch.bfloat16)
    assert not taken


def test_factors_and_gradients(taken):
    a, b = torch.randn(3, 32, dtype=torch.bfloat16), torch.randn(32, 16, dtype=torch.bfloat16)
    c = torch.randn(16, dtype=torch.bfloat16)
    exact = 0.5 * c.double() + 2 * (a.double() @ b.double())
    close(torch.addmm(c.xpu(), a.xpu(), b.xpu(), beta=0.5, alpha=2), exact, torch.bfloat16)
    assert not taken
    x, w = a.xpu().requires_grad_(), b.xpu().requires_grad_()
    by_x, by_w = torch.autograd.grad((x @ w).sum(), (x, w))
    close(by_x, b.double().sum(1).expand(3, 32), torch.bfloat16)
    close(by_w, a.double().sum(0)[:, None].expand(32, 16), torch.bfloat16)


def test_operands_that_do_not_fit_are_one_error():
    x, w = torch.randn(2, 16, dtype=torch.bfloat16).xpu(), torch.randn(8, 15, dtype=torch.bfloat16).xpu()
    with pytest.raises(RuntimeError, match=r"shapes|size"):
        x @ w.t()
    with pytest.raises(RuntimeError):
        x @ w.t().float()
    assert (x @ x.t()).shape == (2, 2)
