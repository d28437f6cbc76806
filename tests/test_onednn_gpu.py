"""oneDNN on Intel's own GPU driver: every operator it serves is created and executed on every simulated GPU.

Kernels do not execute there: results are compared in shape, strides and dtype. The arithmetic is tested on the CPU
device (test_onednn_matmul.py, test_onednn_convolution.py).
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from anyxpu.simulate import DEVICES, Simulation
from anyxpu.simulate.run import prepare
from tests.gpu_support import EVERYDAY, needs_driver, run_on

pytestmark = needs_driver

SWEEP = Path(__file__).with_name("onednn_sweep.py").read_text()
NO_FLOAT64 = ("dg2",)
# Unified Runtime's two adapters of Level Zero; the one that it takes by itself on new devices every day.
ADAPTERS = {"v2": {"SYCL_UR_USE_LEVEL_ZERO_V2": "1"}, "v1": {"SYCL_UR_USE_LEVEL_ZERO_V2": "0"}}
EVERYDAY_ADAPTERS = ["v2", pytest.param("v1", marks=pytest.mark.full)]


@pytest.fixture
def caches(tmp_path) -> dict[str, str]:
    """Folders that nothing was compiled into, for whatever a program compiles beside oneDNN."""
    return {name: str(tmp_path / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}


def check_sweep(device: str, folder: Path, *arguments: str, **variables: str) -> Counter[str]:
    """Run the sweep; how many cases went which way."""
    outcome = run_on(device, SWEEP, folder, *arguments, timeout=1200, **variables)
    rows = outcome.last()["rows"]
    wrong = [f"{row['case']} {row['dtype']}: {row['wrong']}" for row in rows if row["wrong"]]
    assert not wrong, "\n".join(wrong)
    assert outcome.refused() == {}
    assert outcome.accepted("launch") >= sum(row["ways"] == ["library"] for row in rows)
    for row in rows:
        said = f"{row['case']} {row['dtype']} went {row['ways']}: {row['reasons']}"
        if row["dtype"] in ("float32", "bfloat16", "float16"):
            assert row["ways"] == ["library"] or "untouched rows" in row["case"], said
        elif row["dtype"] == "float64" and device in NO_FLOAT64:
            assert "host" in row["ways"], said
            assert "unimplemented" in str(row["reasons"]) or "untouched rows" in row["case"], said
        elif row["dtype"] == "float64":
            assert row["ways"] in (["library"], ["composed"]) or "untouched rows" in row["case"], said
        elif row["dtype"] == "complex64":
            assert row["ways"] == ["composed"], said
        else:
            assert row["ways"] == ["host"], said
    return Counter("+".join(row["ways"]) for row in rows)


@pytest.mark.parametrize("device", EVERYDAY)
@pytest.mark.rotates(3)
def test_every_operator_is_created_and_executed(device, tmp_path, caches):
    ways = check_sweep(device, tmp_path, **caches)
    assert ways["library"] > 100


@pytest.mark.full
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_operator_in_every_layout_on_both_adapters(device, adapter, tmp_path, caches):
    check_sweep(device, tmp_path, "--all", **caches, **ADAPTERS[adapter])


def run_simulated(
    source: str, folder: Path, device: str = "bmg", count: int = 1, faults: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python source on simulated GPUs; the caller looks at the status."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    words, environment = prepare(
        Simulation(device, count, folder / "log.jsonl", faults), ["python", "-W", "ignore", str(program)]
    )
    return subprocess.run(
        words, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False, cwd=folder
    )


def refused(folder: Path) -> int:
    """Calls that the driver refused in the last program."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return sum(int(value) for record in records for name, value in record.items() if name.endswith("_refused"))


_WORK = """
    import threading
    import torch

    def work(device):
        a = torch.ones(48, 48, device=device)
        x, w = torch.ones(2, 8, 12, 12, device=device), torch.ones(8, 8, 3, 3, device=device)
        return torch.addmm(a[0], a, a), torch.conv2d(x, w)
"""


@pytest.mark.parametrize("adapter", EVERYDAY_ADAPTERS)
def test_two_gpus_have_engines_of_their_own(adapter, tmp_path, caches):
    program = f"""{_WORK}
    from anyxpu.onednn import engine, matmul

    for device in ("xpu:1", "xpu:0", "xpu:1"):
        assert all(str(t.device) == device for t in work(device))
    torch.xpu.synchronize(0), torch.xpu.synchronize(1)
    assert engine.engine(0).handle != engine.engine(1).handle
    assert len(matmul.CACHE) == 2 and matmul.CACHE.hits == 1  # one a device
    try:
        torch.mm(torch.ones(2, 2, device="xpu:0"), torch.ones(2, 2, device="xpu:1"))
    except RuntimeError as error:
        print("mat2 is on xpu:1" in str(error))
    """
    done = run_simulated(program, tmp_path, count=2, **caches, **ADAPTERS[adapter])
    assert done.returncode == 0 and done.stdout == "True\n", done.stdout + done.stderr
    assert refused(tmp_path) == 0


@pytest.mark.parametrize("adapter", EVERYDAY_ADAPTERS)
def test_threads_streams_events_and_memory_of_other_streams(adapter, tmp_path, caches):
    program = f"""{_WORK}
    failures = []

    def on_own_stream(seed):
        try:
            stream = torch.xpu.Stream()
            for step in range(12):
                with torch.xpu.stream(stream):
                    a = torch.ones(8 + seed, 16 + step, device="xpu")
                    product = a @ a.t()
                    done = stream.record_event()
                torch.xpu.current_stream().wait_event(done)
                product.record_stream(torch.xpu.current_stream())
                again = product @ product
                del product, a  # given back to the stream that they came from, and still in use on another
                work("xpu")
            done.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=on_own_stream, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    torch.xpu.synchronize()
    assert not failures, failures
    torch.xpu.empty_cache()
    print(torch.xpu.memory_allocated(), torch.xpu.memory_reserved())
    """
    done = run_simulated(program, tmp_path, **caches, **ADAPTERS[adapter])
    assert done.returncode == 0 and done.stdout == "0 0\n", done.stdout + done.stderr
    assert refused(tmp_path) == 0


@pytest.mark.parametrize("adapter", EVERYDAY_ADAPTERS)
def test_a_process_ends_cleanly_with_primitives_alive_and_work_in_flight(adapter, tmp_path, caches):
    program = f"""{_WORK}
    kept = [work("xpu") for _ in range(20)]
    side = torch.xpu.Stream()
    with torch.xpu.stream(side):
        kept += work("xpu")
    print("enqueued", flush=True)
    """
    done = run_simulated(program, tmp_path, **caches, **ADAPTERS[adapter])
    assert (done.returncode, done.stdout, done.stderr) == (0, "enqueued\n", "")


def test_primitives_that_the_cache_gives_up_are_freed(tmp_path, caches):
    program = """
    import gc, weakref
    import torch
    from anyxpu.onednn import matmul, primitive

    matmul.CACHE.capacity = 4
    made = weakref.WeakSet()

    class Counted(primitive.Executable):
        def __init__(self, *args):
            super().__init__(*args)
            made.add(self)

    matmul.Executable = Counted
    w = torch.ones(64, 64, device="xpu")
    for n in range(1, 60):
        torch.ones(n, 64, device="xpu") @ w
    torch.xpu.synchronize()
    gc.collect()
    print(len(matmul.CACHE), len(made), matmul.CACHE.misses)
    """
    done = run_simulated(program, tmp_path, **caches)
    assert done.returncode == 0 and done.stdout == "4 4 59\n", done.stdout + done.stderr


def test_without_an_opencl_driver_what_needs_it_falls_back_by_name(tmp_path, caches):
    program = """
    import json, torch, anyxpu.ops

    a = torch.ones(16, 16, device="xpu")
    a @ a  # assembled by oneDNN itself
    x, w, g = (torch.ones(shape, device="xpu") for shape in ((2, 16, 12, 12), (16, 8, 3, 3), (2, 8, 14, 14)))
    rest = ([8], [1, 1], [0, 0], [1, 1], True, [0, 0], 1, [True, True, True])
    found = torch.ops.aten.convolution_backward(g, x, w, *rest)  # a bias's gradient: OpenCL C
    fallbacks = {f.instead: f.reason for f in anyxpu.ops.fallbacks()}
    print(json.dumps([anyxpu.ops.counters(), fallbacks, [list(t.shape) for t in found]]))
    """
    done = run_simulated(program, tmp_path, OCL_ICD_FILENAMES=str(tmp_path / "none.so"), **caches)
    assert done.returncode == 0, done.stdout + done.stderr
    counters, fallbacks, shapes = json.loads(done.stdout.splitlines()[-1])
    assert counters["aten::mm"] == {"library": 1} and "host" in counters["aten::convolution_backward"]
    assert "intel-opencl-icd" in fallbacks["host"]
    assert shapes == [[2, 16, 12, 12], [16, 8, 3, 3], [8]]


@pytest.mark.parametrize("fault", ["build:1", "launch:1", "launch:3"])
def test_what_the_driver_refuses_onednn_is_an_exception_and_no_abort(fault, tmp_path, caches):
    program = f"""{_WORK}
    def attempt():
        try:
            work("xpu")
            torch.xpu.synchronize()
        except Exception as error:
            return f"{{type(error).__name__}}: {{error}}"
        return "done"

    torch.empty(1, device="xpu")
    print(attempt())
    print(attempt())
    """
    done = run_simulated(program, tmp_path, faults=fault, **caches)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("DeviceLost: " if fault.startswith("launch") else "OneDnnError: "), first
    assert second == "done"


@pytest.mark.full
def test_what_onednn_wrote_in_opencl_c_is_compiled_once(tmp_path, caches):
    """The driver keeps those kernels; the others oneDNN assembles itself, and on SYCL it gives no blob of them."""
    program = """
    import ctypes, torch
    from anyxpu.onednn import capi, matmul

    a = torch.ones(16, 16, device="xpu")
    a @ a
    x, w, g = (torch.ones(shape, device="xpu") for shape in ((2, 16, 12, 12), (16, 8, 3, 3), (2, 8, 14, 14)))
    rest = ([8], [1, 1], [0, 0], [1, 1], True, [0, 0], 1, [True, True, True])
    torch.ops.aten.convolution_backward(g, x, w, *rest)
    executable = next(iter(matmul.CACHE._entries.values())).executable
    get = ctypes.CDLL(str(capi.library_path())).dnnl_primitive_get_cache_blob
    print(get(ctypes.c_void_p(executable._handle), ctypes.byref(ctypes.c_size_t()), None) == capi.Status.UNIMPLEMENTED)
    """
    kept = tmp_path / "driver"
    kept.mkdir()
    stands = []
    for _ in range(2):
        done = run_simulated(program, tmp_path, NEO_CACHE_PERSISTENT="1", NEO_CACHE_DIR=str(kept), **caches)
        assert done.returncode == 0 and done.stdout == "True\n", done.stdout + done.stderr
        stands.append({f: f.stat().st_mtime_ns for f in kept.rglob("*") if f.is_file() and f.suffix != ".file"})
    assert stands[0] and stands[0].keys() == stands[1].keys()


def test_the_reason_of_a_fallback_can_be_asked(run_python):
    done = run_python("""
        import torch, anyxpu.ops
        a = torch.ones(3, 3, dtype=torch.float64, device="xpu")
        a @ a
        ((fallback, times),) = anyxpu.ops.fallbacks().items()
        print(fallback.primitive, fallback.operands, fallback.instead, times, "unimplemented" in fallback.reason)
        anyxpu.ops.reset_counters()
        print(anyxpu.ops.fallbacks())
    """)
    assert done.stdout.splitlines() == ["matmul float64 on xpu:0 host 1 True", "{}"]
