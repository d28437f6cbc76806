"""Kernels that leave their memory on a CPU device: a little does no harm, much is said with the kernel's name."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.not_simulated("a simulated GPU runs no kernel, and its memory is not the process's")

KERNEL = """
import sys
import torch
import triton
import triton.language as tl

@triton.jit
def leaves_its_tensor(x, o, far, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(o + i, tl.load(x + far + i) + 1)

def launch(numbers, far=0):
    x, o = torch.ones(2, numbers, device="xpu")
    print(x.data_ptr() + 4 * far, flush=True)
    leaves_its_tensor[(numbers // 64,)](x, o, far, 64)
"""


@pytest.fixture
def run(tmp_path):
    """Run a script behind KERNEL; Triton reads kernels' source from a file."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(KERNEL + script)
        return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300)

    return run


@pytest.mark.rotates(5)
@pytest.mark.parametrize("by", ["the calling thread", "its crew", "the runtime's threads"])
@pytest.mark.parametrize("far", [1 << 34, -(1 << 34), 1 << 60])
def test_a_kernel_that_leaves_memory_is_named_before_the_process_ends(by, far, run, monkeypatch):
    if by == "the runtime's threads":
        monkeypatch.setenv("ANYXPU_ENTRIES", "0")
    numbers = 64 if by == "the calling thread" else 1 << 20
    done = run(f"launch({numbers}, {far}); torch.xpu.synchronize(); print('not reached')")
    assert done.returncode < 0 and "not reached" not in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("anyxpu: a kernel on the xpu device left")]
    assert len(said) == 1, done.stderr[-3000:]
    assert "`leaves_its_tensor`" in said[0]
    # 48 bits make an address of a program; by chance what lies far behind a tensor needs more.
    assert ("an address that cannot be" in said[0]) == (not 0 <= int(done.stdout) < 1 << 47)
    assert ("It is `leaves_its_tensor`." in said[0]) == (by != "the runtime's threads")


def test_whoever_asked_for_faults_before_is_still_told(run):
    done = run("import faulthandler; faulthandler.enable(); launch(64, 1 << 34); torch.xpu.synchronize()")
    assert "`leaves_its_tensor`" in done.stderr and "Fatal Python error: Segmentation fault" in done.stderr


def test_a_fault_of_something_else_is_not_called_a_kernels(run):
    done = run("import ctypes; launch(64); torch.xpu.synchronize(); ctypes.string_at(8)")
    assert done.returncode < 0 and "anyxpu: a kernel" not in done.stderr, done.stderr[-3000:]


@pytest.mark.rotates(3)
@pytest.mark.parametrize("bytes_beyond", [4096, 32 << 20])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_kernel_that_leaves_its_memory_by_a_little_harms_nothing(bytes_beyond, side, run):
    done = run(f"""
host = [torch.full((64 << 10,), float(i)) for i in range(64)]
segment = torch.zeros(8 << 20, device="xpu")
host += [torch.full((64 << 10,), float(i)) for i in range(64, 128)]
far = {bytes_beyond} // 4
at = segment.numel() + far - 64 if {side == "behind"} else -far
o = torch.zeros(64, device="xpu")
leaves_its_tensor[(1,)](segment, o, at, 64)

@triton.jit
def writes_outside(x, at, N: tl.constexpr):
    tl.store(x + at + tl.arange(0, N), 7.0)

writes_outside[(1,)](segment, at, 64)
torch.xpu.synchronize()
assert o.tolist() == [1.0] * 64, o
assert segment.count_nonzero().item() == 0
assert all(bool((t == i).all()) for i, t in enumerate(host))
del segment, host
torch.xpu.empty_cache()
print("alive")
""")
    assert done.stdout.strip() == "alive", done.stderr[-3000:]
