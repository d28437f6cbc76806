"""Statistics."""

from __future__ import annotations

import ctypes

import torch

from anyxpu.shim import lib
from tests.on_null.support import DEVICE_BYTES, DEVICES, MIB, allocate, stat


def test_peaks_and_accumulated_figures_reset_by_themselves():
    for nbytes in (10 * MIB, 30 * MIB, 20 * MIB):
        allocate(nbytes)
    assert torch.xpu.memory_allocated() == 0
    assert torch.xpu.max_memory_allocated() == 30 * MIB
    assert stat("allocated_bytes.all.allocated") == stat("allocated_bytes.all.freed") == 60 * MIB
    torch.xpu.reset_peak_memory_stats()
    assert torch.xpu.max_memory_allocated() == 0
    assert torch.xpu.max_memory_reserved() == torch.xpu.memory_reserved() > 0
    assert stat("allocated_bytes.all.allocated") == 60 * MIB
    torch.xpu.reset_accumulated_memory_stats()
    assert stat("allocated_bytes.all.allocated") == stat("num_device_alloc") == 0


def test_the_accelerator_functions_tell_the_same():
    memory = allocate(3 * MIB, device=1)
    ours, theirs = torch.xpu.memory_stats(1), torch.accelerator.memory_stats(1)
    assert theirs["allocated_bytes.all.current"] == 3 * MIB
    assert {name: value for name, value in ours.items() if name in theirs} == {
        name: value for name, value in theirs.items() if name in ours
    }
    assert set(ours) <= set(theirs)
    assert torch.accelerator.get_memory_info(1) == torch.xpu.mem_get_info(1) == (236 * MIB, DEVICE_BYTES)
    torch.accelerator.reset_peak_memory_stats(1)
    del memory
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(1) == torch.xpu.memory_reserved(1) == 0


def test_memory_stats_have_every_name_of_cuda():
    allocate(1)
    names = set(torch.xpu.memory_stats_as_nested_dict())
    core = {"allocation", "segment", "active", "inactive_split"}
    core_bytes = {f"{what}_bytes" for what in ("allocated", "reserved", "active", "inactive_split", "requested")}
    counters = {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"}
    assert names == core | core_bytes | counters | {"oversize_allocations", "oversize_segments", "max_split_size"}
    for name in core | core_bytes:
        for pool in ("all", "small_pool", "large_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert isinstance(stat(f"{name}.{pool}.{metric}"), int)


def test_two_devices_keep_apart():
    zero, one = allocate(5 * MIB), allocate(1000, device=1)
    assert [torch.xpu.memory_allocated(d) for d in DEVICES] == [5 * MIB, 1024]
    assert [torch.xpu.mem_get_info(d)[0] for d in DEVICES] == [DEVICE_BYTES - 20 * MIB, DEVICE_BYTES - 2 * MIB]
    assert [lib().device_of(m.data_ptr()) for m in (zero, one)] == [0, 1]
    assert lib().device_of(one.data_ptr() + 999) == 1
    assert lib().device_of(ctypes.addressof(ctypes.c_int())) is None
    assert {segment["device"] for segment in torch.xpu.memory_snapshot()} == {0, 1}
