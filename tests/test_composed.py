"""Operators that are few others in a row: drawn numbers, fake quantization, bags, weight norms, against the CPU."""

from __future__ import annotations

import math
import random

import numpy
import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.errors import ArgumentError
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def nothing_on_the_host():
    before = lib().eager()
    lib().set_eager("compile")
    anyxpu.ops.reset_counters()
    yield
    lib().set_eager(before)
    hosts = {name for name, ways in anyxpu.ops.counters().items() if ways.get("host")}
    assert not hosts or simulate.active(), hosts  # there what a range check reads is nothing


def near(got, want, bound=0.0):
    assert (got.device.type, got.dtype, got.shape) == ("xpu", want.dtype, want.shape)
    if not simulate.active():
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize(
    ("draw", "below"),
    [
        (lambda t: t.cauchy_(1.5, 0.5), lambda v: 0.5 + math.atan((v - 1.5) / 0.5) / math.pi),
        (lambda t: t.log_normal_(0.5, 0.8), lambda v: 0.5 * math.erfc(-(math.log(max(v, 1e-30)) - 0.5) / 0.8 / 2**0.5)),
        (lambda t: t.geometric_(0.3), lambda v: 1 - 0.7 ** math.floor(v)),
        (lambda t: t.exponential_(2.0), lambda v: 1 - math.exp(-2 * max(v, 0))),
    ],
    ids=["cauchy", "log_normal", "geometric", "exponential"],
)
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_drawn_numbers_are_of_their_distribution(draw, below, dtype):
    drawn = draw(torch.empty(40_000, dtype=dtype, device="xpu")).float().cpu()
    if simulate.active():
        return
    assert bool(torch.isfinite(drawn).all())
    for quantile in (0.1, 0.35, 0.6, 0.9):
        at = drawn.quantile(quantile).item()
        share = (drawn <= at).float().mean().item()
        assert abs(share - below(at)) < (0.02 if dtype is torch.float32 else 0.05)


def test_drawn_numbers_come_again_with_the_seed():
    for call in (
        lambda: torch.randperm(1000, device="xpu"),
        lambda: torch.empty(50, device="xpu").cauchy_(),
        lambda: torch.normal(torch.zeros(50, device="xpu"), torch.ones(50, device="xpu")),
        lambda: torch.nn.functional.rrelu(-torch.ones(50, device="xpu"), training=True),
    ):
        torch.manual_seed(5)
        first, second = call(), call()
        torch.manual_seed(5)
        assert torch.equal(call(), first) or simulate.active()
        assert not torch.equal(first, second) or simulate.active()


def test_a_permutation_has_every_number_once():
    for n in (1, 2, 1000):
        made = torch.randperm(n, device="xpu")
        near(made.sort()[0], torch.arange(n))


def test_nansum_adds_integers_where_its_dtype_says_so():
    x = torch.tensor([[1.7, 2.7, -1.2], [3.0, math.nan, 4.0]], device="xpu")
    expected = torch.tensor([2, 7])
    near(torch.nansum(x, 1, dtype=torch.int64), expected)
    out = torch.empty(2, dtype=torch.int64, device="xpu")
    near(torch.nansum(x, 1, dtype=torch.int64, out=out), expected)


def test_nansum_is_not_rounded_into_integers():
    x = torch.randn(2, 3)
    for device in ("cpu", "xpu"):
        for call in (torch.nansum, torch.nanmean):
            with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
                call(x.to(device), 1, out=torch.empty(2, dtype=torch.int64, device=device))
    anyxpu.ops.reset_counters()  # the host's words


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("periodic", [True, False])
def test_kaisers_window(dtype, periodic):
    for n in (2, 3, 9, 400, 4001):
        for beta in (0.0, 5.0, 12.0, -3.0):
            expected = torch.from_numpy(numpy.kaiser(n + periodic, beta)[:n]).to(dtype)
            bound = {torch.float64: 1e-13, torch.float32: 2e-6}.get(dtype, torch.finfo(dtype).eps)
            near(torch.kaiser_window(n, periodic, beta, dtype=dtype, device="xpu"), expected, bound)
            out = torch.empty(0, dtype=dtype, device="xpu")
            near(torch.ops.aten.kaiser_window.beta_out(n, periodic, beta, out=out), expected, bound)
    near(torch.kaiser_window(8, device="xpu"), torch.kaiser_window(8), 2e-6)
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.kaiser_window(8, device="xpu", pin_memory=True)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_a_hash_is_the_exclusive_or_of_wide_bits(dtype):
    x = (torch.randn(5, 7, 9) * 50).to(dtype)
    bits = x.to(torch.float64 if dtype.is_floating_point else torch.int64).numpy().view(numpy.uint64)
    for dim, keepdim in (([], False), ([1], True), ([0, -1], False), ([2, 0, 1], True)):
        axes = tuple(dim) or None
        expected = numpy.asarray(numpy.bitwise_xor.reduce(bits, axis=axes, keepdims=keepdim))
        near(torch.hash_tensor(x.to("xpu"), dim, keepdim=keepdim), torch.from_numpy(expected))
    across = torch.empty(0, dtype=torch.uint64, device="xpu")
    torch.hash_tensor(x.to("xpu").transpose(0, 2), 1, out=across)
    near(across, torch.from_numpy(numpy.bitwise_xor.reduce(bits, axis=1).T.copy()))
    there = x.to("xpu")
    assert torch.hash_tensor(there[:, :1], 1).data_ptr() != there.data_ptr()  # of one element too it is not that one
    near(torch.hash_tensor(x[0, 0, 0].to("xpu")), torch.from_numpy(bits[:1, 0, 0].copy())[0])


def test_normal_numbers_of_many_means():
    mean, std = torch.linspace(-50, 50, 4000).view(4000, 1), torch.tensor([0.5, 2.0, 9.0])
    made = torch.normal(mean.to("xpu"), std.to("xpu"))
    assert made.shape == (4000, 3)
    if not simulate.active():
        residue = (made.cpu() - mean) / std
        assert residue.mean().abs() < 0.05 and (residue.std(0) - 1).abs().max() < 0.05


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fake_quantization_and_its_gradient(dtype):
    x = (torch.randn(6, 5, 3) * 3).to(dtype)
    scales, zeros = torch.rand(5) * 0.1 + 0.02, torch.randint(0, 20, (5,), dtype=torch.int32)
    on = torch.tensor([1], dtype=torch.uint8)
    one, zero = torch.tensor([0.05]), torch.tensor([7], dtype=torch.int32)
    for call in (
        lambda t, to: torch.fake_quantize_per_tensor_affine(t, 0.05, 7, 0, 255),
        lambda t, to: torch.fake_quantize_per_channel_affine(t, to(scales), to(zeros), 1, 0, 255),
        lambda t, to: torch.fake_quantize_per_tensor_affine(t, to(one), to(zero), 0, 255),
        lambda t, to: torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            t, to(one), to(zero), to(on * 0), 0, 255
        )[0],
    ):
        here, there = x.to("xpu").requires_grad_(), x.clone().requires_grad_()
        got, want = call(here, lambda t: t.to("xpu")), call(there, lambda t: t)
        near(got, want, 1e-6 if dtype is torch.float32 else 1e-2)
        if want.requires_grad and want.grad_fn is not None:
            got.sum().backward()
            want.sum().backward()
            near(here.grad, there.grad)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_fake_quantization_whose_scale_is_learnt(axis):
    x, grad = torch.randn(5, 6, 3) * 4, torch.randn(5, 6, 3)
    count = 1 if axis is None else x.shape[axis]
    scale, zero = torch.rand(count) * 0.1 + 0.02, torch.rand(count) * 20 - 3
    forward = torch._fake_quantize_learnable_per_tensor_affine
    if axis is not None:
        forward = torch._fake_quantize_learnable_per_channel_affine
    results = []
    for device in ("cpu", "xpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, scale, zero)]
        made = forward(*leaves, *(() if axis is None else (axis,)), 0, 63, 0.7)
        made.backward(grad.to(device))
        results.append([made, *(leaf.grad for leaf in leaves)])
    for want, got in zip(*results, strict=True):
        near(got, want, 1e-3)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("shift", [0.0, 30.0, -30.0])
def test_fake_quantization_of_a_moving_average(symmetric, per_row, shift):
    ends = [torch.empty(0), torch.empty(0)] if per_row else [torch.tensor([math.inf]), torch.tensor([-math.inf])]
    begin = [*ends, torch.empty(0) if per_row else torch.ones(1), torch.zeros(0 if per_row else 1, dtype=torch.int32)]
    kept = {device: [t.clone().to(device) for t in begin] for device in ("cpu", "xpu")}
    for observing, rounding, scale in ((1, 0, 1.0), (1, 1, 2.0), (0, 1, 5.0), (1, 1, 1e-7)):
        x = (torch.randn(4, 3, 5) * scale + shift) * (1e-5 if scale < 1e-3 else 1)
        made = {}
        for device in ("cpu", "xpu"):
            switches = [torch.tensor([value]).to(device) for value in (observing, rounding)]
            made[device] = torch.fused_moving_avg_obs_fake_quant(
                x.to(device), *switches, *kept[device], 0.1, 0, 127, 0, per_row, symmetric
            )
        near(made["xpu"], made["cpu"], 1e-4)
        known = 4 if rounding else 2  # a scale that was never chosen is anything
        for want, got in zip(kept["cpu"][:known], kept["xpu"][:known], strict=True):
            near(got, want, 1e-5)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_segments_and_their_gradients(reduce, dtype):
    data = torch.randn(2, 9, 3).round(decimals=1).to(dtype)
    lengths = torch.tensor([[3, 0, 4, 2], [9, 0, 0, 0]])
    for initial in (None, 0.5):
        for options in ({"lengths": lengths, "axis": 1}, {"offsets": torch.tensor([0, 2, 2]), "axis": 0}):
            leaves, results = [], []
            for device in ("cpu", "xpu"):
                leaf = (data.float() if device == "cpu" else data.to(device)).detach().clone().requires_grad_()
                there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
                made = torch.segment_reduce(leaf, reduce, initial=initial, **there)
                results.append(made)
                leaves.append(leaf)
            bound = 1e-5 if dtype is torch.float32 else 2e-2
            near(results[1], results[0].to(dtype), bound)
            if reduce != "prod":
                for made in results:
                    made.backward(torch.linspace(0.5, 2, made.numel()).view(made.shape).to(made))
                near(leaves[1].grad, leaves[0].grad.to(dtype), bound)


def test_dropped_by_a_mask_of_bytes():
    x = torch.randn(3000).to("xpu")
    made, mask = torch._fused_dropout(x, 0.75)
    near(torch._masked_scale(x, mask, 1 / 0.75), made.cpu(), 0.0)
    if not simulate.active():
        assert mask.dtype is torch.uint8 and abs(mask.float().mean() - 0.75) < 0.05
        near(made, (x * mask / 0.75).cpu(), 1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bags_and_their_gradients(mode, dtype):
    table = torch.randn(30, 8).to(dtype)
    indices, offsets = torch.randint(0, 30, (40,)), torch.tensor([0, 3, 3, 10, 25])
    weights = torch.rand(40).to(dtype) if mode == "sum" else None
    for options in ({}, {"padding_idx": 4}):
        results = []
        for device in ("cpu", "xpu"):
            t = table.float() if device == "cpu" else table.to(device)
            w = None if weights is None else (weights.float() if device == "cpu" else weights.to(device))
            leaves = [leaf.detach().requires_grad_() for leaf in (t, w) if leaf is not None]
            out = torch.nn.functional.embedding_bag(
                indices.to(device), leaves[0], offsets.to(device), mode=mode,
                per_sample_weights=leaves[1] if w is not None else None, **options,
            )  # fmt: skip
            grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
            results.append((out, *grads))
        for got, want in zip(results[1], results[0], strict=True):
            near(got, want.to(dtype), 1e-5 if dtype is torch.float32 else 3e-2)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["sum", "mean", "max"])
def test_what_bags_keep_for_their_gradients(mode):
    table, padding = torch.randn(6, 4), 2
    indices, offsets = (
        torch.tensor([1, 2, 5, 0, 2, 3, 2, 2, 2]),
        torch.tensor([0, 3, 3, 6]),
    )  # one empty, one of padding
    bags = [part[part != padding] for part in indices.tensor_split(offsets[1:])]
    kept = torch.ops.aten._embedding_bag(
        table.to("xpu"), indices.to("xpu"), offsets.to("xpu"), False, mode, False, None, False, padding
    )
    near(kept[1], torch.tensor([0, 0, 0, 2, 2, 2, 3, 3, 3]))
    near(kept[2], torch.tensor([len(bag) for bag in bags]))
    none = torch.full((4,), -1)
    largest = torch.stack([bag[table[bag].argmax(0)] if len(bag) else none for bag in bags])
    near(kept[3], largest if mode == 2 else torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True], ids=["ends with the indices", "ends are said"])
def test_bags_of_many_widths(mode, dtype, last):
    for width, bags, of in ((1, 1, torch.int64), (7, 3, torch.int32), (65, 50, torch.int64), (130, 2, torch.int64)):
        table = torch.randn(20, width).to(dtype)
        table[3] = float("nan") if mode == "max" else 1e4
        n = 4 * bags
        offsets = torch.cat([torch.zeros(1), torch.randint(0, n + 1, (bags - 1,)).sort()[0], torch.tensor([n])])
        offsets = (offsets if last else offsets[:-1]).to(of)
        indices = torch.randint(0, 20, (n,)).to(of)

        def of_device(device):
            return F.embedding_bag(
                indices.to(device), table.to(device) if device == "xpu" else table.double(), offsets.to(device),  # noqa: B023
                mode=mode, include_last_offset=last, padding_idx=3 if mode != "max" else None,
            )  # fmt: skip

        want = of_device("cpu").to(dtype)
        if mode == "max":  # ATen's CPU takes NaN for smaller than what it meets first: that it is the largest is CUDA's
            members = indices.long().tensor_split(offsets[1 : bags if last else None].long())
            want = torch.stack([table[m].amax(0) if len(m) else torch.zeros(width, dtype=dtype) for m in members])
        near(of_device("xpu"), want, {torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 1e-12))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_indices_behind_the_last_bags_end_are_in_none(mode):
    """Of ATen's CPU they leave gradients that were never written."""
    table, indices, ends = torch.randn(6, 3), torch.randint(0, 6, (50,)), torch.tensor([0, 7, 7, 20])
    weights = torch.rand(50) if mode == "sum" else None
    results = []
    for device, count in (("cpu", 20), ("xpu", 50)):  # the CPU gets none of them
        leaves = [t.to(device).detach().requires_grad_() for t in (table, weights) if t is not None]
        out = F.embedding_bag(
            indices[:count].to(device), leaves[0], ends.to(device), mode=mode, include_last_offset=True,
            per_sample_weights=leaves[1][:count] if mode == "sum" else None,
        )  # fmt: skip
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for got, want in zip(results[1], results[0], strict=True):
        near(got, want, 1e-5)
    if mode != "max":  # of which torch has no sparse gradient
        leaf = table.to("xpu").requires_grad_()
        out = F.embedding_bag(
            indices.to("xpu"), leaf, ends.to("xpu"), mode=mode, include_last_offset=True, sparse=True,
            per_sample_weights=None if weights is None else weights.to("xpu"),
        )  # fmt: skip
        near(torch.autograd.grad(out.square().sum(), leaf)[0].to_dense(), results[0][1], 1e-5)


@pytest.mark.parametrize(
    ("offsets", "index", "words"),
    [
        ([0, 4, 2], 0, "offsets begin with 0"),
        ([1, 2, 3], 0, "offsets begin with 0"),
        ([0, 2, 7], 0, "offsets begin with 0"),
        ([0, 1, 2], 5, "embedding_bag: an index is out of range"),
        ([0, 1, 2], -1, "embedding_bag: an index is out of range"),
    ],
)
def test_bags_that_do_not_fit_are_said_at_the_next_wait_and_the_device_goes_on(offsets, index, words):
    if simulate.active():
        pytest.skip("no kernel looks at an index on a simulated GPU")
    table, indices = torch.randn(5, 6, device="xpu"), torch.tensor([0, 1, 2, index, 4, 1], device="xpu")
    with pytest.raises(torch.AcceleratorError, match=words):
        F.embedding_bag(indices, table, torch.tensor(offsets, device="xpu"), mode="sum")
        torch.xpu.synchronize()
    near(F.embedding_bag(indices[:2].view(1, 2), table, mode="sum"), table.cpu()[:2].sum(0, keepdim=True), 1e-6)


@pytest.mark.parametrize("name", ["embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"])
def test_bags_of_a_matrix_of_indices_are_refused(name):
    """ATen's kernels read and write beyond the ends of such."""
    indices, offsets = torch.randint(0, 6, (3, 4), device="xpu"), torch.tensor([0, 1], device="xpu")
    with pytest.raises(ArgumentError, match=r"indices of one dimension, not of shape \(3, 4\): flatten them"):
        getattr(torch.ops.aten, name)(torch.randn(6, 4, device="xpu"), indices, offsets)
    rows = torch.nn.functional.embedding_bag(indices, torch.ones(6, 4, device="xpu"), mode="sum")
    near(rows, torch.full((3, 4), 4.0))


def test_a_table_is_cut_to_a_norm():
    table, indices = torch.randn(10, 6) * 3, torch.tensor([[1, 7], [1, 3]])
    here, there = table.to("xpu"), table.clone()
    near(
        torch.nn.functional.embedding(indices.to("xpu"), here, max_norm=1.5),
        torch.nn.functional.embedding(indices, there, max_norm=1.5),
        1e-6,
    )
    near(here, there, 1e-6)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_and_its_gradients(dim):
    v, g = torch.randn(4, 5, 3), torch.rand([4 if dim == 0 else 1, 1, 3 if dim == 2 else 1]) + 0.5
    results = []
    for device in ("cpu", "xpu"):
        leaves = [t.to(device).detach().requires_grad_() for t in (v, g)]
        out = torch._weight_norm(*leaves, dim)
        results.append((out, *torch.autograd.grad((out * out).sum() + out.sum(), leaves)))
    for got, want in zip(results[1], results[0], strict=True):
        near(got, want, 1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_classes_of_pixels(dtype):
    x, target = torch.randn(2, 5, 4, 3), torch.randint(0, 5, (2, 4, 3))
    weight = torch.rand(5)
    for reduction in ("mean", "sum", "none"):
        results = []
        for device, kind in (("cpu", torch.float32), ("xpu", dtype)):
            leaf = x.to(dtype).to(kind).to(device).requires_grad_()
            out = torch.nn.functional.cross_entropy(
                leaf, target.to(device), weight.to(dtype).to(kind).to(device), ignore_index=2, reduction=reduction
            )
            results.append((out, *torch.autograd.grad(out.sum(), leaf)))
        for got, want in zip(results[1], results[0], strict=True):
            near(got, want.to(dtype), 1e-5 if dtype is torch.float32 else 3e-2)


@pytest.mark.not_simulated("nothing runs there that could find it")
def test_probabilities_outside_are_refused():
    with pytest.raises(torch.AcceleratorError, match="between 0 and 1"):
        F.binary_cross_entropy(torch.tensor([0.5, 1.5], device="xpu"), torch.ones(2, device="xpu")).item()
    anyxpu.ops.reset_counters()


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_a_reduction(reduce):
    x, index = torch.randn(4, 5), torch.randint(0, 4, (3, 5))
    source = torch.rand(3, 5)
    near(
        x.to("xpu").scatter_(0, index.to("xpu"), source.to("xpu"), reduce=reduce),
        x.clone().scatter_(0, index, source, reduce=reduce),
        1e-6,
    )
    near(
        x.to("xpu").scatter_(0, index.to("xpu"), 1.5, reduce=reduce),
        x.clone().scatter_(0, index, 1.5, reduce=reduce),
        1e-6,
    )


def test_many_elements_among_many():
    elements, test = torch.randint(0, 10**6, (6000,)), torch.randint(0, 10**6, (5000,))
    for invert in (False, True):
        near(torch.isin(elements.to("xpu"), test.to("xpu"), invert=invert), torch.isin(elements, test, invert=invert))


OVERLAPPING = {
    "gather": lambda x, i, out: torch.gather(x, 0, i[:4], out=out),
    "index_select": lambda x, i, out: torch.index_select(x, 0, i[:4], out=out),
    "take": lambda x, i, out: torch.take(x, i[:4], out=out),
    "masked_select": lambda x, i, out: torch.masked_select(x, x == x, out=out),
    "cumsum": lambda x, i, out: torch.cumsum(x, 0, out=out),
    "sort": lambda x, i, out: torch.sort(x, out=(out, torch.empty_like(i[: len(out)]))),
    "topk": lambda x, i, out: torch.topk(x, 4, out=(out, torch.empty_like(i[:4]))),
    "scatter_add": lambda x, i, out: torch.scatter_add(x, 0, i[: len(x)] % 4, x, out=out),
    "cat": lambda x, i, out: torch.cat([x, x], out=out),
    "mode": lambda x, i, out: torch.mode(x.view(2, -1), 0, out=(out[:2], torch.empty_like(i[:2]))),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_an_out_that_is_shifted_against_an_argument_is_refused(name):
    """As the CPU does, and with its words; nothing has been written then."""
    for device in ("cpu", "xpu"):
        memory, index = torch.arange(20.0, device=device), torch.arange(8, device=device) % 4
        length = {"gather": 4, "index_select": 4, "take": 4, "topk": 4, "cat": 12}.get(name, 6)
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            OVERLAPPING[name](memory[:6], index, memory[1 : 1 + length])
        assert torch.equal(memory.cpu(), torch.arange(20.0)) or simulate.active()
    anyxpu.ops.reset_counters()


def test_a_fraction_among_integers():
    """Its place is not that of its whole part."""
    boundaries = torch.tensor([0, 1, 2, 4])
    for number in (0.5, 1, 3.5, -0.5):
        near(torch.bucketize(number, boundaries.to("xpu")), torch.bucketize(number, boundaries))
        near(torch.searchsorted(boundaries.to("xpu"), number), torch.searchsorted(boundaries, number))


def test_arguments_that_torch_refuses():
    x = torch.randn(4, device="xpu")
    for call, words in (
        (lambda: torch.nn.functional.softshrink(x, -0.5), "lambda must be"),
        (lambda: torch.nn.functional.gelu(x, approximate="asdf"), "approximate argument must be"),
        (lambda: torch.roll(x, ()), "`shifts` required"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    anyxpu.ops.reset_counters()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bfloat16], ids=str)
def test_cross_products(dtype):
    a, b = (torch.randn(4, 3, 5) * 5).to(dtype), (torch.randn(1, 3, 5) * 5).to(dtype)
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2}.get(dtype, 0)
    near(torch.linalg.cross(a.to("xpu"), b.to("xpu"), dim=1), torch.linalg.cross(a, b, dim=1), bound * 5)
    near(torch.cross(a.to("xpu"), a.flip(0).to("xpu"), dim=-2), torch.cross(a, a.flip(0), dim=-2), bound * 5)
    out = torch.empty(5, 3, 4, dtype=dtype, device="xpu").transpose(0, 2)
    near(torch.linalg.cross(a.to("xpu"), b.to("xpu"), dim=1, out=out), torch.linalg.cross(a, b, dim=1), bound * 5)
    a, b = (torch.randn(333, 3) * 5).to(dtype), (torch.randn(333, 3) * 5).to(dtype)
    near(torch.linalg.cross(a.to("xpu"), b.to("xpu")), torch.linalg.cross(a, b), bound * 5)
    near(
        torch.linalg.cross(a.t().to("xpu"), b.t().to("xpu"), dim=0), torch.linalg.cross(a.t(), b.t(), dim=0), bound * 5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.complex128], ids=str)
def test_what_is_rolled(dtype):
    for shape in ((1,), (300,), (3, 70), (2, 3, 9), (2, 5, 1, 130), (2, 3, 4, 5)):
        x = (torch.randn(shape) * 3).to(dtype)
        for _ in range(4):
            dims = [random.randrange(-len(shape), len(shape)) for _ in range(random.randint(0, 4))]
            shifts = [random.randint(-400, 400) for _ in dims or (0,)]
            lying = x.transpose(0, -1)
            near(x.to("xpu").roll(shifts, dims), x.roll(shifts, dims))
            near(lying.to("xpu").roll(shifts, dims), lying.roll(shifts, dims))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_elements_put_where_a_mask_is_true(dtype):
    for shape, of_mask in (
        ((1,), (1,)),
        ((70,), (70,)),
        ((4, 300), (300,)),
        ((4, 300), (4, 1)),
        ((200, 190), (200, 190)),
    ):
        x, source = ((torch.randn(n) * 3).to(dtype) for n in (shape, 40_000))
        mask = torch.rand(of_mask) < 0.4
        want = x.masked_scatter(mask, source)
        near(x.to("xpu").masked_scatter(mask.to("xpu"), source.to("xpu")), want)
        turned = torch.empty_strided(shape, tuple(reversed(x.T.contiguous().stride())), dtype=dtype, device="xpu")
        near(turned.copy_(x).masked_scatter_(mask.to("xpu"), source.to("xpu")), want)


@pytest.mark.not_simulated("a count is nothing there")
def test_a_source_too_short_for_its_mask_is_refused():
    few = torch.ones(3, device="xpu")
    with pytest.raises(RuntimeError, match="umber of elements of source < number of ones in mask"):
        torch.zeros(4, device="xpu").masked_scatter_(torch.ones(4, dtype=torch.bool, device="xpu"), few)
    anyxpu.ops.reset_counters()


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str
)
def test_largest_and_smallest_so_far(name, dtype):
    for shape in ((1,), (5,), (70, 3), (3, 64), (2, 3, 300), (9, 1000)):
        x = (torch.randn(shape) * 5).to(dtype)  # integers come several times
        if dtype.is_floating_point and x.numel() > 8:
            x.view(-1)[x.numel() // 2] = float("nan")
        for dim in range(x.dim()):
            got, want = getattr(x.to("xpu"), name)(dim), getattr(x, name)(dim)
            near(got[0], want[0])
            near(got[1], want[1])


def test_the_inverse_of_erf_at_every_size():
    x = torch.cat(
        [
            torch.rand(20_000) * 2 - 1,
            1 - 2.0 ** -torch.arange(1, 25),
            torch.randn(2000) * 1e-3,
            torch.tensor([1e-30, 0.0]),
        ]
    )
    want = torch.erfinv(x.double())
    got = torch.erfinv(x.to("xpu"))
    near(
        torch.erfinv(torch.tensor([1.0, -1, 1.5, torch.nan], device="xpu")),
        torch.tensor([torch.inf, -torch.inf, torch.nan, torch.nan]),
    )
    if not simulate.active():
        assert float(((got.cpu().double() - want).abs() / want.abs().clamp_min(1e-38)).max()) < 4 * 2.0**-24


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int32, torch.uint8], ids=str)
def test_products_of_vectors(dtype):
    for n in (1, 7, 1000, 100_003):
        x, y = (torch.randn(2 * n) * 3).to(dtype)[::2], (torch.randn(n) * 3).to(dtype)
        got, want = torch.dot(x.to("xpu"), y.to("xpu")), torch.dot(x.double(), y.double())
        near(torch.vdot(x.to("xpu"), y.to("xpu")), got.cpu())
        if not dtype.is_floating_point:
            near(got, torch.dot(x, y))
        elif not simulate.active():
            scale = float((x.double() * y.double()).abs().sum())
            assert abs(float(got) - float(want)) <= max(4 * torch.finfo(dtype).eps, 1e-15) * scale


def test_vectors_of_two_types_have_no_product():
    with pytest.raises(RuntimeError, match=r"same dtype|expected both vectors"):
        torch.dot(torch.ones(3, device="xpu"), torch.ones(3, device="xpu", dtype=torch.int64))
    anyxpu.ops.reset_counters()


def test_the_logarithm_of_gamma_at_every_size():
    x = torch.cat([torch.rand(20_000) * 12, 10 ** (torch.rand(2000) * 70 - 35)])
    for zero in (1, 2):  # where its relative error counts
        x = torch.cat([x, zero + (torch.rand(2000) - 0.5) * 1e-3, zero + (torch.rand(2000) - 0.5) * 1e-6])
    ends = torch.tensor([0.0, -0.0, -1, -7, 1, 2, torch.inf, -torch.inf, torch.nan, 3e38])
    near(torch.lgamma(ends.to("xpu")), torch.lgamma(ends))
    below = -torch.rand(20_000) * 30
    got, got_below = torch.lgamma(x.to("xpu")), torch.lgamma(below.to("xpu"))
    if not simulate.active():
        want, want_below = torch.lgamma(x.double()), torch.lgamma(below.double())
        assert float(((got.cpu().double() - want).abs() / want.abs().clamp_min(1e-30)).max()) < 8 * 2.0**-24
        # Towards an integer it grows without end, and the number says no better where it is than its last digit.
        assert float(((got_below.cpu().double() - want_below).abs() / want_below.abs().clamp_min(1)).max()) < 2e-6


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_of_two_do_not_leave_the_range_on_the_way(dtype):
    x = torch.tensor([1e-40, 1.5, 3e4, -3, 0, torch.inf]).to(dtype)
    for n in (-300, -149, -130, -10, 0, 7, 100, 127, 200, 260, 276, 2000, 100_000):
        by = torch.tensor([n])
        near(torch.ldexp(x.to("xpu"), by.to("xpu")), torch.ldexp(x, by))
        near(x.to("xpu").ldexp_(by.to("xpu")), torch.ldexp(x, by))
    for a, b in (
        (x, torch.tensor([2.0])),
        (torch.tensor([3]), torch.tensor([2])),
        (x, torch.tensor([2], dtype=torch.int8)),
    ):
        want = torch.ldexp(a, b) if b.dtype is not torch.int8 else torch.ldexp(a, b.int())
        near(torch.ldexp(a.to("xpu"), b.to("xpu")), want)


def test_complex_numbers_of_their_parts():
    a, b = torch.randn(4, 3), torch.randn(3)
    z = torch.complex(a, b)
    x, y = a.to("xpu"), b.to("xpu")
    near(torch.complex(x, y), z)
    near(torch.polar(x, y), torch.polar(a, b), 1e-6)
    near(torch.complex(x, y, out=torch.empty(3, 4, dtype=z.dtype, device="xpu").t()), z)
    near(torch.complex(x.half(), y.half()), torch.complex(a.half(), b.half()))
    for view in (lambda t: t, lambda t: t.t(), lambda t: t[1:].conj()):
        near(torch.conj_physical(view(z.to("xpu"))).resolve_conj(), torch.conj_physical(view(z)).resolve_conj())
        made, want = z.to("xpu"), z.clone()
        torch.conj_physical_(view(made))
        torch.conj_physical_(view(want))
        near(made, want)


@pytest.mark.parametrize(("dim", "size", "step"), [(0, 3, 2), (1, 3, 1), (2, 2, 3), (-1, 5, 1)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_gradient_of_windows(dim, size, step, dtype):
    x = torch.randn(7, 9, 5)
    grad = torch.randint(-4, 5, x.unfold(dim, size, step).shape).to(dtype)
    here, there = x.to("xpu", dtype).requires_grad_(), x.to(dtype).requires_grad_()
    here.unfold(dim, size, step).backward(grad.to("xpu"))
    there.unfold(dim, size, step).backward(grad)
    near(here.grad, there.grad)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_jagged_sequences_and_padded_ones(dtype):
    aten = torch.ops.aten
    values, offsets = torch.randn(10, 4).to(dtype), torch.tensor([0, 2, 2, 7, 10])
    for length in (3, 5, 8):
        near(
            aten._jagged_to_padded_dense_forward(values.to("xpu"), [offsets.to("xpu")], [length], 3.0),
            aten._jagged_to_padded_dense_forward(values, [offsets], [length], 3.0),
        )
    padded = torch.randn(4, 6, 4).to(dtype)
    for total in (None, 10):
        near(
            aten._padded_dense_to_jagged_forward(padded.to("xpu"), [offsets.to("xpu")], total),
            aten._padded_dense_to_jagged_forward(padded, [offsets], total),
        )
    parts = [torch.randn(n, 4) for n in (2, 5)]
    here = torch.nested.nested_tensor(parts, layout=torch.jagged, device="xpu", requires_grad=True)
    made = torch.nested.to_padded_tensor(here, -1.0)
    made.square().sum().backward()
    near(here.grad.values(), 2 * torch.cat(parts), 1e-6)


@pytest.mark.parametrize("function", (torch.unique, torch.unique_consecutive))
def test_different_slices(function):
    for dtype in (torch.int64, torch.float32, torch.bool, torch.bfloat16):
        for shape in ((7,), (6, 2), (3, 5, 2), (1, 4)):
            x = torch.randint(0, 2, shape).to(dtype)
            for dim in range(len(shape)):
                got = function(x.xpu(), dim=dim, return_inverse=True, return_counts=True)
                if not simulate.active():
                    for a, e in zip(got, function(x, dim=dim, return_inverse=True, return_counts=True), strict=True):
                        near(a, e)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.float64), ids=str)
def test_mantissas_and_exponents(dtype):
    ends = torch.finfo(dtype)
    odd = [
        0.0,
        -0.0,
        1.0,
        -3.5,
        ends.max,
        ends.tiny,
        -ends.smallest_normal / 2,
        float("inf"),
        -float("inf"),
        float("nan"),
    ]
    x = torch.cat([torch.tensor(odd, dtype=torch.float64), torch.randn(99, dtype=torch.float64) * 2.0**-20]).to(dtype)
    for a, e in zip(torch.frexp(x.xpu()), torch.frexp(x), strict=True):
        near(a, e)
    out = torch.empty(0, dtype=dtype, device="xpu"), torch.empty(0, dtype=torch.int32, device="xpu")
    torch.frexp(x.xpu(), out=out)
    near(out[1], torch.frexp(x)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tangents_of_gates_and_of_their_gradients(dtype):
    if dtype is torch.float64 and not torch.xpu.get_device_properties().has_fp64:
        pytest.skip("a device without float64")
    x, dx, grad, dgrad = (torch.randn(s, dtype=dtype) for s in ((3, 8, 5), (3, 8, 5), (3, 4, 5), (3, 4, 5)))

    def gate(x):
        return torch.nn.functional.glu(x, 1)

    def gradient(x, grad):
        return torch.func.vjp(gate, x)[1](grad)[0]

    for function, at, along in ((gate, (x,), (dx,)), (gradient, (x, grad), (dx, dgrad))):
        want = torch.func.jvp(function, at, along)
        got = torch.func.jvp(function, tuple(t.to("xpu") for t in at), tuple(t.to("xpu") for t in along))
        for one, other in zip(got, want, strict=True):
            near(one, other, 1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
def test_sums_without_what_is_negative(dtype):
    a, b = (torch.randint(-9, 9, s).to(dtype) for s in ((5, 7), (7,)))
    there, other = a.to("xpu"), b.to("xpu")
    near(torch.ops.aten._add_relu.Tensor(there, other, alpha=2), torch.relu(a + 2 * b))
    near(torch.ops.aten._add_relu.Scalar(there, 3), torch.relu(a + 3))
    out = torch.empty(0, dtype=dtype, device="xpu")
    near(torch.ops.aten._add_relu.out(there, other, out=out), torch.relu(a + b))
    near(torch.ops.aten._add_relu_.Tensor(there, other), torch.relu(a + b))
    near(there, torch.relu(a + b))
    near(torch.ops.aten._add_relu_.Scalar(there, -3), torch.relu(torch.relu(a + b) - 3))
