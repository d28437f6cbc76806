"""Adaptive and fractional max pooling and unpooling by kernels of ours: torch's samples and own cases."""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import maxima
from tests import database

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

NAMES = (
    *(f"nn.functional.adaptive_max_pool{dims}d" for dims in (1, 2, 3)),
    *(f"nn.functional.max_unpool{dims}d" for dims in (1, 2, 3)),
)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
aten = torch.ops.aten


@pytest.mark.parametrize("op", database.operators(NAMES), ids=database.name)
def test_samples(op, full):
    database.check(op, full, most=12)


def floats(full: bool, rng: random.Random) -> list[torch.dtype]:
    some = [torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        some.append(torch.float64)
    return [torch.float32, *(some if full else rng.sample(some, 1))]


def image(dims: int, dtype: torch.dtype, rng: random.Random, least: int = 1, more: int = 8) -> torch.Tensor:
    """Of few values, of which the first counts; NaN and minus infinity among them."""
    shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))] + [
        rng.randint(least, more + least) for _ in range(dims)
    ]
    x = torch.randint(-9, 9, shape).to(dtype)
    x = torch.where(torch.rand(shape) < 0.01, torch.tensor(float("nan"), dtype=dtype), x)
    x = torch.where(torch.rand(shape) < 0.05, torch.tensor(float("-inf"), dtype=dtype), x)
    return x.to(memory_format=LAST[x.dim()]) if x.dim() == dims + 2 and rng.random() < 0.5 else x


def alike(got, want, what, bound=0):
    database.near(got, want, what, bound)
    for one, other in zip(database.tensors(got), database.tensors(want), strict=True):
        assert database.steps(one) == database.steps(other), (what, one.stride(), other.stride())


@pytest.mark.parametrize("dims", (2, 3))
@pytest.mark.parametrize("kind", ("adaptive", "fractional"))
def test_the_largest_of_windows(kind, dims, full):
    """Values, indices and gradients, of every layout, with a batch and without one."""
    rng = random.Random(torch.initial_seed())
    forward, backward = (getattr(aten, f"{kind}_max_pool{dims}d{word}") for word in ("", "_backward"))
    for dtype in floats(full, rng):
        for _ in range(20 if full else 5):
            x = image(dims, dtype, rng, *((1, rng.choice((8, 21))) if kind == "adaptive" else (4,)))
            if kind == "adaptive":
                given = ([rng.randint(1, 8) for _ in range(dims)],)
                if rng.random() < 0.5:  # windows that do not overlap, of whole planes among them
                    given = ([rng.choice([1, n]) for n in x.shape[-dims:]] if rng.random() < 0.5 else [1] * dims,)
                moved = given
            else:
                size = [rng.randint(1, 3) for _ in range(dims)]
                sizes = [rng.randint(1, n - k + (dims == 2)) for n, k in zip(x.shape[-dims:], size, strict=True)]
                lead = x.shape[:2] if x.dim() == dims + 2 else (1, x.shape[0])
                given = (size, sizes, torch.rand(*lead, dims).to(dtype).clamp(max=0.99))
                moved = (size, sizes, given[2].to("xpu"))
            what = (kind, x.shape, dtype, given)
            anyxpu.ops.reset_counters()
            got, want = forward(x.to("xpu"), *moved), forward(x, *given)
            alike(got, want, what)
            grad = torch.randint(-5, 5, want[0].shape).to(dtype)
            more = () if kind == "adaptive" else given[:2]
            found = backward(grad.to("xpu"), x.to("xpu"), *more, want[1].to("xpu"))
            alike(found, backward(grad, x, *more, want[1]), (what, "backward"))
            assert not {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", ["few windows are walked", "elements are gathered, as on a GPU"])
def test_gradients_of_windows_that_overlap_are_rounded_once(dtype, way, monkeypatch):
    if "GPU" in way:
        monkeypatch.setattr(maxima.launching, "on_cpu", lambda device: False)
    x = torch.randint(-3, 4, (4, 16, 9, 11)).to(dtype)
    _, indices = aten.adaptive_max_pool2d(x, [7, 6])
    grad = torch.randn(indices.shape).to(dtype)
    want = aten.adaptive_max_pool2d_backward(grad.double(), x.double(), indices).to(dtype)
    # The operator's own function: what torch calls may be replayed.
    got = maxima.adaptive2d_backward(grad.to("xpu"), x.to("xpu"), indices.to("xpu"))
    alike(got, want, dtype, 0)


@pytest.mark.parametrize("dims", (2, 3))
def test_elements_are_put_back(dims, full):
    rng = random.Random(torch.initial_seed())
    more = ([1] * 3, [0] * 3) if dims == 3 else ()
    operator = getattr(aten, f"max_unpool{dims}d")
    for dtype in floats(full, rng):
        for _ in range(5):
            x = image(dims, dtype, rng)
            planes, sizes = x.shape[:-dims].numel(), [rng.randint(9, 12) for _ in range(dims)]
            count = torch.Size(sizes).numel()
            places = torch.stack([torch.randperm(count)[: x.shape[-dims:].numel()] for _ in range(planes)])
            places = places.reshape(x.shape)
            anyxpu.ops.reset_counters()
            got = operator(x.to("xpu"), places.to("xpu"), sizes, *more)
            alike(got, operator(x, places, sizes, *more), (x.shape, sizes))
            assert not {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


def test_what_is_wrong_is_refused():
    for device in ("cpu", "xpu"):
        x = torch.randn(2, 3, 4, 4, device=device)
        with pytest.raises(RuntimeError, match="too large relative to input"):
            aten.fractional_max_pool2d(x, [3, 3], [4, 4], torch.rand(2, 3, 2, device=device))
        with pytest.raises(RuntimeError, match="same as"):
            aten.max_unpool2d(x, torch.zeros(2, 3, 4, 5, dtype=torch.int64, device=device), [8, 8])
        assert aten.adaptive_max_pool2d(x, [0, 3])[0].shape == (2, 3, 0, 3)
    if simulate.active():
        return
    x = torch.randn(1, 1, 2, 2, device="xpu")
    with pytest.raises(torch.AcceleratorError):
        aten.max_unpool2d(x, torch.full((1, 1, 2, 2), 16, device="xpu"), [4, 4])
        torch.xpu.synchronize()
