"""Pinned host memory."""

from __future__ import annotations

import torch

from anyxpu.drivers.null import faults
from anyxpu.runtime.memory import pinned_memory_stats
from anyxpu.shim import lib
from tests.on_null.support import MIB, Gate


def test_pinned_memory_is_told_from_ordinary_memory():
    ordinary = torch.arange(10.0)
    pinned = ordinary.pin_memory()
    assert pinned.is_pinned() and not ordinary.is_pinned()
    assert pinned.device.type == "cpu"
    assert pinned.tolist() == ordinary.tolist()
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert pinned[3:].is_pinned()
    assert pinned.pin_memory() is pinned


def test_pinned_memory_is_reused_after_its_streams_passed(driver):
    stream = torch.xpu.Stream()
    pinned = torch.empty(1000, pin_memory=True)
    address = pinned.data_ptr()
    with Gate(driver, stream) as gate:
        assert lib().record_pinned(pinned[100:].data_ptr(), stream.stream_id, 0)
        del pinned
        assert torch.empty(1000, pin_memory=True).data_ptr() != address
        gate.open()
    assert address in {t.data_ptr() for t in [torch.empty(1000, pin_memory=True) for _ in range(2)]}
    assert not lib().record_pinned(torch.empty(10).data_ptr(), stream.stream_id, 0)


def test_pinned_memory_freed_unused_is_reused_at_once():
    address = torch.empty(1000, pin_memory=True).data_ptr()
    assert torch.empty(1000, pin_memory=True).data_ptr() == address


def test_pinned_memory_refused_releases_its_cache_and_tries_again():
    cached = torch.empty(1 << 20, pin_memory=True)
    del cached
    reserved = pinned_memory_stats()["reserved_bytes"]["current"]
    assert reserved >= 4 * MIB
    with faults(alloc=1):
        kept = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
    assert kept.is_pinned()
    assert pinned_memory_stats()["reserved_bytes"]["current"] == 8 * MIB
    del kept
    if hasattr(torch.accelerator, "empty_host_cache"):  # from torch 2.12 or 2.13 on
        torch.accelerator.empty_host_cache()
        assert pinned_memory_stats()["reserved_bytes"]["current"] == 0


def test_a_data_loader_pins_its_batches():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    batches = [batch for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.cat(batches).tolist() == list(range(8))


def test_a_copy_from_pinned_memory_holds_up_neither_the_host_nor_another_stream():
    source, side = torch.empty(1024, pin_memory=True), torch.xpu.Stream()
    target, other = torch.empty(1024, device="xpu"), torch.empty(1024, device="xpu")
    copied, passed = torch.xpu.Event(), torch.xpu.Event()
    with faults(copy_ms=2000):
        with torch.xpu.stream(side):
            target.copy_(source, non_blocking=True)
            copied.record(side)
        other.zero_()
        passed.record()
        passed.synchronize()
        assert not copied.query()
    copied.synchronize()
    assert copied.query()


def test_a_copy_to_pinned_memory_overlaps_as_well_and_an_ordinary_one_waits():
    source, pinned, ordinary = torch.empty(1024, device="xpu"), torch.empty(1024, pin_memory=True), torch.empty(1024)
    copied = torch.xpu.Event()
    with faults(copy_ms=300):
        pinned.copy_(source, non_blocking=True)
        copied.record()
        assert not copied.query()
        ordinary.copy_(source)
        assert copied.query()
