"""The Level Zero half of the driver, launched on Intel's own driver: a slice every day, all devices with --full."""

from __future__ import annotations

import json

import pytest

from anyxpu.simulate import COMPILED_BY_OCLOC, DEVICES
from tests.gpu_support import ADAPTERS, needs_driver, on_gpu

pytestmark = [needs_driver, pytest.mark.not_simulated("starts simulations of its own")]

# One device of each adapter every day.
SLICE = (("bmg", "v2"), ("pvc", "v1"))


def sweep() -> list:
    """All devices and adapters; those out of the slice are a long sweep."""
    pairs = [(device, adapter) for device in DEVICES for adapter in ADAPTERS]
    return [p if p in SLICE else pytest.param(*p, marks=pytest.mark.full) for p in pairs]


on_all = pytest.mark.parametrize(("device", "adapter"), sweep())


@on_all
@pytest.mark.rotates(3)
def test_the_first_hour_of_an_owner(device, adapter, tmp_path) -> None:
    """What aborted before any of this had met a GPU's driver: a filled tensor, a timed event, a kernel of each kind."""
    answer = on_gpu(
        device,
        """
        import json, warnings
        import torch
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            filled = [torch.full((5,), 7, dtype=t, device="xpu").tolist() for t in
                      (torch.uint8, torch.int16, torch.float32, torch.int64, torch.bool)]
            wide = torch.view_as_real(torch.full((3,), 1 + 2j, dtype=torch.complex128, device="xpu").cpu()).tolist()
        x = torch.randn(64, 64, device="xpu")
        start, end = torch.xpu.Event(enable_timing=True), torch.xpu.Event(enable_timing=True)
        start.record(); x @ x; end.record(); torch.xpu.synchronize()
        kernels = [x.sort().values.shape, x.t().contiguous().half().shape, torch.rand(7, device="xpu").shape]
        compiled = torch.compile(lambda t: torch.softmax(t @ t, -1))(x)
        said = [str(w.message) for w in said]
        print(json.dumps({"filled": filled, "wide": wide, "elapsed": start.elapsed_time(end), "kernels": kernels,
            "compiled": list(compiled.shape), "name": torch.xpu.get_device_name(), "said": said}))
        """,
        tmp_path,
        adapter=adapter,
    )
    found = json.loads(answer)
    assert found["filled"] == [[7] * 5] * 4 + [[True] * 5] and found["wide"] == [[1, 2]] * 3
    assert found["elapsed"] >= 0
    assert found["kernels"] == [[64, 64], [64, 64], [7]] and found["compiled"] == [64, 64]
    assert found["name"].startswith("Intel(R)")
    assert sum("executes none" in text and device in text for text in found["said"]) == 1


FEATURES = """
import ctypes, json
from anyxpu.drivers.abi import Driver
import ctypes.util
driver = Driver("sycl")
cl = ctypes.CDLL("libOpenCL.so.1")
def handles(function, *arguments):
    count = ctypes.c_uint()
    function(*arguments, 0, None, ctypes.byref(count))
    found = (ctypes.c_void_p * count.value)()
    function(*arguments, count, found, None)
    return [ctypes.c_void_p(h) for h in found]
(gpu,) = [d for p in handles(cl.clGetPlatformIDs) for d in handles(cl.clGetDeviceIDs, p, ctypes.c_uint64(4))]
size = ctypes.c_size_t()
cl.clGetDeviceInfo(gpu, 0x1030, 0, None, ctypes.byref(size))
text = ctypes.create_string_buffer(size.value)
cl.clGetDeviceInfo(gpu, 0x1030, size, text, None)
p = driver.properties(0)
extensions = text.value.decode().split()
print(json.dumps({"target": p.target.decode(), "extensions": extensions, "compiles": p.compiles_opencl_c,
    "features": {n: getattr(p, n) for n, _ in p._fields_ if n.startswith("has_")}}))
"""


@pytest.mark.parametrize(
    "device", [d if d in ("bmg", "dg2") else pytest.param(d, marks=pytest.mark.full) for d in DEVICES]
)
def test_features_are_those_that_intels_opencl_driver_tells(device, tmp_path) -> None:
    found = json.loads(on_gpu(device, FEATURES, tmp_path))
    told = {
        "has_fp16": "cl_khr_fp16",
        "has_fp64": "cl_khr_fp64",
        "has_bfloat16_conversions": "cl_intel_bfloat16_conversions",
        "has_subgroup_matrix_multiply_accumulate": "cl_intel_subgroup_matrix_multiply_accumulate",
        "has_subgroup_matrix_multiply_accumulate_tensor_float32": "cl_intel_subgroup_matrix_multiply_accumulate_tf32",
        "has_subgroup_2d_block_io": "cl_intel_subgroup_2d_block_io",
    }
    assert found["target"] == device and found["compiles"] == (device not in COMPILED_BY_OCLOC)
    for feature, extension in told.items():
        assert bool(found["features"][feature]) == (extension in found["extensions"]), feature


@pytest.mark.parametrize(
    ("fault", "doing", "error"),
    [
        ("launch:2", "[x.sort() for _ in range(3)]", "AcceleratorError: kernel .* not answer any more"),
        (
            "synchronize:5",
            "[(x.sort(), torch.xpu.synchronize()) for _ in range(20)]",
            "AcceleratorError: .* not answer any more",
        ),
        ("launch:1", "x[:32] @ x[:32].unsqueeze(1)", "DeviceLost: oneDNN .* not answer any more"),
        ("build:1", "x.sort()", ""),  # native code that the driver does not take any more is made anew
        ("kernel:1", "x.sort()", "RuntimeError"),
        ("alloc:4", "[torch.empty(64 << 20, device='xpu') for _ in range(4)]", ""),  # served after the cache is freed
    ],
)
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.rotates(5)
def test_what_the_driver_refuses_is_one_error_and_the_process_goes_on(fault, doing, error, adapter, tmp_path) -> None:
    import re

    if fault == "build:1":  # so that the first module is native code of the cache, whichever test comes first
        on_gpu("bmg", "import torch; torch.ones(1000, device='xpu').sort()", tmp_path, adapter=adapter)
    answer = on_gpu(
        "bmg",
        f"""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        x = torch.ones(1000, device="xpu")
        try:
            {doing}
        except Exception as problem:
            print(f"{{type(problem).__name__}}: {{problem}}".replace(chr(10), " "))
        print(torch.full((3,), 2.5, device="xpu").tolist(), x.sort().values.shape)
        """,
        tmp_path,
        adapter=adapter,
        faults=fault,
    ).splitlines()
    assert answer[-1] == "[2.5, 2.5, 2.5] torch.Size([1000])"
    assert bool(error) == (len(answer) == 2)
    assert re.match(error, answer[0])


@on_all
def test_memory_ends_where_the_driver_says(device, adapter, tmp_path) -> None:
    answer = on_gpu(
        device,
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        free, total = torch.xpu.mem_get_info()
        kept = []
        try:
            while len(kept) < 1000:
                kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="xpu"))
        except torch.OutOfMemoryError:
            print(len(kept) == free >> 30)
        kept.clear()
        pinned = torch.empty(1 << 20).pin_memory()  # the GPU's memory was spent, the host's was not
        whole = torch.empty(total // 2, dtype=torch.uint8, device="xpu")  # more than 4 GiB in one piece
        print(pinned.is_pinned(), whole.numel() == total // 2, torch.ones(2, device="xpu").tolist())
        """,
        tmp_path,
        adapter=adapter,
    )
    assert answer.split("\n")[:2] == ["True", "True True [1.0, 1.0]"]


TWO = """
import warnings
warnings.simplefilter("ignore")
import torch
assert torch.xpu.device_count() == 2
big = torch.arange(7_000_001, dtype=torch.int32)  # four pieces of the way between, the last one short
a = big.to("xpu:0")
b = a.to("xpu:1")
with torch.xpu.device(1):
    c = torch.empty_like(b)
    assert c.device.index == torch.xpu.current_device() == 1
    stream, event = torch.xpu.Stream(), torch.xpu.Event()
    stream.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(stream):
        c.copy_(a, non_blocking=True)
        event.record()
torch.xpu.current_stream(0).wait_event(event)
a.fill_(-1)
torch.xpu.synchronize(0); torch.xpu.synchronize(1)
assert torch.xpu.current_device() == 0
assert torch.equal(b.cpu(), big) and torch.equal(c.cpu(), big) and bool((a.cpu() == -1).all())
back = torch.empty_like(a).copy_(c)
assert torch.equal(back.cpu(), big)
graph = torch.compile(lambda t: torch.nn.functional.gelu(t) * 2)
assert [graph(torch.randn(64, device=f"xpu:{i}")).device.index for i in (1, 0)] == [1, 0]
linear = torch.nn.Linear(8, 8).to("xpu:1")
linear(torch.randn(2, 8, device="xpu:1")).sum().backward()
assert linear.weight.grad.device.index == 1
try:
    a + b
except RuntimeError as error:
    print("Expected all tensors to be on the same device" in str(error))
"""


@on_all
@pytest.mark.rotates(3)
def test_two_gpus_copy_wait_and_guard(device, adapter, tmp_path) -> None:
    assert on_gpu(device, TWO, tmp_path, count=2, adapter=adapter).strip() == "True"


DDP = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
import torch.multiprocessing as mp
def run(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    torch.xpu.set_device(rank)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(f"xpu:{rank}")
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(ddp.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(8, 16, device=f"xpu:{rank}")).square().mean().backward()
        optimizer.step()
    total = torch.full((3,), rank + 1.0, device=f"xpu:{rank}")
    dist.all_reduce(total)
    assert total.tolist() == [3.0] * 3
    assert model[0].weight.grad.device.index == rank
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(run, (os.path.abspath("store"),), nprocs=2)
    print("trained")
"""


@pytest.mark.rotates(2)
def test_data_parallel_training_over_gloo_on_two_gpus(tmp_path) -> None:
    (tmp_path / "ddp_program.py").write_text(DDP)
    source = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, 'ddp_program.py']).returncode)"
    assert on_gpu("bmg", source, tmp_path, count=2).strip() == "trained"


@pytest.mark.rotates(2)
def test_batched_command_lists(tmp_path) -> None:
    """The older adapter can gather commands and submit them at once; nothing above may rely on their going at once."""
    answer = on_gpu(
        "pvc",
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        x = torch.randn(64, 64, device="xpu")
        for _ in range(50):
            y = (x @ x).sort().values
        event = torch.xpu.Event()
        event.record()
        event.synchronize()
        with torch.xpu.stream(torch.xpu.Stream()):
            z = torch.compile(lambda t: t.softmax(-1).sum())(x)
        torch.xpu.synchronize()
        print(y.shape, z.shape, event.query())
        """,
        tmp_path,
        adapter="v1",
        UR_L0_USE_IMMEDIATE_COMMANDLISTS="0",
    )
    assert answer.strip() == "torch.Size([64, 64]) torch.Size([]) True"


@pytest.mark.parametrize(
    "end", ["pass", "import os, threading; threading.Thread(target=lambda: x.sort()).start()", "raise SystemExit(0)"]
)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_process_ends_with_work_in_flight(end, adapter, tmp_path) -> None:
    source = f"""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        x = torch.randn(1 << 20, device="xpu")
        streams = [torch.xpu.Stream() for _ in range(4)]
        for stream in streams:
            with torch.xpu.stream(stream):
                for _ in range(20):
                    y = x.sort().values @ x
                pinned = torch.empty(1 << 20).pin_memory().copy_(x, non_blocking=True)
        print("end", flush=True)
        {end}
    """
    assert on_gpu("bmg", source, tmp_path, adapter=adapter).strip() == "end"


KERNELS = """
import warnings
warnings.simplefilter("ignore")
import torch
x = torch.empty(64, 64, device="xpu")
for kernel in (lambda: x.sort().values, lambda: torch.compile(lambda t: t.softmax(-1) * 2)(x)):
    try:
        print(tuple(kernel().shape))
    except Exception as problem:
        print(str(problem).replace(chr(10), " "))
print(torch.ones(2, device="xpu").tolist())
"""


def test_without_an_opencl_driver_ocloc_compiles_and_level_zero_finishes(tmp_path, ocloc_program) -> None:
    without = {"OCL_ICD_FILENAMES": "/nonexistent", "ANYXPU_OCLOC": ocloc_program}
    answer = on_gpu("bmg", KERNELS, tmp_path, **without).splitlines()
    assert answer == ["(64, 64)", "(64, 64)", "[1.0, 1.0]"]


@pytest.mark.rotates(2)
def test_without_any_compiler_one_error_names_both_remedies(tmp_path) -> None:
    # With caches of its own: what an earlier process compiled needs no compiler.
    without = {"OCL_ICD_FILENAMES": "/nonexistent", "ANYXPU_OCLOC": "/nonexistent"}
    answer = on_gpu("bmg", KERNELS, tmp_path, **without).splitlines()
    for refusal in answer[:2]:
        assert "apt-get install intel-opencl-icd" in refusal and "anyxpu get-ocloc" in refusal
    assert answer[2] == "[1.0, 1.0]"


TOO_LARGE = """
import torch
from anyxpu.shim import lib
torch.xpu.init()
barrier = "barrier(CLK_LOCAL_MEM_FENCE); p[get_local_id(0)] = "
for text in (
    "__kernel __attribute__((reqd_work_group_size(4096, 1, 1))) void f(__global int* p) { p[get_local_id(0)] = 1; }",
    "__kernel void f(__global int* p) { __local int t[1 << 20]; t[p[0]] = 1; " + barrier + "t[p[1]]; }",
    "__kernel void g(__global int* p) { }",
):
    try:
        lib().load_module(0, "opencl_c", text.encode(), "-cl-std=CL3.0").kernel("f")
    except RuntimeError as error:
        print(error)
"""


def test_a_kernel_that_the_device_cannot_hold_is_refused_for_what_it_needs(tmp_path) -> None:
    group, local, missing = on_gpu("bmg", TOO_LARGE, tmp_path).splitlines()
    assert "requires a larger work-group than the device's, which has 1024 work-items" in group
    assert "CL_OUT_OF_RESOURCES" in local and "131072 bytes" in local
    assert "has no kernel f" in missing and missing.endswith("it has: g")


OWN_MEMORY = """
import warnings
warnings.simplefilter("ignore")
import torch
from anyxpu import ocloc
from anyxpu.shim import lib
torch.xpu.init()
programs = (
    "__constant int c[64] = {1, 2}; __kernel void f(__global int* p) { p[0] = c[p[1]]; }",
    "__global int g[4] = {1, 2}; __global int z[9]; __kernel void f(__global int* p) { p[0] = g[p[1]] + z[p[2]]++; }",
    "__global int z[100]; __kernel void f(__global int* p) { p[0] = z[p[1]]++; }",
)
for text in programs:
    code = ocloc.zebin(ocloc.spirv(text, device, "-cl-std=CL3.0"), device, "")
    print(lib().load_module(0, "native", code).kernel("f") is not None)
x = torch.randn(8, 300, device="xpu")
print(torch.compile(lambda t: torch.softmax(t, -1))(x).shape == x.shape, x.sort().values.shape == x.shape)
"""


@pytest.mark.parametrize("device", ["cri", pytest.param("bmg", marks=pytest.mark.full)])
def test_programs_with_constants_and_variables_of_their_own_load(device, tmp_path, ocloc_program) -> None:
    """Of cri the driver pools what they need, and its capture mode does not bear that (constants.h)."""
    source = f"device = {device!r}\n" + OWN_MEMORY
    assert on_gpu(device, source, tmp_path, ANYXPU_OCLOC=ocloc_program).split() == ["True"] * 5


CONJUGATES = """
import warnings
warnings.simplefilter("ignore")
import torch
there = torch.randn(3, 4, dtype=torch.complex128)
cases = (
    lambda t: t.conj().resolve_conj(),
    lambda t: t.t().conj().resolve_conj(),
    lambda t: torch.empty_like(t).conj().copy_(t).resolve_conj(),
    lambda t: torch.empty_like(t).conj().copy_(t.conj()).resolve_conj(),
    lambda t: t.conj().to(torch.complex64),
    lambda t: torch.zeros(2, 3, 4, dtype=t.dtype, device=t.device).copy_(t.conj()),
)
print([torch.allclose(case(there.to("xpu")).cpu(), case(there)) for case in cases])
"""


def test_conjugates_of_doubles_are_the_hosts_work_on_a_gpu_without_doubles(tmp_path) -> None:
    """No kernel of that GPU's conjugates them: the host's way once asked the device for the same again, without end."""
    assert on_gpu("dg2", CONJUGATES, tmp_path).strip() == str([True] * 6)
