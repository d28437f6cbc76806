"""Distances between rows and shuffled channels by kernels of ours: torch's samples and own cases."""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from tests import database

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

NAMES = ("cdist", "nn.functional.pdist", "nn.functional.channel_shuffle")
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
aten = torch.ops.aten


@pytest.mark.parametrize("op", database.operators(NAMES), ids=database.name)
@pytest.mark.rotates(2)
def test_samples(op, full):
    # Products of matrices of float64 are the host's.
    database.check(op, full, allowed=("aten::mm", "aten::bmm"), most=40)


def types() -> list[torch.dtype]:
    return [torch.float32] + [torch.float64] * torch.xpu.get_device_properties().has_fp64


def hosted() -> set[str]:
    return {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


@pytest.mark.parametrize("p", POWERS)
def test_distances(p, full):
    """Of batches that are broadcast, of equal rows, of many rows; gradients of both."""
    rng = random.Random(torch.initial_seed())
    for dtype in types():
        bound = 1e-4 if dtype is torch.float32 else 1e-9
        for batches in [((), ()), ((2,), (2,)), ((3, 1), (2,)), ((1,), (4,))][: 4 if full else 3]:
            p_rows, q_rows, width = rng.randint(1, 30), rng.choice((1, 7, 30)), rng.choice((1, 3, 20))
            x = torch.randn(*batches[0], p_rows, width, dtype=dtype)
            y = torch.randn(*batches[1], q_rows, width, dtype=dtype)
            y[..., 0, :] = x[(0,) * len(batches[0])][0]
            here = [t.to("xpu").requires_grad_() for t in (x, y)]
            there = [t.double().requires_grad_() for t in (x, y)]
            mode = "donot_use_mm_for_euclid_dist"
            anyxpu.ops.reset_counters()
            got, want = torch.cdist(*here, p, mode), torch.cdist(*there, p, mode)
            what = (p, dtype, x.shape, y.shape)
            database.near(got, want.to(dtype), what, bound)
            grad = torch.randn(want.shape, dtype=dtype)
            found = torch.autograd.grad(got, here, grad.to("xpu"))
            should = torch.autograd.grad(want, there, grad.double())
            for one, other in zip(found, should, strict=True):
                scale = max(1.0, float(other.abs().max()))
                database.near(one / scale, (other / scale).to(dtype), (what, "gradient"), bound)
            assert not hosted(), hosted()


@pytest.mark.parametrize("p", POWERS)
def test_distances_within(p):
    rng = random.Random(torch.initial_seed())
    for dtype in types():
        bound = 1e-4 if dtype is torch.float32 else 1e-9
        x = torch.randn(rng.randint(2, 40), rng.choice((1, 3, 20)), dtype=dtype)
        x[-1] = x[0]
        here, there = x.to("xpu").requires_grad_(), x.double().requires_grad_()
        anyxpu.ops.reset_counters()
        got, want = torch.nn.functional.pdist(here, p), torch.nn.functional.pdist(there, p)
        database.near(got, want.to(dtype), (p, x.shape), bound)
        grad = torch.randn(want.shape, dtype=dtype)
        (found,) = torch.autograd.grad(got, here, grad.to("xpu"))
        (should,) = torch.autograd.grad(want, there, grad.double())
        scale = max(1.0, float(should.abs().max()))
        database.near(found / scale, (should / scale).to(dtype), (p, x.shape, "gradient"), bound)
        assert not hosted(), hosted()


def test_channels_are_shuffled():
    """Of every memory format; a copy even where nothing moves."""
    for x in (
        torch.randn(2, 12, 5),
        torch.randn(2, 12, 3, 4),
        torch.randn(2, 12, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(2 * 6 * 2 * 3 * 4).view(2, 6, 2, 3, 4).to(memory_format=torch.channels_last_3d),
    ):
        for groups in (1, 2, 3, 6):
            here = x.to("xpu")
            got, want = aten.channel_shuffle(here, groups), aten.channel_shuffle(x, groups)
            database.near(got, want, (x.shape, groups), 0)
            assert database.steps(got) == database.steps(want)
            assert got.data_ptr() != here.data_ptr()
    for device in ("cpu", "xpu"):
        with pytest.raises(RuntimeError, match="divisible by groups"):
            aten.channel_shuffle(torch.zeros(2, 5, 3, device=device), 2)
        with pytest.raises(RuntimeError, match="same number of columns"):
            torch.cdist(torch.zeros(2, 5, device=device), torch.zeros(2, 4, device=device))
