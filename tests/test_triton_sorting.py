"""Sorts inside of kernels run as loops, and give what the unrolled networks that they replace give."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers

from anyxpu.triton import sorting
from tests.triton_support import launch

DEVICE = "xpu"


@triton.jit
def sort_kernel(x, o, M: tl.constexpr, N: tl.constexpr, DOWN: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(o + at, tl.sort(tl.load(x + at), 1, DOWN))


@triton.jit
def topk_kernel(x, o, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    to = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(o + to, tl.topk(tl.load(x + at), K))


@triton.jit
def sort_with_index_kernel(
    x, o, i, count, M: tl.constexpr, N: tl.constexpr, STABLE: tl.constexpr, DOWN: tl.constexpr, ALL: tl.constexpr
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    ids = tl.broadcast_to(tl.arange(0, N)[None, :].to(i.dtype.element_ty), [M, N])
    values, ids = triton_helpers.sort_with_index(
        tl.load(x + at), ids, None if ALL else count, 1, stable=STABLE, descending=DOWN
    )
    tl.store(o + at, values)
    tl.store(i + at, ids)


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it takes our sorts away: kernels compiled afterwards have Triton's and Inductor's own."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")  # neither kind is taken from an earlier run

    def take_away() -> None:
        monkeypatch.setattr(sorting, "_LOOPS", {})
        for kernel in (sort_kernel, topk_kernel, sort_with_index_kernel):
            kernel.device_caches.clear()

    return take_away


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Few values, so that many are equal, and the largest and smallest ones."""
    if dtype.is_floating_point:
        x = torch.randn(shape).mul(4).round().to(dtype)
        return x.masked_fill(torch.rand(shape) < 0.1, random.choice([float("inf"), -float("inf")]))
    bounds = torch.iinfo(dtype)
    x = torch.randint(-8 if bounds.min else 0, 8, shape).to(dtype)
    return x.masked_fill(torch.rand(shape) < 0.1, bounds.max).masked_fill(torch.rand(shape) < 0.1, bounds.min)


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_rows_are_sorted(dtype):
    check_rows(values(dtype, 4, 64))


@pytest.mark.parametrize("rows, n", [(1, 2), (1, 1024), (16, 1)])
def test_rows_of_other_shapes_are_sorted(rows, n):
    check_rows(values(torch.float32, rows, n))


def check_rows(x: torch.Tensor) -> None:
    rows, n = x.shape
    for down in (False, True):
        out = torch.empty_like(x)
        launch(sort_kernel, (1,), x, out, M=rows, N=n, DOWN=down)
        assert torch.equal(out, x.sort(1, descending=down).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
@pytest.mark.parametrize("k", [1, 2, 16, 64])
def test_the_largest_are_selected(dtype, k):
    x, out = values(dtype, 4, 64), torch.empty(4, k, dtype=dtype)
    launch(topk_kernel, (1,), x, out, M=4, N=64, K=k)
    assert torch.equal(out, x.topk(k, 1).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int16])
@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
def test_a_stable_sort_keeps_the_order_of_equals_and_nans_last(dtype, down):
    x = values(dtype, 4, 128)
    if dtype.is_floating_point:
        x = x.masked_fill(torch.rand(x.shape) < 0.1, float("nan"))
    out, ids = torch.empty_like(x), torch.empty(4, 128, dtype=torch.int16)
    launch(sort_with_index_kernel, (1,), x, out, ids, 0, M=4, N=128, STABLE=True, DOWN=down, ALL=True)
    expected = x.sort(dim=1, descending=down, stable=True)
    assert torch.equal(ids.long(), expected.indices)
    assert torch.equal(out.nan_to_num(99), expected.values.nan_to_num(99))


@pytest.mark.parametrize("count", [1, 77, 128])
def test_only_the_valid_elements_are_sorted_to_the_front(count):
    x = values(torch.float32, 2, 128)
    out, ids = torch.empty_like(x), torch.empty(2, 128, dtype=torch.int16)
    launch(sort_with_index_kernel, (1,), x, out, ids, count, M=2, N=128, STABLE=True, DOWN=False, ALL=False)
    expected = x[:, :count].sort(dim=1, stable=True)
    assert torch.equal(out[:, :count], expected.values)
    assert torch.equal(ids[:, :count].long(), expected.indices)


@triton.jit
def sort_payload_kernel(x, payload, N: tl.constexpr):
    at = tl.arange(0, N)
    _, moved = triton_helpers.sort_with_index(tl.load(x + at), tl.load(payload + at), None, 0, stable=True)
    tl.store(payload + at, moved)


def test_what_is_sorted_along_keeps_all_its_bits():
    x, payload = torch.randperm(64).float(), torch.randint(-(2**62), 2**62, (64,))
    out = payload.clone()
    launch(sort_payload_kernel, (1,), x, out, N=64)
    assert torch.equal(out, payload[x.argsort()])


@pytest.mark.rotates(3)
def test_results_are_those_of_the_unrolled_networks_bit_by_bit(unrolled):
    x = torch.randn(4, 32).mul(2).round()  # of both zeros
    x = x.masked_fill(torch.rand(x.shape) < 0.2, float("nan"))

    def results() -> list[torch.Tensor]:
        made = []
        for down in (False, True):
            made.append(torch.zeros(4, 32))
            launch(sort_kernel, (1,), x, made[-1], M=4, N=32, DOWN=down)
            for stable in (False, True):
                out, ids = torch.zeros(4, 32), torch.zeros(4, 32, dtype=torch.int16)
                options = {"STABLE": stable, "DOWN": down, "ALL": False}
                launch(sort_with_index_kernel, (1,), x, out, ids, 29, M=4, N=32, **options)
                made += [out, ids]
        for k in (4, 16):
            made.append(torch.zeros(4, k))
            launch(topk_kernel, (1,), x, made[-1], M=4, N=32, K=k)
            made[-1] += 0.0  # runs are joined by a maximum, which of 0 and -0 is either
        return [t.view(torch.int32) if t.is_floating_point() else t for t in made]

    by_loops = results()
    unrolled()
    for ours, theirs in zip(by_loops, results(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_kernel_does_not_grow_with_what_it_sorts():
    sizes = []
    for n in (32, 1024):
        x, out, ids = torch.randn(n).to(DEVICE), torch.empty(n).to(DEVICE), torch.empty(n, dtype=torch.int16).to(DEVICE)
        options = {"STABLE": True, "DOWN": False, "ALL": False}
        made = sort_with_index_kernel.warmup(x, out, ids, 7, M=1, N=n, grid=(1,), **options)
        sizes.append(len(made.asm["cl"].splitlines()))
    assert sizes[1] < 2 * sizes[0] < 500


@pytest.mark.parametrize("shape", [(5, 100), (3, 512)])
def test_compiled_sorts_stay_on_the_device(shape, no_host):
    x = torch.randn(shape).mul(4).round().masked_fill(torch.rand(shape) < 0.1, float("nan"))

    @torch.compile(dynamic=False, fullgraph=True)
    def program(x):
        return torch.sort(x * 1.0, dim=1, stable=True)

    there = x.to(DEVICE)
    got = program(there)
    expected = x.sort(dim=1, stable=True)
    assert torch.equal(got.indices.cpu(), expected.indices)
    assert torch.equal(got.values.cpu().nan_to_num(99), expected.values.nan_to_num(99))
