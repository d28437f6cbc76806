"""Products and convolutions of 8-bit numbers as one primitive: what Inductor makes of quantized models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anyxpu.ops
from anyxpu import simulate
from anyxpu.onednn import fallbacks, quantized_plans
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN needs the sycl driver, and the operators a torch that has them",
)

onednn = torch.ops.onednn
BYTES = (torch.uint8, torch.int8)
RESULTS = (*BYTES, torch.float32, torch.bfloat16)
UNARY = {
    "none": ([], "", lambda x: x),
    "relu": ([], "", F.relu),
    "gelu": ([], "tanh", lambda x: F.gelu(x, approximate="tanh")),
    "hardtanh": ([-1.5, 2.0], "", lambda x: F.hardtanh(x, -1.5, 2.0)),
    "hardswish": ([], "", F.hardswish),
    "swish": ([], "", F.silu),
}
SCALE, POINT = 0.013, 7
"""Of the activations."""


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype)


def weights(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weight, its scales and its zero points."""
    return numbers(torch.int8, *shape), torch.rand(shape[0]) * 0.004 + 1e-3, torch.zeros(shape[0], dtype=torch.int32)


def result_factors(dtype: torch.dtype) -> tuple[float, int]:
    """Scale and zero point of a result."""
    return (0.09, 5) if dtype in BYTES else (1.0, 0)


def meant(x: torch.Tensor, scale: float | torch.Tensor = SCALE, point: int = POINT) -> torch.Tensor:
    """What quantized numbers stand for."""
    return (x.double() - point) * scale


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare a result with the float64 value that it stands for."""
    assert got.shape == want.shape
    got_, dtype = got.cpu(), got.dtype
    if dtype in BYTES:
        limits, (scale, point) = torch.iinfo(dtype), result_factors(dtype)
        exact = (want / scale + point).clamp(limits.min, limits.max)
        # A half that float32 does not hit is rounded either way.
        assert float((got_.double() - exact).abs().max()) < 0.5 + 1e-3
    else:
        bound = 1e-5 if dtype == torch.float32 else 8e-3
        assert float((got_.double() - want).norm() / want.norm()) < bound


@pytest.fixture
def one_primitive():
    """Every call in the test is oneDNN's as it comes, on a device whose oneDNN is known to have it."""
    fallbacks.reset()
    yield
    # Without VNNI oneDNN's sums are wrong, so that there none of them is its own; for no other reason anywhere.
    known = set() if torch.cpu._is_vnni_supported() else {quantized_plans.SATURATES}
    assert simulate.active() or {f.reason for f in fallbacks.seen()} <= known


def linear(x, weight, bias, dtype, unary="none", point=POINT, as_tensors=False):
    """The operator on xpu."""
    w, scales, points = (t.xpu() for t in weight)
    scalars, algorithm, _ = UNARY[unary]
    scale = torch.tensor(SCALE) if as_tensors else SCALE
    zero = torch.tensor(point, dtype=torch.int32) if as_tensors else point
    operator = onednn.qlinear_pointwise.tensor if as_tensors else onednn.qlinear_pointwise.default
    packed = onednn.qlinear_prepack(w, None)
    bias = None if bias is None else bias.xpu()
    rest = (*result_factors(dtype), dtype, unary, scalars, algorithm)
    return operator(x.xpu(), scale, zero, packed, scales, points, bias, *rest)


@pytest.mark.usefixtures("one_primitive")
@pytest.mark.parametrize("unary", UNARY)
@pytest.mark.parametrize("dtype", RESULTS, ids=str)
@pytest.mark.parametrize("source", BYTES, ids=str)
def test_a_linear_layer(source, dtype, unary):
    weight, bias = weights(31, 67), torch.randn(31)
    wide = meant(weight[0], weight[1].double()[:, None], 0)
    for shape, point, with_bias in (((5, 67), POINT, True), ((2, 3, 67), 0, False), ((67,), POINT, True)):
        x = numbers(source, *shape)
        want = UNARY[unary][2](F.linear(meant(x, point=point), wide, bias.double() if with_bias else None))
        for as_tensors in (False, True):
            got = linear(x, weight, bias if with_bias else None, dtype, unary, point, as_tensors)
            assert got.dtype == dtype
            check(got, want)


@pytest.mark.usefixtures("one_primitive")
def test_scales_on_the_device_are_not_waited_for(monkeypatch):
    """As dynamic quantization gives them."""
    x, weight, bias = numbers(torch.int8, 9, 64), weights(32, 64), torch.randn(32)
    w, scales, points = (t.xpu() for t in weight)
    scale, point = torch.tensor([SCALE]).xpu(), torch.tensor([POINT]).xpu()
    args = (onednn.qlinear_prepack(w, None), scales, points, bias.xpu(), 1.0, 0, torch.float32, "relu", [], "")
    source = x.xpu()
    onednn.qlinear_pointwise.tensor(source, scale, point, *args)
    monkeypatch.setattr(torch.Tensor, "item", None)
    got = onednn.qlinear_pointwise.tensor(source, scale, point, *args)
    monkeypatch.undo()
    check(got, F.relu(F.linear(meant(x), meant(weight[0], weight[1].double()[:, None], 0), bias.double())))


@pytest.mark.usefixtures("one_primitive")
@pytest.mark.parametrize("dtype", RESULTS, ids=str)
@pytest.mark.parametrize("operator", ("add", "sum"))
def test_something_added_to_a_linear_layer(operator, dtype):
    x, weight, bias = numbers(torch.uint8, 6, 40), weights(24, 40), torch.randn(24)
    w, scales, points = (t.xpu() for t in weight)
    # add takes floating point of any width; sum overwrites what has the result's dtype.
    kinds = (dtype,) if operator == "sum" else (torch.float32, torch.bfloat16)
    for kind in kinds:
        eight = kind in BYTES
        other = numbers(kind, 6, 24) if eight else torch.randn(6, 24).to(kind)
        scale, point = (0.05, 3) if eight else (1.0, 0)
        product = F.linear(meant(x), meant(weight[0], weight[1].double()[:, None], 0), bias.double())
        want = F.relu(product + meant(other, scale, point))
        target = other.xpu()
        got = onednn.qlinear_pointwise.binary(
            *(x.xpu(), SCALE, POINT, onednn.qlinear_prepack(w, None), scales, points, target, bias.xpu()),
            *(*result_factors(dtype), dtype, scale, point, operator, 1.0, "relu", [], ""),
        )
        assert (got.data_ptr() == target.data_ptr()) == (operator == "sum")
        check(got, want)
        if operator == "add":
            assert torch.equal(target.cpu(), other)


def steps(spatial: int) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding, dilation."""
    return [2] * spatial, [1] * spatial, [1] * spatial


def convolve(spatial, x, w, bias, groups):
    return (F.conv1d, F.conv2d, F.conv3d)[spatial - 1](x, w, bias, *steps(spatial), groups)


@pytest.mark.usefixtures("one_primitive")
@pytest.mark.parametrize("dtype", RESULTS, ids=str)
@pytest.mark.parametrize("source", BYTES, ids=str)
@pytest.mark.parametrize("spatial", (1, 2, 3))
def test_a_convolution(spatial, source, dtype):
    for groups, unary, point in ((1, "relu", POINT), (4, "hardtanh", 0), (1, "none", POINT)):
        x, bias = numbers(source, 2, 8, *(9, 7, 5)[:spatial]), torch.randn(12)
        weight = weights(12, 8 // groups, *[3] * spatial)
        scalars, algorithm, function = UNARY[unary]
        wide = meant(weight[0], weight[1].double().reshape(-1, *[1] * (spatial + 1)), 0)
        # What stands outside of the image is 0, which is the zero point among quantized numbers.
        want = function(convolve(spatial, meant(x, point=point), wide, bias.double(), groups))
        named = (onednn.qconv1d_pointwise, onednn.qconv2d_pointwise.default, onednn.qconv3d_pointwise)[spatial - 1]
        for operator in (named, onednn.qconv_pointwise.tensor):
            as_tensors = operator is onednn.qconv_pointwise.tensor
            factors = (torch.tensor(SCALE), torch.tensor(point)) if as_tensors else (SCALE, point)
            w, scales, points = (t.xpu() for t in weight)
            packed = onednn.qconv_prepack(w, scales, SCALE, point, *steps(spatial), groups, None)
            rest = (*steps(spatial), groups, *result_factors(dtype), dtype, unary, scalars, algorithm)
            got = operator(x.xpu(), *factors, packed, scales, points, bias.xpu(), *rest)
            check(got, want)
            if spatial == 2:
                assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("one_primitive")
@pytest.mark.parametrize("layout", (torch.channels_last, torch.contiguous_format), ids=str)
@pytest.mark.parametrize("dtype", RESULTS, ids=str)
def test_a_convolution_added_to_what_is_there(dtype, layout):
    x, weight, bias = numbers(torch.uint8, 2, 8, 9, 7), weights(12, 8, 3, 3), torch.randn(12)
    other = numbers(dtype, 2, 12, 5, 4) if dtype in BYTES else torch.randn(2, 12, 5, 4).to(dtype)
    scale, point = (0.05, 3) if dtype in BYTES else (1.0, 0)
    wide = meant(weight[0], weight[1].double().reshape(-1, 1, 1, 1), 0)
    want = F.relu(convolve(2, meant(x), wide, bias.double(), 1) + meant(other, scale, point))
    w, scales, points = (t.xpu() for t in weight)
    target = other.xpu().contiguous(memory_format=layout)
    got = onednn.qconv2d_pointwise.binary(
        *(x.xpu(), SCALE, POINT, w, scales, points, target, bias.xpu(), *steps(2), 1, *result_factors(dtype), dtype),
        *(scale, point, "sum", 1.0, "relu", [], ""),
    )
    assert got.data_ptr() == target.data_ptr()
    check(target, want)


def test_weights_with_zero_points_and_activations_with_a_scale_a_row_are_right_too():
    x, weight = numbers(torch.int8, 6, 40), weights(24, 40)
    points = torch.randint(-9, 9, (24,), dtype=torch.int32)
    rows = torch.rand(6) * 0.01 + 1e-3
    packed = onednn.qlinear_prepack(weight[0].xpu(), None)
    args = (weight[1].xpu(), points.xpu(), None, 1.0, 0, torch.float32, "none", [], "")
    fallbacks.reset()
    got = onednn.qlinear_pointwise.tensor(x.xpu(), rows.xpu(), torch.tensor(POINT), packed, *args)
    wide = (weight[0].double() - points[:, None]) * weight[1].double()[:, None]
    check(got, F.linear(meant(x, rows.double()[:, None]), wide))
    assert sum(fallbacks.seen().values()) == 1


@pytest.mark.parametrize("counted", (True, False), ids=("by its version", "behind its version"))
def test_zero_points_that_change_are_seen(counted):
    x, (w, scales, points) = numbers(torch.uint8, 6, 40), weights(24, 40)
    device = points.xpu()
    wide, call = scales.double()[:, None], lambda: linear(x, (w, scales, device), None, torch.float32)
    for _ in range(3):
        check(call(), F.linear(meant(x), meant(w, wide, 0)))
    (device if counted else device.data).add_(3)
    check(call(), F.linear(meant(x), meant(w, wide, 3)))
    assert counted == (device._version > 0)


def test_eight_bit_floats():
    x, w = (torch.randn(*shape).to(torch.float8_e4m3fn) for shape in ((7, 64), (48, 64)))
    scales = torch.rand(48) + 0.5
    packed, points = onednn.qlinear_prepack(w.xpu(), None), torch.zeros(48, dtype=torch.int32).xpu()
    got = onednn.qlinear_pointwise(
        x.xpu(), 0.7, 0, packed, scales.xpu(), points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    check(got, F.linear(x.double() * 0.7, w.double() * scales.double()[:, None]))


@pytest.mark.parametrize("shape", ((0, 40), (3, 0)), ids=str)
def test_nothing_at_all(shape):
    weight = weights(24, shape[1])
    assert linear(numbers(torch.uint8, *shape), weight, torch.randn(24), torch.uint8).shape == (shape[0], 24)


REFUSED = {
    "int16 activations": (lambda x, w: (x.short(), w), "not torch.int16 with torch.int8"),
    "uint8 weights": (lambda x, w: (x, w.byte()), "not torch.uint8 with torch.uint8"),
    "another depth": (lambda x, w: (x[:, 1:], w), r"not \(6, 39\) and \(40, 24\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case):
    change, message = REFUSED[case]
    w, scales, points = weights(24, 40)
    x, w = change(numbers(torch.uint8, 6, 40), w)
    with pytest.raises(ValueError, match=message):
        linear(x, (w, scales, points), None, torch.uint8)
    with pytest.raises(ValueError, match="1 or 24 scales"):
        linear(numbers(torch.uint8, 6, 40), (numbers(torch.int8, 24, 40), scales[1:], points), None, torch.uint8)
    with pytest.raises(ValueError, match="a zero point of 0"):
        packed = onednn.qlinear_prepack(numbers(torch.int8, 24, 40).xpu(), None)
        source, rest = numbers(torch.uint8, 6, 40).xpu(), (2.0, 1, torch.float32, "none", [], "")
        onednn.qlinear_pointwise(source, SCALE, POINT, packed, scales.xpu(), points.xpu(), None, *rest)
    with pytest.raises(ValueError, match="no function 'cube'"):
        packed = onednn.qlinear_prepack(numbers(torch.int8, 24, 40).xpu(), None)
        source, rest = numbers(torch.uint8, 6, 40).xpu(), (2.0, 1, torch.uint8, "cube", [], "")
        onednn.qlinear_pointwise(source, SCALE, POINT, packed, scales.xpu(), points.xpu(), None, *rest)


def test_a_weight_is_packed_once_and_again_when_it_changes():
    x, (w, scales, points) = numbers(torch.uint8, 32, 256), weights(128, 256)
    device = w.xpu()
    for i in range(4):
        if i == 3:
            device.neg_()
            w = w.neg()
        got = linear(x, (device, scales, points), None, torch.float32)
        check(got, F.linear(meant(x), meant(w, scales.double()[:, None], 0)))


class Quantized(nn.Module):
    """Convolutions and linear layers between quantized numbers, as pt2e leaves them."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("c", (16, 8, 3, 3)), ("d", (16, 16, 3, 3)), ("f", (32, 16)), ("g", (32, 32))):
            weight, scales, points = weights(*shape)
            self.register_buffer(name, weight)
            self.register_buffer(f"{name}_scales", scales)
            self.register_buffer(f"{name}_points", points.long())
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(shape[0])))

    def weight(self, name: str) -> torch.Tensor:
        w, scales, points = (getattr(self, name + part) for part in ("", "_scales", "_points"))
        return torch.ops.quantized_decomposed.dequantize_per_channel(w, scales, points, 0, -128, 127, torch.int8)

    @staticmethod
    def rounded(x: torch.Tensor, scale: float, point: int) -> torch.Tensor:
        q = torch.ops.quantized_decomposed
        between = (scale, point, 0, 255, torch.uint8)
        return q.dequantize_per_tensor(q.quantize_per_tensor(x, *between), *between)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(self.rounded(x, 0.03, 120), self.weight("c"), self.c_bias, padding=1)
        x = F.relu(x)
        y = F.conv2d(self.rounded(x, 0.02, 0), self.weight("d"), self.d_bias, padding=1)
        x = y.mean((2, 3))
        x = F.linear(self.rounded(x, 0.1, 128), self.weight("f"), self.f_bias)
        x = F.gelu(x)
        return F.linear(self.rounded(x, 0.05, 9), self.weight("g"), self.g_bias)


def test_inductor_makes_them_of_a_frozen_model(no_host):
    import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed's operators
    from torch._dynamo.utils import counters
    from torch._inductor.fx_passes import quantization

    if not hasattr(quantization, "_register_qconv_weight_prepack"):
        pytest.skip("from torch 2.15 on these passes are torchao's (torchao.quantization.pt2e)")

    torch._dynamo.reset()
    model, x = Quantized().eval(), torch.randn(4, 8, 12, 12)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        want = model(x)
        counters.clear()
        model.xpu()
        compiled = torch.compile(model)
        got = compiled(x.xpu())
        anyxpu.ops.reset_counters()
        again = compiled(x.xpu())
    found = counters["inductor"]
    assert found["qconv_weight_prepack_matcher_count"] == 2
    assert found["qlinear_weight_prepack_matcher_count"] == 2
    served = anyxpu.ops.counters()
    assert served["onednn::qconv_pointwise.tensor"]["library"] == 2
    assert served["onednn::qlinear_pointwise.tensor"]["library"] == 2
    # Where float32 rounds the other way, one number of a layer is another, and what follows differs by its scale.
    assert float((got.cpu() - want).norm() / want.norm()) < 1e-2
    assert torch.equal(got.cpu(), again.cpu())
