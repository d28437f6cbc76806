"""Products with weights of 4 and 8 bits, against float64 products with what the weights stand for."""

from __future__ import annotations

import pytest
import torch

import anyxpu.ops
from anyxpu import processor, simulate
from anyxpu.onednn.weight_only import Weight
from anyxpu.ops import weight_only
from anyxpu.ops.weight_only import dequantized

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

aten = torch.ops.aten
# Rounding to the result's dtype, of which float32 has the sums' own.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
# n, k and the group: whole blocks; rows that are left over; groups within a register, and one that ends in it; k of one
# odd block; least sizes.
WEIGHTS = ((64, 256, 32), (17, 128, 128), (40, 512, 64), (9, 160, 32), (33, 384, 128), (8, 96, 96), (5, 8, 8))
# None; by the kernel of few rows; by oneDNN on every device.
ROWS = (0, 1, 2, 3, 33)
E4M3 = torch.float8_e4m3fn


def four_bits(n: int, k: int, group: int, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The weight as its operator takes it, on the CPU, and what it stands for."""
    numbers = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    scales = (torch.rand(k // group, n) / 100).to(dtype)
    points = torch.randint(-8, 16, (k // group, n), dtype=torch.int8)
    wide = numbers.view(n, k // group, group).double() - points.t()[:, :, None]
    pairs = (numbers[:, 1::2] << 4 | numbers[:, ::2]).contiguous()
    return (pairs, scales, points), (wide * scales.double().t()[:, :, None]).view(n, k)


def check(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert (got.dtype, got.shape, got.device.type) == (dtype, want.shape, "xpu")
    assert got.is_contiguous()
    if got.numel() and not simulate.active():  # kernels do not execute there
        assert float((got.cpu().double() - want).norm() / want.norm()) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.rotates(8)
def test_four_bits(rows, dtype):
    for n, k, group in WEIGHTS:
        for factors in {dtype, torch.float32} if n == 17 else {dtype}:
            (pairs, scales, points), meant = four_bits(n, k, group, factors)
            packed = aten._convert_weight_to_int4pack(pairs.xpu(), 8)
            assert (packed.dtype, tuple(packed.shape)) == (torch.int32, (n, k // 8))
            x = torch.randn(rows, k, dtype=dtype)
            operands = (x.xpu(), packed, group, scales.xpu(), points.xpu())
            check(aten._weight_int4pack_mm_with_scales_and_zeros(*operands), x.double() @ meant.t(), dtype)


by_tiles = pytest.mark.skipif(not processor.looks_up(), reason="this CPU has no tile registers of bfloat16")


def check_tiles(x: torch.Tensor, weight: Weight, meant: torch.Tensor) -> None:
    """Nearer to f64 than bfloat16 tells apart, even where the activations' sum is large beside what is to come out."""
    got = weight_only.by_tiles(x.xpu(), weight)
    want = x.double() @ meant.t()
    assert (got.shape, got.dtype) == (want.shape, torch.bfloat16) and got.is_contiguous()
    torch.testing.assert_close(got.cpu().double(), want, rtol=2**-8, atol=float(want.abs().max()) * 2**-10)


# Rows of one pass, two and three; blocks of 32 that are whole, that overlap, and one; groups of one chunk and of more.
@pytest.mark.not_simulated("tile registers are a CPU's")
@by_tiles
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 33])
@pytest.mark.parametrize(("n", "group"), [(64, 128), (77, 256), (32, 768)])
@pytest.mark.parametrize("factors", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.rotates(4)
def test_four_bits_by_tiles(rows, n, group, factors):
    k = 768
    for points in (True, False):
        (pairs, scales, zeros), meant = four_bits(n, k, group, factors)
        if not points:
            numbers = pairs[:, :, None] >> torch.tensor([0, 4], dtype=torch.uint8) & 15
            meant = (numbers.view(n, k // group, group).double() * scales.double().t()[:, :, None]).view(n, k)
        packed = aten._convert_weight_to_int4pack(pairs.xpu(), 8)
        weight = Weight(packed, scales.xpu(), zeros.xpu() if points else None, group)
        check_tiles((torch.randn(rows, k) + 1).bfloat16(), weight, meant)


@pytest.mark.not_simulated("tile registers are a CPU's")
@by_tiles
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 33])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (77, 384), (32, 1280)])
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=str)
@pytest.mark.rotates(4)
def test_eight_bits_by_tiles(rows, n, k, dtype):
    for factors in (torch.rand(1, n).bfloat16(), torch.rand(1, n), torch.rand(1, 1)):
        if factors.numel() == 1 and dtype == torch.int8:
            continue  # it has a scale for every row
        numbers = torch.randint(-128, 128, (n, k)).to(dtype)  # as float8 up to 128, many of them rounded
        meant = numbers.double() * factors.double().t()
        weight = Weight(numbers.xpu(), factors.xpu(), None, k)
        check_tiles((torch.randn(rows, k) + 1).bfloat16(), weight, meant)


@pytest.mark.not_simulated("tile registers are a CPU's")
@by_tiles
def test_operators_take_tiles_where_those_are_faster():
    (pairs, scales, points), _ = four_bits(64, 256, 128, torch.bfloat16)
    packed = aten._convert_weight_to_int4pack(pairs.xpu(), 8)
    four = Weight(packed, scales.xpu(), points.xpu(), 128)
    eight = Weight(torch.zeros(64, 256, dtype=torch.int8).xpu(), scales[:1].xpu(), None, 256)
    x = torch.randn(8, 256).bfloat16().xpu()
    assert weight_only.goes_by_tiles(x, four) and weight_only.goes_by_tiles(x, eight)
    assert not weight_only.goes_by_tiles(x.half(), four) and not weight_only.goes_by_tiles(x[:1], four)
    for weight in (Weight(packed, four.scales.half(), four.zero_points, 128), Weight(packed, scales.xpu(), None, 64)):
        assert not weight_only.goes_by_tiles(x, weight)
    assert not weight_only.goes_by_tiles(x, Weight(packed[:31], four.scales, four.zero_points, 128))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_four_bits_with_scales_and_zeros_in_pairs(rows, dtype):
    n, k, group = 24, 128, 32
    (pairs, scales, _), _ = four_bits(n, k, group, dtype)
    zeros = torch.randn_like(scales)
    numbers = torch.stack([pairs & 15, pairs >> 4], -1).view(n, k // group, group).double()
    meant = (numbers - 8) * scales.t().double()[..., None] + zeros.t().double()[..., None]
    x = torch.randn(rows, k, dtype=dtype)
    both = torch.stack([scales, zeros], -1).xpu()
    for packed in (aten._convert_weight_to_int4pack(pairs.xpu(), 8), pairs.xpu()):
        check(torch._weight_int4pack_mm(x.xpu(), packed, group, both), x.double() @ meant.view(n, k).t(), dtype)
    with pytest.raises(RuntimeError, match="group sizes of 16"):
        torch._weight_int4pack_mm(x.xpu(), packed, 24, both)
    with pytest.raises(RuntimeError, match="scales and zeros of shape"):
        torch._weight_int4pack_mm(x.xpu(), packed, 64, both)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_eight_bits(rows, dtype):
    for n, k in ((64, 256), (17, 100), (3, 7), (33, 68)):
        numbers, scales = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n).to(dtype)
        x = torch.randn(rows, k, dtype=dtype)
        got = aten._weight_int8pack_mm(x.xpu(), numbers.xpu(), scales.xpu())
        check(got, x.double() @ (numbers.double() * scales.double()[:, None]).t(), dtype)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", (*ROWS, 7))
@pytest.mark.rotates(6)
def test_float8(rows, dtype):
    for n, k in ((64, 256), (17, 100), (3, 7), (33, 68)):
        numbers, x = (torch.randn(n, k) * torch.randn(n, 1).exp()).to(E4M3), torch.randn(rows, k, dtype=dtype)
        for scales in (torch.rand(n), torch.rand(1)):
            meant = numbers.double() * scales.double()[:, None]
            if rows > 8 or k % 4:  # the weight is rounded to the result's dtype, and multiplied then
                meant = (numbers.float() * scales[:, None]).to(dtype).double()
            got = torch.ops.anyxpu._weight_float8_mm(x.xpu(), numbers.xpu(), scales.xpu())
            check(got, x.double() @ meant.t(), dtype)


@pytest.mark.not_simulated("kernels do not execute there")
@pytest.mark.parametrize("rows", [1, 4, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_float8_is_exact(rows, dtype):
    """The subnormal ones too; NaN is one, and in its own row alone."""
    every = torch.arange(256, dtype=torch.uint8)
    weight, x = torch.zeros(256, 128, dtype=torch.uint8), torch.zeros(rows, 128, dtype=dtype)
    weight[:, 37], x[:, 37] = every, 1
    got = torch.ops.anyxpu._weight_float8_mm(x.xpu(), weight.view(E4M3).xpu(), torch.ones(256).xpu())
    want = every.view(E4M3).to(dtype).expand(rows, 256)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_operands_of_any_strides():
    (pairs, scales, points), meant = four_bits(24, 128, 32, torch.bfloat16)
    packed = aten._convert_weight_to_int4pack(pairs.t().contiguous().xpu().t(), 2)
    assert simulate.active() or torch.equal(packed.cpu(), pairs.view(torch.int32))
    for rows in (2, 20):
        wide = torch.randn(128, rows, dtype=torch.bfloat16).xpu()
        turned = [t.t().contiguous().xpu().t() for t in (scales, points)]
        spread = torch.stack((packed, packed), 2)[:, :, 0]
        got = aten._weight_int4pack_mm_with_scales_and_zeros(wide.t(), spread, 32, *turned)
        check(got, wide.cpu().double().t() @ meant.t(), torch.bfloat16)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_what_a_weight_stands_for(dtype):
    """The way of what oneDNN does not have."""
    numbers, scales = torch.randn(9, 64).to(E4M3), torch.rand(1, 9)
    weight = Weight(numbers.xpu(), scales.xpu(), None, 64)
    check(dequantized(weight, dtype), numbers.double() * scales.double().t(), dtype)
    for n, k, group in WEIGHTS:
        (pairs, scales, points), meant = four_bits(n, k, group, dtype)
        weight = Weight(pairs.xpu().view(torch.int32), scales.xpu(), points.xpu(), group)
        check(dequantized(weight, dtype), meant, dtype)
    for n, k in ((9, 64), (5, 7)):
        numbers, scales = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(1, n).to(dtype)
        weight = Weight(numbers.xpu(), scales.xpu(), None, k)
        check(dequantized(weight, dtype), numbers.double() * scales.double().t(), dtype)


@pytest.mark.parametrize("rows", [1, 20])
def test_compiled_it_equals_eager_and_asks_no_host(rows):
    (pairs, scales, points), _ = four_bits(32, 256, 64, torch.bfloat16)
    packed = aten._convert_weight_to_int4pack(pairs.xpu(), 8)
    factors = scales.xpu(), points.xpu()

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(aten._weight_int4pack_mm_with_scales_and_zeros(x, packed, 64, *factors) + 1)

    x = torch.randn(rows, 256, dtype=torch.bfloat16).xpu()
    want, compiled = layer(x), torch.compile(layer)
    compiled(x)
    anyxpu.ops.reset_counters()
    got = compiled(x)
    assert not [name for name, ways in anyxpu.ops.counters().items() if "host" in ways]
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=0.01, atol=0.01)


def test_bad_operands_are_named():
    (pairs, scales, points), _ = four_bits(16, 64, 32, torch.float32)
    w, s, z = aten._convert_weight_to_int4pack(pairs.xpu(), 8), scales.xpu(), points.xpu()
    product, x = aten._weight_int4pack_mm_with_scales_and_zeros, torch.randn(2, 64).xpu()
    for error, operands in (
        ("float32, bfloat16 or float16, not torch.float64", (x.double(), w, 32, s, z)),
        ("int32 weights", (x, pairs.xpu(), 32, s, z)),
        ("k of 56", (x[:, :56], w, 32, s, z)),
        (r"divides k \(64\), not 48", (x, w, 48, s, z)),
        (r"divides k \(64\), not 0", (x, w, 0, s, z)),
        (r"scales of shape \(2, 16\), not \(16, 2\)", (x, w, 32, s.t(), z)),
        ("int8 zero points", (x, w, 32, s, z.int())),
        ("all operands on xpu:0, not on cpu", (x, w, 32, s, points)),
    ):
        with pytest.raises(RuntimeError, match=error):
            product(*operands)
    with pytest.raises(RuntimeError, match="that 8 divides, not 12: pad the weight"):
        aten._convert_weight_to_int4pack(torch.zeros(4, 6, dtype=torch.uint8, device="xpu"), 8)
    with pytest.raises(RuntimeError, match="innerKTiles of 2, 4 or 8, not 3"):
        aten._convert_weight_to_int4pack(pairs.xpu(), 3)
    with pytest.raises(RuntimeError, match="scales of shape"):
        aten._weight_int8pack_mm(x, torch.zeros(5, 64, dtype=torch.int8, device="xpu"), torch.ones(4, device="xpu"))
    eight = torch.zeros(5, 64, device="xpu").to(E4M3)
    for error, operands in (
        ("float8_e4m3fn weights", (x, eight.to(torch.float8_e5m2), torch.ones(5, device="xpu"))),
        ("k of 32", (x[:, :32], eight, torch.ones(5, device="xpu"))),
        (
            r"scales of shape \(5,\) or of one element, not torch.float32 \(4,\)",
            (x, eight, torch.ones(4, device="xpu")),
        ),
        ("all operands on xpu:0, not on cpu", (x, eight, torch.ones(5))),
    ):
        with pytest.raises(RuntimeError, match=error):
            torch.ops.anyxpu._weight_float8_mm(*operands)
