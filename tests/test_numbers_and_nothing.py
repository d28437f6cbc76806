"""Tensors without dimensions are served as rows of one; a call over nothing is not the host's work."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyxpu import ops, simulate

INDEX = torch.tensor([0])

OF_NUMBERS = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x, alpha=2),
    "index_add_": lambda x, i: x.clone().index_add_(-1, i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x + 1),
    "index_copy_": lambda x, i: x.clone().index_copy_(0, i, x + 1),
    "index_fill": lambda x, i: x.index_fill(0, i, 7),
    "index_fill of a tensor": lambda x, i: x.index_fill(0, i, x * 0 + 5),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x, "prod"),
    "gather": lambda x, i: x.gather(0, i),
    "gather a number": lambda x, i: x.gather(0, i[0]),
    "gather several": lambda x, i: x.gather(0, i.expand(4)),
    "nonzero": lambda x, i: x.nonzero(),
    "nonzero of zero": lambda x, i: (x * 0).nonzero(),
    "nonzero_static": lambda x, i: torch.nonzero_static(x, size=3),
    "histc": lambda x, i: x.histc(4, -3, 3),
    "unfold": lambda x, i: x.unfold(0, 1, 1),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x, i[0]),
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(x, i[0]),
    "logcumsumexp": lambda x, i: x.logcumsumexp(0),
}
OF_NO_NUMBERS = {
    "masked_select": lambda x, i: x.masked_select(x > 100),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 100, x[:0]),
    "index_select": lambda x, i: x.index_select(1, i[:0]),
    "index_fill": lambda x, i: x.index_fill(0, i[:0], 3),
    "index_add": lambda x, i: x.index_add(0, i[:0], x[:0]),
    "gather": lambda x, i: x.gather(1, i[:0, None].expand(0, 2)),
    "gather by int32": lambda x, i: x.gather(1, i[:, None].int()),
    "scatter by int32": lambda x, i: x.scatter(1, i[:, None].int(), x, reduce="add"),
    "nansum": lambda x, i: torch.where(x > 0, x, float("nan")).nansum(1),
    "histc": lambda x, i: x.histc(9),
}


@pytest.fixture
def strict(monkeypatch):
    """The host serves nothing."""
    from anyxpu.shim import lib

    before = lib().eager()
    lib().set_eager("strict")
    yield
    lib().set_eager(before)


def agree(function, x):
    want, got = function(x, INDEX), function(x.detach().xpu().requires_grad_(x.requires_grad), INDEX.xpu())
    assert (got.dtype, got.device.type) == (want.dtype, "xpu")
    if simulate.active():
        return
    assert got.shape == want.shape
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_number_is_a_row_of_one(strict, name):
    agree(OF_NUMBERS[name], torch.randn(()))


@pytest.mark.parametrize("name", OF_NO_NUMBERS)
def test_an_index_or_a_choice_of_nothing(strict, name):
    agree(OF_NO_NUMBERS[name], torch.randn(3, 4))


@pytest.mark.not_simulated("it compares values")
def test_gradients_of_numbers(strict):
    for name in ("index_select", "index_add", "gather", "unfold", "multi_margin_loss", "multilabel_margin_loss"):
        x = torch.randn((), requires_grad=True)
        there = x.detach().xpu().requires_grad_()
        want = torch.autograd.grad(OF_NUMBERS[name](x, INDEX).sum(), x)
        torch.testing.assert_close(
            torch.autograd.grad(OF_NUMBERS[name](there, INDEX.xpu()).sum(), there)[0].cpu(), *want
        )


@pytest.mark.not_simulated("it compares values")
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16), ids=str)
def test_histograms_of_floats_are_the_cpus(strict, dtype):
    x = torch.randn(3000).to(dtype)
    x[:3] = torch.tensor([-1.0, 1.0, 0.5])
    for bins, low, high in ((10, -1, 1), (7, 0, 0), (100, -3, 0.5), (1, 0, 1)):
        wide = x.float() if dtype.itemsize == 2 else x
        assert torch.equal(x.xpu().histc(bins, low, high).cpu(), wide.histc(bins, low, high).to(dtype))
    with pytest.raises(RuntimeError, match="not finite"):
        torch.tensor([1.0, float("inf")]).xpu().histc(4)


NOTHING = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.reshape(0, 3, 4, 4), 2),
    "reflection_pad1d": lambda x: F.pad(x.reshape(0, 3, 4), (1, 1), "reflect"),
    "im2col": lambda x: F.unfold(x.reshape(0, 3, 4, 4), 2),
    "tril": lambda x: x.reshape(0, 0).tril(),
    "linalg.inv": lambda x: torch.linalg.inv(x.reshape(0, 3, 3)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_calls_over_nothing_are_not_the_hosts(strict, name):
    ops.reset_counters()
    assert NOTHING[name](torch.empty(0, 3, device="xpu")).shape == NOTHING[name](torch.empty(0, 3)).shape
    assert not [operator for operator, ways in ops.counters().items() if "host" in ways]


def test_what_nothing_makes_is_there():
    assert torch.isnan(torch.empty(0, 3, device="xpu").median())
    assert torch.linalg.det(torch.empty(2, 0, 0, device="xpu")).tolist() == [1, 1]
