"""Reductions, scans, atomics, control flow and random numbers of the Triton backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from anyxpu import simulate
from tests.triton_support import launch, needs_engine

WARPS = [{}, {"num_warps": 4, "keep_warps": True}]
BOTH = pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
SHAPES = [(1, 1), (1, 16), (1, 1024), (4, 2), (8, 64), (64, 8), (16, 256), (256, 4), (32, 32)]


@triton.jit
def reduce_kernel(x, o, index, AXIS: tl.constexpr, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    a = tl.load(x + r * N + c)
    at = tl.arange(0, N) if AXIS == 0 else tl.arange(0, M)
    if OP == "sum":
        tl.store(o + at, tl.sum(a, AXIS))
    elif OP == "max":
        tl.store(o + at, tl.max(a, AXIS))
    elif OP == "min":
        tl.store(o + at, tl.min(a, AXIS))
    elif OP == "xor_sum":
        tl.store(o + at, tl.xor_sum(a, AXIS))
    elif OP == "argmax":
        v, i = tl.max(a, AXIS, return_indices=True)
        tl.store(o + at, v)
        tl.store(index + at, i)


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@BOTH
def test_sums_of_every_shape_along_both_axes(m, n, axis, options):
    x = torch.randn(m, n)
    o = torch.zeros(n if axis == 0 else m)
    launch(reduce_kernel, (1,), x, o, None, AXIS=axis, OP="sum", M=m, N=n, **options)
    torch.testing.assert_close(o.double(), x.double().sum(axis), atol=1e-5 * x.shape[axis] ** 0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_max_and_min_of_every_type(op, axis, dtype):
    x = (torch.randn(16, 64) * 30).to(dtype)
    o = torch.zeros(64 if axis == 0 else 16, dtype=dtype)
    launch(reduce_kernel, (1,), x, o, None, AXIS=axis, OP=op, M=16, N=64)
    assert torch.equal(o, getattr(x, f"a{op}")(axis))


@pytest.mark.parametrize("axis", [0, 1])
@BOTH
def test_xor_sum_and_argmax_with_ties(axis, options):
    x = torch.randint(-(1 << 31), (1 << 31) - 1, (32, 64), dtype=torch.int32)
    o = torch.zeros(64 if axis == 0 else 32, dtype=torch.int32)
    launch(reduce_kernel, (1,), x, o, None, AXIS=axis, OP="xor_sum", M=32, N=64, **options)
    assert np.array_equal(o.numpy(), np.bitwise_xor.reduce(x.numpy(), axis))
    ties = torch.randint(0, 4, (32, 64)).float()
    v, i = torch.zeros(o.shape[0]), torch.zeros(o.shape[0], dtype=torch.int32)
    launch(reduce_kernel, (1,), ties, v, i, AXIS=axis, OP="argmax", M=32, N=64, **options)
    assert torch.equal(v, ties.amax(axis))
    assert np.array_equal(i.numpy(), ties.numpy().argmax(axis)), "the first of equal ones wins"


@triton.jit
def _affine(a, b, c, d):
    # x -> b·x + a, then x -> d·x + c: associative, and not commutative.
    return a * d + c, b * d


@triton.jit
def scan_kernel(x, y, o, p, AXIS: tl.constexpr, OP: tl.constexpr, REV: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    if OP == "cumsum":
        tl.store(o + at, tl.cumsum(a, AXIS, reverse=REV))
    elif OP == "cumprod":
        tl.store(o + at, tl.cumprod(a, AXIS, reverse=REV))
    elif OP == "affine":
        u, v = tl.associative_scan((a, tl.load(y + at)), AXIS, _affine, reverse=REV)
        tl.store(o + at, u)
        tl.store(p + at, v)


def _flip(x: torch.Tensor, axis: int, reverse: bool) -> torch.Tensor:
    return x.flip(axis) if reverse else x


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 512), (4, 64), (64, 4), (8, 8), (128, 1)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@BOTH
def test_cumsum_both_ways(m, n, axis, reverse, options):
    x = torch.randint(-99, 99, (m, n), dtype=torch.int32)
    o = torch.zeros_like(x)
    launch(scan_kernel, (1,), x, None, o, None, AXIS=axis, OP="cumsum", REV=reverse, M=m, N=n, **options)
    expected = _flip(_flip(x, axis, reverse).cumsum(axis), axis, reverse)
    assert torch.equal(o.long(), expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@BOTH
def test_scan_of_two_operands_keeps_their_order(axis, reverse, options):
    x, y = torch.rand(32, 16, dtype=torch.float64), torch.rand(32, 16, dtype=torch.float64)
    o, p = torch.zeros_like(x), torch.zeros_like(x)
    launch(scan_kernel, (1,), x, y, o, p, AXIS=axis, OP="affine", REV=reverse, M=32, N=16, **options)
    a, b = _flip(x, axis, reverse).movedim(axis, 0).clone(), _flip(y, axis, reverse).movedim(axis, 0).clone()
    for i in range(1, a.shape[0]):
        a[i] += a[i - 1] * b[i]
        b[i] *= b[i - 1]
    torch.testing.assert_close(o, _flip(a.movedim(0, axis), axis, reverse))
    torch.testing.assert_close(p, _flip(b.movedim(0, axis), axis, reverse))


@triton.jit
def atomic_kernel(p, old, x, mask, OP: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v, m = tl.load(x + i), tl.load(mask + i) != 0
    where = p + i % 4
    if OP == "add":
        r = tl.atomic_add(where, v, m)
    elif OP == "max":
        r = tl.atomic_max(where, v, m)
    elif OP == "min":
        r = tl.atomic_min(where, v, m)
    elif OP == "and":
        r = tl.atomic_and(where, v, m)
    elif OP == "or":
        r = tl.atomic_or(where, v, m)
    elif OP == "xor":
        r = tl.atomic_xor(where, v, m)
    elif OP == "xchg":
        r = tl.atomic_xchg(p + i, v, m)
    tl.store(old + i, r, m)


INTEGER_ATOMICS = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("op", INTEGER_ATOMICS)
def test_integer_atomics_of_many_programs(op, dtype):
    n = 64 * 16
    x, mask = torch.randint(-1000, 1000, (n,), dtype=dtype), torch.randint(0, 2, (n,), dtype=torch.int8)
    start = torch.randint(-1000, 1000, (4,), dtype=dtype)
    p, old = start.clone(), torch.zeros(n, dtype=dtype)
    launch(atomic_kernel, (16,), p, old, x, mask, OP=op, B=64)
    expected = start.tolist()
    for i in range(n):
        if mask[i]:
            expected[i % 4] = INTEGER_ATOMICS[op](expected[i % 4], int(x[i]))
    assert p.tolist() == expected
    if op == "add":  # each program saw a different old value, so old and new values chain
        for k in range(4):
            chosen = [i for i in range(k, n, 4) if mask[i]]
            seen = [int(old[i]) for i in chosen] + [expected[k]]
            made = sorted([int(start[k])] + [int(old[i] + x[i]) for i in chosen])
            assert sorted(seen) == made


# Triton itself has no 16-bit atomic max and min.
FLOAT_ATOMICS = [("add", t) for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
FLOAT_ATOMICS += [(op, t) for op in ("max", "min") for t in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("op", "dtype"), FLOAT_ATOMICS, ids=str)
def test_float_atomics(op, dtype):
    n = 256
    x, mask = torch.randint(-8, 8, (n,)).to(dtype), torch.randint(0, 2, (n,), dtype=torch.int8)
    start = torch.randint(-4, 4, (4,)).to(dtype)
    p, old = start.clone(), torch.zeros(n, dtype=dtype)
    launch(atomic_kernel, (4,), p, old, x, mask, OP=op, B=64)
    for k in range(4):
        mine = x[k::4][mask[k::4].bool()]
        combined = {"add": torch.sum, "max": torch.max, "min": torch.min}[op](
            torch.cat([start[k : k + 1], mine]).double()
        )
        assert p[k].double() == combined


@triton.jit
def lock_kernel(lock, value, old, n):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    v = tl.load(value)
    tl.store(old + tl.program_id(0), v)
    tl.store(value, v + n)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_compare_and_swap_makes_a_lock():
    lock, value, old = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(64)
    launch(lock_kernel, (64,), lock, value, old, 3)
    assert int(value) == 3 * 64
    assert sorted(old.tolist()) == [3.0 * i for i in range(64)]


@triton.jit
def scalar_atomic_kernel(p, o, B: tl.constexpr):
    ticket = tl.atomic_add(p, 1)
    tl.store(o + ticket * B + tl.arange(0, B), tl.full((B,), 1, tl.int32) * ticket)


@BOTH
def test_a_scalar_atomic_happens_once_and_all_lanes_see_its_result(options):
    p, o = torch.zeros(1, dtype=torch.int32), torch.full((32, 64), -1, dtype=torch.int32)
    launch(scalar_atomic_kernel, (32,), p, o, B=64, **options)
    assert int(p) == 32
    assert torch.equal(o, torch.arange(32, dtype=torch.int32)[:, None].expand(32, 64))


@triton.jit
def flow_kernel(x, o, n, steps, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.zeros((B,), tl.float32)
    count = 0
    for k in range(steps):
        if k % 3 == 0:
            a, b = b, a + k  # carried tensors change places
        elif k % 3 == 1:
            a = a * 2
        else:
            for j in range(k):
                b += j
        count += 1
    while count < n:
        count = count * 2 + 1
        a += count
    if n > 1000:
        tl.store(o + i, b)
        return
    tl.store(o + i, a - b)
    tl.store(o + B, count.to(tl.float32))


@pytest.mark.parametrize("steps", [0, 1, 7, 12])
@pytest.mark.parametrize("n", [1, 100, 5000])
def test_nested_loops_branches_and_early_return(steps, n):
    x, o = torch.randn(64), torch.zeros(65)
    launch(flow_kernel, (1,), x, o, n, steps, B=64)
    a, b, count = x.clone(), torch.zeros(64), 0
    for k in range(steps):
        if k % 3 == 0:
            a, b = b, a + k
        elif k % 3 == 1:
            a = a * 2
        else:
            for j in range(k):
                b = b + j
        count += 1
    while count < n:
        count = count * 2 + 1
        a = a + count
    expected = torch.cat([b, torch.zeros(1)]) if n > 1000 else torch.cat([a - b, torch.tensor([float(count)])])
    torch.testing.assert_close(o, expected)


@triton.jit
def random_kernel(o, u, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(o + i * 4, a)
    tl.store(o + i * 4 + 1, b)
    tl.store(o + i * 4 + 2, c)
    tl.store(o + i * 4 + 3, d)
    tl.store(u + i, tl.rand(seed, i))


def _philox(counter: np.ndarray, seed: int) -> np.ndarray:
    """Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in 64-bit arithmetic."""
    c = [counter.astype(np.uint64), *(np.zeros_like(counter, dtype=np.uint64) for _ in range(3))]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, 1).astype(np.uint32)


def test_random_numbers_are_philox():
    seed = int(torch.randint(1 << 33, 1 << 62, ()))
    o, u = torch.zeros(512, 4, dtype=torch.int32), torch.zeros(512)
    launch(random_kernel, (4,), o, u, seed, B=128)
    expected = _philox(np.arange(512), seed)
    assert np.array_equal(o.numpy().view(np.uint32), expected)
    assert float(u.min()) >= 0 and float(u.max()) < 1 and 0.4 < float(u.mean()) < 0.6


@triton.jit
def histogram_kernel(x, o, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(o + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@BOTH
def test_histogram_counts_every_value(options):
    x, o = torch.randint(0, 32, (512,), dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    launch(histogram_kernel, (1,), x, o, N=512, BINS=32, **options)
    assert torch.equal(o.long(), torch.bincount(x, minlength=32))


@triton.jit
def sort_kernel(x, o, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(o + at, tl.sort(tl.load(x + at), 1))


def test_sort_of_rows():
    x, o = torch.randn(4, 64), torch.zeros(4, 64)
    launch(sort_kernel, (1,), x, o, M=4, N=64)
    assert torch.equal(o, x.sort(1).values)


@triton.jit
def dot_kernel(
    a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr = "ieee"
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], (m < M)[:, None] & (k < K)[None, :], other=0)
        y = tl.load(b + k[:, None] * N + n[None, :], (k < K)[:, None] & (n < N)[None, :], other=0)
        acc = tl.dot(x, y, acc, out_dtype=acc.dtype, input_precision=PRECISION)
    tl.store(o + m[:, None] * N + n[None, :], acc, (m < M)[:, None] & (n < N)[None, :])


@pytest.mark.rotates(18)  # a CPU's compiler takes half a minute for what stands for a matrix engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("tile", [(16, 16, 16), (32, 64, 32), (64, 16, 64), (8, 16, 32)])
@BOTH
@pytest.mark.parametrize("engine", [0, 16, 8])
def test_products_of_ragged_matrices(tile, dtype, engine, options):
    needs_engine(engine)
    m, n, k = 70, 45, 90
    if dtype == torch.int8:
        a, b = torch.randint(-128, 127, (m, k), dtype=dtype), torch.randint(-128, 127, (k, n), dtype=dtype)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    o = torch.zeros(m, n, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    sizes = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    grid = (-(-m // tile[0]), -(-n // tile[1]))
    launch(dot_kernel, grid, a, b, o, m, n, k, **sizes, **options, matrix_engine=engine)
    torch.testing.assert_close(o.double(), a.double() @ b.double(), atol=1e-4, rtol=1e-5)


@triton.jit
def narrow_dot_kernel(a, b, c, o, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    x, y = tl.load(a + i * K + k[None, :]), tl.load(b + k[:, None] * N + j)
    tl.store(o + i * N + j, tl.dot(x, y, tl.load(c + i * N + j), out_dtype=o.dtype.element_ty))


@BOTH
@pytest.mark.parametrize("k", [32, 1024])
@pytest.mark.parametrize("engine", [0, 8, 16])
def test_a_product_into_f16_is_summed_in_f32_and_rounded_once(engine, k, options):
    needs_engine(engine)
    if simulate.active() == "dg2" and engine == 0 and k == 1024:
        pytest.skip("without the matrix engine its operands lie in 128 KiB of local memory, and dg2 has 64")
    a, b, c = torch.rand(16, k).half(), torch.full((k, 16), 3.0625).half(), torch.rand(16, 16).half()
    o = torch.zeros(16, 16, dtype=torch.float16)
    launch(narrow_dot_kernel, (1,), a, b, c, o, N=16, K=k, **options, matrix_engine=engine)
    exact = a.double() @ b.double() + c.double()
    unit = exact.abs() * torch.finfo(torch.float16).eps
    assert ((o.double() - exact).abs() <= 0.51 * unit).all()  # half a unit, and what f32 rounds by itself


@triton.jit
def turned_dot_kernel(a, b, o, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SIDES: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    if SIDES == "left" or SIDES == "both":
        x = tl.trans(tl.load(a + k[:, None] * M + i[None, :]))
    else:
        x = tl.load(a + i[:, None] * K + k[None, :])
    if SIDES == "right" or SIDES == "both":
        y = tl.trans(tl.load(b + j[:, None] * K + k[None, :]))
    else:
        y = tl.load(b + k[:, None] * N + j[None, :])
    total = tl.dot(x, y, out_dtype=o.dtype.element_ty)
    total += tl.dot(x, y, out_dtype=o.dtype.element_ty)  # both read what the transposition left
    tl.store(o + i[:, None] * N + j[None, :], total)


@pytest.mark.rotates(6)
@BOTH
@pytest.mark.parametrize("sides", ["left", "right", "both", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(32, 16, 64), (16, 64, 16)])
def test_products_of_transposed_operands(m, n, k, dtype, sides, options):
    if dtype == torch.int8:
        a, b = torch.randint(-128, 127, (m, k), dtype=dtype), torch.randint(-128, 127, (k, n), dtype=dtype)
        o = torch.zeros(m, n, dtype=torch.int32)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        o = torch.zeros(m, n, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    given = (
        a.t().contiguous() if sides in ("left", "both") else a,
        b.t().contiguous() if sides in ("right", "both") else b,
    )
    launch(turned_dot_kernel, (1,), *given, o, M=m, N=n, K=k, SIDES=sides, **options)
    torch.testing.assert_close(o.double(), 2 * (a.double() @ b.double()), atol=2e-4, rtol=1e-5)


@triton.jit
def batched_dot_kernel(a, b, o, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None, None] * (M * K) + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + i[:, None, None] * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(o + i[:, None, None] * (M * N) + m[None, :, None] * N + n[None, None, :], tl.dot(x, y))


@BOTH
def test_batches_of_products(options):
    a, b, o = torch.randn(4, 16, 32), torch.randn(4, 32, 32), torch.zeros(4, 16, 32)
    launch(batched_dot_kernel, (1,), a, b, o, B=4, M=16, N=32, K=32, **options)
    torch.testing.assert_close(o.double(), a.double() @ b.double(), atol=1e-4, rtol=1e-5)


def rounded_to_tf32(x):
    """f32 with 13 bits fewer, to nearest even; of finite numbers."""
    bits = x.view(torch.int32).long()
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).int().view(torch.float32)


@BOTH
def test_products_in_tf32_are_those_of_rounded_operands(options):
    needs_engine(16)
    a, b, o = torch.randn(70, 90), torch.randn(90, 45), torch.zeros(70, 45)
    sizes = {"BM": 32, "BN": 16, "BK": 32, "PRECISION": "tf32"}
    launch(dot_kernel, (3, 3), a, b, o, 70, 45, 90, **sizes, **options, matrix_engine=16)
    wanted = rounded_to_tf32(a).double() @ rounded_to_tf32(b).double()
    torch.testing.assert_close(o.double(), wanted, atol=2e-5, rtol=1e-5)
    assert (o.double() - a.double() @ b.double()).abs().max() > 1e-4, "the operands were not rounded"
