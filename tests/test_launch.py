"""Module, Kernel and Launcher: what reaches a kernel, and what is refused before it."""

from __future__ import annotations

import gc
import struct
import weakref

import numpy as np
import pytest
import torch

from anyxpu.errors import KernelError
from anyxpu.shim import lib
from tests.driver_support import AXPY_AND_REVERSE

SOURCE = (
    AXPY_AND_REVERSE
    + b"""
__kernel void address_of(__global ulong* out, __global void* p) { out[0] = (ulong)p; }
__kernel void places(__global int* out) {
  int i = (get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0);
  out[i] = 100 * get_group_id(0) + 10 * get_group_id(1) + get_group_id(2);
}
"""
)

INTEGERS = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}
UNSIGNED = {"u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong"}
FLOATS = {"fp16": "ushort", "bf16": "ushort", "fp32": "uint", "fp64": "ulong"}


@pytest.fixture(scope="module")
def module():
    return lib().load_module(0, "opencl_c", SOURCE, "-cl-std=CL3.0")


@pytest.fixture
def queue() -> int:
    return torch._C._xpu_getCurrentRawStream(0)


def echo(c_type: str):
    """A kernel that writes its scalar argument to out[0]."""
    source = f"__kernel void echo(__global {c_type}* out, {c_type} v) {{ out[0] = v; }}"
    return lib().load_module(0, "opencl_c", source.encode()).kernel("echo")


def echoed(kernel, type_name: str, value: object, queue: int) -> bytes:
    """The bytes that arrive in the kernel for `value` passed as `type_name`."""
    out = torch.zeros(8, dtype=torch.uint8, device="xpu")
    lib().Launcher(["*u8", type_name], (1, 1, 1), 0)(1, 1, 1, queue, kernel, out, value)
    return bytes(out.cpu().tolist())


def random_pair(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n), torch.randn(n)


def check_axpy(y: torch.Tensor, before: torch.Tensor, x: torch.Tensor, a: float) -> None:
    expected = before.double() + torch.tensor(a).float().double() * x.cpu().double()
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_tensors_and_scalars_reach_the_kernel(module, queue, xpu) -> None:
    before, x = random_pair(1000)
    y = before.to(xpu)
    launch = lib().Launcher(["*fp32", "*fp32", "fp32", "i32", "constexpr"], (64, 1, 1), 0)
    assert launch(16, 1, 1, queue, module.kernel("axpy"), y, x.to(xpu), 0.3, 1000, "skipped") is None
    check_axpy(y, before, x, 0.3)


def test_a_view_is_passed_where_it_begins(module, queue, xpu) -> None:
    before, x = random_pair(100)
    y = before.to(xpu)
    launch = lib().Launcher(["*fp32", "*fp32", "fp32", "i32"], (64, 1, 1), 0)
    launch(1, 1, 1, queue, module.kernel("axpy"), y[40:], x.to(xpu), 1.0, 10)
    check_axpy(y[40:50], before[40:50], x[:10], 1.0)
    assert torch.equal(y[:40].cpu(), before[:40]) and torch.equal(y[50:].cpu(), before[50:])


def test_what_may_stand_for_a_pointer(module, queue, xpu) -> None:
    launch = lib().Launcher(["*u64", "*i8"], (1, 1, 1), 0)
    kernel, out = module.kernel("address_of"), torch.zeros(1, dtype=torch.int64, device=xpu)
    tensor, pinned = torch.ones(3, device=xpu), torch.ones(3).pin_memory()

    class Holder:
        def data_ptr(self) -> int:
            return 0x1230

    cases = [
        (tensor, tensor.data_ptr()),
        (torch.nn.Parameter(tensor), tensor.data_ptr()),
        (pinned, pinned.data_ptr()),
        (0x4560, 0x4560),
        (None, 0),
        (Holder(), 0x1230),
        (torch.empty(0), 0),
    ]
    for value, expected in cases:
        launch(1, 1, 1, queue, kernel, out, value)
        assert out.item() == expected, value


def test_a_host_tensor_is_refused(module, queue, xpu) -> None:
    y = torch.zeros(8, device=xpu)
    launch = lib().Launcher(["*fp32", "*fp32", "fp32", "i32"], (8, 1, 1), 0)
    with pytest.raises(ValueError, match=r"at 1\) cannot be accessed .*cpu tensor"):
        launch(1, 1, 1, queue, module.kernel("axpy"), y, torch.ones(8), 1.0, 8)
    torch.xpu.synchronize()
    assert not y.any()


@pytest.mark.parametrize(("type_name", "c_type"), (INTEGERS | UNSIGNED).items())
def test_integers_arrive_or_are_refused(type_name: str, c_type: str, queue, xpu) -> None:
    bits, signed = int(type_name[1:]), type_name[0] == "i"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    kernel = echo(c_type)
    for value in (low, high, 1, True, np.int64(5), torch.tensor(7)):
        arrived = echoed(kernel, type_name, value, queue)
        assert int.from_bytes(arrived[: bits // 8], "little", signed=signed) == int(value)
        assert not any(arrived[bits // 8 :])
    for value in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=f"does not fit its declared type {type_name}"):
            echoed(kernel, type_name, value, queue)
    with pytest.raises(TypeError):
        echoed(kernel, type_name, 1.5, queue)


def test_bools_arrive(queue, xpu) -> None:
    kernel = echo("char")
    for value in (True, False, 1, 0, 2):
        assert echoed(kernel, "i1", value, queue)[0] == bool(value)


@pytest.mark.parametrize(("type_name", "c_type"), FLOATS.items())
def test_floats_arrive_as_the_bits_of_their_type(type_name: str, c_type: str, queue, xpu) -> None:
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
    kernel = echo(c_type)
    values = [0.0, -0.0, 1.0, -2.75, 1e-3, 3.14159265358979, float("inf"), 7, np.float32(0.1)]
    for value in values + torch.randn(20, dtype=torch.float64).tolist():
        want = torch.tensor(float(value), dtype=torch.float64).to(dtypes[type_name])
        arrived = echoed(kernel, type_name, value, queue)[: want.element_size()]
        assert arrived == bytes(want.reshape(1).view(torch.uint8).tolist()), value
    nan = echoed(kernel, type_name, float("nan"), queue)
    assert torch.frombuffer(bytearray(nan), dtype=dtypes[type_name])[0].isnan()


def test_fp64_keeps_what_fp32_would_lose(queue, xpu) -> None:
    assert struct.unpack("d", echoed(echo("ulong"), "fp64", 1 + 2**-50, queue))[0] == 1 + 2**-50


def test_local_memory_is_added_last(module, queue, xpu) -> None:
    data = torch.arange(256, dtype=torch.int32)
    y = data.to(xpu)
    lib().Launcher(["*i32"], (64, 1, 1), 256)(4, 1, 1, queue, module.kernel("reverse_group"), y)
    assert torch.equal(y.cpu(), data.reshape(4, 64).flip(1).flatten())


def test_the_grid_has_three_dimensions_x_first(module, queue, xpu) -> None:
    out = torch.zeros(2, 3, 4, dtype=torch.int32, device=xpu)
    lib().Launcher(["*i32"], (1, 1, 1), 0)(4, 3, 2, queue, module.kernel("places"), out)
    z, y, x = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.equal(out.cpu(), (100 * x + 10 * y + z).int())


def test_an_empty_grid_launches_nothing(module, queue, xpu) -> None:
    out = torch.zeros(4, dtype=torch.int32, device=xpu)
    lib().Launcher(["*i32"], (1, 1, 1), 0)(4, 0, 1, queue, module.kernel("places"), out)
    assert not out.any()


def test_one_launcher_serves_several_kernels(queue, xpu) -> None:
    launch = lib().Launcher(["*i32"], (1, 1, 1), 0)
    out = torch.zeros(1, dtype=torch.int32, device=xpu)
    for value in (3, 4, 3, 5):
        source = f"__kernel void set(__global int* x) {{ x[0] = 10 * x[0] + {value}; }}".encode()
        launch(1, 1, 1, queue, lib().load_module(0, "opencl_c", source).kernel("set"), out)
        gc.collect()
    assert out.item() == 3435


def test_launches_follow_the_stream(module, xpu) -> None:
    """Behind a long kernel on the same stream, and seen by a stream that waits for it."""
    slow = b"__kernel void slow(__global float* x, int n) { float v = x[0];" + (
        b" for (int i = 0; i < n; i++) v = v * 0.5f + 1.0f; x[0] = v; }"
    )
    kernel = lib().load_module(0, "opencl_c", slow).kernel("slow")
    first, second = torch.xpu.Stream(), torch.xpu.Stream()
    x, y = torch.zeros(1, device=xpu), torch.zeros(1, device=xpu)
    torch.xpu.synchronize()
    lib().Launcher(["*fp32", "i32"], (1, 1, 1), 0)(1, 1, 1, first.sycl_queue, kernel, x, 20_000_000)
    second.wait_stream(first)
    add = lib().Launcher(["*fp32", "*fp32", "fp32", "i32"], (1, 1, 1), 0)
    add(1, 1, 1, second.sycl_queue, module.kernel("axpy"), y, x, 1.0, 1)
    second.synchronize()
    assert y.item() == 2.0


def test_a_refused_launch_names_the_kernel_and_the_device_goes_on(module, queue, xpu) -> None:
    out = torch.zeros(4, dtype=torch.int32, device=xpu)
    with pytest.raises(KernelError, match=r"kernel places.*work-items") as caught:
        lib().Launcher(["*i32"], (1 << 20, 1, 1), 0)(1, 1, 1, queue, module.kernel("places"), out)
    assert caught.value.kernel == "places"
    with pytest.raises(RuntimeError, match="takes 1 arguments; it was given 2"):
        lib().Launcher(["*i32", "i32"], (1, 1, 1), 0)(1, 1, 1, queue, module.kernel("places"), out, 1)
    lib().Launcher(["*i32"], (1, 1, 1), 0)(4, 1, 1, queue, module.kernel("places"), out)
    assert out.tolist() == [0, 100, 200, 300]


def test_wrong_calls_are_refused(module, queue, xpu) -> None:
    launch, kernel = lib().Launcher(["*i32"], (1, 1, 1), 0), module.kernel("places")
    out = torch.zeros(4, dtype=torch.int32, device=xpu)
    for arguments, error, match in [
        ((1, 1, 1, queue, kernel), TypeError, "takes 6 arguments"),
        ((1, -1, 1, queue, kernel, out), ValueError, "grid_y is -1"),
        ((1, 1, 1 << 32, queue, kernel, out), ValueError, "grid_z"),
        ((1, 1, 1, 0, kernel, out), ValueError, "queue handle is 0"),
        ((1, 1, 1, queue, "places", out), TypeError, "calls a Kernel, not a str"),
        ((1, 1, 1, queue, kernel, "out"), TypeError, r"at 0\) must be a torch.Tensor"),
        ((1.5, 1, 1, queue, kernel, out), TypeError, "float"),
    ]:
        with pytest.raises(error, match=match):
            launch(*arguments)
    with pytest.raises(TypeError, match="no keyword"):
        launch(1, 1, 1, queue, kernel, out=out)
    with pytest.raises(TypeError, match="'tensordesc' cannot be launched"):
        lib().Launcher(["tensordesc"], (1, 1, 1), 0)
    with pytest.raises(TypeError, match="calls a Kernel, not a str"):
        lib().Launcher(["*i32"], (1, 1, 1), kernel="places")


def test_a_launcher_may_be_bound_to_its_kernel(module, queue, xpu) -> None:
    kernel, out = module.kernel("places"), torch.zeros(4, dtype=torch.int32, device=xpu)
    bound, free = lib().Launcher(["*i32"], (1, 1, 1), kernel=kernel), lib().Launcher(["*i32"], (1, 1, 1))
    free(1, 1, 1, queue, kernel, out)
    expected = out.clone()
    out.zero_()
    bound(1, 1, 1, queue, out)
    assert out.tolist() == expected.tolist()
    with pytest.raises(TypeError, match=r"takes 5 arguments \(grid x, y, z, queue and 1\); it got 6"):
        bound(1, 1, 1, queue, kernel, out)


def test_native_code_goes_round(module, queue, xpu) -> None:
    again = lib().load_module(0, "native", module.native())
    before, x = random_pair(64)
    y = before.to(xpu)
    lib().Launcher(["*fp32", "*fp32", "fp32", "i32"], (64, 1, 1), 0)(
        1, 1, 1, queue, again.kernel("axpy"), y, x.to(xpu), 2.0, 64
    )
    check_axpy(y, before, x, 2.0)


def test_a_build_failure_holds_the_log(xpu) -> None:
    with pytest.raises(RuntimeError, match="no_such_thing"):
        lib().load_module(0, "opencl_c", b"__kernel void k(__global int* x) { x[0] = no_such_thing; }")
    with pytest.raises(ValueError, match="one of opencl_c, spirv, native"):
        lib().load_module(0, "ptx", b"")
    with pytest.raises(RuntimeError, match="no kernel nope"):
        lib().load_module(0, "opencl_c", b"__kernel void k(__global int* x) { x[0] = 1; }").kernel("nope")


def test_a_kernel_keeps_its_module_and_a_launcher_its_kernel(queue, xpu) -> None:
    module = lib().load_module(0, "opencl_c", b"__kernel void set(__global int* x) { x[0] = 42; }")
    kernel, alive = module.kernel("set"), weakref.ref(module)
    launch, out = lib().Launcher(["*i32"], (1, 1, 1), 0), torch.zeros(1, dtype=torch.int32, device=xpu)
    del module
    gc.collect()
    launch(1, 1, 1, queue, kernel, out)
    assert alive() is None  # the Python object may go; its code stays
    del kernel
    gc.collect()
    assert out.item() == 42


def test_kernel_info(module) -> None:
    info = module.kernel("axpy").info()
    assert set(info) == {
        "max_work_group_size",
        "sub_group_size",
        "local_mem_size",
        "private_mem_size",
        "spill_size",
        "concurrent_groups",
        "called",
    }
    assert info["max_work_group_size"] > 0 and module.kernel("axpy").handle != 0


@pytest.mark.parametrize("fault", ["launch", "run"])
def test_an_injected_fault_surfaces_and_the_device_goes_on(run_python, fault: str) -> None:
    done = run_python(
        f"""
        import torch
        from anyxpu.drivers import null
        from anyxpu.errors import KernelError
        from anyxpu.shim import lib
        kernel = lib().load_module(0, "opencl_c", b"__kernel void k(__global int* x)").kernel("k")
        launch, queue = lib().Launcher(["*i32"], (1, 1, 1), 0), torch._C._xpu_getCurrentRawStream(0)
        null.set_faults({fault}=1)
        try:
            launch(1, 1, 1, queue, kernel, 4096)
            print("accepted")
            torch.xpu.synchronize()
        except RuntimeError as error:
            print(type(error).__name__, "kernel k" in str(error))
        launch(1, 1, 1, queue, kernel, 4096)
        torch.xpu.synchronize()
        print("usable")
        """,
        ANYXPU_DRIVER="null",
    )
    expected = {"launch": "KernelError True\nusable\n", "run": "accepted\nRuntimeError True\nusable\n"}
    assert done.stdout == expected[fault]
