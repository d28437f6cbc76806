"""Losses by margins, and their gradients: against the CPU, in every reduction and type."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled", "no_host"),
]
CLASSES = 5
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}


def alike(loss, x: torch.Tensor, dtype: torch.dtype, *operands: torch.Tensor | None) -> None:
    """The loss and its gradient on xpu are the CPU's, which takes no 16 bits."""
    there, here = x.clone().requires_grad_(), x.to("xpu", dtype).requires_grad_()
    floats = [None if t is None else t.to("xpu", dtype if t.is_floating_point() else None) for t in operands]
    want, got = loss(there, *operands), loss(here, *floats)
    want.sum().backward()
    got.sum().backward()
    for a, b in ((got, want), (here.grad, there.grad)):
        assert (a.device.type, a.dtype, a.shape) == ("xpu", dtype, b.shape)
        if not simulate.active():
            torch.testing.assert_close(a.detach().cpu().float(), b.detach(), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("p", [1, 2])
def test_one_class_a_sample(p, dtype):
    for reduction, weighted, rows in itertools.product(("none", "mean", "sum"), (False, True), ((), (4,))):
        x = torch.randn(*rows, CLASSES).to(dtype).float()
        weight = torch.rand(CLASSES).to(dtype).float() if weighted else None
        target = torch.randint(0, CLASSES, rows)

        def loss(x, target, weight, reduction=reduction):
            return F.multi_margin_loss(x, target, p, 0.75, weight, reduction=reduction)

        alike(loss, x, dtype, target, weight)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_several_classes_a_sample(dtype):
    lists = [torch.cat([torch.randperm(CLASSES)[:n], torch.full((CLASSES - n,), -1)]) for n in (0, 1, 3, CLASSES)]
    target = torch.stack(lists)
    target[1, 2] = 3  # behind the end of its list
    target[2, 1] = target[2, 0]
    for reduction, rows in itertools.product(("none", "mean", "sum"), (slice(None), 2)):
        x = torch.randn(4, CLASSES).to(dtype).float()[rows]
        alike(lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r), x, dtype, target[rows])
    got = torch.ops.aten.multilabel_margin_loss_forward(torch.zeros(4, CLASSES, device="xpu"), target.to("xpu"), 1)
    want = torch.ops.aten.multilabel_margin_loss_forward(torch.zeros(4, CLASSES), target, 1)
    assert torch.equal(got[1].cpu(), want[1]) or simulate.active()
