"""Software prefetch: a loop's products have their operands fetched some iterations ahead, and nothing else is.

On the CPU device the functions of GPUs with a matrix engine are emulated. Here ``ax_prefetch`` is replaced by one that
records: a matrix lies in a buffer with two more parts of its size, and a prefetch of an address in the matrix adds to
the same place of the second part one and, from its eighth bit on, what the third part holds there: how many iterations
of the loop are over.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anyxpu.triton import lower
from tests.triton_support import HAS_BLOCK_POINTERS

pytestmark = pytest.mark.not_simulated("prefetches are seen in the CPU device's emulation of a GPU's functions")
PART = 32768  # bytes
COUNTS: tl.constexpr = tl.constexpr(PART // 4)
RECORDING = f"""
inline void ax_prefetch(__global const char* p) {{
  __global const int* finished = (__global const int*)(p + 2 * {PART});
  atomic_add((volatile __global int*)(p + {PART}), 1 + (*finished << 8));
}}
"""


@triton.jit
def finish(a, b, iterations):
    """Say in the third parts of both buffers how many iterations are over."""
    at = 2 * COUNTS + tl.arange(0, COUNTS)
    tl.store(a.to(tl.pointer_type(tl.int32)) + at, iterations)
    tl.store(b.to(tl.pointer_type(tl.int32)) + at, iterations)
    tl.debug_barrier()


@triton.jit
def recomputing(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m * K + k[None, :], (m < M) & (k < K)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + n, (k < K)[:, None] & (n < N), other=0.0)
        acc = tl.dot(x, y, acc, out_dtype=acc.dtype)
        finish(a, b, start // BK + 1)
    tl.store(o + m * N + n, acc, (m < M) & (n < N))


@triton.jit
def bumping(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    k = tl.arange(0, BK)
    x, y = a + m * K + k[None, :], b + k[:, None] * N + n
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        left = tl.load(x, (m < M) & (k[None, :] < K - i * BK), other=0.0)
        acc = tl.dot(left, tl.load(y, (k[:, None] < K - i * BK) & (n < N), other=0.0), acc)
        x += BK
        y += BK * N
        finish(a, b, i + 1)
    tl.store(o + m * N + n, acc, (m < M) & (n < N))


@triton.jit
def block_pointers(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x = tl.make_block_ptr(a, (M, K), (K, 1), (m, 0), (BM, BK), (1, 0))
    y = tl.make_block_ptr(b, (K, N), (N, 1), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(x, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(left, tl.load(y, boundary_check=(0, 1), padding_option="zero"), acc)
        x, y = tl.advance(x, (0, BK)), tl.advance(y, (BK, 0))
        finish(a, b, start // BK + 1)
    z = tl.make_block_ptr(o, (M, N), (N, 1), (m, n), (BM, BN), (1, 0))
    tl.store(z, acc, boundary_check=(0, 1))


@triton.jit
def descriptors(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        acc = tl.dot(x.load([m, start]), y.load([start, n]), acc)
        finish(a, b, start // BK + 1)
    z.store([m, n], acc)


@triton.jit
def unmasked(a, b, o, M, N, K, first, last, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Only the loop's bounds say where a row of ``a`` ends."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(first, last, BK):
        k = start - first + tl.arange(0, BK)
        x = tl.load(a + m * K + k[None, :], m < M, other=0.0)
        acc = tl.dot(x, tl.load(b + k[:, None] * N + n, n < N, other=0.0), acc)
        finish(a, b, (start - first) // BK + 1)
    tl.store(o + m * N + n, acc, (m < M) & (n < N))


KERNELS = {f.__name__: f for f in (recomputing, bumping, block_pointers, descriptors)}
if not HAS_BLOCK_POINTERS:
    del KERNELS["block_pointers"]


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """Kernels compiled from here on record their prefetches; none of them is found in a cache, or left in one."""
    known = lower.prelude

    def prelude(dialect, kernel):
        assert dialect == "intel_cpu"
        return known(dialect, kernel.replace("ax_prefetch", "recorded")) + RECORDING

    monkeypatch.setattr(lower, "prelude", prelude)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for kernel in (*KERNELS.values(), unmasked):
        kernel.device_caches.clear()
    yield
    for kernel in (*KERNELS.values(), unmasked):
        kernel.device_caches.clear()


def in_buffer(matrix):
    buffer = torch.zeros(3 * PART, dtype=torch.uint8)
    raw = matrix.contiguous().view(torch.uint8).flatten()
    buffer[: raw.numel()] = raw
    return buffer.view(matrix.dtype).to("xpu")


def records(buffer, shape):
    """For each element of the matrix: how often it was prefetched, and after how many iterations (summed)."""
    size = buffer.element_size()
    record = buffer.cpu().view(torch.uint8)[PART : 2 * PART].numpy()
    assert not record[shape[0] * shape[1] * size :].any(), "a prefetch beyond the matrix"
    at = record.view(np.int32).reshape(-1, 1)
    padded = np.concatenate([at, np.zeros((len(at), 4 // size - 1), np.int32)], 1).reshape(-1)
    found = padded[: shape[0] * shape[1]].reshape(shape)
    return found & 0xFF, found >> 8


def expected(shape, tile, along, distance, size):
    """The first element of each line of each tile but the first, asked for ``distance`` iterations ahead or at once."""
    count, after = np.zeros(shape, int), np.zeros(shape, int)
    for i in range(1, -(-shape[along] // tile[along])):
        corner = [0, 0]
        corner[along] = i * tile[along]
        for r in range(corner[0], min(corner[0] + tile[0], shape[0])):
            for c in range(corner[1], min(corner[1] + tile[1], shape[1]), 64 // size):
                count[r, c], after[r, c] = 1, max(0, i - distance)
    return count, after


def run(kernel, shape, options, dtype=torch.float16, bounds=()):
    """Multiply fresh matrices in one program and check the product; their buffers. ``bounds``: of the loop."""
    m, n, k = shape
    if dtype == torch.int8:
        a, b = torch.randint(-128, 127, (m, k), dtype=dtype), torch.randint(-128, 127, (k, n), dtype=dtype)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    x, y, o = in_buffer(a), in_buffer(b), torch.zeros(m, n, device="xpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton calls block pointers deprecated
        kernel[(1, 1)](x, y, o, m, n, k, *bounds, **TILE, **options)
    summed = max(0, bounds[1] - bounds[0]) if bounds else k
    product = a[:, :summed].double() @ b[:summed].double()
    torch.testing.assert_close(o.cpu().double(), product, atol=1e-3, rtol=1e-4)
    return x, y


def check(buffers, shape, distance):
    (m, n, k), (x, y) = shape, buffers
    for buffer, rows_columns, tile, along in ((x, (m, k), ("BM", "BK"), 1), (y, (k, n), ("BK", "BN"), 0)):
        wanted = expected(rows_columns, [TILE[t] for t in tile], along, distance, buffer.element_size())
        np.testing.assert_array_equal(records(buffer, rows_columns), wanted)


TILE = {"BM": 16, "BN": 64, "BK": 32}
SHAPE = (13, 50, 150)  # five iterations


@pytest.mark.parametrize(("name", "stages"), [*((name, n) for name in KERNELS for n in (2, 4)), ("recomputing", 7)])
@pytest.mark.rotates(18)
def test_every_line_of_a_tile_is_asked_for_once_and_in_time(name, stages, recording):
    buffers = run(KERNELS[name], SHAPE, {"num_stages": stages, "matrix_engine": 16})
    check(buffers, SHAPE, stages - 1)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"matrix_engine": 8}, torch.float16),
        ({"matrix_engine": 16, "keep_warps": True, "num_warps": 8}, torch.bfloat16),
        ({"matrix_engine": 16}, torch.int8),
    ],
    ids=["lanes8", "warps", "int8"],
)
@pytest.mark.rotates(12)
def test_lines_are_spread_over_whatever_work_items_there_are(options, dtype, recording):
    shape = (13, 52, 152)
    check(run(recomputing, shape, {**options, "num_stages": 3}, dtype), shape, 2)


@pytest.mark.parametrize("k", [0, 20, 34])
@pytest.mark.rotates(5)
def test_short_loops_ask_for_nothing_that_they_do_not_have(k, recording):
    shape = (13, 50, k)
    check(run(recomputing, shape, {"num_stages": 4, "matrix_engine": 16}), shape, 3)


@pytest.mark.rotates(6)
@pytest.mark.parametrize("k", [64, 160])
@pytest.mark.parametrize("last", [160, 2**31 - 40], ids=["", "near_the_largest_number"])
def test_the_loops_end_is_the_end_without_a_mask_too(last, k, recording):
    shape = (13, 50, k)
    options = {"num_stages": 4, "matrix_engine": 16}
    check(run(unmasked, shape, options, bounds=(last - k, last)), shape, 3)


@pytest.mark.rotates(5)
def test_a_loop_without_an_iteration_asks_for_nothing(recording):
    shape = (13, 50, 160)
    x, y = run(unmasked, shape, {"num_stages": 4, "matrix_engine": 16}, bounds=(64, 0))
    assert not np.any(records(x, (13, 160))) and not np.any(records(y, (160, 50)))


# --- which loads get one


@triton.jit
def attention(q, k, v, o, T, D: tl.constexpr, BN: tl.constexpr):
    m, d = tl.arange(0, 16), tl.arange(0, D)
    query = tl.load(q + m[:, None] * D + d[None, :])
    total = tl.zeros((16, D), tl.float32)
    for start in range(0, T, BN):
        n = start + tl.arange(0, BN)
        keys = tl.load(k + n[None, :] * D + d[:, None], (n < T)[None, :], other=0.0)
        values = tl.load(v + n[:, None] * D + d[None, :], (n < T)[:, None], other=0.0)
        total = tl.dot(tl.dot(query, keys).to(values.dtype), values, total)
    tl.store(o + m[:, None] * D + d[None, :], total)


@triton.jit
def persistent(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    for tile in range(tl.program_id(0), tl.cdiv(M, BM), tl.num_programs(0)):
        m, n = tile * BM + tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K, BK, num_stages=STAGES):
            k = start + tl.arange(0, BK)
            acc = tl.dot(tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * N + n), acc)
        tl.store(o + m * N + n, acc)


@triton.jit
def paged(a, b, o, pages, K, BK: tl.constexpr):
    """Each iteration's rows of ``a`` are where a table says; of ``b`` one after the other, as the table's."""
    m, n = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    for i in range(K):
        k = i * BK + tl.arange(0, BK)
        page = tl.load(pages + i)
        acc = tl.dot(
            tl.load(a + page * 16 * BK + m * BK + tl.arange(0, BK)[None, :]), tl.load(b + k[:, None] * 16 + n), acc
        )
    tl.store(o + m * 16 + n, acc)


@triton.jit
def column_major(a, b, o, stride, K, BK: tl.constexpr):
    """No two elements of ``a`` are known to be neighbours."""
    m, n = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        acc = tl.dot(tl.load(a + m + k[None, :] * stride), tl.load(b + k[:, None] * stride + n * stride), acc)
    tl.store(o + m * 16 + n, acc)


@triton.jit
def sums(a, b, o, K, BK: tl.constexpr):
    """A loop without a product, and one whose product takes what no loop loads."""
    m, k = tl.arange(0, 16)[:, None], tl.arange(0, BK)[None, :]
    total = tl.zeros((16, BK), tl.float32)
    for start in range(0, K, BK):
        total += tl.load(a + m * K + start + k)
    x = total.to(tl.float16)
    acc = tl.zeros((16, 16), tl.float32)
    for _ in range(K):
        acc = tl.dot(x, tl.trans(x), acc)
    tl.store(o + m * 16 + tl.arange(0, 16)[None, :], acc)


HALF = dict.fromkeys("abqkv", "*fp16") | {"o": "*fp32", "pages": "*i32"}
GEMM = {"BM": 16, "BN": 16, "BK": 16}


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    ("kernel", "constants", "options", "prefetches"),
    [
        (attention, {"D": 32, "BN": 32}, {"matrix_engine": 16}, 2),
        (attention, {"D": 32, "BN": 32}, {}, 0),
        (attention, {"D": 32, "BN": 32}, {"matrix_engine": 16, "num_stages": 1}, 0),
        (persistent, {**GEMM, "STAGES": None}, {"matrix_engine": 16}, 2),
        (persistent, {**GEMM, "STAGES": 3}, {"matrix_engine": 16, "num_stages": 1}, 4),
        (persistent, {**GEMM, "STAGES": 1}, {"matrix_engine": 16}, 0),
        (paged, {"BK": 16}, {"matrix_engine": 16}, 1),
        (column_major, {"BK": 16}, {"matrix_engine": 16}, 1),
        (sums, {"BK": 16}, {"matrix_engine": 16}, 0),
    ],
)
def test_loads_of_operands_are_prefetched_where_their_addresses_are_known(kernel, constants, options, prefetches):
    signature = {n: "constexpr" if n in constants else HALF.get(n, "i32") for n in kernel.arg_names}
    source = ASTSource(kernel, signature, constants, {})
    text = triton.compile(source, target=GPUTarget("xpu", {"device": "cpu"}, 16), options=options).asm["cl"]
    assert text.count("ax_prefetch((") == prefetches
