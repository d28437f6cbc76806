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


@triton.jit
def tiles_kernel(x, chosen, o, rows, columns, low, R: tl.constexpr, C: tl.constexpr):
    """The rows that are chosen, from row ``low`` on, which may be before the first."""
    i = low + tl.program_id(0) * R + tl.arange(0, R)[:, None]
    j = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    there = (i < rows) & (i >= 0)
    taken = tl.load(chosen + i, mask=there, other=0) != 0
    mask = (i < rows) & (j < columns) & (i >= 0) & taken
    tl.store(o + i * columns + j, tl.load(x + i * columns + j, mask=mask, other=0) * 2, mask=mask)


@pytest.mark.parametrize("low", [0, -5, 3])
@pytest.mark.parametrize("rows, columns", [(8, 64), (16, 64), (7, 63), (9, 65), (31, 130), (1, 1), (24, 192)])
def test_tiles_that_lie_inside_and_those_that_do_not_are_exact(rows, columns, low):
    x, chosen, o = (
        torch.randn(rows, columns),
        torch.randint(0, 2, (rows,), dtype=torch.int32),
        torch.zeros(rows, columns),
    )
    grid = (triton.cdiv(rows + 5, 8), triton.cdiv(columns, 64))
    launch(tiles_kernel, grid, x, chosen, o, rows, columns, low, R=8, C=64)
    wanted = x * 2 * chosen[:, None]
    wanted[: max(low, 0)] = 0
    assert torch.equal(o, wanted)


@triton.jit
def far_kernel(x, o, base, bound, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=base + at < bound, other=-1.0))


@pytest.mark.parametrize(
    "base, bound", [(2**31 - 65, 2**31 - 1), (2**31 - 64, 2**31 - 1), (-(2**31), -(2**31) + 7), (0, 64)]
)
def test_bounds_at_the_ends_of_32_bits_hold_as_they_are_written(base, bound):
    x, o = torch.randn(64), torch.zeros(64)
    launch(far_kernel, (1,), x, o, base, bound, B=64)
    at = (torch.arange(64) + base + 2**31) % 2**32 - 2**31  # as 32 bits add
    assert torch.equal(o, torch.where(at < bound, x, -1.0))


@triton.jit
def sums_kernel(x, o, base, more, bound, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=(base + at) + (more + at * 0) < bound, other=-1.0))
    tl.store(o + B + at, tl.load(x + at, mask=(base + at) + more < bound, other=-1.0))


@pytest.mark.parametrize("base, more, bound", [(-(2**31), -9, 5), (2**31 - 70, 100, 5), (-9, 5, 60), (-100, -9, 5)])
def test_sums_that_wrap_are_compared_as_they_wrap(base, more, bound):
    x, o = torch.randn(64), torch.zeros(128)
    launch(sums_kernel, (1,), x, o, base, more, bound, B=64)
    at = (torch.arange(64) + base + more + 2**31) % 2**32 - 2**31
    assert torch.equal(o, torch.where(at < bound, x, -1.0).repeat(2))


def test_a_cpu_whose_masked_accesses_are_slow_has_a_loop_without():
    x, o = torch.randn(4096, device="xpu"), torch.zeros(4096, device="xpu")
    text = add_one_kernel[(8,)](x, o, 1001, B=512).asm["cl"]
    lanes = re.search(r"sub_group_size\((\d+)\)", text)
    if lanes is None or int(lanes[1]) > 8 or torch.xpu.get_device_properties().type != "cpu":
        pytest.skip("a device with masked accesses")
    first, second = text[text.rindex("__kernel") :].split("else {")
    assert "<=" in first and "= *" in first and not re.search(r"if \(v\d+\)", first)
    assert re.search(r"if \(v\d+\)", second)


@triton.jit
def ragged_rows_kernel(x, o, sums, M, N, low, R: tl.constexpr, B: tl.constexpr):
    """Rows of which each tile has some registers inside, one across the end, and some behind it."""
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, B)[None, :]
    inside = (column < N) & (row < M)
    value = tl.load(x + row * N + column, inside, other=-3.0)
    tl.store(sums + tl.program_id(0) * R + tl.arange(0, R), tl.sum(value, 1))
    tl.store(o + row * N + column, value * 2, inside & (column >= low))


@pytest.mark.parametrize("rows", [1, 4])
def test_registers_inside_across_and_behind_the_end(rows):
    block, m = 256, 6
    for n in (1, 7, 8, 9, 100, 197, 248, 255, 256):
        low = n // 3
        x, o, sums = torch.randn(m, n), torch.full((m, n), 9.0), torch.zeros(8)
        launch(ragged_rows_kernel, (8 // rows,), x, o, sums, m, n, low, R=rows, B=block)
        whole = torch.full((8, block), -3.0)
        whole[:m, :n] = x
        torch.testing.assert_close(sums, whole.double().sum(1).float(), atol=1e-4, rtol=1e-5)
        assert torch.equal(o[:, low:], x[:, low:] * 2) and (o[:, :low] == 9).all(), n


@triton.jit
def long_rows_kernel(x, o, first, N, B: tl.constexpr):
    """Numbers of 64 bits, and scalars that are not known to be exact."""
    at = first.to(tl.int64) + tl.arange(0, B)
    tl.store(o + tl.arange(0, B), tl.load(x + tl.arange(0, B), at < N, other=-1.0))


def test_numbers_of_64_bits_are_compared_as_they_are():
    for first, n in ((0, 100), (-50, 3), (2**31 - 20, 2**31 - 1), (5, 0)):
        x, o = torch.randn(256), torch.zeros(256)
        launch(long_rows_kernel, (1,), x, o, first, n, B=256)
        assert torch.equal(o, torch.where(torch.arange(256) + first < n, x, -1.0)), (first, n)


def test_registers_are_read_without_masks_where_they_lie_inside():
    m, n = 6, 197
    x, o, sums = (torch.randn(m, n, device="xpu") for _ in range(3))
    text = ragged_rows_kernel[(m,)](x, o, sums, m, n, 0, R=1, B=256).asm["cl"]
    lanes = re.search(r"sub_group_size\((\d+)\)", text)
    if lanes is None or int(lanes[1]) > 8 or torch.xpu.get_device_properties().type != "cpu":
        pytest.skip("a device with masked accesses")
    body = text[text.rindex("__kernel") :]
    assert re.search(r"if \(.*<< 3.*\+ 8L <= \(long\)arg4", body)
