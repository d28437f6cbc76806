"""Normalization against float64, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

aten = torch.ops.aten
# Rounding to the result's dtype; of float32, of a few operations.
BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 7e-4}
# x's shape and how many of its last sizes are normalized: one number; short and ragged rows; a row of several steps;
# many rows; no rows.
SHAPES = (((1,), 1), ((5, 3), 1), ((2, 3, 4, 5), 2), ((7, 768), 1), ((3, 1025), 1), ((2, 5000), 1), ((900, 70), 1),
          ((0, 4), 1))  # fmt: skip


def served(dtype: torch.dtype) -> bool:
    return dtype is not torch.float64 or torch.xpu.get_device_properties().has_fp64


def rows_of(shape: tuple[int, ...], inner: tuple[int, ...]) -> torch.Tensor:
    """Random rows about 3 whose numbers lie apart: no float32 has the gradient's digits of nearly equal ones."""
    count = math.prod(inner)
    steps = torch.linspace(-2, 2, count) if count > 1 else torch.zeros(1)
    order = torch.rand(math.prod(shape) // count, count).argsort(-1)
    return (steps[order].view(shape) + torch.randn(shape) / 10) + 3


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert (got.device.type, got.shape, got.dtype) == ("xpu", want.shape, dtype)
    if got.numel() and not simulate.active():
        scale = max(float(want.abs().max()), 1.0)
        assert float((got.cpu().double() - want).abs().max()) <= BOUNDS[dtype] * scale


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("shape", "last"), SHAPES, ids=str)
@pytest.mark.parametrize("factors", ["none", "weight", "both", "f32"])
def test_layer_norm(shape, last, factors, dtype):
    if not served(dtype):
        pytest.skip("the device has no float64")
    of = torch.float32 if factors == "f32" and dtype in (torch.bfloat16, torch.float16) else dtype
    inner = shape[len(shape) - last :]
    x = rows_of(shape, inner).to(dtype)
    weight = torch.randn(inner).to(of) if factors != "none" else None
    bias = torch.randn(inner).to(of) if factors in ("both", "f32") else None
    given = [t for t in (x, weight, bias) if t is not None]
    meant = [t.double().requires_grad_() for t in given]
    asked = [t.xpu().requires_grad_() for t in given]
    grad = torch.randn(shape).to(dtype)

    def normalized(x, weight=None, bias=None):
        return F.layer_norm(x, inner, weight, bias, 1e-5)

    anyxpu.ops.reset_counters()
    got = normalized(*asked)
    gradients = torch.autograd.grad(got, asked, grad.xpu())
    counted = anyxpu.ops.counters()
    assert not [name for name, ways in counted.items() if "host" in ways]
    assert counted["aten::native_layer_norm"] == counted["aten::native_layer_norm_backward"] == {"compiled": 1}
    want = normalized(*meant)
    near(got.detach(), want.detach(), dtype)
    wanted = list(torch.autograd.grad(want, meant, grad.double()))
    if math.prod(inner) == 1:  # 0 whatever the number; the CPU's float64 leaves 1e-13 of it
        wanted[0] = torch.zeros(shape, dtype=torch.float64)
    for g, w, t in zip(gradients, wanted, asked, strict=True):
        near(g, w, t.dtype)


@pytest.mark.rotates(5)
@pytest.mark.not_simulated("it compares numbers")
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("shape", "last"), SHAPES, ids=str)
@pytest.mark.parametrize("factor", ["none", "own", "turned"])
def test_rms_norm(shape, last, factor, dtype):
    if not served(dtype):
        pytest.skip("the device has no float64")
    inner = shape[len(shape) - last :]
    x = rows_of(shape, inner).to(dtype)
    weight = None if factor == "none" else torch.randn(inner).to(dtype)
    given = [x] if weight is None else [x, weight]
    meant = [t.double().requires_grad_() for t in given]
    # Of another order of dimensions in memory, where there are any.
    asked = [(t.xpu().mT.contiguous().mT if factor == "turned" and t.dim() > 1 else t.xpu()) for t in given]
    asked = [t.requires_grad_() for t in asked]
    grad = torch.randn(shape).to(dtype)

    def normalized(x, weight=None):
        return F.rms_norm(x, inner, weight, 1e-5)

    anyxpu.ops.reset_counters()
    got = normalized(*asked)
    gradients = torch.autograd.grad(got, asked, grad.xpu())
    counted = anyxpu.ops.counters()
    assert not [name for name, ways in counted.items() if "host" in ways]
    assert counted["aten::_fused_rms_norm"] == counted["aten::_fused_rms_norm_backward"] == {"compiled": 1}
    want = normalized(*meant)
    near(got.detach(), want.detach(), dtype)
    for g, w, t in zip(gradients, torch.autograd.grad(want, meant, grad.double()), asked, strict=True):
        near(g, w, t.dtype)


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_rms_norm_of_what_the_kernels_do_not_take(dtype):
    # Complex numbers, and a weight of another dtype: composed, with the gradients of the composition.
    # Squares of complex numbers may sum to almost nothing, which the norm divides by; around 2 they do not.
    x = torch.randn(3, 4, 6, dtype=dtype) + 2
    weight = torch.randn(4, 6, dtype=dtype if dtype.is_complex else torch.float64)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for given in ((x,), (x, weight)):
        outcomes = []
        for device, to in (("cpu", wide), ("xpu", None)):
            some = [t.detach().to(device, to or t.dtype, copy=True).requires_grad_() for t in given]
            made = F.rms_norm(some[0], (4, 6), *some[1:])
            made.abs().sum().backward()
            outcomes.append([made.detach(), *(t.grad for t in some)])
        for want, got in zip(*outcomes, strict=True):
            assert (got.cpu() - want).abs().max() <= 5e-6 * want.abs().max()


@pytest.mark.not_simulated("compares results")
@pytest.mark.rotates(2)
def test_rms_norm_differentiates_twice_forward_and_in_graphs():
    x, weight = (torch.randn(s, dtype=torch.float64, device="xpu", requires_grad=True) for s in ((3, 5), (5,)))

    def normalized(x, weight):
        return F.rms_norm(x, (5,), weight, 1e-5)

    assert torch.autograd.gradcheck(normalized, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(normalized, (x, weight))
    by_row = torch.func.vmap(lambda t: F.rms_norm(t, (5,)))(x.detach().float())
    assert (by_row - F.rms_norm(x.detach().float(), (5,))).abs().max() < 1e-6
    x, weight = (t.detach().float().requires_grad_() for t in (x, weight))
    eager, compiled = (
        torch.autograd.grad(f(x, weight).square().sum(), (x, weight)) for f in (normalized, torch.compile(normalized))
    )
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(eager, compiled, strict=True))


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("columns", [5, 33, 3000])
def test_of_rows_of_one_large_number_nothing_is_left(columns):
    x = torch.full((3, columns), 1e15, device="xpu")
    assert not F.layer_norm(x, (columns,)).any()


def test_rows_far_from_zero_keep_their_digits():
    x = torch.randn(8, 600) + 4096
    got, mean, rstd = aten.native_layer_norm(x.xpu(), [600], None, None, 1e-5)
    want = aten.native_layer_norm(x.double(), [600], None, None, 1e-5)
    assert mean.dtype == rstd.dtype == torch.float32
    for g, w, bound in zip((got, mean, rstd), want, (1e-3, 1e-3, 1e-5), strict=True):
        assert float((g.cpu().double() - w).abs().max()) < bound


def test_strided_operands_and_means_of_narrow_numbers():
    x = torch.randn(6, 10, 4).bfloat16()
    weight = torch.randn(20).bfloat16()
    sliced = weight.xpu()[::2]
    assert not sliced.is_contiguous()
    got, mean, rstd = aten.native_layer_norm(x.xpu().transpose(1, 2), [10], sliced, None, 1e-5)
    assert got.is_contiguous()
    assert (mean.dtype, mean.shape) == (rstd.dtype, rstd.shape) == (torch.float32, (6, 4, 1))
    near(got, F.layer_norm(x.transpose(1, 2).double(), [10], weight[::2].double()), torch.bfloat16)


@pytest.mark.parametrize("rows", [5, 200])
def test_gradients_of_transposed_factors(rows):
    x, grad = torch.randn(rows, 4, 6), torch.randn(rows, 4, 6)
    weight, bias = torch.randn(6, 4).t(), torch.randn(6, 4).t()
    asked = [t.xpu().requires_grad_() for t in (x, weight, bias)]
    assert not asked[1].is_contiguous()
    got = torch.autograd.grad(F.layer_norm(asked[0], (4, 6), *asked[1:]), asked, grad.xpu())
    meant = [t.double().requires_grad_() for t in (x, weight, bias)]
    want = torch.autograd.grad(F.layer_norm(meant[0], (4, 6), *meant[1:]), meant, grad.double())
    for g, w in zip(got, want, strict=True):
        near(g, w, torch.float32)


def test_what_does_not_fit_is_torchs_error():
    given = torch.randn(3, 4)
    x = given.xpu()
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm(x, (5,))
    with pytest.raises(RuntimeError, match="weight"):
        F.layer_norm(x, (4,), torch.ones(3, device="xpu"))
    near(F.layer_norm(x, (4,)), F.layer_norm(given.double(), (4,)), torch.float32)  # the device stays usable
