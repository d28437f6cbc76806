"""A kernel's groups and a copy's pieces, that several threads share with the one that launches: each is done once."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

BLOCK = 256


@triton.jit
def count_kernel(o, B: tl.constexpr):
    """One more in each place, which only this group has."""
    wide, high = tl.num_programs(0), tl.num_programs(1)
    group = (tl.program_id(2) * high + tl.program_id(1)) * wide + tl.program_id(0)
    at = o + group * B + tl.arange(0, B)
    tl.store(at, tl.load(at) + 1)


def grids() -> list[tuple[int, int, int]]:
    drawn = random.Random(torch.initial_seed())
    many = [(drawn.randint(1, 60), drawn.randint(1, 20), drawn.randint(1, 12)) for _ in range(12)]
    return [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 1, 1), (997, 1, 1), (1, 499, 3), (1, 1, 1009), *many]


def test_each_group_runs_once():
    for grid in grids():
        o = torch.zeros(grid[0] * grid[1] * grid[2] * BLOCK, dtype=torch.int32, device="xpu")
        for _ in range(20):
            count_kernel[grid](o, BLOCK)
        assert (o.cpu() == 20).all(), grid


def test_one_launch_follows_the_other():
    """Whatever thread did a place before, the next launch finds it done."""
    n, rounds = 3 * 10**5 + 7, 60
    x = torch.randint(-(2**20), 2**20, (n,), dtype=torch.int64)
    y, shifted = x.to("xpu"), x
    for i in range(rounds):
        y = torch.roll(y, 1 + i * 1009) + y
        shifted = torch.roll(shifted, 1 + i * 1009) + shifted
    assert torch.equal(y.cpu(), shifted)


def test_threads_that_launch_at_once_have_their_own_results():
    n, wrong = 200_003, []
    inputs = [torch.randn(n) for _ in range(4)]

    def work(i: int) -> None:
        stream = torch.xpu.Stream()
        with torch.xpu.stream(stream):
            x, want = inputs[i].to("xpu"), inputs[i] * 2 + i
            for _ in range(100):
                y = x * 2 + i
                if not torch.equal(y.cpu(), want):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("bytes", [1, 4095, 128 << 10, (128 << 10) + 1, (1 << 20) - 3, (5 << 20) + 77])
def test_copies_and_fills_of_any_size(bytes):
    """And what lies around them stays."""
    host = torch.randint(0, 255, (bytes + 64,), dtype=torch.uint8)
    x, o = host.to("xpu"), torch.full((bytes + 64,), 255, dtype=torch.uint8, device="xpu")
    o[17 : 17 + bytes].copy_(x[3 : 3 + bytes])
    want = torch.full_like(host, 255)
    want[17 : 17 + bytes] = host[3 : 3 + bytes]
    assert torch.equal(o.cpu(), want)
    o[17 : 17 + bytes].zero_()
    want[17 : 17 + bytes] = 0
    assert torch.equal(o.cpu(), want)
