"""What the compiler says of a kernel's work, and that the launcher makes the right number of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from anyxpu import processor
from anyxpu.ops import weight_tiles_kernels
from anyxpu.shim import lib


@triton.jit
def scale_kernel(x, o, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, at < n) * 2, at < n)


@triton.jit
def rows_kernel(x, o, n, rows, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for row in range(rows):
        for start in range(0, n, 2 * B):
            total += tl.load(x + row * n + start + tl.arange(0, B))
        for _ in range(3):
            total *= 2
    tl.store(o + tl.arange(0, B), total)


@triton.jit
def until_kernel(x, o, n):
    i = 0
    while tl.load(x + i) < n:
        i += 1
    tl.store(o, i)


@triton.jit
def shifted_kernel(x, o, n):
    total = 0.0
    for i in range(n, 2 * n):
        total += tl.load(x + i)
    tl.store(o, total)


@triton.jit
def part_kernel(x, o, n, down):
    begin = tl.program_id(0) * down
    total = 0.0
    for i in range(begin, tl.minimum(begin + down, n)):
        total += tl.load(x + i)
    tl.store(o, total)


def work_of(kernel: Any, *args: Any, **constants: Any) -> list[tuple[int, Any]]:
    """Operations and the loops around them; the metadata come from the compiler or, with lists, from its cache."""
    x = torch.zeros(4096, device="xpu")
    work = kernel.warmup(x, x, *args, grid=(1,), **constants).metadata.work
    return [(operations, tuple(map(tuple, loops))) for operations, loops in work]


def test_straight_work_grows_with_the_block(xpu):
    ((small, loops),), ((large, _),) = work_of(scale_kernel, 99, B=64), work_of(scale_kernel, 99, B=1024)
    assert loops == () and 64 * 5 <= small <= 64 * 50
    assert 12 * small < large <= 16 * small


def test_loops_to_arguments_are_named_by_argument_and_step(xpu):
    work = {loops: operations for operations, loops in work_of(rows_kernel, 999, 7, B=64)}
    n, rows = (2, 128), (3, 1)
    assert set(work) == {(), (rows,), (rows, n)}
    assert 3 * 64 <= work[(rows,)] < 3 * 64 + 64, "three rounds of one multiplication, and little else"
    assert 64 * 5 <= work[(rows, n)] <= 64 * 20


def test_a_loop_over_a_part_goes_round_as_often_as_the_part_is_long(xpu):
    work = {loops: operations for operations, loops in work_of(part_kernel, 999, 50)}
    down = (3, 1)
    assert set(work) == {(), (down,)} and 5 <= work[(down,)] <= 20


@pytest.mark.not_simulated("tile registers are a CPU's")
@pytest.mark.skipif(not processor.looks_up(), reason="this CPU has no tile registers of bfloat16")
def test_a_product_that_is_one_call_goes_round_its_k(xpu):
    x = torch.zeros(4096, device="xpu")
    given = {"SCALE_BYTES": 4, "POINTS": False, "KIND": weight_tiles_kernels.INT8}
    compiled = weight_tiles_kernels.product.warmup(*(x,) * 6, 64, 4096, 3, 4096, **given, grid=(2,))
    work = {tuple(map(tuple, loops)): operations for operations, loops in compiled.metadata.work}
    k = (7, 128)
    assert set(work) == {(), (k,)} and work[()] < 500 < work[(k,)]


@pytest.mark.parametrize("kernel", [until_kernel, shifted_kernel])
def test_nothing_is_said_of_other_loops(kernel, xpu):
    assert work_of(kernel, 999) == []


@pytest.mark.parametrize(
    ("ends", "little"), [((1, 1), True), ((40, 0), True), ((0, 10**9), True), ((10**4, 99), False)]
)
def test_a_launch_counts_its_rounds(ends, little, xpu):
    """A driver does little work before the launch returns: seen without waiting."""
    source = b"__kernel void mark(__global int* x, int a, long b) { x[get_group_id(0)] = a + 1; }"
    kernel = lib().load_module(0, "opencl_c", source, "").kernel("mark")
    launch = lib().Launcher(["*i32", "i32", "i64"], (1, 1, 1), 0, [(100, [(1, 2), (2, 3)]), (1, [])])
    n = 4
    x = torch.zeros(n, dtype=torch.int32, pin_memory=True)
    operations = n * (100 * math.ceil(ends[0] / 2) * math.ceil(ends[1] / 3) + 1)
    assert (operations < 200_000) == little
    stream = torch.xpu.Stream()
    stream.synchronize()
    launch(n, 1, 1, stream.sycl_queue, kernel, x, *ends)
    seen = np.array(x.numpy())
    torch.xpu.synchronize()
    assert x.tolist() == [ends[0] + 1] * n
    if little:
        assert seen.tolist() == x.tolist()


def test_wrong_work_is_refused(xpu):
    for work in ([(1, [(0, 1)])], [(1, [(1, 0)])], [(1, [(7, 1)])]):
        with pytest.raises(ValueError, match="no integer argument and step"):
            lib().Launcher(["*i32", "i32"], (1, 1, 1), 0, work)


@pytest.mark.not_simulated("launches on a simulated GPU are watched in Python, for the autotuner")
def test_inductor_calls_the_shim_without_python_between(xpu):
    from torch._inductor.runtime import triton_heuristics

    made = []
    build = triton_heuristics.CachingAutotuner._build_fast_launcher
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            triton_heuristics.CachingAutotuner,
            "_build_fast_launcher",
            lambda *args: made.append(build(*args)) or made[-1],
        )
        torch._dynamo.reset()
        f, x = torch.compile(lambda t: torch.relu(t) + 3), torch.randn(3000)
        for _ in range(3):
            torch.testing.assert_close(f(x.to("xpu")).cpu(), torch.relu(x) + 3)
    assert [type(m.__globals__["runner"]) for m in made] == [lib().Launcher]
    assert made[0]._is_static and made[0].config is not None


def test_inductors_kernels_come_with_their_work(xpu, monkeypatch):
    from anyxpu.triton import static_launch

    found: list[Any] = []

    def load(*args: Any, load: Any = static_launch.StaticXpuLauncher._load_kernel) -> Any:
        loaded = load(*args)
        found.append((Path(args[0]).name, loaded[0].known["work"]))
        return loaded

    monkeypatch.setattr(static_launch.StaticXpuLauncher, "_load_kernel", staticmethod(load))
    torch._dynamo.reset()
    factor = float(np.random.default_rng().uniform(2, 9))  # so that no cache has it loaded
    x = torch.randn(1000)
    got = torch.compile(lambda t: torch.relu(t) * factor)(x.to("xpu")).cpu()
    torch.testing.assert_close(got, torch.relu(x) * factor)
    assert found and all(work for _, work in found), found
