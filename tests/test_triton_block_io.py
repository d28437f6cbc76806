"""2-D block loads: operands of the matrix engine that need no local memory, and the way around where they do not fit.

The CPU device emulates them, of sub-groups of 16. Which way a kernel went is seen by breaking the one or the other.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anyxpu.triton import lower
from tests.triton_support import needs_block_pointers, needs_engine


@triton.jit
def masked(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m * K + k[None, :], (m < M) & (k < K)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + n, (k < K)[:, None] & (n < N), other=0.0)
        acc = tl.dot(x, y, acc, out_dtype=acc.dtype)
    tl.store(o + m * N + n, acc, (m < M) & (n < N))


@triton.jit
def described(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        acc = tl.dot(x.load([m, start]), y.load([start, n]), acc)
    z.store([m, n], acc)


@triton.jit
def pointed(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x = tl.make_block_ptr(a, (M, K), (K, 1), (m, 0), (BM, BK), (1, 0))
    y = tl.make_block_ptr(b, (K, N), (N, 1), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        left = tl.load(x, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(left, tl.load(y, boundary_check=(0, 1), padding_option="zero"), acc)
        x, y = tl.advance(x, (0, BK)), tl.advance(y, (BK, 0))
    z = tl.make_block_ptr(o, (M, N), (N, 1), (m, n), (BM, BN), (1, 0))
    tl.store(z, acc, boundary_check=(0, 1))


@triton.jit
def shifted(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """``o[i] = a[i - 3] @ b``: the first tile begins above the matrix."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        acc = tl.dot(x.load([m - 3, start]), y.load([start, n]), acc)
    z.store([m, n], acc)


@triton.jit
def half(a, b, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The left operand is computed, and goes through local memory."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m * K + k[None, :], (m < M) & (k < K)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + n, (k < K)[:, None] & (n < N), other=0.0)
        acc = tl.dot(-x, y, acc)
    tl.store(o + m * N + n, -acc, (m < M) & (n < N))


KERNELS = {f.__name__: f for f in (masked, described, pointed, shifted, half)}
TILE = {"BM": 16, "BN": 32, "BK": 32}


@pytest.fixture(params=["loads broken", "stages broken", "whole"])
def way(request, tmp_path, monkeypatch):
    """The prelude of kernels compiled from here on gives zeros for what comes by block loads, or for what does not."""
    known = lower.prelude
    breaks = {
        "loads broken": ("(type)(expression)", "(type)0"),
        "stages broken": ("ax_bits_f16(float x) {", "ax_bits_f16(float x) { return 0;"),
        "whole": ("", ""),
    }

    def prelude(dialect, kernel):
        text, (old, new) = known(dialect, kernel), breaks[request.param]
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(lower, "prelude", prelude)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for kernel in KERNELS.values():
        kernel.device_caches.clear()
    yield request.param
    for kernel in KERNELS.values():
        kernel.device_caches.clear()


def multiplied(kernel, a, b, tile=TILE, offset=0, **options):
    """The kernel's product; its operands begin ``offset`` elements behind an allocation's start."""
    needs_engine(16)
    (m, k), n = a.shape, b.shape[1]
    x, y = (torch.cat([torch.zeros(offset, dtype=t.dtype), t.flatten()]).to("xpu")[offset:] for t in (a, b))
    o = torch.zeros(m, n, device="xpu", dtype=torch.int32 if a.dtype == torch.int8 else torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton calls block pointers deprecated
        grid = (triton.cdiv(m, tile["BM"]), triton.cdiv(n, tile["BN"]))
        kernel[grid](x, y, o, m, n, k, **tile, **options, matrix_engine=16)
    return o.cpu().double()


@pytest.mark.not_simulated("it breaks the CPU device's emulation of block loads")
@pytest.mark.parametrize(
    ("name", "shape", "offset", "fits"),
    [
        ("masked", (27, 72, 88), 0, True),
        ("described", (27, 72, 88), 0, True),
        pytest.param("pointed", (27, 72, 88), 0, True, marks=needs_block_pointers),
        ("masked", (27, 72, 88), 16, False),  # a base that is no multiple of 64 bytes
        ("masked", (27, 72, 90), 0, False),  # a pitch that is no multiple of 16
        ("masked", (27, 24, 88), 0, False),  # a width below 64
    ],
)
@pytest.mark.rotates(9)
def test_block_loads_are_used_where_they_fit(name, shape, offset, fits, way):
    m, n, k = shape
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    got, product = multiplied(KERNELS[name], a, b, offset=offset), a.double() @ b.double()
    broken = {"loads broken": fits, "stages broken": not fits, "whole": False}[way]
    torch.testing.assert_close(got, torch.zeros_like(product) if broken else product, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("tile", "warps"), [((8, 16, 32), 1), ((16, 64, 32), 2), ((64, 32, 64), 8)], ids=str)
@pytest.mark.rotates(8)
def test_every_tile_of_a_ragged_matrix(tile, warps, dtype):
    m, n, k = 70, 80, 208
    if dtype == torch.int8:
        a, b = torch.randint(-128, 127, (m, k), dtype=dtype), torch.randint(-128, 127, (k, n), dtype=dtype)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    sizes = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    got = multiplied(masked, a, b, sizes, keep_warps=True, num_warps=warps)
    torch.testing.assert_close(got, a.double() @ b.double(), atol=1e-3, rtol=1e-4)


def test_a_tile_may_begin_outside_of_its_matrix():
    a, b = torch.randn(40, 64).half(), torch.randn(64, 32).half()
    wanted = torch.nn.functional.pad(a.double() @ b.double(), (0, 0, 3, 0))[:40]
    torch.testing.assert_close(multiplied(shifted, a, b), wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("n", [64, 90])
@pytest.mark.rotates(3)
def test_one_operand_may_be_computed(n):
    a, b = torch.randn(40, 96).half(), torch.randn(96, n).half()
    torch.testing.assert_close(multiplied(half, a, b), a.double() @ b.double(), atol=1e-3, rtol=1e-4)


# --- which loads may be block loads


@triton.jit
def variants(a, b, o, M, K, KIND: tl.constexpr):
    m, k, n = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :], tl.arange(0, 16)[None, :]
    if KIND == "other":
        x = tl.load(a + m * K + k, m < M, other=1.0)
    elif KIND == "columns":
        x = tl.load(a + k * K + m, m < M, other=0.0)
    elif KIND == "inner mask":
        x = tl.load(a + m * K + k, (m < M) & (k >= 5), other=0.0)
    elif KIND == "up to":
        x = tl.load(a + m * K + k, m <= M, other=0.0)
    elif KIND == "other index":
        x = tl.load(a + m * K + k, m + 1 < M, other=0.0)
    elif KIND == "wrapped":
        x = tl.load(a + (m % M) * K + k)
    elif KIND == "two rows":
        x = tl.load(a + m * K + k + m * 2, m < M, other=0.0)
    else:
        x = tl.load(a + m * K + k, m < M, other=0.0)
    if KIND == "stored between":
        tl.store(a + m * K + k, x * 2)
    if KIND == "written between":
        tl.store(a + m * K + k, tl.full((16, 32), 2.0, tl.float16))
    y = tl.trans(tl.load(b + tl.arange(0, 16)[:, None] * K + k))
    tl.store(o + m * 16 + n, tl.dot(x, y))


@pytest.mark.not_simulated("it breaks the CPU device's emulation of block loads")
@pytest.mark.parametrize(
    ("kind", "tiles"),
    [
        ("plain", 1),
        *((k, 0) for k in ("other", "columns", "inner mask", "up to", "other index", "wrapped", "two rows")),
        ("stored between", 0),
        ("written between", 0),
    ],
)
def test_what_a_block_load_cannot_say_is_loaded_by_element(kind, tiles):
    signature = {"a": "*fp16", "b": "*fp16", "o": "*fp32", "M": "i32", "K": "i32", "KIND": "constexpr"}
    source = ASTSource(variants, signature, {"KIND": kind}, {})
    options = {"matrix_engine": 16}
    text = triton.compile(source, target=GPUTarget("xpu", {"device": "cpu"}, 16), options=options).asm["cl"]
    assert text.count("= ax_block_fits(") == tiles
