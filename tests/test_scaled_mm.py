"""Products of scaled 8-bit floating-point numbers, against float64 products of what they stand for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
SHAPES = ((16, 64, 32), (1, 128, 48), (33, 80, 16), (7, 17, 5), (6, 100, 24))


def operands(m: int, k: int, n: int, by_rows: bool, kinds: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3)):
    """A product's operands on the CPU, its weight given by rows (n, k), and the result in float64."""
    a, b = torch.randn(m, k).to(kinds[0]), torch.randn(n, k).to(kinds[1]).t()
    scale_a = torch.rand(m, 1) + 0.1 if by_rows else torch.rand(()) + 0.1
    scale_b = torch.rand(1, n) + 0.1 if by_rows else torch.rand(()) + 0.1
    return (a, b, scale_a, scale_b), (a.double() * scale_a.double()) @ (b.double() * scale_b.double())


def check(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert (got.dtype, got.shape, got.device.type) == (dtype, want.shape, "xpu")
    if not simulate.active():
        assert float((got.cpu().double() - want).norm() / want.norm()) < BOUNDS[dtype]


def on_device(args):
    return [t.t().contiguous().xpu().t() if t.dim() == 2 and t.stride(0) == 1 != t.shape[0] else t.xpu() for t in args]


@pytest.mark.rotates(5)
@pytest.mark.parametrize("by_rows", [False, True], ids=["tensorwise", "rowwise"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product(shape, dtype, by_rows):
    for kinds in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
        args, want = operands(*shape, by_rows, kinds)
        bias = torch.randn(shape[2]).bfloat16()
        anyxpu.ops.reset_counters()
        got = torch._scaled_mm(*on_device(args), out_dtype=dtype)
        assert not [name for name, ways in anyxpu.ops.counters().items() if "host" in ways]
        check(got, want, dtype)
        got = torch._scaled_mm(*on_device(args), bias=bias.xpu(), out_dtype=dtype, use_fast_accum=True)
        check(got, want + bias.double(), dtype)


def test_a_result_that_is_given():
    args, want = operands(9, 32, 16, True)
    out = torch.empty(16, 9, dtype=torch.bfloat16, device="xpu").t()
    assert torch._scaled_mm(*on_device(args), out_dtype=torch.bfloat16, out=out) is out
    check(out, want, torch.bfloat16)
    rows = [t.contiguous().xpu() for t in args]  # both by rows
    check(torch._scaled_mm(*rows, out_dtype=torch.float32), want, torch.float32)


@pytest.mark.parametrize("by_rows", [False, True], ids=["tensorwise", "rowwise"])
def test_the_functional_form(by_rows):
    args, want = operands(24, 64, 16, by_rows)
    a, b, scale_a, scale_b = on_device(args)
    recipe = F.ScalingType.RowWise if by_rows else F.ScalingType.TensorWise
    got = F.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, output_dtype=torch.bfloat16)
    check(got, want, torch.bfloat16)


def test_what_is_empty():
    for m, k, n in ((0, 16, 16), (16, 16, 0), (16, 0, 16)):
        a, b = torch.empty(m, k).to(E4M3).xpu(), torch.empty(k, n).to(E4M3).xpu()
        one = torch.ones((), device="xpu")
        got = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        assert tuple(got.shape) == (m, n)
        assert simulate.active() or not got.cpu().any()


@pytest.mark.not_simulated("NaN is looked for")
def test_what_is_not_a_number_stays_so():
    args, _ = operands(4, 32, 16, False)
    args[0][2, 5] = float("nan")
    got = torch._scaled_mm(*on_device(args), out_dtype=torch.bfloat16).cpu()
    assert got[2].isnan().all()
    assert not got[[0, 1, 3]].isnan().any()


def test_compiled_it_equals_eager_and_asks_no_host():
    args, _ = operands(16, 64, 32, True)
    xpu = on_device(args)

    def layer(*operands: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch._scaled_mm(*operands, out_dtype=torch.bfloat16) + 1)

    want, compiled = layer(*xpu), torch.compile(layer)
    compiled(*xpu)
    anyxpu.ops.reset_counters()
    got = compiled(*xpu)
    assert not [name for name, ways in anyxpu.ops.counters().items() if "host" in ways]
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=0.01, atol=0.01)


def test_bad_operands_are_named():
    a, b, scale_a, scale_b = on_device(operands(4, 32, 16, False)[0])
    for error, args, options in (
        (r"not \(4, 32\) and \(16, 32\)", (a, b.t(), scale_a, scale_b), {}),
        (r"bias of shape \(16,\), not torch.float32 \(4,\)", (a, b, scale_a, scale_b), {"bias": scale_a.new_ones(4)}),
        ("scale_b on xpu:0, not on cpu", (a, b, scale_a, scale_b.cpu()), {}),
    ):
        with pytest.raises(RuntimeError, match=error):
            torch._scaled_mm(*args, out_dtype=torch.bfloat16, **options)
    rows, whole = scale_a.new_ones(4, 1), F.ScalingType.TensorWise
    with pytest.raises(RuntimeError, match=r"scales of \(\) where recipes are TensorWise, not torch.float32 \(4, 1\)"):
        F.scaled_mm(a, b, rows, whole, scale_b, whole, output_dtype=torch.bfloat16)
