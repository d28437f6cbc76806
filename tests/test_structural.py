"""Structural operators: copies of any strides and types, fills, views, storage, scalars, printing."""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import random
import re
import subprocess
import sys

import pytest
import torch

import anyxpu.ops
from anyxpu.ops import library, registry, serve
from tests.strided import (
    COMPLEXES,
    CONVERTIBLE,
    FLOAT8S,
    FLOATS,
    INTEGERS,
    assert_same_bits,
    random_shape,
    random_view,
    values,
)

DEVICE = "xpu"
SEED = os.environ["ANYXPU_TEST_SEED"]  # of tests/conftest.py
ROUTES = (("xpu", "xpu"), ("xpu", "cpu"), ("cpu", "xpu"))


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(device) if device != "cpu" else tensor.clone()


# --- copies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids="->".join)
@pytest.mark.parametrize("round_", range(25))
def test_strided_copy_equals_the_cpus(route, round_, no_host):
    rng = random.Random(f"{SEED}{route}{round_}")
    dtype = rng.choice((*CONVERTIBLE, *FLOAT8S))
    shape = random_shape(rng)
    to, source = random_view(rng, shape), random_view(rng, shape, expandable=True)
    src = (
        values(rng, source.base, torch.uint8, torch.uint8).to(dtype)
        if dtype in FLOAT8S
        else values(rng, source.base, dtype, dtype)
    )
    dst = torch.zeros(to.base, dtype=torch.uint8).to(dtype)
    expected, actual = dst.clone(), on(route[0], dst)
    to.of(expected).copy_(source.of(src))
    to.of(actual).copy_(source.of(on(route[1], src)))
    assert_same_bits(actual, expected, (dtype, shape))


_TYPE_PAIRS = [pair for pair in itertools.product(CONVERTIBLE, repeat=2) if pair[0] != pair[1]]


@pytest.mark.parametrize("pair", random.Random(SEED).sample(_TYPE_PAIRS, 24), ids=str)
def test_converting_copy_equals_the_cpus(pair, no_host):
    check_conversion(*pair)


@pytest.mark.skipif(not os.environ.get("ANYXPU_FULL"), reason="ANYXPU_FULL=1 converts between all types")
def test_every_conversion_equals_the_cpus(no_host):
    for pair in _TYPE_PAIRS:
        check_conversion(*pair)


def check_conversion(source: torch.dtype, target: torch.dtype) -> None:
    rng = random.Random(f"{SEED}{source}{target}")
    src = values(rng, (37, 41), source, target)
    device_src = src.to(DEVICE)
    assert_same_bits(device_src.to(target), src.to(target), "dense")
    assert_same_bits(device_src.t()[::2].to(target), src.t()[::2].to(target), "strided")
    there = torch.zeros(41, 37, dtype=target)
    expected, actual = there.clone(), there.to(DEVICE)
    expected.t().copy_(src)
    actual.t().copy_(src)  # converted on its way from the host
    assert_same_bits(actual, expected, "from the host")
    there.t().copy_(device_src)
    assert_same_bits(there, expected, "to the host")


@pytest.mark.parametrize("target", (torch.float16, torch.bfloat16))
def test_rounding_to_16_bits_equals_the_cpus_everywhere(target, no_host):
    # Every exponent, and around each mantissa cut the values just below, at and above the tie.
    high = torch.arange(0, 1 << 16, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF])
    bits = (high[:, None] | low).flatten()
    bits = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
    src = bits.view(torch.float32)
    assert_same_bits(src.to(DEVICE).to(target), src.to(target))
    back = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(target)
    assert_same_bits(back.to(DEVICE).float(), back.float())


@pytest.mark.parametrize("dtype", FLOAT8S, ids=str)
def test_float8_conversions_are_right_and_counted(dtype):
    """The two that quantization uses have kernels (test_copies.py has every value)."""
    src = torch.randn(64)
    expected = src.to(dtype)
    device_src = src.to(DEVICE)
    anyxpu.ops.reset_counters()
    actual = device_src.to(dtype)
    way = "structural" if dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else "host"
    ways = anyxpu.ops.counters()["aten::copy_"]
    assert ways[way] == 1
    assert way == "host" or "host" not in ways
    assert_same_bits(actual, expected)
    assert_same_bits(actual.float(), expected.float())


@pytest.mark.parametrize("dtype", COMPLEXES[1:], ids=str)
def test_conjugate_and_negative_bits_are_honoured(dtype, no_host):
    src = torch.randn(6, 5, dtype=dtype)
    there = src.to(DEVICE)
    cases = {
        "conj": lambda t: t.conj(),
        "imag of conj": lambda t: t.conj().imag,
        "transposed": lambda t: t.conj().t(),
        "negative slice": lambda t: t.conj().imag[1:, ::2],
    }
    for what, case in cases.items():
        assert_same_bits(case(there).cpu(), case(src).clone(), what)
        assert_same_bits(case(there).clone(), case(src).clone(), what)
        assert_same_bits(case(src).to(DEVICE), case(src).clone(), what)
        assert_same_bits(case(there).resolve_conj().resolve_neg(), case(src).resolve_conj().resolve_neg(), what)
    expected, actual = torch.zeros(6, 5, dtype=dtype), torch.zeros(6, 5, dtype=dtype, device=DEVICE)
    expected.conj().copy_(src)
    actual.conj().copy_(there)
    assert_same_bits(actual, expected, "written through conj()")
    actual.conj().copy_(src)
    assert_same_bits(actual, expected, "written through conj() from the host")


@pytest.mark.parametrize("dims", (9, 12, 16))
def test_copies_of_many_dimensions(dims, no_host):
    rng = random.Random(f"{SEED}{dims}")
    src = torch.randn([2] * dims)
    order = rng.sample(range(dims), dims)
    assert_same_bits(src.to(DEVICE).permute(order).contiguous(), src.permute(order).contiguous())


def test_a_copy_over_more_than_two_gigabytes_of_offsets(no_host):
    # Elements lie further apart than 32-bit offsets reach; the pages between are never touched.
    base = torch.empty(3 * 2**30, dtype=torch.uint8, device=DEVICE)
    view = base.as_strided((3, 5), (2**30 + 7, 3))
    src = torch.arange(15, dtype=torch.uint8).reshape(3, 5)
    view.copy_(src.to(DEVICE).t().contiguous().t())
    assert_same_bits(view.contiguous(), src)
    view.fill_(9)
    assert_same_bits(view.cpu(), torch.full_like(src, 9))


def test_broadcasting_copies(no_host):
    for source_shape in ((1,), (4,), (3, 1), (1, 4), ()):
        src = torch.randn(source_shape)
        expected = torch.zeros(3, 4).copy_(src)
        for source in (src, src.to(DEVICE)):
            assert_same_bits(torch.zeros(3, 4, device=DEVICE).copy_(source), expected)
        assert_same_bits(torch.zeros(3, 4).copy_(src.to(DEVICE)), expected)
        assert_same_bits(torch.zeros(3, 4, dtype=torch.int64).copy_(src.to(DEVICE)), expected.long())


@pytest.mark.parametrize("source", ("cpu", "xpu"))
def test_a_copy_that_does_not_fit_says_what_the_cpus_says(source):
    for to, src in (((3,), (4,)), ((3,), (2, 3)), ((2, 3), (3, 3))):
        with pytest.raises(RuntimeError) as expected:
            torch.zeros(to).copy_(torch.zeros(src))
        with pytest.raises(RuntimeError) as actual:
            torch.zeros(to, device=DEVICE).copy_(torch.zeros(src, device=source))
        assert str(actual.value) == str(expected.value)


def test_overlapping_copies_are_refused_as_on_the_cpu():
    def overlap(device):
        x = torch.arange(10.0, device=device)
        x[1:].copy_(x[:-1])

    def many_to_one(device):
        torch.zeros(3, 1, device=device).expand(3, 3).copy_(torch.ones(3, 3, device=device))

    for case in (overlap, many_to_one):
        with pytest.raises(RuntimeError) as expected:
            case("cpu")
        with pytest.raises(RuntimeError) as actual:
            case(DEVICE)
        assert str(actual.value) == str(expected.value)


def test_copying_a_meta_tensor_is_an_error():
    with pytest.raises(NotImplementedError, match="meta"):
        torch.empty(3, device=DEVICE).copy_(torch.empty(3, device="meta"))


def test_non_blocking_copies_from_ordinary_memory_are_safe(no_host):
    for size in (1000, 3 << 20):
        src = torch.randn(size)
        expected = src.clone()
        there = torch.empty(size, device=DEVICE)
        there.copy_(src, non_blocking=True)
        src.zero_()
        assert_same_bits(there, expected)


def test_non_blocking_copies_through_pinned_memory(no_host):
    src = torch.randn(1 << 16).pin_memory()
    there = src.to(DEVICE, non_blocking=True)
    back = torch.empty(src.shape, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.xpu.synchronize()
    assert_same_bits(back, src)


def test_a_pinned_source_may_be_freed_at_once(no_host):
    expected = [torch.full((4096,), float(i)) for i in range(20)]
    arrived = [e.pin_memory().to(DEVICE, non_blocking=True) for e in expected]
    for there, e in zip(arrived, expected, strict=True):
        assert_same_bits(there, e)


_TWO_DEVICES = """
import torch
rng = torch.Generator().manual_seed(7)
assert torch.xpu.device_count() == 2
src = torch.randn(33, 65, generator=rng)
a = src.to("xpu:0")
for case in (lambda t: t, lambda t: t.t(), lambda t: t[::2, 1::3], lambda t: t[:1].expand(5, 65)):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        b = torch.zeros(case(src).shape, dtype=dtype, device="xpu:1").copy_(case(a))
        assert b.device.index == 1 and torch.equal(b.cpu(), case(src).to(dtype)), dtype
        strided = torch.zeros(case(src).shape[::-1], dtype=dtype, device="xpu:1").t()
        assert torch.equal(strided.copy_(case(a)).cpu(), case(src).to(dtype))
# Each side's own stream orders what comes before and after.
other = torch.xpu.Stream("xpu:1")
with torch.xpu.stream(other):
    for i in range(50):
        a.fill_(i)
        b = a.to("xpu:1")
        assert b.cpu().eq(i).all()
try:
    a + b
    raise SystemExit("no error")
except RuntimeError as error:
    assert "Expected all tensors to be on the same device" in str(error)
assert torch.cat([src.to("xpu:1")]).device.index == 1
"""


def test_copies_between_two_devices():
    run_python(_TWO_DEVICES, ANYXPU_DEVICES="2")


def run_python(text: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


_COMPILES = """
import torch
from anyxpu.ops import kernels
x = torch.arange(12.).reshape(3, 4).to("xpu")
assert x.t().contiguous().to(torch.bfloat16)[1].to(torch.int32).tolist() == [1, 5, 9]
x[:, ::2].fill_(3)
print(kernels.compiled())
"""


@pytest.mark.rotates(2)
def test_a_second_process_compiles_nothing(tmp_path):
    # The C++ is built already; only the directory of kernels is a new one.
    import anyxpu.cache

    root = tmp_path / "cache"
    root.mkdir()
    (root / "build").symlink_to(anyxpu.cache.cache_dir("build"))
    environment = {"ANYXPU_CACHE_DIR": str(root)}
    assert int(run_python(_COMPILES, **environment)) > 0
    assert int(run_python(_COMPILES, **environment)) == 0
    for entry in (root / "kernels" / "ops").glob("*.bin"):
        entry.write_bytes(entry.read_bytes()[:-7])
    assert int(run_python(_COMPILES, **environment)) > 0, "a damaged entry is made again"


def test_a_kernel_that_does_not_compile_leaves_its_source(tmp_path):
    from anyxpu.errors import KernelError
    from anyxpu.ops import kernels

    torch.xpu.init()
    with pytest.raises(KernelError) as error:
        kernels._compile(0, "copy_f32_f64", b"__kernel void copy_dense( { nonsense", "", tmp_path / "k.bin")
    assert error.value.kernel == "copy_f32_f64"
    with open(error.value.source) as source:
        assert "nonsense" in source.read()


# --- fills and factories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES, *FLOAT8S), ids=str)
def test_fill_dense_and_strided(dtype, no_host):
    value = True if dtype is torch.bool else (2.5 - 1j if dtype.is_complex else 3)
    expected, actual = torch.zeros(6, 8, dtype=dtype), torch.zeros(6, 8, dtype=dtype, device=DEVICE)
    for t in (expected, actual):
        t[1:5:2, ::3].fill_(value)
        t.t()[7].fill_(value)
    assert_same_bits(actual, expected, dtype)
    assert_same_bits(actual.fill_(value), expected.fill_(value), dtype)
    assert_same_bits(actual.zero_(), expected.zero_(), dtype)


def test_fill_from_a_tensor(no_host):
    for value in (torch.tensor(2.75), torch.tensor(3)):
        for device in ("cpu", DEVICE):
            there = torch.zeros(3, 4, dtype=torch.bfloat16, device=DEVICE)
            there.fill_(value.to(device))
            there[:, ::2].fill_(value.to(device))
            assert_same_bits(there, torch.zeros(3, 4, dtype=torch.bfloat16).fill_(value))
    expanded = torch.zeros(1, device=DEVICE).expand(5)
    expanded.fill_(torch.tensor(4.0, device=DEVICE))
    assert expanded.tolist() == [4.0] * 5
    with pytest.raises(RuntimeError, match="0-dimension"):
        torch.zeros(3, device=DEVICE).fill_(torch.ones(3))


def test_a_value_that_does_not_fit_is_refused_as_on_the_cpu():
    with pytest.raises(RuntimeError) as expected:
        torch.zeros(3, dtype=torch.uint8).fill_(1000)
    with pytest.raises(RuntimeError) as actual:
        torch.zeros(3, dtype=torch.uint8, device=DEVICE).fill_(1000)
    assert str(actual.value) == str(expected.value)


def test_factories(no_host):
    assert torch.empty(2, 3, device=DEVICE).stride() == (3, 1)
    channels_last = torch.empty(2, 3, 4, 5, device=DEVICE, memory_format=torch.channels_last)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(channels_last).stride() == channels_last.stride()
    assert torch.empty_strided((2, 3), (1, 2), device=DEVICE).stride() == (1, 2)
    assert torch.zeros(3, device=DEVICE).tolist() == [0, 0, 0]
    assert torch.ones(2, dtype=torch.int8, device=DEVICE).tolist() == [1, 1]
    assert torch.full((2,), 7.5, device=DEVICE).tolist() == [7.5, 7.5]
    assert torch.tensor([[1, 2], [3, 4]], device=DEVICE).tolist() == [[1, 2], [3, 4]]
    assert torch.scalar_tensor(3, device=DEVICE).item() == 3
    assert torch.empty(0, device=DEVICE).new_ones(2).device.type == "xpu"
    assert torch.zeros_like(torch.ones(2), device=DEVICE).tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device=DEVICE)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(1, device=DEVICE, pin_memory=True)


# --- views and storage -----------------------------------------------------------------------------------------

VIEWS = {
    "view": lambda t: t.view(4, 6),
    "view dtype": lambda t: t.view(torch.int32),
    "view narrower": lambda t: t.view(torch.int16),
    "reshape": lambda t: t.reshape(6, 4),
    "flatten": lambda t: t.flatten(),
    "transpose": lambda t: t.transpose(0, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "slice": lambda t: t[:, 1:, ::2],
    "select": lambda t: t[1, 2],
    "narrow": lambda t: t.narrow(2, 1, 2),
    "expand": lambda t: t[:, :1].expand(2, 5, 4),
    "unsqueeze": lambda t: t.unsqueeze(1).squeeze(1),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "diagonal": lambda t: t.diagonal(0, 1, 2),
    "as_strided": lambda t: t.as_strided((3, 2), (5, 7), 2),
    "split": lambda t: t.split(2, 1)[1],
    "chunk": lambda t: t.chunk(2, 2)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "movedim": lambda t: t.movedim(0, -1),
    "view_as_complex": lambda t: torch.view_as_complex(t.view(2, 3, 2, 2)),
    "real of complex": lambda t: torch.view_as_complex(t.view(2, 3, 2, 2)).real,
    "view_as_real": lambda t: torch.view_as_real(torch.view_as_complex(t.view(2, 3, 2, 2)))[..., 1],
    "alias": lambda t: torch.ops.aten.alias(t),
    "detach": lambda t: t.detach(),
    "squeeze": lambda t: t[:, :, :1].squeeze(),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "t": lambda t: t[0].t(),
    "mT": lambda t: t.mT,
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "tensor_split": lambda t: t.tensor_split(3, 1)[2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_agree_with_the_cpus(name, no_host):
    src = torch.arange(24.0).reshape(2, 3, 4)
    there = src.to(DEVICE)
    expected, actual = VIEWS[name](src), VIEWS[name](there)
    assert actual.stride() == expected.stride() and actual.storage_offset() == expected.storage_offset()
    assert actual.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    assert_same_bits(actual, expected)
    if name != "expand" and name != "unfold":
        for t in (expected, actual):
            t.fill_(1)
        assert_same_bits(there, src, "written through the view")


def test_every_view_operator_is_served_without_the_host():
    hosted = []
    for name, way in registry.operators().items():
        returns = torch._C._get_schema(*registry._split(name)).returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if is_view and way == "host":
            hosted.append(name)
    only_sparse_and_nested = {"aten::_nested_get_values", "aten::_nested_view_from_buffer", "aten::_values"}
    only_sparse_and_nested |= {"aten::_indices", "aten::_sparse_broadcast_to", "aten::_nested_view_from_jagged"}
    assert set(hosted) <= only_sparse_and_nested


def test_resize_keeps_what_was_there(no_host):
    src = torch.arange(6.0)
    there = src.to(DEVICE)
    there.resize_(2, 2)
    assert there.tolist() == [[0, 1], [2, 3]]
    there.resize_(3, 4)
    assert there.flatten()[:6].tolist() == src.tolist()
    there.resize_(1, 2, 2, 2, memory_format=torch.channels_last)
    assert there.is_contiguous(memory_format=torch.channels_last)
    there.resize_(0)
    assert there.shape == (0,)


def test_set(no_host):
    src = torch.arange(12.0).to(DEVICE)
    t = torch.empty(0, device=DEVICE)
    t.set_(src)
    assert t.is_set_to(src)
    t.set_(src.untyped_storage(), 2, (2, 3), (4, 1))
    assert t.tolist() == [[2, 3, 4], [6, 7, 8]]
    t.set_(src.untyped_storage())
    assert t.shape == (12,)
    t.set_()
    assert t.shape == (0,) and t.device.type == "xpu"
    with pytest.raises(RuntimeError, match="devices must match"):
        torch.empty(0, device=DEVICE).set_(torch.ones(3).untyped_storage(), 0, (3,), (1,))


def test_storage_resizes_and_copies():
    t = torch.arange(4.0, device=DEVICE)
    t.untyped_storage().resize_(0)
    assert t.untyped_storage().nbytes() == 0
    t.untyped_storage().resize_(16)
    t.copy_(torch.arange(4.0))
    assert t.untyped_storage().clone().nbytes() == 16
    assert t.untyped_storage().cpu().tolist() == torch.arange(4.0).untyped_storage().tolist()


def test_data_assignment_and_parameters(no_host):
    module = torch.nn.Linear(3, 2)
    expected = {k: v.clone() for k, v in module.state_dict().items()}
    module.to(DEVICE)
    assert all(p.device.type == "xpu" for p in module.parameters())
    module.weight.data = module.weight.data.t().contiguous().t()
    for name, value in module.state_dict().items():
        assert_same_bits(value, expected[name])
    module.to(torch.bfloat16)
    module.cpu()
    assert module.weight.device.type == "cpu" and module.weight.dtype == torch.bfloat16


def test_indexing_by_slices_reads_and_writes(no_host):
    src = torch.arange(60.0).reshape(3, 4, 5)
    there = src.to(DEVICE)
    for t in (src, there):
        t[0, 1:3] = -1
        t[..., -1] = torch.arange(4.0)
        t[1, :, 2:4] = t[2, :, 0:2]
        t[2, 3, 4] = 99
        t[None, 0, 0, 0] = 5.0
    assert_same_bits(there, src)
    assert there[2, 3, 4].item() == 99


# --- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES, *FLOAT8S), ids=str)
def test_item_and_tolist(dtype, no_host):
    src = torch.tensor([1, 0, 2, 3]).to(dtype)
    there = src.to(DEVICE)
    assert there[2].item() == src[2].item() and type(there[2].item()) is type(src[2].item())
    assert there.tolist() == src.tolist()
    assert [bool(x) for x in there] == [bool(x) for x in src]


def test_item_of_many_elements_is_an_error():
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.zeros(2, device=DEVICE).item()


@pytest.mark.parametrize("dtype", (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES[1:]), ids=str)
def test_printing_is_the_cpus_with_the_device_named(dtype, no_host):
    for shape in ((), (0,), (3,), (2, 3), (40, 50), (3, 1, 400), (1500,)):
        rng = random.Random(SEED)
        src = values(rng, shape, torch.int64, torch.int8).abs().to(dtype)
        assert _words(repr(src.to(DEVICE))) == _words(repr(src))


def _words(text: str) -> list[str]:
    """Without the device and without line breaks, which the device's name moves."""
    return re.sub(r",\s*device='xpu:0'", "", text).split()


def test_printing_special_values_views_and_grad(no_host):
    src = torch.tensor([[1.5, torch.nan], [-torch.inf, 1e-9]], requires_grad=True)
    there = src.detach().to(DEVICE).requires_grad_()
    assert _words(repr(there)) == _words(repr(src))
    assert "device='xpu:0'" in repr(torch.nn.Parameter(there.detach()))
    assert repr(torch.ones(2, dtype=torch.complex64, device=DEVICE).conj())
    assert f"{torch.tensor(2.5, device=DEVICE):.1f}" == "2.5"


# --- moving tensors about --------------------------------------------------------------------------------------


def test_pickle_save_load_and_deepcopy(no_host):
    src = torch.randn(4, 5)
    there = src.to(DEVICE).t()
    for made in (pickle.loads(pickle.dumps(there)), copy.deepcopy(there)):
        assert made.device == there.device and made.stride() == there.stride()
        assert_same_bits(made, src.t())
    file = io.BytesIO()
    torch.save({"t": there, "view": there[0]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["t"].device.type == "xpu" and loaded["view"].data_ptr() == loaded["t"].data_ptr()
    assert_same_bits(loaded["t"], src.t())
    file.seek(0)
    assert torch.load(file, map_location="cpu")["t"].device.type == "cpu"
    file = io.BytesIO()
    torch.save(src, file)
    file.seek(0)
    assert_same_bits(torch.load(file, map_location=DEVICE), src)


def test_zero_tensors_of_forward_mode_autograd():
    zero = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zero._is_zerotensor() and zero.device.type == "xpu"
    assert_same_bits(torch.ones(2, 3, device=DEVICE).copy_(zero), torch.zeros(2, 3))
    assert zero.clone().tolist() == [[0] * 3] * 2


def test_deterministic_fill_of_uninitialised_memory():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(5, device=DEVICE).isnan().all()
        assert torch.empty(5, dtype=torch.int16, device=DEVICE).tolist() == [32767] * 5
        assert torch.ones(2, device=DEVICE).resize_(4)[2:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_record_stream_keeps_memory_until_the_stream_is_done():
    stream = torch.xpu.Stream()
    expected = torch.randn(1 << 18)
    for _ in range(5):
        there = expected.to(DEVICE)
        stream.wait_stream(torch.xpu.current_stream())
        with torch.xpu.stream(stream):
            copied = there.t().clone() if there.dim() > 1 else there.clone()
        there.record_stream(stream)
        del there
        torch.zeros(1 << 18, device=DEVICE)
        stream.synchronize()
        assert_same_bits(copied, expected)


def test_a_scalar_of_an_empty_tensor_is_refused():
    for shape in ((0,), (2, 0)):
        with pytest.raises(RuntimeError, match="Empty tensor not supported"):
            torch.ops.aten._local_scalar_dense(torch.empty(shape, device="xpu"))


def test_what_is_declared_to_have_a_kernel_has_one():
    """Tables of operators are put on the dispatcher one after another, and one may not shut out the next."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    declared = [name for name in registry._declared if name.startswith("aten::")]
    assert len(declared) > 1000
    assert [name for name in declared if not has(name, "XPU")] == []


def test_an_operator_has_one_function():
    name = next(iter(library.SUMS))
    serve.register({name: f"anyxpu.ops.{library.SUMS[name]}"}, "compiled")
    with pytest.raises(ValueError, match=f"aten::{name} is served by anyxpu.ops.{library.SUMS[name]}"):
        serve.register({name: "anyxpu.ops.algebra.trace"}, "compiled")
