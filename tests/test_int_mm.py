"""Products of integers, which are exact."""

from __future__ import annotations

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

SHAPES = ((1, 4096, 64), (17, 16, 8), (33, 100, 7), (64, 256, 128), (3, 1, 5), (2, 7, 1), (0, 4, 4), (4, 0, 4))


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype)


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.dtype, got.shape) == (torch.int32, want.shape)
    assert simulate.active() or torch.equal(got.cpu().long(), want)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_sum_is_exact(shape, dtype):
    m, k, n = shape
    a, b = numbers(dtype, m, k), numbers(torch.int8, k, n)
    want = a.long() @ b.long()
    turned = b.t().contiguous().xpu().t()
    for _ in range(3):  # from the second on by a kept copy of the weight
        check(torch._int_mm(a.xpu(), turned), want)
    check(torch._int_mm(a.xpu(), b.xpu()), want)
    check(torch._int_mm(a.t().contiguous().xpu().t(), b.xpu()), want)
    out = torch.full((m, n), 9, dtype=torch.int32, device="xpu")
    assert torch._int_mm(a.xpu(), turned, out=out) is out
    check(out, want)
    columns = torch.full((n, m), 9, dtype=torch.int32, device="xpu").t()
    torch._int_mm(a.xpu(), turned, out=columns)
    check(columns, want)


def test_the_largest_sums():
    """Beyond 2^24, which float32 does not count to."""
    a, b = torch.full((2, 65536), -128, dtype=torch.int8), torch.full((65536, 3), -128, dtype=torch.int8)
    a[:, 0] = 127
    check(torch._int_mm(a.xpu(), b.xpu()), a.long() @ b.long())


def test_a_weight_that_changes_is_seen():
    a, b = numbers(torch.int8, 5, 64), numbers(torch.int8, 32, 64)
    x, w = a.xpu(), b.xpu()
    for _ in range(3):
        torch._int_mm(x, w.t())
    w.copy_(b.flip(0))
    check(torch._int_mm(x, w.t()), a.long() @ b.flip(0).t().long())


def test_it_asks_no_host():
    x, w = numbers(torch.int8, 5, 64).xpu(), numbers(torch.int8, 64, 8).xpu()
    anyxpu.ops.reset_counters()
    torch._int_mm(x, w)
    assert anyxpu.ops.counters()["aten::_int_mm"] == {"library": 1}


def test_bad_operands_are_named():
    x, w = numbers(torch.int8, 5, 64).xpu(), numbers(torch.int8, 64, 8).xpu()
    for error, operands in (
        ("not torch.float32 and torch.int8", (x.float(), w)),
        ("not torch.int8 and torch.uint8", (x, w.view(torch.uint8))),
        (r"not \(5, 64\) and \(8, 64\)", (x, w.t())),
        (r"not \(64,\) and", (x[0], w)),
        ("on xpu:0, not cpu", (x, w.cpu())),
    ):
        with pytest.raises(RuntimeError, match=error):
            torch._int_mm(*operands)
    with pytest.raises(RuntimeError, match=r"out= of torch.int32 \(5, 8\), not torch.int32 \(8, 5\)"):
        torch._int_mm(x, w, out=torch.empty(8, 5, dtype=torch.int32, device="xpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(16, 64, 32), (1, 128, 48), (7, 17, 5), (0, 16, 16), (16, 0, 16)], ids=str)
def test_int8_mixed_precisions_product(shape, dtype):
    pytest.importorskip("torchao.prototype.quantized_training", reason="torchao is not installed")
    m, k, n = shape
    a, b = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((m, k), (n, k)))
    rows, columns = (torch.rand(size) + 0.5 for size in (m, n))
    for by_column in (columns, columns[:1]):
        scales = rows.to(dtype), by_column.to(dtype)
        want = (a.double() @ b.double().t()) * scales[0].double()[:, None] * scales[1].double()
        anyxpu.ops.reset_counters()
        got = torch.ops.torchao.scaled_int8_mm(a.xpu(), b.xpu().t(), *(scale.xpu() for scale in scales))
        assert "torchao::scaled_int8_mm" in anyxpu.ops.counters()
        assert (got.dtype, got.shape, got.device.type) == (dtype, want.shape, "xpu")
        if not simulate.active() and dtype != torch.float16:  # whose range such sums leave
            bound = 4e-3 if dtype == torch.bfloat16 else 1e-6
            assert float((got.cpu().double() - want).norm()) <= float(want.norm()) * bound
    with pytest.raises(RuntimeError, match="scales, not"):
        torch.ops.torchao.scaled_int8_mm(a.xpu(), b.xpu().t(), torch.rand(m + 1).xpu(), columns.xpu())
