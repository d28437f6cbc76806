"""Loops to the edge of 32 bits, and programs that wait for each other."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from anyxpu import simulate

DEVICE = "xpu"

EDGE = 2**31


@triton.jit
def constant_bounds_kernel(out, FROM: tl.constexpr, TO: tl.constexpr, STEP: tl.constexpr):
    rounds = 0
    last = tl.full([], -1, tl.int64)
    for i in range(FROM, TO, STEP):
        rounds += 1
        last = i.to(tl.int64)
    tl.store(out, rounds)
    tl.store(out + 1, last)


@triton.jit
def loaded_bounds_kernel(out, bounds, STEP: tl.constexpr, DTYPE: tl.constexpr):
    rounds = 0
    last = tl.full([], -1, tl.int64)
    for i in tl.range(tl.load(bounds).to(DTYPE), tl.load(bounds + 1).to(DTYPE), STEP):
        rounds += 1
        last = i.to(tl.int64)
    tl.store(out, rounds)
    tl.store(out + 1, last)


CASES = [
    (0, EDGE - 1, 2**24),
    (0, EDGE - 2, 2**24),
    (0, EDGE - 1, 2**24 - 1),
    (EDGE - 10, EDGE - 1, 3),
    (EDGE - 10, EDGE - 1, 1),
    (-EDGE, -5, 2**24 + 3),
    (-7, EDGE - 9, 2**24 + 3),
    (5, 5, 7),
    (9, 5, 7),
    (9, -5, 7),
]
BEYOND = [(0, EDGE, 2**24), (0, EDGE + 5, 2**24), (0, 2 * EDGE - 1, 2**25), (EDGE, EDGE + 10, 3), (0, 3 * EDGE, 2**26)]


def _rounds(start: int, stop: int, step: int) -> list[int]:
    values = range(start, stop, step)
    return [len(values), values[-1] if values else -1]


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(("start", "stop", "step"), CASES + BEYOND)
def test_loops_with_constant_bounds_end_where_they_should(start: int, stop: int, step: int) -> None:
    out = torch.full((2,), -7, dtype=torch.int64, device=DEVICE)
    constant_bounds_kernel[(1,)](out, start, stop, step)
    assert out.tolist() == _rounds(start, stop, step)


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(("start", "stop", "step"), CASES)
def test_loops_with_loaded_bounds_end_where_they_should(start: int, stop: int, step: int) -> None:
    out = torch.full((2,), -7, dtype=torch.int64, device=DEVICE)
    bounds = torch.tensor([start, stop], dtype=torch.int64, device=DEVICE)
    loaded_bounds_kernel[(1,)](out, bounds, step, tl.int32)
    assert out.tolist() == _rounds(start, stop, step)


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(("start", "stop", "step"), [c for c in CASES + BEYOND if c[0] >= 0 and 0 <= c[1] < 2 * EDGE])
def test_unsigned_bounds_are_compared_as_what_they_are(start: int, stop: int, step: int) -> None:
    out = torch.full((2,), -7, dtype=torch.int64, device=DEVICE)
    bounds = torch.tensor([start, stop], dtype=torch.int64, device=DEVICE)
    loaded_bounds_kernel[(1,)](out, bounds, step, tl.uint32)
    assert out.tolist() == _rounds(start, stop, step)


@triton.jit
def meeting_kernel(arrived, seen, count):
    program = tl.program_id(0)
    tl.atomic_add(arrived, 1, sem="acq_rel")
    while tl.atomic_add(arrived, 0, sem="acquire") < count:
        pass
    tl.store(seen + program, tl.load(arrived, volatile=True))


def _concurrent(count: int) -> int:
    kernel = meeting_kernel.warmup(*(torch.zeros(1, dtype=torch.int32, device=DEVICE),) * 2, count, grid=(1,))
    kernel._init_handles()
    return kernel.function.info()["concurrent_groups"]


def test_programs_that_meet_run_where_all_run_at_once() -> None:
    count = min(_concurrent(2), 4)
    assert count >= 1
    arrived = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    seen = torch.zeros(count, dtype=torch.int32, device=DEVICE)
    meeting_kernel[(count,)](arrived, seen, count, launch_cooperative_grid=True)
    assert simulate.active() or seen.tolist() == [count] * count


def test_more_programs_than_run_at_once_are_refused_and_the_device_goes_on() -> None:
    arrived, seen = (torch.zeros(1, dtype=torch.int32, device=DEVICE) for _ in range(2))
    most = _concurrent(2)
    with pytest.raises(RuntimeError, match=rf"over {most + 1} programs .* runs {most} of them at once"):
        meeting_kernel[(most + 1,)](arrived, seen, most + 1, launch_cooperative_grid=True)
    assert torch.ones(3, device=DEVICE).sum().shape == ()


@triton.jit
def between_kernel(x, number, o, B: tl.constexpr):
    at = tl.arange(0, B)
    read = tl.load(x + at)
    tl.store(o + at, read * tl.exp(tl.load(number)))


@triton.jit
def written_before_kernel(x, o, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at, tl.load(x + at) + 1)
    first = tl.load(x)
    tl.store(o + at, tl.load(x + at) * first)


@pytest.mark.not_simulated("compares results")
def test_one_number_read_between_elements_does_not_part_their_loop() -> None:
    x, number = torch.randn(1024), torch.randn(1)
    out = torch.empty(1024, device=DEVICE)
    kernel = between_kernel[(1,)](x.to(DEVICE), number.to(DEVICE), out, B=1024)
    assert kernel.asm["cl"].rpartition("__kernel")[2].count("for (") == 1
    torch.testing.assert_close(out.cpu(), x * number.exp(), atol=1e-6, rtol=1e-5)


@pytest.mark.not_simulated("compares results")
def test_one_number_is_read_after_what_was_written_there_before() -> None:
    x = torch.randn(1024)
    moved, out = x.to(DEVICE), torch.empty(1024, device=DEVICE)
    written_before_kernel[(1,)](moved, out, B=1024)
    torch.testing.assert_close(out.cpu(), (x + 1) * (x[0] + 1), atol=1e-6, rtol=1e-5)
