"""Blocks: how large, for whom, split and merged; and what another stream's use delays."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

from anyxpu.drivers.null import counts, reset_counts
from anyxpu.shim import lib
from tests.on_null.support import KIB, MIB, Gate, allocate, settings, stat


def test_blocks_are_multiples_of_512_bytes():
    # The last is given its segment whole: less than 1 MiB of it is not worth a block.
    sizes = ((1, 512), (512, 512), (513, 1024), (1000, 1024), (MIB - 1, MIB), (31 * MIB + 1, 32 * MIB))
    for nbytes, expected in sizes:
        memory = allocate(nbytes)
        assert torch.xpu.memory_allocated() == expected, f"for {nbytes} bytes"
        assert stat("requested_bytes.all.current") == nbytes
        del memory


def test_segments_are_2_mib_then_20_mib_then_what_was_asked():
    for nbytes, segment in (
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (9 * MIB, 20 * MIB),
        (11 * MIB, 12 * MIB),
    ):
        memory = allocate(nbytes)
        assert torch.xpu.memory_reserved() == segment, f"{nbytes} bytes reserved {torch.xpu.memory_reserved()}"
        pool = "small_pool" if nbytes <= MIB else "large_pool"
        assert stat(f"segment.{pool}.current") == stat("segment.all.current") == 1
        del memory
        torch.xpu.empty_cache()


def test_no_bytes_take_no_memory_and_know_their_device():
    with torch.xpu.device(1):
        memory = torch.UntypedStorage(0, device="xpu")
    assert memory.data_ptr() == 0
    assert memory.device == torch.device("xpu", 1)
    assert torch.xpu.memory_stats(1)["allocation.all.allocated"] == 0


def test_roundup_power2_divisions_rounds_between_powers_of_two():
    with settings("roundup_power2_divisions:4"):
        memory = allocate(1200 * KIB)  # between 1 and 2 MiB in quarters: 1280 KiB
        assert torch.xpu.memory_allocated() == 1280 * KIB
    del memory


def test_a_setting_without_effect_is_said_to_have_none():
    with settings("expandable_segments:True"), pytest.warns(UserWarning, match="no effect on xpu"):
        assert allocate(1000).nbytes() == 1000


def test_freed_memory_serves_its_own_stream_at_once_and_no_other():
    mine, other = torch.xpu.Stream(), torch.xpu.Stream()
    first = allocate(1000, stream=mine)
    address = first.data_ptr()
    del first
    elsewhere = allocate(1000, stream=other)
    assert elsewhere.data_ptr() != address
    assert allocate(1000, stream=mine).data_ptr() == address


def test_the_smallest_block_that_fits_is_taken():
    kept = [allocate(n * KIB) for n in (64, 8, 32, 8, 16, 8)]
    addresses = {n: kept[i].data_ptr() for i, n in ((0, 64), (2, 32), (4, 16))}
    for i in (0, 2, 4):
        kept[i] = None
    assert allocate(12 * KIB).data_ptr() == addresses[16]
    fitting = allocate(20 * KIB)
    assert fitting.data_ptr() == addresses[32]
    assert allocate(40 * KIB).data_ptr() == addresses[64]


def test_neighbours_merge_whatever_the_order_of_freeing():
    for order in itertools.permutations(range(3)):
        blocks: list[torch.UntypedStorage | None] = [allocate(600 * KIB) for _ in range(3)]
        assert stat("segment.all.current") == 1
        for i in order:
            blocks[i] = None
        assert stat("inactive_split.all.current") == 0, f"order {order} left {torch.xpu.memory_snapshot()}"
        (segment,) = torch.xpu.memory_snapshot()
        assert [block["size"] for block in segment["blocks"]] == [2 * MIB]


def test_max_split_size_keeps_large_blocks_whole():
    with settings("max_split_size_mb:40"):
        allocate(150 * MIB)
        small = allocate(8 * MIB)
        # The 150 MiB block is cached, and not cut for 8 MiB.
        assert torch.xpu.memory_reserved() == 170 * MIB
        again = allocate(145 * MIB)
        assert torch.xpu.memory_reserved() == 170 * MIB
        assert stat("oversize_allocations.current") == 1
        assert torch.xpu.memory_allocated() == 158 * MIB
        del again
        # For 100 MiB it would waste too much, and beside it there is no room: it alone is given back.
        kept = allocate(30 * MIB)
        del kept
        larger = allocate(100 * MIB)
        assert sorted(segment["total_size"] for segment in torch.xpu.memory_snapshot()) == [
            20 * MIB,
            30 * MIB,
            100 * MIB,
        ]
        assert stat("num_alloc_retries") == 0
        assert stat("oversize_segments.current") == 1
        del small, larger
    torch.xpu.empty_cache()


def test_garbage_collection_frees_what_was_passed_over_longest():
    torch.xpu.set_per_process_memory_fraction(0.5)  # 128 MiB, of which 77 MiB may stay
    for oldest in (30, 60):
        with settings("garbage_collection_threshold:0.6"):
            waiting = {size: allocate(size * MIB) for size in (30, 60)}
            del waiting[oldest]
            allocate(1000)  # time passes in requests
            waiting.clear()
            allocate(65 * MIB)
            sizes = sorted(segment["total_size"] // MIB for segment in torch.xpu.memory_snapshot())
        assert sizes == sorted([2, 90 - oldest, 66]), f"{oldest} MiB waited longest"
        assert stat("num_alloc_retries") == 0
        torch.xpu.empty_cache()


def test_empty_cache_keeps_segments_in_use():
    kept, dropped = allocate(1000), allocate(30 * MIB)
    small = [allocate(1000) for _ in range(2)]
    del dropped, small
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == 2 * MIB
    assert counts()["deallocate"] == 1
    del kept


def test_memory_is_given_back_only_after_its_stream_is_done(driver):
    stream = torch.xpu.Stream()
    with Gate(driver, stream) as gate:
        allocate(1000, stream=stream)
        reset_counts()
        emptying = threading.Thread(target=torch.xpu.empty_cache)
        emptying.start()
        while counts()["queue_synchronize"] == 0:
            assert emptying.is_alive()
        assert counts()["deallocate"] == 0
        # Nobody else waits with it, not even to get more.
        assert allocate(1000).data_ptr()
        gate.open()
        emptying.join()
    assert counts()["deallocate"] == 1


def test_record_stream_delays_reuse_until_the_stream_has_passed(driver):
    mine, other = torch.xpu.Stream(), torch.xpu.Stream()
    used = allocate(1000, stream=mine)
    address = used.data_ptr()
    with Gate(driver, other) as gate:
        lib().record_stream(address, other.stream_id, 0)
        del used
        assert torch.xpu.memory_allocated() == 0
        assert stat("active_bytes.all.current") == 1024
        states = [b["state"] for s in torch.xpu.memory_snapshot() for b in s["blocks"] if b["address"] == address]
        assert states == ["active_pending_free"]
        meanwhile = allocate(1000, stream=mine)
        assert meanwhile.data_ptr() != address
        gate.open()
    assert allocate(1000, stream=mine).data_ptr() == address


def test_record_stream_of_two_streams_waits_for_both(driver):
    mine, second, third = torch.xpu.Stream(), torch.xpu.Stream(), torch.xpu.Stream(device=1)
    used = allocate(1000, stream=mine)
    address = used.data_ptr()
    with Gate(driver, second) as two, Gate(driver, third) as three:
        lib().record_stream(address, second.stream_id, 0)
        lib().record_stream(address, third.stream_id, 1)
        del used
        for gate in (three, two):
            assert allocate(1000, stream=mine).data_ptr() != address
            gate.open()
        assert allocate(1000, stream=mine).data_ptr() == address


def test_record_stream_of_its_own_stream_costs_nothing(driver):
    stream = torch.xpu.Stream()
    used = allocate(1000, stream=stream)
    with Gate(driver, stream):
        lib().record_stream(used.data_ptr(), stream.stream_id, 0)
        address = used.data_ptr()
        reset_counts()
        del used
        assert counts()["event_record"] == 0
        assert allocate(1000, stream=stream).data_ptr() == address


def test_empty_cache_waits_for_recorded_streams(driver):
    mine, other = torch.xpu.Stream(), torch.xpu.Stream()
    used = allocate(1000, stream=mine)
    gate = Gate(driver, other)
    lib().record_stream(used.data_ptr(), other.stream_id, 0)
    del used
    # Opened by a Python thread, which needs the GIL that this thread must not hold while it waits.
    threading.Thread(target=gate.open).start()
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == 0
    assert stat("num_sync_all_streams") == 1


def test_events_are_reused(driver):
    mine, other = torch.xpu.Stream(), torch.xpu.Stream()

    def once() -> None:
        used = allocate(1000, stream=mine)
        lib().record_stream(used.data_ptr(), other.stream_id, 0)
        del used
        other.synchronize()

    once()
    reset_counts()
    for _ in range(10):
        once()
    assert counts()["event_record"] == 10
    assert counts()["event_create"] <= 1
