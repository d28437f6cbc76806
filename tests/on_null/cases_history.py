"""Snapshots and the history of allocations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.on_null.support import DEVICE_BYTES, GIB, MIB, allocate


@contextlib.contextmanager
def recording(**options: object) -> Iterator[None]:
    torch.xpu.memory._record_memory_history(clear_history=True, **options)
    try:
        yield
    finally:
        torch.xpu.memory._record_memory_history(None)


def test_a_snapshot_tells_each_block():
    with recording():
        first, second = allocate(1000), allocate(3000)
        (segment,) = torch.xpu.memory_snapshot()
    blocks = segment.pop("blocks")
    assert [(b["address"], b["size"], b["requested_size"], b["state"]) for b in blocks[:2]] == [
        (first.data_ptr(), 1024, 1000, "active_allocated"),
        (second.data_ptr(), 3072, 3000, "active_allocated"),
    ]
    assert blocks[2]["state"] == "inactive"
    assert {name: segment[name] for name in ("device", "address", "total_size", "allocated_size", "active_size")} == {
        "device": 0,
        "address": first.data_ptr(),
        "total_size": 2 * MIB,
        "allocated_size": 4096,
        "active_size": 4096,
    }
    assert segment["segment_type"] == "small"
    assert segment["stream"] == torch.xpu.current_stream().sycl_queue
    assert segment["segment_pool_id"] == (0, 0)
    names = [frame["name"] for frame in blocks[0]["frames"]]
    assert "test_a_snapshot_tells_each_block" in names
    assert blocks[2]["frames"] == []


def actions(device: int = 0) -> list[str]:
    return [entry["action"] for entry in torch.xpu.memory._snapshot()["device_traces"][device]]


def test_history_tells_what_happened_in_order():
    with recording():
        memory = allocate(1000)
        address = memory.data_ptr()
        del memory
        with pytest.raises(torch.OutOfMemoryError):
            allocate(2 * GIB)
        entries = torch.xpu.memory._snapshot()["device_traces"][0]
    told = [(e["action"], e.get("addr"), e["size"]) for e in entries if e["action"] != "snapshot"]
    assert told == [
        ("segment_alloc", address, 2 * MIB),
        ("alloc", address, 1000),
        ("free_requested", address, 1000),
        ("free_completed", address, 1000),
        ("segment_free", address, 2 * MIB),
        ("oom", None, 2 * GIB),
    ]
    (oom,) = (entry for entry in entries if entry["action"] == "oom")
    assert oom["device_free"] == DEVICE_BYTES
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)
    assert "allocate" in [frame["name"] for frame in entries[1]["frames"]]


def test_history_keeps_the_newest_entries():
    with recording(max_entries=3, skip_actions=["snapshot", "segment_map"]):
        for nbytes in range(1, 9):
            allocate(nbytes)
        entries = torch.xpu.memory._snapshot()["device_traces"][0]
    assert [(e["action"], e["size"]) for e in entries] == [("alloc", 8), ("free_requested", 8), ("free_completed", 8)]


def test_history_keeps_what_was_asked_for_only():
    with recording(enabled="state", context="state"):
        memory = allocate(1000)
        assert actions() == []
        assert torch.xpu.memory_snapshot()[0]["blocks"][0]["frames"]
    with recording(context="alloc", stacks="python"):
        del memory
        allocate(1000)
        entries = torch.xpu.memory._snapshot()["device_traces"][0]
        assert [bool(e["frames"]) for e in entries if e["action"] in ("alloc", "free_requested")] == [
            False,
            True,
            False,
        ]
    with recording(context=None, skip_actions=["alloc", "free_completed"]):
        allocate(1000)
        assert actions() == ["free_requested", "snapshot"]
    allocate(1000)
    assert actions() == []
    for wrong in ({"enabled": "some"}, {"context": "none"}, {"stacks": "c"}, {"skip_actions": ["malloc"]}):
        with pytest.raises(ValueError, match="expected one of"):
            torch.xpu.memory._record_memory_history(**wrong)


def test_the_visualiser_reads_a_snapshot():
    from torch.cuda import _memory_viz

    with recording():
        kept = [allocate(1000), allocate(30 * MIB)]
        snapshot = torch.xpu.memory._snapshot()
    # Its functions draw with a program they download; the text they would draw is what is looked at.
    drawn = _memory_viz.segments(snapshot, format_flamegraph=str)
    assert "test_the_visualiser_reads_a_snapshot" in drawn
    assert str(30 * MIB) in drawn
    assert "alloc" in _memory_viz.trace(snapshot)
    del kept
