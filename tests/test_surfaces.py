"""What programs call beside operators and modules: optimizers, distributions, utilities. Nothing of them is the host's.

What the host may serve is named in :data:`HOST`, with why; a case that needs none of it any more does not fail.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, rnn

import anyxpu.ops
from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

HOST = {
    r"_?linalg_|cholesky|triangular_solve|lu_|geqrf|ormqr": "linear algebra has no kernels yet",
    r"_fft_": "transforms on a CPU device are its library's, which is faster (ops/fourier.py)",
    r"_standard_gamma_grad|_dirichlet_grad": "gradients of drawing have no kernel yet",
}


def served(call: Callable[[str], Any]) -> Any:
    """What ``call("xpu")`` returns; fails where the host served what is not in :data:`HOST`."""
    anyxpu.ops.reset_counters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = call("xpu")
    hosted = {name.removeprefix("aten::") for name, ways in anyxpu.ops.counters().items() if ways.get("host")}
    left = {name for name in hosted if not any(re.match(known, name) for known in HOST)}
    assert not left or simulate.active(), left
    return made


def random(device: str, *shape: int) -> Tensor:
    """Normal numbers, the same ones on every device."""
    return torch.randn(shape).to(device)


# --- optimizers -----------------------------------------------------------------------------------------------------

OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}, {"maximize": True},
    {"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}, {"amsgrad": True}, {"line_search_fn": "strong_wolfe"},
)  # fmt: skip
OPTIMIZERS = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
]


def known(name: str) -> list[dict[str, Any]]:
    """The options that an optimizer has."""
    found = []
    for options in OPTIONS:
        try:
            getattr(torch.optim, name)([nn.Parameter(torch.ones(2, 2))], lr=0.01, **options)
        except (TypeError, ValueError, RuntimeError):  # an option of others, or not beside these
            continue
        found.append(options)
    return found


def trained(name: str, options: dict[str, Any], device: str) -> list[Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x = random(device, 4, 8)
    matrices = [p for p in model.parameters() if p.dim() == 2]  # Muon has no other parameters
    optimizer = getattr(torch.optim, name)(matrices if name == "Muon" else list(model.parameters()), lr=0.01, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return [p.detach() for p in model.parameters()]


@pytest.mark.rotates(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_their_options(name):
    for options in known(name):
        got = served(lambda device: trained(name, options, device))  # noqa: B023
        if simulate.active():
            continue
        if options.get("capturable"):
            options = {}  # which the CPU has not, and changes nothing
        bound = 5e-2 if name in ("Muon", "LBFGS") else 1e-4  # products in bfloat16; a search that ends by a threshold
        for one, other in zip(got, trained(name, options, "cpu"), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=bound, atol=bound, msg=lambda m: f"{options}: {m}")  # noqa: B023


# --- distributions --------------------------------------------------------------------------------------------------

Made = Callable[[Callable[..., Tensor]], D.Distribution]
DISTRIBUTIONS: dict[str, Made] = {
    "Normal": lambda t: D.Normal(t(0.0, 1.0), t(1.0, 2.0)),
    "Beta": lambda t: D.Beta(t(1.0, 2.0), t(2.0, 0.5)),
    "Gamma": lambda t: D.Gamma(t(1.0, 2.0), t(2.0, 0.5)),
    "Dirichlet": lambda t: D.Dirichlet(t(1.0, 2.0, 0.5)),
    "Bernoulli": lambda t: D.Bernoulli(t(0.2, 0.5)),
    "Categorical": lambda t: D.Categorical(t(0.2, 0.5, 0.3)),
    "Binomial": lambda t: D.Binomial(10, t(0.2, 0.5)),
    "Poisson": lambda t: D.Poisson(t(1.0, 5.0)),
    "Exponential": lambda t: D.Exponential(t(1.0, 2.0)),
    "Cauchy": lambda t: D.Cauchy(t(0.0, 1.0), t(1.0, 2.0)),
    "Laplace": lambda t: D.Laplace(t(0.0, 1.0), t(1.0, 2.0)),
    "Gumbel": lambda t: D.Gumbel(t(0.0, 1.0), t(1.0, 2.0)),
    "Geometric": lambda t: D.Geometric(t(0.3, 0.6)),
    "HalfNormal": lambda t: D.HalfNormal(t(1.0, 2.0)),
    "HalfCauchy": lambda t: D.HalfCauchy(t(1.0, 2.0)),
    "LogNormal": lambda t: D.LogNormal(t(0.0, 1.0), t(1.0, 2.0)),
    "Multinomial": lambda t: D.Multinomial(5, t(0.2, 0.3, 0.5)),
    "MultivariateNormal": lambda t: D.MultivariateNormal(t(0.0, 1.0), torch.eye(2, device=t(0.0).device)),
    "Pareto": lambda t: D.Pareto(t(1.0, 2.0), t(3.0, 4.0)),
    "StudentT": lambda t: D.StudentT(t(3.0, 5.0)),
    "Uniform": lambda t: D.Uniform(t(0.0, 1.0), t(2.0, 3.0)),
    "VonMises": lambda t: D.VonMises(t(0.0, 1.0), t(1.0, 2.0)),
    "Weibull": lambda t: D.Weibull(t(1.0, 2.0), t(1.0, 2.0)),
    "Chi2": lambda t: D.Chi2(t(2.0, 3.0)),
    "InverseGamma": lambda t: D.InverseGamma(t(3.0, 4.0), t(1.0, 2.0)),
    "Kumaraswamy": lambda t: D.Kumaraswamy(t(1.0, 2.0), t(2.0, 3.0)),
    "NegativeBinomial": lambda t: D.NegativeBinomial(t(3.0, 4.0), t(0.3, 0.6)),
    "ContinuousBernoulli": lambda t: D.ContinuousBernoulli(t(0.3, 0.6)),
    "Mixture": lambda t: D.MixtureSameFamily(D.Categorical(t(0.3, 0.7)), D.Normal(t(0.0, 1.0), t(1.0, 2.0))),
}


def of(make: Made, device: str) -> D.Distribution:
    return make(lambda *numbers: torch.tensor(numbers, device=device, requires_grad=True))


@pytest.mark.not_simulated("torch.distributions looks at the numbers, and there nothing is computed")
@pytest.mark.rotates(5)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    """Drawn from, with gradients where they have some; densities, moments and entropy are the CPU's."""

    def drawn(device: str) -> tuple[D.Distribution, Tensor]:
        made = of(DISTRIBUTIONS[name], device)
        if made.has_rsample:
            made.rsample((5,)).sum().backward(retain_graph=True)
        return made, made.sample((4,)).detach()

    here, value = served(drawn)
    there = of(DISTRIBUTIONS[name], "cpu")
    for what in ("log_prob", "cdf", "mean", "variance", "entropy"):

        def asked(made: D.Distribution, at: Tensor, what: str = what) -> Any:
            found = getattr(made, what)
            return (found(at) if what in ("log_prob", "cdf") else found() if callable(found) else found).detach()

        try:
            want = asked(there, value.cpu())
        except (NotImplementedError, ValueError):  # on the CPU: this distribution has none, or not of such a value
            continue
        got = served(lambda _: asked(here, value))
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5, equal_nan=True)


# --- utilities ------------------------------------------------------------------------------------------------------


def _packed(device: str, kind: type, sizes: list[int], **options: Any) -> None:
    layer = kind(4, 5, batch_first=True, **options).to(device)
    parts = rnn.pack_padded_sequence(random(device, 3, 6, 4), sizes, batch_first=True, enforce_sorted=False)
    rnn.pad_packed_sequence(layer(parts)[0])[0].sum().backward()


def _losses(device: str) -> None:
    target = random(device, 4, 3).softmax(-1)
    for loss in (
        F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.binary_cross_entropy_with_logits,
        F.poisson_nll_loss, F.cross_entropy, F.soft_margin_loss, F.multilabel_soft_margin_loss,
    ):  # fmt: skip
        loss(random(device, 4, 3).requires_grad_(), target).backward()


def _windows(device: str) -> None:
    for name in ("hann", "hamming", "blackman", "bartlett", "cosine", "nuttall"):
        getattr(torch.signal.windows, name)(16, device=device)
    torch.signal.windows.gaussian(16, std=2.0, device=device)


def _averaged(device: str) -> None:
    model = nn.Linear(3, 3).to(device)
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean).update_parameters(model)


def _initial(device: str) -> None:
    # The first draws until all fits; on a simulated GPU nothing is drawn.
    for name in ("trunc_normal_", "kaiming_normal_", "xavier_uniform_", "eye_")[bool(simulate.active()) :]:
        getattr(nn.init, name)(torch.empty(4, 4, device=device))
    nn.init.dirac_(torch.empty(4, 4, 3, device=device))


def _clipped(device: str) -> None:
    p = nn.Parameter(random(device, 3))
    p.grad = random(device, 3)
    nn.utils.clip_grad_value_([p], 0.1)
    nn.utils.clip_grad_norm_([p], 0.1, error_if_nonfinite=True)


UTILITIES: dict[str, Callable[[str], Any]] = {
    "spectral_norm": lambda d: parametrizations.spectral_norm(nn.Linear(4, 4)).to(d)(random(d, 2, 4)).sum().backward(),
    "weight_norm": lambda d: parametrizations.weight_norm(nn.Linear(4, 4)).to(d)(random(d, 2, 4)).sum().backward(),
    "prune": lambda d: prune.l1_unstructured(nn.Linear(4, 4).to(d), "weight", 0.3),
    "clip_grad": _clipped,
    "packed LSTM": lambda d: _packed(d, nn.LSTM, [6, 4, 2]),
    "packed GRU": lambda d: _packed(d, nn.GRU, [2, 6, 4], num_layers=2, bidirectional=True),
    "cov": lambda d: (torch.cov(random(d, 3, 8)), torch.corrcoef(random(d, 3, 8))),
    "windows": _windows,
    "einsum": lambda d: torch.einsum("bij,bjk,bkl->il", random(d, 2, 3, 4), random(d, 2, 4, 5), random(d, 2, 5, 3)),
    "quantile": lambda d: torch.quantile(random(d, 10, 4), torch.tensor([0.1, 0.5], device=d), dim=0),
    "unique": lambda d: torch.unique(torch.randint(0, 5, (20,)).to(d), return_inverse=True, return_counts=True),
    "combinations": lambda d: (torch.combinations(random(d, 5)), torch.cartesian_prod(random(d, 3), random(d, 4))),
    "trapezoid": lambda d: (torch.trapezoid(random(d, 5), random(d, 5)), torch.gradient(random(d, 6, 6))),
    "kron": lambda d: (
        torch.kron(random(d, 2, 3), random(d, 3, 2)),
        torch.block_diag(random(d, 2, 2), random(d, 3, 1)),
    ),
    "losses": _losses,
    "vmap": lambda d: torch.func.vmap(lambda a, b: a @ b)(random(d, 3, 2, 4), random(d, 3, 4, 2)),
    "jacrev": lambda d: torch.func.jacrev(lambda x: x.sin() * x.sum())(random(d, 4)),
    "hessian": lambda d: torch.func.hessian(lambda x: (x**3).sum())(random(d, 4)),
    "jvp": lambda d: torch.func.jvp(lambda x: F.gelu(x) @ x, (random(d, 4),), (random(d, 4),)),
    "cells": lambda d: [cell(4, 5).to(d)(random(d, 2, 4)) for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)],
    "masked": lambda d: torch.masked.mean(random(d, 3, 4), mask=random(d, 3, 4) > 0, dim=1),
    "averaged": _averaged,
    "initial": _initial,
    "assert_async": lambda d: torch._assert_async(torch.ones((), device=d)),
    "print": lambda d: repr(random(d, 40, 40)),
    "kaiser": lambda d: torch.kaiser_window(9, device=d),
    "solve": lambda d: torch.linalg.solve(torch.eye(3, device=d) * 2, random(d, 3, 2)),
}


def _parts(made: Any) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    return list(itertools.chain.from_iterable(map(_parts, made))) if isinstance(made, (tuple, list)) else []


@pytest.mark.parametrize("name", UTILITIES)
def test_utilities(name):
    if simulate.active() and name.startswith("packed"):
        pytest.skip("the order of sequences is read from the device, and there nothing is computed")
    torch.manual_seed(2)
    got = served(UTILITIES[name])
    if simulate.active():
        return
    torch.manual_seed(2)
    for one, other in zip(_parts(got), _parts(UTILITIES[name]("cpu")), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_what_the_host_serves_is_seen():
    """A product of integers is the host's on a CPU device, and named nowhere above."""
    numbers = torch.arange(6).view(2, 3)
    if torch.xpu.get_device_properties().type != "cpu":
        pytest.skip("a CPU device's")
    with pytest.raises(AssertionError, match="mm"):
        served(lambda device: numbers.to(device) @ numbers.to(device).t())
