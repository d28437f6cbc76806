"""Sums and products of many f16 and bf16 elements are those of f64, rounded once: they do not stop growing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton.language as tl

from anyxpu.ops import scan_kernels

pytestmark = pytest.mark.not_simulated("it compares values")

DEVICE = "xpu"
N = 5000
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])


def nowhere(x):
    """N indices of one place."""
    return torch.zeros(N, dtype=torch.long, device=x.device)


def gradient(function, x, shape=(1,)):
    """The gradient's sum, of one element that N others are made of."""
    leaf = torch.zeros(shape, dtype=x.dtype, device=x.device, requires_grad=True)
    function(leaf).sum().backward()
    return leaf.grad.sum()


def one(x):
    return torch.zeros(1, dtype=x.dtype, device=x.device)


# Of N ones.
CASES = {
    "sum": lambda x: x.sum(),
    "nansum": lambda x: x.nansum(),
    "mean": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(0)[-1],
    "cumsum across": lambda x: x.view(-1, 1).cumsum(0)[-1, 0],
    "logcumsumexp": lambda x: x.logcumsumexp(0)[-1],
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(0)[0] * N,
    "trace": lambda x: torch.eye(N, dtype=x.dtype, device=x.device).trace(),
    "dot": lambda x: x.dot(x),
    "norm": lambda x: x.norm(1),
    "mv": lambda x: (x.view(1, -1) @ x)[0],
    "mm": lambda x: (x.view(1, -1) @ x.view(-1, 1))[0, 0],
    "bmm": lambda x: (x.view(1, 1, -1) @ x.view(1, -1, 1))[0, 0, 0],
    "conv1d": lambda x: F.conv1d(x.view(1, 1, -1), x.view(1, 1, -1))[0, 0, 0],
    "histc": lambda x: x.histc(1, 0, 2)[0],
    "prod": lambda x: (x * 1.0078125).view(-1, 10).transpose(0, 1)[0].prod(),
    "prod along": lambda x: (x * 1.0078125).view(-1, 10).prod(0)[3],
    "index_add": lambda x: one(x).index_add(0, nowhere(x), x)[0],
    "index_add_": lambda x: one(x).index_add_(0, nowhere(x), x)[0],
    "index_put": lambda x: one(x).index_put((nowhere(x),), x, accumulate=True)[0],
    "put_": lambda x: one(x).put_(nowhere(x), x, accumulate=True)[0],
    "scatter_add": lambda x: one(x).scatter_add(0, nowhere(x), x)[0],
    "scatter_reduce": lambda x: one(x).scatter_reduce(0, nowhere(x), x, "sum", include_self=False)[0],
    "index_reduce": lambda x: one(x).index_reduce(0, nowhere(x), x, "mean", include_self=False)[0],
    "segment_reduce": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([N], device=x.device))[0],
    "mse_loss": lambda x: F.mse_loss(x, 0 * x, reduction="sum"),
    "nll_loss": lambda x: F.nll_loss(-x.view(-1, 1), nowhere(x), reduction="sum"),
    "avg_pool2d": lambda x: F.avg_pool2d(x.view(1, 1, 50, 100), (50, 100))[0, 0, 0, 0],
    "embedding_bag": lambda x: F.embedding_bag(nowhere(x).view(1, -1), x[:1].view(1, 1), mode="sum")[0, 0],
    "embedding's gradient": lambda x: gradient(lambda w: F.embedding(nowhere(x), w), x, (1, 1)),
    "embedding_bag's gradient": lambda x: gradient(
        lambda w: F.embedding_bag(nowhere(x).view(1, -1), w, mode="sum"), x, (1, 1)
    ),
    "expand's gradient": lambda x: gradient(lambda w: w.expand(N), x),
    "gather's gradient": lambda x: gradient(lambda w: w.gather(0, nowhere(x)), x),
    "indexing's gradient": lambda x: gradient(lambda w: w[nowhere(x)], x),
    "take's gradient": lambda x: gradient(lambda w: w.take(nowhere(x)), x),
    "index_select's gradient": lambda x: gradient(lambda w: w.index_select(0, nowhere(x)), x),
    "interpolate's gradient": lambda x: gradient(lambda w: F.interpolate(w, size=(100, 50)), x, (1, 1, 1, 1)),
    "bilinear's gradient": lambda x: gradient(
        lambda w: F.interpolate(w, size=(100, 50), mode="bilinear"), x, (1, 1, 1, 1)
    ),
    "grid_sample's gradient": lambda x: gradient(
        lambda w: F.grid_sample(w, torch.zeros(1, 100, 50, 2, dtype=x.dtype, device=x.device)), x, (1, 1, 1, 1)
    ),
    "replicate 1-D's gradient": lambda x: gradient(lambda w: F.pad(w, (2000, 2999), mode="replicate"), x, (1, 1)),
    "replicate 2-D's gradient": lambda x: gradient(
        lambda w: F.pad(w, (49, 0, 99, 0), mode="replicate"), x, (1, 1, 1, 1)
    ),
    "bias's gradient": lambda x: gradient(lambda w: F.linear(x.view(-1, 1), x[:1].view(1, 1), w), x),
    "prelu's gradient": lambda x: gradient(lambda w: F.prelu(-x.view(1, 1, -1), w), x),
}


@pytest.mark.rotates(3)
@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_a_sum_of_many_does_not_stop_growing(name, dtype):
    case = CASES[name]
    expected = case(torch.ones(N, dtype=torch.float64))
    actual = case(torch.ones(N, dtype=dtype, device=DEVICE))
    # Of what is rounded before it is summed (softmax, a product of ones) some units in the last place are allowed.
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-3)


@DTYPES
def test_a_type_that_is_named_is_given(dtype):
    x = torch.rand(100, dtype=dtype, device=DEVICE) + 0.5
    assert x.prod(dtype=torch.float32).dtype == torch.float32
    torch.testing.assert_close(x.prod(dtype=torch.float64).cpu(), x.cpu().double().prod())


@DTYPES
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}],
    ids=["plain", "momentum", "nesterov"],
)
@pytest.mark.parametrize("size", [7, 1000])
def test_fused_sgd_steps_as_in_f64(size, options, dtype):
    weights, gradients = torch.randn(size).to(dtype), [torch.randn(size).to(dtype) for _ in range(3)]
    found = []
    for device, kind, fused in (("cpu", torch.float64, False), (DEVICE, dtype, True)):
        p = torch.nn.Parameter(weights.clone().to(device, kind))
        optimizer = torch.optim.SGD([p], lr=0.1, fused=fused, **options)
        for g in gradients:
            p.grad = g.to(device, kind)
            optimizer.step()
        found.append(p.detach().cpu().double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found[1], found[0], rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("shape", [(3, 400_000), (1_300_000,), (2, 5000)], ids=str)
def test_running_sums_do_not_drift(shape):
    """Their error does not grow with what was rounded before: a few units in the last place of the largest."""
    x = torch.randn(shape) * 100
    want = x.double().cumsum(-1)
    got = x.to(DEVICE).cumsum(-1).cpu().double()
    assert (got - want).abs().max() <= want.abs().max() * 3 * 2.0**-24


def test_running_sums_past_an_infinity_are_the_cpus():
    x = torch.ones(50_000)
    x[20_000] = float("inf")
    x[40_000] = -float("inf")
    torch.testing.assert_close(x.to(DEVICE).cumsum(0).cpu(), x.cumsum(0), equal_nan=True)


def test_running_sums_beyond_the_largest_number_are_infinite():
    x = torch.full((1000,), 3e38)
    assert x.to(DEVICE).cumsum(0)[1:].isinf().all()
    torch.testing.assert_close((-x).to(DEVICE).cumsum(0).cpu(), (-x).cumsum(0))


@pytest.mark.parametrize("double", [True, False], ids=["sums of f64", "what is lost is kept"])
def test_either_way_of_summing_blocks_does_not_drift(double):
    """The second is for devices without float64. A plain sum is off by some 2**-18 of the largest here."""
    x = torch.randn(1_300_000) * 100
    out = torch.empty(x.shape, device=DEVICE)
    scan_kernels.rows[(1,)](
        x.to(DEVICE), out, 1, len(x), 1, PRODUCT=False, OP=tl.float32, DOUBLE=double, R=1, L=64, num_warps=1
    )
    want = x.double().cumsum(0)
    assert (out.cpu().double() - want).abs().max() <= want.abs().max() * 2.0**-21
