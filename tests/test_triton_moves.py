"""Conversions between layouts, and the products and reductions that avoid them: elements end where they should."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import triton
import triton.language as tl

from anyxpu import processor
from anyxpu.triton import layout as layouts
from anyxpu.triton.layout import Layout
from tests.triton_support import launch

WARPS = [{"num_warps": 1}, {"num_warps": 4, "keep_warps": True}]
BOTH = pytest.mark.parametrize("options", WARPS, ids=["one", "four"])
NUMBERS = [torch.float32, torch.bfloat16, torch.int8, torch.int64]


# --- the maps themselves, by going through every element


def _places(layout: Layout) -> dict[tuple[int, int, int], int]:
    """Register, lane and warp -> the offset that is there."""

    def spread(bases, number):
        offset = 0
        for i, base in enumerate(bases):
            offset ^= base if number >> i & 1 else 0
        return offset

    numbers = itertools.product(*(range(1 << len(b)) for b in (layout.reg, layout.lane, layout.warp)))
    return {n: spread(layout.reg, n[0]) ^ spread(layout.lane, n[1]) ^ spread(layout.warp, n[2]) for n in numbers}


def _random(rng: random.Random, bits: list[int], lanes: int, warps: int) -> Layout:
    """All of ``bits`` somewhere, and copies over what lanes and warps are left."""
    bases = [*bits, *[0] * rng.randint(0, 2)]
    rng.shuffle(bases)
    bases += [0] * max(0, lanes + warps - len(bases))
    reg = [b for b in bases[lanes + warps :] if b]
    return Layout(tuple(reg), tuple(bases[:lanes]), tuple(bases[lanes : lanes + warps]))


def test_a_route_leads_to_every_element_that_is_wanted():
    rng, found = random.Random(0), 0
    for _ in range(3000):
        bits = [1 << i for i in range(rng.randint(1, 7))]
        lanes, warps = rng.choice([2, 3]), rng.choice([0, 1])
        source, wanted = (_random(rng, bits, lanes, warps) for _ in range(2))
        const = rng.choice([0, 0, bits[-1]])
        route = layouts.route(source, wanted, const)
        if route is None:
            continue
        found += 1
        have = _places(source)
        for (register, lane, warp), offset in _places(wanted).items():
            at = route.registers.linear(register) ^ route.registers.const
            turned = route.turned.linear(register) ^ route.turned.const
            for picks, number in ((route.picks["lane"], lane), (route.picks["warp"], warp)):
                for i, pick in enumerate(picks):
                    at ^= pick if number >> i & 1 else 0
            for i, base in enumerate(route.lanes):
                turned ^= base if lane >> i & 1 else 0
            assert have[at, turned, warp] == offset ^ const
            assert turned == lane or not route.stays
    assert found > 1000


def test_swapped_bits_put_the_lanes_where_they_are_wanted():
    rng, found = random.Random(1), 0
    for _ in range(2000):
        bits = [1 << i for i in range(rng.randint(4, 8))]
        source = _random(rng, bits, 3, 0)
        wanted = rng.sample(bits, 3)
        result = layouts.swaps(source, wanted)
        if result is None:
            continue
        found += 1
        layout, pairs = result
        lanes, registers = list(source.lane), list(source.reg)
        for lane, register in pairs:
            lanes[lane], registers[register] = registers[register], lanes[lane]
        assert (tuple(lanes), tuple(registers)) == (layout.lane, layout.reg)
        assert list(layout.lane) == wanted
    assert found > 500


# --- kernels


@triton.jit
def turn_kernel(x, o, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + c[None, :])
    tl.store(o + c[:, None] * M + r[None, :], tl.trans(a))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (4, 64), (64, 4), (16, 128), (64, 64)])
@BOTH
def test_transposed_tiles_are_stored_transposed(shape, dtype, options):
    x = torch.randint(-100, 100, shape).to(dtype)
    o = torch.zeros(shape[::-1], dtype=dtype)
    launch(turn_kernel, (1,), x, o, M=shape[0], N=shape[1], **options)
    assert torch.equal(o, x.T)


@pytest.mark.not_simulated("of a CPU device")
@pytest.mark.skipif(not processor.long_vectors(), reason="this CPU has no AVX-512")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16, torch.int16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (32, 16), (16, 64), (128, 32), (64, 256)])
def test_assembly_transposes_words_and_nothing_else(shape, dtype):
    x = torch.randint(-100, 100, shape).to(dtype)
    o = torch.zeros(shape[::-1], dtype=dtype, device="xpu")
    for asked in (True, False):
        kernel = turn_kernel[(1,)](x.to("xpu"), o.zero_(), M=shape[0], N=shape[1], avx512=asked)
        assert torch.equal(o.cpu(), x.T)
        text = kernel.asm["cl"]
        words = dtype not in (torch.int16, torch.float64)  # bfloat16 is held as f32
        assert ("ax_turn(" in text[text.index("__kernel") :]) == (asked and words)


@triton.jit
def spread_kernel(x, o, sums, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    """What a reduction leaves is wanted along the rows, along the columns and by itself."""
    r, c = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + c[None, :])
    s = tl.sum(a, AXIS)
    if AXIS == 1:
        tl.store(o + r[:, None] * N + c[None, :], a - s[:, None])
        tl.store(sums + r, s)
    else:
        tl.store(o + r[:, None] * N + c[None, :], a - s[None, :])
        tl.store(sums + c, s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
@pytest.mark.parametrize("shape", [(2, 32), (4, 4), (16, 128), (32, 16), (128, 8), (8, 256)])
@pytest.mark.parametrize("axis", [0, 1])
@BOTH
def test_sums_of_rows_and_columns_are_read_in_every_layout(shape, axis, dtype, options):
    x = torch.randint(-50, 50, shape).to(dtype)
    o, sums = torch.zeros_like(x), torch.zeros(shape[1 - axis], dtype=dtype)
    launch(spread_kernel, (1,), x, o, sums, M=shape[0], N=shape[1], AXIS=axis, **options)
    expected = x.sum(axis).to(dtype)
    assert torch.equal(sums, expected)
    assert torch.equal(o, x - expected.unsqueeze(axis))


@triton.jit
def cube_kernel(x, sums, firsts, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
    i, j, k = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    a = tl.load(x + (i * B + j) * C + k)
    s, f = tl.sum(a * a, AXIS), tl.max(a, AXIS)
    if AXIS == 0:
        at = tl.arange(0, B)[:, None] * C + tl.arange(0, C)[None, :]
    elif AXIS == 1:
        at = tl.arange(0, A)[:, None] * C + tl.arange(0, C)[None, :]
    else:
        at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(sums + at, s)
    tl.store(firsts + at, f)


@pytest.mark.parametrize("shape", [(2, 16, 64), (16, 4, 16), (1, 64, 64), (8, 8, 8), (4, 32, 2)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@BOTH
def test_three_dimensions_are_reduced_while_they_are_computed(shape, axis, options):
    x = torch.randint(-9, 9, shape).float()
    left = [n for i, n in enumerate(shape) if i != axis]
    sums, most = torch.zeros(left), torch.zeros(left)
    launch(cube_kernel, (1,), x, sums, most, **dict(zip("ABC", shape, strict=True)), AXIS=axis, **options)
    assert torch.equal(sums, (x * x).sum(axis))
    assert torch.equal(most, x.amax(axis))


@triton.jit
def _affine(a, b, c, d):
    """One map x -> ax + b after the other."""
    return c * a, c * b + d


@triton.jit
def compose_kernel(a, b, o, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    at = r[:, None] * N + c[None, :]
    x, y = tl.reduce((tl.load(a + at), tl.load(b + at)), 1, _affine)
    tl.store(o + r, x)
    tl.store(o + M + r, y)


@pytest.mark.parametrize("shape", [(1, 64), (8, 32), (32, 16), (16, 128)])
def test_a_reduction_of_two_tensors_has_no_neutral_element(shape):
    # Of factors 1 the maps commute, as tl.reduce expects; what is neutral is known of no such function.
    a, b = torch.ones(shape), torch.randint(-9, 9, shape).float()
    o = torch.zeros(2, shape[0])
    launch(compose_kernel, (1,), a, b, o, M=shape[0], N=shape[1])
    assert torch.equal(o, torch.stack([torch.ones(shape[0]), b.sum(1)]))


@triton.jit
def product_kernel(a, b, c, o, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    if TURNED:  # noqa: SIM108 (Triton takes both sides of a conditional expression)
        y = tl.trans(tl.load(b + j[:, None] * K + k[None, :]))
    else:
        y = tl.load(b + k[:, None] * N + j[None, :])
    at = i[:, None] * N + j[None, :]
    z = tl.load(c + at)
    tl.store(o + at, tl.dot(x, y, z, input_precision="ieee", out_dtype=z.dtype))


PRODUCTS = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.int8, torch.int32)]
SIZES = [(1, 64, 128), (2, 32, 64), (4, 64, 64), (4, 16, 8), (8, 16, 16), (16, 64, 32)]


@pytest.mark.parametrize(("dtype", "sums"), PRODUCTS, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_few_rows_and_of_transposes(sizes, turned, dtype, sums):
    m, n, k = sizes
    a, b, c = (torch.randint(-9, 9, s).to(t) for s, t in (((m, k), dtype), ((k, n), dtype), ((m, n), sums)))
    given = b.T.contiguous() if turned else b
    o = torch.zeros(m, n, dtype=sums)
    launch(product_kernel, (1,), a, given, c, o, M=m, N=n, K=k, TURNED=turned)
    assert torch.equal(o.double(), a.double() @ b.double() + c.double())


@triton.jit
def carried_kernel(a, b, o, also, ROUNDS, S: tl.constexpr, ADDED: tl.constexpr):
    """Sums that a loop carries through products, as they are or with 1 added, which is wanted again behind them."""
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    x, y = tl.load(a + i * S + j), tl.load(b + i * S + j)
    total = tl.zeros((S, S), o.dtype.element_ty)
    other = tl.zeros((S, S), o.dtype.element_ty)
    for _ in range(ROUNDS):
        before = total + 1 if ADDED else total
        total = tl.dot(x, y, before, input_precision="ieee", out_dtype=before.dtype)
        other += before
    tl.store(o + i * S + j, total)
    tl.store(also + i * S + j, other)


@pytest.mark.parametrize(("dtype", "sums"), PRODUCTS, ids=str)
@pytest.mark.parametrize("added", [False, True])
def test_sums_that_a_loop_carries_are_still_there_behind_the_product(dtype, sums, added):
    a, b = (torch.randint(-3, 3, (32, 32)).to(dtype) for _ in range(2))
    o, also = torch.zeros(2, 32, 32, dtype=sums)
    launch(carried_kernel, (1,), a, b, o, also, 3, S=32, ADDED=added)
    total, other = torch.zeros(2, 32, 32, dtype=torch.float64)
    for _ in range(3):
        before = total + added
        total = a.double() @ b.double() + before
        other = other + before
    assert torch.equal(o.double(), total) and torch.equal(also.double(), other)


@triton.jit
def few_rows_kernel(a, b, o, N, K, first, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr):
    """Rows of ``a`` times a block of ``b`` (N, K), turned around or not, whose rows begin at ``first``.

    What is outside of ``b`` counts as 0. ``stored``: the block is overwritten before it is multiplied.
    """
    i, n, k = tl.arange(0, M)[:, None], tl.arange(0, BN), tl.arange(0, BK)
    rows = first + n
    if KIND == "described":
        described = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
        y = described.load([first, 0])
    else:
        inside = (rows >= 0)[:, None] & (rows < N)[:, None] & (k < K)[None, :]
        at = b + rows[:, None] * K + k[None, :]
        y = tl.load(at, inside, other=0)
        if KIND == "stored":
            tl.store(at, tl.full((BN, BK), 77, tl.float32).to(y.dtype), inside)
    x = tl.load(a + i * BK + k[None, :])
    along = tl.dot(x, tl.trans(y), input_precision="ieee", out_dtype=tl.float32)
    tl.store(o + i * BN + n[None, :], along)
    z = tl.load(b + K * N + n[:, None] * BK + k[None, :])  # a second matrix, whole
    weights = tl.load(a + M * BK + i * BN + n[None, :])
    across = tl.dot(weights, z, tl.zeros((M, BK), tl.float32) + 1, input_precision="ieee")
    tl.store(o + M * BN + i * BK + k[None, :], across)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["loaded", "described", "stored"])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("first", [0, 24, -5, 40])
def test_few_rows_read_a_matrix_where_they_multiply_it_and_nothing_outside(rows, kind, dtype, first):
    n, k, bn, bk = 56, 32, 32, 32
    a, b = torch.randint(-9, 9, (2, rows, bn)).to(dtype), torch.randint(-9, 9, (n, k)).to(dtype)
    z = torch.randint(-9, 9, (bn, bk)).to(dtype)
    memory, o = torch.cat([b, z]), torch.zeros(2, rows, bn)
    launch(few_rows_kernel, (1,), a, memory, o, n, k, first, M=rows, BN=bn, BK=bk, KIND=kind)
    block = torch.cat([torch.zeros(5, k), b, torch.zeros(32, k)])[first + 5 : first + 5 + bn].double()
    assert torch.equal(o[0].double(), a[0].double() @ block.T)
    assert torch.equal(o[1].double(), a[1].double() @ z.double() + 1)
    if kind == "stored":
        assert (memory[max(first, 0) : min(first + bn, n)] == 77).all() and torch.equal(memory[n:], z)
