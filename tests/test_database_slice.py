"""Operators of torch's database that kernels of ours or a few of them in a row serve: its samples, against the CPU."""

from __future__ import annotations

import math
import random
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import anyxpu.ops
from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

NAMES = (
    *(
        "__getitem__",
        "index_put",
        "scatter",
        "cumsum",
        "cumprod",
        "argmax",
        "argmin",
        "max",
        "min",
        "aminmax",
        "arange",
    ),
    *("tril", "triu", "nn.functional.mse_loss", "nn.functional.smooth_l1_loss", "nn.functional.huber_loss"),
    *("nn.functional.logsigmoid", "nn.functional.glu", "nn.functional.prelu", "nan_to_num", "var", "std", "var_mean"),
    *("searchsorted", "bucketize", "bincount", "histogram", "kthvalue", "median", "nanmedian", "mode", "unique"),
    *("index_add", "index_copy", "index_fill", "index_reduce", "take", "put", "trace", "addbmm", "renorm", "norm"),
    *("linspace", "logspace", "eye", "tril_indices", "triu_indices", "narrow_copy", "nonzero_static"),
    *("nn.functional.binary_cross_entropy", "nn.functional.nll_loss", "nn.functional.embedding_bag", "_unsafe_masked"),
    *("nn.functional.cross_entropy", "scatter_add", "scatter_reduce", "linalg.vector_norm"),
    *("unique_consecutive", "repeat_interleave", "cummax", "cummin", "logcumsumexp"),
    *("std_mean", "nonzero", "masked_select", "isin", "flip", "roll", "equal", "count_nonzero", "rsub"),
    *("frexp", "nansum", "nanmean"),
)
OPS = [op for op in op_db if op.name in NAMES]
BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-9}
OTHERS = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
MADE = ("arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices")
TIES = ("kthvalue", "mode", "median", "nanmedian")  # of equal numbers any place may be named: another test
# Sums of singular values, maxima of bags, products and spaces of integers.
HOSTED = {
    "aten::rsub.Tensor",
    "aten::_linalg_svd.U",
    "aten::addbmm",
    "aten::linspace.out",
    "aten::logspace.out",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::_embedding_bag_backward",
}


# In 16 bits the CPU rounds the sum after each of the products.
ROUNDED = ("addbmm",)
# Products of these types are the host's, or a library's on a GPU.
HOST_PRODUCTS = {torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8}


def moved(value):
    if isinstance(value, torch.Tensor):
        return value.to("xpu")
    return torch.device("xpu") if value == "cpu" or value == torch.device("cpu") else value


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for each in value for t in tensors(each)] if isinstance(value, (list, tuple)) else []


def near(got, want, what):
    for one, other in zip(tensors(got), tensors(want), strict=True):
        assert (one.device.type, one.dtype, one.shape) == ("xpu", other.dtype, other.shape), what
        bound = BOUNDS.get(other.dtype, 0)
        if not simulate.active():
            torch.testing.assert_close(
                one.detach().cpu(), other.detach(), rtol=bound, atol=bound, equal_nan=True, msg=lambda m: f"{what}: {m}"
            )


def exact(op, sample):
    """The sample's result, computed in float64 where that of its type is rounded on the way."""
    if sample.input.dtype not in (torch.float16, torch.bfloat16):
        return op(sample.input, *sample.args, **sample.kwargs)
    wide = sample.transform(lambda v: v.double() if isinstance(v, torch.Tensor) else v)
    return op(wide.input, *wide.args, **wide.kwargs).to(sample.input.dtype)


def types(op, full):
    there = [d for d in OTHERS if d in op.supported_dtypes("cpu")]
    if not torch.xpu.get_device_properties().has_fp64:
        there = [d for d in there if d is not torch.float64]
    first = [torch.float32] if torch.float32 in op.supported_dtypes("cpu") else []
    return first + (there if full else random.sample(there, min(1, len(there))))


def op_id(op):
    return f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}"


@pytest.mark.rotates(18)
@pytest.mark.parametrize("op", OPS, ids=op_id)
def test_samples(op, full):
    """Results, and the gradients of floats; nothing on the host but what has no elements."""
    compared = 0
    for dtype in types(op, full):
        graded = dtype is torch.float32 and op.supports_autograd
        for sample in op.sample_inputs("cpu", dtype, requires_grad=graded):
            if simulate.active() and op.name in ("nonzero", "masked_select", "__getitem__"):
                pytest.skip("sizes are what a kernel computes")
            here = sample.transform(lambda v: moved(v.detach()) if isinstance(v, torch.Tensor) else moved(v))
            if op.name in MADE:
                here.kwargs["device"] = "xpu"
            if graded and isinstance(here.input, torch.Tensor):
                here.input.requires_grad_()
            anyxpu.ops.reset_counters()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = exact(op, sample) if op.name in ROUNDED else op(sample.input, *sample.args, **sample.kwargs)
                got = op(here.input, *here.args, **here.kwargs)
            if op.name in TIES and not isinstance(want, torch.Tensor):
                got, want = got[:1], want[:1]
            if not tensors(want):
                assert got == want or simulate.active()
                continue
            near(got, want, (op.name, dtype, sample))
            compared += 1
            if graded and isinstance(here.input, torch.Tensor):
                if op.name == "logcumsumexp" and sample.input.detach().abs().max() > 1e3:
                    continue  # whose exponentials have three digits
                ours = [t for t in tensors(got) if t.requires_grad]
                theirs = [t for t in tensors(want) if t.requires_grad]
                if ours and all(math.isfinite(t.detach().abs().sum()) for t in theirs):
                    for one, other in zip(ours, theirs, strict=True):
                        grad = torch.randn_like(other)
                        (found,) = torch.autograd.grad(
                            one, here.input, grad.to("xpu"), retain_graph=True, allow_unused=True
                        )
                        (should,) = torch.autograd.grad(other, sample.input, grad, retain_graph=True, allow_unused=True)
                        near(found, should, (op.name, "gradient", sample))
            hosted = {n for n, ways in anyxpu.ops.counters().items() if "host" in ways} - HOSTED
            whole = all(t.numel() for t in tensors([sample.input, *sample.args])) and (
                not isinstance(sample.input, torch.Tensor) or sample.input.dim()
            )
            if op.name == "addbmm" and dtype in HOST_PRODUCTS:
                hosted -= {"aten::addmm", "aten::addbmm"}
            assert not hosted or not whole or dtype is torch.bool, (hosted, sample)
    assert compared or op.name == "equal"


def test_indices_of_every_kind():
    """Lists, masks, ends, gaps between indexed dimensions, broadcast; read, written and added to."""
    x = torch.randn(5, 6, 7, 3)
    i, j = torch.tensor([[0, -1, 2]]), torch.tensor([[4], [1]])
    mask, plane = torch.rand(5) < 0.6, torch.rand(6, 7) < 0.5
    wide = torch.rand(5, 6, 7) < 0.3
    for key in (
        (i,),
        (slice(None), j),
        (i, j),
        (i, slice(None), j),
        (slice(None), i, j),
        (slice(None), i, slice(1, 6, 2), j % 3),
        (..., i % 3),
        (mask,),
        (slice(None), plane),
        (mask, slice(None), 2),
        (wide,),
        (i, j, i, j % 3),
        (3, i),
        (None, i, None, j),
    ):
        here = tuple(k.to("xpu") if isinstance(k, torch.Tensor) else k for k in key)
        for view in (x, x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
            near(view.to("xpu")[here], view[key], key)
        if simulate.active():
            continue
        want, got = x.clone(), x.to("xpu")
        value = torch.randn(x[key].shape[-1:]) if x[key].dim() else torch.randn(())
        want[key], got[here] = value, value.to("xpu")
        near(got, want, (key, "put"))
        turned, ours = x.clone().transpose(0, 1), x.to("xpu").transpose(0, 1)
        small = tuple(k for k in key if k is not None and not (isinstance(k, torch.Tensor) and k.dtype is torch.bool))
        if small and all(isinstance(k, torch.Tensor) for k in small) and len(small) <= 2:
            turned.index_put_(tuple(k % 5 for k in small), torch.tensor(2.5), accumulate=True)
            ours.index_put_(tuple(k.to("xpu") % 5 for k in small), torch.tensor(2.5, device="xpu"), accumulate=True)
            near(ours, turned, (key, "added"))


def test_what_is_read_where_it_is_written_is_refused():
    """As on the CPU: the values, the source or the indices of a write overlap it."""
    places = torch.tensor([1, 0])
    for device in ("cpu", "xpu"):
        x, where = torch.randn(4, 3, device=device), places.to(device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[where] = x[:2]
        with pytest.raises(RuntimeError, match="single memory location"):
            x.scatter_(0, torch.zeros(2, 3, dtype=torch.int64, device=device), x[1:3])


def test_many_are_added_in_float32():
    """Of 16 bits too: 5,000 ones are 5,000."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.zeros(3, dtype=dtype, device="xpu")
        x.index_put_((torch.ones(5000, dtype=torch.int64, device="xpu"),), torch.ones((), dtype=dtype), accumulate=True)
        assert simulate.active() or abs(x[1].item() - 5000) <= 20


def test_an_index_out_of_range_is_raised_at_the_next_wait():
    x = torch.randn(4, 3, device="xpu")
    for call in (
        lambda: x[torch.tensor([0, 4], device="xpu")],
        lambda: x.index_put((torch.tensor([-5], device="xpu"),), torch.zeros(3, device="xpu")),
        lambda: x.scatter(0, torch.tensor([[7, 0, 0]], device="xpu"), 1.0),
        lambda: x.index_put((torch.tensor([9], device="xpu"),), torch.zeros(3, device="xpu"), accumulate=True),
    ):
        if simulate.active():
            call()
            continue
        with pytest.raises(torch.AcceleratorError, match=r"out of (range|bounds)"):
            call()
            torch.xpu.synchronize()
        assert torch.equal(x + 0, x)


@pytest.mark.parametrize("shape", ((100_003,), (3, 50_000), (200, 301), (4, 1000, 33)), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32), ids=str)
def test_extremes_and_scans_of_long_rows(shape, dtype):
    """In parts; of many equal elements the first; NaN before all."""
    x = torch.randint(-50, 50, shape).to(dtype)
    if dtype.is_floating_point and len(shape) == 2:
        x[1, shape[1] // 2] = float("nan")
    for dim in range(len(shape)):
        for name in ("max", "min"):
            near(tuple(getattr(x.to("xpu"), name)(dim)), tuple(getattr(x, name)(dim)), (name, dim))
        if dtype is not torch.bfloat16:
            clean = torch.nan_to_num(x) if dtype.is_floating_point else x
            near(clean.to("xpu").cumsum(dim), clean.cumsum(dim), ("cumsum", dim))
    near(x.to("xpu").argmax(), x.argmax(), "argmax")


def test_running_sums_keep_their_digits():
    """Of 16 bits in float32, rounded once an element: against float64."""
    x = torch.rand(7, 4000)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        want = x.to(dtype).double().cumsum(1)
        got = x.to(dtype).to("xpu").cumsum(1)
        if not simulate.active():
            bound = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}[dtype]
            assert ((got.cpu().double() - want).abs() / want).max() <= bound * 1.01


@pytest.mark.parametrize("replacement", (True, False))
def test_multinomial_draws_as_often_as_it_should(replacement):
    if simulate.active():
        pytest.skip("nothing is drawn")
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0, 2.0], device="xpu")
    drawn = torch.multinomial(weights.expand(20_000, 6), 3 if replacement else 1, replacement)
    share = torch.bincount(drawn.cpu().flatten(), minlength=6).double() / drawn.numel()
    assert (share - weights.cpu().double() / 10).abs().max() < 0.02
    several = torch.multinomial(weights, 4)
    assert sorted(several.tolist()) == [1, 2, 3, 5]
    torch.manual_seed(5)
    first = torch.multinomial(weights, 3)
    torch.manual_seed(5)
    assert torch.equal(first, torch.multinomial(weights, 3))
    for wrong in (torch.tensor([1.0, -1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, float("nan")])):
        with pytest.raises(RuntimeError, match=r"probability|sum"):
            torch.multinomial(wrong.to("xpu"), 1)


def test_exponential_numbers_have_their_distribution():
    x = torch.empty(200_000, device="xpu").exponential_(2.0)
    if not simulate.active():
        assert x.min() > 0
        assert abs(x.mean().item() - 0.5) < 0.01 and abs(x.std().item() - 0.5) < 0.02
    for dtype in (torch.float32, torch.bfloat16):
        none = torch.ones(9, device="xpu", dtype=dtype).exponential_(float("inf"))
        assert simulate.active() or not none.any()


def test_places_of_what_is_not_zero_lie_beside_each_other():
    """As on CUDA and XPU: each dimension's. The host's are put so as well."""
    for mode in ("host", "compile"):
        lib().set_eager(mode)
        for x in (torch.randn(7, 9), torch.randn(40, 30, 20), torch.zeros(3, 0)):
            x[x < 0.5] = 0
            got = x.to("xpu").nonzero()
            assert simulate.active() or torch.equal(got.cpu(), x.nonzero())
            assert len(got) == 0 or got.stride() == (1, len(got)) or simulate.active()
            assert all(t.is_contiguous() for t in got.unbind(1)), mode


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16], ids=str)
def test_places_of_order_statistics_hold_their_numbers(dtype):
    x = torch.randint(-3, 4, (5, 9, 4)).to(dtype)
    if dtype.is_floating_point:
        x[1, 2, 3] = x[2, :, 0] = float("nan")
    here = x.to("xpu")
    for call in (
        lambda t, d: torch.kthvalue(t, 2, d),
        torch.median,
        torch.nanmedian,
        torch.mode,
        lambda t, d: torch.kthvalue(t, 3, d, True),
    ):
        for dim in (0, 1, -1):
            if call is torch.mode and dtype.is_floating_point:
                continue  # of NaNs every one is another
            want, got = call(x, dim), call(here, dim)
            near(got[:1], want[:1], (call, dim))
            places = got[1].cpu()
            if not simulate.active():
                kept = places if places.dim() == x.dim() else places.unsqueeze(dim)
                near([here.gather(dim, kept.to("xpu")).view(got[0].shape)], [want[0]], (call, dim))
