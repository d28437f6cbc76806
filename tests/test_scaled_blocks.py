"""Products of operands with scales of blocks (mx, nvfp4, 1x128 and 128x128), against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib
from tests.scaled_support import E4M3, E5M2, E8M0, FP4, numbers, scales, spread, tiles

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
SHAPES = ((16, 64, 32), (1, 128, 48), (130, 416, 144), (7, 160, 5), (256, 512, 128))
SQUARE = (128, 2048, 128)  # mat2's scales of 16 are of one shape both ways
KINDS = {
    "mxfp8": (E4M3, E4M3, E8M0, 32, ScalingType.BlockWise1x32),
    "mxfp8 e5m2": (E4M3, E5M2, E8M0, 32, ScalingType.BlockWise1x32),
    "mxfp4": (FP4, FP4, E8M0, 32, ScalingType.BlockWise1x32),
    "nvfp4": (FP4, FP4, E4M3, 16, ScalingType.BlockWise1x16),
}
NO, YES = SwizzleType.NO_SWIZZLE, SwizzleType.SWIZZLE_32_4_4


def check(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert (got.dtype, got.shape, got.device.type) == (dtype, want.shape, "xpu")
    if not simulate.active():
        assert float((got.cpu().double() - want).norm() / want.norm()) < BOUNDS[dtype]


def on_device(t: torch.Tensor) -> torch.Tensor:
    return t.xpu() if t.is_contiguous() else t.t().xpu().t()


def narrow(kind: str, m: int, k: int, n: int):
    """Operands (m, k) and (n, k), their scales by rows, the recipe, and the product in float64."""
    first, second, of, block, recipe = KINDS[kind]
    (a, exact_a), (b, exact_b) = numbers(m, k, first), numbers(n, k, second)
    (scale_a, by_a), (scale_b, by_b) = scales(m, -(-k // block), of), scales(n, -(-k // block), of)
    want = (exact_a * spread(by_a, m, k, (1, block))) @ (exact_b * spread(by_b, n, k, (1, block))).t()
    return a, b, scale_a, scale_b, recipe, want


def no_host() -> bool:
    return not [name for name, ways in anyxpu.ops.counters().items() if "host" in ways]


@pytest.mark.parametrize("shape", [*SHAPES, SQUARE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_eight_bits(kind, shape):
    a, b, scale_a, scale_b, recipe, want = narrow(kind, *shape)
    a, b = a.xpu(), b.xpu().t()
    anyxpu.ops.reset_counters()
    for dtype in BOUNDS:
        bias = torch.randn(shape[2]).to(dtype)
        biased = want + bias.double()
        swizzled = tiles(scale_a).xpu(), tiles(scale_b).xpu()
        got = torch._scaled_mm(a, b, *swizzled, bias=bias.xpu(), out_dtype=dtype)
        check(got, biased, dtype)
        got = F.scaled_mm(a, b, swizzled[0], recipe, swizzled[1], recipe, YES, YES, output_dtype=dtype)
        check(got, want, dtype)
        plain = scale_a.xpu(), scale_b.xpu()
        got = F.scaled_mm(a, b, plain[0], recipe, plain[1], recipe, NO, NO, bias=bias.xpu(), output_dtype=dtype)
        check(got, biased, dtype)
        if shape != SQUARE or KINDS[kind][3] != 16:
            check(torch._scaled_mm(a, b, plain[0], plain[1].t(), out_dtype=dtype), want, dtype)
    assert no_host()


def test_nvfp4_with_scales_of_tensors_too():
    a, b, scale_a, scale_b, recipe, want = narrow("nvfp4", 24, 96, 40)
    whole, recipes = (torch.rand(()) + 0.1, torch.rand(()) + 0.1), [recipe, ScalingType.TensorWise]
    lists = [[scale.xpu(), one.xpu()] for scale, one in zip((scale_a, scale_b), whole, strict=True)]
    got = F.scaled_mm(a.xpu(), b.xpu().t(), lists[0], recipes, lists[1], recipes, output_dtype=torch.float32)
    check(got, want * whole[0].double() * whole[1].double(), torch.float32)
    lists[1][1] = whole[1]
    with pytest.raises(RuntimeError, match="the second scale_b on xpu:0, not on cpu"):
        F.scaled_mm(a.xpu(), b.xpu().t(), lists[0], recipes, lists[1], recipes, output_dtype=torch.float32)


@pytest.mark.parametrize("shape", [(16, 128, 32), (1, 384, 48), (130, 416, 144), (7, 40, 5), (256, 640, 129)], ids=str)
@pytest.mark.parametrize("kinds", [(1, 128), (128, 1), (1, 1), (128, 128)], ids=str)
def test_float32_scales_of_128(kinds, shape):
    m, k, n = shape
    parts = -(-k // 128)
    (a, exact_a), (b, exact_b) = numbers(m, k, E4M3), numbers(n, k, E5M2)
    made = [scales(-(-rows // of), parts, torch.float32) for rows, of in zip((m, n), kinds, strict=True)]
    parts_a, parts_b = (spread(s[1], rows, k, (of, 128)) for s, rows, of in zip(made, (m, n), kinds, strict=True))
    want = (exact_a * parts_a) @ (exact_b * parts_b).t()
    a, b, bias = a.xpu(), b.xpu().t(), torch.randn(n)
    recipes = [ScalingType.BlockWise128x128 if of == 128 else ScalingType.BlockWise1x128 for of in kinds]
    anyxpu.ops.reset_counters()
    for dtype in BOUNDS:
        if not (parts == 1 and min(m, n) < 129):  # one scale of all is a tensor's
            got = torch._scaled_mm(a, b, made[0][0].xpu(), made[1][0].xpu().t(), bias=bias.xpu(), out_dtype=dtype)
            check(got, want + bias.double(), dtype)
        for padded in (False, True):  # along k, as cuBLAS wants squares
            given = []
            for (scale, _), of in zip(made, kinds, strict=True):
                if of == 128:
                    filled = F.pad(scale, (0, -parts % 4 if padded else 0), value=float("nan"))
                    scale = filled.t()
                else:
                    scale = scale.t().contiguous().t()
                given.append(on_device(scale))
            got = F.scaled_mm(a, b, given[0], recipes[0], given[1], recipes[1], output_dtype=dtype)
            check(got, want, dtype)
    assert no_host()


def test_a_result_that_is_given_and_what_is_empty():
    a, b, scale_a, scale_b, _, want = narrow("mxfp8", 16, 64, 32)
    out = torch.empty(32, 16, dtype=torch.bfloat16, device="xpu").t()
    args = (a.xpu(), b.xpu().t(), tiles(scale_a).xpu(), tiles(scale_b).xpu())
    assert torch._scaled_mm(*args, out_dtype=torch.bfloat16, out=out) is out
    check(out, want, torch.bfloat16)
    for m, k, n in ((0, 64, 16), (16, 64, 0), (16, 0, 16)):
        a, b, scale_a, scale_b, recipe, want = narrow("mxfp8", m, k, n)
        got = F.scaled_mm(a.xpu(), b.xpu().t(), scale_a.xpu(), recipe, scale_b.xpu(), recipe)
        assert tuple(got.shape) == (m, n)
        assert simulate.active() or not got.cpu().any()


@pytest.mark.not_simulated("NaN and infinity are looked for")
def test_scales_that_are_not_numbers_or_at_the_ends():
    a, b = torch.ones(8, 64).to(E4M3), torch.ones(16, 64).to(E4M3)
    exponents = torch.full((8, 2), 127, dtype=torch.uint8)
    exponents[1, 0], exponents[2], exponents[3], exponents[4, 1] = 255, 254, 1, 0
    ones = torch.full((16, 2), 127, dtype=torch.uint8).view(E8M0)
    recipe = ScalingType.BlockWise1x32
    args = (a.xpu(), b.xpu().t(), exponents.view(E8M0).xpu(), recipe, ones.xpu(), recipe)
    got = F.scaled_mm(*args, output_dtype=torch.float32).cpu()[:, 0]
    assert got[1].isnan()
    assert got[[0, 5]].tolist() == [64.0, 64.0]
    assert got[2] == float("inf")  # 64 * 2 ** 127
    assert got[3] == 64 * 2.0**-126
    assert got[4] == 32.0


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_results_of_eight_bits(dtype):
    a, b, scale_a, scale_b, _, want = narrow("mxfp8", 24, 128, 48)
    factor, bias = torch.tensor(torch.finfo(dtype).max / float(want.abs().max()) * 4), torch.randn(48).bfloat16()
    for scale_result in (None, factor):
        options = {"scale_result": None if scale_result is None else scale_result.xpu(), "bias": bias.xpu()}
        args = (a.xpu(), b.xpu().t(), tiles(scale_a).xpu(), tiles(scale_b).xpu())
        got = torch._scaled_mm(*args, out_dtype=dtype, **options)
        assert got.dtype == dtype
        exact = (want + bias.double()) * (1 if scale_result is None else factor.double())
        largest = torch.finfo(dtype).max
        if not simulate.active():
            near = exact.clamp(-largest, largest).float().to(dtype).double()
            off = (got.cpu().double() - near).abs() > 0
            assert float(off.double().mean()) < 0.01  # ties that float32 sums fall to the other side of
            assert float((got.cpu().double() - near).abs().max()) <= largest / 4
        wide = torch._scaled_mm(*args, out_dtype=torch.float32, **options)  # which only 8 bits are scaled to
        check(wide, want + bias.double(), torch.float32)


def test_bad_scales_are_named():
    a, b, scale_a, scale_b, recipe, _ = narrow("mxfp8", 16, 128, 32)
    a, b, scale_a, scale_b = a.xpu(), b.xpu().t(), scale_a.xpu(), scale_b.xpu()
    with pytest.raises(RuntimeError, match=r"blocks of 32 as \(16, 4\) and \(4, 32\), or in tiles as 512 and 512"):
        torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)
    square, one = ScalingType.BlockWise128x128, ScalingType.BlockWise1x128
    for error, args in (
        (r"scale_b as \(32, 4\), not .*\(16, 4\)", (scale_a, recipe, scale_a, recipe)),
        (r"scale_a as 512 elements in one piece", (scale_a, recipe, scale_b, recipe, YES, NO)),
        (r"no recipe BlockWise1x32 with RowWise", (scale_a, recipe, scale_b, ScalingType.RowWise)),
        (r"float4 with float8_e4m3fn, not of torch.float8_e4m3fn with", (scale_a, ScalingType.BlockWise1x16) * 2),
        (r"scale_a as \(1, 1\)", (a.new_ones(5, 1).float(), square, a.new_ones(1, 1).float(), square)),
        (r"without a swizzle", (a.new_ones(16, 1).float(), one, a.new_ones(32, 1).float(), one, YES, YES)),
    ):
        with pytest.raises(RuntimeError, match=error):
            F.scaled_mm(a, b, *args)
    with pytest.raises(RuntimeError, match=r"cannot scale torch\.float8_e4m3fn"):
        torch._scaled_mm(a, b, torch.ones(3, 2).xpu(), torch.ones(2, 3).xpu(), out_dtype=torch.bfloat16)


def compiled(layer, args, dtype=torch.bfloat16):
    """Compiled and eager, with no operator on the host in the graph."""
    want, graph = layer(*args), torch.compile(layer, fullgraph=True)
    graph(*args)
    anyxpu.ops.reset_counters()
    got = graph(*args)
    assert no_host()
    assert got.dtype == want.dtype == dtype
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_they_equal_eager_and_ask_no_host(kind):
    a, b, scale_a, scale_b, recipe, _ = narrow(kind, 24, 160, 40)  # CUDA's sizes are multiples of 16

    def by_shapes(*operands: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch._scaled_mm(*operands, out_dtype=torch.bfloat16) + 1)

    def by_recipes(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        swizzle = YES if scale_a.dim() == 1 else NO
        return torch.relu(F.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, swizzle, swizzle) + 1)

    for layer in (by_shapes, by_recipes):
        compiled(layer, (a.xpu(), b.xpu().t(), tiles(scale_a).xpu(), tiles(scale_b).xpu()))
    compiled(by_shapes, (a.xpu(), b.xpu().t(), scale_a.xpu(), scale_b.xpu().t()))
    compiled(by_recipes, (a.xpu(), b.xpu().t(), scale_a.xpu(), scale_b.xpu()))


def test_compiled_with_scales_of_128():
    (a, _), (b, _) = numbers(24, 200, E4M3), numbers(136, 200, E4M3)
    (scale_a, _), (scale_b, _) = scales(24, 2, torch.float32), scales(2, 2, torch.float32)

    def layer(*args: torch.Tensor) -> torch.Tensor:
        recipes = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        return torch.relu(F.scaled_mm(args[0], args[1], args[2], recipes[0], args[3], recipes[1]) + 1)

    compiled(layer, (a.xpu(), b.xpu().t(), scale_a.xpu(), scale_b.xpu()))
