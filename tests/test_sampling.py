"""Sampling of images at a grid's points by kernels of ours: torch's samples and own cases, against the CPU."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import anyxpu.ops
from tests import database

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

NAMES = ("nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d")
aten = torch.ops.aten


@pytest.mark.rotates(9)
@pytest.mark.parametrize("op", database.operators(NAMES), ids=database.name)
def test_samples(op, full):
    # Torch 2.15 has cubic samples of volumes, which the host makes.
    database.check(op, full, ("aten::grid_sampler_3d", "aten::grid_sampler_3d_backward"), most=30 if full else 10)


def floats(full: bool, rng: random.Random) -> list[torch.dtype]:
    some = [torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        some.append(torch.float64)
    return [torch.float32, *(some if full else rng.sample(some, 1))]


@pytest.mark.rotates(8)
@pytest.mark.parametrize(("dims", "mode"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_points_in_and_outside(dims, mode, full):
    """Images and grids of every layout, points within, on edges, far outside; gradients of both."""
    rng = random.Random(torch.initial_seed())
    forward, backward = getattr(aten, f"grid_sampler_{dims}d"), getattr(aten, f"grid_sampler_{dims}d_backward")
    every = list(itertools.product(range(3), (False, True)))
    chosen = every if full else [(padding, rng.random() < 0.5) for padding in range(3)]
    for padding, corners in chosen:
        # Kernels of many types and ways take long to compile.
        for dtype in floats(full, rng) if full or padding == rng.randint(0, 2) else [torch.float32]:
            batch, channels = rng.randint(1, 3), rng.choice((1, 3, 5))
            x = torch.randn([batch, channels] + [rng.choice((1, 2, 5, 8)) for _ in range(dims)], dtype=torch.float64)
            grid = torch.randn([batch] + [rng.randint(1, 8) for _ in range(dims)] + [dims], dtype=torch.float64)
            kind = torch.rand(grid.shape)
            grid = torch.where(kind < 0.1, grid * 20, grid)
            if dtype is torch.float32 and mode != 1:
                grid = torch.where(kind > 0.95, torch.sign(grid), grid)
            x, grid = x.to(dtype), grid.to(dtype)
            if rng.random() < 0.5:
                x = x.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
            if rng.random() < 0.3:
                grid = grid.transpose(1, 2).contiguous().transpose(1, 2)
            what = (x.shape, grid.shape, dtype, mode, padding, corners)
            wide = torch.float32 if dtype is torch.float32 else torch.float64
            anyxpu.ops.reset_counters()
            got = forward(x.to("xpu"), grid.to("xpu"), mode, padding, corners)
            want = forward(x.to(wide), grid.to(wide), mode, padding, corners)
            database.near(got, want.to(dtype), what, 1e-4 if dtype is torch.float32 else None)
            assert database.steps(got) == database.steps(want)
            grad = torch.randn(want.shape, dtype=torch.float64).to(dtype)
            for mask in ([True, True], [False, True]):
                operands = (t.to("xpu") for t in (grad, x, grid))
                found = backward(*operands, mode, padding, corners, mask)
                should = backward(*(t.to(wide) for t in (grad, x, grid)), mode, padding, corners, mask)
                assert (found[0] is None) == (should[0] is None)
                for one, other in zip(found, should, strict=True):
                    if other is not None:
                        assert database.steps(one) == database.steps(other)
                        scale = max(1.0, float(other.abs().max()))
                        near_enough = {torch.float32: 1e-4}.get(dtype, database.BOUNDS[dtype])
                        database.near(one / scale, other.to(dtype) / scale, (what, "gradient"), near_enough)
            assert not {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


@pytest.mark.rotates(6)
@pytest.mark.parametrize(("dims", "mode"), [(2, 0), (2, 1), (3, 0), (3, 1)])
def test_points_that_are_no_numbers_and_far_away(dims, mode):
    """They are outside the image, NaN before it as on CUDA (CPU torch makes NaN of some and the last of others)."""
    forward, backward = getattr(aten, f"grid_sampler_{dims}d"), getattr(aten, f"grid_sampler_{dims}d_backward")
    odd = {float("nan"): -5.0, float("inf"): 5.0, -float("inf"): -5.0, 1e20: 5.0, -1e20: -5.0, 3e9: 5.0, 0.25: 0.25}
    given = torch.rand(2, *(1,) * (dims - 2), len(odd), dims + 1, dims) - 0.5
    meant = given.clone()
    for place, (value, plain) in enumerate(odd.items()):
        for grid, one in ((given, value), (meant, plain)):
            for d in range(dims):
                grid[..., place, d, d] = one
            grid[..., place, dims, :] = one
    x = torch.randn(2, 3, *(4, 5, 3)[:dims])
    for padding, corners in itertools.product(range(2), (False, True)):
        want = forward(x, meant, mode, padding, corners)
        got = forward(x.to("xpu"), given.to("xpu"), mode, padding, corners)
        database.near(got, want, (padding, corners), 1e-4)
        grad = torch.randn(want.shape)
        should = backward(grad, x, meant, mode, padding, corners, [True, True])
        found = backward(grad.to("xpu"), x.to("xpu"), given.to("xpu"), mode, padding, corners, [True, True])
        for one, other in zip(found, should, strict=True):
            database.near(one, other, (padding, corners, "gradient"), 1e-4)


def test_many_points_of_one_element_are_added_in_float32():
    """Of 16 bits too, and in every run alike."""
    x = torch.zeros(1, 2, 2, 2, dtype=torch.bfloat16, device="xpu", requires_grad=True)
    grid = torch.full((1, 50, 60, 2), -0.5, dtype=torch.bfloat16, device="xpu")
    made = torch.nn.functional.grid_sample(x, grid, align_corners=False)
    (grad,) = torch.autograd.grad(made.float().sum(), x)
    database.near(grad[:, :, 0, 0], torch.full((1, 2), 3000.0, dtype=torch.bfloat16), "sum")


def test_what_does_not_fit_is_refused_as_on_the_cpu():
    for device in ("cpu", "xpu"):
        x = torch.randn(2, 3, 4, 4, device=device)
        with pytest.raises(RuntimeError, match="same batch size"):
            torch.nn.functional.grid_sample(x, torch.zeros(1, 4, 4, 2, device=device), align_corners=False)
        with pytest.raises(RuntimeError, match="size 2 in last dimension"):
            torch.nn.functional.grid_sample(x, torch.zeros(2, 4, 4, 3, device=device), align_corners=False)
        empty = torch.nn.functional.grid_sample(x, torch.zeros(2, 0, 4, 2, device=device), align_corners=False)
        assert empty.shape == (2, 3, 0, 4)
