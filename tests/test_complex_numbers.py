"""Complex numbers by kernels on their parts: against the CPU's, in every form, and nothing on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled", "no_host"),
]

TYPES = (torch.complex64, torch.complex128)
UNARY = ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "reciprocal", "sgn", "neg", "abs",
         "angle", "square")  # fmt: skip


def compare(function: Callable[..., Any], *operands: Any, exact: bool = False) -> None:
    wanted = function(*operands)
    got = function(*(t.xpu() if isinstance(t, torch.Tensor) and t.dim() else t for t in operands))
    assert (got.device.type, got.dtype, got.shape) == ("xpu", wanted.dtype, wanted.shape)
    if not simulate.active():
        bound = 0 if exact else {torch.float32: 2e-5, torch.float64: 1e-12}[wanted.abs().dtype]
        torch.testing.assert_close(got.cpu(), wanted, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 6, dtype=dtype)
    for given in (x, x.t(), x[::2, 1:], x[0, 0:1]):
        compare(getattr(torch, name), given)
    if hasattr(torch.Tensor, f"{name}_") and name not in ("abs", "angle"):
        compare(lambda t: getattr(t.clone(), f"{name}_")(), x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x, y, row = (torch.randn(*shape, dtype=dtype) for shape in ((5, 6), (5, 6), (6,)))
    real = torch.randn(5, 6, dtype=x.real.dtype)
    for a, b in ((x, y), (x, row), (row, x), (x, real), (real, x), (x.t(), y.t()), (x, 2.5), (x, 1 - 2j), (real, 2j)):
        compare(function, a, b)
    compare(function, x, torch.tensor(0.5 + 1j, dtype=dtype))
    compare(lambda a, b: getattr(a.clone(), f"{name}_")(b), x, row)
    compare(lambda a, b: function(a, b, out=torch.empty(0, dtype=dtype, device=a.device)), x, y)
    if name in ("add", "sub"):
        compare(lambda a, b: function(a, b, alpha=-3), x, y)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_of_special_values_they_are_the_cpus(dtype: torch.dtype) -> None:
    numbers = (0.0, -0.0, 1e30, float("inf"), -1.0, float("nan"))
    x = torch.tensor([complex(a, b) for a, b in itertools.product(numbers, numbers)], dtype=dtype)
    for function in (torch.sqrt, torch.reciprocal, torch.sgn, torch.neg, torch.abs):
        finite = x[torch.isfinite(x)] if function is torch.sgn else x
        compare(function, finite)
    compare(lambda a, b: a * b, x, x.flip(0))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions_choices_and_comparisons(dtype: torch.dtype) -> None:
    x, y = torch.randn(4, 5, 3, dtype=dtype), torch.randn(4, 5, 3, dtype=dtype)
    for dims in ((), (0,), (1,), (0, 2), (-1,)):
        compare(lambda t, dims=dims: t.sum(dims), x)
        compare(lambda t, dims=dims: t.mean(dims, keepdim=True), x)
    compare(lambda t: t.sum(), x)
    same = torch.where(torch.rand(4, 5, 3) < 0.5, x, y)
    for a, b in ((x, same), (x, 1.0), (x, x.real), (same, x[0])):
        for compared in (torch.eq, torch.ne):
            got = compared(*(t.xpu() if isinstance(t, torch.Tensor) else t for t in (a, b)))
            assert simulate.active() or torch.equal(got.cpu(), compared(a, b))
    compare(lambda a, b: torch.where(a.real > 0, a, b), x, y, exact=True)
    compare(lambda a: a.masked_fill(a.real > 0, 1 + 2j), x, exact=True)
    compare(lambda a, b: torch.addcmul(a, a, b, value=0.5), x, y)
    compare(lambda a, b: torch.addcdiv(a, a, b), x, y)


@pytest.mark.parametrize("order", [2, 1, float("inf"), float("-inf")])
def test_norms_and_their_gradients(order: float) -> None:
    x = torch.randn(4, 5, dtype=torch.complex64)
    compare(lambda t: torch.linalg.vector_norm(t, order, dim=1), x)
    grads = []
    for device in ("cpu", "xpu"):
        given = x.detach().to(device).requires_grad_()
        torch.linalg.vector_norm(given, order, dim=0).sum().backward()
        grads.append(given.grad.cpu())
    if not simulate.active():
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    x, y = (torch.randn(3, 4, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    grads = []
    for device in ("cpu", "xpu"):
        a, b = (t.detach().to(device).requires_grad_() for t in (x, y))
        ((a * b).exp() / (b + 3) - a.tanh()).abs().sum().backward()
        grads.append([a.grad.cpu(), b.grad.cpu()])
    if not simulate.active():
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_rotary_embeddings_are_repeated_without_python() -> None:
    angles = torch.polar(torch.ones(7, 4), torch.randn(7, 4))
    before = lib().replay_runs()
    for _ in range(6):
        q = torch.randn(2, 7, 8)
        made = [
            torch.view_as_real(torch.view_as_complex(t.reshape(2, 7, 4, 2)) * a).flatten(2)
            for t, a in ((q, angles), (q.xpu(), angles.xpu()))
        ]
        assert simulate.active() or torch.allclose(made[1].cpu(), made[0], atol=1e-5)
    assert lib().replay_runs() - before >= 3


def test_what_torch_refuses_is_refused() -> None:
    x, y = torch.randn(3, dtype=torch.complex64, device="xpu"), torch.randn(4, dtype=torch.complex64, device="xpu")
    with pytest.raises(RuntimeError, match="size of tensor"):
        x * y
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.mul(x, x, out=torch.empty(3, device="xpu"))
    with pytest.raises(RuntimeError):
        torch.ones(3, device="xpu").mul_(2j)
    anyxpu.ops.reset_counters()  # the host says so
