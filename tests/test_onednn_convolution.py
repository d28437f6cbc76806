"""Convolutions on xpu by oneDNN, against float64, torch's own layout prediction and CPU torch's errors."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import anyxpu.ops
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

aten = torch.ops.aten
BOUND = {torch.float32: 4e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def random_case(spatial: int, transposed: bool, dtype: torch.dtype):
    """Operands and geometry of a convolution that is valid."""
    while True:
        groups = random.choice((1, 1, 2, 4))
        into, out = random.choice((4, 8, 12, 16)), random.choice((4, 8, 24))
        kernel, stride, padding, dilation = (
            [random.choice(choices) for _ in range(spatial)] for choices in ((1, 2, 3), (1, 1, 2, 3), (0, 1, 2), (1, 2))
        )
        extra = [random.randrange(max(s, d)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
        sizes = [random.choice((5, 8, 11)) for _ in range(spatial)]
        source = torch.randn(random.choice((1, 3)), into, *sizes).to(dtype)
        weight = torch.randn((into, out // groups, *kernel) if transposed else (out, into // groups, *kernel)).to(dtype)
        bias = random.choice((None, torch.randn(out).to(dtype)))
        geometry = (stride, padding, dilation, transposed, extra, groups)
        try:
            wide = [None if t is None else t.double() for t in (source, weight, bias)]
            want = aten.convolution(*wide, *geometry)
        except RuntimeError:
            continue  # torch allows no such geometry
        return source, weight, bias, geometry, want


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want).norm() / want.norm().clamp_min(1e-3))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_forward_and_both_backwards_agree_with_float64(spatial, transposed, dtype):
    for _ in range(6):
        source, weight, bias, geometry, want = random_case(spatial, transposed, dtype)
        x, w, b = source.xpu(), weight.xpu(), None if bias is None else bias.xpu()
        if spatial > 1 and random.random() < 0.5:
            x = x.to(memory_format=CHANNELS_LAST[spatial])
        got = aten.convolution(x, w, b, *geometry)
        assert got.dtype == dtype and got.shape == want.shape
        assert relative(got, want) <= BOUND[dtype], (source.shape, weight.shape, geometry)
        gradient = torch.randn(want.shape).to(dtype)
        mask = [random.random() < 0.8 for _ in range(3)]
        sizes = [want.shape[1]] if mask[2] else None
        wide = (gradient.double(), source.double(), weight.double())
        wanted = aten.convolution_backward(*wide, sizes, *geometry, mask)
        found = aten.convolution_backward(gradient.xpu(), x, w, sizes, *geometry, mask)
        for a, b in zip(found, wanted, strict=True):
            assert (a is None) == (b is None)
            assert a is None or relative(a, b) <= 2 * BOUND[dtype], (source.shape, weight.shape, geometry)


def _thinned(t: torch.Tensor) -> torch.Tensor:
    """Every second of all dimensions, so that the last row ends before the next stride would."""
    wide = torch.randn([2 * n - 1 for n in t.shape], dtype=t.dtype, device=t.device)
    return wide[(slice(None, None, 2),) * t.dim()].copy_(t)


def _interleaved(t: torch.Tensor) -> torch.Tensor:
    """The last dimension's neighbours are three apart."""
    return torch.randn(*t.shape, 3, dtype=t.dtype, device=t.device)[..., 1].copy_(t)


def _turned(t: torch.Tensor) -> torch.Tensor:
    return t.movedim(-1, 0).contiguous().movedim(0, -1)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("lie", [_thinned, _interleaved, _turned])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_operands_may_lie_in_any_way(spatial, transposed, lie, dtype):
    """oneDNN has no name for the first way; which operands lie so is drawn, one at least."""
    source, weight, bias, geometry, want = random_case(spatial, transposed, dtype)
    gradient = torch.randn(want.shape).to(dtype)
    chosen = random.choice([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
    pairs = zip((source, weight, gradient), chosen, strict=True)
    x, w, g = (lie(t.xpu()) if odd else t.xpu() for t, odd in pairs)
    got = aten.convolution(x, w, None if bias is None else bias.xpu(), *geometry)
    assert relative(got, want) <= BOUND[dtype], (source.shape, weight.shape, geometry)
    mask = [True, True, True]
    wide = gradient.double(), source.double(), weight.double(), [want.shape[1]]
    wanted = aten.convolution_backward(*wide, *geometry, mask)
    found = aten.convolution_backward(g, x, w, [want.shape[1]], *geometry, mask)
    assert all(relative(f, e) <= 2 * BOUND[dtype] for f, e in zip(found, wanted, strict=True)), (chosen, geometry)


def test_windows_that_overlap_are_a_source():
    """Pieces of a signal that share three quarters of their samples, as of speech."""
    signal, weight = torch.randn(3, 250), torch.randn(8, 31, 5)
    want = F.conv1d(signal.double().unfold(-1, 40, 7), weight.double())
    assert relative(F.conv1d(signal.xpu().unfold(-1, 40, 7), weight.xpu()), want) <= BOUND[torch.float32]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_results_of_width_1_are_whole_whatever_the_stride_is(dtype):
    """As of a text's convolution over all of its width; of bfloat16 oneDNN wrote the first row alone, with AMX."""
    for channels, kernel, stride, more in ((12, (3, 3), (1, 2), 0), (3, (1, 5), (1, 3), 2), (64, (2, 3), (2, 2), 1)):
        source = torch.randn(2, channels, 11, kernel[1] + more).to(dtype)
        weight = torch.randn(8, channels, *kernel).to(dtype)
        geometry = (list(stride), [0, 0], [1, 1], False, [0, 0], 1)
        want = aten.convolution(source.double(), weight.double(), None, *geometry)
        before = torch.full((want.numel(),), float("nan"), dtype=dtype, device="xpu")
        del before
        assert relative(aten.convolution(source.xpu(), weight.xpu(), None, *geometry), want) <= BOUND[dtype]
        gradient = torch.randn(want.shape).to(dtype)
        wanted = aten.convolution_backward(
            gradient.double(), source.double(), weight.double(), None, *geometry, [True, True, False]
        )
        found = aten.convolution_backward(
            gradient.xpu(), source.xpu(), weight.xpu(), None, *geometry, [True, True, False]
        )
        assert all(relative(f, w) <= 2 * BOUND[dtype] for f, w in zip(found[:2], wanted[:2], strict=True))


# Kernel, stride, padding, dilation, output padding: strides that leap over the kernel, and ends that it does not reach.
GAPS = (
    ((2, 1, 2), (1, 2, 2), (2, 0, 2), (1, 1, 1), (0, 0, 1)),
    ((2, 2, 2), (2, 3, 3), (0, 1, 0), (1, 2, 2), (1, 0, 2)),
    ((2, 3, 2), (1, 3, 2), (0, 1, 1), (1, 1, 1), (0, 2, 1)),
    ((2, 1), (2, 3), (0, 0), (2, 1), (0, 0)),
    ((1,), (3,), (0,), (1,), (1,)),
)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_results_that_no_element_of_the_source_reaches_are_the_bias(dtype, bias):
    """On a CPU with AMX oneDNN's kernels for 16 bits wrote no bias there, or nothing at all."""
    for kernel, stride, padding, dilation, extra in GAPS:
        for layout in (torch.contiguous_format, CHANNELS_LAST.get(len(kernel), torch.contiguous_format)):
            source = torch.randn(1, 16, *(5, 11, 8)[: len(kernel)]).to(dtype)
            weight = torch.randn(16, 8, *kernel).to(dtype)
            added = torch.randn(8).to(dtype) + 3 if bias else None
            geometry = (*map(list, (stride, padding, dilation)), True, list(extra), 1)
            want = aten.convolution(source.double(), weight.double(), added.double() if bias else None, *geometry)
            # What was there before is no number: what is not written shows.
            before = torch.full((want.numel(),), float("nan"), dtype=dtype, device="xpu")
            del before
            there = source.xpu().contiguous(memory_format=layout), weight.xpu(), added.xpu() if bias else None
            assert relative(aten.convolution(*there, *geometry), want) <= BOUND[dtype], (kernel, stride)
            made = torch.ops.mkldnn._convolution_transpose_pointwise(
                *there, padding, extra, stride, dilation, 1, "sigmoid", [], None
            )
            assert relative(made, want.sigmoid()) <= BOUND[dtype], (kernel, stride)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "weight channels_last", "sliced", "expanded"])
@pytest.mark.parametrize("shape", [(2, 8, 9, 9), (2, 1, 9, 9), (1, 8, 1, 1), (2, 8, 5, 5, 5)], ids=str)
def test_results_have_the_strides_that_fake_tensors_predict(layout, shape):
    spatial = len(shape) - 2
    x, w = torch.randn(shape, device="xpu"), torch.randn(6, shape[1], *(1,) * spatial, device="xpu")
    if layout == "channels_last":
        x = x.to(memory_format=CHANNELS_LAST[spatial])
    elif layout == "weight channels_last":
        w = torch.randn(6, shape[1], *(3,) * spatial, device="xpu").to(memory_format=CHANNELS_LAST[spatial])
    elif layout == "sliced":
        x = torch.randn(2 * shape[0], *shape[1:], device="xpu")[::2]
    elif layout == "expanded":
        x = torch.randn(1, *shape[1:], device="xpu").expand(shape)
    geometry = ([1] * spatial, [1] * spatial, [1] * spatial, False, [0] * spatial, 1)
    got = aten.convolution(x, w, None, *geometry)
    gradient = torch.randn_like(got)
    grads = aten.convolution_backward(gradient, x, w, [6], *geometry, [True] * 3)
    with FakeTensorMode() as mode:
        fake_x, fake_w, fake_gradient = (mode.from_tensor(t) for t in (x, w, gradient))
        want = aten.convolution(fake_x, fake_w, None, *geometry)
        wanted = aten.convolution_backward(fake_gradient, fake_x, fake_w, [6], *geometry, [True] * 3)
    for real, fake in zip((got, *grads), (want, *wanted), strict=True):
        assert (real.shape, real.stride()) == (fake.shape, fake.stride())
    reference = aten.convolution(x.cpu().double(), w.cpu().double(), None, *geometry)
    assert relative(got, reference) <= BOUND[torch.float32]


def test_module_training_step_stays_on_the_device():
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(3, 8, 3, padding=1)
    mirror = torch.nn.Conv2d(3, 8, 3, padding=1, device="xpu")
    mirror.load_state_dict(layer.state_dict())
    source, gradient = torch.randn(2, 3, 10, 10), torch.randn(2, 8, 10, 10)
    x, y = source.clone().requires_grad_(), source.xpu().requires_grad_()
    g = gradient.xpu()
    layer(x).backward(gradient)
    anyxpu.ops.reset_counters()
    mirror(y).backward(g)
    served = anyxpu.ops.counters()
    assert served["aten::convolution_overrideable"] == {"library": 1}
    assert served["aten::convolution_backward_overrideable"] == {"library": 1}
    assert not [name for name, ways in served.items() if "host" in ways]
    for got, want in ((y.grad, x.grad), (mirror.weight.grad, layer.weight.grad), (mirror.bias.grad, layer.bias.grad)):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


CPU_ERRORS = {
    "channels": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 2, 3, 3)),
    "bias": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), t(5)),
    "kernel larger than input": lambda t: F.conv2d(t(1, 3, 2, 2), t(4, 3, 3, 3)),
    "groups": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), groups=3),
    "negative padding": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), padding=-1),
    "stride of zero": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), stride=0),
    "rank": lambda t: F.conv2d(t(1, 3, 8), t(4, 3, 3)),
    "transposed channels": lambda t: F.conv_transpose2d(t(1, 3, 8, 8), t(4, 3, 3, 3)),
    "two dtypes": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3, dtype=torch.bfloat16)),
    "bool": lambda t: F.conv2d(t(1, 3, 8, 8, dtype=torch.bool), t(4, 3, 3, 3, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", CPU_ERRORS)
def test_bad_operands_raise_what_the_cpu_raises(name):
    def failure(device: str) -> BaseException:
        with pytest.raises(Exception) as caught:
            CPU_ERRORS[name](lambda *shape, dtype=None: torch.zeros(shape, dtype=dtype, device=device))
        return caught.value

    on_cpu, here = failure("cpu"), failure("xpu")
    assert type(here) is type(on_cpu)
    assert str(here).splitlines()[0] == str(on_cpu).splitlines()[0]


def test_mixed_devices_are_refused():
    x, w = torch.zeros(1, 3, 8, 8, device="xpu"), torch.zeros(4, 3, 3, 3)
    with pytest.raises(RuntimeError, match=r"same device|should be the same"):
        F.conv2d(x, w)
    with pytest.raises(RuntimeError, match=r"same device|should be the same"):
        F.conv2d(x.cpu(), w.xpu())


@pytest.mark.not_simulated("oneDNN has float64 on GPUs that compute in it (test_onednn_gpu.py)")
def test_dtypes_that_onednn_lacks_go_to_the_host_by_name():
    x, w = torch.randn(1, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    anyxpu.ops.reset_counters()
    got = F.conv2d(x.xpu(), w.xpu(), padding=1)
    torch.testing.assert_close(got.cpu(), F.conv2d(x, w, padding=1))
    assert any("host" in ways for name, ways in anyxpu.ops.counters().items() if "conv" in name)
    ((fallback, times),) = anyxpu.ops.fallbacks().items()
    assert (fallback.primitive, fallback.instead, times) == ("convolution", "host", 1) and fallback.reason


def test_double_backward():
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)

    def second(device: str) -> list[torch.Tensor]:
        a, b = (t.to(device).requires_grad_() for t in (x, w))
        first = torch.autograd.grad(F.conv2d(a, b, padding=1).pow(2).sum(), (a, b), create_graph=True)
        return [g.cpu() for g in torch.autograd.grad(sum(g.pow(2).sum() for g in first), (a, b))]

    for got, want in zip(second("xpu"), second("cpu"), strict=True):
        assert relative(got, want.double()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_results_have_the_predicted_layout_wherever_they_are_computed(dtype):
    # float64 is the host's on the CPU, whose own layouts for channels-last volumes are others.
    x = torch.randn(2, 4, 5, 6, 7, dtype=dtype, device="xpu").to(memory_format=torch.channels_last_3d)
    w = torch.randn(8, 4, 2, 2, 2, dtype=dtype, device="xpu")
    geometry = ([1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)

    def work(x, w):
        result = aten.convolution(x, w, None, *geometry)
        return result, *aten.convolution_backward(torch.ones_like(result), x, w, None, *geometry, [True, True, False])[
            :2
        ]

    with FakeTensorMode() as mode:
        predicted = [t.stride() for t in work(mode.from_tensor(x), mode.from_tensor(w))]
    assert [t.stride() for t in work(x, w)] == predicted


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_weights_gradient_lies_as_the_weight_does_and_is_not_copied(layout, compiled) -> None:
    source = torch.randn(2, 8, 9, 9, device="xpu").to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(8, 6, 3, padding=1, device="xpu").to(memory_format=layout)
    call = torch.compile(layer) if compiled else layer
    for _ in range(2):
        layer.zero_grad()
        out = call(source)
        anyxpu.ops.reset_counters()
        out.backward(torch.ones_like(out))
    assert layer.weight.grad.stride() == layer.weight.stride()
    assert "aten::copy_" not in anyxpu.ops.counters()
    expected = torch.nn.grad.conv2d_weight(
        source.cpu().double(), (6, 8, 3, 3), torch.ones(out.shape).double(), padding=1
    )
    torch.testing.assert_close(layer.weight.grad.cpu().double(), expected, rtol=1e-4, atol=1e-4)


def test_a_compiled_backward_permutes_nothing() -> None:
    from torch._inductor.utils import run_fw_bw_and_get_code

    layers = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, bias=False, device="xpu") for _ in range(2)))
    source = torch.randn(2, 8, 9, 9, device="xpu").to(memory_format=torch.channels_last).requires_grad_()
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        _, (_, backward) = run_fw_bw_and_get_code(lambda: torch.compile(layers)(source))
    calls = backward[backward.index("def call(") :]
    assert calls.count("convolution_backward.default(") == 2 and "triton_" not in calls, calls
