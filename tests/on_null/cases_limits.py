"""Running out of memory, limits, and failures of the device."""

from __future__ import annotations

import re
import threading

import pytest
import torch

from anyxpu.drivers.abi import Format
from anyxpu.drivers.null import faults
from anyxpu.shim import lib
from tests.on_null.support import DEVICE_BYTES, GIB, KIB, MIB, Gate, allocate, stat


def test_a_refused_allocation_releases_the_cache_and_tries_again():
    kept = allocate(1000)
    allocate(30 * MIB)
    with faults(alloc=1):
        memory = allocate(40 * MIB)
    assert memory.nbytes() == 40 * MIB
    assert stat("num_alloc_retries") == 1
    assert stat("num_ooms") == 0
    assert torch.xpu.memory_reserved() == 42 * MIB
    del kept


def test_memory_another_stream_holds_is_found_before_giving_up(driver):
    mine, other = torch.xpu.Stream(), torch.xpu.Stream()
    used = allocate(200 * MIB, stream=mine)
    gate = Gate(driver, other)
    lib().record_stream(used.data_ptr(), other.stream_id, 0)
    del used
    threading.Thread(target=gate.open).start()
    assert allocate(180 * MIB).nbytes() == 180 * MIB
    assert stat("num_ooms") == 0


def figures(message: str) -> dict[str, int]:
    """The amounts of an out-of-memory message, in bytes."""
    unit = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
    amount = r"([\d.]+) (bytes|KiB|MiB|GiB)"
    patterns = {
        "asked": rf"Tried to allocate {amount}\.",
        "total": rf"GPU \d has a total capacity of {amount}",
        "free": rf"of which {amount} is free",
        "allowed": rf"{amount} allowed;",
        "allocated": rf"Of the allocated memory {amount} is allocated by PyTorch",
        "cached": rf"{amount} is reserved by PyTorch but unallocated",
    }
    found = {name: re.search(pattern, message) for name, pattern in patterns.items()}
    return {name: int(float(m[1]) * unit[m[2]]) for name, m in found.items() if m}


def test_out_of_memory_says_the_figures_cuda_says():
    kept, other = allocate(100 * MIB, device=1), allocate(3 * MIB, device=1)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        allocate(20 * GIB, device=1)
    assert str(raised.value).startswith("XPU out of memory. ")
    assert "GPU 1 has" in str(raised.value)
    assert figures(str(raised.value)) == {
        "asked": 20 * GIB,
        "total": DEVICE_BYTES,
        "free": DEVICE_BYTES - 120 * MIB,
        "allocated": 103 * MIB,
        "cached": 17 * MIB,
    }
    assert stat("num_ooms", 1) == 1
    del kept, other


def test_the_process_is_usable_after_running_out():
    kept = allocate(200 * MIB)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            allocate(100 * MIB)
        with faults(alloc=1):
            assert allocate(10 * MIB).nbytes() == 10 * MIB
    assert stat("num_ooms") == 3
    assert stat("allocation.all.current") == 1
    del kept
    assert allocate(240 * MIB).nbytes() == 240 * MIB


def test_the_fraction_limits_what_is_reserved():
    torch.xpu.set_per_process_memory_fraction(0.25)
    assert torch.xpu.get_per_process_memory_fraction() == 0.25
    assert torch.xpu.get_per_process_memory_fraction(1) == 1.0
    kept = allocate(40 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        allocate(30 * MIB)
    assert figures(str(raised.value))["allowed"] == 64 * MIB
    assert figures(str(raised.value))["free"] == DEVICE_BYTES - 40 * MIB
    fits, elsewhere = allocate(24 * MIB), allocate(100 * MIB, device=1)
    del kept, fits, elsewhere
    # What is cached counts, and is given up for what is asked.
    assert allocate(64 * MIB).nbytes() == 64 * MIB
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match="fraction"):
            torch.xpu.set_per_process_memory_fraction(wrong)


def test_a_failed_kernel_is_reported_once_and_leaves_the_books_right(driver):
    stream = torch.xpu.Stream()
    memory = allocate(1000, stream=stream)
    kernel = driver.kernel(driver.module(0, Format.OPENCL_C, b"__kernel void k() {}"), "k")
    with faults(run=1):
        driver.launch(stream.sycl_queue, kernel, (1, 1, 1), (1, 1, 1))
    del memory
    with pytest.raises(RuntimeError, match="failed"):
        torch.xpu.empty_cache()
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == 0
    assert torch.xpu.mem_get_info() == (DEVICE_BYTES, DEVICE_BYTES)
    assert allocate(1000, stream=stream).nbytes() == 1000
