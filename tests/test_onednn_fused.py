"""Convolutions with what follows them as one primitive: what Inductor makes of frozen graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu.onednn import functions
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN needs the sycl driver, and the operators a torch that has them",
)

mkldnn = torch.ops.mkldnn
BOUND = {torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
UNARY = {
    ("none", (), None): lambda x: x,
    ("relu", (), None): F.relu,
    ("leaky_relu", (0.3,), None): lambda x: F.leaky_relu(x, 0.3),
    ("sigmoid", (), None): torch.sigmoid,
    ("tanh", (), None): torch.tanh,
    ("hardswish", (), None): F.hardswish,
    ("hardsigmoid", (), None): F.hardsigmoid,
    ("hardtanh", (-0.2, 0.7), None): lambda x: F.hardtanh(x, -0.2, 0.7),
    ("swish", (), None): F.silu,
    ("elu", (0.7,), None): lambda x: F.elu(x, 0.7),
    ("mish", (), None): F.mish,
    ("gelu", (), "none"): F.gelu,
    ("gelu", (), "tanh"): lambda x: F.gelu(x, approximate="tanh"),
}


def widened(dtype: torch.dtype) -> set[str]:
    """What may stand in for oneDNN's own: float32, for types that this CPU has no instructions for."""
    on_cpu = lib().properties(0).type == "cpu"
    lacking = on_cpu and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return {"float32"} if dtype == torch.float16 or lacking else set()


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want).norm() / want.norm())


def operands(spatial: int, dtype: torch.dtype, channels_last: bool):
    """Source, weight and bias on the CPU in float64 and on xpu, with values of either sign where functions bend."""
    wide = [torch.randn(shape).to(dtype).double() for shape in ((2, 8, *[9] * spatial), (12, 4, *[3] * spatial), (12,))]
    narrow = [t.to(dtype).xpu() for t in wide]
    if channels_last:
        narrow[0] = narrow[0].to(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[spatial])
    return wide, narrow


def steps(spatial: int):
    """Padding, stride, dilation, groups."""
    return [1] * spatial, [2] * spatial, [1] * spatial, 2


def convolve(spatial: int, x, w, b):
    padding, stride, dilation, groups = steps(spatial)
    return (F.conv2d, F.conv3d)[spatial - 2](x, w, b, stride, padding, dilation, groups)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("unary", UNARY, ids=str)
def test_a_function_of_a_convolution(unary, dtype):
    for spatial, channels_last, with_bias in ((2, True, True), (2, False, False), (3, True, False)):
        (x, w, b), (y, v, c) = operands(spatial, dtype, channels_last)
        anyxpu.ops.reset_counters()
        name, scalars, algorithm = unary
        rest = (*steps(spatial), name, scalars, algorithm)
        got = mkldnn._convolution_pointwise(y, v, c if with_bias else None, *rest)
        assert anyxpu.ops.counters()["mkldnn::_convolution_pointwise"] == {"library": 1}
        # A CPU without AVX512_FP16 has no float16.
        assert {f.instead for f in anyxpu.ops.fallbacks()} <= widened(dtype)
        want = UNARY[unary](convolve(spatial, x, w, b if with_bias else None))
        assert got.dtype == dtype and got.shape == want.shape
        assert got.is_contiguous() != channels_last
        assert relative(got, want) < BOUND[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("unary", UNARY, ids=str)
@pytest.mark.parametrize("short", (False, True), ids=("long", "short"))
def test_with_short_registers_those_are_kernels_that_onednn_is_slow_at(short, unary, dtype, monkeypatch):
    monkeypatch.setattr(functions, "has_short_vectors", lambda device: short)
    called, apply = [], functions.apply
    monkeypatch.setattr(functions, "apply", lambda function, x: called.append(function) or apply(function, x))
    x, w = torch.randn(3 + short, 8, 7, 7).to(dtype), torch.randn(12, 8, 3, 3).to(dtype)  # as no other test has
    name, scalars, algorithm = unary
    for channels_last in (True, False):
        y = x.xpu().to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        rest = ([1, 1], [1, 1], [1, 1], 1, name, scalars, algorithm)
        got = mkldnn._convolution_pointwise(y, w.xpu(), None, *rest)
        want = UNARY[unary](F.conv2d(x.double(), w.double(), padding=1))
        assert relative(got, want) < BOUND[dtype] and got.is_contiguous() != channels_last
    assert bool(called) == (short and name in ("swish", "tanh", "gelu"))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("unary", UNARY, ids=str)
def test_a_function_of_a_transposed_convolution(unary, dtype):
    name, scalars, algorithm = unary
    for spatial, channels_last in ((2, True), (2, False), (3, False)):
        shapes = ((2, 8, *[5] * spatial), (8, 3, *[3] * spatial), (6,))
        x, w, b = (torch.randn(shape).to(dtype).double() for shape in shapes)
        y, v, c = (t.to(dtype).xpu() for t in (x, w, b))
        if channels_last:
            y = y.to(memory_format=torch.channels_last)
        padding, extra, stride, dilation, groups = [1] * spatial, [1] * spatial, [2] * spatial, [1] * spatial, 2
        transposed = (F.conv_transpose2d, F.conv_transpose3d)[spatial - 2]
        want = UNARY[unary](transposed(x, w, b, stride, padding, extra, groups, dilation))
        rest = (padding, extra, stride, dilation, groups, name, scalars, algorithm)
        got = mkldnn._convolution_transpose_pointwise(y, v, c, *rest)
        assert got.dtype == dtype and got.shape == want.shape
        assert relative(got, want) < BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("unary", [(None, (), None), ("relu", (), None)], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
def test_something_added_to_a_convolution(channels_last, unary, dtype):
    (x, w, b), (y, v, c) = operands(2, dtype, channels_last)
    base = convolve(2, x, w, b)
    added = torch.randn(base.shape).to(dtype)
    other = added.xpu().to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    for alpha in (None, 0.5):
        want = base + (1.0 if alpha is None else alpha) * added.double()
        want = want.relu() if unary[0] else want
        rest = (v, c, *steps(2), "add", alpha, *unary)
        got = mkldnn._convolution_pointwise.binary(y, other, *rest)
        assert relative(got, want) < BOUND[dtype]
        assert torch.equal(other.cpu(), added)
        same = other.clone()
        assert mkldnn._convolution_pointwise_.binary(same, y, *rest) is same
        assert relative(same, want) < BOUND[dtype]
    assert "mkldnn::_convolution_pointwise.binary" in anyxpu.ops.counters()


def test_what_one_primitive_does_not_do_is_done_one_by_one_and_named():
    (x, w, b), (y, v, c) = operands(2, torch.float32, True)
    anyxpu.ops.reset_counters()
    row = torch.randn(12, 1, 1)
    got = mkldnn._convolution_pointwise.binary(y, row.xpu(), v, c, *steps(2), "add", None, "relu", [], None)
    assert relative(got, (convolve(2, x, w, b) + row.double()).relu()) < BOUND[torch.float32]
    wide = [t.double().xpu() for t in (x, w, b)]
    got = mkldnn._convolution_pointwise(*wide, *steps(2), "gelu", [], "none")
    assert relative(got, F.gelu(convolve(2, x, w, b))) < 1e-12
    assert {f.instead for f in anyxpu.ops.fallbacks()} >= {"composed"}
    with pytest.raises(ValueError, match="no function 'cosh' after a convolution"):
        mkldnn._convolution_pointwise(y, v, c, *steps(2), "cosh", [], None)


@pytest.mark.rotates(2)
def test_a_frozen_graph_needs_no_host(run_python, tmp_path):
    done = run_python(
        """
        import torch, anyxpu.ops
        from torch import nn

        torch._inductor.config.freezing = True

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

            def forward(self, x):
                y = self.a(x).relu()
                return nn.functional.silu(self.b(y) + y)

        net, x = Net().eval(), torch.randn(2, 3, 10, 10)
        with torch.no_grad():
            want = net.double()(x.double())
            net.float().xpu()
            compiled = torch.compile(net)
            compiled(x.xpu())
            anyxpu.ops.reset_counters()
            got = compiled(x.xpu())
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-5)
        ways = anyxpu.ops.counters()
        print(sorted(name for name, served in ways.items() if "host" in served))
        print(sum(served.get("library", 0) for name, served in ways.items() if name.startswith("mkldnn::")) >= 2)
        """,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
    )
    assert done.stdout.splitlines() == ["[]", "True"]
