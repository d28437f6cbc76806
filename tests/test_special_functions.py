"""Special functions by compiled kernels: against the CPU's in float64 over their domains, at poles and at ends.

The kernels are checked by their own digits: what is compared with is computed in float64 of the same, rounded, numbers.
"""

from __future__ import annotations

import itertools

import mpmath
import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import pointwise, registry

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

INF, NAN = float("inf"), float("nan")
DIGITS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-3}


def types():
    return [d for d in DIGITS if d is not torch.float64 or torch.xpu.get_device_properties().has_fp64]


def between(low, high, n=300):
    return torch.rand(n, dtype=torch.float64) * (high - low) + low


def powers(low, high, n=150):
    """Positive numbers of all sizes between two powers of ten."""
    return 10 ** between(low, high, n)


def sides(x):
    return torch.cat([x, -x])


def everywhere(most):
    return sides(torch.cat([between(0, most), powers(-6, 1)]))


def above_zero(most):
    return torch.cat([between(0, most), powers(-6, 1)])


# Operator of one number -> numbers that it is compared at.
DOMAINS = {
    "special_entr": lambda: above_zero(50),
    "special_erfcx": lambda: torch.cat([between(-5, 30), powers(0, 8)]),
    "special_log_ndtr": lambda: everywhere(9),
    "special_ndtri": lambda: torch.cat([between(0, 1), powers(-30, 0)]),
    "special_i0e": lambda: everywhere(60),
    "special_i1": lambda: everywhere(60),
    "special_i1e": lambda: everywhere(60),
    "special_modified_bessel_i0": lambda: everywhere(60),
    "special_modified_bessel_i1": lambda: everywhere(60),
    "special_modified_bessel_k0": lambda: above_zero(60),
    "special_modified_bessel_k1": lambda: above_zero(60),
    "special_scaled_modified_bessel_k0": lambda: torch.cat([above_zero(60), powers(1, 20)]),
    "special_scaled_modified_bessel_k1": lambda: torch.cat([above_zero(60), powers(1, 20)]),
    "special_bessel_j0": lambda: everywhere(60),
    "special_bessel_j1": lambda: everywhere(60),
    "special_bessel_y0": lambda: above_zero(60),
    "special_bessel_y1": lambda: above_zero(60),
    "special_spherical_bessel_j0": lambda: everywhere(60),
    "special_airy_ai": lambda: everywhere(20),
    "digamma": lambda: away_from_poles(everywhere(30)),
    "angle": lambda: everywhere(3),
}
# Where the CPU's own float64 is less exact: of J and Y beside 5, of Ai beside -2.09.
OF_THE_CPU = {**{f"special_bessel_{name}": 2e-6 for name in ("j0", "j1", "y0", "y1")}, "special_airy_ai": 1e-5}


def away_from_poles(x):
    """Moved by half where a pole of digamma is within 1/100: beside those the CPU's float64 has 8 digits."""
    return torch.where((x < 0.5) & ((x - x.round()).abs() < 0.01), x + 0.5, x)


POLYNOMIALS = [row.overload for row in pointwise.SPECIAL if "_polynomial_" in row.overload]


def differs(got, want):
    """The largest difference, of numbers above 1 as a part of them."""
    assert torch.equal(got.isnan(), want.isnan())
    same = (got == want) | want.isnan()
    return torch.where(same, 0.0, (got - want).abs() / want.abs().clamp(min=1)).max().item()


def compare(function, operands, dtype, bound, what=""):
    """``function`` of operands rounded to ``dtype``, by a kernel, with the CPU's of the same in float64."""
    here = [t.to(dtype) for t in operands]
    anyxpu.ops.reset_counters()
    got = function(*(t.to("xpu") for t in here))
    ways = anyxpu.ops.counters()
    assert all("host" not in how for how in ways.values()), ways
    assert got.dtype is dtype
    if not simulate.active():
        want = function(*(t.double() for t in here))
        if dtype is not torch.float64:
            want = want.to(dtype).double()
        assert differs(got.cpu().double(), want) <= bound, (what, dtype)


def test_every_special_function_of_the_table_is_compiled():
    for row in pointwise.SPECIAL:
        assert all(registry.resolve(f"aten::{form}") == "compiled" for form in pointwise.forms(row.overload))


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.rotates(3)
def test_functions_equal_float64s_over_their_domain(name):
    for dtype in types():
        bound = max(DIGITS[dtype], OF_THE_CPU.get(name, 0))
        compare(getattr(torch.ops.aten, name), [DOMAINS[name]()], dtype, bound, name)


def test_bessel_functions_have_all_digits():
    """Their Wronskians, DLMF 10.5.2 and 10.28.2, which the CPU's float64 misses beside 5."""
    for dtype in types():
        if dtype is torch.bfloat16:
            continue
        x = torch.cat([between(0.1, 60), powers(-3, 2)]).to(dtype).to("xpu")
        ops = torch.special
        one = ops.bessel_j1(x) * ops.bessel_y0(x) - ops.bessel_j0(x) * ops.bessel_y1(x)
        other = ops.i0e(x) * ops.scaled_modified_bessel_k1(x) + ops.i1e(x) * ops.scaled_modified_bessel_k0(x)
        if not simulate.active():
            bound = 2e-13 if dtype is torch.float64 else 3e-5
            assert (one * x * (torch.pi / 2) - 1).abs().max() < bound
            assert (other * x - 1).abs().max() < bound


def test_digamma_has_all_digits_beside_its_poles():
    """Which the CPU's float64 has not: against mpmath."""
    if torch.float64 not in types():
        pytest.skip("the device has no float64")
    x = -torch.arange(30).double() + torch.randn(30, dtype=torch.float64) * 1e-5
    got = torch.digamma(x.to("xpu")).cpu()
    want = torch.tensor([float(mpmath.digamma(mpmath.mpf(at))) for at in x.tolist()], dtype=torch.float64)
    if not simulate.active():
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


def test_airys_function_has_all_digits():
    """At numbers on both sides of where its series ends: from mpmath 1.4."""
    if torch.float64 not in types():
        pytest.skip("the device has no float64")
    x = torch.tensor(list(AIRY), dtype=torch.float64)
    got = torch.special.airy_ai(x.to("xpu")).cpu()
    if not simulate.active():
        torch.testing.assert_close(got, torch.tensor(list(AIRY.values()), dtype=torch.float64), rtol=2e-13, atol=2e-14)


AIRY = {
    -50.0: -0.1618814236123209,
    -20.25: -0.25609535403377043,
    -9.5: 0.3191032477191282,
    -5.0: 0.35076100902411433,
    -2.09375: 0.1675923874370789,
    -1.53125: 0.4542545175244105,
    -1.46875: 0.4735787067800581,
    -0.5: 0.4757280916105396,
    0.75: 0.17933630547864524,
    1.4375: 0.07804907774916074,
    1.5625: 0.06587028104028317,
    3.0: 0.006591139357460719,
    8.0: 4.6922076160992316e-08,
}


def test_airys_function_keeps_its_phase_far_out():
    """Where float32 alone would round the argument of its sine by as much as 1e-3."""
    compare(torch.special.airy_ai, [between(-1000, -200)], torch.float32, 2e-6)


# At poles, zeros and ends. Numbers that one of two libraries may flush are not among them.
ENDS = [0.0, -0.0, 0.25, 0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, -2.5, 3.0, -3.0, 1e-30, -1e-30, 40.0, INF, -INF, NAN]


@pytest.mark.parametrize("name", DOMAINS)
def test_poles_and_ends_are_the_cpus(name):
    function = getattr(torch.ops.aten, name)
    for dtype in types():
        x = torch.tensor(ENDS).to(dtype)
        got = function(x.to("xpu"))
        if not simulate.active():
            want = function(x.float() if dtype is torch.bfloat16 else x)
            bound = max(DIGITS[dtype], OF_THE_CPU.get(name, 0))
            torch.testing.assert_close(got.cpu().to(want.dtype), want, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 9])
def test_polygamma_equals_float64s(n):
    """The CPU's of order 1 has nine digits; of even orders values of both signs make what is small of large ones."""
    x = torch.cat([between(0.1, 30), powers(-2, 1), torch.arange(-9.0, 0.0).double() + between(0.1, 0.4, 9)])
    for dtype in types():
        bound = max(DIGITS[dtype], {1: 2e-9}.get(n, 0), 5e-4 if n % 2 == 0 and dtype is torch.float32 else 0)
        compare(lambda t: torch.polygamma(n, t), [x], dtype, bound, n)
    ends = torch.tensor([0.0, -0.0, 1.0, 1e-3, 7.5, INF, NAN] + ([-1.0, -3.0] if n != 1 else []))
    got = torch.polygamma(n, ends.to("xpu"))
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), torch.polygamma(n, ends), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_negative_order_of_polygamma_is_an_error():
    x = torch.ones(3, device="xpu")
    if simulate.active():
        pytest.skip("no kernel finds it on a simulated GPU")
    with pytest.raises(RuntimeError, match=r"polygamma\(n, x\) does not support negative n\."):
        torch.polygamma(-1, x)
        torch.xpu.synchronize()
    assert torch.polygamma(0, x).cpu().isfinite().all()


def test_zeta_equals_float64s():
    s = torch.cat([1 + powers(-2, 0), between(1, 30)]).repeat(3)
    q = torch.cat([powers(-1, 2, 450), between(0.1, 60, 450), between(5, 1000, 450)])
    whole = torch.randint(2, 7, (300,)).double()
    for dtype in types():
        compare(torch.special.zeta, [s, q], dtype, DIGITS[dtype])
        if dtype is not torch.bfloat16:  # many of which are whole
            compare(torch.special.zeta, [whole, between(0.1, 0.9) - torch.randint(1, 50, (300,))], dtype, 1e-4)
            compare(torch.special.zeta, [whole, -powers(0, 2, 300)], dtype, 1e-4)


def test_zeta_at_its_poles_is_the_cpus():
    s = torch.tensor([1.0, 0.5, 2.0, 2.5, 7.0, 60.0, -1.0, INF, NAN])[:, None]
    q = torch.tensor([0.0, -0.0, 1.0, 0.25, -1.0, -2.5, 30.0, 1e-30, INF, NAN])
    got = torch.special.zeta(s.to("xpu"), q.to("xpu"))
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), torch.special.zeta(s, q), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_functions_equal_float64s(name):
    """Of little, usual and large a, near x = a and far; the CPU's has nine digits where it uses Temme's expansion."""
    a = torch.cat([powers(-2, 5, 600), powers(-2, 5, 600), powers(-6, 1, 600)])
    x = torch.cat([a[:600] * powers(-0.5, 0.5, 600), a[600:1200] + a[600:1200].sqrt() * between(-3, 3, 600)])
    x = torch.cat([x.abs(), powers(-6, 1, 600)])
    function = getattr(torch, name)
    for dtype in types():
        compare(function, [a, x], dtype, max(DIGITS[dtype], 2e-9), name)
    ends = torch.tensor([0.0, 0.5, 1.0, 15.0, INF, NAN, -1.0])
    got = function(ends[:, None].to("xpu"), ends.to("xpu"))
    if not simulate.active():
        torch.testing.assert_close(got.cpu(), function(ends[:, None], ends), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_little_igammac_keeps_its_digits():
    """Of little a it is about a E1(x): here by its integral over steps of log t."""
    a, x = torch.tensor([1e-6, 1e-4, 1e-2]), torch.tensor([0.3, 0.9, 1.05])
    got = torch.igammac(a[:, None].to("xpu"), x.to("xpu"))
    if simulate.active():
        return
    a, x = a.double()[:, None], x.double()
    t = x * torch.linspace(0, 6, 40001, dtype=torch.float64).exp()[:, None, None]
    integral = torch.trapezoid((a * t.log() - t).exp(), dx=6 / 40000, dim=0)
    want = integral / a.lgamma().exp()
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", POLYNOMIALS)
@pytest.mark.rotates(3)
def test_polynomials_equal_float64s(name):
    """Of every degree to 12 and some beyond, in the middle, near the ends and outside."""
    low, high = (-0.2, 1.2) if "shifted" in name else (0, 4) if "laguerre" in name else (-1.2, 1.2)
    x = torch.cat([between(low, high, 100), high - 0.2 + powers(-6, -1, 30), low + 0.2 - powers(-6, -1, 30)])
    degrees = [-3, -1, *range(13)] + ([20, 33] if "hermite" not in name else [])
    n = torch.tensor(degrees, dtype=torch.float64)[:, None]
    function = getattr(torch.ops.aten, name)
    for dtype in types():
        # Of Hermite's, which grow to 1e6 here and cancel, five digits are lost.
        bound = (2e-3 if "hermite" in name else 2e-4) if dtype is torch.float32 else DIGITS[dtype]
        compare(function, [x, n], dtype, bound, name)


@pytest.mark.parametrize("name", POLYNOMIALS)
@pytest.mark.rotates(3)
def test_polynomials_at_their_ends_are_the_cpus(name):
    """1, -1, 0 and a number that is none; of degrees that are no whole numbers the whole part; beside a number."""
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 0.75, NAN])
    n = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 1.9, 2.0, 5.0, 7.0, 8.0, 9.0, 10.0, 31.0])[:, None]
    function = getattr(torch.ops.aten, name)
    got = function(x.to("xpu"), n.to("xpu"))
    five = function(x.to("xpu"), 5)
    whole = function(torch.arange(-2, 4).to("xpu"), torch.tensor(3).to("xpu"))
    assert whole.dtype is torch.float32
    if simulate.active():
        return
    want = function(x, n)
    # Of NaN the CPU's is what its memory held.
    want[:, 6] = torch.where(n[:, 0] > -1, torch.where(n[:, 0] < 1, 1.0, NAN), 0.0)
    if "laguerre" not in name and "hermite" not in name:
        assert got[-1, 6].isnan()
    torch.testing.assert_close(got.cpu(), want, rtol=2e-4, atol=2e-4, equal_nan=True)
    torch.testing.assert_close(five.cpu()[:6], function(x, 5)[:6], rtol=1e-5, atol=1e-5)
    assert torch.equal(whole.cpu(), function(torch.arange(-2, 4), torch.tensor(3)))


def test_hermite_polynomials_of_too_high_a_degree_are_nan():
    for name in ("special_hermite_polynomial_h", "special_hermite_polynomial_he"):
        function = getattr(torch.ops.aten, name)
        for dtype, degree in ((torch.float32, 129), (torch.float64, 513)):
            if dtype in types():
                x, n = torch.tensor([0.01], dtype=dtype), torch.tensor([degree], dtype=dtype)
                got = function(x.to("xpu"), n.to("xpu"))
                if not simulate.active():
                    assert got.cpu().isnan().all() and function(x, n).isnan().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_common_divisors_and_multiples_are_the_cpus(dtype):
    """Zeros, signs, equal and coprime numbers, and consecutive Fibonacci numbers, which take the most steps."""
    most = torch.iinfo(dtype).max
    fibonacci = [0, 1]
    while fibonacci[-1] + fibonacci[-2] <= most:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    some = [0, 1, 2, 3, 6, 7, 12, 60, 96, most, *fibonacci[-3:]]
    some += [-v for v in some] if torch.iinfo(dtype).min else []
    x, y = (torch.tensor(c, dtype=dtype) for c in zip(*itertools.product(some, repeat=2), strict=True))
    got = torch.gcd(x.to("xpu"), y.to("xpu"))
    below = (x.double() * y.double()).abs() <= most
    multiple = torch.lcm(x.to("xpu"), y.to("xpu"))
    one = torch.gcd(x.to("xpu"), torch.tensor(12, dtype=dtype))
    if not simulate.active():
        assert torch.equal(got.cpu(), torch.gcd(x, y))
        assert torch.equal(multiple.cpu()[below], torch.lcm(x, y)[below])
        assert torch.equal(one.cpu(), torch.gcd(x, torch.tensor(12, dtype=dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_nextafter_is_the_next_number_of_the_type(dtype):
    if dtype is torch.float64 and dtype not in types():
        pytest.skip("the device has no float64")
    numbers = [0.0, -0.0, 1.0, -1.0, 1.5, 3.0, -3.0, 255.0, 256.0, -0.0625, torch.finfo(dtype).max, INF, -INF, NAN]
    x, y = (torch.tensor(c, dtype=dtype) for c in zip(*itertools.product(numbers, repeat=2), strict=True))
    got = torch.nextafter(x.to("xpu"), y.to("xpu"))
    if simulate.active():
        return
    got = got.cpu()
    usual = x != 0  # the neighbours of zero are denormal
    want = torch.nextafter(x, y)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[usual].nan_to_num(7), want[usual].nan_to_num(7))
    assert torch.equal(got[~usual & (x == y)], want[~usual & (x == y)])


def test_decimals_are_rounded_as_on_the_cpu():
    """Before and behind the point; 16-bit floats once, at the end."""
    for dtype in types():
        x = torch.cat([everywhere(100), torch.tensor([0.125, 2.675, -0.5, 25.0, 35.0, INF, NAN, -0.0])]).to(dtype)
        for decimals in (-2, -1, 0, 1, 3):
            got = torch.round(x.to("xpu"), decimals=decimals)
            if not simulate.active():
                want = torch.round(x, decimals=decimals)
                torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_the_gradient_of_logit_is_the_cpus_with_and_without_eps():
    x = torch.tensor([-0.5, 0.0, 0.1, 0.2, 0.5, 0.8, 0.95, 1.0, 1.5, NAN])
    grad = torch.tensor([1.0, -2.0, 0.0])[:, None]
    for dtype in types():
        here, there = (x.to(dtype), grad.to(dtype)), (x.to(dtype).to("xpu"), grad.to(dtype).to("xpu"))
        for eps in (None, 0.0, 0.2, -1.0):
            want = torch.ops.aten.logit_backward(here[1], here[0], eps)
            got = torch.ops.aten.logit_backward(there[1], there[0], eps)
            if not simulate.active():
                bound = 1e-2 if dtype is torch.bfloat16 else 1e-6
                torch.testing.assert_close(got.cpu(), want, rtol=bound, atol=bound, equal_nan=True)


def test_gradients_through_special_functions_are_the_cpus():
    for function in (torch.digamma, torch.lgamma, torch.special.i0e, torch.special.i1, torch.special.erfcx,
                     torch.special.log_ndtr, torch.special.entr, torch.logit, torch.special.i1e):  # fmt: skip
        x = torch.rand(40) * 0.8 + 0.1
        here, there = x.requires_grad_(), x.detach().to("xpu").requires_grad_()
        function(here).sum().backward()
        function(there).sum().backward()
        if not simulate.active():
            torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=2e-5, atol=1e-5)


LONG = ("airy_ai", "igammac", "polygamma", "bessel_y1", "ndtri")
NATIVE = [
    pytest.param(device, row, id=f"{row.overload}-{device}", marks=() if row.function in LONG else pytest.mark.full)
    for row in pointwise.SPECIAL
    for device in ("dg2", "bmg")
    if row.kinds == "f"
]


@pytest.mark.parametrize(("device", "row"), NATIVE)
def test_gpu_code_spills_nothing_and_that_of_f32_needs_no_f64(device, row, ocloc_program, tmp_path, monkeypatch):
    """Of dense tensors, in the tile that the shim asks for on a GPU: f32 where there is no f64, and f64."""
    import triton
    from triton.backends.compiler import GPUTarget

    from anyxpu import ocloc

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    dtype = "fp32" if device == "dg2" else "fp64"
    count = row.roles.count("T") + 1
    source = pointwise.source(
        row.function, "", dtype, [dtype] * count, [[2] * count], 0, row.roles.count("P"), False, (1, 1024)
    )
    arch = {"device": device, "has_fp64": dtype == "fp64"}
    made = triton.compile(source, target=GPUTarget("xpu", arch, 16), options={"num_warps": 4, "debug": True})
    about = ocloc.inspect(made.asm["zebin"], f"kernel_{made.metadata.name}")
    assert about is not None and about.spill_bytes == 0
