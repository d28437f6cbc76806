"""Functions, sums, choices and products of complex numbers that are made of others: as the CPU's, without the host."""

from __future__ import annotations

import random

import pytest
import torch

from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled", "no_host"),
]

C64 = torch.complex64


def compare(function, *operands):
    wanted = function(*operands)
    got = function(*(t.xpu() if t.dim() else t for t in operands))
    assert (got.device.type, got.dtype) == ("xpu", wanted.dtype)
    bound = {torch.complex64: 2e-5, torch.float32: 2e-5, torch.complex128: 1e-12, torch.float64: 1e-12}
    bound = bound.get(wanted.dtype, 0)
    if not simulate.active():  # where even how many are chosen is not known
        assert got.shape == wanted.shape
        torch.testing.assert_close(got.cpu(), wanted, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", (C64, torch.complex128), ids=str)
@pytest.mark.parametrize(
    "name", ("exp2", "expm1", "log2", "log10", "log1p", "sinc", "sigmoid", "isnan", "logical_not", "square")
)
def test_functions(name, dtype):
    x = torch.randn(5, 6, dtype=dtype)
    x[0, 0], x[0, 1] = 0, 1e-4 + 2e-4j
    for given in (x, x.t(), x[:, ::2]):
        compare(getattr(torch, name), given)


def test_gates_logic_and_what_lies_between_two():
    x, y, weight = (torch.randn(4, 5, dtype=C64) for _ in range(3))
    x[1], y[:, 2] = 0, 0
    compare(torch.nn.functional.silu, x)
    for function in (torch.logical_and, torch.logical_or, torch.logical_xor):
        compare(function, x, y)
        compare(function, x, y[0])
        compare(function, x, y.real)
    for part in (0.25, 0.75, 0.3 + 0.9j):
        compare(lambda a, b, part=part: torch.lerp(a, b, part), x, y)
    compare(torch.lerp, x, y, weight)


@pytest.mark.parametrize("dim", (0, 1, -1))
def test_along_a_dimension(dim):
    x = torch.randn(7, 9, dtype=C64)
    x[3] = 0
    compare(lambda t: t.cumsum(dim), x)
    compare(lambda t: t.cumprod(dim), x)
    for keep in (False, True):
        compare(lambda t, k=keep: t.prod(dim, k), x.t())
        compare(lambda t, k=keep: t.any(dim, k), x)
        compare(lambda t, k=keep: t.all(dim, k), x)
        compare(lambda t, k=keep: t.var(dim, correction=1, keepdim=k), x)
        compare(lambda t, k=keep: t.std(dim, correction=0, keepdim=k), x)
        compare(lambda t, k=keep: torch.var_mean(t, dim, keepdim=k)[1], x)
    compare(lambda t: t.count_nonzero(dim), x)
    compare(lambda t: t.norm(2, dim), x)


def test_of_all_elements():
    for shape in ((6, 6), (3, 3), (1, 1)):
        x = torch.randn(shape, dtype=C64)
        for function in (torch.prod, torch.any, torch.all, torch.trace, torch.std, torch.count_nonzero, torch.nonzero):
            compare(function, x)
        assert torch.equal(x.xpu(), x.xpu()) and not torch.equal(x.xpu(), x.xpu() + 1)


def test_choices():
    x, other, mask = torch.randn(4, 5, dtype=C64), torch.randn(5, dtype=C64), torch.rand(4, 5) < 0.5
    compare(torch.where, mask, x, other)
    compare(lambda m, a: torch.where(m, a, 2 - 1j), mask, x)
    compare(lambda m, a, r: torch.where(m, a, r), mask[0], x, torch.randn(4, 5))
    compare(lambda a, m: a.masked_fill(m, 1 + 2j), x, mask)
    compare(lambda a, m: a.masked_fill(m[0], a.new_tensor(3 - 1j)), x, mask)
    compare(lambda a, m: a.masked_select(m), x, mask)
    compare(lambda a, m, b: a.masked_scatter(m, b), x, mask, torch.randn(20, dtype=C64))
    compare(lambda a, i: a.index_fill(1, i, 0.5j), x, torch.tensor([0, 3]))
    three, more = torch.randn(4, 3, dtype=C64), torch.randn(4, 3, dtype=C64)
    compare(torch.linalg.cross, three, more)


def matrices(*shape: int) -> torch.Tensor:
    """Of any layout, perhaps the conjugate of what lies in memory."""
    t = torch.randn(shape, dtype=C64)
    t = t.mT.contiguous().mT if len(shape) > 1 and random.random() < 0.5 else t
    return t.conj() if random.random() < 0.5 else t


@pytest.mark.parametrize("round", range(4))
def test_products(round):
    m, k, n, b = (random.randint(1, 9) for _ in range(4))
    x, y, c = matrices(m, k), matrices(k, n), matrices(m, n)
    compare(torch.mm, x, y)
    compare(torch.bmm, matrices(b, m, k), matrices(b, k, n))
    for alpha, beta in ((1, 1), (0.5 - 1j, 2j), (2, 0)):
        compare(lambda c, x, y, a=alpha, b=beta: torch.addmm(c, x, y, alpha=a, beta=b), c, x, y)
    compare(torch.addmm, matrices(n), x, y)
    compare(torch.baddbmm, matrices(b, m, n), matrices(b, m, k), matrices(b, k, n))
    compare(torch.addbmm, c, matrices(b, m, k), matrices(b, k, n))
    compare(torch.mv, x, matrices(k))
    compare(lambda c, x, v: c.clone().addmv_(x, v), matrices(m), x, matrices(k))
    compare(torch.dot, matrices(k), matrices(k))
    compare(torch.vdot, matrices(k), matrices(k))
    compare(lambda x, y: torch.mm(x, y, out=torch.empty(n, m, dtype=C64, device=x.device).t()), x, y)
    compare(lambda x, y: torch.einsum("ij,jk->ki", x, y.conj()), x, y)
    compare(lambda x, y: x[:, :0] @ y[:0], x, y)


def test_gradients_of_products():
    x, y = (torch.randn(4, 4, dtype=C64, requires_grad=True) for _ in range(2))
    weight = torch.randn(4, 4, dtype=C64)

    def gradients(a, b, w):
        loss = ((a @ b.conj()).cumsum(0) * w).abs().sum() + (a.mH @ b).prod(1).abs().sum()
        return torch.autograd.grad(loss, (a, b))

    here = (t.detach().xpu().requires_grad_() for t in (x, y))
    for got, want in zip(gradients(*here, weight.xpu()), gradients(x, y, weight), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_an_infinite_element_reaches_its_row_and_column_alone():
    x, y = torch.ones(2, 3, dtype=C64), torch.ones(3, 2, dtype=C64)
    x[0, 1] = float("inf")
    assert torch.equal(torch.isfinite((x.xpu() @ y.xpu()).cpu()), torch.isfinite(x @ y))
