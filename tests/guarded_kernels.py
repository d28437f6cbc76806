"""Kernels that touch memory up to its last byte, for tests that put a guard page there: run by test_guarded.py.

``python guarded_kernels.py ALLOCATOR WHAT...`` runs functions of this module, or cases of ``anyxpu bench kernels``,
with all of xpu's memory from the allocator library, and compares what they give with the CPU.
"""

from __future__ import annotations

import sys
import warnings

import torch
import triton
import triton.language as tl

N, BLOCK = 1003, 256
ROWS, COLUMNS = 37, 100


@triton.jit
def pointwise_kernel(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n) + tl.load(y + i, i < n, other=1), i < n)


@triton.jit
def stencil_kernel(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    left = tl.load(x + i - 1, (i > 0) & (i <= n), other=0)
    right = tl.load(x + i + 1, i + 1 < n, other=0)
    tl.store(o + i, left + right, i < n)


@triton.jit
def sum_kernel(x, o, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for start in range(0, n, B):
        i = start + tl.arange(0, B)
        total += tl.load(x + i, i < n, other=0)
    tl.store(o, tl.sum(total, 0))


@triton.jit
def row_kernel(x, o, M, N, B: tl.constexpr, R: tl.constexpr):
    m, n = tl.program_id(0) * R + tl.arange(0, R)[:, None], tl.arange(0, B)[None, :]
    v = tl.load(x + m * N + n, (m < M) & (n < N), other=-float("inf"))
    e = tl.exp(v - tl.max(v, 1)[:, None])
    tl.store(o + m * N + n, e / tl.sum(e, 1)[:, None], (m < M) & (n < N))


@triton.jit
def gather_kernel(x, index, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    at = tl.load(index + i, i < n, other=1 << 40)
    tl.store(o + i, tl.load(x + at, (at >= 0) & (at < n), other=-1), i < n)


@triton.jit
def scatter_kernel(x, index, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    at = tl.load(index + i, i < n, other=-(1 << 40))
    tl.store(o + at, tl.load(x + i, i < n), (at >= 0) & (at < n))


@triton.jit
def atomic_kernel(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(o + i, tl.load(x + i, i < n), i < n)
    tl.atomic_max(o + n - 1 - i, -1.0, i < n)


@triton.jit
def block_pointer_kernel(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM, tl.program_id(1) * BN)
    p = tl.make_block_ptr(x, (M, N), (N, 1), at, (BM, BN), (1, 0))
    q = tl.make_block_ptr(o, (N, M), (M, 1), (at[1], at[0]), (BN, BM), (1, 0))
    tl.store(q, tl.trans(tl.load(p, boundary_check=(0, 1), padding_option="zero")), boundary_check=(0, 1))


@triton.jit
def descriptor_kernel(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    target.store([m, n], source.load([m, n]) + source.load([m - BM, n]))


@triton.jit
def product_kernel(a, b, o, M, N, K, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B)[:, None], tl.program_id(1) * B + tl.arange(0, B)[None, :]
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        left = tl.load(a + m * K + k[None, :], (m < M) & (k[None, :] < K), other=0)
        right = tl.load(b + k[:, None] * N + n, (k[:, None] < K) & (n < N), other=0)
        total = tl.dot(left, right, total)
    tl.store(o + m * N + n, total, (m < M) & (n < N))


@triton.jit
def unmasked_load_kernel(x, o, shift, B: tl.constexpr):
    tl.store(o, tl.sum(tl.load(x + shift + tl.arange(0, B)), 0))


@triton.jit
def unmasked_store_kernel(x, o, shift, B: tl.constexpr):
    tl.store(o + shift + tl.arange(0, B), 1.0)


def xpu(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.to("xpu") for t in tensors]


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, atol=1e-5, rtol=1e-5)


def grid(n: int = N, block: int = BLOCK) -> tuple[int, ...]:
    return (triton.cdiv(n, block) + 1,)  # and one program without a single lane to run


def pointwise() -> None:
    for dtype in (torch.float32, torch.float16, torch.int8, torch.int64):
        a, b = torch.arange(N).to(dtype), torch.arange(N).to(dtype)
        x, y = xpu(a, b)
        o = torch.empty_like(x)
        for block in (16, 64, BLOCK, 2048):
            pointwise_kernel[grid(N, block)](x, y, o, N, B=block)
            same(o, a + b)


def stencil() -> None:
    a = torch.randn(N)
    (x,) = xpu(a)
    o = torch.empty_like(x)
    stencil_kernel[grid()](x, o, N, B=BLOCK)
    padded = torch.nn.functional.pad(a, (1, 1))
    same(o, padded[:-2] + padded[2:])


def reductions() -> None:
    a, b = torch.randn(N), torch.randn(ROWS, COLUMNS)
    x, y = xpu(a, b)
    total, rows = torch.empty(1, device="xpu"), torch.empty_like(y)
    sum_kernel[(1,)](x, total, N, B=BLOCK)
    same(total, a.double().sum().float()[None])
    for block in (128, 2048):
        row_kernel[grid(ROWS, 4)](y, rows, ROWS, COLUMNS, B=block, R=4)
        same(rows, b.softmax(1))


def indirect() -> None:
    a, index = torch.randn(N), torch.randperm(N)
    index[::3] = torch.where(torch.arange(len(index[::3])) % 2 == 0, -1, N)
    inside = (index >= 0) & (index < N)
    x, i = xpu(a, index)
    o, p = torch.empty_like(x), torch.zeros_like(x)
    gather_kernel[grid()](x, i, o, N, B=BLOCK)
    same(o, torch.where(inside, a[index.clamp(0, N - 1)], -1.0))
    scatter_kernel[grid()](x, i, p, N, B=BLOCK)
    same(p, torch.zeros(N).index_put((index[inside],), a[inside]))


def atomics() -> None:
    a = torch.randn(N)
    x, o = xpu(a, torch.full((N,), 2.0))
    atomic_kernel[grid()](x, o, N, B=BLOCK)
    # Where a sum falls below -1, which of the two came last is open.
    high = a + 2 > -1
    same(o[high.to("xpu")], (a + 2)[high])


def blocks() -> None:
    a = torch.randn(ROWS, COLUMNS)
    (x,) = xpu(a)
    turned, o = torch.empty(COLUMNS, ROWS, device="xpu"), torch.empty_like(x)
    tiles = (triton.cdiv(ROWS, 16), triton.cdiv(COLUMNS, 64))
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):  # from then on there are none
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Triton calls them deprecated
            block_pointer_kernel[tiles](x, turned, ROWS, COLUMNS, BM=16, BN=64)
        same(turned, a.t())
    descriptor_kernel[tiles](x, o, ROWS, COLUMNS, BM=16, BN=64)
    same(o, a + torch.nn.functional.pad(a, (0, 0, 16, 0))[:ROWS])


def products() -> None:
    a, b = torch.randn(ROWS, 51), torch.randn(51, COLUMNS)
    x, y = xpu(a, b)
    o = torch.empty(ROWS, COLUMNS, device="xpu")
    tiles = (triton.cdiv(ROWS, 16), triton.cdiv(COLUMNS, 16))
    product_kernel[tiles](x, y, o, ROWS, COLUMNS, 51, B=16)
    same(o, a @ b)


def engine_products() -> None:
    """As a GPU does them that has a matrix engine, with prefetches of its operands."""
    a, b = torch.randn(ROWS, 51).half(), torch.randn(51, COLUMNS).half()
    x, y = xpu(a, b)
    o = torch.empty(ROWS, COLUMNS, device="xpu")
    tiles = (triton.cdiv(ROWS, 16), triton.cdiv(COLUMNS, 16))
    for stages in (2, 4):
        product_kernel[tiles](x, y, o, ROWS, COLUMNS, 51, B=16, matrix_engine=16, num_stages=stages)
        same(o, a.float() @ b.float())


def unmasked(kernel: triton.JITFunction, shift: int) -> None:
    x, o = xpu(torch.ones(1024), torch.ones(1024))
    kernel[(1,)](x, o, 0, B=1024)
    torch.xpu.synchronize()
    print("inside", flush=True)
    kernel[(1,)](x, o, shift, B=1024)
    torch.xpu.synchronize()
    print("outside", flush=True)


def unmasked_load_after() -> None:
    unmasked(unmasked_load_kernel, 1)


def unmasked_load_before() -> None:
    unmasked(unmasked_load_kernel, -1)


def unmasked_store_after() -> None:
    unmasked(unmasked_store_kernel, 1)


def unmasked_store_before() -> None:
    unmasked(unmasked_store_kernel, -1)


def inductor(name: str) -> None:
    """A case of the benchmarks at sizes that no block divides (group norm wants eight groups of channels)."""
    from anyxpu.bench import kernels
    from anyxpu.bench.kernel_cases import CASES

    for rows, columns in ((37, 192), (13, 1088)):
        torch._dynamo.reset()
        arguments = CASES[name].arguments(rows, columns)
        side = kernels._compiled(CASES[name], [kernels._moved(a, "xpu") for a in arguments])
        wrong = kernels._wrong(CASES[name], arguments, side, f"{name} at {rows} by {columns}")
        assert not wrong, wrong


if __name__ == "__main__":
    allocator = torch.xpu.memory.XPUPluggableAllocator(sys.argv[1], "guarded_malloc", "guarded_free")
    torch.xpu.memory.change_current_allocator(allocator)
    torch.manual_seed(0)
    for what in sys.argv[2:]:
        globals()[what]() if what in globals() else inductor(what)
        torch.xpu.synchronize()
        print("done", what, flush=True)
