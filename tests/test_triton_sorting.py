"""Sorts inside of kernels run as loops, and give what the unrolled networks that they replace give."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path

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


@triton.jit
def _compare_and_swap(x, ids, flip, i: tl.constexpr, n_dims: tl.constexpr):
    """One step of a network as libraries write it: the two of a pair are summed out of a cube of theirs."""
    cube: tl.constexpr = [(x.numel >> n_dims) << i, 2, 1 << (n_dims - i - 1)]
    y, y_idx = tl.reshape(x, cube), tl.reshape(ids, cube)
    mask = tl.arange(0, 2)[None, :, None]
    left = tl.broadcast_to(tl.sum(y * (1 - mask), 1)[:, None, :], cube)
    right = tl.broadcast_to(tl.sum(y * mask, 1)[:, None, :], cube)
    left_idx = tl.broadcast_to(tl.sum(y_idx * (1 - mask), 1)[:, None, :], cube)
    right_idx = tl.broadcast_to(tl.sum(y_idx * mask, 1)[:, None, :], cube)
    left, right = tl.reshape(left, x.shape), tl.reshape(right, x.shape)
    left_idx, right_idx = tl.reshape(left_idx, x.shape), tl.reshape(right_idx, x.shape)
    cond = (left > right) != flip
    bits = tl.where(cond, left.to(tl.int32, bitcast=True) ^ right.to(tl.int32, bitcast=True), 0)
    moved = tl.where(cond, (left_idx ^ right_idx).to(ids.dtype), 0)
    return (x.to(tl.int32, bitcast=True) ^ bits).to(x.dtype, bitcast=True), ids ^ moved


@triton.jit
def _bitonic_merge(x, ids, stage: tl.constexpr, order: tl.constexpr, n_dims: tl.constexpr):
    if order == 2:
        runs: tl.constexpr = [(x.numel >> n_dims) << (n_dims - 1 - stage), 2, 1 << stage]
        flip = tl.reshape(tl.broadcast_to(tl.arange(0, 2)[None, :, None], runs), x.shape)
    else:
        flip = order
    for i in tl.static_range(stage):
        x, ids = _compare_and_swap(x, ids, flip, i + (n_dims - stage), n_dims)
    return x, ids


@triton.jit
def argsort_kernel(x, o, i, M: tl.constexpr, LOG_N: tl.constexpr, DOWN: tl.constexpr):
    N: tl.constexpr = 1 << LOG_N
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    values, ids = tl.load(x + at), tl.load(i + at)
    for stage in tl.static_range(1, LOG_N + 1):
        values, ids = _bitonic_merge(values, ids, stage, 2 if stage < LOG_N else DOWN, LOG_N)
    tl.store(o + at, values)
    tl.store(i + at, ids)


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it takes our sorts away: kernels compiled afterwards have Triton's and Inductor's own."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")  # neither kind is taken from an earlier run

    def take_away() -> None:
        monkeypatch.setattr(sorting, "_LOOPS", {})
        for kernel in (sort_kernel, topk_kernel, sort_with_index_kernel, argsort_kernel):
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


@pytest.mark.rotates(5)
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


def argsorted(x: torch.Tensor, dtype: torch.dtype, down: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rows, n = x.shape
    out, ids = torch.zeros_like(x), torch.arange(n, dtype=dtype).expand(rows, n).contiguous()
    launch(argsort_kernel, (1,), x, out, ids, M=rows, LOG_N=n.bit_length() - 1, DOWN=down)
    return out, ids


@pytest.mark.rotates(5)
@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=["float32", "int32"])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_networks_that_libraries_carry_themselves_give_the_same_bits(dtype, ids, down, unrolled):
    x = torch.randn(4, 16).mul(2).round().add(0.0).to(dtype)  # many are equal; no -0, whose sign a sum loses
    ours = argsorted(x, ids, down)
    unrolled()
    for got, theirs in zip(ours, argsorted(x, ids, down), strict=True):
        assert torch.equal(got.view(torch.int32), theirs.view(torch.int32))
    assert torch.equal(ours[0], x.sort(descending=down).values)
    assert torch.equal(x.gather(1, ours[1].long()), ours[0])


def test_a_network_of_a_library_is_short_code_and_sorts_infinities_and_zeros():
    x = torch.randn(2, 512).mul(4).round().masked_fill(torch.rand(2, 512) < 0.1, float("inf"))
    assert torch.equal(argsorted(x, torch.int32, True)[0], x.sort(descending=True).values)
    a, o, i = (t.to(DEVICE) for t in (x, torch.empty_like(x), torch.zeros(2, 512, dtype=torch.int32)))
    made = argsort_kernel.warmup(a, o, i, M=2, LOG_N=9, DOWN=True, grid=(1,))
    assert len(made.asm["cl"].splitlines()) < 1500


@pytest.mark.parametrize("changed", ["the order of the pair", "another step", "a question about NaN", "nothing"])
def test_only_a_network_that_reads_as_expected_is_replaced(changed, tmp_path):
    text = Path(__file__).read_text()
    network = text[text.index("@triton.jit\ndef _compare_and_swap") : text.index("@triton.jit\ndef argsort_kernel")]
    if changed == "the order of the pair":
        network = network.replace("(left > right) != flip", "(left < right) != flip")
    if changed == "another step":
        network = network.replace("i + (n_dims - stage)", "n_dims - 1 - i")
    if changed == "a question about NaN":
        network = network.replace("    bits = ", "    cond = cond & (left == left)\n    bits = ")
    (path := tmp_path / "network.py").write_text("import triton\nimport triton.language as tl\n\n\n" + network)
    spec = importlib.util.spec_from_file_location("network", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    assert sorting._merges_with_ids(made._bitonic_merge) == (changed == "nothing")


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
