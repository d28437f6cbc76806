"""Lanes that share a quotient: the branch without divisions is taken where none wraps, and gives the same numbers."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

BLOCK = 64


@triton.jit
def table_kernel(x, y, o, n, C: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    tl.store(o + at, tl.load(x + at % C, inside) + tl.load(y + at // C, inside), inside)


@triton.jit
def any_table_kernel(x, y, o, n, c, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    tl.store(o + at, tl.load(x + at % c, inside) + tl.load(y + at // c, inside), inside)


@triton.jit
def signed_kernel(quotient, rest, first, c, B: tl.constexpr):
    at = tl.arange(0, B)
    number = first + at
    tl.store(quotient + at, number // c)
    tl.store(rest + at, number % c)


@triton.jit
def column_sums_kernel(x, o, n, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)[:, None]
    rows = tl.arange(0, R)[None, :]
    inside = at < n
    found = tl.load(x + (at % C + C * rows + C * R * (at // C)), inside, other=0.0)
    tl.store(o + at, tl.sum(found, 1)[:, None], inside)


@triton.jit
def looked_up_kernel(x, index, o, n, C: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    found = tl.load(index + at % C, inside, other=0)
    tl.device_assert((found >= 0) & (found < C), "no such place", inside)
    tl.store(o + at, tl.load(x + found + C * (at // C), inside), inside)


@triton.jit
def rearranged_kernel(x, y, o, n, C: tl.constexpr, K: tl.constexpr):
    at = tl.program_id(0) * 64 + tl.arange(0, 64)
    column = at % C
    square = tl.reshape(column, (8, 8))
    turned = tl.reshape(tl.trans(square), (64,))
    total = tl.load(x + column, column < K, other=0.0)
    total += tl.load(y + turned, (turned < K) & (column >= 2), other=0.0)
    total += tl.reshape(tl.load(x + square, (square >= 3) & (square < K), other=0.0), (64,))
    tl.store(o + at, total, at < n)


def sizes() -> list[int]:
    return [1, 3, 7, 8, 9, 15, 17, 49, 900, 961, *random.Random(torch.initial_seed()).sample(range(2, 2000), 4)]


@pytest.mark.parametrize("constant", [True, False])
def test_rows_and_columns_of_a_number(constant):
    for c in sizes():
        n = random.randint(1, 3000)
        x, y, o = torch.randn(c), torch.randn(n // c + 1), torch.full((n + 8,), -1.0)
        moved = [t.to("xpu") for t in (x, y, o)]
        grid = (triton.cdiv(n, BLOCK),)
        if constant:
            table_kernel[grid](*moved, n, C=c, B=BLOCK)
        else:
            any_table_kernel[grid](*moved, n, c, B=BLOCK)
        at = torch.arange(n)
        got = moved[2].cpu()
        assert torch.equal(got[:n], x[at % c] + y[at // c]) and (got[n:] == -1).all(), (c, n)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_numbers_below_nothing_and_at_the_end_of_their_type(dtype):
    """A number that wraps, or is negative, is divided as Triton divides: towards zero."""
    most = torch.iinfo(dtype).max
    firsts = [-1000, -33, -1, 0, 5, most - BLOCK - 1, most - BLOCK + 1, most - 20, -most]
    for first in firsts:
        for c in (1, 2, 7, 8, 30, 4097, most):
            out = [torch.zeros(BLOCK, dtype=dtype, device="xpu") for _ in range(2)]
            # A Python number says its own type by its size.
            signed_kernel[(1,)](*out, first, c, B=BLOCK)
            numbers = [(first + i + most + 1) % (2 * most + 2) - most - 1 for i in range(BLOCK)]
            quotients = [abs(v) // c * (1 if v >= 0 else -1) for v in numbers]
            assert out[0].tolist() == quotients, (first, c)
            assert out[1].tolist() == [v - q * c for v, q in zip(numbers, quotients, strict=True)], (first, c)


def test_what_is_asserted_of_an_index_holds_in_both_bodies():
    """Beside a check, what reads by the index is masked by it, in the one body as in the other."""
    for c in (9, 30, 900):
        n = 3 * c
        x, index = torch.randn(3, c), torch.randperm(c, dtype=torch.int32)
        o = torch.zeros(3, c, device="xpu")
        looked_up_kernel[(triton.cdiv(n, BLOCK),)](x.to("xpu"), index.to("xpu"), o, n, C=c, B=BLOCK, debug=True)
        assert torch.equal(o.cpu(), x[:, index.long()]), c


def test_masks_of_remainders_that_other_lanes_made():
    """A mask holds for all lanes only where these made it: not where it came from others, or as another shape."""
    for c in (9, 17, 30, 130):
        k, blocks = c - 2, 5
        x, y = torch.randn(c), torch.randn(c)
        o = torch.zeros(blocks * 64, device="xpu")
        rearranged_kernel[(blocks,)](x.to("xpu"), y.to("xpu"), o, blocks * 64, C=c, K=k)
        column = torch.arange(blocks * 64) % c
        turned = column.view(blocks, 8, 8).transpose(1, 2).reshape(-1)
        want = torch.where(column < k, x[column], 0.0)
        want = want + torch.where((turned < k) & (column >= 2), y[turned], 0.0)
        want = want + torch.where((column >= 3) & (column < k), x[column], 0.0)
        assert torch.equal(o.cpu(), want), c


def test_sums_over_rows_that_begin_anywhere():
    for c in (5, 30, 49, 225):
        n, rows = 3 * c, 4
        x, o = torch.randn(3, rows, c), torch.zeros(n)
        there = o.to("xpu")
        column_sums_kernel[(triton.cdiv(n, 32),)](x.to("xpu"), there, n, C=c, R=rows, B=32)
        np.testing.assert_allclose(there.cpu(), x.double().sum(1).flatten(), atol=1e-5)


def test_the_choice_is_made_once_for_all_lanes():
    """Two bodies, and in the first no lane divides. On a GPU, whose lanes' accesses are put together, there is one."""
    moved = [torch.randn(2000, device="xpu") for _ in range(3)]
    text = table_kernel[(1,)](*moved, 60, C=900, B=BLOCK).asm["cl"]
    body = text[text.rindex("__kernel") :]
    on_cpu = torch.xpu.get_device_properties().type == "cpu"
    firsts = re.findall(r"if \(\(uint\)(v\d+) <= \d+u && v\d+ <= 900 - \d+\)", body)
    assert bool(firsts) == on_cpu
    for first in firsts:
        assert re.search(rf"int {first} = v\d+ - lane;", body)
