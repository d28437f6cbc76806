"""Fourier transforms by products, as devices of their own memory have them, beside NumPy in float64; their strides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import fourier
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")
# One product; a prime; two and three factors; primes beyond a matrix, which are convolutions; a power of two.
LENGTHS = (1, 2, 6, 64, 127, 128, 129, 360, 400, 509, 1009, 2053, 2 * 1031, 4096, 6000)


@pytest.fixture
def by_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device of its own memory; nothing is left to the host."""
    monkeypatch.setattr(fourier, "_here", lambda t: True)
    anyxpu.ops.reset_counters()
    yield
    hosted = {op: ways for op, ways in anyxpu.ops.counters().items() if "host" in ways}
    assert not hosted or simulate.active()


def near(got: Tensor, want: np.ndarray, bound: float = 2e-6) -> None:
    assert got.device.type == "xpu" and tuple(got.shape) == want.shape
    if not simulate.active():
        found = got.cpu().to(torch.complex128 if got.is_complex() else torch.float64).numpy()
        assert np.linalg.norm(found - want) <= bound * max(np.linalg.norm(want), 1e-30)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_every_length_both_ways(by_products: None, n: int, norm: str) -> None:
    x = torch.randn(3, n, dtype=torch.complex64)
    there, wide = x.to("xpu"), x.numpy().astype(np.complex128)
    near(torch.fft.fft(there, norm=norm), np.fft.fft(wide, norm=norm))
    near(torch.fft.ifft(there, norm=norm), np.fft.ifft(wide, norm=norm))
    near(torch.fft.rfft(there.real.contiguous(), norm=norm), np.fft.rfft(wide.real, norm=norm))
    near(torch.fft.fft(there.real.contiguous(), norm=norm), np.fft.fft(wide.real, norm=norm))
    half = torch.randn(3, n // 2 + 1, dtype=torch.complex64)
    near(torch.fft.irfft(half.to("xpu"), n, norm=norm), np.fft.irfft(half.numpy().astype(np.complex128), n, norm=norm))


@pytest.mark.parametrize("dims", [d for k in (1, 2, 3) for d in itertools.combinations(range(3), k)], ids=str)
def test_several_dimensions_of_any_strides(by_products: None, dims: tuple[int, ...]) -> None:
    x = torch.randn(5, 6, 8, dtype=torch.complex64).transpose(0, 2)
    there, wide = x.to("xpu"), x.numpy().astype(np.complex128)
    near(torch.fft.fftn(there, dim=dims), np.fft.fftn(wide, axes=dims))
    near(torch.fft.fftn(there.conj(), dim=dims), np.fft.fftn(wide.conj(), axes=dims))
    near(torch.fft.rfftn(there.real, dim=dims), np.fft.rfftn(wide.real, axes=dims))
    near(torch.fft.irfftn(there, dim=dims), np.fft.irfftn(wide, axes=dims))
    near(torch.fft.hfft(there, dim=dims[0]), np.fft.hfft(wide, axis=dims[0]))


def test_of_sixteen_bits_and_into_given_tensors(by_products: None) -> None:
    x = torch.randn(4, 64, dtype=torch.float16)
    if torch.__version__ >= "2.13":  # before, torch refuses them by name
        made = torch.fft.rfft(x.to("xpu"))
        assert made.dtype is torch.complex32
        near(made.to(torch.complex64), np.fft.rfft(x.numpy().astype(np.float64)), 2e-3)
    out = torch.empty(4, 33, dtype=torch.complex64, device="xpu")
    torch.fft.rfft(x.float().to("xpu"), out=out)
    near(out, np.fft.rfft(x.numpy().astype(np.float64)))


def test_gradients(by_products: None) -> None:
    x = torch.randn(3, 50, 12)
    grads: list[Tensor | None] = []
    for device in ("cpu", "xpu"):
        leaf = x.detach().clone().to(device).requires_grad_()
        there = torch.fft.rfft2(leaf)
        torch.fft.irfft2(there * there.abs(), s=(50, 12)).square().sum().backward()
        grads.append(leaf.grad)
    assert grads[0] is not None and grads[1] is not None
    near(grads[1], grads[0].double().numpy(), 1e-5)


CALLS = {
    "rfftn": lambda t, d: torch.fft.rfftn(t, dim=d),
    "fftn": lambda t, d: torch.fft.fftn(t.to(torch.complex64), dim=d),
    "fftn of real": lambda t, d: torch.fft.fftn(t, dim=d),
    "irfftn": lambda t, d: torch.fft.irfftn(t.to(torch.complex64), dim=d),
}


@pytest.mark.skipif(torch.__version__ < "2.13", reason="says of several dimensions what not even the CPU makes")
@pytest.mark.parametrize("way", ["products", "host"])
@pytest.mark.parametrize("name", CALLS)
def test_strides_are_what_torch_says_of_xpu(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled graph asserts them."""
    if way == "products":
        monkeypatch.setattr(fourier, "_here", lambda t: True)
    for shape in ((6,), (4, 6), (3, 4, 6), (2, 3, 4, 5)):
        for turned in (False, True):
            x = torch.randn(shape)
            x = x.transpose(0, -1).contiguous().transpose(0, -1) if turned else x
            every = range(x.dim())
            for dims in (d for k in range(1, x.dim() + 1) for d in itertools.combinations(every, k)):
                got = CALLS[name](x.to("xpu"), dims)
                if not simulate.active():
                    torch.testing.assert_close(got.cpu(), CALLS[name](x, dims), rtol=1e-4, atol=1e-4)
                with FakeTensorMode():
                    want = CALLS[name](torch.empty_strided(x.shape, x.stride(), device="xpu"), dims)
                strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (got, want)]
                assert strides[0] == strides[1], (shape, turned, dims)


def test_compiled_over_two_dimensions() -> None:
    def spectral(x: Tensor) -> Tensor:
        there = torch.fft.rfft2(x)
        return torch.fft.irfft2(there * 2, s=x.shape[-2:])

    x = torch.randn(2, 3, 8, 10)
    torch._dynamo.reset()
    made = torch.compile(spectral)(x.to("xpu"))
    if not simulate.active():
        torch.testing.assert_close(made.cpu(), 2 * x, rtol=1e-4, atol=1e-4)


def test_whose_memory_decides() -> None:
    x = torch.randn(4, 8, device="xpu")
    properties = lib().properties(0)
    assert fourier._here(x) is not (properties.type == "cpu" and properties.host_accessible)
