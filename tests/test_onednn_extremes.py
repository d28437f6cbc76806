"""oneDNN's operators at sizes that nothing divides, at none, beyond 2 GiB, and where memory ends inside of them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.shim import lib

DEVICE = "xpu"
PRIMES = (1, 2, 3, 7, 13, 31, 61, 127, 251)

linear_pointwise = torch.ops.mkldnn._linear_pointwise
convolution_pointwise = torch.ops.mkldnn._convolution_pointwise

# Operators of (m, k, n): operands, and what makes the result of them.
OPERATORS: dict[str, tuple[Callable[..., list[tuple[int, ...]]], Callable[..., Tensor]]] = {
    "mm": (lambda m, k, n: [(m, k), (k, n)], torch.mm),
    "mm of transposed": (lambda m, k, n: [(k, m), (n, k)], lambda a, b: a.t() @ b.t()),
    "addmm": (lambda m, k, n: [(n,), (m, k), (k, n)], torch.addmm),
    "bmm": (lambda m, k, n: [(3, m, k), (3, k, n)], torch.bmm),
    "linear": (lambda m, k, n: [(m, 2, k), (n, k), (n,)], F.linear),
    "conv1d": (lambda m, k, n: [(2, k, m + 2), (n, k, 3), (n,)], F.conv1d),
    "conv2d": (lambda m, k, n: [(1, k, m, 5), (n, k, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1)),
    "conv2d, one channel each": (
        lambda m, k, n: [(1, k, m, n), (k, 1, 3, 3)],
        lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0]),
    ),
    "conv_transpose2d": (lambda m, k, n: [(1, k, m, 3), (k, n, 2, 2)], lambda x, w: F.conv_transpose2d(x, w, stride=2)),
}


def operands(name: str, *sizes: int) -> list[Tensor]:
    return [torch.randn(shape) / 4 for shape in OPERATORS[name][0](*sizes)]


@pytest.mark.parametrize("name", OPERATORS)
def test_sizes_that_nothing_divides(name: str) -> None:
    for _ in range(8):
        m, k, n = (PRIMES[int(i)] for i in torch.randint(len(PRIMES), (3,)))
        given = operands(name, m, k, n)
        leaves = [t.to(DEVICE).requires_grad_() for t in given]
        exact = [t.double().requires_grad_() for t in given]
        actual, expected = OPERATORS[name][1](*leaves), OPERATORS[name][1](*exact)
        gradient = torch.randn(expected.shape)
        by = torch.autograd.grad(actual, leaves, gradient.to(DEVICE))
        wanted = torch.autograd.grad(expected, exact, gradient.double())
        for a, e in zip((actual, *by), (expected, *wanted), strict=True):
            bound = 1e-4 * max(1.0, e.abs().max().item())
            torch.testing.assert_close(a.cpu().double(), e, rtol=0, atol=bound)


@pytest.mark.parametrize("empty", range(3))
@pytest.mark.parametrize("name", ["mm", "mm of transposed", "addmm", "bmm", "linear"])
def test_products_of_no_elements(name: str, empty: int) -> None:
    sizes = [5, 6, 7]
    sizes[empty] = 0
    given = operands(name, *sizes)
    leaves = [t.to(DEVICE).requires_grad_() for t in given]
    expected_leaves = [t.requires_grad_() for t in given]
    actual, expected = OPERATORS[name][1](*leaves), OPERATORS[name][1](*expected_leaves)
    torch.testing.assert_close(actual.cpu(), expected)
    actual.sum().backward()
    expected.sum().backward()
    for a, e in zip(leaves, expected_leaves, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad)


def test_convolutions_and_fused_layers_of_no_elements() -> None:
    weight, bias = torch.randn(4, 3, 3, 3), torch.randn(4)
    for shape in ((0, 3, 8, 8), (2, 3, 0, 8)):
        source = torch.randn(shape)
        for call in (F.conv2d, lambda x, w, b: F.conv2d(x, w, b, padding=1)):
            answers = []
            for device in ("cpu", DEVICE):
                try:
                    answers.append(call(source.to(device), weight.to(device), bias.to(device)).shape)
                except RuntimeError as error:
                    answers.append(str(error).splitlines()[0])
            assert answers[0] == answers[1]
    row = torch.randn(4, 6)
    made = linear_pointwise(torch.randn(0, 6, device=DEVICE), row.to(DEVICE), bias.to(DEVICE), "swish", [], None)
    assert made.shape == (0, 4)


def _allocated() -> int:
    """Bytes that tensors hold. The copies kept of weights are what memory's end gives up: they are given up before."""
    gc.collect()
    lib().drop_copies()
    return torch.xpu.memory_allocated()


def _out_of_memory(room: int, call: Callable[[], Tensor]) -> None:
    """``call`` meets the end of memory after about ``room`` bytes; then it does what it does."""
    torch.xpu.synchronize()
    torch.xpu.empty_cache()
    total = torch.xpu.get_device_properties().total_memory
    # What is free between others' tensors counts: the call may find its memory there.
    room = max(0, room - torch.xpu.memory_stats()["inactive_split_bytes.all.current"])
    torch.xpu.set_per_process_memory_fraction((torch.xpu.memory_reserved() + room) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            call()
    finally:
        torch.xpu.set_per_process_memory_fraction(1.0)


@pytest.mark.not_simulated("a GPU's primitives want other temporaries")
@pytest.mark.parametrize("again", [False, True], ids=["first", "from the cache"])
def test_memory_that_ends_inside_of_a_primitive(again: bool) -> None:
    # The result fits, the reordered operands do not.
    source, weight = torch.randn(8, 64, 96, 96), torch.randn(64, 64, 3, 3) / 24
    x, w = source.to(DEVICE), weight.to(DEVICE)
    if again:
        F.conv2d(x, w, padding=1)
    before = _allocated()
    _out_of_memory(source.nbytes + (2 << 20), lambda: F.conv2d(x, w, padding=1))
    assert _allocated() == before
    expected = F.conv2d(source[:1], weight, padding=1)
    torch.testing.assert_close(F.conv2d(x, w, padding=1)[:1].cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.not_simulated("a GPU's primitives want other temporaries")
def test_memory_that_ends_inside_of_a_recurrent_layer() -> None:
    network = torch.nn.LSTM(256, 512).to(DEVICE)
    source = torch.randn(64, 32, 256, device=DEVICE, requires_grad=True)
    expected = network(source)[0].detach()
    before = _allocated()
    _out_of_memory(5 << 20, lambda: network(source)[0])
    assert _allocated() == before
    torch.testing.assert_close(network(source)[0].detach().cpu(), expected.cpu())


def _rows(t: Tensor, count: int) -> list[int]:
    return [0, 1, t.shape[0] // 2, *range(t.shape[0] - count, t.shape[0])]


@pytest.mark.full
@pytest.mark.not_simulated("values, of gigabytes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_more_than_2_gib_and_of_more_than_2_to_the_31_elements(dtype: torch.dtype) -> None:
    wide = 32771 if dtype == torch.bfloat16 else 8209  # 4.3 GiB, and 2.1
    tall = torch.empty(65543, wide, dtype=dtype, device=DEVICE).uniform_(-1, 1)
    right = torch.randn(wide, 3).to(dtype)
    places = _rows(tall, 3)
    exact = tall[places].cpu().double()
    for actual, expected in (
        ((tall @ right.to(DEVICE))[places], exact @ right.double()),
        ((right.t().contiguous().to(DEVICE) @ tall.t())[:, places], right.t().double() @ exact.t()),
        (F.linear(tall[:5], tall[:7]), tall[:5].cpu().double() @ tall[:7].cpu().double().t()),
    ):
        scale = expected.abs().max().item()
        torch.testing.assert_close(actual.cpu().double() / scale, expected / scale, rtol=0, atol=1e-2)
    del tall


@pytest.mark.full
@pytest.mark.not_simulated("values, of gigabytes")
def test_a_product_whose_result_has_more_than_2_gib() -> None:
    left, right = torch.randn(65543, 5), torch.randn(5, 8209)
    made = left.to(DEVICE) @ right.to(DEVICE)
    places = _rows(made, 3)
    torch.testing.assert_close(
        made[places].cpu().double(), left[places].double() @ right.double(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.full
@pytest.mark.not_simulated("values, of gigabytes")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_convolution_of_more_than_2_gib(layout: torch.memory_format) -> None:
    source = torch.empty(3, 32, 2400, 2400, device=DEVICE, memory_format=layout).uniform_(-1, 1)  # 2.06 GiB
    weight = torch.randn(2, 32, 3, 3)
    made = F.conv2d(source, weight.to(DEVICE).to(memory_format=layout), padding=1)
    for image, row in ((0, 0), (1, 1200), (2, 2390)):
        part = source[image : image + 1, :, row : row + 10].cpu().double()
        expected = F.conv2d(part, weight.double(), padding=(0, 1))
        torch.testing.assert_close(
            made[image : image + 1, :, row + 1 : row + 9].cpu().double(), expected, rtol=1e-3, atol=1e-3
        )
