"""Matrix products on xpu by oneDNN, against float64 and against CPU torch's errors."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import anyxpu.ops
from anyxpu.shim import lib
from anyxpu.simulate import active

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Products are accumulated in float32 at least and rounded once to the result's type; float32 sums of up to a few
# hundred terms lose some bits more. Relative, in the norm of the whole result.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def library_calls() -> dict[str, int]:
    """How often each operator went to oneDNN, and an entry ``host`` where any arithmetic ran on the host."""
    served = anyxpu.ops.counters()
    calls = {name: ways["library"] for name, ways in served.items() if "library" in ways}
    host = sorted(name for name, ways in served.items() if "host" in ways)
    return {**calls, **({"host": host} if host else {})}


@pytest.fixture
def counted():
    anyxpu.ops.reset_counters()
    return library_calls


def operand(shape, dtype, layout: str) -> torch.Tensor:
    """A CPU tensor of random numbers whose strides are as ``layout`` says."""
    last = shape[-1]
    if layout == "transposed":
        return torch.randn(*shape[:-2], last, shape[-2]).to(dtype).transpose(-1, -2)
    if layout == "stepped":
        return torch.randn(*shape[:-1], 2 * last).to(dtype)[..., ::2]
    if layout == "padded":
        return torch.randn(*shape[:-1], last + 3).to(dtype)[..., 1 : last + 1]
    if layout == "expanded":
        return torch.randn(1, *shape[1:]).to(dtype).expand(shape)
    if layout == "interleaved" and len(shape) == 3:
        return torch.randn(shape[1], shape[0], last).to(dtype).transpose(0, 1)
    return torch.randn(shape).to(dtype)


LAYOUTS = ("contiguous", "transposed", "stepped", "padded", "expanded", "interleaved")


def on_xpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, sizes and strides on xpu."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    base = torch.as_strided(tensor, (span,), (1,), tensor.storage_offset()).to("xpu")
    return torch.as_strided(base, tensor.shape, tensor.stride(), 0)


def sums(operator, c, a, b, alpha, beta) -> tuple[torch.Tensor, torch.Tensor]:
    """``beta * c + alpha * a @ b`` in float64, and the same of all magnitudes."""
    c, a, b = c.double(), a.double(), b.double()
    magnitudes = operator(c.abs(), a.abs(), b.abs(), alpha=abs(alpha), beta=abs(beta))
    return operator(c, a, b, alpha=alpha, beta=beta), magnitudes


def assert_close(got: torch.Tensor, want: torch.Tensor, scale: torch.Tensor) -> None:
    """The error relative to what the sums are made of, so that cancellation is not held against the kernel."""
    assert got.shape == want.shape
    error = (got.cpu().double() - want).norm() / scale.norm().clamp_min(1e-30)
    assert error <= BOUND[got.dtype], f"relative error {error:.2e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("layout_b", LAYOUTS)
def test_products_agree_with_float64_in_every_layout(dtype, layout_a, layout_b):
    for batch in ((), (3,)):
        m, k, n = random.choice((1, 5, 33)), random.choice((1, 7, 64)), random.choice((1, 6, 40))
        a, b = operand((*batch, m, k), dtype, layout_a), operand((*batch, k, n), dtype, layout_b)
        multiply = torch.bmm if batch else torch.mm
        got = multiply(on_xpu(a), on_xpu(b))
        assert got.is_contiguous() and got.dtype == dtype
        assert_close(got, a.double() @ b.double(), a.double().abs() @ b.double().abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha, beta", [(1, 1), (1, 0), (0.5, 1), (2, -3), (1, 0.25)])
@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 6), (5, 1), (1,), ()], ids=str)
def test_addmm_scales_and_broadcasts(dtype, alpha, beta, shape, counted):
    a, b, c = (torch.randn(s).to(dtype) for s in ((5, 9), (9, 6), shape))
    got = torch.addmm(c.xpu(), a.xpu(), b.xpu(), alpha=alpha, beta=beta)
    assert_close(got, *sums(torch.addmm, c, a, b, alpha, beta))
    assert counted() == {"aten::addmm": 1}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 6), (1, 5, 6), (5, 6), (6,), (3, 1, 1)], ids=str)
def test_baddbmm_scales_and_broadcasts(dtype, shape):
    a, b, c = (torch.randn(s).to(dtype) for s in ((3, 5, 9), (3, 9, 6), shape))
    for alpha, beta in ((1, 1), (0.125, 2)):
        got = torch.baddbmm(c.xpu(), a.xpu(), b.xpu(), alpha=alpha, beta=beta)
        assert_close(got, *sums(torch.baddbmm, c, a, b, alpha, beta))


def test_beta_zero_does_not_read_the_addend():
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    for shape in ((6,), (4, 6)):
        got = torch.addmm(torch.full(shape, float("nan"), device="xpu"), a.xpu(), b.xpu(), beta=0)
        torch.testing.assert_close(got.cpu(), a @ b)
    garbage = torch.full((4, 6), float("nan"), device="xpu")
    assert garbage.addmm_(a.xpu(), b.xpu(), beta=0) is garbage
    torch.testing.assert_close(garbage.cpu(), a @ b)


def test_in_place_forms_write_their_first_argument():
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    x = c.xpu()
    assert x.addmm_(a.xpu(), b.xpu(), alpha=2, beta=3) is x
    torch.testing.assert_close(x.cpu(), 3 * c + 2 * (a @ b))
    columns = c.t().contiguous().xpu().t()  # column-major
    columns.addmm_(a.xpu(), b.xpu())
    torch.testing.assert_close(columns.cpu(), c + a @ b)
    stepped = torch.zeros(4, 12, device="xpu")[:, ::2]
    stepped.addmm_(a.xpu(), b.xpu())
    torch.testing.assert_close(stepped.cpu(), a @ b)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "padded", "stepped"])
def test_out_keeps_its_strides(layout):
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    out = on_xpu(operand((7, 6), torch.float32, layout))
    strides, address = out.stride(), out.data_ptr()
    assert torch.mm(a.xpu(), b.xpu(), out=out) is out
    assert (out.stride(), out.data_ptr()) == (strides, address)
    torch.testing.assert_close(out.cpu(), a @ b)


def test_out_of_another_shape_is_resized_with_torchs_warning():
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    empty = torch.empty(0, device="xpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.mm(a.xpu(), b.xpu(), out=empty)
    torch.testing.assert_close(empty.cpu(), a @ b)
    other = torch.empty(2, 2, device="xpu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mm(a.xpu(), b.xpu(), out=other)
    torch.testing.assert_close(other.cpu(), a @ b)


def test_out_may_overlap_the_operands():
    a, b, c = (torch.randn(6, 6) for _ in range(3))
    x = a.xpu()
    torch.mm(x, b.xpu(), out=x)
    torch.testing.assert_close(x.cpu(), a @ b)
    x = c.xpu()
    torch.addmm(a.xpu(), x.t(), b.xpu(), out=x)
    torch.testing.assert_close(x.cpu(), a + c.t() @ b)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):  # as on the CPU, of what is added
        torch.addmm(x.t(), a.xpu(), b.xpu(), out=x)


@pytest.mark.parametrize("m, k, n", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_sizes_of_zero(m, k, n):
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
    assert torch.equal(torch.mm(a.xpu(), b.xpu()).cpu(), a @ b)
    got = torch.addmm(c.xpu(), a.xpu(), b.xpu(), beta=2)
    assert torch.equal(got.cpu(), torch.addmm(c, a, b, beta=2))
    assert torch.equal(torch.bmm(a.xpu()[None], b.xpu()[None]).cpu(), (a @ b)[None])
    assert torch.bmm(torch.empty(0, 2, 3, device="xpu"), torch.empty(0, 3, 4, device="xpu")).shape == (0, 2, 4)


def test_matrix_vector_products(counted):
    a, v, w = torch.randn(9, 7), torch.randn(7), torch.randn(9)
    x, y, z = a.xpu(), v.xpu(), w.xpu()
    torch.testing.assert_close(torch.mv(x, y).cpu(), a @ v)
    torch.testing.assert_close(torch.mv(x.t(), z).cpu(), a.t() @ w)
    torch.testing.assert_close(torch.addmv(z, x, y, alpha=2, beta=0.5).cpu(), torch.addmv(w, a, v, alpha=2, beta=0.5))
    torch.testing.assert_close(torch.dot(y, y * 1).cpu(), torch.dot(v, v))
    stepped = torch.stack([v, v], 1).xpu()[:, 0]
    torch.testing.assert_close(torch.mv(x, stepped).cpu(), a @ v)
    z.addmv_(x, y)
    torch.testing.assert_close(z.cpu(), w + a @ v)
    assert counted().get("aten::addmv", 0) + counted().get("aten::addmv_", 0) >= 4


def test_linear_layers_and_their_gradients_need_no_host_arithmetic(counted):
    torch.manual_seed(1)
    layer = torch.nn.Linear(12, 20)
    x = torch.randn(4, 6, 12)
    gradient = torch.randn(4, 6, 20)
    want = layer(x)
    want.backward(gradient)
    mirror = torch.nn.Linear(12, 20, device="xpu")
    mirror.load_state_dict(layer.state_dict())
    y, g = x.xpu(), gradient.xpu()
    anyxpu.ops.reset_counters()
    got = mirror(y)
    got.backward(g)
    calls = counted()
    assert calls.get("aten::addmm") == 1 and calls.get("aten::mm", 0) >= 1
    assert set(calls.get("host", [])) <= {"aten::sum.IntList_out", "aten::sum.dim_IntList"}  # the bias's gradient
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(mirror.weight.grad.cpu(), layer.weight.grad)


CPU_ERRORS = {
    "mm reduction": lambda t: torch.mm(t(2, 3), t(4, 5)),
    "mm of a batch": lambda t: torch.mm(t(2, 3, 3), t(4, 5)),
    "mm by a vector": lambda t: torch.mm(t(2, 3), t(4)),
    "mm of two dtypes": lambda t: torch.mm(t(2, 3), t(3, 5, dtype=torch.bfloat16)),
    "mm of bool": lambda t: torch.mm(t(2, 3, dtype=torch.bool), t(3, 5, dtype=torch.bool)),
    "mm into a wider type": lambda t: torch.mm(t(2, 3), t(3, 5), out=t(2, 5, dtype=torch.float64)),
    "mm into integers": lambda t: torch.mm(t(2, 3), t(3, 5), out=t(2, 5, dtype=torch.int32)),
    "mm into shared memory": lambda t: torch.mm(t(2, 3), t(3, 5), out=t(1, 5).expand(2, 5)),
    "addmm addend": lambda t: torch.addmm(t(2, 4), t(2, 3), t(3, 5)),
    "addmm reduction": lambda t: torch.addmm(t(2, 5), t(2, 3), t(4, 5)),
    "addmm of two dtypes": lambda t: torch.addmm(t(2, 5, dtype=torch.bfloat16), t(2, 3), t(3, 5)),
    "addmm_ of a row": lambda t: t(1, 5).addmm_(t(2, 3), t(3, 5)),
    "bmm batches": lambda t: torch.bmm(t(2, 2, 3), t(3, 3, 5)),
    "bmm reduction": lambda t: torch.bmm(t(2, 2, 3), t(2, 4, 5)),
    "bmm of matrices": lambda t: torch.bmm(t(2, 3), t(2, 4, 5)),
    "bmm of two dtypes": lambda t: torch.bmm(t(2, 2, 3), t(2, 3, 5, dtype=torch.bfloat16)),
    "baddbmm addend": lambda t: torch.baddbmm(t(3, 2, 5), t(2, 2, 3), t(2, 3, 5)),
    "baddbmm of two dtypes": lambda t: torch.baddbmm(t(2, 2, 5, dtype=torch.bfloat16), t(2, 2, 3), t(2, 3, 5)),
    "addmv": lambda t: torch.addmv(t(3), t(2, 3), t(3)),
    "mv": lambda t: torch.mv(t(2, 3), t(4)),
    "mv of two dtypes": lambda t: torch.mv(t(2, 3), t(3, dtype=torch.bfloat16)),
    "dot": lambda t: torch.dot(t(3), t(4)),
    "dot of two dtypes": lambda t: torch.dot(t(3), t(3, dtype=torch.bfloat16)),
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


@pytest.mark.parametrize("call", [torch.mm, lambda a, b: torch.addmm(a, a, b), lambda a, b: torch.mm(a, a, out=b)])
def test_mixed_devices_are_refused(call):
    a, b = torch.randn(3, 3), torch.randn(3, 3, device="xpu")
    for pair in ((a, b), (b, a)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call(*pair)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.complex128], ids=str)
def test_dtypes_that_onednn_lacks_go_to_the_host_by_name(dtype, counted):
    if dtype == torch.float64 and active() is not None:
        pytest.skip("oneDNN has float64 on GPUs that compute in it (test_onednn_gpu.py)")
    a, b = (torch.randint(-5, 5, shape).to(dtype) for shape in ((4, 5), (5, 6)))
    got = torch.mm(a.xpu(), b.xpu())
    assert torch.equal(got.cpu(), a @ b)
    assert counted() == {"host": ["aten::mm"]}
    ((fallback, times),) = anyxpu.ops.fallbacks().items()
    assert (fallback.primitive, fallback.instead, times) == ("matmul", "host", 1) and fallback.reason


@pytest.mark.parametrize("layout", ["transposed", "stepped"])
def test_float64_into_an_out_of_any_layout(layout):
    a, b, c = (torch.randn(shape, dtype=torch.float64) for shape in ((7, 5), (5, 6), (7, 6)))
    out = on_xpu(operand((7, 6), torch.float64, layout))
    strides = out.stride()
    assert torch.addmm(c.xpu(), a.xpu(), b.xpu(), alpha=0.3, beta=0.7, out=out) is out
    assert out.stride() == strides
    torch.testing.assert_close(out.cpu(), torch.addmm(c, a, b, alpha=0.3, beta=0.7))


def test_a_second_call_with_the_same_signature_builds_nothing():
    from anyxpu.onednn import matmul

    a, b = torch.randn(13, 17, device="xpu"), torch.randn(17, 19, device="xpu")
    torch.mm(a, b)
    hits, misses = matmul.CACHE.hits, matmul.CACHE.misses
    torch.mm(b.t(), a.t())  # other strides
    assert (matmul.CACHE.hits, matmul.CACHE.misses) == (hits, misses + 1)
    torch.mm(a + 1, b + 1)
    assert (matmul.CACHE.hits, matmul.CACHE.misses) == (hits + 1, misses + 1)


def test_float32_is_not_shortened_unless_asked():
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    want, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    try:
        for precision in ("highest", "high", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            got = torch.mm(a.xpu(), b.xpu())
            error = (got.cpu().double() - want).norm() / scale.norm()
            assert error < (1e-2 if precision in ("high", "medium") else BOUND[torch.float32])
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_same_operands_give_the_same_bits():
    a, b = torch.randn(150, 333, device="xpu"), torch.randn(333, 170, device="xpu")
    first = torch.mm(a, b).cpu()
    assert all(torch.equal(torch.mm(a, b).cpu(), first) for _ in range(5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,)], ids=("matrices", "batches"))
def test_sums_stored_in_float32(batch, dtype, counted):
    """``out_dtype``: sixteen bits times sixteen bits, nothing rounded to them."""
    plain, added = (torch.bmm, torch.baddbmm) if batch else (torch.mm, torch.addmm)
    for layout in LAYOUTS:
        a, b = operand((*batch, 9, 65), dtype, layout), operand((*batch, 65, 17), dtype, layout)
        row, full = torch.randn(*(1 for _ in batch), 1, 17), torch.randn(*batch, 9, 17).to(dtype)
        x, y = on_xpu(a), on_xpu(b)
        for c, alpha, beta in ((row, 1.0, 1.0), (full.float(), 0.5, 2.0), (full, 1.0, -1.0)):
            want, scale = sums(added, c, a, b, alpha, beta)
            got = added(c.to("xpu"), x, y, out_dtype=torch.float32, alpha=alpha, beta=beta)
            assert got.dtype is torch.float32
            assert_close(got, want, scale)
        want, scale = sums(added, torch.zeros(1, 17), a, b, 1, 0)
        assert_close(plain(x, y, out_dtype=torch.float32), want, scale)
        for out in (torch.empty(*batch, 9, 17, device="xpu"), torch.empty(*batch, 17, 9, device="xpu").mT):
            assert plain(x, y, out_dtype=torch.float32, out=out) is out
            assert_close(out, want, scale)
    assert "host" not in counted()


def test_sums_that_cannot_be_stored_so_are_named():
    a, b = torch.randn(3, 4, device="xpu"), torch.randn(4, 5, device="xpu")
    half = a.half(), b.half()
    for call, says in (
        (lambda: torch.mm(a, b, out_dtype=torch.float16), "wants operands of that dtype"),
        (lambda: torch.mm(half[0], b, out_dtype=torch.float32), "one dtype and one device"),
        (lambda: torch.mm(*half, out_dtype=torch.float32, out=torch.empty(3, 5, device="xpu").half()), "wants an out="),
        (lambda: torch.mm(half[0], half[0], out_dtype=torch.float32), "cannot be multiplied"),
        (lambda: torch.addmm(b.double(), *half, out_dtype=torch.float32), "adds what is"),
    ):
        with pytest.raises(RuntimeError, match=says):
            call()
    for rows in (0, 3):
        empty = torch.mm(half[0][:rows, :0], half[1][:0], out_dtype=torch.float32)
        assert (empty.dtype, empty.shape, float(empty.sum())) == (torch.float32, (rows, 5), 0) or active()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gelu", [True, False])
def test_a_product_and_a_function_of_it(gelu, dtype, counted):
    a, b, full = (torch.randn(shape).to(dtype) for shape in ((9, 65), (65, 17), (9, 17)))
    for c, alpha, beta in ((full[0], 1, 1), (full, 0.5, 2), (full[:, :1], 1, 0)):
        want, scale = sums(torch.addmm, c, a, b, alpha, beta)
        want = torch.nn.functional.gelu(want) if gelu else want.relu()
        given = [t.to("xpu") for t in (c, a, b)]
        assert_close(torch._addmm_activation(*given, alpha=alpha, beta=beta, use_gelu=gelu), want, scale)
    assert set(counted()) == {"aten::_addmm_activation"}
