"""Kernels through ``@triton.jit`` on the device: what each op computes, against PyTorch or NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.triton_support import launch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
WARPS = [{}, {"num_warps": 4, "keep_warps": True}]


def random(shape: tuple[int, ...] | int, dtype: torch.dtype) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, dtype=torch.float64) * 4).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype)


@triton.jit
def add_kernel(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, m) + tl.load(y + i, m), m)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
def test_addition_in_every_type_wraps_or_rounds_like_torch(dtype, options):
    n = 1000
    x, y = random(n, dtype), random(n, dtype)
    guard = 24
    o = torch.full((n + guard,), 77, dtype=dtype)
    launch(add_kernel, (triton.cdiv(n, 256),), x, y, o, n, B=256, **options)
    assert torch.equal(o[:n], x + y)
    assert (o[n:] == 77).all(), "a masked-out lane wrote"


@triton.jit
def arithmetic_kernel(x, y, o, n, OP: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + i, i < n)
    b = tl.load(y + i, i < n, other=1)
    if OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "idiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    elif OP == "shl":
        r = a << (b & 7)
    elif OP == "shr":
        r = a >> (b & 7)
    elif OP == "min":
        r = tl.minimum(a, b)
    elif OP == "max":
        r = tl.maximum(a, b)
    tl.store(o + i, r, i < n)


def _truncated_quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


INTEGER_OPS = {
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "idiv": _truncated_quotient,
    "mod": lambda x, y: x - _truncated_quotient(x, y) * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << (y & 7),
    "shr": lambda x, y: x >> (y & 7),
    "min": torch.minimum,
    "max": torch.maximum,
}


@pytest.mark.rotates(3)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", INTEGER_OPS)
def test_integer_arithmetic_has_c_semantics(op, dtype):
    n = 500
    x, y = random(n, dtype), random(n, dtype)
    y[y == 0] = 3
    if dtype != torch.uint8:
        y[(y == -1) & (x == torch.iinfo(dtype).min)] = 3  # overflows: no answer
    o = torch.zeros_like(x)
    launch(arithmetic_kernel, (4,), x, y, o, n, OP=op, B=128)
    assert torch.equal(o, INTEGER_OPS[op](x, y))


def test_integer_division_by_zero_does_not_stop_the_process():
    x, y = random(64, torch.int32), torch.zeros(64, dtype=torch.int32)
    o = torch.zeros_like(x)
    launch(arithmetic_kernel, (1,), x, y, o, 64, OP="idiv", B=64)
    launch(arithmetic_kernel, (1,), x, y, o, 64, OP="mod", B=64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["sub", "mul", "div", "min", "max", "mod"])
def test_float_arithmetic_is_rounded_once(op, dtype):
    n = 2000
    x, y = random(n, dtype), random(n, dtype)
    o = torch.zeros_like(x)
    launch(arithmetic_kernel, (16,), x, y, o, n, OP=op, B=128)
    functions = {
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "min": torch.minimum,
        "max": torch.maximum,
        "mod": torch.fmod,
    }
    if op == "div" and dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(o, (x.float() / y.float()).to(dtype))  # Triton divides these in f32
    elif op == "mod" and dtype != torch.float64:
        assert torch.equal(o, torch.fmod(x.double(), y.double()).to(dtype))
    else:
        assert torch.equal(o, functions[op](x, y))


@triton.jit
def minmax_kernel(x, y, lo, hi, plo, phi, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(lo + i, tl.minimum(a, b))
    tl.store(hi + i, tl.maximum(a, b))
    tl.store(plo + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(phi + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))


def test_minimum_and_maximum_drop_or_propagate_nan():
    special = [float("nan"), 1.0, -1.0, float("inf"), -float("inf"), 0.0, 2.5, -7.0]
    x = torch.tensor(special).repeat(8)
    y = torch.tensor(special).repeat_interleave(8)
    out = [torch.zeros(64) for _ in range(4)]
    launch(minmax_kernel, (1,), x, y, *out, B=64)
    expected = [torch.fmin(x, y), torch.fmax(x, y), torch.minimum(x, y), torch.maximum(x, y)]
    for o, e in zip(out, expected, strict=True):
        assert torch.equal(torch.nan_to_num(o, 123.0), torch.nan_to_num(e, 123.0))


@triton.jit
def cast_kernel(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n).to(o.dtype.element_ty), i < n)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_casts_between_all_types_match_torch(source, target):
    n = 1024
    x = random(n, source)
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        x = (x.abs() if target == torch.uint8 else x).clamp(-100, 100)  # out of range there is no answer
    o = torch.zeros(n, dtype=target)
    launch(cast_kernel, (8,), x, o, n, B=128)
    expected = x.to(target)
    if source == torch.float64 and target in (torch.float16, torch.bfloat16):
        expected = _rounded_once(x, target)
    if not source.is_floating_point and target in (torch.float16, torch.bfloat16):
        expected = _rounded_once(x, target)
    assert torch.equal(o, expected)


def _rounded_once(x: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """The exact value of ``x`` rounded to nearest even, by integer arithmetic on each element."""
    out = []
    digits = {torch.float16: 11, torch.bfloat16: 8}[target]
    for value in x.tolist():
        numerator, denominator = float(value).as_integer_ratio() if isinstance(value, float) else (int(value), 1)
        magnitude = abs(numerator)
        if magnitude == 0:
            out.append(0.0)
            continue
        exponent = magnitude.bit_length() - denominator.bit_length()
        shift = digits - 1 - exponent
        for s in (shift, shift + 1, shift - 1):
            scaled = (magnitude << max(s, 0), denominator << max(-s, 0))
            if 1 << (digits - 1) <= scaled[0] // scaled[1] < 1 << digits:
                quotient, rest = divmod(*scaled)
                quotient += 2 * rest > scaled[1] or (2 * rest == scaled[1] and quotient & 1)
                out.append(float(np.ldexp(float(quotient), -s)) * (1 if numerator > 0 else -1))
                break
    return torch.tensor(out, dtype=torch.float64).to(target)


def test_f32_to_bf16_keeps_nan_and_infinity():
    x = torch.tensor([float("nan"), -float("inf"), float("inf"), 3.4e38, -0.0, 1e-40, 2.0**-133, 5.0])
    x = torch.cat([x, torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32), torch.zeros(6)])
    o = torch.zeros(16, dtype=torch.bfloat16)
    launch(cast_kernel, (1,), x, o, 16, B=16)
    assert torch.equal(torch.nan_to_num(o.float(), 9.0), torch.nan_to_num(x.bfloat16().float(), 9.0))
    number = ~x.isnan()
    assert torch.equal(torch.signbit(o[number]), torch.signbit(x[number])), "a sign was lost"


@triton.jit
def math_kernel(x, o, n, F: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + i, i < n, other=1)
    if F == "exp":
        r = tl.exp(a)
    elif F == "exp2":
        r = tl.exp2(a)
    elif F == "log":
        r = tl.log(tl.abs(a))
    elif F == "log2":
        r = tl.log2(tl.abs(a))
    elif F == "sqrt":
        r = tl.sqrt(tl.abs(a))
    elif F == "rsqrt":
        r = tl.rsqrt(tl.abs(a))
    elif F == "sin":
        r = tl.sin(a)
    elif F == "cos":
        r = tl.cos(a)
    elif F == "erf":
        r = tl.erf(a)
    elif F == "floor":
        r = tl.floor(a)
    elif F == "ceil":
        r = tl.ceil(a)
    elif F == "sigmoid":
        r = tl.sigmoid(a)
    tl.store(o + i, r, i < n)


MATH = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": lambda x: torch.log(x.abs()),
    "log2": lambda x: torch.log2(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MATH)
def test_math_functions_agree_with_f64(name, dtype):
    x = random(512, dtype)
    o = torch.zeros_like(x)
    launch(math_kernel, (4,), x, o, 512, F=name, B=128)
    reference = MATH[name](x.double())
    error = (o.double() - reference).abs() / reference.abs().clamp(min=1e-3)
    assert error.max() < (2e-6 if dtype == torch.float32 else 1e-13)


@triton.jit
def broadcast_kernel(x, y, o, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    a = tl.load(x + r)
    b = tl.load(y + c)
    tl.store(o + r * N + c, a * 10 + b)


@pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 64), (64, 1), (2, 4), (16, 16), (8, 256), (256, 8), (128, 128)])
def test_broadcasts_pair_every_row_with_every_column(m, n, options):
    x, y = random(m, torch.float32), random(n, torch.float32)
    o = torch.zeros(m, n)
    launch(broadcast_kernel, (1,), x, y, o, M=m, N=n, **options)
    assert torch.equal(o, x[:, None] * 10 + y[None, :])


@triton.jit
def transpose_kernel(x, o, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    t = tl.trans(tl.load(x + r * N + c))
    tl.store(o + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], t)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
@pytest.mark.parametrize(("m", "n"), [(4, 4), (16, 64), (64, 16), (128, 2), (1, 32)])
def test_layout_conversion_moves_each_element_to_its_place(m, n, dtype, options):
    x = random((m, n), dtype)
    o = torch.zeros(n, m, dtype=dtype)
    launch(transpose_kernel, (1,), x, o, M=m, N=n, **options)
    assert torch.equal(o, x.T)


@triton.jit
def shapes_kernel(x, y, joined, halves, wide, swapped, taken, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    j = tl.join(a, b)
    tl.store(joined + i[:, None] * 2 + tl.arange(0, 2)[None, :], j)
    p, q = tl.split(j)
    tl.store(halves + i, p)
    tl.store(halves + N + i, q)
    tl.store(wide + tl.arange(0, 2 * N), tl.cat(a, b, can_reorder=True))
    g = tl.reshape(a, (N // 4, 4))
    tl.store(swapped + tl.arange(0, 4)[:, None] * (N // 4) + tl.arange(0, N // 4)[None, :], tl.permute(g, (1, 0)))
    tl.store(taken + i, tl.gather(a, i ^ 5, 0))


@pytest.mark.parametrize("n", [8, 16, 64, 256])
@pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
def test_join_split_cat_reshape_permute_gather(n, options):
    x, y = random(n, torch.float32), random(n, torch.float32)
    joined, halves, wide = torch.zeros(n, 2), torch.zeros(2, n), torch.zeros(2 * n)
    swapped, taken = torch.zeros(4, n // 4), torch.zeros(n)
    launch(shapes_kernel, (1,), x, y, joined, halves, wide, swapped, taken, N=n, **options)
    assert torch.equal(joined, torch.stack([x, y], 1))
    assert torch.equal(halves, torch.stack([x, y]))
    assert torch.equal(wide.sort().values, torch.cat([x, y]).sort().values)
    assert torch.equal(swapped, x.reshape(n // 4, 4).T)
    assert torch.equal(taken, x[torch.arange(n) ^ 5])


@triton.jit
def pairs_kernel(x, y, o, M: tl.constexpr, N: tl.constexpr, SHIFTED: tl.constexpr):
    i, j = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tl.arange(0, 2 * N)
    a, b = tl.load(x + i), tl.load(y + i)
    both = tl.reshape(tl.join(a, b), (M, 2 * N))
    if SHIFTED:  # read by other lanes than have written it
        both = tl.reshape(tl.permute(tl.reshape(both, (M, N, 2)), (0, 2, 1)), (M, 2 * N))
    tl.store(o + tl.arange(0, M)[:, None] * 2 * N + j[None, :], both)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 16), (4, 32), (2, 8), (64, 64)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("options", WARPS, ids=["cpu", "warps"])
def test_rows_that_are_joined_lie_between_each_other(dtype, shape, shifted, options):
    m, n = shape
    x, y = random((m, n), dtype), random((m, n), dtype)
    o = torch.zeros(m, 2 * n, dtype=dtype)
    launch(pairs_kernel, (1,), x, y, o, M=m, N=n, SHIFTED=shifted, **options)
    assert torch.equal(o, torch.cat([x, y], 1) if shifted else torch.stack([x, y], 2).view(m, 2 * n))


@triton.jit
def scaled_rows_kernel(x, factors, o, B: tl.constexpr, VOLATILE: tl.constexpr):
    row, column = tl.program_id(0) + tl.arange(0, 1)[:, None], tl.arange(0, B)[None, :]
    value = tl.load(x + row * B + column)
    tl.store(o + row * B + column, value * tl.load(factors + row, volatile=VOLATILE))


@pytest.mark.not_simulated("it reads the CPU's code and compares values")
@pytest.mark.parametrize("volatile", [False, True])
def test_a_factor_of_a_row_does_not_part_its_loop(volatile):
    """Read before the row, it is there when the row is read; a volatile one is read where it stands."""
    x, factors, o = random((7, 1024), torch.float32), random(7, torch.float32), torch.zeros(7, 1024, device="xpu")
    kernel = scaled_rows_kernel[(7,)](x.to("xpu"), factors.to("xpu"), o, B=1024, VOLATILE=volatile, num_warps=1)
    assert torch.equal(o.cpu(), x * factors[:, None])
    assert ("float_slot" in kernel.asm["cl"]) == volatile, kernel.asm["cl"]


@triton.jit
def masked_kernel(x, o, mask, B: tl.constexpr):
    i = tl.arange(0, B)
    m = tl.load(mask + i) != 0
    # A masked-out lane's address is wild: touching it would crash.
    far = tl.where(m, i, i + (1 << 30))
    v = tl.load(x + far.to(tl.int64) * 64, m, other=-5)
    tl.store(o + tl.where(m, i, (1 << 30)).to(tl.int64) * 64, v + 1, m)
    tl.store(o + B * 64 + i, v)


def test_masked_lanes_touch_no_memory_and_read_other():
    b = 128
    mask = (torch.rand(b) < 0.5).to(torch.int8)
    x = random(b * 64, torch.float32)
    o = torch.full((b * 64 + b,), 9.0)
    launch(masked_kernel, (1,), x, o, mask, B=b)
    m = mask.bool()
    assert torch.equal(o[: b * 64 : 64], torch.where(m, x[::64] + 1, 9.0))
    assert torch.equal(o[b * 64 :], torch.where(m, x[::64], -5.0))


@triton.jit
def wrap_kernel(o, seed, B: tl.constexpr):
    i = tl.arange(0, B)
    h = (i + seed) * -1640531527
    h = (h ^ (h >> 13)) * 1274126177
    tl.store(o + i, h)


def test_integer_overflow_wraps_in_hashes():
    o = torch.zeros(256, dtype=torch.int32)
    seed = int(torch.randint(0, 1 << 30, ()))
    launch(wrap_kernel, (1,), o, seed, B=256)
    with np.errstate(over="ignore"):
        h = (np.arange(256, dtype=np.int32) + np.int32(seed)) * np.int32(-1640531527)
        h = (h ^ (h >> np.int32(13))) * np.int32(1274126177)
    assert torch.equal(o, torch.from_numpy(h))


@triton.jit
def rounding_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(o + i, (a * a + a) * a)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_floats_round_after_every_operation(dtype):
    x = torch.rand(256).to(dtype)
    o = torch.zeros_like(x)
    launch(rounding_kernel, (1,), x, o, B=256)
    assert torch.equal(o, (x * x + x) * x)


@triton.jit
def scalar_kernel(o, b, i, f, h, d, x):
    tl.store(o, tl.where(b, 1.0, 2.0))
    tl.store(o + 1, i.to(tl.float32))
    tl.store(o + 2, f)
    tl.store(o + 3, h.to(tl.float32))
    tl.store(o + 4, d)
    tl.store(o + 5, tl.load(x) + tl.program_id(0) + tl.num_programs(0))


def test_scalar_arguments_of_every_kind():
    o, x = torch.zeros(6), torch.tensor([2.5])
    launch(scalar_kernel, (1,), o, True, 1 << 20, 0.1, 0.5, 3.25, x)
    assert torch.equal(o, torch.tensor([1.0, float(1 << 20), 0.1, 0.5, 3.25, 3.5]))


@triton.jit
def coordinates_kernel(q, r, q2, D: tl.constexpr, B: tl.constexpr, M: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(q + i, i // D)
    tl.store(r + i, i % D)
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    columns = tl.arange(0, 16)[None, :]
    tl.store(q2 + rows * 16 + columns, rows // D * 100 + columns // 4 + (rows % D) * 10 + columns % 4)


@pytest.mark.parametrize("divisor", [2, 8, 32, 128, 1024, 7, 48, 96, 100, 320, 1280])
def test_coordinates_of_numbered_elements(divisor):
    block, programs = 128, 12
    n = block * programs
    q, r, q2 = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32), torch.zeros(8 * 12 * 16)
    launch(coordinates_kernel, (programs,), q, r, q2, D=divisor, B=block, M=8)
    i = torch.arange(n)
    assert torch.equal(q, (i // divisor).int()) and torch.equal(r, (i % divisor).int())
    rows, columns = torch.arange(96)[:, None], torch.arange(16)[None, :]
    expected = rows // divisor * 100 + columns // 4 + rows % divisor * 10 + columns % 4
    assert torch.equal(q2.view(96, 16), expected.float())


@triton.jit
def shifted_kernel(o, offset, D: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + offset + tl.arange(0, B)
    tl.store(o + tl.program_id(0) * B + tl.arange(0, B), (i // D) * 1000 + i % D)


@pytest.mark.parametrize("divisor", [32, 96])
@pytest.mark.parametrize("offset", [0, 3, 64, -64, -5])
def test_coordinates_from_an_offset_that_may_be_negative(offset, divisor):
    o = torch.zeros(256, dtype=torch.int32)
    launch(shifted_kernel, (4,), o, offset, D=divisor, B=64)
    i = torch.arange(256) + offset  # Triton divides as C does, towards zero
    quotient = torch.div(i, divisor, rounding_mode="trunc")
    assert torch.equal(o, (quotient * 1000 + i - quotient * divisor).int())


@triton.jit
def looped_coordinates_kernel(o, n, D: tl.constexpr, B: tl.constexpr):
    for start in range(0, n, B):
        i = start + tl.arange(0, B)
        tl.store(o + i, (i // D) * 1000 + i % D)
    for start in range(8, n, B):
        i = start + tl.arange(0, B)
        tl.store(o + n + i, (i // D) * 1000 + i % D)


@pytest.mark.parametrize("divisor", [4, 32, 128, 48, 96])
def test_coordinates_counted_by_a_loop(divisor):
    o, n = torch.zeros(512 + 64, dtype=torch.int32), 256
    launch(looped_coordinates_kernel, (1,), o, n, D=divisor, B=32)
    i = torch.arange(n + 8)
    expected = (i // divisor * 1000 + i % divisor).int()
    assert torch.equal(o[:n], expected[:n]) and torch.equal(o[n + 8 : 2 * n + 8], expected[8:])


@triton.jit
def resampling_kernel(x, o, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    channel = tl.program_id(1) * Y + tl.arange(0, Y)[:, None]
    place = tl.program_id(0) * X + tl.arange(0, X)[None, :]
    row, column = place // (2 * WIDTH), place % (2 * WIDTH)
    at = tl.maximum((column.to(tl.float32) - 0.5) * 0.5, 0.0)
    left = at.to(tl.int32)
    right = tl.minimum(left.to(tl.int64) + 1, WIDTH - 1)
    part = at - left.to(tl.float32)
    rows = x + (row.to(tl.float32) * 0.5).to(tl.int32) * WIDTH * CHANNELS + channel
    a, b = tl.load(rows + left * CHANNELS, channel < CHANNELS), tl.load(rows + right * CHANNELS, channel < CHANNELS)
    tl.store(o + place * CHANNELS + channel, a + (b - a) * part, channel < CHANNELS)


@pytest.mark.parametrize(("width", "channels"), [(16, 64), (24, 40)])
def test_what_all_lanes_hold_alike_addresses_what_they_read(width, channels):
    # As Inductor resamples channels-last images: the places to read are computed once for all channels.
    x, o = torch.randn(width, width, channels), torch.zeros(2 * width, 2 * width, channels)
    grid = (4 * width * width // 64, -(-channels // 64))
    launch(resampling_kernel, grid, x, o, WIDTH=width, CHANNELS=channels, Y=64, X=64)
    column = torch.arange(2 * width)
    at = ((column - 0.5) * 0.5).clamp(min=0)
    left = at.long()
    right, part = (left + 1).clamp(max=width - 1), (at - left)[:, None]
    rows = x[column // 2]
    assert torch.allclose(o, rows[:, left] * (1 - part) + rows[:, right] * part, atol=1e-6)


@triton.jit
def choosing_kernel(x, m, o, p, B: tl.constexpr):
    i = tl.arange(0, B)
    v, chosen = tl.load(x + i), tl.load(m + i) != 0
    up, down, turned = tl.cumsum(v, 0), tl.cumsum(v, 0, reverse=True), tl.flip(v, 0)
    first = tl.where(chosen, up, tl.where(v > 0, down, turned))
    second = tl.where(chosen, turned, up)
    if tl.sum(v, 0) > 0:
        second = tl.where(chosen, down, first)
    for _ in range(3):
        first, second = tl.where(v > 1, second, first), tl.where(chosen, first + 1, up)
    tl.store(o + i, first)
    tl.store(p + i, second)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 512, 2048])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_choice_between_arrays_takes_the_right_elements(size, sign):
    x, m = torch.randint(-3, 4, (size,)).float(), torch.randint(0, 2, (size,), dtype=torch.int32)
    x[0] = sign * (x.abs().sum() + 1)
    o, p = torch.zeros(size), torch.zeros(size)
    launch(choosing_kernel, (1,), x, m, o, p, B=size)
    chosen, up, down, turned = m != 0, x.cumsum(0), x.flip(0).cumsum(0).flip(0), x.flip(0)
    first = torch.where(chosen, up, torch.where(x > 0, down, turned))
    second = torch.where(chosen, down, first) if x.sum() > 0 else torch.where(chosen, turned, up)
    for _ in range(3):
        first, second = torch.where(x > 1, second, first), torch.where(chosen, first + 1, up)
    assert torch.equal(o, first) and torch.equal(p, second)
