"""Batch norm and group norm by compiled kernels: against the CPU in float64, forward and backward, in every layout."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.cache import cache_dir
from anyxpu.ops import launching
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-11}
SHAPES = (
    (4, 3, 5, 7),
    (2, 64, 16, 16),
    (33, 5),
    (3, 7, 11),
    (2, 6, 3, 4, 5),
    (16, 130, 1, 1),
    (1, 4, 300, 300),
    (700, 70),
)


def types(full: bool) -> list[torch.dtype]:
    some = [torch.float32, torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        some.append(torch.float64)
    return some if full else [some[0], random.choice(some[1:])]


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, what: object, by: float = 1) -> None:
    """To so many digits of the largest number: a gradient's parts cancel."""
    assert (got.device.type, got.shape) == ("xpu", want.shape), what
    if simulate.active():
        return
    bound = BOUNDS[dtype] * by
    far = (got.cpu().double() - want.double()).abs().max().item()
    assert far <= bound * max(1.0, want.double().abs().max().item()), (what, far)


def hosted() -> dict:
    return {n: w for n, w in anyxpu.ops.counters().items() if "host" in w}


def run(function, device: str, wide: bool, operands, grad: torch.Tensor):
    """Results and gradients of the operands that are there, and the operands themselves as they are afterwards."""
    made = [None if t is None else t.to(device, torch.float64 if wide else None, copy=True) for t in operands]
    for t in made[:3]:
        if t is not None:
            t.requires_grad_()
    out = function(*made)
    out.backward(grad.to(device, out.dtype))
    return [out, *(t.grad for t in made[:3] if t is not None)], made[3:]


@pytest.mark.rotates(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("training", (True, False), ids=("training", "inference"))
def test_batch_norm(shape, training, full):
    """Of numbers far from 0, with and without what is learnt; running statistics of another type, too."""
    for dtype in types(full):
        for affine in (True, False):
            x = (torch.randn(shape, dtype=torch.float64) * 3 + 5).to(dtype)
            if len(shape) == 4 and affine != training:
                x = x.to(memory_format=torch.channels_last)
            weight, bias = (torch.rand(shape[1], dtype=torch.float64).to(dtype) if affine else None for _ in range(2))
            kept = random.choice((dtype, torch.float32)) if dtype is not torch.float64 else dtype
            statistics = [(torch.rand(shape[1], dtype=torch.float64) + 0.5).to(kept) for _ in range(2)]
            grad = torch.randn(shape, dtype=torch.float64).to(dtype)
            function = lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training, 0.3, 1e-3)  # noqa: E731
            anyxpu.ops.reset_counters()
            got, moved = run(function, "xpu", False, (x, weight, bias, *statistics), grad)
            assert not hosted(), (dtype, hosted())
            want, should = run(function, "cpu", True, (x, weight, bias, *statistics), grad)
            assert got[0].dtype == dtype
            for one, other in zip(got, want, strict=True):
                near(one, other, dtype, (dtype, affine), 4)
            for one, other in zip(moved, should, strict=True):
                near(one, other, kept if kept != torch.float32 else dtype, (dtype, affine, "running"))
            same = F.batch_norm(x, *(t.to(dtype) for t in statistics), weight, bias, training, 0.3, 1e-3)
            assert got[0].stride() == same.stride()


@pytest.mark.rotates(5)
@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 2], ids=str)
def test_group_norm(shape, full):
    for dtype in types(full):
        for groups in [g for g in (1, 2, 3, shape[1]) if shape[1] % g == 0]:
            x = (torch.randn(shape, dtype=torch.float64) * 3 - 7).to(dtype)
            affine = random.random() < 0.7
            weight, bias = (torch.rand(shape[1], dtype=torch.float64).to(dtype) if affine else None for _ in range(2))
            grad = torch.randn(shape, dtype=torch.float64).to(dtype)
            if len(shape) == 4 and random.random() < 0.5:
                x, grad = x.to(memory_format=torch.channels_last), grad.transpose(2, 3).contiguous().transpose(2, 3)
            function = lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3)  # noqa: B023, E731
            anyxpu.ops.reset_counters()
            got, _ = run(function, "xpu", False, (x, weight, bias), grad)
            assert not hosted(), (dtype, hosted())
            want, _ = run(function, "cpu", True, (x, weight, bias), grad)
            for one, other in zip(got, want, strict=True):
                near(one, other, dtype, (dtype, groups, affine), 4)


def test_numbers_far_from_zero_keep_their_digits():
    """A variance of 1 around 10,000, where the mean of squares less the square of the mean has no digit left."""
    x = torch.randn(8, 5, 40, 40) + 1e4
    got = F.batch_norm(x.to("xpu"), None, None, training=True)
    near(got, F.batch_norm(x.double(), None, None, training=True), x.dtype, "far", 100)


@pytest.mark.parametrize("shape", [(64, 3, 50, 50), (200_000, 3)], ids=str)
def test_the_mean_of_many_numbers_far_from_zero_is_as_near_as_float32_is(shape):
    x = torch.randn(shape) + 1000
    _, mean, rstd = torch.ops.aten.native_batch_norm(x.to("xpu"), None, None, None, None, True, 0.1, 0.0)
    wide = x.double().transpose(0, 1).reshape(3, -1)
    if not simulate.active():
        torch.testing.assert_close(mean.cpu().double(), wide.mean(1), rtol=1.2e-7, atol=0)
        torch.testing.assert_close(rstd.cpu().double(), wide.var(1, correction=0).rsqrt(), rtol=4e-6, atol=0)


def test_statistics_that_are_returned():
    """Mean and 1 / sqrt(variance + eps), in float32 for 16 bits as on every accelerator; nothing in inference."""
    x = torch.randn(4, 6, 5, 5).bfloat16()
    _, mean, rstd = torch.ops.aten.native_batch_norm(x.to("xpu"), None, None, None, None, True, 0.1, 1e-5)
    assert mean.dtype == rstd.dtype == torch.float32
    wide = x.double().transpose(0, 1).reshape(6, -1)
    near(mean, wide.mean(1), torch.float32, "mean")
    near(rstd, (wide.var(1, correction=0) + 1e-5).rsqrt(), torch.float32, "rstd")
    zero, one = torch.zeros(6, device="xpu"), torch.ones(6, device="xpu")
    _, mean, rstd = torch.ops.aten.native_batch_norm(x.to("xpu").float(), None, None, zero, one, False, 0.1, 1e-5)
    assert mean.shape == rstd.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("running", [True, False])
def test_statistics_into_strided_tensors(running, dtype):
    x = torch.randn(4, 6, 5, 5, device="xpu").to(dtype)
    weight, bias = torch.rand(6, device="xpu").to(dtype), torch.rand(6, device="xpu").to(dtype)
    out, (mean, rstd) = torch.empty_like(x), (torch.empty(12, device="xpu")[::2] for _ in range(2))
    given = [torch.zeros(6, device="xpu"), torch.ones(6, device="xpu")] if running else []
    name = torch.ops.aten._native_batch_norm_legit
    (name.out if running else name.no_stats_out)(
        x, weight, bias, *given, True, 0.1, 1e-5, out=out, save_mean=mean, save_invstd=rstd
    )
    wide = x.cpu().double().transpose(0, 1).reshape(6, -1)
    near(mean, wide.mean(1), torch.float32, "mean")
    near(rstd, (wide.var(1, correction=0) + 1e-5).rsqrt(), torch.float32, "rstd")
    want = F.batch_norm(x.cpu().double(), None, None, weight.cpu().double(), bias.cpu().double(), training=True)
    near(out, want, dtype, "out")
    if running:
        near(given[0], wide.mean(1) / 10, torch.float32, "running")


@pytest.mark.not_simulated("there the host serves nothing meanwhile")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_host_does_not_stand_in_where_its_types_or_sums_are_others(dtype, tmp_path, monkeypatch):
    lib().set_eager("auto")
    (tmp_path / "build").symlink_to(cache_dir("build"))  # else the builder would compile all of the C++ half
    monkeypatch.setenv("ANYXPU_CACHE_DIR", str(tmp_path))  # no kernel is there yet
    monkeypatch.setattr(launching, "_made", {})
    x = torch.randn(2, 3, 19, 17, device="xpu").to(dtype)
    _, mean, _ = torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    assert mean.dtype == torch.float32
    a = x.detach().requires_grad_()
    out = F.max_pool2d(a, 7, 1, 2)
    grad = torch.randn_like(out)
    out.backward(grad)
    b = x.float().requires_grad_()
    F.max_pool2d(b, 7, 1, 2).backward(grad.float())
    assert torch.equal(a.grad, b.grad.to(dtype))  # added up in float32, rounded once


@pytest.mark.rotates(2)
def test_gradients_of_gradients():
    if simulate.active() or not torch.xpu.get_device_properties().has_fp64:
        pytest.skip("finite differences need float64 that is computed")
    x = torch.randn(2, 4, 3, dtype=torch.float64, device="xpu", requires_grad=True)
    weight = torch.rand(4, dtype=x.dtype, device="xpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: F.batch_norm(x, None, None, w, w, True), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: F.batch_norm(x, None, None, w, w, True), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: F.group_norm(x, 2, w, w), (x, weight))


@pytest.mark.parametrize("norm", ["group", "instance", "batch", "layer"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("padded", [False, True], ids=["as-they-are", "padded"])
def test_compiled_gradients_of_images_norms(norm, last, padded):
    """Planes of a size whose strides Inductor pads for a GPU: each reader has to take the strides that there are."""
    norms = {
        "group": lambda x, w, b: F.group_norm(x, 8, w, b),
        "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        "layer": lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (64,), w, b).permute(0, 3, 1, 2),
    }

    def step(x, w, b):
        return torch.logsumexp(norms[norm](x, w, b), 1)

    x = torch.randn(2, 64, 37, 41)
    given = [x.contiguous(memory_format=torch.channels_last) if last else x, torch.rand(64) + 0.5, torch.randn(64)]
    weights = torch.randn(2, 37, 41)
    sides = []
    for device, dtype in (("cpu", torch.float64), ("xpu", torch.float32)):
        leaves = [t.to(dtype).to(device).requires_grad_() for t in given]
        # What pads on a CPU pads on a CPU device; the backward is compiled when it is asked for.
        with torch._inductor.config.patch(disable_padding_cpu=not padded):
            made = (torch.compile(step) if device == "xpu" else step)(*leaves)
            sides.append((made, *torch.autograd.grad(made, leaves, weights.to(dtype).to(device))))
    if simulate.active():
        return
    for got, want in zip(sides[1], sides[0], strict=True):
        torch.testing.assert_close(got.double().cpu(), want, rtol=1e-4, atol=1e-4 * want.abs().max().item())
