"""Compiled graphs: a product with a converted weight of 8 bits reads the weight itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

INT8, FLOAT8 = "aten::_weight_int8pack_mm", "anyxpu::_weight_float8_mm"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def compiled(layer, *inputs, **options):
    """The result of a compiled graph's second call, and how often it called the two operators."""
    torch._dynamo.reset()
    function = torch.compile(layer, fullgraph=True, **options)
    with torch.no_grad():
        function(*inputs)
        anyxpu.ops.reset_counters()
        got = function(*inputs)
    served = anyxpu.ops.counters()
    assert not [name for name, ways in served.items() if "host" in ways]
    return got, [sum(served.get(name, {}).values()) for name in (INT8, FLOAT8)]


def check(got, want, dtype):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    assert simulate.active() or float((got.cpu().double() - want).norm() / want.norm()) < BOUNDS[dtype]


def int8_layer(x, w, s, b):
    """As torchao has it."""
    y = torch.mm(x.reshape(-1, x.shape[-1]), w.t().to(x.dtype)) * s.to(x.dtype).flatten()
    return y.reshape(*x.shape[:-1], w.shape[0]) + b


def float8_layer(x, w, s, b):
    return F.linear(x, (w.float() * s).to(x.dtype), b)


def float8_turned(x, w, s, b):
    """As torchao has it."""
    return torch.matmul(x, (w.t().float() * s.t()).to(x.dtype)) + b


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (20,)], ids=str)
def test_int8(shape, dtype):
    x, w, b = torch.randn(*shape, 64).to(dtype), torch.randint(-128, 128, (48, 64), dtype=torch.int8), torch.randn(48)
    s, b = torch.rand(48, 1).to(dtype), b.to(dtype)
    got, calls = compiled(int8_layer, *(t.xpu() for t in (x, w, s, b)))
    assert calls == [1, 0]
    check(got, x.double() @ (w.double() * s.double()).t() + b.double(), dtype)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("layer", [float8_layer, float8_turned], ids=["as it is", "turned"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (20,), (100,)], ids=str)
def test_float8(shape, dtype, layer):
    """k is 128, so that tiles may do it."""
    for s in (torch.rand(48, 1), torch.rand(1, 1)):
        x, w, b = torch.randn(*shape, 128).to(dtype), torch.randn(48, 128).to(E4M3), torch.randn(48).to(dtype)
        got, calls = compiled(layer, *(t.xpu() for t in (x, w, s, b)))
        assert calls == [0, 1]
        check(got, x.double() @ (w.double() * s.double()).t() + b.double(), dtype)


def test_a_dynamic_number_of_rows():
    w, s, b = torch.randn(48, 64).to(E4M3), torch.rand(48, 1), torch.zeros(48)
    on = [t.xpu() for t in (w, s, b)]
    function = torch.compile(float8_layer, dynamic=True)
    for rows in (3, 40):
        x = torch.randn(rows, 64)
        anyxpu.ops.reset_counters()
        got = function(x.xpu(), *on)
        assert FLOAT8 in anyxpu.ops.counters()
        check(got, x.double() @ (w.double() * s.double()).t(), torch.float32)


def test_what_is_left_as_it_is():
    x, w, s = torch.randn(4, 64), torch.randint(-128, 128, (48, 64), dtype=torch.int8), torch.rand(48)
    on = [t.xpu() for t in (x, w, s)]
    narrow, rows = torch.randn(48, 64).to(E4M3), torch.rand(48, 1)

    def shared(x, w, s):
        y = x @ w.t().float()
        return y * s, y + 1

    def by_columns(x, w, s):
        return F.linear(x, w.float() * s)

    (got, _), calls = compiled(shared, *on)
    assert calls == [0, 0]
    check(got, x.double() @ (w.double() * s.double()[:, None]).t(), torch.float32)
    along_k = torch.rand(1, 64)
    for layer, weight, scales, many in (
        (by_columns, narrow, along_k, 4),  # scales along k
        (by_columns, narrow.float().to(E5M2), rows, 4),  # another format
        (by_columns, narrow, rows, 200),  # many rows
    ):
        x = torch.randn(many, 64)
        got, calls = compiled(layer, *(t.xpu() for t in (x, weight, scales)))
        assert calls == [0, 0]
        check(got, x.double() @ (weight.double() * scales.double()).t(), torch.float32)
