"""scatter_add and scatter_reduce on xpu: every kernel gives what CPU torch gives, and minds the index.

Values are such that no order of a reduction rounds: results are compared exactly.
"""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import scattering
from tests.strided import random_view

DEVICE = "xpu"
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REDUCTIONS = ("sum", "prod", "amax", "amin")


@pytest.fixture
def launched(monkeypatch) -> set[str]:
    """The names of the kernels that the test launches."""
    names: set[str] = set()
    original = scattering._Kernels.launch

    def launch(self, name, *args):
        names.add(name)
        original(self, name, *args)

    monkeypatch.setattr(scattering._Kernels, "launch", launch)
    return names


def values(shape: tuple[int, ...], dtype: torch.dtype, reduce: str = "sum") -> torch.Tensor:
    """Random elements whose sum, for up to 16 of them, or whose product is exact in every dtype."""
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, shape).to(dtype)
    if reduce == "prod":
        return torch.tensor([-1.0, 0.5, 1.0, 2.0])[torch.randint(4, shape)].to(dtype)
    return (torch.randint(-8, 9, shape) / 4).to(dtype)


def laid_out(rng: random.Random, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in random strides, on the CPU and on the device."""
    recipe = random_view(rng, tuple(tensor.shape))
    base = torch.zeros(recipe.base, dtype=tensor.dtype)
    recipe.of(base).copy_(tensor)
    return recipe.of(base), recipe.of(base.to(DEVICE))


def assert_as_on_cpu(operands, dim: int, reduce: str, include_self: bool = True) -> None:
    """scatter_reduce of pairs (on the CPU, on the device) of self, index and src."""
    (self, index, src), (self_xpu, index_xpu, src_xpu) = zip(*operands, strict=True)
    expected = self.scatter_reduce(dim, index, src, reduce, include_self=include_self)
    given = self_xpu.scatter_reduce(dim, index_xpu, src_xpu, reduce, include_self=include_self)
    torch.testing.assert_close(given.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def on_both(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t, t.to(DEVICE)) for t in tensors]


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include_self", (True, False))
def test_reductions_of_every_dtype_are_the_cpus(dtype, reduce, include_self, no_host):
    for dim, index_dtype in ((0, torch.int64), (1, torch.int32)):
        self, src = values((9, 37), dtype, reduce), values((7, 30), dtype, reduce)
        index = torch.randint(9, (6, 29), dtype=index_dtype)
        assert_as_on_cpu(on_both(self, index, src), dim, reduce, include_self)


@pytest.mark.parametrize("device_type", ("cpu", "gpu"))
def test_any_strides_dimensions_and_smaller_indices(device_type, monkeypatch, launched, no_host):
    monkeypatch.setattr(scattering, "_forced_type", device_type)
    rng = random.Random(torch.seed())
    for _ in range(60):
        rank = rng.randint(1, 6)
        dim = rng.randrange(-rank, rank)
        to = [rng.choice((1, 2, 3, 5)) for _ in range(rank)]
        index = [rng.randint(1, n) for n in to]
        index[dim] = rng.randint(1, 8)
        src = [n + rng.choice((0, 0, 2)) for n in index]
        operands = [
            laid_out(rng, values(tuple(to), torch.float32)),
            laid_out(rng, torch.randint(to[dim], index)),
            laid_out(rng, values(tuple(src), torch.float32)),
        ]
        assert_as_on_cpu(operands, dim, "sum")
    assert launched == ({"scatter_lines", "scatter_blocks"} if device_type == "cpu" else {"scatter_lines"})


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("shape", "dim"),
    (
        ((130, 1000), 0),  # blocks of lines, and a shorter one
        ((3, 40, 517), 1),
        ((50, 3), 0),  # fewer lines than a block has
        ((300, 70), 1),  # a line is contiguous
        ((5000,), 0),
    ),
)
@pytest.mark.parametrize("device_type", ("cpu", "gpu"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32), ids=str)
def test_large_shapes_on_either_kind_of_device(shape, dim, device_type, dtype, monkeypatch, no_host):
    monkeypatch.setattr(scattering, "_forced_type", device_type)
    # As many elements as places: few of them meet, and 16-bit sums are exact.
    operands = on_both(values(shape, dtype), torch.randint(shape[dim], shape), values(shape, dtype))
    assert_as_on_cpu(operands, dim, "sum")
    assert_as_on_cpu(operands, dim, "amax", False)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.int32), ids=str)
def test_work_items_of_a_gpu_share_a_long_line(reduce, dtype, monkeypatch, launched, no_host):
    monkeypatch.setattr(scattering, "_forced_type", "gpu")
    # Halves and twos over many places: a product stays a power of two that a float holds.
    operands = on_both(values((500, 3), dtype, reduce), torch.randint(500, (9000, 2)), values((9001, 2), dtype, reduce))
    assert_as_on_cpu(operands, 0, reduce)
    assert launched == {"scatter_shared"}


def test_deterministic_algorithms_share_no_line(monkeypatch, launched, no_host):
    monkeypatch.setattr(scattering, "_forced_type", "gpu")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert_as_on_cpu(on_both(torch.zeros(5), torch.randint(5, (3000,)), values((3000,), torch.float32)), 0, "sum")
    assert launched == {"scatter_lines"}


def test_an_order_that_rounds_is_that_of_the_index(no_host):
    self, index, src = torch.randn(20, 700), torch.randint(20, (300, 700)), torch.randn(300, 700)
    given = self.to(DEVICE).scatter_add(0, index.to(DEVICE), src.to(DEVICE)).cpu()
    expected = self.clone()
    for row in range(300):
        expected[index[row], torch.arange(700)] += src[row]
    assert torch.equal(given, expected)


def test_an_expanded_index_is_read_in_place(no_host):
    index = torch.randint(30, (40, 1))
    expanded = index.expand(40, 600), index.to(DEVICE).expand(40, 600)
    for dtype in (torch.float32, torch.float16, torch.int8):
        self, src = on_both(values((30, 600), dtype), values((40, 600), dtype))
        assert_as_on_cpu((self, expanded, src), 0, "sum")
        assert_as_on_cpu((self, expanded, src), 0, "amin", False)


@pytest.mark.not_simulated("the kernel that would find the index does not execute")
def test_an_expanded_index_out_of_range_is_told():
    index = torch.tensor([[0], [3], [2]], device=DEVICE).expand(3, 600)
    place = torch.zeros(4, 600, device=DEVICE)
    place[:3].scatter_add_(0, index, torch.ones(3, 600, device=DEVICE))
    with pytest.raises(torch.AcceleratorError, match="index out of bounds of the dimension"):
        torch.xpu.synchronize()
    assert place[:, 0].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("reduce", ("amax", "amin"))
@pytest.mark.parametrize("include_self", (True, False))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinities_stay(reduce, include_self, dtype, no_host):
    drawn = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, -2.0, 0.5], dtype=dtype)
    self, src = drawn[torch.randint(6, (40, 20))], drawn[torch.randint(6, (60, 20))]
    assert_as_on_cpu(on_both(self, torch.randint(40, (60, 20)), src), 0, reduce, include_self)


def test_numbers_and_empty_tensors(no_host):
    for self, index, src in (
        (torch.tensor(1.5), torch.tensor(0), torch.tensor(2.0)),
        (torch.tensor(1.5), torch.tensor([0]), torch.tensor(2.0)),
        (torch.ones(3), torch.tensor(2), torch.tensor(2.0)),
        (torch.ones(3, 4), torch.empty(0, 4, dtype=torch.int64), torch.ones(2, 4)),
        (torch.ones(0, 4), torch.empty(0, 4, dtype=torch.int64), torch.ones(0, 4)),
    ):
        for dim in (0, -1):
            assert_as_on_cpu(on_both(self, index, src), dim, "sum")


def test_every_form_of_the_operators(no_host):
    self, index, src = values((8, 40), torch.float32), torch.randint(8, (10, 40)), values((10, 40), torch.float32)
    on_device = [t.to(DEVICE) for t in (self, index, src)]
    expected = self.scatter_add(0, index, src)
    assert torch.equal(on_device[0].scatter_add(0, *on_device[1:]).cpu(), expected)
    assert torch.equal(on_device[0].cpu(), self)
    for call in (
        lambda x: x.scatter_add_(0, *on_device[1:]),
        lambda x: x.scatter_reduce_(0, *on_device[1:], "sum"),
        lambda x: torch.scatter_add(x, 0, *on_device[1:], out=x),
    ):
        place = on_device[0].clone()
        assert call(place) is place
        assert torch.equal(place.cpu(), expected)
    out = torch.empty(40, 8, device=DEVICE).T
    assert torch.scatter_add(on_device[0], 0, *on_device[1:], out=out) is out
    assert torch.equal(out.cpu(), expected)


def test_the_host_computes_means_and_refuses_what_cpu_torch_refuses():
    self, index, src = values((8, 4), torch.float32), torch.randint(8, (10, 4)), values((10, 4), torch.float32)
    assert_as_on_cpu(on_both(self, index, src), 0, "mean")
    for wrong in (
        (self, index, src[:9]),
        (self[:, :3], index, src),
        (self, index, src[:, 0]),
        (self, index, src.double()),
        (self, index.short(), src),
        (self[:1].expand(8, 4), index, src),
    ):
        told = []
        for device in ("cpu", DEVICE):
            x, i, s = (t.to(device) if t.stride(0) else t[:1].to(device).expand(t.shape) for t in wrong)
            with pytest.raises((RuntimeError, IndexError)) as raised:
                x.scatter_add_(0, i, s)
            told.append(raised.type)
        assert told[0] is told[1]
    for device in ("cpu", DEVICE):
        with pytest.raises(IndexError):
            self.to(device).scatter_add(2, index.to(device), src.to(device))


@pytest.mark.not_simulated("the kernel that would find the index does not execute")
@pytest.mark.parametrize("device_type", ("cpu", "gpu"))
@pytest.mark.parametrize("bad", (5, -1, 2**40, -(2**40)))
@pytest.mark.parametrize("shape", ((100, 40), (40, 3)))
def test_an_index_out_of_range_is_told_and_touches_nothing(device_type, bad, shape, monkeypatch):
    monkeypatch.setattr(scattering, "_forced_type", device_type)
    around = torch.zeros(15, shape[1], device=DEVICE)
    index, src = torch.randint(5, shape), values(shape, torch.float32)
    at = random.randrange(shape[0]), random.randrange(shape[1])
    index[at] = bad
    around[5:10].scatter_add_(0, index.to(DEVICE), src.to(DEVICE))
    with pytest.raises(torch.AcceleratorError, match="scatter_sum: index out of bounds of the dimension"):
        torch.xpu.synchronize()
    index[at], src[at] = 0, 0
    expected = torch.zeros(15, shape[1])
    expected[5:10].scatter_add_(0, index, src)
    assert torch.equal(around.cpu(), expected)


def test_compiled_sums_on_a_cpu_are_the_eager_kernels_and_never_the_hosts(launched):
    @torch.compile
    def f(x, i, s):
        return torch.zeros_like(x).scatter_add(0, i, s * 2) + 1

    x, i, s = torch.zeros(20, 300), torch.randint(20, (50, 300)), values((50, 300), torch.float32)
    expected = torch.zeros_like(x).scatter_add(0, i, s * 2) + 1
    anyxpu.ops.reset_counters()
    given = f(*(t.to(DEVICE) for t in (x, i, s)))
    assert not {op for op, ways in anyxpu.ops.counters().items() if "host" in ways}
    assert torch.equal(given.cpu(), expected)
    assert launched == (set() if simulate.active() else {"scatter_blocks"})  # Inductor has a GPU add atomically


def test_compiled_gradients_of_embeddings_and_indexing_stay_generated(launched):
    @torch.compile
    def f(w, i):
        return torch.nn.functional.embedding(i, w).sum() + (w[i] * 2).sum()

    w, i = torch.randn(50, 8), torch.randint(50, (30,))
    gradients = []
    for device in ("cpu", DEVICE):
        leaf = w.clone().to(device).requires_grad_()
        anyxpu.ops.reset_counters()
        f(leaf, i.to(device)).backward()
        gradients.append(leaf.grad.cpu())
    assert not {op for op, ways in anyxpu.ops.counters().items() if "host" in ways}
    torch.testing.assert_close(gradients[1], gradients[0])
    assert launched == set()


def test_the_gradient_of_gather_stays_on_the_device(launched):
    x, i = torch.randn(30, 20), torch.randint(30, (40, 20))
    gradients = []
    for device in ("cpu", DEVICE):
        leaf = x.clone().to(device).requires_grad_()
        leaf.gather(0, i.to(device)).backward(torch.ones(40, 20, device=device))
        gradients.append(leaf.grad.cpu())
    assert torch.equal(*gradients)
    assert launched == {"scatter_lines" if simulate.active() else "scatter_blocks"}
