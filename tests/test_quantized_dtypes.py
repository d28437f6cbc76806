"""Tensors of quantized types on xpu: made, moved, looked at and computed with, bit for bit as on the CPU."""

from __future__ import annotations

import io

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.filterwarnings("ignore"),
]
TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


def same(got, want):
    assert (got.device.type, got.dtype, got.shape, got.stride()) == ("xpu", want.dtype, want.shape, want.stride())
    if want.is_quantized:
        assert got.qscheme() == want.qscheme()
        if want.qscheme() == torch.per_tensor_affine:
            assert (got.q_scale(), got.q_zero_point()) == (want.q_scale(), want.q_zero_point())
        else:
            assert got.q_per_channel_axis() == want.q_per_channel_axis()
            assert torch.equal(got.q_per_channel_scales().cpu(), want.q_per_channel_scales()) or simulate.active()
        same(got.int_repr(), want.int_repr())
        same(got.dequantize(), want.dequantize())
        assert torch.equal(got.cpu().int_repr(), want.int_repr()) or simulate.active()
    elif not simulate.active():
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_quantized_by_tensor_and_by_channel(dtype):
    x = torch.randn(37, 6, 3) * 20
    if dtype is not torch.qint32:  # whose difference to the zero point the CPU lets overflow
        x[0, 0] = torch.tensor([float("inf"), float("-inf"), 0.5])
    for scale, zero in ((0.05, 3), (1.0, 0), (1e-3, 100)):
        same(torch.quantize_per_tensor(x.to("xpu"), scale, zero, dtype),
             torch.quantize_per_tensor(x, scale, zero, dtype))  # fmt: skip
    s, z = torch.tensor(0.1), torch.tensor(2)
    same(
        torch.quantize_per_tensor(x.to("xpu"), s.to("xpu"), z.to("xpu"), dtype),
        torch.quantize_per_tensor(x, s, z, dtype),
    )
    scales, zeros = torch.rand(6) + 0.01, torch.randint(0, 9, (6,))
    # Half-way between two numbers the CPU's vectors round after they have added the zero point, its scalars before.
    steps = scales[:, None]
    x = torch.where(((x / steps) % 1 - 0.5).abs() < 1e-3, x + 0.01 * steps, x)
    same(
        torch.quantize_per_channel(x.to("xpu"), scales.to("xpu"), zeros.to("xpu"), 1, dtype),
        torch.quantize_per_channel(x, scales, zeros, 1, dtype),
    )


@pytest.mark.parametrize("dtype", list(TYPES)[:2], ids=str)
def test_quantizing_and_dequantizing_are_no_calls_of_the_host(dtype):
    x = torch.randn(8, 5, device="xpu")
    anyxpu.ops.reset_counters()
    made = torch.quantize_per_tensor(x, 0.1, 1, dtype)
    made[1:3].dequantize(), made.t().int_repr()
    one = torch.ones(5, device="xpu")
    made = torch.quantize_per_channel(x, one * 0.1, one.long(), 1, dtype)
    made.dequantize(), made.int_repr(), made.clone()
    assert not {name for name, ways in anyxpu.ops.counters().items() if ways.get("host")}


CALLS = {
    "slice": lambda q: q[:, 1:],
    "transpose": lambda q: q.transpose(0, 1),
    "contiguous": lambda q: q.transpose(0, 1).contiguous(),
    "view": lambda q: q.view(2, -1),
    "clone": torch.clone,
    "channels last": lambda q: q.contiguous(memory_format=torch.channels_last),
    "relu": torch.relu,
    "max_pool2d": lambda q: torch.nn.functional.max_pool2d(q, 2),
    "avg_pool2d": lambda q: torch.nn.functional.avg_pool2d(q, 2),
    "interpolate": lambda q: torch.nn.functional.interpolate(q, scale_factor=2),
    "cat": lambda q: torch.cat([q, q], 1),
    "flip": lambda q: q.flip(0),
    "max": torch.max,
    "greater": lambda q: q > 0,
    "clamp": lambda q: q.clamp(-0.3, 0.4),
    "index_select": lambda q: q.index_select(0, torch.tensor([1, 0, 1], device=q.device)),
    "mean": lambda q: q.mean((2, 3)),
    "fill_": lambda q: q.fill_(0.7),
    "sort": lambda q: q.sort()[0],
    "sigmoid": torch.sigmoid,
    "copy_ of numbers": lambda q: q.copy_(torch.linspace(-2, 2, q.numel(), device=q.device).view(q.shape)),
    "copy_": lambda q: q.clone().copy_(q.flip(1)),
    "zeros": lambda q: torch._empty_affine_quantized(
        [3, 4], scale=0.1, zero_point=2, dtype=q.dtype, device=q.device
    ).fill_(0.3),
    "of integers": lambda q: torch._make_per_tensor_quantized_tensor(
        torch.arange(9, device=q.device).to(TYPES[q.dtype]), 0.5, 1
    ),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_computed_with(name, dtype):
    there = torch.quantize_per_tensor(torch.randn(2, 3, 6, 4), 0.05, 3, dtype)
    try:
        want = CALLS[name](there.clone())
    except (RuntimeError, NotImplementedError):
        pytest.skip("the CPU does not do it")
    same(CALLS[name](there.to("xpu")), want)


def test_moved_saved_and_printed():
    there = torch.quantize_per_tensor(torch.randn(3, 4), 0.05, 3, torch.quint8)
    here = there.to("xpu")
    assert "xpu:0" in str(here) and "scale=0.05" in str(here)
    file = io.BytesIO()
    torch.save(here, file)
    file.seek(0)
    same(torch.load(file, weights_only=False), there)


def test_what_nothing_serves_is_refused_by_name():
    here = torch.quantize_per_tensor(torch.randn(3, 4), 0.05, 3, torch.quint8).to("xpu")
    with pytest.raises(NotImplementedError, match=r"aten::.* has no kernel for tensors of kind QuantizedXPU"):
        torch.sin(here)
