"""Reductions and softmax by compiled kernels, against float64 and the CPU's own."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.cache import cache_dir
from anyxpu.ops import reductions, registry
from anyxpu.shim import lib
from anyxpu.triton import driver

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

DEVICE = "xpu"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Rounding of the result, of sums in float32.
BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
# Shape, and the dimensions that are reduced: all, rows short and long, columns, a middle, several that do not lie
# together, many numbers into few, none of several sizes.
SHAPES = (
    ((7,), None), ((), None), ((70_000,), None), ((5, 3), (1,)), ((3, 1025), (-1,)), ((600, 40), (1,)),
    ((300, 70), (0,)),
    ((2, 50, 9), (1,)), ((4, 6, 5, 7), (0, 2)), ((4, 3, 5, 2, 6), (1, 3)), ((2, 3, 4), (0, 1)), ((20_000, 3), (0,)),
    ((1, 5), (0,)), ((3, 40, 33), (2, 0)),
)  # fmt: skip


def has(dtype: torch.dtype) -> bool:
    return dtype is not torch.float64 or torch.xpu.get_device_properties().has_fp64


def near(got, want, what="", scale=1.0) -> None:
    """Same type, shape and strides, and near: of floats to rounding, else equal."""
    assert (got.device.type, got.dtype, got.shape, got.stride()) == ("xpu", want.dtype, want.shape, want.stride()), what
    if not simulate.active():
        bound = BOUNDS.get(want.dtype, 0)
        torch.testing.assert_close(
            got.cpu().double(),
            want.double(),
            rtol=bound,
            atol=bound * scale,
            equal_nan=True,
            msg=lambda m: f"{what}: {m}",
        )


def only_compiled(call, name: str):
    anyxpu.ops.reset_counters()
    result = call()
    ways = anyxpu.ops.counters()
    assert ways[f"aten::{name}"] == {"compiled": 1}
    assert not any("host" in how for how in ways.values()), ways
    return result


def layouts(t: torch.Tensor):
    yield t
    if t.dim() > 1:
        yield t.transpose(0, -1).contiguous().transpose(0, -1)
        yield t.repeat_interleave(2, -1)[..., ::2]
        yield t[:1].expand(t.shape)


def numbers(shape, dtype):
    if dtype is torch.bool:
        return torch.rand(shape) < 0.9
    if not dtype.is_floating_point:
        return torch.randint(-4 if dtype.is_signed else 0, 9, shape).to(dtype)
    return (torch.rand(shape, dtype=torch.float64) - 0.3).to(dtype)


@pytest.mark.rotates(9)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "any", "all"])
def test_reductions_over_any_dimensions(name, dtype):
    if not has(dtype) or (name == "mean" and not dtype.is_floating_point):
        pytest.skip("no such type")
    function = getattr(torch, name)
    for shape, dims in SHAPES:
        t = numbers(shape, dtype)
        if name in ("any", "all") and (dims is None or len(dims) > 1):
            continue
        for keepdim in (False, True):
            if dims is None and keepdim:
                continue
            more = {} if dims is None else {"dim": dims[0] if name in ("any", "all") else dims, "keepdim": keepdim}
            for lying in layouts(t):
                # Of 16 bits the CPU sums in another order: float64 says what is right.
                meant = lying.double() if dtype.is_floating_point and name in ("sum", "mean") else lying
                want = function(meant, **more)
                if dtype.is_floating_point and name in ("sum", "mean"):
                    want = want.to(dtype)
                got = function(lying.to(DEVICE), **more)
                near(got, want, (name, shape, more, lying.stride()), scale=max(1.0, t.numel() ** 0.5))


@pytest.mark.rotates(9)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, float("inf"), float("-inf")])
def test_norms(order, dtype):
    if not has(dtype):
        pytest.skip("the device has no float64")
    for shape, dims in SHAPES:
        t = numbers(shape, dtype)
        want = torch.linalg.vector_norm(t.double(), order, dims)
        limit = torch.finfo(dtype).max / 2
        got = torch.linalg.vector_norm(t.to(DEVICE), order, dims)
        if float(want.abs().max()) < limit:
            near(got, want.to(dtype), (shape, dims, order), scale=float(want.abs().max()))


def test_types_that_are_asked_for():
    t = numbers((30, 20), torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        near(torch.sum(t.to(DEVICE), 1, dtype=dtype), torch.sum(t.double(), 1).to(dtype), scale=10)
        near(torch.mean(t.to(DEVICE), 0, dtype=dtype), torch.mean(t.double(), 0).to(dtype))
    near(torch.sum(t.to(DEVICE), dtype=torch.int32), torch.sum(t.to(torch.int32), dtype=torch.int32))
    near(torch.linalg.vector_norm(t.to(DEVICE), dtype=torch.float32), torch.linalg.vector_norm(t.float()))
    whole = numbers((9, 9), torch.int16)
    for dtype in (torch.int16, torch.int32, torch.float32):
        near(torch.sum(whole.to(DEVICE), 0, dtype=dtype), torch.sum(whole, 0, dtype=dtype))
    near(torch.prod(whole.to(DEVICE) % 3 + 1, 1), torch.prod(whole % 3 + 1, 1))
    near(torch.prod(t[:, :5].to(DEVICE), 1), torch.prod(t[:, :5].double(), 1).bfloat16())
    near(torch.tensor([2**31 - 1] * 3, dtype=torch.int32).to(DEVICE).sum(), torch.tensor(3 * (2**31 - 1)))


def test_not_a_number_and_infinities_are_kept():
    for special in (float("nan"), float("inf"), float("-inf")):
        t = torch.randn(5, 300)
        t[2, 17] = special
        functions = (torch.amax, torch.amin, torch.sum, torch.mean, torch.softmax, torch.log_softmax)
        for function in (*functions, lambda x, d: torch.linalg.vector_norm(x, 2, d)):
            for dim in (0, 1):
                near(function(t.to(DEVICE), dim), function(t, dim), (special, dim), scale=20)
    hidden = torch.full((3, 40), float("-inf"))
    near(torch.softmax(hidden.to(DEVICE), 1), torch.softmax(hidden, 1))
    hidden[:, 5:9] = 1.0
    near(torch.softmax(hidden.to(DEVICE), 1), torch.softmax(hidden, 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_softmax_and_its_gradient(log, dtype):
    if not has(dtype):
        pytest.skip("the device has no float64")
    name = "_log_softmax" if log else "_softmax"
    function = F.log_softmax if log else F.softmax
    for shape, dim in (((5,), 0), ((3, 7), 1), ((4, 6, 9), 1), ((2, 1025), 1), ((3, 5000), -1), ((500, 30), 0),
                       ((2, 3, 257), 2), ((2, 70, 300), 1), ((9, 513), 0)):  # fmt: skip
        x = (torch.randn(shape) * 4).to(dtype)
        grad = torch.randn(shape).to(dtype)
        meant = x.double().clone().requires_grad_()
        there = x.to(DEVICE).requires_grad_()
        got = only_compiled(lambda: function(there, dim), name)  # noqa: B023
        want = function(meant, dim)
        near(got.detach(), want.detach().to(dtype), (shape, dim), scale=5)
        want.backward(grad.double())
        only_compiled(lambda: got.backward(grad.to(DEVICE)), f"{name}_backward_data")  # noqa: B023
        near(there.grad, meant.grad.to(dtype), (shape, dim), scale=10)


def test_results_go_where_they_are_asked_to():
    t = torch.randn(6, 5, 4)
    for function, more in ((torch.sum, {"dim": 1}), (torch.amax, {"dim": (0, 2)}), (torch.mean, {"dim": (1,)})):
        want = function(t, **more)
        strided = torch.empty(*want.shape, 2, device=DEVICE)[..., 0]
        for out in (torch.empty(0, device=DEVICE), torch.empty_like(want, device=DEVICE), strided):
            stride = out.stride()
            assert function(t.to(DEVICE), **more, out=out) is out
            torch.testing.assert_close(out.cpu(), want) if not simulate.active() else None
            assert out.stride() == (stride if stride != (0,) and len(stride) == want.dim() else want.stride())
    inside = torch.randn(3, 4, device=DEVICE)
    kept = inside.cpu()
    torch.sum(inside, 0, out=inside[0])
    if not simulate.active():
        torch.testing.assert_close(inside[0].cpu(), kept.sum(0))


def test_what_is_no_reduction_is_said_as_torch_says_it():
    t = torch.randn(3, 4, device=DEVICE)
    for call, words in (
        (lambda: t.sum(2), "out of range"),
        (lambda: t.sum((0, 0)), "appears multiple times"),
        (lambda: t.int().mean(), "dtype"),
        (lambda: t[:0].amax(), "amax"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=words):
            call()
    near(t[:0].sum(), torch.tensor(0.0))
    near(t[:0].sum(0), torch.zeros(4))


def test_every_operator_of_the_table_is_compiled():
    assert {registry.resolve(f"aten::{name}") for name in reductions.TABLE} == {"compiled"}


def test_a_new_size_compiles_nothing():
    from anyxpu.ops import prepared

    def some(m, n):
        t = torch.randn(m, n, device=DEVICE)
        return t.sum(1), t.sum(0), t.sum(), torch.softmax(t, 1)

    some(300, 600)
    before = prepared.compiled()
    for _ in range(4):
        some(random.randint(257, 400), random.randint(513, 1024))
    assert prepared.compiled() == before


@pytest.mark.not_simulated("it builds for the CPU device")
def test_what_was_built_just_now_is_given_once_and_for_its_device_alone():
    if lib().properties(0).type != "cpu":
        pytest.skip("a GPU's native code is chosen among several builds")
    build = "__kernel void kernel_built_now(__global float* x) { x[0] = 1; }"
    code = driver.native_code(build, "-cl-std=CL3.0", "built_now", 1)
    assert driver.take_built(1, code) is None  # another device's, and now it is gone
    code = driver.native_code(build, "-cl-std=CL3.0", "built_now", 1)
    assert driver.take_built(0, code + b" ") is None
    code = driver.native_code(build, "-cl-std=CL3.0", "built_now", 1)
    module = driver.take_built(0, code)
    assert module.kernel("kernel_built_now") and bytes(module.native()) == code
    assert driver.take_built(0, code) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_what_nothing_comes_to_is_the_cpus_and_no_hosts(dtype):
    """Sums, products, means and norms of no elements, and of some along other dimensions; refusals as on the CPU."""
    hosted = set()
    for shape in ((0,), (0, 5), (3, 0), (2, 0, 4)):
        x = torch.empty(shape).to(dtype)
        dims = [(), *((d, keep) for d in range(len(shape)) for keep in (False, True))]
        calls = [
            (name, lambda t, n=name, d=d: getattr(t, n)(*d)) for name in ("sum", "prod", "any", "all") for d in dims
        ]
        calls += [
            (name, lambda t, n=name, d=d: getattr(t, n)(d)) for name in ("amax", "amin") for d in range(len(shape))
        ]
        if dtype.is_floating_point:
            calls += [("mean", lambda t, d=d: t.mean(*d)) for d in dims]
            for d in range(len(shape)):
                calls += [("norm", lambda t, p=p, d=d: torch.linalg.vector_norm(t, p, d)) for p in (2, 1, 0, 3, -1)]
                calls += [("softmax", lambda t, d=d: t.softmax(d)), ("log_softmax", lambda t, d=d: t.log_softmax(d))]
        for name, call in calls:
            try:
                want = call(x)
            except (IndexError, RuntimeError) as error:
                with pytest.raises(type(error)):
                    call(x.to(DEVICE))
                continue
            anyxpu.ops.reset_counters()
            got = call(x.to(DEVICE))
            hosted |= {op for op, ways in anyxpu.ops.counters().items() if "host" in ways}
            near(got, want, (name, shape, dtype))
    assert hosted <= {"aten::linalg_vector_norm"}  # of an order below 0


@pytest.mark.not_simulated("there the host serves nothing meanwhile")
def test_norms_and_variances_have_their_digits_from_the_first_call(run_python, tmp_path):
    """The host adds a norm's squares one after the other, and would be 1e-4 off; a variance it may serve at first."""
    source = """
    import torch, anyxpu.ops
    x = torch.rand(1 << 22) - 0.25
    there, wide = x.to("xpu"), x.double()
    norm = torch.linalg.vector_norm
    for ours, exact in (
        (there.var(), wide.var()), (there.std(), wide.std()), (norm(there), norm(wide)),
        (norm(there, 1), norm(wide, 1)), (norm(there, 3), norm(wide, 3)), (torch._foreach_norm([there])[0], norm(wide)),
    ):
        print(abs(ours.item() - exact.item()) <= 1e-6 * exact.item())
    """
    (tmp_path / "build").symlink_to(cache_dir("build"))
    done = run_python(source, ANYXPU_EAGER="auto", ANYXPU_CACHE_DIR=str(tmp_path))
    assert done.stdout.split() == ["True"] * 6


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.3, 1e15])
def test_equal_numbers_have_no_variance_and_their_mean_is_exact(value):
    for x in (torch.full((4190,), value), torch.full((3, 70_000), value)):
        for dim in (None, [-1]):
            variance, mean = torch.var_mean(x.to(DEVICE), dim)
            assert variance.count_nonzero() == 0 and (mean.cpu() == x.flatten()[0]).all()
    for x in ([1.0, float("inf")], [float("nan"), 1.0]):
        ours, theirs = torch.var_mean(torch.tensor(x, device=DEVICE)), torch.var_mean(torch.tensor(x))
        torch.testing.assert_close([t.cpu() for t in ours], list(theirs), equal_nan=True)
