"""The rest of triton.language: descriptors, scaled products, mapped scalar functions, large tiles, refusals."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import warnings

import numpy
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from anyxpu import simulate
from anyxpu.errors import UnsupportedOperation
from tests.triton_support import launch, needs_block_pointers

# --- addresses


@triton.jit
def block_pointer_kernel(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    p = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    q = tl.make_block_ptr(o, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    for _ in range(0, N, BN):
        tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
        p, q = tl.advance(p, (0, BN)), tl.advance(q, (0, BN))


@needs_block_pointers
def test_block_pointers_stop_at_the_edges():
    x, o = torch.randn(30, 50), torch.zeros(31, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton calls them deprecated
        launch(block_pointer_kernel, (1,), x, o, 30, 50, BM=32, BN=16)
    assert torch.equal(o[:30], x * 2) and not o[30].any()


@triton.jit
def descriptor_kernel(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    target.store([8, 40], source.load([8, 40]) + 1)


@triton.jit
def host_descriptor_kernel(pair, scale):
    source, target = pair
    target.store([8, 40], source.load([8, 40]) * scale)


def shifted_block(x, f):
    expected = torch.zeros_like(x)
    expected[8:, 40:] = f(x[8:, 40:])
    return expected


def test_a_descriptor_made_in_the_kernel_stops_at_the_edges():
    x, o = torch.randn(30, 48), torch.zeros(30, 48)
    launch(descriptor_kernel, (1,), x, o, 30, 48, BM=32, BN=16)
    assert torch.equal(o, shifted_block(x, lambda v: v + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_descriptors_made_on_the_host_are_arguments_like_others(dtype):
    x = torch.randint(-100, 100, (30, 48)).to(dtype)
    o = torch.zeros_like(x).to("xpu")
    pair = tuple(TensorDescriptor.from_tensor(t, [32, 16]) for t in (x.to("xpu"), o))
    host_descriptor_kernel[(1,)](pair, 3)
    assert torch.equal(o.cpu(), shifted_block(x, lambda v: v * 3))


@triton.jit
def rows_kernel(x, rows, taken, put, total, M, N, B: tl.constexpr, R: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [1, B])
    target = tl.make_tensor_descriptor(put, [M, N], [N, 1], [1, B])
    sums = tl.make_tensor_descriptor(total, [R, B], [B, 1], [R, B])
    index = tl.load(rows + tl.arange(0, R))
    block = source.gather(index, 16)
    tl.store(taken + tl.arange(0, R)[:, None] * B + tl.arange(0, B)[None, :], block)
    target.scatter(block, index, 16)
    sums.atomic_add([0, 0], block)


def test_descriptors_gather_scatter_and_reduce():
    x, rows = torch.randn(30, 48), torch.randperm(30)[:8].int()
    taken, put, total = torch.zeros(8, 16), torch.zeros(30, 48), torch.ones(8, 16)
    launch(rows_kernel, (1,), x, rows, taken, put, total, 30, 48, B=16, R=8)
    chosen = x[rows.long(), 16:32]
    expected = torch.zeros(30, 48)
    expected[rows.long(), 16:32] = chosen
    assert torch.equal(taken, chosen) and torch.equal(put, expected) and torch.equal(total, chosen + 1)


# --- products


@triton.jit
def scaled_kernel(a, sa, b, sb, o, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FA: tl.constexpr,
                  FB: tl.constexpr, PA: tl.constexpr, PB: tl.constexpr, S: tl.constexpr):  # fmt: skip
    m, n, groups = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // S)
    ka, kb = tl.arange(0, K // PA), tl.arange(0, K // PB)
    x, y = tl.load(a + m[:, None] * (K // PA) + ka[None, :]), tl.load(b + kb[:, None] * N + n[None, :])
    rows = tl.load(sa + m[:, None] * (K // S) + groups[None, :])
    if sb is None:
        product = tl.dot_scaled(x, rows, FA, y, None, FB)
    else:
        product = tl.dot_scaled(x, rows, FA, y, tl.load(sb + n[:, None] * (K // S) + groups[None, :]), FB)
    tl.store(o + m[:, None] * N + n[None, :], product)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}


def scaled_operand(form: str, shape: tuple[int, int], axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random elements in their format, and as f64."""
    if form != "e2m1":
        x = torch.randn(shape).to(FORMATS[form])
        return x, x.double()
    stored = list(shape)
    stored[axis] //= 2
    x = torch.randint(0, 256, stored, dtype=torch.uint8)
    halves = [E2M1[(x & 15).long()], E2M1[(x >> 4).long()]]
    return x, torch.stack(halves, axis + 1).flatten(axis, axis + 1)


@pytest.mark.parametrize(
    ("fa", "fb"), [("e4m3", "e5m2"), ("e2m1", "e2m1"), ("e2m1", "bf16"), ("fp16", "e2m1"), ("e5m2", "e4m3")]
)
def test_scaled_products_multiply_each_group_by_its_power_of_two(fa, fb):
    m, n, k, group = 32, 16, 64, 32
    (a, a64), (b, b64) = scaled_operand(fa, (m, k), 1), scaled_operand(fb, (k, n), 0)
    scales = [torch.randint(120, 134, (rows, k // group), dtype=torch.uint8) for rows in (m, n)]
    sa, sb = (torch.exp2(s.double() - 127).repeat_interleave(group, 1) for s in scales)
    if fb not in ("e2m1", "e4m3", "e5m2"):  # 16-bit floats have no scale
        scales[1], sb = None, torch.ones(n, k, dtype=torch.float64)
    packed = {"PA": 2 if fa == "e2m1" else 1, "PB": 2 if fb == "e2m1" else 1}
    o = torch.zeros(m, n)
    launch(scaled_kernel, (1,), a, scales[0], b, scales[1], o, M=m, N=n, K=k, FA=fa, FB=fb, S=group, **packed)
    expected = (a64 * sa) @ (b64 * sb.T)
    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@triton.jit
def batched_kernel(a, b, o, P: tl.constexpr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    z, m, n = tl.arange(0, B)[:, None, None], tl.arange(0, M)[None, :, None], tl.arange(0, N)[None, None, :]
    k = tl.arange(0, K)
    x = tl.load(a + z * M * K + m * K + k[None, None, :])
    y = tl.load(b + z * K * N + k[None, :, None] * N + n)
    tl.store(o + z * M * N + m * N + n, tl.dot(x, y, input_precision=P))


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"])
@pytest.mark.parametrize("sizes", [(2, 16, 16, 32), (1, 1, 1, 1), (4, 2, 8, 1)])
def test_batched_and_small_products_in_every_precision(sizes, precision):
    z, m, n, k = sizes
    a, b, o = torch.randn(z, m, k), torch.randn(z, k, n), torch.zeros(z, m, n)
    launch(batched_kernel, (1,), a, b, o, P=precision, B=z, M=m, N=n, K=k)
    torch.testing.assert_close(o.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


# --- casts


@triton.jit
def through_kernel(x, o, T: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i).to(T).to(o.dtype.element_ty))


@pytest.mark.parametrize(("type", "dtype"), [(tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2)])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_casts_to_fp8_round_to_even_and_saturate(source, type, dtype):
    largest = torch.finfo(dtype).max
    x = torch.cat([torch.randn(1000) * 300, torch.tensor([1e6, -1e6, largest, 0.0, -0.0, 1e-3])])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf]), torch.full((16,), torch.nan)]).to(source)
    o = torch.zeros(1024)
    launch(through_kernel, (1,), x, o, T=type, B=1024)
    assert torch.equal(o[:1008], x[:1008].float().clamp(-largest, largest).to(dtype).float())
    assert o[1008:].isnan().all()


def test_fp8e4b15_is_the_nearest_of_its_numbers():
    codes = torch.arange(128, dtype=torch.int16)
    numbers = (codes << 7).view(torch.float16).double()
    x = torch.cat([torch.rand(990) * 2.2 - 1.1, numbers[:32].float(), torch.tensor([5.0, -5.0])]).half()
    o = torch.zeros(1024)
    launch(through_kernel, (1,), x, o, T=tl.float8e4b15, B=1024)
    distance = (x.double().abs()[:, None] - numbers[None, :]).abs()
    assert torch.equal((x.double().abs() - o.double().abs()).abs(), distance.min(1).values)
    assert torch.equal(torch.signbit(o), torch.signbit(x))


# --- functions


@triton.jit(noinline=True)
def separate(a, b):
    if a > b:
        return a * b, a - b
    return a + b, a


@triton.jit
def calling_kernel(x, o):
    p, q = separate(tl.load(x), tl.load(x + 1))
    r, s = separate(p, q)
    tl.store(o, r)
    tl.store(o + 1, s)


def test_noinline_functions_with_branches_return_what_they_say():
    def reference(a, b):
        return (a * b, a - b) if a > b else (a + b, a)

    for x in ([3.0, 2.0], [2.0, 3.0]):
        o = torch.zeros(2)
        launch(calling_kernel, (1,), torch.tensor(x), o)
        assert o.tolist() == list(reference(*reference(*x)))


@triton.jit
def branching(a, b):
    if a > 0:
        if b > 1:
            return a * b, a
        return a + b, b
    return a - b, a


@triton.jit
def sum_of_two(a, b):
    return a + b, a - b


@triton.jit
def mapping_kernel(x, y, o, p, q, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    u, v = tl.map_elementwise(branching, a, b)
    tl.store(o + i, u)
    tl.store(p + i, v)
    tl.store(q + i, tl.map_elementwise(sum_of_two, a, pack=2)[0])


def test_a_scalar_function_is_mapped_over_tensors_with_its_branches():
    x, y = torch.randn(256), torch.randn(256) + 1
    o, p, q = torch.zeros(256), torch.zeros(256), torch.zeros(256)
    launch(mapping_kernel, (1,), x, y, o, p, q, B=256)
    assert torch.equal(o, torch.where(x > 0, torch.where(y > 1, x * y, x + y), x - y))
    assert torch.equal(p, torch.where((x > 0) & (y <= 1), y, x))


@triton.jit
def tuple_kernel(inputs, o, B: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for j in tl.static_range(len(inputs)):
        total += tl.load(inputs[j] + i) * (j + 1)
    tl.store(o + i, total)


def test_a_tuple_of_tensors_is_an_argument():
    x, o = [torch.randn(32) for _ in range(3)], torch.zeros(32, device="xpu")
    tuple_kernel[(1,)](tuple(t.to("xpu") for t in x), o, B=32)
    torch.testing.assert_close(o.cpu(), x[0] + 2 * x[1] + 3 * x[2])


# --- sizes


@triton.jit
def large_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(o + i, v + tl.sum(v, 0))


@pytest.mark.parametrize("size", [1 << 14, 1 << 17, 1 << 20])
def test_tiles_up_to_tritons_limit(size):
    x, o = torch.randint(-8, 8, (size,)).float(), torch.zeros(size)
    launch(large_kernel, (1,), x, o, B=size)
    assert torch.equal(o, x + x.sum())


@triton.jit
def mixed_kernel(x, o, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + i)
    tl.store(o + i, tl.trans(tl.reshape(tl.trans(tl.cumsum(v, 0)), (N, M))) + tl.sum(v, 1)[:, None])


@pytest.mark.parametrize("warps", [1, 2, 8, 32])
def test_any_number_of_warps_gives_the_same(warps):
    x, o = torch.randint(-8, 8, (32, 64)).float(), torch.zeros(32, 64)
    launch(mixed_kernel, (1,), x, o, M=32, N=64, num_warps=warps, keep_warps=True)
    assert torch.equal(o, x.cumsum(0) + x.sum(1, keepdim=True))


# --- what is read under a condition


@triton.jit
def return_kernel(rows, w, o):
    p = tl.program_id(0)
    row = tl.load(rows + p)
    if row < 0:
        return
    scale = tl.load(w + row)
    tl.store(o + p * 16, scale * 2)
    tl.debug_barrier()
    tl.store(o + p * 16 + 1, scale)


@triton.jit
def if_kernel(rows, w, o):
    p = tl.program_id(0)
    row = tl.load(rows + p)
    if row >= 0:
        scale = tl.load(w + row)
        tl.store(o + p * 16, scale * 2)
        tl.debug_barrier()
        tl.store(o + p * 16 + 1, scale)


@triton.jit
def tile_kernel(rows, w, o):
    p = tl.program_id(0)
    row = tl.load(rows + p)
    if row < 0:
        return
    i = tl.arange(0, 8)
    tile = tl.load(w + row + i)
    tl.store(o + p * 16 + i, tile * 2)
    tl.debug_barrier()
    tl.store(o + p * 16 + 8 + i, tile)


def read_under_conditions(kernel):
    """Of four programs two have rows that are nowhere near ``w``, and must not read them."""
    far = -(1 << 36)
    w, o = torch.randn(16), torch.zeros(4, 16)
    launch(kernel, (4,), torch.tensor([0, far, 3, far]), w, o)
    expected = torch.zeros(4, 16)
    for program, row in ((0, 0), (2, 3)):
        if kernel is tile_kernel:
            expected[program] = torch.cat([w[row : row + 8] * 2, w[row : row + 8]])
        else:
            expected[program, :2] = torch.stack([w[row] * 2, w[row]])
    if not simulate.active():
        assert torch.equal(o, expected), o


@pytest.mark.parametrize("name", ["return_kernel", "if_kernel", "tile_kernel"])
def test_a_load_under_a_condition_is_not_read_ahead_of_it(name):
    """What is loaded is used on both sides of a barrier; the process dies where the load is made for all programs."""
    program = f"from tests import test_triton_language as t; t.read_under_conditions(t.{name})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


# --- hints and refusals


@triton.jit
def hints_kernel(x, o, n, B: tl.constexpr):
    tl.assume(n > 0)
    for start in tl.range(0, n, B, num_stages=3, warp_specialize=True, disallow_acc_multi_buffer=True):
        i = tl.max_contiguous(tl.multiple_of(start + tl.arange(0, B), B), B)
        v = tl.load(x + i, i < n, cache_modifier=".cg", eviction_policy="evict_last", volatile=True)
        tl.debug_barrier()
        tl.store(o + i, v, i < n, cache_modifier=".wb", eviction_policy="evict_first")


def test_hints_change_nothing():
    x, o = torch.randn(100), torch.zeros(128)
    launch(hints_kernel, (1,), x, o, 100, B=32)
    assert torch.equal(o[:100], x) and not o[100:].any()


@triton.jit
def assembly_kernel(x, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(x + i, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], tl.float32, is_pure=True, pack=1))


def test_inline_assembly_is_refused_with_its_text():
    with pytest.raises(Exception, match="assembly_kernel") as caught:
        launch(assembly_kernel, (1,), torch.zeros(16), B=16)
    cause = caught.value if isinstance(caught.value, UnsupportedOperation) else caught.value.__cause__
    assert isinstance(cause, UnsupportedOperation)
    assert "inline assembly" in str(cause) and "mov.b32" in str(cause)


@triton.jit
def instruction_kernel(x, o, TEXT: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.inline_asm_elementwise(TEXT, "=f,f", [tl.load(x + i)], tl.float32, is_pure=True, pack=1))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("tanh.approx.f32 $0, $1;", numpy.tanh),
        ("ex2.approx.ftz.f32 $0, $1;", numpy.exp2),
        ("lg2.approx.f32 $0, $1;", numpy.log2),
        ("sin.approx.f32 $0, $1;", numpy.sin),
        ("cos.approx.f32 $0,$1;", numpy.cos),
        ("rcp.approx.ftz.f32 $0, $1;", numpy.reciprocal),
        ("rsqrt.approx.f32 $0, $1;", lambda x: 1 / numpy.sqrt(x)),
        (" sqrt.rn.f32 $0, $1", numpy.sqrt),
    ],
)
def test_assembly_that_names_a_function_is_that_function(text, reference):
    x, o = torch.rand(256) * 20 + 0.01, torch.zeros(256)
    launch(instruction_kernel, (4,), x, o, TEXT=text, B=64)
    numpy.testing.assert_allclose(o.numpy(), reference(x.double().numpy()), rtol=1e-6, atol=1e-6)


def test_assembly_that_rounds_to_tf32():
    x, o = torch.randn(256), torch.zeros(256)
    x[:4] = torch.tensor([1 + 2.0**-11, -1 - 2.0**-11, torch.inf, torch.nan])
    launch(instruction_kernel, (4,), x, o, TEXT="cvt.rna.tf32.f32 $0, $1;", B=64)
    mantissa, exponent = numpy.frexp(x.double().numpy())
    rounded = numpy.copysign(numpy.floor(numpy.abs(mantissa) * 2048 + 0.5), mantissa) / 2048
    numpy.testing.assert_array_equal(o.numpy(), numpy.ldexp(rounded, exponent).astype(numpy.float32))


@triton.jit
def dependent_kernel(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.extra.cuda.gdc_wait()
    v = tl.load(x + i)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(o + i, v + 1)


def test_waiting_for_the_kernel_before_is_what_a_queue_does_anyway():
    x, o = torch.randn(32), torch.zeros(32)
    launch(dependent_kernel, (1,), x, o, B=32)
    assert torch.equal(o, x + 1)


@triton.jit
def clock_kernel(o):
    tl.store(o, tl.extra.cuda.globaltimer())


def test_assembly_without_operands_is_refused_with_its_text():
    with pytest.raises(UnsupportedOperation, match="globaltimer"):
        launch(clock_kernel, (1,), torch.zeros(1, dtype=torch.int64))


@triton.jit
def to_float_kernel(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n).to(o.dtype.element_ty), i < n)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("wide", [torch.int64, torch.int32], ids=["i64", "i32"])
def test_integers_are_rounded_once_and_without_doubles(wide, narrow):
    """Some GPUs have no doubles; and 16-bit floats by way of f32 would round twice."""
    bits = torch.iinfo(wide).bits - 1
    anywhere = torch.randint(-(1 << bits), (1 << bits) - 1, (2000,)) >> torch.randint(0, bits, (2000,))
    half_way = (2 * torch.randint(256, 512, (1000,)) + 1) << torch.randint(0, bits - 11, (1000,))
    x = torch.cat([anywhere, half_way, half_way + 1, half_way - 1, -half_way]).to(wide)
    o = torch.empty(len(x), dtype=narrow, device="xpu")
    kernel = to_float_kernel[(-(-len(x) // 1024),)](x.to("xpu"), o, len(x), B=1024)
    without_comments = re.sub(r"/\*.*?\*/", "", kernel.asm["cl"], flags=re.DOTALL)
    assert "double" not in without_comments
    if simulate.active():
        return
    for value, got in zip(x.tolist(), o.cpu(), strict=True):
        if got.isinf():
            assert abs(value) >= 65520
            continue
        near = [torch.nextafter(got, torch.tensor(s * math.inf, dtype=narrow)).double().item() for s in (1, -1)]
        error = abs(int(got.double().item()) - value)
        assert all(math.isinf(n) or n != int(n) or abs(int(n) - value) >= error for n in near), value


@triton.jit
def narrow_descriptor_kernel(source, o, M: tl.constexpr, N: tl.constexpr):
    x = source.load([8, 24])
    tl.store(o + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], x.to(tl.float32))


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_host_descriptors_of_8_bit_floats(dtype, padding):
    x, o = torch.randn(20, 32).to(dtype), torch.zeros(16, 16, device="xpu")
    narrow_descriptor_kernel[(1,)](
        TensorDescriptor(x.to("xpu"), [20, 32], [32, 1], [16, 16], padding=padding), o, 16, 16
    )
    expected = torch.full((16, 16), float("nan") if padding == "nan" else 0.0)
    expected[:12, :8] = x[8:, 24:].float()
    torch.testing.assert_close(o.cpu(), expected, rtol=0, atol=0, equal_nan=True)


FORKED = """
import os, sys, torch, triton, triton.language as tl
from triton.compiler import ASTSource

@triton.jit
def triple(x, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(x + o, tl.load(x + o) * 3)

x = torch.ones(16, device="xpu")
triple[(1,)](x, 16)
target = triton.runtime.driver.active.get_current_target()
if os.fork() == 0:
    try:
        made = triton.compile(ASTSource(triple, {"x": "*fp32", "B": "constexpr"}, {"B": 64}, {}), target=target)
        print("child", *sorted(made.asm), flush=True)
        os._exit(0)
    finally:
        os._exit(1)
print("status", os.wait()[1])
"""


def test_a_forked_child_compiles_though_its_parent_has_used_xpu(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORKED)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=300)
    assert "status 0" in done.stdout and "zebin" in done.stdout, done.stdout + done.stderr
