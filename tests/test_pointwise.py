"""Pointwise operators by compiled kernels: against the CPU's, in every form, type and layout; who serves them."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import pointwise, registry
from anyxpu.shim import lib
from tests.strided import random_shape, random_view, values

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]

DEVICE = "xpu"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Of a result's digits: the functions of two libraries differ by a few units in the last place, and what they are
# multiplied with makes that more.
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def has(dtype: torch.dtype) -> bool:
    return dtype is not torch.float64 or torch.xpu.get_device_properties().has_fp64


def near(got: torch.Tensor, want: torch.Tensor, what: object = "", bound: float = 0) -> None:
    """Same type, shape and strides; the same elements, exactly where they are no floats."""
    assert (got.device.type, got.dtype, got.shape) == ("xpu", want.dtype, want.shape), what
    assert got.stride() == want.stride(), (what, got.stride(), want.stride())
    if simulate.active():
        return
    bound = bound or BOUNDS.get(want.dtype, 0)
    torch.testing.assert_close(got.cpu(), want, rtol=bound, atol=bound, equal_nan=True, msg=lambda m: f"{what}: {m}")


def served_by(call) -> dict[str, dict[str, int]]:
    anyxpu.ops.reset_counters()
    call()
    ways = anyxpu.ops.counters()
    return {name: how for name, how in ways.items() if "compiled" in how or "host" in how}


def on(device: str, operands):
    return [t.to(device) if isinstance(t, torch.Tensor) else t for t in operands]


def packet(row: pointwise.Row):
    base, _, overload = row.overload.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def numbers(shape, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(1, 7, shape).to(dtype)
    return (torch.rand(shape, dtype=torch.float64) * 1.8 - 0.9).to(dtype)


# What numbers of a row's roles are, where 0.5 (or 2 of integers) will not do.
_NUMBERS = {
    "threshold": (0.1, -3.0),
    "softplus": (1.5, 0.5),
    "softplus_backward": (1.5, 0.5),
    "hardtanh": (-0.5, 0.25),
    "hardtanh_backward": (-0.5, 0.25),
    "elu": (1.5, 1.25, 0.75),
    "elu_backward": (1.5, 1.25, 0.75),
    "clamp": (0.25, 0.5),
    "logit": (0.2,),
    "logit_backward": (0.2,),
    "polygamma": (2,),
    "round_decimals": (1,),
}
_INTEGERS = {"threshold": (3, 1), "clamp": (2, 4)}
_WORDS = {"div.Tensor_mode": ("floor", "trunc"), "gelu": ("none", "tanh"), "gelu_backward": ("none", "tanh"),
          "elu_backward": (False, True), "leaky_relu_backward": (False,)}  # fmt: skip


def calls_of(row: pointwise.Row, shape, dtype: torch.dtype):
    """Arguments for the functional form (or the in-place one, where torch has no other)."""
    whole = not dtype.is_floating_point
    schema = packet(row)._schema
    for word in _WORDS.get(row.overload, (None,)):
        given, named = [], {}
        left = list((_INTEGERS if whole else _NUMBERS).get(row.function, ()))
        tensors = 0
        for role, argument in zip(row.roles, schema.arguments, strict=False):
            if role == "T":
                condition = (row.rule, tensors) in (("where", 0), ("fill", 1))
                value = numbers(() if (row.rule, tensors) == ("fill", 2) else shape, torch.bool if condition else dtype)
                tensors += 1
            elif role == "V":
                value = word
            elif dtype is torch.bool:
                value = True
            else:
                value = left.pop(0) if left else (2 if whole else 0.5)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                given.append(value)
        yield given, named


def kinds(row: pointwise.Row, full: bool) -> list[torch.dtype]:
    """The types that a row takes; of each kind the first and another one by chance, unless all are asked for."""
    found = []
    for letter in row.kinds:
        of = [d for d in {"f": FLOATS, "i": INTEGERS, "b": (torch.bool,)}[letter] if has(d)]
        found += of if full or len(of) < 2 else [of[0] if letter == "f" else random.choice(of), random.choice(of[1:])]
    return list(dict.fromkeys(found))


def row_id(row: pointwise.Row) -> str:
    return row.overload


@pytest.mark.parametrize("row", pointwise.ROWS, ids=row_id)
@pytest.mark.rotates(9)
def test_every_form_of_every_type_equals_the_cpus(row, full):
    """Functional, in place and into a tensor that lies otherwise; nothing on the host."""
    forms = list(pointwise.forms(row.overload))
    assert all(registry.resolve(f"aten::{form}") == "compiled" for form in forms)
    compared = 0
    for dtype in kinds(row, full):
        for given, named in calls_of(row, (30, 307), dtype):
            op = packet(row)
            here = [t.clone() if isinstance(t, torch.Tensor) else t for t in given]
            try:
                want = op(*here, **named)
            except (RuntimeError, NotImplementedError):  # the CPU has none for this type
                continue
            there = on(DEVICE, given)
            # The CPU computes the last elements of this one in 16 bits where it has no AVX-512: float32 is the measure.
            rounded = row.overload == "special_i0e" and dtype in (torch.bfloat16, torch.float16)
            if rounded:
                want = op(given[0].float()).to(dtype)
            # The CPU's 1 / 6 is a float32.
            bound = 1e-7 if row.function == "hardsigmoid_backward" and dtype is torch.float64 else 0
            ways = served_by(lambda: near(op(*there, **named), want, (row.overload, dtype), bound))  # noqa: B023
            assert ways[f"aten::{row.overload}"] == {"compiled": 1}, (dtype, ways)
            compared += 1
            if f"{row.overload.partition('.')[0]}_" in {f.partition(".")[0] for f in forms} and row.roles[0] == "T":
                there = on(DEVICE, given)
                method = f"aten::{row.overload.replace('.', '_.', 1) if '.' in row.overload else row.overload + '_'}"
                in_place = getattr(torch.ops.aten, method.split("::")[1].partition(".")[0])
                host = given[0].clone()
                try:
                    in_place(host, *given[1:], **named)
                except RuntimeError:
                    continue
                host = want if rounded else host
                near(in_place(there[0], *there[1:], **named), host, (row.overload, dtype, "in place"))
                near(there[0], host)
            schemas = [torch._C._get_schema(f"aten::{f.partition('.')[0]}", f.partition(".")[2]) for f in forms]
            outs = [f for f, schema in zip(forms, schemas, strict=True) if schema.arguments[-1].is_out]
            for form in outs[:1]:
                name, _, overload = form.partition(".")
                into = getattr(getattr(torch.ops.aten, name), overload)
                target = torch.empty(307, 30, dtype=want.dtype, device=DEVICE).t()
                written = {into._schema.arguments[-1].name: target}
                there = on(DEVICE, given)
                into(*there, **named, **written)
                assert target.stride() == (1, 30)
                near(target.contiguous(), want.contiguous(), (row.overload, dtype, form), bound)
    assert compared or simulate.active()


@pytest.mark.parametrize("seed", range(3))
def test_random_layouts_and_broadcasts(seed, full):
    """Permuted, sliced, expanded and broadcast operands of different types, up to five dimensions."""
    rng = random.Random(torch.initial_seed() + seed)
    types = [d for d in (torch.float32, torch.bfloat16, torch.int32, torch.float16, torch.bool, torch.int64) if has(d)]
    functions = {
        "add": lambda a, b, c: torch.add(a, b, alpha=2),
        "mul": lambda a, b, c: a * b,
        "where": lambda a, b, c: torch.where(c > 0, a, b),
        "addcmul": lambda a, b, c: torch.addcmul(a, b.to(a.dtype), c.to(a.dtype)) if a.dtype != torch.bool else a,
        "less": lambda a, b, c: a < b,
        "maximum": lambda a, b, c: torch.maximum(a, b),
        "number": lambda a, b, c: a * 3,
        "rsub": lambda a, b, c: torch.rsub(a.float(), b.float(), alpha=2),
        "lerp": lambda a, b, c: torch.lerp(a.float(), b.float(), 0.3),
        "in place": lambda a, b, c: (a + torch.zeros_like(b)).float().add_(b),
    }
    for _ in range(200 if full else 20):
        name = rng.choice(list(functions))
        shape = random_shape(rng)
        operands = []
        for _ in range(3):
            cut = list(shape[rng.randint(0, len(shape)) if rng.random() < 0.3 else 0 :])
            cut = [1 if rng.random() < 0.2 else size for size in cut]
            view = random_view(rng, tuple(cut), expandable=True)
            dtype = rng.choice(types)
            base = values(rng, view.base, dtype, torch.float32)
            if dtype.is_floating_point:
                base = base.nan_to_num(1.0, 2.0, -2.0)
            if dtype.is_floating_point or not cut or (name in ("lerp", "rsub") and dtype != torch.bool):
                # The CPU multiplies 16 bits by a tensor without dimensions that 16 bits do not hold; CUDA does not.
                # And its vectors round lerp and rsub once, its other loops twice: where operands of 1e9 cancel, it
                # shows.
                base = base.clamp(-100, 100)
            operands.append((view, base))
        here = [view.of(base) for view, base in operands]
        there = [view.of(base.to(DEVICE)) for view, base in operands]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, got = functions[name](*here), functions[name](*there)
            if len({t.dtype for t in here}) > 1 or 1 in shape:
                # The CPU converts operands first, and goes by the copies' strides; those of one element lead nowhere.
                want, got = (t.clone(memory_format=torch.contiguous_format) for t in (want, got))
            near(got, want, (name, [t.stride() for t in here], shape))


@pytest.mark.parametrize("number", [7000123, -1e30, torch.tensor(7000123), torch.tensor(1e30)])
def test_numbers_that_16_bits_do_not_hold_are_infinite(number):
    """As on CUDA; compared with, chosen or taken the remainder of. Filled with they are refused, as everywhere."""
    a = torch.tensor([1, 2, -1, -2, 0.0001], dtype=torch.float16)
    x = a.to(DEVICE)
    for what in (
        lambda t: t < number,
        lambda t: t == number,
        lambda t: torch.where(t > 0, t, number),
        lambda t: torch.remainder(t, number),
        lambda t: t + number,
        lambda t: t * number,
        lambda t: t / number,
    ):
        near(what(x), what(a))
    with pytest.raises(RuntimeError, match="without overflow"):
        x.masked_fill(x > 0, number)
    near(x, a)


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    3.0,
    -3.0,
    1e-40,
    1e30,
    -1e30,
    float("inf"),
    float("-inf"),
    float("nan"),
]


@pytest.mark.parametrize(
    "row",
    # Of special functions tests/test_special_functions.py tells.
    [r for r in pointwise.ROWS if "f" in r.kinds and r.rule not in ("where", "fill") and r not in pointwise.SPECIAL],
    ids=row_id,
)
def test_special_numbers_are_what_the_cpu_makes_of_them(row):
    """Zeros of both signs, infinities, NaN, halves and a denormal number, each beside each."""
    if simulate.active():
        pytest.skip("no kernel computes on a simulated GPU")
    count = row.roles.count("T")
    grid = list(itertools.product(SPECIAL, repeat=min(count, 2)))
    columns = [torch.tensor(column) for column in zip(*grid, strict=True)]
    columns += [torch.full((len(grid),), 0.75)] * (count - len(columns))
    for given, named in calls_of(row, (1,), torch.float32):
        tensors = iter(columns)
        given = [next(tensors) if isinstance(t, torch.Tensor) else t for t in given]
        want = packet(row)(*given, **named)
        got = packet(row)(*on(DEVICE, given), **named).cpu()
        # Where one of two libraries flushes denormal numbers the quotient differs beyond all bounds.
        usual = ~torch.stack([(t.abs() < 1e-38) & (t != 0) for t in columns]).any(0)
        if row.overload == "gelu":
            usual &= columns[0] != torch.inf  # of which the CPU's vectors make NaN
        if "_backward" in row.overload:
            # Where x is NaN, CPU and CUDA differ: here the gradient passes, as on CUDA. Of 1e30 the last digits do.
            usual &= ~columns[1].isnan() & (columns[0].abs() != 1e30)
        torch.testing.assert_close(got[usual], want[usual], rtol=1e-5, atol=1e-6, equal_nan=True)
        if want.dtype.is_floating_point and row.function in ("neg", "abs", "mul", "copysign", "trunc", "ceil", "floor"):
            zeros = usual & (want == 0)
            assert torch.equal(got[zeros].signbit(), want[zeros].signbit())


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.rotates(3)
def test_integers_at_their_ends(dtype):
    """Quotients that a processor traps (by zero, of the least by -1) neither stop the process nor the device."""
    info = torch.iinfo(dtype)
    ends = [info.min, info.min + 1, -1 if info.min else 1, 0, 1, 2, 7, info.max - 1, info.max]
    pairs = list(itertools.product(ends, repeat=2))
    x, y = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    other = y != 0
    for function in (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        torch.remainder,
        torch.fmod,
    ):
        got = function(x.to(DEVICE), y.to(DEVICE)).cpu()
        if not simulate.active():
            trapped = (x == info.min) & (y == -1) & (info.min < 0)
            sure = other & ~trapped
            assert torch.equal(got[sure], function(x[sure], y[sure]))
    for function in (torch.add, torch.sub, torch.mul, torch.maximum, torch.bitwise_and, torch.eq, torch.lt):
        near(function(x.to(DEVICE), y.to(DEVICE)), function(x, y), function)
    shifts = torch.tensor([0, 1, 7, info.bits - 1, info.bits, info.bits + 3], dtype=dtype)
    for function in (torch.bitwise_left_shift, torch.bitwise_right_shift):
        near(function(x[:, None].to(DEVICE), shifts.to(DEVICE)), function(x[:, None], shifts), function)
    near(torch.pow(x.to(DEVICE), y.abs().clamp(max=5).to(DEVICE)), torch.pow(x, y.abs().clamp(max=5)), "pow")


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.float32, torch.bfloat16], ids=str)
def test_division_without_rounding_is_true_division(dtype):
    """``rounding_mode=None``, in every form that has the argument."""
    x, y = (torch.randint(1, 9, (7,)).to(dtype) for _ in range(2))
    here, there = (x, y), (x.to(DEVICE), y.to(DEVICE))
    divide = torch.ops.aten.div
    for a, b in (here, (x, y[0]), (x[0], y)):
        want = torch.true_divide(a, b)
        c, d = a.to(DEVICE), b.to(DEVICE)
        near(divide.Tensor_mode(c, d, rounding_mode=None), want)
        near(divide.out_mode(c, d, rounding_mode=None, out=torch.empty(0, dtype=want.dtype, device=DEVICE)), want)
    near(divide.Scalar_mode(there[0], 3, rounding_mode=None), divide.Scalar_mode(x, 3, rounding_mode=None))
    if dtype.is_floating_point:
        near(there[0].clone().div_(there[1], rounding_mode=None), x / y)
    else:
        with pytest.raises(RuntimeError, match="can't be cast"):
            there[0].div_(there[1], rounding_mode=None)


def test_numbers_keep_their_digits():
    """A Python number beside 16-bit floats is not rounded to 16 bits first; integers beyond 2**53 are exact."""
    x = torch.randn(100).bfloat16()
    near(x.to(DEVICE) * 1.001, x * 1.001)
    near(x.to(DEVICE) + 0.001, x + 0.001)
    large = torch.tensor([2**62 + 1, -(2**61) - 3])
    near(large.to(DEVICE) + (2**53 + 1), large + (2**53 + 1))
    if has(torch.float64):
        near(torch.ones(3, dtype=torch.float64).to(DEVICE) * 0.1, torch.ones(3, dtype=torch.float64) * 0.1)


# Call -> the words of the error that torch raises for it on every device.
ERRORS = {
    "bools are not subtracted": (lambda d: torch.ones(2, device=d).bool() - torch.ones(2, device=d).bool(), "bool"),
    "shapes that do not match": (lambda d: torch.ones(2, device=d) + torch.ones(3, device=d), "must match"),
    "a float into an integer": (lambda d: torch.ones(2, dtype=torch.int32, device=d).add_(1.5), "can't be cast"),
    "alpha of integers": (
        lambda d: torch.add(torch.ones(2, dtype=torch.int32, device=d), torch.ones(2, dtype=torch.int32, device=d),
                            alpha=1.5), "alpha"),
    "an expanded result": (lambda d: torch.ones(1, device=d).expand(3).add_(1), "more than one element"),
    "types that differ": (lambda d: torch.lerp(torch.ones(2, device=d), torch.ones(2, device=d).double(), 0.5),
                          "dtype"),
    "bits of floats": (lambda d: torch.bitwise_and(torch.ones(2, device=d), torch.ones(2, device=d)),
                       "not implemented"),
    "a negative power of integers": (lambda d: torch.ones(2, dtype=torch.int32, device=d) ** -1, "negative integer"),
    "an out that overlaps": (lambda d: (lambda t: torch.add(t[1:], 1, out=t[:-1]))(torch.ones(5, device=d)),
                             "single memory location"),
    "no limit": (lambda d: torch.clamp(torch.ones(2, device=d)), "At least one of"),
    "a negative order": (lambda d: torch.polygamma(-1, torch.ones(2, device=d)), "negative n"),
    "a result of a negative slope": (lambda d: _gradient(F.leaky_relu_, d, -0.5), "negative slope"),
    "elu's too": (lambda d: _gradient(F.elu_, d, -2.0), "negative slope"),
    "celu's too": (lambda d: _gradient(F.celu_, d, -2.0), "negative slope"),
}  # fmt: skip


def _gradient(function: Callable[..., torch.Tensor], device: str, slope: float) -> None:
    x = torch.tensor([-1.0, 1.0], device=device, requires_grad=True)
    function(x.clone(), slope).sum().backward()


def test_a_choice_of_two_numbers_of_the_host():
    """Which torch brings to the condition's device, as it brings one number to any operator's."""
    chosen = torch.rand(3, 4) < 0.5
    for one, other in ((2.5, torch.tensor(-1.0)), (torch.tensor(3), 7), (torch.tensor(1.5), torch.tensor(2.5))):
        near(torch.where(chosen.to(DEVICE), one, other), torch.where(chosen, one, other), (one, other))


def test_numbers_beyond_int64():
    x = torch.tensor([0, 5, 2**63, 2**64 - 1], dtype=torch.uint64)
    for number in (5, 2**63, 2**64 - 1):
        assert x.to(DEVICE).eq(number).tolist() == [v == number for v in (0, 5, 2**63, 2**64 - 1)]


def test_threshold_may_write_an_element_twice():
    x = torch.randn(1, 6)
    many = x.to(DEVICE).expand(4, 6)
    F.threshold_(many, 0.25, 3.0)
    near(many, torch.where(x > 0.25, x, 3.0).expand(4, 6))


BOOLS = {
    "sum": lambda b, i: b + b.flip(0),
    "sum with a whole alpha": lambda b, i: torch.add(b, b.flip(0), alpha=2),
    "sum in place": lambda b, i: b.clone().add_(b.flip(0)),
    "power of bools": lambda b, i: b**2,
    "bools to integers": lambda b, i: b**i,
    "number to bools": lambda b, i: 2**b,
    "remainder": lambda b, i: b % (i + 1),
    "floor division": lambda b, i: b // 2,
    "shift": lambda b, i: torch.bitwise_left_shift(b, i),
    "filled with a number": lambda b, i: b.masked_fill(i > 1, 1),
    "filled with a fraction": lambda b, i: b.masked_fill(i > 1, 0.5),
    "integers filled with a fraction": lambda b, i: i.masked_fill(b, -2.75),
    "is no number": lambda b, i: torch.stack([b.isnan(), i.isnan(), i.isposinf(), b.isneginf(), i.isinf()]),
    "number to integers": lambda b, i: 2**i,
    "number to bytes": lambda b, i: 3 ** (i * 4).to(torch.uint8),
    "number to integers below 0": lambda b, i: (-1) ** (i - 2),
}


@pytest.mark.parametrize("what", BOOLS)
def test_bools_and_numbers_beside_integers(what):
    b, i = torch.rand(7, 5) < 0.5, torch.randint(0, 4, (7, 5))
    ways = served_by(lambda: near(BOOLS[what](b.to(DEVICE), i.to(DEVICE)), BOOLS[what](b, i), what))
    assert not any("host" in how for how in ways.values()), ways


@pytest.mark.parametrize("value", [2.5, 3, torch.tensor(2.5), torch.tensor(3)], ids=str)
def test_a_part_of_a_tensor_is_filled_where_a_mask_says(value):
    x, mask = torch.randn(6, 5, 4), torch.rand(6, 1) < 0.5

    def filled(device):
        made = x.to(device)
        made[:, 1:4, 2].masked_fill_(mask.to(device), value)
        made[mask[:, 0].to(device), 0, 1] = value
        made.transpose(0, 1)[::2].masked_fill_(mask.to(device), value)
        return made

    ways = served_by(lambda: near(filled(DEVICE), filled("cpu")))
    assert not any("host" in how for how in ways.values()), ways


@pytest.mark.parametrize("name", ERRORS)
def test_torchs_errors_are_raised_and_the_device_goes_on(name):
    call, words = ERRORS[name]
    if "double" in name and not has(torch.float64):
        pytest.skip("the device has no float64")
    with pytest.raises((RuntimeError, NotImplementedError)) as here:
        call("cpu")
    with pytest.raises(type(here.value), match=words):
        call(DEVICE)
    near(torch.ones(3, device=DEVICE) + 1, torch.full((3,), 2.0))


def test_operands_of_another_device_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
    near(torch.ones(3, device=DEVICE) * torch.tensor(2.0), torch.full((3,), 2.0))


def test_a_new_size_compiles_nothing():
    x = torch.randn(11, 3, device=DEVICE)
    x * x[:, :1]
    x.t() + x.t()
    from anyxpu.ops import prepared

    before = prepared.compiled()
    for n in (12, 100, 5000):
        y = torch.randn(n, 3)
        there = y.to(DEVICE)
        near(there * there[:, :1], y * y[:, :1])
        near(there.t() + there.t(), y.t() + y.t())
    assert prepared.compiled() == before


def test_another_process_finds_the_kernels_and_loads_no_triton(run_python, tmp_path):
    source = """
        import sys, torch
        from anyxpu.ops import prepared
        x = torch.arange(5., device="xpu")
        y = torch.sigmoid(x) * 3 - x
        print(y.tolist())
        print(prepared.compiled(), "triton" in sys.modules)
    """
    first = run_python(source, ANYXPU_EAGER="compile", ANYXPU_CACHE_DIR=None)
    again = run_python(source, ANYXPU_EAGER="compile", ANYXPU_CACHE_DIR=None)
    assert first.stdout.splitlines()[0] == again.stdout.splitlines()[0]
    assert again.stdout.splitlines()[1] == "0 False"


def test_strict_names_the_operator_and_the_way_out():
    x = torch.randn(4, device=DEVICE)
    lib().set_eager("strict")
    x.exp().mul_(2)
    with pytest.raises(NotImplementedError, match=r"aten::_fft_r2c.*ANYXPU_EAGER"):
        torch.fft.rfft(x)


def test_the_host_serves_while_a_kernel_is_built(run_python):
    """With ``auto``: the host at first, the same numbers, and the kernel as soon as it is there."""
    source = """
        import time, torch, anyxpu.ops
        x = torch.randn(3, 5)
        there = x.to("xpu")
        def ways():
            return anyxpu.ops.counters().get("aten::sigmoid", {})
        end = time.monotonic() + 200
        while "compiled" not in ways() and time.monotonic() < end:
            torch.testing.assert_close(torch.sigmoid(there).cpu(), torch.sigmoid(x))
            time.sleep(0.2)
        print(sorted(ways()), ways().get("host", 0) >= 2)
    """
    if simulate.active():
        pytest.skip("a GPU's kernels are waited for")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        from pathlib import Path

        from anyxpu.cache import cache_dir

        Path(folder, "build").symlink_to(cache_dir("build"))
        done = run_python(source, ANYXPU_EAGER="auto", ANYXPU_CACHE_DIR=folder)
    assert done.stdout.split("\n")[0] == "['compiled', 'host'] True"


def test_work_of_two_streams_is_ordered_by_an_event():
    x = torch.randn(1 << 20, device=DEVICE)
    stream = torch.xpu.Stream()
    stream.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(stream):
        y = x
        for _ in range(50):
            y = y * 2 - y
        event = stream.record_event()
    torch.xpu.current_stream().wait_event(event)
    near(y + 1, x.cpu() + 1)


def test_kernels_run_on_the_tensors_device(run_python):
    """Whatever the current device is; tensors of two devices are refused."""
    run_python(
        """
        import torch
        assert torch.xpu.device_count() == 2 and torch.xpu.current_device() == 0
        here = torch.arange(6.0).view(2, 3)
        x = here.to("xpu:1")
        before = torch.xpu.memory_allocated(1)
        results = [x * 2 + 1, x.sum(0), x.softmax(1), x.index_select(0, torch.tensor([1], device="xpu:1"))]
        assert all(r.device == torch.device("xpu", 1) for r in results)
        assert torch.xpu.memory_allocated(1) > before and torch.xpu.memory_allocated(0) == 0
        wanted = [here * 2 + 1, here.sum(0), here.softmax(1), here[1:]]
        for got, want in zip(results, wanted):
            torch.testing.assert_close(got.cpu(), want)
        try:
            x + here.to("xpu:0")
        except RuntimeError as error:
            assert "same device" in str(error), error
        else:
            raise AssertionError("two devices in one sum")
        """,
        ANYXPU_DEVICES="2",
    )


def test_activations_have_the_cpus_gradients():
    for function in (F.gelu, F.silu, F.mish, F.elu, F.softplus, F.hardswish, F.hardsigmoid, F.leaky_relu, torch.tanh,
                     torch.sigmoid, F.relu, F.hardtanh, F.softshrink, F.hardshrink, F.logsigmoid, F.relu6, F.selu,
                     F.celu):  # fmt: skip
        x = torch.randn(50, 3, requires_grad=True)
        there = x.detach().to(DEVICE).requires_grad_()
        grad = torch.randn(3, 50).t()
        function(x).backward(grad)
        function(there).backward(grad.to(DEVICE))
        near(there.grad, x.grad, function)
