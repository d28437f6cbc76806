"""Linear layers with what follows them as one primitive: ``mkldnn::_linear_pointwise`` and its form with an operand."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu.onednn import functions
from anyxpu.shim import lib
from tests.test_onednn_fused import BOUND, UNARY, relative, widened

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN needs the sycl driver, and the operators a torch that has them",
)

mkldnn = torch.ops.mkldnn
SHAPES = ((3, 5, 24), (7, 24), (24,), (1, 1, 24))


def operands(shape: tuple[int, ...], dtype: torch.dtype):
    """Source, weight and bias on the CPU in float64 and on xpu; a weight that is the transpose of a matrix, too."""
    wide = [torch.randn(s).to(dtype).double() for s in (shape, (36, 24), (36,))]
    narrow = [t.to(dtype).xpu() for t in wide]
    return wide, narrow, narrow[1].t().contiguous().t()


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("unary", UNARY, ids=str)
def test_a_function_of_a_linear_layer(unary, dtype):
    name, scalars, algorithm = unary
    for shape in SHAPES:
        (x, w, b), (y, v, c), transposed = operands(shape, dtype)
        for weight in (v, transposed):
            for bias, want in ((c, F.linear(x, w, b)), (None, F.linear(x, w))):
                anyxpu.ops.reset_counters()
                # Inductor gives [-1] where a function has no scalars.
                got = mkldnn._linear_pointwise(y, weight, bias, name, scalars or [-1], algorithm)
                assert anyxpu.ops.counters()["mkldnn::_linear_pointwise"] == {"library": 1}
                # A CPU without AVX512_FP16 has no float16.
                assert {f.instead for f in anyxpu.ops.fallbacks()} <= widened(dtype)
                assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous()
                assert relative(got, UNARY[unary](want)) < BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("operator", functions.BINARY)
def test_an_operator_after_a_linear_layer(operator, dtype):
    compute = getattr(torch, operator)
    for shape in SHAPES:
        (x, w, b), (y, _, c), transposed = operands(shape, dtype)
        other = (torch.rand(*shape[:-1], 36) + 0.5).to(dtype)
        for strided in (other.xpu(), other.mT.contiguous().xpu().mT if len(shape) > 1 else other.xpu()):
            for bias, want in ((c, F.linear(x, w, b)), (None, F.linear(x, w))):
                anyxpu.ops.reset_counters()
                got = mkldnn._linear_pointwise.binary(y, strided, transposed, bias, operator)
                assert anyxpu.ops.counters()["mkldnn::_linear_pointwise.binary"] == {"library": 1}
                assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous()
                assert relative(got, compute(want, other.double())) < BOUND[dtype]
        assert torch.equal(strided.cpu(), other)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("unary", UNARY, ids=str)
def test_an_operator_and_then_a_function_after_a_linear_layer(unary, dtype):
    name, scalars, algorithm = unary
    for operator in functions.BINARY:
        shape = random.choice(SHAPES)
        (x, w, b), (y, _, c), transposed = operands(shape, dtype)
        other = (torch.rand(*shape[:-1], 36) + 0.5).to(dtype)
        for bias, want in ((c, F.linear(x, w, b)), (None, F.linear(x, w))):
            anyxpu.ops.reset_counters()
            follows = operator, name, scalars or [-1], algorithm
            got = torch.ops.anyxpu._linear_pointwise(y, other.xpu(), transposed, bias, *follows)
            assert anyxpu.ops.counters()["anyxpu::_linear_pointwise"] == {"library": 1}
            assert {f.instead for f in anyxpu.ops.fallbacks()} <= widened(dtype)
            assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous()
            exact = UNARY[unary](getattr(torch, operator)(want, other.double()))
            assert relative(got, exact) < BOUND[dtype], (operator, shape)


def test_extreme_values_and_nan_are_what_torch_makes_of_them():
    edges = [math.nan, math.inf, -math.inf, 1e30, -1e30, 88.0, -88.0, -12.0, -5.5, 0.0, -0.0, 1e-40]
    column = torch.tensor(edges)
    ones = torch.ones(4, 1).xpu()
    for unary, compute in UNARY.items():
        if unary[0] in ("hardtanh", "hardsigmoid"):
            continue  # oneDNN's make a number of NaN: compiled graphs leave those to Triton, which keeps it
        known = column[column != -math.inf] if unary[0] == "relu" else column  # relu's is NaN there
        got = mkldnn._linear_pointwise(ones, known[:, None].xpu(), None, unary[0], unary[1] or [-1], unary[2])
        torch.testing.assert_close(got.cpu()[3], compute(known), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_what_one_primitive_does_not_do_is_done_one_by_one_and_named():
    (x, w, b), (y, v, c), _ = operands((6, 24), torch.float32)
    anyxpu.ops.reset_counters()
    row = torch.randn(36)
    got = mkldnn._linear_pointwise.binary(y, row.xpu(), v, c, "mul")
    assert relative(got, F.linear(x, w, b) * row.double()) < BOUND[torch.float32]
    if torch.xpu.get_device_properties().has_fp64:
        wide = [t.xpu() for t in (x, w, b)]
        assert relative(mkldnn._linear_pointwise(*wide, "gelu", [-1], "none"), F.gelu(F.linear(x, w, b))) < 1e-12
    got = torch.ops.anyxpu._linear_pointwise(y, row.xpu(), v, c, "sub", "tanh", [-1], "")
    assert relative(got, torch.tanh(F.linear(x, w, b) - row.double())) < BOUND[torch.float32]
    empty = mkldnn._linear_pointwise(y[:0], v, c, "tanh", [-1], "")
    assert empty.shape == (0, 36)
    none = mkldnn._linear_pointwise(y[:, :0], v[:, :0], None, "sigmoid", [-1], "")
    assert torch.equal(none.cpu(), torch.full((6, 36), 0.5))
    assert "composed" in {f.instead for f in anyxpu.ops.fallbacks()}


def test_what_does_not_exist_or_fit_is_refused():
    _, (y, v, c), _ = operands((6, 24), torch.float32)
    with pytest.raises(ValueError, match="no function 'cosh' after a linear layer"):
        mkldnn._linear_pointwise(y, v, c, "cosh", [-1], "")
    with pytest.raises(ValueError, match="'leaky_relu' after a linear layer wants 1 scalars, not 0"):
        mkldnn._linear_pointwise(y, v, c, "leaky_relu", [], "")
    with pytest.raises(ValueError, match="no operator 'pow' after a linear layer"):
        mkldnn._linear_pointwise.binary(y, y, v, c, "pow")
    with pytest.raises(ValueError, match="no operator 'pow' after a linear layer"):
        torch.ops.anyxpu._linear_pointwise(y, y, v, c, "pow", "tanh", [], "")
    with pytest.raises(ValueError, match="no function 'cosh' after a linear layer"):
        torch.ops.anyxpu._linear_pointwise(y, y, v, c, "add", "cosh", [], "")
    with pytest.raises(RuntimeError):
        mkldnn._linear_pointwise(y[:, 1:], v, c, "relu", [-1], "")
    with pytest.raises(RuntimeError):
        mkldnn._linear_pointwise(y, v, c[1:], "relu", [-1], "")
    with pytest.raises(RuntimeError):  # a weight without dimensions
        torch.ops.anyxpu._linear_pointwise(y.half(), y.half(), v[0, 0].half(), None, "add", "tanh", [], "")


def test_compiled_graphs_know_the_shape_without_the_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.empty(2, 3, 8, device="xpu"), torch.empty(5, 8, device="xpu")
        found = mkldnn._linear_pointwise.binary(x, torch.empty(2, 3, 5, device="xpu"), w, None, "add")
        follows = "add", "tanh", [], ""
        chain = torch.ops.anyxpu._linear_pointwise(x, torch.empty(2, 3, 5, device="xpu"), w, None, *follows)
    for made in (found, chain):
        assert made.shape == (2, 3, 5) and made.device.type == "xpu"
