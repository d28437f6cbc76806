"""Variances and standard deviations over any dimensions, against float64."""

from __future__ import annotations

import math
import random

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from tests.test_reductions import BOUNDS, DEVICE, FLOATS, SHAPES, has

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

FUNCTIONS = (torch.var, torch.std, torch.var_mean, torch.std_mean)


def check(function, x: torch.Tensor, *args, **options) -> None:
    """Of the CPU's shape, strides and dtype, by kernels alone, and near the exact one."""
    anyxpu.ops.reset_counters()
    got, want = (function(t, *args, **options) for t in (x.to(DEVICE), x))
    assert not [op for op, ways in anyxpu.ops.counters().items() if "host" in ways]
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    exact = function(wide, *args, **options)
    if isinstance(got, torch.Tensor):
        got, want, exact = (got,), (want,), (exact,)
    for ours, theirs, right in zip(got, want, exact, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        if not simulate.active():
            rounding = BOUNDS[torch.empty(0, dtype=ours.dtype).real.dtype]
            torch.testing.assert_close(ours.cpu().to(right.dtype), right, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_they_are_near_the_exact_ones_over_any_dimensions(dtype):
    if not has(dtype):
        pytest.skip("the device has no float64")
    for shape, dim in SHAPES:
        x = (torch.randn(shape) + 3).to(dtype)
        if x.numel() == 1 or math.prod(shape[d] for d in dim or range(len(shape))) < 2:
            continue  # below
        function = random.choice(FUNCTIONS)
        check(function, x, dim, correction=random.choice((0, 1)), keepdim=random.random() < 0.5)


def test_as_they_lie_in_memory():
    x = torch.randn(6, 5, 40, 7)
    for order in random.sample([(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2), (2, 3, 0, 1), (1, 0, 3, 2)], 3):
        turned = x.permute(order).contiguous().permute([order.index(d) for d in range(4)])
        for dims in ((0,), (1,), (3,), (0, 2), (0, 2, 3), (1, 3), (0, 1, 3), (2, 3), None):
            check(random.choice(FUNCTIONS), turned, dims)
    check(torch.var_mean, x[::2, :, 3:31:2], (0, 2))
    check(torch.var_mean, x[:, :1].expand(6, 3, 40, 7), (1, 2))
    check(torch.std_mean, torch.randn(4, 1, 6).expand(4, 5, 6), (0,))


def test_many_numbers_in_parts_keep_their_digits():
    for shape, dims in (
        ((1 << 20,), None), ((3, 50_001), (1,)), ((70_001, 3), (0,)), ((2, 9001, 20), (1,)), ((9, 4, 20_003), (0, 2)),
        ((40_000, 130), (0,)), ((5, 3, 4, 2000), (1, 3)),
    ):  # fmt: skip
        # A thousand deviations from 0, where the mean of squares less the square of the mean has hardly a digit left.
        check(torch.var_mean, torch.randn(shape) + 1000, dims)
        check(torch.std, torch.randn(shape).bfloat16(), dims)


def test_rows_by_the_million_and_long_columns():
    check(torch.var_mean, torch.randn(300_000, 5), 1)
    check(torch.std, torch.randn(5, 200_000), 0)


def test_complex_ones_are_of_both_parts():
    x = torch.randn(40, 9, dtype=torch.complex64)
    for function in FUNCTIONS:
        check(function, x, 0)
        check(function, x.mT, (0, 1), correction=0)


@pytest.mark.not_simulated("compares results")
def test_a_divisor_of_0_is_torchs_and_said_as_torch_says_it():
    for x, options in (
        (torch.randn(()), {}), (torch.randn(1), {}), (torch.randn(4, 1), {"dim": 1}),
        (torch.randn(5), {"correction": 7}), (torch.randn(5, 3), {"dim": 0, "correction": 5}),
    ):  # fmt: skip
        for function in FUNCTIONS:
            said = []
            for device in ("cpu", DEVICE):
                with pytest.warns(UserWarning, match="degrees of freedom") as warned:
                    made = function(x.to(device), **options)
                said.append((made, str(warned[0].message).split(" (Triggered")[0]))
            (theirs, words), (ours, our_words) = said
            assert our_words == words
            torch.testing.assert_close(ours, theirs, equal_nan=True, check_device=False)


@pytest.mark.not_simulated("compares results")
def test_infinite_numbers_have_their_mean_and_no_variance():
    for size in (3, 5000, 100_000):
        for what in (math.inf, -math.inf, math.nan):
            x = torch.randn(size)
            x[random.randrange(size)] = what
            spread, mean = torch.var_mean(x.to(DEVICE))
            assert spread.isnan() and (mean.isnan() if math.isnan(what) else mean == what)


def test_dimensions_that_are_none_are_refused():
    x = torch.randn(3, 4).to(DEVICE)
    with pytest.raises(IndexError):
        x.var(2)
    with pytest.raises(RuntimeError):
        x.var((0, 0))
