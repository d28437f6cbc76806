"""Every name of torch.xpu and torch.accelerator works, or raises what docs/unsupported.md lists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

DOCUMENT = Path(__file__).parents[1] / "docs" / "unsupported.md"

# How to use each name once. `x` is torch.xpu, `a` is torch.accelerator.
XPU_CALLS = {
    "Event": "x.Event(enable_timing=True).record()",
    "MemPool": "x.MemPool()",
    "Stream": "x.Stream(priority=-1).synchronize()",
    "StreamContext": "x.StreamContext(x.Stream()).__enter__()",
    "XPUGraph": "x.XPUGraph()",
    "can_device_access_peer": "x.can_device_access_peer(0, 1)",
    "default_generators": "x.default_generators[0].get_state()",
    "device": "x.device(0).__enter__()",
    "device_of": "x.device_of(torch.ones(1, device='xpu')).__enter__()",
    "get_rng_state": "x.get_rng_state()",
    "get_stream_from_external": "x.get_stream_from_external(x.Stream().sycl_queue)",
    "graph": "x.graph(x.XPUGraph()).__enter__()",
    "make_graphed_callables": "x.make_graphed_callables(lambda t: t + 1, (torch.ones(1, device='xpu'),))",
    "manual_seed": "x.manual_seed(1)",
    "manual_seed_all": "x.manual_seed_all(1)",
    "set_device": "x.set_device(0)",
    "set_per_process_memory_fraction": "x.set_per_process_memory_fraction(0.9)",
    "set_rng_state": "x.set_rng_state(x.get_rng_state())",
    "set_rng_state_all": "x.set_rng_state_all(x.get_rng_state_all())",
    "set_stream": "x.set_stream(x.Stream())",
    "stream": "x.stream(x.Stream()).__enter__()",
    "streams": "x.streams.Stream",
    "use_mem_pool": "x.use_mem_pool(x.MemPool()).__enter__()",
}
ACCELERATOR_CALLS = {
    "Graph": "a.Graph()",
    "current_stream": "a.current_stream().synchronize()",
    "device_index": "a.device_index(0).__enter__()",
    "set_device_idx": "a.set_device_idx(0)",
    "set_device_index": "a.set_device_index(0)",
    "set_stream": "a.set_stream(torch.Stream('xpu'))",
}
# These two change the allocator of the whole process before its first use: test_pluggable_allocator.
ALLOCATOR_NAMES = {"XPUPluggableAllocator", "change_current_allocator"}

USE_ALL = """
import json, sys, torch, warnings
warnings.simplefilter("ignore")
x, a = torch.xpu, torch.accelerator
torch.ones(1, device="xpu")
def use(call):
    try:
        eval(call)
        return "works"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps({name: use(call) for name, call in json.loads(sys.stdin.read()).items()}))
"""


def names(module: object, public: list[str], calls: dict[str, str], letter: str) -> dict[str, str]:
    """A call for each public name; those without an entry above are functions that need no argument."""
    assert set(calls) <= set(public), "the table above names something that torch no longer has"
    qualified = module.__name__  # type: ignore[attr-defined]
    return {f"{qualified}.{name}": calls.get(name, f"{letter}.{name}()") for name in public}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    import os
    import sys

    xpu_names = [name for name in torch.xpu.__all__ if name not in ALLOCATOR_NAMES]
    xpu_calls = {name: call for name, call in XPU_CALLS.items() if name in torch.xpu.__all__}
    accelerator_calls = {name: call for name, call in ACCELERATOR_CALLS.items() if name in torch.accelerator.__all__}
    calls = names(torch.xpu, xpu_names, xpu_calls, "x")
    calls |= names(torch.accelerator, torch.accelerator.__all__, accelerator_calls, "a")
    done = subprocess.run(
        [sys.executable, "-c", USE_ALL],
        input=json.dumps(calls),
        env={**os.environ, "ANYXPU_DEVICES": "2"},
        cwd=tmp_path_factory.mktemp("names"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def documented() -> set[str]:
    return set(re.findall(r"^\| `(torch\.[\w.]+)` \|", DOCUMENT.read_text(), re.MULTILINE))


# Torch reads a GPU's telemetry with this package.
WANTS_PACKAGE = "ImportError: pyzes is required"


def test_every_name_works_or_says_that_it_does_not(outcomes):
    other = {
        name: said
        for name, said in outcomes.items()
        if not said.startswith(("works", "NotImplementedError", WANTS_PACKAGE))
    }
    assert other == {}


def test_the_document_lists_exactly_what_raises(outcomes):
    raising = {name for name, said in outcomes.items() if said.startswith("NotImplementedError")}
    absent_in_this_torch = documented() - set(outcomes)
    wants_package = {name for name, said in outcomes.items() if said.startswith(WANTS_PACKAGE)}
    assert raising == documented() - absent_in_this_torch - wants_package


def test_the_errors_say_why_and_the_way_out(outcomes):
    for name, said in outcomes.items():
        if said.startswith("NotImplementedError"):
            assert len(said) > 80, f"{name}: {said}"


@pytest.mark.not_simulated("its allocator gives the host's memory, which is a CPU device's and no GPU's")
def test_pluggable_allocator(run_python, tmp_path):
    """The two names that must come before the first allocation, with an allocator of our own."""
    source = tmp_path / "counting.cpp"
    source.write_text(
        """
#include <cstdlib>
extern "C" {
long made = 0, freed = 0;
void* counting_malloc(size_t bytes, int, void*) { ++made; return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
void counting_free(void* p, size_t, int, void*) { ++freed; std::free(p); }
}
"""
    )
    library = tmp_path / "counting.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    out = run_python(
        f"""
        import ctypes, torch
        allocator = torch.xpu.XPUPluggableAllocator({str(library)!r}, "counting_malloc", "counting_free")
        torch.xpu.change_current_allocator(allocator)
        t = torch.ones(100, device="xpu")
        print(t.sum().item()); torch.xpu.synchronize(); del t
        counts = ctypes.CDLL({str(library)!r})
        print(ctypes.c_long.in_dll(counts, "made").value > 0)
        """
    ).stdout
    assert out.split() == ["100.0", "True"]
