"""Batch norm in pieces, against the definition in float64; the newer forms of the whole, against the CPU's.

With collectives between them the pieces are in ``test_xccl.py``.
"""

from __future__ import annotations

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")
EPS = 1e-3
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
LAYOUTS = [(5, 6, 4, 3), (7, 6), (3, 6, 11), "channels last"]


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert (got.device.type, got.shape) == ("xpu", want.shape)
    if not simulate.active():
        far = (got.cpu().double() - want).abs().max().item()
        assert far <= BOUNDS[dtype] * max(1.0, want.abs().max().item()), far


def operand(shape, dtype: torch.dtype) -> torch.Tensor:
    if shape == "channels last":
        return torch.randn(5, 6, 4, 3).to(dtype).contiguous(memory_format=torch.channels_last)
    return torch.randn(shape).to(dtype)


def of_channels(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return t.view(1, -1, *[1] * (x.dim() - 2))


def others(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


@pytest.mark.parametrize("mode", ["auto", "compile"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
def test_the_pieces_are_batch_norm_when_put_together(shape, dtype, mode):
    """Two parts of a batch: their statistics, gathered; what each part becomes; and the gradients."""
    before = lib().eager()
    lib().set_eager(mode)
    anyxpu.ops.reset_counters()
    try:
        _pieces(shape, dtype)
    finally:
        lib().set_eager(before)
    served = {name: ways for name, ways in anyxpu.ops.counters().items() if "host" in ways}
    assert mode == "auto" or not served or simulate.active()
    assert not any(name.startswith("aten::batch_norm") for name in served)  # which the host has not


def _pieces(shape, dtype):
    parts = [operand(shape, dtype) + 3, operand(shape, dtype) * 2]
    grads = [operand(shape, dtype) for _ in parts]
    weight, bias = torch.rand(6) + 0.5, torch.randn(6)
    running = torch.randn(6), torch.rand(6)
    here = [p.to("xpu") for p in parts]
    found = [torch.batch_norm_stats(p, EPS) for p in here]
    means, scales = (torch.stack(list(each)) for each in zip(*found, strict=True))
    whole = torch.cat([p.double() for p in parts])
    for part, mean, scale in zip(parts, means, scales, strict=True):
        wide = part.double()
        near(mean, wide.mean(others(wide)), torch.float32)
        near(scale, (wide.var(others(wide), correction=0) + EPS).rsqrt(), torch.float32)
    counts = torch.tensor([p.numel() // 6 for p in parts], dtype=torch.float32, device="xpu")
    moved = [t.to("xpu") for t in running]
    mean, scale = torch.batch_norm_gather_stats_with_counts(here[0], means, scales, *moved, 0.2, EPS, counts)
    all_mean, all_var = whole.mean(others(whole)), whole.var(others(whole), correction=0)
    near(mean, all_mean, torch.float32)
    near(scale, (all_var + EPS).rsqrt(), torch.float32)
    near(moved[0], running[0] * 0.8 + all_mean * 0.2, torch.float32)
    near(moved[1], running[1] * 0.8 + whole.var(others(whole)) * 0.2, torch.float32)
    again = torch.batch_norm_gather_stats(here[0], means, scales, None, None, 0.2, EPS, parts[0].numel() // 6)
    near(again[0], all_mean, torch.float32)

    there = [t.double().requires_grad_() for t in (whole, weight, bias)]
    normal = (there[0] - there[0].mean(others(whole), keepdim=True)) * of_channels((all_var + EPS).rsqrt(), whole)
    want = torch.nn.functional.batch_norm(*there[:1], None, None, *there[1:], True, 0.0, EPS)
    assert torch.allclose(normal * of_channels(there[1], whole) + of_channels(there[2], whole), want)
    want.backward(torch.cat([g.double() for g in grads]))
    wanted = want.detach().split([len(p) for p in parts])
    gradients = there[0].grad.split([len(p) for p in parts])
    w, b = weight.to("xpu"), bias.to("xpu")
    sums = []
    for part, grad, result in zip(here, grads, wanted, strict=True):
        made = torch.batch_norm_elemt(part, w, b, mean, scale, EPS)
        assert made.dtype == dtype and made.stride() == part.stride()
        near(made, result, dtype)
        sums.append(torch.batch_norm_backward_reduce(grad.to("xpu"), part, mean, scale, w, True, True, True))
    of_weight, of_bias = (sums[0][k] + sums[1][k] for k in (2, 3))
    near(of_weight, there[1].grad, torch.float32 if dtype is torch.float32 else dtype)
    near(of_bias, there[2].grad, torch.float32 if dtype is torch.float32 else dtype)
    dy, dot = (sums[0][k] + sums[1][k] for k in (0, 1))
    for part, grad, result in zip(here, grads, gradients, strict=True):
        made = torch.batch_norm_backward_elemt(
            grad.to("xpu"), part, mean, scale, w, dy, dot, counts.to(torch.int32).view(-1, 1)
        )  # fmt: skip
        assert made.dtype == dtype and made.stride() == part.stride()
        near(made, result, dtype)


def test_what_is_not_asked_for_is_not_given():
    x, mean = torch.randn(4, 6, 5, device="xpu"), torch.zeros(6, device="xpu")
    made = torch.batch_norm_backward_reduce(x, x, mean, mean + 1, None, False, False, True)
    assert [t is None for t in made] == [True, True, True, False]
    near(made[3], x.cpu().double().sum((0, 2)), torch.float32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, c: torch.batch_norm_stats(x[0, 0], 1e-5), r"\(N, C, \*\)"),
        (lambda x, c: torch.batch_norm_elemt(x, c[1:], None, c, c, 1e-5), "6 numbers of the channels"),
        (lambda x, c: torch.batch_norm_elemt(x.int(), c, None, c, c, 1e-5), "wants floats"),
        (lambda x, c: torch.batch_norm_elemt(x, c.cpu(), None, c, c, 1e-5), "of one device"),
        (lambda x, c: torch.batch_norm_backward_reduce(x[1:], x, c, c, c, True, True, True), "input's shape"),
    ],
)
def test_what_does_not_fit_is_named(call, says):
    x, c = torch.randn(4, 6, 5, device="xpu"), torch.ones(6, device="xpu")
    with pytest.raises(RuntimeError, match=says):
        call(x, c)
    assert torch.batch_norm_stats(x, 1e-5)[0].shape == (6,)


@pytest.mark.usefixtures("compiled", "no_host")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_newer_forms_of_the_whole(dtype):
    aten = torch.ops.aten
    x, grad = (torch.randn(5, 6, 4, 3).to(dtype) for _ in range(2))
    weight, bias, mean, var = (torch.rand(6) + 0.5 for _ in range(4))

    def on(device: str, kind: torch.dtype):
        a, g, w, b, m, v = (
            t.to(device, kind if t.dtype == dtype else None) for t in (x, grad, weight, bias, mean, var)
        )
        m, v = m.clone(), v.clone()
        with_update = aten._batch_norm_with_update(a, w, b, m, v, 0.2, EPS)
        without = aten._batch_norm_no_update(a, w, b, m, v, 0.2, EPS)
        back = [
            aten.batch_norm_backward(g, a, w, m, v, saved[1], saved[2], update, EPS, [True] * 3, saved[3])
            for saved, update in ((with_update, True), (without, False))
        ]
        stats = aten.batch_norm_update_stats(a, m, v, 0.2)
        return [*with_update[:3], without[0], *back[0], *back[1], *stats, m, v]

    for got, want in zip(on("xpu", dtype), on("cpu", torch.float32), strict=True):
        near(got, want.double(), dtype)
    out = [torch.empty(0, dtype=t, device="xpu") for t in (dtype, torch.float32, torch.float32, torch.uint8)]
    here = [t.to("xpu") for t in (x, weight, bias, mean, var)]
    aten._batch_norm_with_update.out(*here, 0.2, EPS, out=out[0], save_mean=out[1], save_invstd=out[2], reserve=out[3])
    near(
        out[0],
        torch.nn.functional.batch_norm(x.double(), None, None, weight.double(), bias.double(), True, 0, EPS),
        dtype,
    )
