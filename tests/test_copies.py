"""copy_ and fill_ between views of any strides equal the CPU's, and write nothing else."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from anyxpu import ops

# Below, at and above the sides of tiles, the shortest runs and the longest.
LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 33, 1023, 1024, 1025, 2100)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64)


def view(shape: tuple[int, ...], dtype: torch.dtype, order: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """A view of ``shape`` into filled memory: its dimensions in ``order``, every ``step``-th element of each."""
    base = torch.randint(-100, 100, [shape[d] * steps[d] + 1 for d in order]).to(dtype)
    cut = base[tuple(slice(1, None, steps[d]) for d in order)]
    return cut.permute(*(order.index(d) for d in range(len(shape))))[tuple(slice(n) for n in shape)]


def on_xpu(t: Tensor) -> Tensor:
    """The same view of the same memory there."""
    whole = t._base if t._base is not None else t
    return whole.xpu().as_strided(t.shape, t.stride(), t.storage_offset())


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """All of the memory, what lies between the elements too."""
    a, b = (t._base if t._base is not None else t for t in (ours, theirs))
    return torch.equal(a.cpu(), b)


def random_cases(count: int):
    for _ in range(count):
        dims = random.randint(1, 4)
        lengths = [random.choice(LENGTHS) for _ in range(dims)]
        while torch.Size(lengths).numel() > 1 << 18:
            longest = max(range(dims), key=lengths.__getitem__)
            lengths[longest] = random.choice(LENGTHS[:9])
        orders = [tuple(random.sample(range(dims), dims)) for _ in range(2)]
        steps = [tuple(random.choice((1, 1, 1, 2, 3)) for _ in range(dims)) for _ in range(2)]
        yield tuple(lengths), orders, steps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_between_views_of_any_strides(xpu, dtype):
    for shape, orders, steps in random_cases(40):
        source = view(shape, dtype, orders[0], steps[0])
        target = view(shape, dtype, orders[1], steps[1])
        ours = on_xpu(target)
        ours.copy_(on_xpu(source))
        target.copy_(source)
        assert agree(ours, target), (shape, orders, steps)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("pair", list(itertools.permutations(DTYPES, 2)), ids=str)
def test_between_types_on_the_way(xpu, pair):
    for shape, orders, steps in random_cases(6):
        source = view(shape, pair[0], orders[0], steps[0])
        target = view(shape, pair[1], orders[1], steps[1])
        ours = on_xpu(target)
        ours.copy_(on_xpu(source))
        target.copy_(source)
        assert agree(ours, target), (shape, orders, steps)


def test_every_half_and_every_way_to_round_to_one(xpu):
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    wide = halves.float()
    torch.testing.assert_close(halves.xpu().float().cpu(), wide, rtol=0, atol=0, equal_nan=True)
    finite = halves[halves.isfinite()]
    above = torch.nextafter(finite, torch.tensor(torch.inf, dtype=torch.float16)).float()
    between = (finite.float() + above) / 2  # of equally near ones the even one is taken
    edges = torch.tensor([65519.99, 65520.0, 65536.0, 1e30, 2.0**-25, 2.0**-26, 1e-45, torch.inf, torch.nan])
    for values in (between, *(torch.nextafter(between, torch.tensor(s * torch.inf)) for s in (-1, 1)), edges, -edges):
        found, expected = values.xpu().half().cpu(), values.half()
        same = (found.view(torch.int16) == expected.view(torch.int16)) | (found.isnan() & expected.isnan())
        assert same.all()


def test_what_is_broadcast_conjugated_or_negated(xpu):
    for shape in ((33, 1, 40), (1, 5, 1), (33, 5, 1), (1, 1, 40), (40,)):
        source, target = torch.randn(shape), torch.zeros(33, 5, 40)
        ours = on_xpu(target)
        ours.copy_(source.xpu())
        assert torch.equal(ours.cpu(), target.copy_(source))
    source, target = torch.randn(20, 34, dtype=torch.complex64), torch.zeros(34, 20, dtype=torch.complex64)
    for change in (torch.conj, torch._neg_view, lambda t: torch._neg_view(t.conj())):
        ours = on_xpu(target)
        ours.copy_(change(source.xpu()).t())
        assert torch.equal(ours.cpu(), target.copy_(change(source).t()))
    real = target.real
    imaginary = on_xpu(target).copy_(target.xpu()).real
    assert torch.equal(imaginary.cpu(), real)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filling_views_of_any_strides(xpu, dtype):
    for shape, orders, steps in random_cases(25):
        target = view(shape, dtype, orders[0], steps[0])
        ours = on_xpu(target)
        assert agree(ours.fill_(1), target.fill_(1)), (shape, orders, steps)
        assert agree(ours.zero_(), target.zero_()), (shape, orders, steps)


def test_layouts_of_images_there_and_back(xpu):
    for shape in ((2, 3, 31, 17), (3, 64, 7, 9), (5, 17, 3, 3), (2, 1, 8, 8), (2, 40, 1, 1)):
        x = torch.randn(shape)
        there = x.xpu().to(memory_format=torch.channels_last)
        assert there.is_contiguous(memory_format=torch.channels_last) and torch.equal(there.cpu(), x)
        assert torch.equal(there.contiguous().cpu(), x)
    assert not [name for name, ways in ops.counters().items() if name == "aten::copy_" and "host" in ways]


@pytest.mark.full
def test_of_more_than_32_bits_of_bytes(xpu):
    for dtype, columns in ((torch.int8, (1 << 30) + 9), (torch.int16, (1 << 29) + 5)):
        source = torch.randint(-100, 100, (2, columns), dtype=dtype)
        there = source.xpu()
        turned = torch.empty(columns, 2, dtype=dtype, device=xpu)
        turned.copy_(there.t())
        assert torch.equal(turned.t().contiguous().cpu(), source)
        turned[:, 0].fill_(7)
        assert bool((turned[:, 0] == 7).all()) and torch.equal(turned[-9:, 1].cpu(), source[1, -9:])
        del there, turned


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def bits(t: Tensor) -> Tensor:
    return t.view(torch.uint8)


@pytest.mark.parametrize(
    "dtype",
    (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.float8_e5m2),
    ids=str,
)
@pytest.mark.parametrize("eight", EIGHT_BITS, ids=str)
def test_every_float_of_eight_bits_is_read(no_host, eight, dtype):
    numbers = torch.arange(256, dtype=torch.uint8).view(eight)
    got, want = numbers.xpu().to(dtype).cpu(), numbers.to(dtype)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        got, want = got.float(), want.float()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    finite = numbers[numbers.float().isfinite()]
    assert torch.equal(finite.xpu().to(torch.int32).cpu(), finite.to(torch.int32))


@pytest.mark.parametrize("eight", EIGHT_BITS, ids=str)
def test_floats_of_eight_bits_are_rounded_as_the_cpu_does(xpu, eight):
    """Every float of 16 bits; of 32, those midway between two, those next to them, and any."""
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        assert torch.equal(bits(every.xpu().to(eight)).cpu(), bits(every.to(eight)))
    numbers = torch.arange(256, dtype=torch.uint8).view(eight).float()
    midway = torch.cat(((numbers[:-1] + numbers[1:]) / 2, numbers, torch.tensor([464.0, 480.0, 61440.0, 65536.0])))
    beside = [torch.nextafter(midway, torch.full_like(midway, end)) for end in (-1e30, 1e30)]
    some = torch.randint(-(1 << 31), (1 << 31) - 1, (200_000,), dtype=torch.int32).view(torch.float32)
    for floats in (midway, *beside, some, torch.randn(50_000) * 300, torch.randn(50_000) * 1e-4):
        assert torch.equal(bits(floats.xpu().to(eight)).cpu(), bits(floats.to(eight)))
        assert torch.equal(bits(floats.double().xpu().to(eight)).cpu(), bits(floats.double().to(eight)))
    whole = torch.randint(-500, 500, (1000,))
    assert torch.equal(bits(whole.xpu().to(eight)).cpu(), bits(whole.to(eight)))
