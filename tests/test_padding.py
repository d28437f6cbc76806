"""Padding, columns and resizing by kernels of ours: torch's samples and own cases, against the CPU."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from tests import database

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

NAMES = (*("nn.functional.pad", "nn.functional.unfold", "nn.functional.fold"),)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
aten = torch.ops.aten


def hosted() -> set[str]:
    return {n for n, ways in anyxpu.ops.counters().items() if "host" in ways}


@pytest.mark.parametrize("op", database.operators(NAMES), ids=database.name)
def test_samples(op, full):
    database.check(op, full)


def layouts(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """In one of the layouts that views have."""
    kind = rng.choice(("plain", "last", "turned", "strided"))
    if kind == "last" and x.dim() in FORMATS:
        return x.to(memory_format=FORMATS[x.dim()])
    if kind == "turned":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "strided":
        return torch.stack([x, x], -1)[..., 0]
    return x


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dims", (1, 2, 3))
@pytest.mark.parametrize("kind", ("reflection", "replication"))
def test_padding(kind, dims, full):
    """Forward of every type, backward of floats, of every layout, with a batch and without one, and below 0."""
    rng = random.Random(torch.initial_seed())
    forward, backward = (getattr(aten, f"{kind}_pad{dims}d{word}") for word in ("", "_backward"))
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.complex64]
    for dtype, _ in itertools.product(types, range(12 if full else 3)):
        shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]
        shape += [rng.randint(2, 40 if dims == 1 else 9) for _ in range(dims)]
        padding = []
        for n in reversed(shape[-dims:]):
            most = n - 1 if kind == "reflection" else n + 3
            padding += [before := rng.randint(-1, most), rng.randint(-1 if before >= 0 else 0, most)]
        x = layouts((torch.randn(shape, dtype=torch.float64) * 50).to(dtype), rng)
        anyxpu.ops.reset_counters()
        got, want = forward(x.to("xpu"), padding), forward(x, padding)
        what = (x.shape, x.stride(), padding)
        database.near(got, want, what, 0)
        assert database.steps(got) == database.steps(want), (what, got.stride(), want.stride())
        if dtype in database.BOUNDS and (dtype is not torch.float64 or torch.xpu.get_device_properties().has_fp64):
            grad = layouts(torch.randn(want.shape, dtype=torch.float64).to(dtype), rng)
            found = backward(grad.to("xpu"), x.to("xpu"), padding)
            should = backward(grad.double(), x.double(), padding).to(dtype)
            database.near(found, should, (what, "backward"))
            assert database.steps(found) == database.steps(should), (what, found.stride(), should.stride())
        assert not hosted(), hosted()
    empty = torch.zeros([0, 3] + [4] * dims)
    assert forward(empty.to("xpu"), [1] * 2 * dims).shape == forward(empty, [1] * 2 * dims).shape
    x = torch.randn([2, 3] + [4] * dims)
    out = torch.empty(0, device="xpu")
    database.near(forward.out(x.to("xpu"), [1, 2] * dims, out=out), forward(x, [1, 2] * dims), "out=")
    if kind == "reflection":
        for device in ("cpu", "xpu"):
            with pytest.raises(RuntimeError, match="Padding size should be less than"):
                forward(x.to(device), [4, 0] + [1, 1] * (dims - 1))
    for device in ("cpu", "xpu"):
        with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
            forward(x.bool().to(device), [1, 1] * dims)


@pytest.mark.rotates(2)
def test_columns(full):
    """im2col, and col2im of any columns; windows that overlap, that leave gaps, and that are in the padding."""
    rng = random.Random(torch.initial_seed())
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.bool]
    for dtype, _ in itertools.product(types, range(30 if full else 5)):
        shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))] + [rng.randint(3, 20), rng.randint(3, 20)]
        size, step, dilation = ([rng.randint(1, 3) for _ in range(2)] for _ in range(3))
        padding = [rng.randint(0, 3) for _ in range(2)]
        x = layouts((torch.randn(shape, dtype=torch.float64)).to(dtype), rng)
        named = {"kernel_size": size, "stride": step, "dilation": dilation, "padding": padding}
        try:
            want = F.unfold(x, **named)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).split("(")[0][:20]):
                F.unfold(x.to("xpu"), **named)
            continue
        anyxpu.ops.reset_counters()
        database.near(F.unfold(x.to("xpu"), **named), want, (shape, named), 0)
        if dtype in database.BOUNDS and (dtype is not torch.float64 or torch.xpu.get_device_properties().has_fp64):
            columns = torch.randn(want.shape, dtype=torch.float64).to(dtype)
            if rng.random() < 0.3:
                columns = columns.transpose(-1, -2).contiguous().transpose(-1, -2)
            should = F.fold(columns.double(), shape[-2:], **named).to(dtype)
            database.near(F.fold(columns.to("xpu"), shape[-2:], **named), should, (shape, named, "fold"))
        assert not hosted(), hosted()
    with pytest.raises(RuntimeError, match="expected size of input"):
        F.fold(torch.randn(1, 8, 3, device="xpu"), (4, 4), 2)
