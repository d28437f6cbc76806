"""Products by a CPU's tile registers (AMX): the same as exact ones, whatever way operands and results lie."""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
import triton.language as tl

from anyxpu import processor
from anyxpu.triton import identity
from tests.triton_support import launch

pytestmark = pytest.mark.skipif(not processor.tiles(), reason="this CPU has no tile registers of bfloat16 and int8")

SIZES = (16, 32, 64, 128)


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16, most: int = 3) -> torch.Tensor:
    """Integers, so that bfloat16 has them and f32 their products' sums exactly."""
    return torch.randint(-most, most + 1, shape).to(dtype)


@triton.jit
def product_kernel(a, b, c, o, M, N, K, a_row, a_column, b_row, b_column, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr, TURN_A: tl.constexpr, TURN_B: tl.constexpr, SUM: tl.constexpr):  # fmt: skip
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    sums = tl.load(c + m[:, None] * N + n[None, :], mask=(m < M)[:, None] & (n < N)[None, :], other=0)
    for start in range(0, K, BK):
        at = start + k
        if TURN_A:
            x = tl.load(a + at[:, None] * a_column + m[None, :] * a_row, mask=(at < K)[:, None] & (m < M)[None, :],
                        other=0).T  # fmt: skip
        else:
            x = tl.load(a + m[:, None] * a_row + at[None, :] * a_column, mask=(m < M)[:, None] & (at < K)[None, :],
                        other=0)  # fmt: skip
        if TURN_B:
            y = tl.load(b + n[:, None] * b_column + at[None, :] * b_row, mask=(n < N)[:, None] & (at < K)[None, :],
                        other=0).T  # fmt: skip
        else:
            y = tl.load(b + at[:, None] * b_row + n[None, :] * b_column, mask=(at < K)[:, None] & (n < N)[None, :],
                        other=0)  # fmt: skip
        sums = tl.dot(x, y, sums, out_dtype=SUM)
    tl.store(o + m[:, None] * N + n[None, :], sums, mask=(m < M)[:, None] & (n < N)[None, :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("columns_first", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)), ids=str)
def test_operands_may_lie_either_way_and_end_anywhere(dtype, columns_first, turned):
    blocks = [SIZES[i] for i in torch.randint(len(SIZES), (3,))]
    blocks[2] = max(blocks[2], 64)
    m, n, k = (int(torch.randint(1, 2 * b + 2, ())) for b in blocks)
    wide = torch.int32 if dtype == torch.int8 else torch.float32
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype)
    c = numbers(m, n, dtype=wide)
    o = torch.empty(m, n, dtype=wide, device="xpu")
    on_device = [t.to("xpu") for t in (a, b)]
    on_device = [t.T.contiguous().T if first else t for t, first in zip(on_device, columns_first, strict=True)]
    kernel = product_kernel[(triton.cdiv(m, blocks[0]), triton.cdiv(n, blocks[1]))](
        *on_device, c.to("xpu"), o, m, n, k, *on_device[0].stride(), *on_device[1].stride(), *blocks, *turned,
        SUM=tl.int32 if dtype == torch.int8 else tl.float32,
    )  # fmt: skip
    assert "tdp" in kernel.asm["cl"]
    assert torch.equal(o.cpu().double(), a.double() @ b.double() + c.double())


@pytest.mark.parametrize("sizes", [(16, 16, 32), (16, 64, 32), (128, 16, 64), (32, 32, 256), (256, 32, 32)], ids=str)
def test_tiles_of_every_shape_add_up_in_order(sizes):
    m, n, k = sizes
    a, b, c, o = numbers(m, k), numbers(k, n), numbers(m, n, dtype=torch.float32), torch.zeros(m, n)
    constants = {"BM": m, "BN": n, "BK": k, "TURN_A": False, "TURN_B": False, "SUM": tl.float32}
    launch(product_kernel, (1, 1), a, b, c, o, m, n, k, k, 1, n, 1, **constants)
    assert torch.equal(o.double(), a.double() @ b.double() + c.double())


@triton.jit
def chain_kernel(q, k, v, o, N, S: tl.constexpr, D: tl.constexpr, TURNED: tl.constexpr, KEEP: tl.constexpr):
    i, d = tl.arange(0, S), tl.arange(0, D)
    x = tl.load(q + i[:, None] * D + d[None, :])
    sums = tl.zeros([S, D], tl.float32)
    totals = tl.zeros([S], tl.float32)
    for start in range(0, N, S):
        rows = start + i
        key = tl.load(k + rows[:, None] * D + d[None, :])
        value = tl.load(v + rows[:, None] * D + d[None, :])
        if TURNED:
            weights = tl.exp2(tl.dot(key, x.T) * -0.0625)
            totals += tl.sum(weights, 0)
            left = weights.T.to(tl.bfloat16)
        else:
            weights = tl.exp2(tl.dot(x, key.T) * -0.0625)
            totals += tl.sum(weights, 1)
            left = weights.to(tl.bfloat16)
        if KEEP:  # who else wants the rounded ones
            totals += tl.sum(left.to(tl.float32), 1)
        sums = tl.dot(left, value, sums * 0.5)
    tl.store(o + i[:, None] * D + d[None, :], sums + totals[:, None])


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("keep", [False, True], ids=["", "kept"])
@pytest.mark.parametrize(("size", "depth"), [(32, 64), (64, 32), (128, 128)])
def test_what_is_computed_and_rounded_is_multiplied(turned, keep, size, depth):
    n = 3 * size
    q, k, v, o = numbers(size, depth), numbers(n, depth), numbers(n, depth), torch.zeros(size, depth)
    launch(chain_kernel, (1,), q, k, v, o, n, S=size, D=depth, TURNED=turned, KEEP=keep)
    sums = totals = 0
    for start in range(0, n, size):
        weights = torch.exp2((q.float() @ k[start : start + size].float().T) * -0.0625)
        totals = totals + weights.double().sum(1) + (weights.bfloat16().double().sum(1) if keep else 0)
        sums = sums * 0.5 + weights.bfloat16().double() @ v[start : start + size].double()
    torch.testing.assert_close(o.double(), sums + totals[:, None], rtol=2e-2, atol=2e-2 * float(sums.abs().max()))


@triton.jit
def overwritten_kernel(a, b, o, S: tl.constexpr):
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    x, y = tl.load(a + i * S + j), tl.load(b + i * S + j)
    tl.store(a + i * S + j, tl.zeros([S, S], tl.bfloat16))
    tl.store(o + i * S + j, tl.dot(x, y))


def test_an_operand_is_what_it_was_when_it_was_loaded():
    a, b, o = numbers(64, 64), numbers(64, 64), torch.zeros(64, 64)
    expected = a.double() @ b.double()
    launch(overwritten_kernel, (1,), a, b, o, S=64)
    assert torch.equal(o.double(), expected) and not a.any()


@triton.jit
def shared_kernel(a, o, p, S: tl.constexpr):
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    if tl.program_id(0) == 1:
        return
    x = tl.load(a + i * S + j)
    tl.store(o + i * S + j, tl.dot(x, x.T))
    tl.store(p + i * S + j, tl.dot(x.T, x, tl.dot(x, x)) + x.to(tl.float32))


def test_one_tensor_may_be_every_operand_and_programs_may_end_early():
    a, o, p = numbers(64, 64), torch.zeros(64, 64), torch.zeros(64, 64)
    launch(shared_kernel, (2,), a, o, p, S=64)
    x = a.double()
    assert torch.equal(o.double(), x @ x.T)
    assert torch.equal(p.double(), x.T @ x + x @ x + x)


@triton.jit
def asserting_kernel(a, o, S: tl.constexpr):
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    tl.device_assert(tl.load(a) == 0, "it begins with 0")
    x = tl.load(a + i * S + j)
    tl.device_assert(x == x, "numbers alone")
    tl.store(o + i * S + j, tl.dot(x, x))


def test_every_end_of_a_program_leaves_the_tiles_as_they_were():
    a, o = torch.zeros(64, 64, dtype=torch.bfloat16, device="xpu"), torch.zeros(64, 64, device="xpu")
    kernel = asserting_kernel[(1,)](a, o, S=64, debug=True)
    lines = [line.strip() for line in kernel.asm["cl"].splitlines()]
    ends = [before for before, line in itertools.pairwise(lines) if line == "return;"]
    assert len(ends) == 3 and all("ax_tiles_leave(" in end for end in ends)


def test_onednn_finds_its_own_tiles_between_kernels():
    a, b = numbers(128, 128), numbers(128, 128)
    x, y, o = a.to("xpu"), b.to("xpu"), torch.empty(128, 128, device="xpu")
    zeros, expected = torch.zeros_like(o), a.double() @ b.double()
    for _ in range(20):
        constants = {"BM": 32, "BN": 64, "BK": 32, "TURN_A": False, "TURN_B": False, "SUM": tl.float32}
        product_kernel[(4, 2)](x, y, zeros, o, 128, 128, 128, 128, 1, 128, 1, **constants)
        made = x[:48] @ y  # of another number of rows, so of other tiles
        assert torch.equal(o.cpu().double(), expected)
        assert torch.equal(made.cpu().float(), expected[:48].bfloat16().float())
        assert torch.equal((a[:48] @ b).float(), expected[:48].bfloat16().float())  # PyTorch's own, on the same threads


def test_a_kernel_may_do_without():
    a, b, o = numbers(64, 64), numbers(64, 64), torch.zeros(64, 64, device="xpu")
    x, y, zeros = a.to("xpu"), b.to("xpu"), torch.zeros(64, 64, device="xpu")
    constants = {"BM": 64, "BN": 64, "BK": 64, "TURN_A": False, "TURN_B": False, "SUM": tl.float32}
    kernel = product_kernel[(1, 1)](x, y, zeros, o, 64, 64, 64, 64, 1, 64, 1, **constants, amx=False)
    assert "tdp" not in kernel.asm["cl"]
    assert torch.equal(o.cpu().double(), a.double() @ b.double())


def test_a_process_that_may_not_use_tiles_finds_no_code_that_does(monkeypatch):
    key = identity.host.__wrapped__
    allowed = key()
    monkeypatch.setattr(processor, "_may_use_tiles", lambda: False)
    assert not processor.tiles() and key() != allowed
    monkeypatch.undo()
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "core-avx2")  # whose compiler knows other instructions
    assert not processor.tiles() and not processor.long_vectors() and key() != allowed


@triton.jit
def unpacked_kernel(words, b, o, M: tl.constexpr, N: tl.constexpr, WRITTEN: tl.constexpr):
    """Each word has eight numbers of 4 bits, of which bfloat16 is made by putting 128 before them."""
    m, n, i = tl.arange(0, M), tl.arange(0, N), tl.arange(0, 16)
    k = tl.arange(0, 128)
    w = tl.load(words + m[:, None] * 16 + i[None, :])
    pairs = ((w[:, None, :] >> (tl.arange(0, 4) * 4)[None, :, None]) & 0x000F000F) | 0x43004300
    a = tl.reshape(tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16)), [M, 128]).to(tl.bfloat16, bitcast=True)
    sums = tl.dot(a, tl.load(b + k[:, None] * N + n[None, :]))
    if WRITTEN:  # wanted once more, after the product
        tl.store(o + m[:, None] * 128 + k[None, :], a.to(tl.float32) + tl.sum(sums) * 0)
    else:
        tl.store(o + m[:, None] * N + n[None, :], sums)


@pytest.mark.parametrize("m", [16, 64])
@pytest.mark.parametrize("n", [16, 32])
def test_an_operand_is_unpacked_from_words(m, n):
    numbers_of = torch.randint(0, 16, (m, 16, 8))
    words = (numbers_of << (4 * torch.arange(8))).sum(-1).to(torch.int32)
    a = (128 + numbers_of.view(m, 16, 2, 4).permute(0, 3, 1, 2).reshape(m, 128)).double()
    b = numbers(128, n)
    sums, written = torch.zeros(m, n), torch.zeros(m, 128)
    launch(unpacked_kernel, (1,), words, b, sums, M=m, N=n, WRITTEN=False)
    launch(unpacked_kernel, (1,), words, b, written, M=m, N=n, WRITTEN=True)
    assert torch.equal(sums.double(), a @ b.double())
    assert torch.equal(written.double(), a)
