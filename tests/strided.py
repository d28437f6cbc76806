"""Random strided memory, drawn the same way on two devices, and comparison bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEXES = (torch.complex32, torch.complex64, torch.complex128)
CONVERTIBLE = (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES)
FLOAT8S = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class View:
    """A recipe: a base shape and steps that lead from a base tensor to a view of ``shape``."""

    base: tuple[int, ...]
    steps: list[Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def of(self, base: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            base = step(base)
        return base


def random_view(rng: random.Random, shape: tuple[int, ...], expandable: bool = False) -> View:
    """A view of ``shape`` over a larger base: permuted, sliced with steps and offsets, and expanded if allowed."""
    dims = len(shape)
    order = rng.sample(range(dims), dims)
    expanded = [expandable and rng.random() < 0.25 for _ in shape]
    sizes = [1 if e else s for e, s in zip(expanded, shape, strict=True)]
    slices = []
    for size in sizes:
        step = rng.choice((1, 1, 1, 2, 3))
        start = rng.choice((0, 0, 1, 4))
        slices.append((start, start + (size - 1) * step + 1 if size else start, step))
    ends = [stop + rng.choice((0, 0, 2)) for _, stop, _ in slices]
    base = tuple(ends[d] for d in order)
    inverse = [order.index(d) for d in range(dims)]
    cuts = tuple(slice(*s) for s in slices)
    return View(
        base,
        [
            lambda t: t.permute(inverse),
            lambda t: t[cuts] if dims else t,
            lambda t: t.expand(shape),
        ],
    )


def random_shape(rng: random.Random, most: int = 5) -> tuple[int, ...]:
    """Up to ``most`` dimensions, some of one element, now and then an empty one."""
    sizes = (1, 2, 3, 5, 7, 16, 33)
    shape = [rng.choice(sizes) for _ in range(rng.randint(0, most))]
    if shape and rng.random() < 0.05:
        shape[rng.randrange(len(shape))] = 0
    while torch.Size(shape).numel() > 20000:
        shape[shape.index(max(shape))] = 2
    return tuple(shape)


def values(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, like: torch.dtype) -> torch.Tensor:
    """A CPU tensor of ``dtype`` whose values convert to ``like`` without leaving its range.

    Between floating types that means anything: infinities, NaN, denormals, halfway cases.
    """
    seed = torch.Generator().manual_seed(rng.getrandbits(40))
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        flat = torch.randint(0, 2, (count,), generator=seed).to(dtype)
    elif dtype.is_complex:
        part = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}[dtype]
        flat = torch.view_as_complex(_reals(rng, seed, 2 * count, part, like).reshape(count, 2))
    elif dtype.is_floating_point:
        flat = _reals(rng, seed, count, dtype, like)
    elif like in INTEGERS or like.is_floating_point or like.is_complex or like is torch.bool:
        low = 0 if torch.iinfo(dtype).min == 0 else -90
        flat = torch.randint(low, 120, (count,), generator=seed)
        if like.is_floating_point and torch.iinfo(dtype).bits >= 32:
            flat = flat * rng.choice((1, 9973, 15485863))
        flat = flat.to(dtype)
    else:
        raise AssertionError((dtype, like))
    return flat.reshape(shape)


def _reals(
    rng: random.Random, seed: torch.Generator, count: int, dtype: torch.dtype, like: torch.dtype
) -> torch.Tensor:
    if like.is_floating_point or like.is_complex or like is torch.bool:
        size = torch.empty(0, dtype=dtype).element_size()
        bits = torch.randint(0, 256, (count * size,), generator=seed, dtype=torch.uint8).view(dtype)
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.00390625, 65519.9, 1e-7, 3.0]).to(dtype)
        pick = torch.randint(0, len(special), (count,), generator=seed)
        near_one = torch.randn(count, generator=seed, dtype=torch.float64).to(dtype)
        which = torch.randint(0, 3, (count,), generator=seed)
        return torch.where(which == 0, bits, torch.where(which == 1, special[pick], near_one))
    low = -100.0 if torch.iinfo(like).min < 0 else 0.0
    return (torch.rand(count, generator=seed, dtype=torch.float64) * (120 - low) + low).to(dtype)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Both have the same sizes, dtype and bits; any NaN equals any other (ATen's own differ from path to path)."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    actual, expected = actual.detach().cpu().resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    if actual.dtype.is_complex:
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    actual, expected = actual.contiguous(), expected.contiguous()
    bits = _BITS[actual.element_size()]
    same = actual.view(bits) == expected.view(bits)
    if actual.dtype.is_floating_point:
        same |= actual.float().isnan() & expected.float().isnan()
    assert bool(same.all()), f"{what}: {int((~same).sum())} of {same.numel()} elements differ"
