"""Masks: those that always hold are not computed, those that lanes share are branches, and the edges stay exact."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl

from tests.triton_support import launch


@triton.jit
def row_sum_kernel(x, o, N: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for start in range(0, N, B):
        total += tl.load(x + tl.program_id(0) * N + start + at, mask=start + at < N, other=0)
    tl.store(o + tl.program_id(0), tl.sum(total, 0))


def conditions_on_loads(kernel, *args, **constants) -> list[str]:
    """The conditions of ``if`` that the printed loads and stores have, each followed back to what it compares."""
    moved = [a.to("xpu") if isinstance(a, torch.Tensor) else a for a in args]
    text = kernel[(1,)](*moved, **constants).asm["cl"]
    body = text[text.rindex("__kernel") :]
    defined = dict(re.findall(r"\b(?:bool|int) (v\d+) = (.*);", body))

    def expanded(expression: str) -> str:
        return re.sub(
            r"\bv\d+\b", lambda m: expanded(defined[m.group()]) if m.group() in defined else m.group(), expression
        )

    return [expanded(c) for c in re.findall(r"if \(([^{\n]*)\) (?:v\d+ = \*|\*)", body)]


@pytest.mark.parametrize(("size", "masked"), [(2048, False), (2000, True)])
def test_a_loop_that_ends_with_its_blocks_has_no_masks(size, masked):
    x, o = torch.randn(3, size), torch.zeros(3)
    loads = [c for c in conditions_on_loads(row_sum_kernel, x, o, N=size, B=256) if "lane == 0" not in c]
    assert bool(loads) == masked
    launch(row_sum_kernel, (3,), x, o, N=size, B=256)
    torch.testing.assert_close(o, x.double().sum(1).float(), atol=1e-4, rtol=1e-5)


@triton.jit
def add_one_kernel(x, o, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, at < n) + 1, at < n)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 1000, 1008, 1024, 1040])
def test_the_edge_of_a_mask_is_exact(size):
    x, o = torch.randn(2048), torch.zeros(2048)
    launch(add_one_kernel, (8,), x, o, size, B=256)
    assert torch.equal(o[:size], x[:size] + 1) and not o[size:].any()


@pytest.mark.parametrize(("size", "shared"), [(1008, True), (1000, False)])
def test_a_mask_is_a_branch_where_the_size_is_a_multiple_of_the_lanes(size, shared):
    conditions = conditions_on_loads(add_one_kernel, torch.randn(2048), torch.zeros(2048), size, B=256)
    assert conditions and all(("lane" not in c) == shared for c in conditions)


@triton.jit
def halves_kernel(x, y, o, N: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    row, column = at // (2 * N), at % (2 * N)
    left = tl.load(x + row * N + column, column < N, other=0)
    right = tl.load(y + row * N + column - N, column >= N, other=0)
    tl.store(o + at, tl.where(column < N, left, right))


@pytest.mark.parametrize(("columns", "block"), [(512, 256), (512, 1024), (128, 1024), (8, 64), (4, 256)])
def test_two_tensors_are_joined_at_every_width(columns, block):
    rows = 2048 // columns
    x, y, o = torch.randn(rows, columns), torch.randn(rows, columns), torch.zeros(rows, 2 * columns)
    launch(halves_kernel, (4096 // block,), x, y, o, N=columns, B=block)
    assert torch.equal(o, torch.cat((x, y), 1))


@triton.jit
def count(x, o, first, last, B: tl.constexpr):
    at = tl.arange(0, B)
    taken = tl.zeros((B,), tl.int32)
    for i in range(first, last, 3):
        taken += tl.where((i + at >= 0) & (i + at < 64), tl.load(x + at), 0)
    tl.store(o + at, taken)


@triton.jit
def counting_kernel(x, o, first, last, B: tl.constexpr):
    count(x, o, first, last, B)


@triton.jit
def fixed_counting_kernel(x, o, first: tl.constexpr, last: tl.constexpr, B: tl.constexpr):
    count(x, o, first, last, B)


@pytest.mark.parametrize("kernel", [counting_kernel, fixed_counting_kernel], ids=["arguments", "constants"])
@pytest.mark.parametrize(("first", "last"), [(0, 10), (-9, 70), (60, 80), (5, 5), (-20, -3), (0, 33), (0, 34)])
def test_a_loops_counter_is_taken_for_no_more_than_it_is(kernel, first, last):
    x, o = torch.randint(1, 100, (32,), dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    launch(kernel, (1,), x, o, first=first, last=last, B=32)
    at = torch.arange(32)
    wanted = sum((x * ((i + at >= 0) & (i + at < 64)) for i in range(first, last, 3)), torch.zeros_like(x))
    assert torch.equal(o, wanted.int())


@triton.jit
def shifted_kernel(quotients, remainders, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(quotients + at, (at + n) // 16)
    tl.store(remainders + at, (at + n) % 16)


@pytest.mark.parametrize("n", [0, 16, 48, -16, -48, 7, -7])
def test_a_negative_multiple_is_divided_towards_zero(n):
    quotients, remainders = torch.zeros(2, 64, dtype=torch.int32)
    launch(shifted_kernel, (1,), quotients, remainders, n, B=64)
    x = torch.arange(64, dtype=torch.int32) + n
    assert torch.equal(quotients, torch.div(x, 16, rounding_mode="trunc"))
    assert torch.equal(remainders, torch.fmod(x, 16))
