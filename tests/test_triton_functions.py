"""Scalars taken out of tensors, functions that return early wherever they are called, tuples, and casts."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from anyxpu import simulate

DEVICE = "xpu"
WARPS = pytest.mark.parametrize("options", [{}, {"num_warps": 4, "keep_warps": True}], ids=["one", "four"])


def holds(found: torch.Tensor, expected: torch.Tensor) -> None:
    if not simulate.active():
        torch.testing.assert_close(found.cpu(), expected)


@triton.jit
def scalars_kernel(x, y):
    one = tl.load(x + tl.arange(0, 1))
    two = tl.load(x + tl.arange(0, 2))
    a, b = tl.split(two)
    if one.item() > 0:
        tl.store(y, one.item() * 2)
    else:
        tl.store(y, one.item() - 1)
    tl.store(y + 1, a + 10 * b)


@WARPS
@pytest.mark.parametrize("first", [3.0, -3.0])
def test_scalars_out_of_tensors(first, options):
    x, y = torch.tensor([first, 4.0]), torch.zeros(2, device=DEVICE)
    scalars_kernel[(1,)](x.to(DEVICE), y, **options)
    holds(y, torch.tensor([first * 2 if first > 0 else first - 1, first + 40]))


@triton.jit
def early(x, n):
    if n > 3:
        return x * 2
    if n < 1:
        return x - 1
    return x + n


@triton.jit
def twice(x, n):
    if x > 100:
        return x
    return early(early(x, n), n - 2)


@triton.jit
def early_kernel(x, y, n):
    v = tl.load(x)
    if n > 0:  # noqa: SIM108 - a branch is what is tested
        v = early(v, n)
    else:
        v = twice(v, n)
    for i in range(n):
        v = twice(v, i)
        if i % 2 == 1:
            v = early(v, i) + early(v, i - 1)
    tl.store(y, v)


def early_reference(x: float, n: int) -> float:
    return x * 2 if n > 3 else x - 1 if n < 1 else x + n


def twice_reference(x: float, n: int) -> float:
    return x if x > 100 else early_reference(early_reference(x, n), n - 2)


@WARPS
@pytest.mark.parametrize("n", range(7))
def test_functions_that_return_early_in_loops_and_branches(n, options):
    x, y = torch.randint(-3, 3, (1,)).float(), torch.zeros(1, device=DEVICE)
    early_kernel[(1,)](x.to(DEVICE), y, n, **options)
    v = early_reference(x.item(), n) if n > 0 else twice_reference(x.item(), n)
    for i in range(n):
        v = twice_reference(v, i)
        if i % 2 == 1:
            v = early_reference(v, i) + early_reference(v, i - 1)
    holds(y, torch.tensor([v]))


@triton.jit
def tuples_kernel(y, fixed: tl.constexpr, pair, x):
    tl.store(y, tl.load(x) * fixed[0] + fixed[1] + pair[0] * 100 + tl.load(pair[1]))


def test_a_constant_tuple_beside_a_tuple():
    x, y, z = torch.randn(1), torch.zeros(1, device=DEVICE), torch.randn(1)
    tuples_kernel[(1,)](y, (2, 3), (7, z.to(DEVICE)), x.to(DEVICE))
    holds(y, x * 2 + 703 + z)


@triton.jit
def toward_zero_kernel(x, y, T: tl.constexpr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(y + i, tl.load(x + i).to(T, fp_downcast_rounding="rtz").to(tl.float32))


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(
    ("narrow", "name"), [(torch.float8_e5m2, tl.float8e5), (torch.float8_e4m3fn, tl.float8e4nv)], ids=["e5m2", "e4m3"]
)
def test_casts_toward_zero(narrow, name):
    values = torch.arange(256, dtype=torch.uint8).view(narrow).float()
    values = values[values.isfinite()].sort().values
    top = values[-1].item()
    x = torch.cat([torch.randn(3000) * 10 ** torch.randint(-6, 4, (3000,)), values, values * 1.01, torch.zeros(2048)])
    x = x[: 256 * (len(x) // 256)].clamp(-top, top)
    y = torch.empty_like(x, device=DEVICE)
    toward_zero_kernel[(len(x) // 256,)](x.to(DEVICE), y, name)
    positive = values[values >= 0].unique()
    index = torch.searchsorted(positive, x.abs().contiguous(), right=True) - 1
    assert torch.equal(y.cpu(), positive[index].copysign(x))


@triton.jit
def nan_kernel(x, y):
    i = tl.arange(0, 256)
    tl.store(y + i, tl.load(x + i).to(tl.float8e5, bitcast=True).to(tl.bfloat16))


@pytest.mark.not_simulated("compares results")
def test_a_nan_keeps_its_sign():
    codes, y = torch.arange(256, dtype=torch.uint8), torch.empty(256, dtype=torch.bfloat16, device=DEVICE)
    nan_kernel[(1,)](codes.to(DEVICE), y)
    nans = (codes & 0x7F) > 0x7C
    assert torch.equal(y.cpu().isnan(), nans)
    assert torch.equal(torch.signbit(y.cpu()[nans]), codes[nans] >= 128)


@triton.jit
def nothing_kernel(x):
    tl.store(x, 1.0)


@pytest.mark.parametrize("count", [0, 3, 5, -1])
def test_the_number_of_warps_is_a_power_of_two(count):
    with pytest.raises(ValueError, match=f"power of two, not {count}"):
        nothing_kernel[(1,)](torch.zeros(1, device=DEVICE), num_warps=count)
