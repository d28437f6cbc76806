"""Products of groups of scaled 8-bit floating-point numbers, against float64 products of what they stand for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib
from tests.scaled_support import E4M3, E8M0, FP4, numbers, scales, spread, tiles

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

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


BLOCKS = {
    "mxfp8": (E4M3, E8M0, 32, [F.ScalingType.BlockWise1x32]),
    "mxfp4": (FP4, E8M0, 32, [F.ScalingType.BlockWise1x32]),
    "nvfp4": (FP4, E4M3, 16, [F.ScalingType.BlockWise1x16]),
    "nvfp4, two": (FP4, E4M3, 16, [F.ScalingType.BlockWise1x16, F.ScalingType.TensorWise]),
}


def side(rows: int, k: int, kind: str, ends: list[int], form: str):
    """An operand with its rows along k: numbers, scales by rows, the same in tiles, and float64, one a group.

    ``form``: batch, rows or k: what its groups are of.
    """
    dtype, of, block, _ = BLOCKS[kind]
    lengths = [stop - start for start, stop in zip([0, *ends], ends, strict=False)]
    beyond = (rows if form == "rows" else k) - ends[-1]  # in no group
    made, exact, lying, tiled = [], [], [], []
    for length in [*lengths, beyond] if form != "batch" else lengths:
        shape = {"batch": (rows, k), "rows": (length, k), "k": (rows, length)}[form]
        t, wide = numbers(*shape, dtype)
        scale, factor = scales(shape[0], -(-shape[1] // block), of)
        made.append(t.view(torch.uint8))
        exact.append(wide * spread(factor, *shape, (1, block)))
        lying.append(scale.view(torch.uint8))
        tiled.append(tiles(scale).view(torch.uint8))
    if form == "batch":
        whole, plain, swizzled = torch.stack(made), torch.stack(lying), torch.stack(tiled)
    else:
        along = 0 if form == "rows" else 1
        whole, plain, swizzled = torch.cat(made, along), torch.cat(lying, along), torch.cat(tiled)
        swizzled = swizzled.reshape(128, -1)
    return whole.view(dtype), plain.view(of), swizzled.view(of), exact


@pytest.mark.parametrize("forms", [("rows", "batch"), ("batch", "batch"), ("batch", "rows"), ("k", "k")], ids=str)
@pytest.mark.parametrize("kind", BLOCKS)
def test_groups_of_blocks(kind, forms):
    ends, k = ([32, 32, 160], 192) if forms == ("k", "k") else ([48, 48, 200], 96)
    total = 224  # of what is in one piece
    sizes = [total if form == "rows" else size for form, size in zip(forms, (24, 40), strict=True)]
    (a, plain_a, tiled_a, exact_a), (b, plain_b, tiled_b, exact_b) = (
        side(size, k, kind, ends, form) for size, form in zip(sizes, forms, strict=True)
    )
    recipe = BLOCKS[kind][3]
    second = [torch.rand(len(ends)) + 0.1 for _ in range(2)] if len(recipe) == 2 else None
    products = [x @ y.t() for x, y in zip(exact_a, exact_b, strict=False)][: len(ends)]
    if second is not None:
        products = [p * x.double() * y.double() for p, x, y in zip(products, *second, strict=True)]
    if forms[0] == forms[1]:
        want = torch.stack(products)
    else:
        want, place = torch.zeros(sizes[0], sizes[1], dtype=torch.float64), 0
        for p, stop in zip(products, ends, strict=True):
            (want[place:stop] if forms[0] == "rows" else want[:, place:stop]).copy_(p)
            place = stop
    offs = None if forms == ("batch", "batch") else torch.tensor(ends, dtype=torch.int32).xpu()
    a, b = a.xpu(), b.xpu().transpose(-2, -1)
    for swizzle, pair in (
        (F.SwizzleType.NO_SWIZZLE, (plain_a, plain_b)),
        (F.SwizzleType.SWIZZLE_32_4_4, (tiled_a, tiled_b)),
    ):
        given = [[scale.xpu()] for scale in pair]
        for scale, more in zip(given, second or (), strict=False):
            scale.append(more.xpu())
        for dtype in (torch.bfloat16, torch.float32):
            got = F.scaled_grouped_mm(
                a, b, given[0], recipe, given[1], recipe, swizzle, swizzle, offs=offs, output_dtype=dtype
            )
            check(got, want, dtype)
        if kind == "mxfp8" and swizzle == F.SwizzleType.SWIZZLE_32_4_4:
            check(torch._scaled_grouped_mm(a, b, given[0][0], given[1][0], offs), want, torch.bfloat16)


@pytest.mark.parametrize("case", ["rows", "batches", "columns", "sums"])
def test_compiled_groups(case):
    _, operands, _ = next(found for found in cases() if found[0] == case)
    a, b, scale_a, scale_b, offs = (on_device(t) for t in operands)
    rows = F.ScalingType.RowWise

    def layer(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        return torch.relu(F.scaled_grouped_mm(a, b, scale_a, rows, scale_b, rows, offs=offs) + 1)

    want = layer(a, b, scale_a, scale_b)
    got = torch.compile(layer)(a, b, scale_a, scale_b)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=0.01, atol=0.01)


def test_bad_operands_are_named():
    a, b = torch.randn(G, M, K).to(E4M3).xpu(), on_device(columns_first(G, K, N))
    sa, sb = torch.rand(G, M).xpu(), torch.rand(G, N).xpu()
    product = torch._scaled_grouped_mm
    for error, operands in (
        ("wants offs with matrices", (a[0], b, sa[0], sb)),
        ("cannot multiply", (a[:, :, :16], b, sa, sb)),
        ("3 groups, and a batch of", (a, b[:2], sa, sb[:2])),
        ("96 float32 numbers as scale_a", (a, b, sa[0], sb)),
        ("192 float32 numbers as scale_b", (a, b, sa, sb[0])),
        ("no scale_b of torch.float64", (a, b, sa, sb.double())),
        ("in blocks, not torch.bfloat16", (a.bfloat16(), b, sa, sb)),
    ):
        with pytest.raises(RuntimeError, match=error):
            product(*operands)
    if not simulate.active():
        falling = torch.tensor([32, 16, 32], dtype=torch.int32, device="xpu")
        with pytest.raises(RuntimeError, match=r"rise from 0 to 32, not \[32, 16, 32\]"):
            product(a[0], b, sa[0], sb, falling)
    blocks = F.ScalingType.BlockWise1x32
    with pytest.raises(RuntimeError, match=r"no scale_a of torch\.float32"):
        F.scaled_grouped_mm(a, b, sa, blocks, sb, blocks)
    with pytest.raises(RuntimeError, match=r"RowWise .* not by BlockWise1x128 and BlockWise1x128"):
        F.scaled_grouped_mm(a, b, sa, F.ScalingType.BlockWise1x128, sb, F.ScalingType.BlockWise1x128)
