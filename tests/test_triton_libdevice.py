"""libdevice's functions beside torch's and NumPy's, on fresh random arguments."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from anyxpu.triton.libdevice_table import FUNCTIONS
from tests.triton_support import launch

KERNEL = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel({arguments}, o, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(o + at, libdevice.{name}({loads}))
"""
special = torch.special


@pytest.fixture
def call(tmp_path):
    """``call(name, arguments, dtype)``: the function of CPU tensors, on the device."""

    def run(name: str, arguments: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        names = [f"x{i}" for i in range(len(arguments))]
        path = tmp_path / f"{name}.py"
        loads = ", ".join(f"tl.load({n} + at)" for n in names)
        path.write_text(KERNEL.format(name=name, arguments=", ".join(names), loads=loads))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        o = torch.zeros(len(arguments[0]), dtype=dtype)
        launch(made.kernel, (1,), *arguments, o, N=len(o))
        return o

    return run


def between(low: float, high: float) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(256, dtype=torch.float64) * (high - low) + low


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(600)


def integral(f: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """Gauss and Legendre's rule; ``f`` gets the nodes along a new last axis."""
    half = (np.asarray(high) - low)[..., None] / 2
    return (f((_NODES + 1) * half + np.asarray(low)[..., None]) * _WEIGHTS * half).sum(-1)


def bessel(order: int, second: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """J or Y by their integrals (DLMF 10.9.2 and 10.9.7); torch's own J has errors of 3e-7 between 4 and 9."""

    def value(argument: torch.Tensor) -> torch.Tensor:
        x = argument.numpy()
        wide, zero = x[:, None], np.zeros_like(x)
        if not second:
            y = integral(lambda t: np.cos(order * t - wide * np.sin(t)), zero, zero + np.pi)
            return torch.from_numpy(y / np.pi)
        y = integral(lambda t: np.sin(wide * np.sin(t) - order * t), zero, zero + np.pi)
        growing = lambda t: np.exp(order * t) + (-1) ** order * np.exp(-order * t)  # noqa: E731
        y -= integral(lambda t: growing(t) * np.exp(-wide * np.sinh(t)), zero, np.arcsinh(60 / x))
        return torch.from_numpy(y / np.pi)

    return value


SMOOTH: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "cyl_bessel_i0": (special.modified_bessel_i0, between(-60, 60)),
    "cyl_bessel_i1": (special.modified_bessel_i1, between(-60, 60)),
    "erfcinv": (lambda x: special.erfinv(1 - x), between(1e-3, 1.999)),
    "erfcx": (special.erfcx, between(-4, 60)),
    "erfinv": (special.erfinv, between(-0.999, 0.999)),
    "j0": (bessel(0, False), between(-80, 80)),
    "j1": (bessel(1, False), between(-80, 80)),
    "normcdf": (special.ndtr, between(-6, 6)),
    "normcdfinv": (special.ndtri, between(0.001, 0.999)),
    "y0": (bessel(0, True), between(1e-2, 80)),
    "y1": (bessel(1, True), between(1e-2, 80)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_special_function_is_torchs_in_f64(name, dtype, call):
    function, draw = SMOOTH[name]
    x = draw().to(dtype)
    wanted, tolerance = function(x.double()), 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(call(name, [x], dtype).double(), wanted, rtol=tolerance, atol=tolerance)


def test_bessel_functions_at_their_ends(call):
    x = torch.tensor([0.0, 1e-300, 1e-9, 24.999999, 25.0, 1e6, math.inf, math.nan], dtype=torch.float64)
    for name, function in (("j0", special.bessel_j0), ("j1", special.bessel_j1)):
        wanted = function(x)
        wanted[6] = 0.0  # where torch gives NaN
        torch.testing.assert_close(call(name, [x], x.dtype), wanted, rtol=1e-9, atol=1e-10, equal_nan=True)
    assert call("y0", [x], x.dtype)[0] == -math.inf and call("y1", [x], x.dtype)[0] == -math.inf
    assert call("y0", [-x[1:5].repeat(4)], x.dtype).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["jn", "yn"])
def test_bessel_functions_of_any_order(name, dtype, call):
    for order in (0, 1, 2, 3, 7):
        x = between(1.0, 80)().to(dtype)
        got = call(name, [torch.full((256,), order, dtype=torch.int32), x], dtype).double()
        tolerance = 1e-5 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(got, bessel(order, name == "yn")(x.double()), rtol=tolerance, atol=tolerance)
    x = torch.tensor([-2.5, 0.0, 1e-9, 0.25, math.inf, math.nan, 7.0, 30.0], dtype=torch.float64)
    wanted = {
        "jn": [mpmath.besselj(3, v) if math.isfinite(v) else v * 0 for v in x.tolist()],
        "yn": [mpmath.bessely(3, v) if 0 < v < math.inf else math.nan for v in x.tolist()],
    }[name]
    wanted[4] = 0.0
    if name == "yn":
        wanted[1] = -math.inf
    got = call(name, [torch.full((8,), 3, dtype=torch.int32), x], x.dtype)
    torch.testing.assert_close(
        got, torch.tensor([float(v) for v in wanted]).double(), rtol=2e-7, atol=0, equal_nan=True
    )
    assert call(name, [torch.full((8,), -1, dtype=torch.int32), x], x.dtype).isnan().all()
    deep = torch.tensor([1.0, 20.0, 39.0, 60.0], dtype=torch.float64)
    exact = [float((mpmath.besselj if name == "jn" else mpmath.bessely)(40, v)) for v in deep.tolist()]
    got = call(name, [torch.full((4,), 40, dtype=torch.int32), deep], deep.dtype)
    torch.testing.assert_close(got, torch.tensor(exact, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_bits_in_reverse_order(dtype, call):
    x, bits = whole(dtype), torch.iinfo(dtype).bits
    unsigned = [int(f"{v % 2**bits:0{bits}b}"[::-1], 2) for v in x.tolist()]
    wanted = torch.tensor([v - 2**bits if v >= 2 ** (bits - 1) else v for v in unsigned], dtype=dtype)
    assert torch.equal(call("brev", [x], dtype), wanted)


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
def test_all_that_a_vendors_libdevice_takes_is_taken_but_directed_rounding(vendor):
    theirs = importlib.import_module(f"triton.language.extra.{vendor}.libdevice")
    missing = []
    for function in ast.parse(Path(theirs.__file__).read_text()).body:
        if not isinstance(function, ast.FunctionDef) or re.fullmatch(
            r"(add|sub|mul|div|fma|rcp|sqrt)_r[zud]", function.name
        ):
            continue
        tables = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
        for types in (key for table in tables for key in table.keys if isinstance(key, ast.Tuple)):
            named = tuple(re.findall(r"dtype\(['\"](\w+)['\"]\)", ast.unparse(types)))
            assert len(named) == len(types.elts)
            if named not in FUNCTIONS.get(function.name, {}):
                missing.append((function.name, named))
    assert not missing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_integers(dtype, call):
    x, n = between(-3, 3)().to(dtype), torch.randint(-9, 10, (256,), dtype=torch.int32)
    x[:4], n[:4] = torch.tensor([0.0, -0.0, math.inf, -1.0], dtype=dtype), torch.tensor([0, -1, -3, 2**31 - 1])
    with np.errstate(divide="ignore"):
        wanted = torch.from_numpy(np.power(x.double().numpy(), n.double().numpy()))
    rounded = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(call("pow", [x, n], dtype).double(), wanted, rtol=rounded, atol=0)


def whole(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, (256,), dtype=dtype)


C_TYPES: dict[str, tuple[torch.dtype, Any]] = {
    "double": (torch.float64, np.float64),
    "float": (torch.float32, np.float32),
    "int": (torch.int32, np.int32),
    "ll": (torch.int64, np.int64),
    "uint": (torch.uint32, np.uint32),
    "ull": (torch.uint64, np.uint64),
}
ROUNDED = {"rd": np.floor, "rn": np.rint, "ru": np.ceil, "rz": np.trunc}
CONVERSIONS = sorted(n for n in FUNCTIONS if "2" in n and n[-3:-1] == "_r" and n.split("2")[0] in C_TYPES)


def draws(source: str) -> Any:
    dtype, kind = C_TYPES[source]
    if dtype.is_floating_point:
        x = (torch.randn(256, dtype=torch.float64) * 10.0 ** torch.randint(0, 25, (256,))).to(dtype)
        x[:8] = torch.tensor([math.nan, math.inf, -math.inf, 0.5, 1.5, -0.5, -2.5, 0.0])
        return x.numpy()
    return whole(torch.int64).numpy().view(np.uint64 if source == "ull" else np.int64).astype(kind)


def exactly(value: Any, result: str, mode: str) -> Any:
    """A number as the type holds it, rounded as asked for, by NumPy and Python's whole numbers."""
    _, kind = C_TYPES[result]
    if result not in ("double", "float"):
        info = np.iinfo(kind)
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(int(ROUNDED[mode](float(value))), info.min), info.max)
    if isinstance(value, float) and not math.isfinite(value):
        return kind(value)
    near = kind(value)  # NumPy rounds to nearest
    held = float(near) if isinstance(value, float) else int(near)  # Python compares these exactly
    if mode == "rn" or held == value:
        return near
    up = mode == "ru" or (mode == "rz" and value < 0)
    if up == (held > value):
        return near
    return np.nextafter(near, kind(np.inf if up else -np.inf))


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_rounds_as_it_is_named(name, call):
    source, rest = name.split("2")
    result, mode = rest.split("_")
    x = draws(source)
    got = call(name, [torch.from_numpy(x)], C_TYPES[result][0]).numpy()
    with np.errstate(all="ignore"):
        wanted = np.array([exactly(v.item(), result, mode) for v in x], dtype=C_TYPES[result][1])
    np.testing.assert_array_equal(got, wanted)


def test_integer_functions(call):
    a, b, c = (whole(torch.int32) for _ in range(3))
    wide = [t.long() for t in (a, b)]
    assert torch.equal(call("hadd", [a, b], a.dtype), (sum(wide) >> 1).int())
    assert torch.equal(call("rhadd", [a, b], a.dtype), ((sum(wide) + 1) >> 1).int())
    small = [(t >> 9) for t in (a, b)]
    assert torch.equal(call("mul24", small, a.dtype), (small[0] * small[1]))
    picked = call("byte_perm", [a, b, c], a.dtype).numpy().view(np.uint32)
    both = [*a.numpy().view(np.uint8).reshape(-1, 4).T, *b.numpy().view(np.uint8).reshape(-1, 4).T]
    for i in range(4):
        chosen = (c.numpy() >> 4 * i) & 7
        assert ((picked >> 8 * i & 0xFF) == np.choose(chosen, both)).all()
    x = torch.randn(256, dtype=torch.float64)
    halves = [call(n, [x], torch.int32) for n in ("double2hiint", "double2loint")]
    assert torch.equal(call("hiloint2double", halves, x.dtype), x)


def test_an_unsupported_function_is_refused_by_name(call):
    x = torch.randn(16)
    with pytest.raises(triton.CompilationError, match=r"libdevice\.add_rd is not supported on xpu.*nearest"):
        call("add_rd", [x, x], x.dtype)


@triton.jit
def _of_floats(x, o, N, F: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    given = tl.load(x + at, mask=at < N)
    tl.store(o + at, tl.exp2(given) if F == "exp2" else tl.erf(given), mask=at < N)


def of_every_kind(function: str, spread: torch.Tensor, ends: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of random bits, those given, and what the kernel makes of them."""
    bits = torch.randint(-(1 << 31), 1 << 31, (200_000,), dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), spread, torch.tensor(ends)])
    o = torch.empty_like(x, device="xpu")
    _of_floats[(triton.cdiv(len(x), 1024),)](x.xpu(), o, len(x), function, 1024)
    return x, o.cpu()


def units(exact: torch.Tensor) -> torch.Tensor:
    """The last place of float32 at such float64 numbers above 0."""
    return torch.clamp(torch.exp2(torch.floor(torch.log2(exact)) - 23), min=2.0**-149)


@pytest.mark.not_simulated("it compares values")
def test_powers_of_two_of_every_kind_of_float():
    """Normal results to 1.1 units in the last place, subnormal ones, infinities and NaN."""
    ends = [-149.0, -150.0, -126.0, 127.0, 128.0, -0.0, float("inf"), -float("inf"), float("nan")]
    x, got = of_every_kind("exp2", torch.empty(200_000).uniform_(-155, 132), ends)
    exact, got = torch.exp2(x.double()), got.double()
    finite = exact < 2.0**128 * (1 - 2.0**-25)
    assert torch.equal(got.isnan(), x.isnan()) and bool((got[exact >= 2.0**128] == float("inf")).all())
    assert float(((got - exact).abs() / units(exact))[finite].max()) < 1.1


@pytest.mark.not_simulated("it compares values")
def test_the_error_function_of_every_kind_of_float():
    """To 1.3 units in the last place, 1 and -1 from 4 on, zeros and NaN as they are."""
    ends = [0.0, -0.0, 1.0, -1.0, 3.95, -3.95, 2.0**-149, float("inf"), -float("inf"), float("nan")]
    x, got = of_every_kind("erf", torch.empty(400_000).uniform_(-4.5, 4.5), ends)
    exact, known = torch.special.erf(x.double()), ~x.isnan()
    assert torch.equal(got.isnan(), ~known) and torch.equal(got[known].signbit(), x[known].signbit())
    assert torch.equal(got[x.abs() >= 4], x[x.abs() >= 4].sign())
    error = (got.double() - exact).abs() / units(exact.abs())
    assert float(error[known & (x != 0)].max()) < 1.3


NAMED_BY_A_VENDOR = """\
import triton
import triton.language as tl
from triton.language.extra.VENDOR import libdevice
from triton.language.extra.VENDOR.libdevice import rsqrt
import triton.language.extra.VENDOR.libdevice as again


@triton.jit
def kernel(x0, o, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x0 + at)
    tl.store(o + at, libdevice.pow(x, 3.0) + rsqrt(x) + again.exp2(x) + tl.extra.VENDOR.libdevice.tanh(x))
"""


@pytest.mark.parametrize("vendor", ["intel", "cuda", "hip"])
def test_kernels_may_name_it_as_a_vendors_triton_does(vendor, tmp_path):
    (path := tmp_path / "named.py").write_text(NAMED_BY_A_VENDOR.replace("VENDOR", vendor))
    spec = importlib.util.spec_from_file_location("named", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    x, o = torch.rand(64) + 0.5, torch.zeros(64)
    launch(made.kernel, (1,), x, o, N=64)
    wide = x.double()
    torch.testing.assert_close(o.double(), wide**3 + wide.rsqrt() + wide.exp2() + wide.tanh(), rtol=1e-6, atol=0)
    assert made.libdevice is importlib.import_module(f"triton.language.extra.{vendor}.libdevice")
    if vendor == "intel":
        assert made.libdevice is importlib.import_module("anyxpu.triton.libdevice")
