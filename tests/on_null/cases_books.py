"""Under random use and many threads, statistics, snapshot and what the case itself knows agree."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import threading

import torch

from anyxpu.shim import lib
from tests.on_null.support import DEVICE_BYTES, DEVICES, KIB, MIB, Gate, allocate, stat


def check_books(live: dict[int, tuple[torch.UntypedStorage, int, int]], pending: int) -> None:
    """``live``: address → (memory, device, bytes asked). Compare statistics, snapshot and what the test knows."""
    snapshot = torch.xpu.memory_snapshot()
    for device in DEVICES:
        segments = [segment for segment in snapshot if segment["device"] == device]
        blocks = [block for segment in segments for block in segment["blocks"]]
        allocated = {b["address"]: b for b in blocks if b["state"] == "active_allocated"}
        mine = {address: asked for address, (_, its, asked) in live.items() if its == device}
        assert {address: b["requested_size"] for address, b in allocated.items()} == mine
        assert all(b["size"] >= b["requested_size"] and b["size"] % 512 == 0 for b in blocks)
        for segment in segments:
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at  # so no two blocks overlap, and none is lost
                at += block["size"]
            assert at == segment["address"] + segment["total_size"]
            states = [block["state"] for block in segment["blocks"]]
            assert ("inactive", "inactive") not in itertools.pairwise(states), "neighbours did not merge"
        active = [b for b in blocks if b["state"] != "inactive"]
        split = [b for s in segments if len(s["blocks"]) > 1 for b in s["blocks"] if b["state"] == "inactive"]
        expected = {
            "allocation": len(mine),
            "allocated_bytes": sum(b["size"] for b in allocated.values()),
            "active": len(active),
            "active_bytes": sum(b["size"] for b in active),
            "inactive_split": len(split),
            "inactive_split_bytes": sum(b["size"] for b in split),
            "segment": len(segments),
            "reserved_bytes": sum(s["total_size"] for s in segments),
        }
        stats = torch.xpu.memory_stats(device)
        assert {name: stats[f"{name}.all.current"] for name in expected} == expected
        for name in expected:
            assert stats[f"{name}.all.current"] == sum(
                stats[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool")
            )
            values = [stats[f"{name}.all.{metric}"] for metric in ("current", "peak", "allocated", "freed")]
            assert values[0] == values[2] - values[3]
            assert values[1] >= values[0] >= 0
        assert torch.xpu.mem_get_info(device)[0] == DEVICE_BYTES - expected["reserved_bytes"]
        assert pending or len(active) == len(allocated)


def test_random_use_keeps_the_books(driver):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    streams = {device: [torch.xpu.Stream(device=device) for _ in range(3)] for device in DEVICES}
    live: dict[int, tuple[torch.UntypedStorage, int, int]] = {}
    gates: list[Gate] = []

    def take() -> None:
        device = draw.choice(DEVICES)
        asked = draw.choice([draw.randint(1, 4 * KIB), draw.randint(1, MIB), draw.randint(1, 24 * MIB)])
        try:
            memory = allocate(asked, device, draw.choice(streams[device]))
        except torch.OutOfMemoryError:
            assert stat("num_ooms", device) > 0
            return
        for address, (_, _, other) in live.items():
            assert address + other <= memory.data_ptr() or memory.data_ptr() + asked <= address, (
                "two live blocks overlap"
            )
        live[memory.data_ptr()] = (memory, device, asked)

    def give() -> None:
        if live:
            del live[draw.choice(list(live))]

    def use_elsewhere() -> None:
        if live:
            address = draw.choice(list(live))
            device = draw.choice(DEVICES)
            lib().record_stream(address, draw.choice(streams[device]).stream_id, device)

    def close_a_stream() -> None:
        if not gates:
            gates.append(Gate(driver, draw.choice(streams[draw.choice(DEVICES)])))

    def open_streams() -> None:
        while gates:
            gates.pop().open()

    def empty() -> None:
        open_streams()
        torch.xpu.empty_cache()

    steps = [take, take, take, take, give, give, give, use_elsewhere, close_a_stream, open_streams]
    for step in range(600):
        if gates and sum(torch.xpu.memory_reserved(d) for d in DEVICES) > DEVICE_BYTES:
            open_streams()  # what runs out of memory waits for every stream
        draw.choice(steps)()
        if draw.random() < 0.02:
            empty()
        if step % 10 == 0:
            check_books(live, pending=1)
    live.clear()
    empty()
    check_books(live, pending=0)
    assert all(torch.xpu.mem_get_info(device)[0] == DEVICE_BYTES for device in DEVICES)


def test_many_threads_at_once_keep_the_books():
    handed: list[torch.UntypedStorage] = []
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        mine = []
        try:
            for _ in range(300):
                memory = allocate(
                    draw.choice([draw.randint(1, 4 * KIB), draw.randint(1, 3 * MIB)]), draw.choice(DEVICES)
                )
                draw.choice([mine, handed]).append(memory)
                if len(mine) > 5:
                    mine.pop(draw.randrange(len(mine)))
                if len(handed) > 10:
                    with contextlib.suppress(IndexError):
                        handed.pop(0)  # perhaps another thread's
                if draw.random() < 0.05:
                    torch.xpu.empty_cache()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    handed.clear()
    gc.collect()
    check_books({}, pending=0)
