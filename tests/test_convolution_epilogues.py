"""Compiled graphs: a convolution takes along a batch norm, a sum and a function, where nobody else wants what lies
between; what a norm is folded into is kept until something that it is made of is written."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import anyxpu.ops
from anyxpu.bench import fusions
from anyxpu.onednn import folded, functions
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN needs the sycl driver, and the operators a torch that has them",
)

BOUND = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
OURS = "anyxpu::_convolution_pointwise"
FUNCTIONS = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "elu to 0.5": lambda x: F.elu(x, 0.5),
    "mish": F.mish,
}
KINDS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    # As on a GPU and with AVX-512, whatever this machine is.
    monkeypatch.setattr(functions, "has_short_vectors", lambda device: False)


@pytest.fixture
def folds(monkeypatch):
    """How often a norm was folded: a list that grows."""
    made: list[int] = []
    fold = folded.Folded._fold

    def counted(self, *args):
        made.append(1)
        return fold(self, *args)

    monkeypatch.setattr(folded.Folded, "_fold", counted)
    lib().forget_programs()
    yield made
    lib().forget_programs()


def lively(module: nn.Module) -> nn.Module:
    """In inference, with norms that do something."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return module.eval()


def compiled(model, *inputs, **options):
    """The result of the third call of a compiled graph, how often it called our operator, and how often another."""
    function = torch.compile(model, **options)
    function(*inputs)
    function(*inputs)
    anyxpu.ops.reset_counters()
    got = function(*inputs)
    served = anyxpu.ops.counters()
    assert not [name for name, ways in served.items() if "host" in ways]
    ours = sum(served.get(OURS, {}).values())
    return got, ours, sum(sum(ways.values()) for name, ways in served.items() if "convolution" in name) - ours


def relative(got, want) -> float:
    return float((got.detach().cpu().double() - want).norm() / want.norm())


def pair(module: nn.Module, dtype: torch.dtype):
    """It on xpu, and in float64 on the CPU with the numbers of that dtype."""
    module = module.to(dtype)
    return copy.deepcopy(module).xpu(), copy.deepcopy(module).double()


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("rank", KINDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_a_convolution_is_taken_along(function, rank, dtype):
    compute, convolution = FUNCTIONS[function], KINDS[rank][0]
    for bias in (True, False):
        torch._dynamo.reset()
        counters.clear()
        on, want = pair(convolution(6, 8, 3, stride=2, padding=1, groups=2, bias=bias), dtype)
        x = torch.randn(2, 6, *(9,) * rank).to(dtype)
        with torch.no_grad():
            got, ours, others = compiled(lambda x, on=on: compute(on(x)), x.xpu())
            assert (ours, others) == (1, 0)
            assert relative(got, compute(want(x.double()))) < BOUND[dtype]
            assert got.stride() == on(x.xpu()).stride()
        assert counters["inductor"]["mkldnn_unary_fusion_matcher_count"] == 1


class Residual(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + way(x)), as ResNets have it."""

    def __init__(self, rank: int, *, affine: bool = True, project: bool = True) -> None:
        super().__init__()
        convolution, norm = KINDS[rank]
        step = {"affine": affine, "eps": 1e-3}
        self.first = nn.Sequential(convolution(8, 8, 3, padding=1, bias=False), norm(8, **step), nn.ReLU())
        self.second = nn.Sequential(convolution(8, 8, 1), norm(8, **step))
        self.way = nn.Sequential(convolution(8, 8, 1, bias=False), norm(8, **step)) if project else nn.Identity()

    def forward(self, x):
        return torch.relu(self.second(self.first(x)) + self.way(x))


@pytest.mark.rotates(6)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("rank", KINDS)
@pytest.mark.parametrize("project", [True, False])
def test_norms_sums_and_functions_are_taken_along_and_parameters_followed(project, rank, dtype):
    on, want = pair(lively(Residual(rank, affine=rank != 3, project=project)), dtype)
    x = torch.randn(2, 8, *(7,) * rank).to(dtype)
    with torch.no_grad():
        got, ours, others = compiled(on, x.xpu())
        assert (ours, others) == (3 if project else 2, 0)
        assert relative(got, want(x.double())) < BOUND[dtype]
        function = torch.compile(on)
        for (name, mine), theirs in zip(on.state_dict().items(), want.state_dict().values(), strict=True):
            if "num_batches" not in name:
                mine.mul_(1.5)
                theirs.mul_(1.5)
                for _ in range(3):
                    assert relative(function(x.xpu()), want(x.double())) < BOUND[dtype], name
    assert fusions.fired()["norm_folding"] == (3 if project else 2)
    assert fusions.fired()["mkldnn_conv_binary_unary_fusion"] == 1


def test_a_norm_is_folded_once_and_again_when_a_parameter_is_written(folds):
    on, want = pair(lively(nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU())), torch.float32)
    x = torch.randn(2, 4, 9, 9)
    with torch.no_grad():
        function, source = torch.compile(on), x.xpu()
        for _ in range(6):
            function(source)
        assert len(folds) == 2  # what is seen once is not kept
        on[1].running_var.add_(1)
        want[1].running_var.add_(1)
        for _ in range(6):
            assert relative(function(source), want(x.double())) < BOUND[torch.float32]
        assert len(folds) == 4


def test_weights_and_norms_that_calls_share_are_told_apart():
    make = {"device": "xpu"}
    x, mean = torch.randn(2, 4, 9, 9, **make), torch.randn(6, **make)
    weights = [torch.randn(6, 4, 3, 3, **make) for _ in range(2)]
    variances = [torch.rand(6, **make) + 0.5 for _ in range(2)]
    pairs = [(w, v) for w in weights for v in variances]

    def call(weight, variance):
        steps = [1, 1], [1, 1], [1, 1], 1, "relu", [], None
        return torch.ops.anyxpu._convolution_pointwise(
            x, weight, None, mean, variance, None, None, 1e-5, None, *steps
        )  # fmt: skip

    want = []
    for weight, variance in pairs:
        product = F.conv2d(x.cpu().double(), weight.cpu().double(), padding=1)
        want.append(F.batch_norm(product, mean.cpu().double(), variance.cpu().double()).relu())
    for _ in range(4):
        for (weight, variance), right in zip(pairs, want, strict=True):
            for _ in range(2):
                assert relative(call(weight, variance), right) < BOUND[torch.float32]


def test_nothing_is_folded_where_it_would_not_last_or_another_looks():
    norm, convolution = lively(nn.BatchNorm2d(8)).xpu(), nn.Conv2d(4, 8, 3).xpu()
    x = torch.randn(2, 4, 9, 9, device="xpu")
    with torch.no_grad():
        looked = compiled(lambda x: ((y := convolution(x)).relu(), y.sin()), x)
        assert looked[1:] == (0, 1)
        twice = compiled(lambda x: norm(convolution(x)).relu() + norm(convolution(x + 1)).relu(), x)
        assert twice[1:] == (0, 2)
        apart = compiled(lambda x: torch.sin(norm(convolution(x))), x)
        assert apart[1:] == (0, 1)
    frozen = copy.deepcopy(norm).requires_grad_(False)
    _, ours, others = compiled(lambda x: frozen(convolution(x)).relu().sum(), x)
    assert (ours, others) == (0, 1)
    with torch.no_grad(), torch._inductor.config.patch(emulate_precision_casts=True):
        assert compiled(lambda x: convolution(x).relu() * 1, x)[1:] == (0, 1)


def test_in_training_a_function_is_taken_along_and_gradients_are_right():
    on, want = pair(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3)), torch.float32)
    x = torch.randn(2, 4, 9, 9)
    _, ours, _ = compiled(lambda x: on(x).square().sum(), x.xpu())
    assert ours == 1
    on.zero_grad()
    torch.compile(lambda x: on(x).square().sum())(x.xpu()).backward()
    want(x.double()).square().sum().backward()
    for mine, theirs in zip(on.parameters(), want.parameters(), strict=True):
        assert relative(mine.grad, theirs.grad) < 1e-5


class Sloped(nn.Module):
    """prelu(norm(conv(x))) and prelu(conv(x) + x), as networks for faces have it."""

    def __init__(self, rank: int, slopes: int) -> None:
        super().__init__()
        convolution, norm = KINDS[rank]
        self.first = nn.Sequential(convolution(8, 8, 3, padding=1, bias=False), norm(8), nn.PReLU(slopes))
        self.second, self.last = convolution(8, 8, 1), nn.PReLU(slopes)
        for part in (self.first[2], self.last):
            nn.init.uniform_(part.weight, -1, 2)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.second(x) + x)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("rank", KINDS)
@pytest.mark.parametrize("slopes", [1, 8])
def test_slopes_are_taken_along_and_followed(slopes, rank, dtype):
    on, want = pair(lively(Sloped(rank, slopes)), dtype)
    x = torch.randn(2, 8, *(7,) * rank).to(dtype)
    with torch.no_grad():
        got, ours, others = compiled(on, x.xpu())
        assert (ours, others) == (2, 0)
        assert relative(got, want(x.double())) < BOUND[dtype]
        assert got.stride() == on(x.xpu()).stride()
        for model in (on, want):
            model.last.weight.mul_(-2)
        assert relative(torch.compile(on)(x.xpu()), want(x.double())) < BOUND[dtype]
    loss = torch.compile(lambda x: on(x).float().square().mean())(x.xpu())
    found = torch.autograd.grad(loss, list(on.parameters()))
    right = torch.autograd.grad(want(x.double()).square().mean(), list(want.parameters()))
    for mine, theirs in zip(found, right, strict=True):
        assert relative(mine, theirs) < 4 * BOUND[dtype]


@pytest.mark.parametrize("last", [True, False])
def test_frozen_graphs_take_along_what_inductors_own_passes_leave(last):
    parts = (nn.PReLU(8), nn.PReLU(), nn.ELU(0.7), nn.Mish(), nn.Sigmoid())
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), part) for part in parts)).eval()
    on, want = pair(model, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 8, 9, 9).to(memory_format=layout)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        function, source = torch.compile(on.to(memory_format=layout)), x.xpu()
        function(source)
        anyxpu.ops.reset_counters()
        got = function(source)
        served = anyxpu.ops.counters()
        assert relative(got, want(x.double())) < BOUND[torch.float32]
    assert sum(served[OURS].values()) == 4  # and the sigmoid is Inductor's
    assert sum(served["mkldnn::_convolution_pointwise"].values()) == 1


def test_slopes_along_another_dimension_are_a_kernel_of_their_own():
    convolution, x = nn.Conv2d(4, 8, 3, padding=1).xpu(), torch.randn(2, 4, 8, 8, device="xpu")
    for shape in ((8,), (1, 8, 1), (8, 8, 1), (2, 1, 1, 1)):
        torch._dynamo.reset()
        slopes = torch.rand(shape, device="xpu")
        with torch.no_grad():
            sloped = lambda y, slopes=slopes: torch.where(y > 0, y, y * slopes)  # noqa: E731
            got, ours, others = compiled(lambda x, sloped=sloped: sloped(convolution(x)), x)
            y = convolution(x).cpu().double()
        assert (ours, others) == (0, 1)
        assert relative(got, torch.where(y > 0, y, y * slopes.cpu().double())) < BOUND[torch.float32]


def test_nan_stays_nan_and_zeros_have_no_sign():
    convolution = nn.Conv2d(1, 1, 1, bias=False).xpu()
    nn.init.ones_(convolution.weight)
    values = [math.nan, math.inf, 3.0, 1e-30, 0.0, -0.0, -1e-30, -3.0, -1e30]
    x = torch.tensor(values, device="xpu").view(1, 1, 3, 3)
    with torch.no_grad():
        got, ours, _ = compiled(lambda x: convolution(x).relu(), x)
    assert ours == 1
    torch.testing.assert_close(got.cpu().flatten(), torch.tensor(values).relu(), rtol=0, atol=0, equal_nan=True)
    assert not got.cpu().signbit().any()
    slope = torch.tensor([0.25])
    for function in (F.elu, F.mish, lambda x: F.prelu(x, slope.to(x.device))):
        with torch.no_grad():
            got, ours, _ = compiled(lambda x, function=function: function(convolution(x)), x)
        assert ours == 1
        torch.testing.assert_close(got.cpu().flatten(), function(torch.tensor(values)), equal_nan=True)


@pytest.mark.parametrize("last", [True, False])
def test_layouts_are_those_of_the_convolution(last):
    model = lively(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.ReLU()))
    layout = torch.channels_last if last else torch.contiguous_format
    on, x = model.xpu().to(memory_format=layout), torch.randn(2, 8, 9, 9, device="xpu").to(memory_format=layout)
    with torch.no_grad():
        got, ours, _ = compiled(on, x)
        assert ours == 2 and got.stride() == on(x).stride()


def test_batches_of_any_size_are_one_graph():
    on, want = pair(lively(Residual(2)), torch.float32)
    with torch.no_grad():
        function = torch.compile(on, dynamic=True)
        for batch in (3, 5, 2):
            x = torch.randn(batch, 8, 6, 7)
            assert relative(function(x.xpu()), want(x.double())) < BOUND[torch.float32]
    assert counters["stats"]["unique_graphs"] == 1


def test_what_is_added_may_lie_and_be_as_it_likes():
    on = nn.Conv2d(4, 8, 3, padding=1).xpu()
    x, other = torch.randn(2, 4, 6, 6, device="xpu"), torch.randn(2, 6, 6, 8, device="xpu")
    with torch.no_grad():
        right = on(x).cpu().double()
        for added in (other.permute(0, 3, 1, 2), other[:1, :1, :1, :].permute(0, 3, 1, 2).expand(2, 8, 6, 6)):
            steps = [1, 1], [1, 1], [1, 1], 1, "none", [-1], ""
            got = torch.ops.anyxpu._convolution_pointwise(
                x, on.weight, on.bias, None, None, None, None, 0.0, added, *steps
            )  # fmt: skip
            assert relative(got, right + added.cpu().double()) < BOUND[torch.float32]
            assert got.stride() == on(x).stride()
        _, ours, others = compiled(lambda x, y: on(x) + y, x, torch.randn(8, 1, 1, device="xpu"))
        assert (ours, others) == (0, 1)  # a broadcast sum is a kernel


def test_nothing_in_it_and_an_unknown_function():
    on = nn.Conv2d(4, 8, 3).xpu()
    norm = [torch.ones(8, device="xpu") for _ in range(4)]
    steps = [1, 1], [0, 0], [1, 1], 1
    call = torch.ops.anyxpu._convolution_pointwise
    empty = torch.empty(0, 4, 5, 5, device="xpu")
    with torch.no_grad():
        assert call(empty, on.weight, on.bias, *norm, 1e-5, None, *steps, "relu", [], None).shape == (0, 8, 3, 3)
        with pytest.raises(ValueError, match="no function 'sine' after a convolution"):
            x = torch.ones(1, 4, 5, 5, device="xpu")
            call(x, on.weight, on.bias, *norm, 1e-5, None, *steps, "sine", [], None)
        with pytest.raises(ValueError, match="no function 'prelu' after a convolution"):
            call(x, on.weight, on.bias, *norm, 1e-5, None, *steps, "prelu", [], None)
        for slopes in (torch.ones(3, device="xpu"), torch.ones(8)):  # of another number, on another device
            with pytest.raises(RuntimeError):
                call(x, on.weight, on.bias, *norm, 1e-5, None, *steps, "prelu", [], None, slopes)
        one = call(x, on.weight, on.bias, *norm, 1e-5, None, *steps, "prelu", [], None, torch.ones(1, device="xpu"))
        assert one.shape == (1, 8, 3, 3)  # the device goes on
