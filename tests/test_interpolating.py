"""Resizing by cubic convolution and with antialiasing by kernels of ours: torch's samples and own cases."""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from tests import database

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

aten = torch.ops.aten


NAMES = [
    name
    for name in ("upsample_bicubic2d", *(f"_upsample_{kind}2d_aa" for kind in ("bilinear", "bicubic", "lanczos")))
    if hasattr(aten, name)  # Lanczos' since torch 2.13
]

OPERATORS = [
    op
    for op in database.operators(
        ("nn.functional.interpolate", "_upsample_bilinear2d_aa", "nn.functional.upsample_bicubic")
    )
    if op.variant_test_name in ("bicubic", "")
]


@pytest.mark.rotates(3)
@pytest.mark.parametrize("op", OPERATORS, ids=database.name)
def test_samples(op, full):
    # Of uint8 the CPU has an arithmetic of its own.
    of_bytes = [f"aten::{name}{form}" for name in NAMES for form in ("", ".out")]
    database.check(op, full, most=20, of_bytes=of_bytes)


@pytest.mark.rotates(9)
@pytest.mark.parametrize("name", NAMES)
def test_resizing(name, full):
    """Larger and smaller, by sizes and by scales, corners together or not, of both memory formats."""
    rng = random.Random(torch.initial_seed())
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    types = [torch.float32, torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        types.append(torch.float64)
    for dtype in types if full else types[:2]:
        for _ in range(30 if full else 8):
            shape = [rng.randint(1, 3), rng.choice((1, 3, 5)), rng.choice((1, 2, 7, 16)), rng.choice((2, 5, 12))]
            x = torch.randn(shape, dtype=torch.float64).to(dtype)
            if rng.random() < 0.5:
                x = x.to(memory_format=torch.channels_last)
            corners, scales = rng.random() < 0.4, [None, None]
            sizes = [rng.choice((1, 3, n, 2 * n, 3 * n + 1)) for n in shape[2:]]
            if rng.random() < 0.5:
                scales = [rng.choice((0.5, 1.0, 1.7, 3.3, 2.0)) for _ in range(2)]
                sizes = [max(1, int(n * f)) for n, f in zip(shape[2:], scales, strict=True)]
                if min(n * f for n, f in zip(shape[2:], scales, strict=True)) < 1:
                    continue
            if name.endswith("_aa") and sizes[1] == 1:
                continue  # of a column that is contiguous the CPU repeats the first element: see below
            wide = dtype if dtype in (torch.float32, torch.float64) else torch.float64
            what = (name, dtype, shape, sizes, corners, scales)
            anyxpu.ops.reset_counters()
            got = forward(x.to("xpu"), sizes, corners, *scales)
            want = forward(x.to(wide), sizes, corners, *scales)
            database.near(got, want.to(dtype), what)
            assert database.steps(got) == database.steps(want), what
            grad = torch.randn(want.shape, dtype=torch.float64).to(dtype)
            if rng.random() < 0.5:
                grad = grad.to(memory_format=torch.channels_last)
            found = backward(grad.to("xpu"), sizes, shape, corners, *scales)
            should = backward(grad.to(wide), sizes, shape, corners, *scales)
            database.near(found, should.to(dtype), (what, "backward"))
            assert database.steps(found) == database.steps(should), (what, found.stride(), should.stride())
            assert not {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


def test_a_column_is_resized_as_a_row_is():
    """Of which torch 2.13's CPU kernels repeat the first element."""
    x = torch.randn(2, 3, 9)
    for name in NAMES[1:]:
        column = getattr(aten, name)(x.unsqueeze(-1).to("xpu"), [4, 1], False).squeeze(-1)
        database.near(column, getattr(aten, name)(x.unsqueeze(-2), [1, 4], False).squeeze(-2), name)


def test_results_into_tensors_and_bytes():
    x = torch.randn(2, 3, 6, 7)
    for name in NAMES:
        out = torch.empty(0, device="xpu")
        getattr(aten, name).out(x.to("xpu"), [9, 4], False, out=out)
        database.near(out, getattr(aten, name)(x, [9, 4], False), name)
        small = (x * 40).to(torch.uint8)  # by integers of the CPU's own
        database.near(
            getattr(aten, name)(small.to("xpu"), [9, 4], False), getattr(aten, name)(small, [9, 4], False), name
        )
