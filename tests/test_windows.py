"""Pooling and resizing by compiled kernels: against the CPU in float64, forward and backward, in every layout."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-11}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def hosted() -> dict:
    """What the host served of pooling and resizing."""
    return {n: w for n, w in anyxpu.ops.counters().items() if "host" in w and ("pool" in n or "upsample" in n)}


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, what: object) -> None:
    assert (got.device.type, got.shape) == ("xpu", want.shape), what
    if simulate.active():
        return
    bound = BOUNDS[dtype]
    torch.testing.assert_close(got.cpu().double(), want.double(), rtol=bound, atol=bound, msg=lambda m: f"{what}: {m}")


def compare(function, x: torch.Tensor, what: object) -> None:
    """Results, their strides, and gradients of fresh ones."""
    here = x.detach().to("xpu", copy=True).requires_grad_()
    # Places are rounded as x is: which element is nearest hangs on it.
    rounded = x.dtype is torch.float32 or (x.dtype is not torch.float64 and "nearest" in str(what))
    there = x.detach().to(torch.float32 if rounded else torch.float64).requires_grad_()
    anyxpu.ops.reset_counters()
    got, want = function(here), function(there)
    got, want = (got[0], want[0]) if isinstance(got, tuple) else (got, want)
    near(got, want, x.dtype, what)
    assert got.dtype == x.dtype
    grad = torch.randn(want.shape, dtype=torch.float64).to(x.dtype)
    if random.random() < 0.5 and grad.dim() in FORMATS and x.is_contiguous(memory_format=FORMATS[grad.dim()]):
        grad = grad.to(memory_format=FORMATS[grad.dim()])
    got.backward(grad.to("xpu"))
    want.backward(grad.to(want.dtype))
    near(here.grad, there.grad, x.dtype, (what, "backward"))
    assert not hosted(), (what, hosted())


def source(dims: int, dtype: torch.dtype, rng: random.Random, batch: bool = True) -> torch.Tensor:
    shape = [rng.randint(1, 3)] * batch + [rng.choice((1, 3, 8, 33))]
    shape += [rng.randint(5, 18 if dims < 3 else 9) for _ in range(dims)]
    # No two elements alike, so that the CPU's first of the largest is ours in 16 bits too.
    count = torch.Size(shape).numel()
    x = (torch.randperm(count).double() - count / 2).reshape(shape) / (4 if count < 500 else 64)
    x = x.to(dtype) if dtype in (torch.float32, torch.float64) else torch.randn(shape, dtype=torch.float64).to(dtype)
    if batch and x.dim() in FORMATS and rng.random() < 0.5:
        x = x.to(memory_format=FORMATS[x.dim()])
    elif rng.random() < 0.3:
        x = x.transpose(-1, -2)
    return x


def types(full: bool):
    some = [torch.float32, torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        some.append(torch.float64)
    return some if full else [some[0], random.choice(some[1:])]


@pytest.mark.parametrize("dims", (2, 3))
@pytest.mark.parametrize("kind", ("max", "avg", "adaptive_avg"))
@pytest.mark.rotates(5)
def test_pooling(kind, dims, full):
    rng = random.Random(torch.initial_seed())
    for dtype in types(full):
        for _ in range(40 if full else 4):
            x = source(dims, dtype, rng, rng.random() < 0.8)
            if kind == "adaptive_avg":
                size = [rng.choice((2, 3, 5, 7, 20)) for _ in range(dims)]
                function = getattr(F, f"adaptive_avg_pool{dims}d")
                compare(lambda t: function(t, size), x, (kind, x.shape, size))  # noqa: B023
                continue
            size = [rng.randint(1, 4) for _ in range(dims)]
            step = [rng.randint(1, 5) for _ in range(dims)] if rng.random() < 0.7 else None
            padding = [rng.randint(0, k // 2) for k in size]
            ceil = rng.random() < 0.4
            named = {"kernel_size": size, "stride": step, "padding": padding, "ceil_mode": ceil}
            if kind == "max":
                named["dilation"] = [rng.randint(1, 2) if k < 3 else 1 for k in size]
                if dtype in (
                    torch.bfloat16,
                    torch.float16,
                ):  # of equals the CPU's first is not the gradient's only heir
                    x = x.unique()[torch.randperm(x.unique().numel())]
                    x = x[: (x.numel() // 64) * 64].reshape(1, -1, *[4] * dims).repeat_interleave(2, -1)[..., ::2]
                    named["padding"] = 0
                    if x.numel() == 0:
                        continue
            else:
                named["count_include_pad"] = rng.random() < 0.5
                named["divisor_override"] = rng.choice((None, None, 5))
            function = getattr(F, f"{kind}_pool{dims}d")
            try:
                function(x.detach().double(), **named)
            except RuntimeError as error:  # no window fits
                with pytest.raises(RuntimeError, match=str(error).split("(")[0][:20]):
                    function(x.to("xpu"), **named)
                continue
            compare(lambda t: function(t, **named), x, (kind, x.shape, named))  # noqa: B023


def test_the_largest_of_a_window_is_found_where_the_cpu_finds_it():
    """Indices too; a NaN is the largest, minus infinity is an element, and of equals the first one counts."""
    x = torch.randint(-3, 4, (2, 5, 13, 11)).float()
    x[0, 0, 3, 3], x[1, 2, 0, 0], x[0, 1] = float("nan"), float("nan"), float("-inf")
    for layout in (torch.contiguous_format, torch.channels_last):
        for step in (1, 2, 3):
            named = {"kernel_size": 3, "stride": step, "padding": 1, "return_indices": True}
            got = F.max_pool2d(x.to("xpu").to(memory_format=layout), **named)
            want = F.max_pool2d(x.to(memory_format=layout), **named)
            for one, other in zip(got, want, strict=True):
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
                if not simulate.active():
                    torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dims", (1, 2, 3))
@pytest.mark.parametrize("mode", ("nearest", "nearest-exact", "linear", "corners"))
@pytest.mark.rotates(9)
def test_resizing(mode, dims, full):
    rng = random.Random(torch.initial_seed())
    word = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims] if mode in ("linear", "corners") else mode
    for dtype in types(full):
        for _ in range(30 if full else 6):
            x = torch.sin(source(dims, dtype, rng) * 3)
            named = {"mode": word}
            if mode in ("linear", "corners"):
                named["align_corners"] = mode == "corners"
            if rng.random() < 0.5:
                named["size"] = [rng.choice((1, 2, 7, n, 2 * n, 3 * n + 1)) for n in x.shape[2:]]
            else:
                named["scale_factor"] = [rng.choice((0.5, 2.0, 1.7, 3.3, 0.37, 1.45)) for _ in range(dims)]
                if mode != "corners":
                    named["recompute_scale_factor"] = rng.choice((None, True))
            if min(n * f for n, f in zip(x.shape[2:], named.get("scale_factor", [9] * dims), strict=True)) >= 1:
                compare(lambda t: F.interpolate(t, **named), x, (mode, x.shape, named))  # noqa: B023


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
def test_planes_of_one_element_lie_as_their_strides_say(last):
    """Memory is the same in either format: results of more elements show which was meant."""
    x = torch.randn(2, 3, 1, 1).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    x = x.as_strided(x.shape, (3, 1, 3, 3) if last else (3, 1, 1, 1))
    for call in (
        lambda t: F.interpolate(t, size=(4, 5)),
        lambda t: F.adaptive_max_pool2d(t, (8, 2)),
        lambda t: F.adaptive_avg_pool2d(t, (8, 2)),
    ):
        got, want = call(x.to("xpu")), call(x)
        assert got.stride() == want.stride()
        assert simulate.active() or torch.equal(got.cpu(), want)


def test_nearest_of_bytes():
    x = torch.randint(0, 256, (2, 3, 7, 9), dtype=torch.uint8)
    got = F.interpolate(x.to("xpu"), size=(11, 30))
    assert simulate.active() or torch.equal(got.cpu(), F.interpolate(x, size=(11, 30)))


def test_results_into_tensors():
    """Of another layout, and resized."""
    x = torch.randn(2, 3, 10, 12)
    want = F.avg_pool2d(x, 3, 2)
    target = torch.empty(5, 4, 3, 2, device="xpu").permute(3, 2, 1, 0)
    assert torch._C._nn.avg_pool2d(x.to("xpu"), 3, 2, out=target) is target
    near(target, want, x.dtype, "out")
    small = torch.empty(0, device="xpu")
    torch._C._nn.upsample_nearest2d(x.to("xpu"), (20, 24), out=small)
    near(small, F.interpolate(x, size=(20, 24)), x.dtype, "resized")
