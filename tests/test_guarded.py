"""Lanes that a mask leaves out touch no memory: every allocation lies against a page that must not be touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu import build
from anyxpu.bench.kernel_cases import CASES

pytestmark = pytest.mark.not_simulated("lanes that do not execute touch no guard page, and a GPU's memory has none")
FOLDER = Path(__file__).parent
WRITTEN = ("pointwise", "stencil", "reductions", "indirect", "atomics", "blocks", "products", "engine_products")
EVERYDAY = ("mixed types", "softmax", "sum outer", "scatter_add", "transpose copy")


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    library = tmp_path_factory.mktemp("guarded") / "guarded.so"
    source = FOLDER / "guarded_memory.cpp"
    subprocess.run([build.compiler(), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def run(allocator: Path, guard: str, align: int, *what: str) -> subprocess.CompletedProcess[str]:
    """Run what is named, in a process of its own; ``align`` is what allocations keep beside the guard page."""
    return subprocess.run(
        [sys.executable, str(FOLDER / "guarded_kernels.py"), str(allocator), *what],
        env={**os.environ, "GUARD": guard, "ALIGN": str(align), "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def finished(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("done ") for line in done.stdout.splitlines() if line.startswith("done ")]


@pytest.mark.parametrize("guard", ["after", "before"])
@pytest.mark.rotates(3)
def test_masked_lanes_of_written_kernels_touch_nothing(guard, allocator):
    done = run(allocator, guard, 1, *WRITTEN)
    assert finished(done) == list(WRITTEN) and done.returncode == 0, done.stderr[-3000:]


# Inductor takes tensors to be aligned to 16 bytes; what begins at a page is.
@pytest.mark.parametrize("guard", ["after", "before"])
@pytest.mark.rotates(3)
def test_masked_lanes_of_inductors_kernels_touch_nothing(guard, allocator, full):
    cases = CASES if full else EVERYDAY
    done = run(allocator, guard, 16, *cases)
    assert finished(done) == list(cases) and done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("access", ["load", "store"])
@pytest.mark.parametrize("guard", ["after", "before"])
def test_one_lane_beyond_ends_the_process(guard, access, allocator):
    done = run(allocator, guard, 4, f"unmasked_{access}_{guard}")
    assert done.stdout.splitlines() == ["inside"]
    assert done.returncode < 0, f"status {done.returncode}: {done.stderr[-3000:]}"
