"""Taking and putting by an index, joining, embeddings, losses of classes and dropout on the device, as the CPU does."""

from __future__ import annotations

import os
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import indexing, registry

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

DEVICE = "xpu"
SEED = os.environ.get("ANYXPU_TEST_SEED", "")
TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64)


def near(got, want) -> None:
    assert (got.device.type, got.dtype, got.shape, got.stride()) == ("xpu", want.dtype, want.shape, want.stride())
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), want)


def nothing_on_the_host(call):
    anyxpu.ops.reset_counters()
    result = call()
    assert not any("host" in how for how in anyxpu.ops.counters().values()), anyxpu.ops.counters()
    return result


def numbers(shape, dtype):
    return (torch.randn(shape) * 5).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("lying", ["contiguous", "transposed", "sliced"])
def test_rows_and_elements_by_an_index(dtype, lying):
    for shape in ((7,), (700,), (5, 300), (3, 4, 2, 5), (4, 1, 6)):
        base = numbers((*shape[:-1], shape[-1] * 2), dtype)
        x = base[..., ::2] if lying == "sliced" else base[..., : shape[-1]].contiguous()
        if lying == "transposed":
            x = x.transpose(0, -1)
        for dim in range(-1, x.dim()):
            index = torch.randint(0, x.shape[dim], (9,))
            for of in (torch.int64, torch.int32):
                got = nothing_on_the_host(lambda: x.to(DEVICE).index_select(dim, index.to(of).to(DEVICE)))  # noqa: B023
                near(got, x.index_select(dim, index))
            sizes = [max(1, n - 1) for n in x.shape]
            sizes[dim] = 4
            index = torch.randint(0, x.shape[dim], sizes)
            near(nothing_on_the_host(lambda: x.to(DEVICE).gather(dim, index.to(DEVICE))), x.gather(dim, index))  # noqa: B023
            out = torch.empty(*sizes, 2, dtype=dtype, device=DEVICE)[..., 0]
            torch.gather(x.to(DEVICE), dim, index.to(DEVICE), out=out)
            near(out.contiguous(), x.gather(dim, index))


def test_joining():
    """Along any dimension, of any layout, of types that differ; empty ones are left out."""
    parts = [torch.randn(3, k, 4) for k in (1, 0, 5)]
    for lay in (lambda t: t, lambda t: t.transpose(0, 2).contiguous().transpose(0, 2)):
        here = [lay(t) for t in parts]
        got = nothing_on_the_host(lambda: torch.cat([t.to(DEVICE) for t in here], 1))  # noqa: B023
        near(got, torch.cat(here, 1))
    near(torch.cat([t.to(DEVICE) for t in (parts[0], parts[0].int())], -1), torch.cat([parts[0], parts[0].int()], -1))
    near(torch.cat([torch.empty(0, device=DEVICE), parts[0].to(DEVICE)]), parts[0])
    images = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2)]
    near(torch.cat([t.to(DEVICE) for t in images], 1), torch.cat(images, 1))
    near(torch.stack([t.to(DEVICE) for t in images], 0), torch.stack(images, 0))
    out = torch.empty(4, 3, 6, device=DEVICE).permute(1, 2, 0)
    torch.cat([t.to(DEVICE) for t in parts], 1, out=out)
    near(out.contiguous(), torch.cat(parts, 1))
    for wrong, words in (
        (lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]), "match"),
        (lambda d: torch.cat([torch.ones(2, device=d), torch.ones(2, 4, device=d)]), "dimension"),
        (lambda d: torch.cat([torch.ones(2, device=d)], 1), "out of range"),
    ):
        for device in ("cpu", DEVICE):
            with pytest.raises((RuntimeError, IndexError), match=words):
                wrong(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embeddings_and_their_gradients(dtype):
    weight = torch.randn(40, 24).to(dtype)
    index = torch.randint(0, 40, (6, 50))
    index[0, :7] = 3
    here, there = weight.double().requires_grad_(), weight.to(DEVICE).requires_grad_()
    grad = torch.randn(6, 50, 24).to(dtype)

    def step():
        made = F.embedding(index.to(DEVICE), there, padding_idx=3)
        made.backward(grad.to(DEVICE))
        return made

    got = nothing_on_the_host(step)
    near(got.detach(), F.embedding(index, weight))
    F.embedding(index, here, padding_idx=3).backward(grad.double())
    assert there.grad.dtype == dtype and float(there.grad[3].abs().max()) == 0
    if not simulate.active():
        bound = 1e-5 if dtype is torch.float32 else 1e-2
        torch.testing.assert_close(there.grad.cpu().double(), here.grad, rtol=bound, atol=bound)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy_and_its_gradient(dtype, reduction):
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    for shape, weighted in (((30, 11), False), ((30, 11), True), ((11,), False)):
        x = torch.randn(shape).to(dtype)
        target = torch.randint(0, 11, shape[:-1])
        if len(shape) == 2:
            target[3:6] = -100
        weight = torch.rand(11).to(dtype) if weighted else None
        here, there = x.double().requires_grad_(), x.to(DEVICE).requires_grad_()
        want = F.cross_entropy(here, target, None if weight is None else weight.double(), reduction=reduction)

        def step():
            loss = F.cross_entropy(there, target.to(DEVICE), weight if weight is None else weight.to(DEVICE),  # noqa: B023
                                   reduction=reduction)  # fmt: skip
            loss.sum().backward()
            return loss

        got = nothing_on_the_host(step)
        want.sum().backward()
        assert (got.dtype, got.shape) == (dtype, want.shape)
        if not simulate.active():
            torch.testing.assert_close(got.detach().cpu().double(), want.detach(), rtol=bound, atol=bound)
            torch.testing.assert_close(there.grad.cpu().double(), here.grad, rtol=bound, atol=bound)
    for device in ("cpu", DEVICE):
        with pytest.raises((RuntimeError, ValueError), match=r"batch.size"):
            F.nll_loss(torch.randn(3, 4, device=device), torch.zeros(2, dtype=torch.int64, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_loss_whose_rows_all_count_nothing_has_gradients_of_zero(dtype):
    """The loss is 0 / 0, and what it does not count has no part in that."""
    for shape in ((4, 5), (2, 5, 3, 2)):
        weight = torch.rand(5).to(dtype)
        weight[0] = torch.inf  # of the class that rows which do not count are taken for
        for given, target in ((None, -100), (weight, -100), (weight, 1)):
            targets = torch.full((shape[0], *shape[2:]), target, device=DEVICE)
            targets.view(-1)[0] = -100
            x = torch.randn(shape, dtype=dtype, device=DEVICE, requires_grad=True)
            loss = F.nll_loss(x, targets, None if given is None else given.to(DEVICE))
            loss.backward()
            here = x.detach().cpu().float().requires_grad_()
            want = F.nll_loss(here, targets.cpu(), None if given is None else given.float())
            want.backward()
            if not simulate.active():
                torch.testing.assert_close(loss.cpu().float(), want, rtol=1e-2, atol=0, equal_nan=True)
                torch.testing.assert_close(x.grad.cpu().float(), here.grad, rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gradient_of_classes_is_divided_by_the_weight_it_is_given(dtype):
    """As where rows are shared out and their weights summed over all; the own sum in 16 bits keeps its digits."""
    rows, classes = 600, 7
    x, target = torch.randn(rows, classes).to(dtype), torch.randint(0, classes, (rows,))
    target[::5] = -1
    grad = torch.randn(()).to(dtype)
    own = (target != -1).sum()
    for total in (own, own * 3):
        got = torch.ops.aten.nll_loss_backward(
            grad.to(DEVICE), x.to(DEVICE), target.to(DEVICE), None, 1, -1, total.to(dtype).to(DEVICE)
        )
        # 480 is one of bfloat16's numbers, 1,440 is too.
        want = torch.ops.aten.nll_loss_backward(grad.double(), x.double(), target, None, 1, -1, total.double())
        if not simulate.active():
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=0)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("case", range(18))
def test_what_is_taken_lies_in_memory_as_the_cpus_and_as_a_compiled_graph_expects(case):
    """Indices at any dimensions, beside each other or not, of the host or the device, of a tensor that lies any way."""
    draw = random.Random(f"{case} {SEED}")
    sizes = [draw.choice((2, 3, 4, 5)) for _ in range(draw.choice((3, 4, 5)))]
    order = draw.sample(range(len(sizes)), len(sizes))
    x = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
    if draw.random() < 0.3 and sizes[0] > 2:
        x = x.narrow(0, 0, sizes[0] - 1)
    there = torch.empty_strided(x.shape, x.stride(), device=DEVICE).copy_(x)
    for _ in range(4):
        shape = draw.choice(((3,), (2, 3), (2, 1, 2)))
        indexed = draw.sample(range(x.dim()), draw.choice((1, 2)))
        index = [
            torch.randint(0, n, draw.choice((shape, shape[-1:]))) if d in indexed else slice(None)
            for d, n in enumerate(x.shape)
        ]
        where = draw.choice(("cpu", DEVICE))
        moved = tuple(t.to(where) if isinstance(t, torch.Tensor) else t for t in index)
        got, want = there[moved], x[tuple(index)]
        # The steps of dimensions of one element say nothing.
        steps = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (got, want)]
        assert steps[0] == steps[1], (x.stride(), index)
        if not simulate.active():
            assert torch.equal(got.cpu(), want)
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in moved]
            assert mode.from_tensor(there)[tuple(fake)].stride() == got.stride()


_PUT = {
    "scatter, add": lambda x, i, y: x.scatter(0, i, y, reduce="add"),
    "scatter, a number multiplied": lambda x, i, y: x.scatter(0, i, 2.0, reduce="multiply"),
    "scatter_add": lambda x, i, y: x.scatter_add(0, i, y),
    "scatter_reduce": lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
    "index_reduce": lambda x, i, y: x.index_reduce(0, i[:, 0], y, "mean"),
    "index_add": lambda x, i, y: x.index_add(0, i[:, 0], y),
    "index_copy": lambda x, i, y: x.index_copy(0, i[:, 0], y),
    "avg_pool3d": lambda x, i, y: F.avg_pool3d(_volumes(x), 2),
    "adaptive_avg_pool3d": lambda x, i, y: F.adaptive_avg_pool3d(_volumes(x), (3, 2, 3)),
    "gradients of avg_pool3d": lambda x, i, y: _gradient(lambda v: F.avg_pool3d(v, 2), _volumes(x)),
    "gradients of adaptive_avg_pool3d": lambda x, i, y: _gradient(lambda v: F.adaptive_avg_pool3d(v, 3), _volumes(x)),
}


def _volumes(x):
    return x.reshape(1, 4, 4, 4, 4).to(memory_format=torch.channels_last_3d)


def _gradient(f, x):
    # From a first result's own, as a layer behind gives it back.
    made = f(x.requires_grad_())
    return torch.autograd.grad(made, x, made.detach())[0]


@pytest.mark.parametrize("name", _PUT)
def test_results_lie_in_memory_as_the_cpus_where_the_source_is_turned(name):
    """A compiled graph counts on it, where it calls these operators as they are."""
    x, source = torch.randn(16, 16).t(), torch.randn(12, 16)
    index = torch.stack([torch.randperm(16)[:12] for _ in range(16)], 1)
    given = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE).copy_(t) for t in (x, index, source)
    ]
    near(_PUT[name](*given), _PUT[name](x, index, source))


def test_an_index_out_of_range_is_said_at_the_next_wait_and_the_device_goes_on():
    if simulate.active():
        pytest.skip("no kernel looks at an index on a simulated GPU")
    x = torch.randn(3, 4, device=DEVICE)
    for call, words in (
        (lambda: x.index_select(0, torch.tensor([3], device=DEVICE)), "index_select: an index is out of range"),
        (lambda: x.gather(1, torch.tensor([[-1]], device=DEVICE)), "gather: an index is out of range"),
        (lambda: x.index_select(1, torch.tensor([4, 0], device=DEVICE)), "index_select: an index is out of range"),
        (lambda: x[0].index_select(0, torch.tensor([-1], device=DEVICE)), "index_select: an index is out of range"),
        (lambda: x[0].gather(0, torch.tensor([4], device=DEVICE)), "gather: an index is out of range"),
        (lambda: x.index_copy(0, torch.tensor([-1], device=DEVICE), x[:1] + 1), "index_copy: an index is out of range"),
    ):
        with pytest.raises(torch.AcceleratorError, match=words):
            call()
            torch.xpu.synchronize()
        near(x.index_select(0, torch.tensor([2], device=DEVICE)), x.cpu()[2:])


@pytest.mark.parametrize("count", [5, 6])
@pytest.mark.parametrize("lying", ["contiguous", "turned", "apart"])
def test_as_many_indices_as_there_are_dimensions(count, lying):
    """More than a kernel takes by itself; below 0, broadcast, and with a slice between them."""
    x = numbers([random.randint(2, 4) for _ in range(count + 1)], torch.float32)
    x = x.permute(*reversed(range(count + 1))) if lying == "turned" else x
    at = [k + (lying == "apart" and k == count - 1) for k in range(count)]
    wanted = [torch.randint(-x.shape[d], x.shape[d], (3, 1) if k == 1 else (4,)) for k, d in enumerate(at)]

    def given(device):
        made = [slice(None)] * x.dim()
        for d, each in zip(at, wanted, strict=True):
            made[d] = each.to(device)
        return tuple(made)

    near(nothing_on_the_host(lambda: x.to(DEVICE)[given(DEVICE)]), x[given("cpu")])
    value = numbers((), torch.float32)

    def put(device, accumulate):
        indices = [None if isinstance(each, slice) else each for each in given(device)]
        return torch.ops.aten.index_put(x.to(device), indices, value.to(device), accumulate)

    for accumulate in (False, True):
        near(nothing_on_the_host(lambda: put(DEVICE, accumulate)), put("cpu", accumulate))  # noqa: B023


@pytest.mark.not_simulated("what is out of range is found by a kernel that runs")
@pytest.mark.parametrize("wrong", range(6))
def test_of_many_indices_one_out_of_range_is_said(wrong):
    x = torch.zeros([2] * 6, device=DEVICE)
    indices = [torch.full((3,), 5 if k == wrong else -1, device=DEVICE) for k in range(6)]
    for call in (lambda: x[tuple(indices)], lambda: x.index_put_(indices, torch.ones(3, device=DEVICE))):
        with pytest.raises(RuntimeError, match="out of range"):
            call()
            torch.xpu.synchronize()
    assert not x.any()


def test_a_tensor_of_the_host_and_indices_of_the_device():
    """It is written, as everywhere in torch, and not read."""
    index = torch.tensor([2, 0], device=DEVICE)
    for call in (lambda x: x[index], lambda x: x[:, index], lambda x: x[index, index.cpu()]):
        with pytest.raises(RuntimeError, match=r"indices should be either .* \(cpu\)"):
            call(torch.zeros(3, 4))
    x = torch.zeros(3, 4)
    x[index] = 1.0
    x[index, index] = torch.tensor([5.0, 6.0])
    want = torch.zeros(3, 4)
    want[index.cpu()] = 1.0
    want[index.cpu(), index.cpu()] = torch.tensor([5.0, 6.0])
    if not simulate.active():
        assert torch.equal(x, want)
    with pytest.raises(RuntimeError, match="same device"):
        x[index] = torch.ones(4, device=DEVICE)


def test_an_expanded_tensor_may_be_filled_by_index():
    many = torch.zeros(1, 5, device=DEVICE).expand(4, 5)
    with pytest.warns(UserWarning, match="expanded tensors is deprecated"):
        many.index_fill_(1, torch.tensor([3], device=DEVICE), 2.0)
    assert simulate.active() or many.cpu().tolist() == [[0, 0, 0, 2, 0]] * 4


def test_dropout_keeps_its_share_and_its_gradient_its_mask():
    if simulate.active():
        pytest.skip("no kernel draws on a simulated GPU")
    x = torch.rand(200, 500, device=DEVICE) + 1
    x.requires_grad_()
    torch.manual_seed(5)
    made = nothing_on_the_host(lambda: F.dropout(x, 0.3))
    kept = made != 0
    share = float(kept.float().mean())
    assert abs(share - 0.7) < 0.01
    torch.testing.assert_close(made[kept], x[kept] / 0.7)
    made.sum().backward()
    torch.testing.assert_close(x.grad, kept / 0.7)
    torch.manual_seed(5)
    assert torch.equal(F.dropout(x, 0.3), made) and not torch.equal(F.dropout(x, 0.3), made)
    assert torch.equal(F.dropout(x, 0.3, training=False), x) and float(F.dropout(x, 1.0).abs().sum()) == 0


def test_every_operator_of_the_table_is_compiled():
    assert {registry.resolve(f"aten::{name}") for name in indexing.TABLE} == {"compiled"}


@pytest.mark.not_simulated("it reads how many places a mask has")
def test_a_mask_of_bytes_is_taken_and_warned_of_at_the_line_that_has_it():
    x, mask = torch.arange(12.0, device=DEVICE).view(3, 4), torch.tensor([1, 0, 1], dtype=torch.uint8, device=DEVICE)
    for turn in range(2):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            taken = x[mask]
            x.index_put_((mask,), torch.ones((), device=DEVICE), accumulate=True)
        near(taken, torch.arange(12.0).view(3, 4)[[0, 2]] + turn)
        assert ["torch.uint8 is now deprecated" in str(w.message) for w in said] == [True, True]
        assert all(w.filename == __file__ for w in said)
