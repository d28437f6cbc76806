"""Connectionist temporal classification on the device, against float64 on the CPU, and by counting all alignments."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("compiled", "no_host")


def drawn(longest: int, batch: int, classes: int, most: int, blank: int):
    """Scores, targets ``(N, S)`` without the blank, and lengths."""
    targets = (torch.randint(1, classes, (batch, most)) + blank) % classes
    if random.random() < 0.5:
        targets[:, 1:] = targets[:, :1]  # a blank has to be between equal labels
    times = [random.randint(0, longest) for _ in range(batch)]
    counts = [random.randint(0, most) for _ in range(batch)]
    return torch.randn(longest, batch, classes, dtype=torch.float64), targets, times, counts


def computed(scores, targets, times, counts, blank, zero):
    scores = scores.clone().requires_grad_()
    losses = F.ctc_loss(
        scores.log_softmax(2), targets, times, counts, blank=blank, reduction="none", zero_infinity=zero
    )
    weights = torch.arange(1, len(times) + 1, device=scores.device).to(scores.dtype)
    return losses.detach(), *torch.autograd.grad(losses, scores, weights)


@pytest.mark.not_simulated("it compares values")
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("zero", (False, True))
@pytest.mark.parametrize("form", ("padded", "in a row", "int32"))
def test_losses_and_gradients(form, zero, dtype):
    for _ in range(4):
        classes = random.randint(3, 20)
        blank = random.choice((0, classes - 1, 1))
        drawn_case = drawn(random.randint(1, 60), random.randint(1, 6), classes, random.randint(1, 20), blank)
        scores, targets, times, counts = drawn_case
        scores = scores.to(dtype)
        want = computed(scores.double(), targets, times, counts, blank, zero)
        if form == "in a row":
            targets = torch.cat([t[:n] for t, n in zip(targets, counts, strict=True)])
        given = targets.int() if form == "int32" else targets
        for got, exact in zip(computed(scores.xpu(), given.xpu(), times, counts, blank, zero), want, strict=True):
            bound = 1e-4 if dtype is torch.float32 else 1e-10
            torch.testing.assert_close(got.cpu().double(), exact, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.not_simulated("it compares values")
def test_the_loss_is_that_of_all_alignments():
    """Of every string of classes that becomes the targets once repeats, then blanks, are left out."""
    x, target = torch.randn(5, 1, 3).log_softmax(2), [1, 2, 2]
    total = 0.0
    for path in itertools.product(range(3), repeat=5):
        if [label for label, _ in itertools.groupby(path) if label] == target:
            total += float(torch.exp(sum(x[t, 0, label] for t, label in enumerate(path))))
    loss = F.ctc_loss(x.xpu(), torch.tensor([target]).xpu(), [5], [3], reduction="sum")
    assert float(loss) == pytest.approx(-torch.tensor(total).log().item(), rel=1e-5)


def test_lengths_in_tensors_and_a_module():
    x = torch.randn(12, 2, 5).xpu().log_softmax(2)
    targets, times, counts = torch.tensor([[1, 2, 3], [4, 1, 1]]).xpu(), torch.tensor([12, 9]), torch.tensor([3, 2])
    loss = torch.nn.CTCLoss()
    a, b = loss(x, targets, times, counts), loss(x, targets, times.xpu(), counts.xpu())
    assert a.shape == b.shape == () and torch.equal(a, b)


def test_many_states(xpu):
    x = torch.randn(300, 2, 8).xpu().log_softmax(2).requires_grad_()
    targets = torch.randint(1, 8, (2, 120)).xpu()
    loss = F.ctc_loss(x, targets, [300, 280], [120, 90])
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.shape == x.shape and bool(torch.isfinite(gradient).all()) and not bool(gradient[280:, 1].any())
