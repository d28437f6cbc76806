"""Losses as whole kernels: values and gradients beside float64, however operands lie, and in how many launches."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib
from tests.conftest import SEED

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2, torch.float16: 2e-3}
PAIRS = {
    "mse": lambda x, y, **k: F.mse_loss(x, y, **k),
    "smooth_l1": lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.7, **k),
    "huber": lambda x, y, **k: F.huber_loss(x, y, delta=1.3, **k),
    "binary_cross_entropy": lambda x, y, **k: F.binary_cross_entropy(x, y, **k),
    "weighted entropy": lambda x, y, **k: F.binary_cross_entropy(x, y, weight=(y.detach() * 2 + 0.5), **k),
}


def here(dtype):
    if dtype is torch.float64 and not lib().properties(0).has_fp64:
        pytest.skip("no double precision")


def near(got, want, bound):
    assert (got.device.type, got.shape) == ("xpu", want.shape)
    if not simulate.active():
        size = want.abs().max().item() if want.numel() else 0.0
        last = torch.finfo(got.dtype)  # below the least normal number what is right is rounded to its last digit
        atol = bound * size + last.tiny * last.eps / 2
        torch.testing.assert_close(got.detach().double().cpu(), want.detach(), rtol=bound, atol=atol)


def turned(t, how):
    """The same numbers, lying another way."""
    if how == "dense":
        return t
    if how == "turned":
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    return torch.stack((t, t), -1)[..., 0]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.rotates(3)
def test_values_and_gradients_are_float64s_whatever_lies_how(kind, dtype):
    here(dtype)
    anyxpu.ops.reset_counters()
    draw = random.Random(f"{kind} {dtype} {SEED}")
    for reduction in ("none", "mean", "sum"):
        for lie in (("dense", "dense"), ("turned", "turned"), ("dense", "turned"), ("strided", "dense")):
            shape = [draw.randint(1, 9) for _ in range(draw.randint(1, 3))] + [draw.choice([1, 7, 300])]
            x, y = (torch.rand(shape, dtype=torch.float64).to(dtype) for _ in range(2))
            # Probabilities of 16 bits are away from 0 and 1, where slopes are beyond their range.
            x, y = (x * 0.9 + 0.05, y) if "entropy" in kind else (x * 4 - 2, y * 4 - 2)
            sides = []
            for device, kept in (("cpu", torch.float64), ("xpu", dtype)):
                a, b = (turned(t.to(kept).to(device), how) for t, how in zip((x, y), lie, strict=True))
                leaf = a.detach().requires_grad_()
                made = PAIRS[kind](leaf, b, reduction=reduction)
                given = torch.linspace(0.5, 1.5, made.numel(), dtype=torch.float64).to(kept).view(made.shape)
                sides.append((made, *torch.autograd.grad(made, leaf, given.to(device))))
            for got, want in zip(sides[1], sides[0], strict=True):
                assert got.dtype == dtype
                if want.abs().max() < torch.finfo(dtype).max:
                    near(got, want, BOUNDS[dtype])
                elif not simulate.active():  # a sum beyond 16 bits
                    assert torch.equal(got.cpu().isinf(), want.to(dtype).isinf())
            if reduction == "none":
                lie = [[s for s, n in zip(made.stride(), made.shape, strict=True) if n > 1] for made, _ in sides]
                assert lie[0] == lie[1]
    hosts = {name for name, ways in anyxpu.ops.counters().items() if ways.get("host")}
    assert not hosts, hosts


@pytest.mark.parametrize("numbers", [1000, 100_003, 3_000_001])
@pytest.mark.parametrize("kind", ["mse", "huber", "binary_cross_entropy"])
def test_long_sums_keep_their_digits(kind, numbers):
    x, y = torch.rand(2, numbers)
    near(PAIRS[kind](x.xpu(), y.xpu(), reduction="mean"), PAIRS[kind](x.double(), y.double(), reduction="mean"), 1e-6)


def test_shapes_that_go_together_and_such_that_do_not():
    x, y = torch.randn(5, 1), torch.randn(4)
    for reduction in ("none", "mean"):
        with pytest.warns(UserWarning, match="different to the input size"):
            got = F.mse_loss(x.xpu(), y.xpu(), reduction=reduction)
        with pytest.warns(UserWarning, match="different to the input size"):
            near(got, F.mse_loss(x.double(), y.double(), reduction=reduction), 2e-6)
    for device in ("cpu", "xpu"):
        with pytest.raises(RuntimeError, match="size"), pytest.warns(UserWarning):
            F.mse_loss(torch.ones(3, device=device), torch.ones(4, device=device))
    assert torch.isnan(F.mse_loss(torch.ones(0, device="xpu"), torch.ones(0, device="xpu"))) or simulate.active()


def test_what_is_no_number_stays_none():
    x = torch.tensor([torch.nan, 0.0, torch.inf, 1.0])
    for kind in ("mse", "smooth_l1", "huber"):
        for a, b in ((x, torch.zeros(4)), (torch.zeros(4), x), (x, x)):
            got, want = PAIRS[kind](a.xpu(), b.xpu(), reduction="none"), PAIRS[kind](a, b, reduction="none")
            if not simulate.active():
                torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", [(5,), (1, 3), (300, 7), (9000, 4), (3, 5, 4, 6), (2, 3, 70, 90)], ids=str)
@pytest.mark.rotates(5)
def test_classes_of_rows_and_pixels(shape, dtype):
    here(dtype)
    classes = shape[min(len(shape) - 1, 1)]
    places = () if len(shape) == 1 else (shape[0], *shape[2:])
    x, target = torch.randn(shape, dtype=torch.float64).to(dtype), torch.randint(0, classes, places)
    weight = torch.rand(classes, dtype=torch.float64).to(dtype)
    for reduction in ("none", "mean", "sum"):
        for factors in (None, weight):
            for ignored in (-100, int(target.flatten()[0]) if target.numel() > 1 else -100):
                sides = []
                for device, kept in (("cpu", torch.float64), ("xpu", dtype)):
                    leaf = x.to(kept).to(device).requires_grad_()
                    given = None if factors is None else factors.to(kept).to(device)
                    made = F.nll_loss(leaf, target.to(device), given, ignore_index=ignored, reduction=reduction)
                    sides.append((made, *torch.autograd.grad(made.sum(), leaf)))
                for got, want in zip(sides[1], sides[0], strict=True):
                    near(got, want, BOUNDS[dtype])


@pytest.mark.not_simulated("nothing runs there that could find it")
def test_a_class_out_of_range_is_said_and_the_device_goes_on():
    for target in (-1, 4):
        with pytest.raises(torch.AcceleratorError, match="nll_loss: a class is out of range"):
            F.nll_loss(torch.zeros(3, 4, device="xpu"), torch.tensor([0, target, 1], device="xpu")).item()
    if not simulate.active():
        assert F.nll_loss(torch.full((2, 4), -1.5).xpu(), torch.tensor([0, 3]).xpu()).item() == 1.5


@pytest.mark.parametrize("numbers", [4096, 1 << 20])
def test_a_loss_is_two_operators_at_the_most(numbers):
    """Not a chain: its own, and the sum of what its programs made."""
    x, y = torch.rand(2, numbers, device="xpu")
    x.requires_grad_()
    classes = torch.zeros(numbers // 4, dtype=torch.int64, device="xpu")
    pairs = [loss for kind, loss in PAIRS.items() if "weighted" not in kind]
    for loss in (*pairs, lambda x, y: F.nll_loss(x.view(-1, 4), classes)):
        anyxpu.ops.reset_counters()
        made = loss(x, y)
        torch.autograd.grad(made, x, torch.ones_like(made))
        ways = {name: ways["compiled"] for name, ways in anyxpu.ops.counters().items() if ways.get("compiled")}
        sums = ways.pop("aten::sum.dim_IntList", 0) + ways.pop("aten::sum", 0) + ways.pop("aten::div.Tensor", 0)
        assert sums <= (3 if numbers > 1 << 16 else 0), ways
        assert sum(ways.values()) == 2, ways
