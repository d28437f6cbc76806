"""Counts and sums by place, against NumPy's and the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anyxpu import simulate
from anyxpu.ops import counting

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


# One part, several of which the last is shorter, and more places than there are rows for.
@pytest.mark.parametrize(("n", "count"), [(1, 1), (100, 7), (4095, 90), (50_001, 100), (70_000, 30_000)])
def test_places_are_counted_and_summed(n, count, no_host):
    for dtype in INTEGERS:
        places = torch.randint(0, min(count, torch.iinfo(dtype).max), (n,)).to(dtype)
        got = counting.summed(places.xpu(), count)
        assert (got.dtype, got.shape) == (torch.int64, (count,))
        assert simulate.active() or torch.equal(got.cpu(), places.bincount(minlength=count))
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(n, dtype=dtype)
        got = counting.summed(places.xpu(), count, values.xpu())
        want = np.bincount(places.numpy(), values.numpy(), count)
        assert (got.dtype, got.shape) == (dtype, (count,))
        if not simulate.active():  # kernels do not execute there
            np.testing.assert_allclose(got.cpu().numpy(), want, atol=2e-4 if dtype is torch.float32 else 1e-11)


@pytest.mark.not_simulated("it compares values")
def test_sums_by_place_repeat(no_host):
    places, values = torch.randint(0, 3, (100_000,)).xpu(), torch.randn(100_000).xpu()
    first = counting.summed(places, 3, values)
    assert all(torch.equal(first, counting.summed(places, 3, values)) for _ in range(5))


@pytest.mark.not_simulated("it compares values")
def test_operators_count(no_host):
    x = torch.randint(0, 300, (20_000,))
    weights = torch.rand(20_000)
    assert torch.equal(x.xpu().bincount(minlength=400).cpu(), x.bincount(minlength=400))
    torch.testing.assert_close(x[::2].xpu().bincount(weights.xpu()[::2]).cpu(), x[::2].bincount(weights[::2]))
    for low, high in ((0, 0), (20, 250)):
        want = torch.from_numpy(np.histogram(x.numpy(), 10, (low, high) if high else None)[0])
        assert torch.equal(x.xpu().histc(10, low, high).cpu(), want)
        wide = torch.rand(20_000) * 300
        assert torch.equal(wide.xpu().histc(10, low, high).cpu(), wide.histc(10, low, high))
    counts = torch.histogram(weights.xpu(), 12, weight=weights.xpu())[0]
    torch.testing.assert_close(counts.cpu(), torch.histogram(weights, 12, weight=weights)[0], atol=1e-2, rtol=1e-5)
