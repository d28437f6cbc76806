"""Operators on lists of tensors and optimizers, one kernel for all: against the CPU in float64."""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import foreach

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

SHAPES = ((3,), (5, 7), (), (0, 4), (100, 333), (2, 3, 4), (16384 * 3 + 5,))
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-12}
POSITIVE = {"log", "log10", "log2", "log1p", "sqrt", "rsqrt", "pow", "reciprocal", "div", "addcdiv", "acos", "asin"}


def types(full: bool) -> list[torch.dtype]:
    some = [torch.float32, torch.bfloat16, torch.float16]
    if torch.xpu.get_device_properties().has_fp64:
        some.append(torch.float64)
    return some if full else [some[0], random.choice(some[1:])]


def near(got: torch.Tensor, want: torch.Tensor, bound: float, what: object) -> None:
    assert (got.device.type, got.shape) == ("xpu", want.shape), what
    if simulate.active() or not want.numel():
        return
    far = (got.detach().cpu().double() - want.detach().double()).abs().max().item()
    assert far <= bound * max(1.0, want.abs().max().item()), (what, far)


def arguments(name: str, roles: str, dtype: torch.dtype):
    """For the CPU; lists have a tensor of another order of dimensions among them."""
    base, _, overload = name.partition(".")
    given = []
    for role in roles.replace("1", "").replace("I", ""):
        if role == "L":
            low = 0.1 if base in POSITIVE else -0.8
            made = [(torch.rand(s, dtype=torch.float64) * 0.8 + low).to(dtype) for s in SHAPES]
            made[5] = made[5].transpose(0, 2)
            given.append(made)
        elif role == "Z":
            numbers = [0.5 + 0.1 * i for i in range(len(SHAPES))]
            given.append(torch.tensor(numbers, dtype=torch.float64) if overload == "Tensor" else numbers)
        else:
            given.append(1.25 if role == "N" else torch.tensor(1.5, dtype=dtype))
    return given


def moved(value, name: str, device: str, dtype: torch.dtype):
    if isinstance(value, list):
        return [moved(v, name, device, dtype) for v in value]
    if not isinstance(value, torch.Tensor) or (name.startswith("addc") and value.shape == (len(SHAPES),)):
        return value
    return value.to(device, dtype, copy=True)


@pytest.mark.parametrize("name", foreach.TABLE)
@pytest.mark.rotates(3)
def test_every_form_equals_the_cpus(name, full):
    _, roles = foreach.TABLE[name]
    base, _, overload = name.partition(".")
    compared = 0
    for dtype in types(full):
        for form in sorted({base, f"{base.removesuffix('_')}_"}):
            packet = getattr(torch.ops.aten, f"_foreach_{form}", None)
            if packet is None or (overload or "default") not in packet.overloads():
                continue
            op = getattr(packet, overload or "default")
            given = arguments(name, roles, dtype)
            named = {"alpha": given.pop()} if op._schema.arguments[-1].name == "alpha" else {}
            here = [moved(a, name, "xpu", dtype) for a in given]
            there = [moved(a, name, "cpu", torch.float64) for a in given]
            anyxpu.ops.reset_counters()
            got = op(*here, **named)
            assert anyxpu.ops.counters()[f"aten::_foreach_{form}{'.' * bool(overload)}{overload}"] == {"compiled": 1}
            want = op(*there, **named)
            got, want = (here[0], there[0]) if form.endswith("_") else (got, want)
            for one, other, first in zip(got, want, given[0], strict=True):
                near(one, other, BOUNDS[dtype], (form, dtype, tuple(other.shape)))
                assert one.dtype == dtype and one.stride() == first.stride()
            compared += 1
    assert compared


@pytest.mark.parametrize("order", (1, 2, float("inf")))
def test_norms(order, full):
    for dtype in types(full):
        tensors = [t for t in arguments("abs", "L", dtype)[0] if t.numel()]
        anyxpu.ops.reset_counters()
        got = torch._foreach_norm([t.to("xpu") for t in tensors], order)
        assert anyxpu.ops.counters()["aten::_foreach_norm.Scalar"] == {"compiled": 1}
        for one, other in zip(got, torch._foreach_norm([t.double() for t in tensors], order), strict=True):
            near(one, other, BOUNDS[dtype], (order, dtype))


def test_lists_that_are_not_alike_go_tensor_by_tensor():
    """Types that differ, integers, layouts that differ, one tensor twice: torch's own way, and right."""
    a, b = torch.randn(4, 6), torch.randn(6, 4)
    x, y = a.to("xpu"), b.to("xpu")
    for got, want in (
        (torch._foreach_add([x, y.half()], 1), torch._foreach_add([a, b.half()], 1)),
        (torch._foreach_mul([x, y], [y.t(), x.t()]), torch._foreach_mul([a, b], [b.t(), a.t()])),
        (torch._foreach_add([x.int(), y.int()], 3), torch._foreach_add([a.int(), b.int()], 3)),
        (torch._foreach_sqrt([x[:, ::2].abs()]), torch._foreach_sqrt([a[:, ::2].abs()])),
    ):
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            near(one, other, 1e-3, "not alike")
    twice = x.clone()
    torch._foreach_add_([twice, twice], [1.0, 2.0])
    near(twice, a + 3, 1e-6, "twice")
    one, two = torch.randn(300_000), torch.randn(300_000)
    crossed = one.to("xpu"), two.to("xpu")
    torch._foreach_copy_(crossed, crossed[::-1])  # the first is the second, then the second the first as it is now
    for got in crossed:
        near(got, two, 0, "crossed")
    with pytest.raises(RuntimeError, match=r"same number of tensors|must have the same length"):
        torch._foreach_add([x], [x, y])


def test_what_writes_a_list_ends_copies_of_weights():
    """Copies of a weight in a library's layout are not used once its values have changed."""
    layer = torch.nn.Linear(64, 64, device="xpu")
    x = torch.randn(32, 64, device="xpu")
    with torch.no_grad():
        for _ in range(4):
            layer(x)
        torch._foreach_mul_([layer.weight, layer.bias], 2.0)
        near(layer(x), x.cpu().double() @ layer.weight.cpu().double().t() + layer.bias.cpu(), 1e-4, "weight")


def run(kind, device: str, dtype: torch.dtype, options, starts, gradients):
    parameters = [torch.nn.Parameter(p.to(device, dtype)) for p in starts]
    optimizer = kind(parameters, **options)
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.to(device, dtype)
        optimizer.step()
    return parameters


ADAM = [
    {"weight_decay": w, "amsgrad": a, "maximize": m} for w in (0, 0.1) for a in (False, True) for m in (False, True)
]
SGD = [
    {"momentum": m, "nesterov": n, "dampening": d, "weight_decay": w}
    for m, n, d in ((0, False, 0), (0.9, False, 0), (0.9, False, 0.3), (0.9, True, 0))
    for w in (0, 0.1)
]


ADAGRAD = [{"lr_decay": d, "weight_decay": w, "maximize": m} for d in (0, 0.2) for w in (0, 0.1) for m in (False, True)]
KINDS = {torch.optim.Adam: ADAM, torch.optim.AdamW: ADAM, torch.optim.SGD: SGD, torch.optim.Adagrad: ADAGRAD}


@pytest.mark.parametrize("mode", ("fused", "foreach"))
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_optimizers_step_as_the_cpus_do(kind, mode, full):
    shapes = ((3,), (5, 7), (100, 333), (2, 3, 4))
    starts = [torch.randn(s, dtype=torch.float64) for s in shapes]
    # None that a decayed weight all but cancels: Adam divides what is left by its own size, rounding and all.
    gradients = [[g + g.sign() for g in (torch.randn(s, dtype=torch.float64) for s in shapes)] for _ in range(4)]
    for dtype in types(full):
        if dtype is torch.float16:
            continue
        for options in KINDS[kind]:
            options = {"lr": 0.01, **options}
            anyxpu.ops.reset_counters()
            got = run(kind, "xpu", dtype, {**options, mode: True}, starts, gradients)
            assert not [n for n, ways in anyxpu.ops.counters().items() if "host" in ways]
            rounded = [[g.to(dtype).double() for g in step] for step in gradients]
            want = run(kind, "cpu", torch.float64, options, [p.to(dtype) for p in starts], rounded)
            for one, other in zip(got, want, strict=True):
                near(one, other, {torch.bfloat16: 3e-2, torch.float32: 5e-6}.get(dtype, 1e-12), (dtype, options))


def test_adagrad_of_sixteen_bits_does_not_step_where_there_is_no_gradient():
    """Its eps is 0 in float16; and a step that is left out is none, whatever eps."""
    for eps, found in ((1e-10, 0.0), (0.0, 1.0)):
        p = torch.ones(4, dtype=torch.float16, device="xpu")
        sums, steps = [torch.zeros_like(p)], [torch.ones((), device="xpu")]
        torch._fused_adagrad_(
            [p], [torch.zeros_like(p)], sums, steps, lr=0.1, lr_decay=0.1, weight_decay=0.0, eps=eps, maximize=False,
            found_inf=torch.full((), found, device="xpu"),
        )  # fmt: skip
        assert simulate.active() or (p.tolist(), sums[0].tolist()) == ([1.0] * 4, [0.0] * 4)


def test_a_step_is_a_few_launches():
    """AdamW of a hundred tensors: at most eight by lists, one fused (and one that counts the steps)."""
    for mode, most in (("foreach", 8), ("fused", 2)):
        parameters = [torch.nn.Parameter(torch.randn(17, 5, device="xpu")) for _ in range(100)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters, **{mode: True})
        optimizer.step()
        anyxpu.ops.reset_counters()
        optimizer.step()
        served = {n: w["compiled"] for n, w in anyxpu.ops.counters().items() if "compiled" in w}
        assert sum(served.values()) <= most, served
        anyxpu.ops.reset_counters()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        served = {n: w for n, w in anyxpu.ops.counters().items() if "compiled" in w or "host" in w}
        assert sum(sum(w.values()) for w in served.values()) <= 10, served


@pytest.mark.parametrize("fused", (False, True), ids=("foreach", "fused"))
@pytest.mark.parametrize("kind", (torch.optim.AdamW, torch.optim.Adagrad), ids=lambda k: k.__name__)
def test_a_scaler_leaves_out_steps_of_infinite_gradients(fused, kind):
    layer = torch.nn.Linear(5, 3, device="xpu")
    optimizer = kind(layer.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("xpu", init_scale=4.0, growth_interval=2)
    scales, moves = [], []
    for step in range(5):
        optimizer.zero_grad()
        loss = layer(torch.randn(2, 5, device="xpu")).square().mean() * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        before = layer.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moves.append((layer.weight - before).abs().max().item() > 0)
    if not simulate.active():
        assert scales == [4.0, 8.0, 4.0, 4.0, 8.0]
        assert moves == [True, True, False, True, True]
