"""Products of groups of scaled 8-bit floating-point numbers, against float64 products of what they stand for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

E4M3 = torch.float8_e4m3fn
M, K, N, G = 32, 48, 64, 3
ENDS = (16, 16, 48)  # one group is empty, and some of what follows is in none


def columns_first(*shape: int) -> Tensor:
    """float8 whose columns are dense, as the weights of layers are."""
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).to(E4M3).transpose(-1, -2)


def cases():
    """Name -> operands, their scales, offs, and the result in float64."""
    ends, edges = torch.tensor(ENDS, dtype=torch.int32), list(zip((0, *ENDS), ENDS, strict=False))

    def wide(t: Tensor, scale: Tensor, along: int) -> Tensor:
        return t.double() * scale.double().unsqueeze(along)

    a, b, sa, sb = torch.randn(56, K).to(E4M3), columns_first(G, K, N), torch.rand(56), torch.rand(G, N)
    want = torch.zeros(56, N, dtype=torch.float64)
    for g, (start, end) in enumerate(edges):
        want[start:end] = wide(a[start:end], sa[start:end], 1) @ wide(b[g], sb[g], 0)
    yield "rows", (a, b, sa, sb, ends), want
    a, b, sa, sb = torch.randn(G, M, K).to(E4M3), columns_first(G, K, N), torch.rand(G, M), torch.rand(G, N)
    yield "batches", (a, b, sa, sb, None), wide(a, sa, 2) @ wide(b, sb, 1)
    a, b, sa, sb = torch.randn(G, M, K).to(E4M3), columns_first(K, 56), torch.rand(G, M), torch.rand(56)
    want = torch.zeros(M, 56, dtype=torch.float64)
    for g, (start, end) in enumerate(edges):
        want[:, start:end] = wide(a[g], sa[g], 1) @ wide(b[:, start:end], sb[start:end], 0)
    yield "columns", (a, b, sa, sb, ends), want
    a, b, sa, sb = torch.randn(M, 56).to(E4M3), columns_first(56, N), torch.rand(G * M), torch.rand(G * N)
    want = torch.stack(
        [wide(a[:, s:e], sa.view(G, M)[g], 1) @ wide(b[s:e], sb.view(G, N)[g], 0) for g, (s, e) in enumerate(edges)]
    )
    yield "sums", (a, b, sa, sb, ends), want


def on_device(t: Tensor | None) -> Tensor | None:
    if t is None or t.is_contiguous():
        return None if t is None else t.xpu()
    return t.transpose(-1, -2).xpu().transpose(-1, -2)


def check(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert (got.dtype, got.shape, got.device.type) == (dtype, want.shape, "xpu")
    if not simulate.active():
        bound = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 2e-6}[dtype]
        assert float((got.cpu().double() - want).norm() / want.norm()) < bound


@pytest.mark.parametrize("case", ["rows", "batches", "columns", "sums"])
def test_groups(case):
    _, operands, want = next(found for found in cases() if found[0] == case)
    a, b, scale_a, scale_b, offs = (on_device(t) for t in operands)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        anyxpu.ops.reset_counters()
        got = torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype=dtype)
        assert {"aten::_scaled_grouped_mm": {"compiled": 1}}.items() <= anyxpu.ops.counters().items()
        check(got, want, dtype)
    rows = F.ScalingType.RowWise
    got = F.scaled_grouped_mm(a, b, scale_a, rows, scale_b, rows, offs=offs)
    check(got, want, torch.bfloat16)


def test_bad_operands_are_named():
    a, b = torch.randn(G, M, K).to(E4M3).xpu(), on_device(columns_first(G, K, N))
    sa, sb = torch.rand(G, M).xpu(), torch.rand(G, N).xpu()
    product = torch._scaled_grouped_mm
    for error, operands in (
        ("wants offs with matrices", (a[0], b, sa[0], sb)),
        ("cannot multiply", (a[:, :, :16], b, sa, sb)),
        ("3 groups, and a batch of", (a, b[:2], sa, sb[:2])),
        ("96 float32 numbers as scale_a", (a, b, sa[0], sb)),
        ("192 float32 numbers as scale_b", (a, b, sa, sb.double())),
        ("not torch.bfloat16 and torch.float8_e4m3fn", (a.bfloat16(), b, sa, sb)),
    ):
        with pytest.raises(RuntimeError, match=error):
            product(*operands)
    if not simulate.active():
        falling = torch.tensor([32, 16, 32], dtype=torch.int32, device="xpu")
        with pytest.raises(RuntimeError, match=r"rise from 0 to 32, not \[32, 16, 32\]"):
            product(a[0], b, sa[0], sb, falling)
    blocks = F.ScalingType.BlockWise1x32
    with pytest.raises(RuntimeError, match="RowWise"):
        F.scaled_grouped_mm(a, b, sa, blocks, sb, blocks)
