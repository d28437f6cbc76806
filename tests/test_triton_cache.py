"""Kernels across processes, and what an error says."""

from __future__ import annotations

import os
import pickle
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from anyxpu.cache import cache_dir
from anyxpu.errors import KernelError, UnsupportedOperation
from anyxpu.triton import kernel_cache
from tests.triton_support import launch

JIT_PROGRAM = """
    import sys
    sys.path.insert(0, {folder!r})
    import torch, kernel_under_test, anyxpu.triton
    x = torch.arange(100, dtype=torch.float32, device="xpu")
    o = torch.empty_like(x)
    torch.xpu.synchronize()
    before = anyxpu.triton.compile_count()  # arange's own kernel, where no process has built it yet
    kernel_under_test.double_kernel[(1,)](x, o, 100, B=128)
    assert o.cpu().tolist() == [2.0 * i for i in range(100)]
    print("compiled", anyxpu.triton.compile_count() - before)
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n) * 2, i < n)
"""
COMPILE_PROGRAM = """
    import torch
    def f(x, w):
        return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (64,), w).sum(0)
    torch.manual_seed(0)
    x, w = torch.randn(64, 64), torch.randn(64)
    got = torch.compile(f)(x.to("xpu"), w.to("xpu")).cpu()
    torch.testing.assert_close(got.double(), f(x.double(), w.double()), atol=1e-4, rtol=1e-4)
"""


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def caches(tmp_path: Path) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}


def test_a_second_process_compiles_no_jit_kernel(tmp_path, run_python):
    (tmp_path / "kernel_under_test.py").write_text(KERNEL)
    program = textwrap.dedent(JIT_PROGRAM).format(folder=str(tmp_path))
    assert "compiled 1" in run_python(program, **caches(tmp_path)).stdout
    assert "compiled 0" in run_python(program, **caches(tmp_path)).stdout


def test_kernels_for_other_instructions_than_the_cpus_are_kept_apart(tmp_path, run_python):
    (tmp_path / "kernel_under_test.py").write_text(KERNEL)
    program = textwrap.dedent(JIT_PROGRAM).format(folder=str(tmp_path))
    # Kernels of the two other kinds: of OpenCL C, and of Triton for an operator.
    program += textwrap.dedent("""
        assert torch.full((9, 5), 2.0, device="xpu").t().contiguous().exp2().cpu().eq(4).all()
    """)
    (tmp_path / "build").symlink_to(cache_dir("build"))
    environment = {**caches(tmp_path), "ANYXPU_CACHE_DIR": str(tmp_path), "ANYXPU_EAGER": "compile"}
    assert "compiled 1" in run_python(program, **environment).stdout
    assert "compiled 1" in run_python(program, CL_CONFIG_CPU_TARGET_ARCH="corei7-avx", **environment).stdout
    assert "compiled 0" in run_python(program, **environment).stdout


def test_the_children_of_a_process_that_uses_a_device_have_its_kernels(run_python):
    run_python("""
        import subprocess, sys, torch
        from anyxpu.triton import identity
        torch.ones(3, device="xpu")
        asked = [sys.executable, "-c", "from anyxpu.triton import identity; print(identity.host())"]
        theirs = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        assert theirs == identity.host()
    """)


@pytest.mark.rotates(3)
def test_a_second_process_compiles_nothing_of_a_graph(tmp_path, run_python):
    log = tmp_path / "compiles"
    environment = {**caches(tmp_path), "ANYXPU_LOG_COMPILES": str(log)}
    run_python(COMPILE_PROGRAM, **environment)
    assert lines_of(log), "the first process compiled nothing, so the test tests nothing"
    log.unlink()
    run_python(COMPILE_PROGRAM, **environment)
    assert not lines_of(log)


def test_a_kernel_that_another_process_is_replacing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path))
    cache = kernel_cache.KernelCache("entry")

    def write(binary: bytes, between: float = 0.0) -> None:
        path = cache.put(binary, "twice.zebin")
        time.sleep(between)
        cache.put_group("twice.json", {"twice.zebin": path})

    write(b"of the first")
    file = tmp_path / "entry" / "twice.zebin"
    assert not kernel_cache.is_damaged(file, patience=0)
    other = threading.Thread(target=write, args=(b"of the second", 0.5))
    other.start()
    while file.read_bytes() != b"of the second":
        assert other.is_alive()
        time.sleep(0.01)
    assert kernel_cache.is_damaged(file, patience=0)
    assert not kernel_cache.is_damaged(file)
    other.join()
    file.write_bytes(b"of nobody")
    assert kernel_cache.is_damaged(file, patience=0.1)


CHOICES_PROGRAM = """
    import torch
    f = torch.compile(lambda x: torch.softmax(x, -1))
    x = torch.randn(64, 5000)
    torch.testing.assert_close(f(x.to("xpu")).cpu(), torch.softmax(x, -1))
"""


@pytest.mark.not_simulated("it is about a CPU device")
@pytest.mark.rotates(3)
def test_one_configuration_of_a_kernel_is_compiled_on_a_cpu_unless_tuning_is_asked_for(tmp_path, run_python):
    counts = []
    for tuned in ("0", "1"):
        log = tmp_path / f"compiles-{tuned}"
        run_python(
            CHOICES_PROGRAM,
            ANYXPU_LOG_COMPILES=str(log),
            TORCHINDUCTOR_MAX_AUTOTUNE=tuned,
            TRITON_CACHE_DIR=str(tmp_path / f"triton-{tuned}"),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"inductor-{tuned}"),
        )
        counts.append(len(lines_of(log)))
    assert counts[0] == 1 < counts[1]


@pytest.mark.not_simulated("it is about a CPU device")
def test_ragged_products_are_not_padded_on_a_cpu_unless_forced(xpu):
    from torch._inductor.fx_passes import pad_mm

    a, b = torch.empty(33, 65, device=xpu), torch.empty(65, 17, device=xpu)
    assert not pad_mm.check_device(a, b)
    with torch._inductor.config.patch(force_shape_pad=True):
        assert pad_mm.check_device(a, b)


@triton.jit
def refused_kernel(x, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    r = tl.inline_asm_elementwise("nop", "=r,r", [v], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + i, r)


def test_an_unsupported_operation_is_named_with_kernel_and_source():
    with pytest.raises(UnsupportedOperation, match=r"refused_kernel.*inline_asm_elementwise") as caught:
        launch(refused_kernel, (1,), torch.zeros(16, dtype=torch.int32), B=16)
    path = str(caught.value).split("TTGIR: ")[1].rstrip(")")
    assert "elementwise_inline_asm" in Path(path).read_text()


@triton.jit
def kernel_with_broken_source(x, B: tl.constexpr):  # no other test's: its compilation must not be remembered
    tl.store(x + tl.arange(0, B), 1)


def test_source_that_the_device_refuses_stays_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from anyxpu.triton import lower

    whole = lower.render

    def broken(*args, **kwargs):
        r = whole(*args, **kwargs)
        return replace(r, text=r.text + "\nthis is no C;")

    monkeypatch.setattr(lower, "render", broken)
    with pytest.raises(KernelError, match=r"(?s)kernel_with_broken_source.*no C") as caught:
        launch(kernel_with_broken_source, (1,), torch.zeros(16, dtype=torch.int32), B=16)
    assert caught.value.kernel == "kernel_with_broken_source"
    assert "this is no C;" in Path(caught.value.source).read_text()


def test_kernel_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(KernelError("k", "/somewhere/k.cl", "no")))
    assert (error.kernel, error.source, str(error)) == (
        "k",
        "/somewhere/k.cl",
        "kernel k (source: /somewhere/k.cl): no",
    )


@triton.jit
def filling_kernel(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1)


def test_a_grid_of_zero_programs_runs_nothing():
    x = torch.zeros(16, dtype=torch.int32)
    launch(filling_kernel, (0,), x, B=16)
    assert not x.any()


def test_every_stage_is_kept_with_the_kernel():
    x = torch.zeros(16, dtype=torch.int32, device="xpu")
    kernel = filling_kernel[(1,)](x, B=16)
    assert {"ttir", "ttgir", "cl", "zebin"} <= kernel.asm.keys()
    assert "__kernel" in kernel.asm["cl"] and isinstance(kernel.asm["zebin"], bytes)
    assert os.path.exists(next(p for n, p in kernel.metadata_group.items() if n.endswith(".cl")))


@pytest.mark.not_simulated("it is about a CPU device")
def test_a_cpu_device_is_not_measured_as_a_gpu(xpu, caplog):
    from torch._inductor import utils

    assert not utils.is_big_gpu(torch.device(xpu))
    assert utils.get_device_tflops(torch.bfloat16) == 0.0
    assert not caplog.records
