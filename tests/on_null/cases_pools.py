"""Memory pools."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch

from tests.on_null.support import DEVICE_BYTES, MIB, allocate

KEPT_ALIVE: list[object] = []  # functions that C may still call


def test_a_pool_keeps_its_memory_to_itself():
    pool = torch.xpu.MemPool()
    outside = allocate(1000)
    with torch.xpu.use_mem_pool(pool):
        inside = allocate(1000)
    assert pool.use_count() == 1
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert [b["address"] for b in segment["blocks"] if b["state"] == "active_allocated"] == [inside.data_ptr()]
    address = inside.data_ptr()
    del inside
    assert allocate(1000).data_ptr() != address
    with torch.xpu.use_mem_pool(pool):
        assert allocate(1000).data_ptr() == address
    # The pool's memory outlives the shared cache, and goes with the pool.
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == 4 * MIB
    del pool
    gc.collect()
    assert torch.xpu.memory_reserved() == 2 * MIB
    del outside


def test_a_pool_serves_the_thread_that_asked_only():
    pool = torch.xpu.MemPool()
    others: list[torch.UntypedStorage] = []
    with torch.xpu.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: others.append(allocate(1000)))
        thread.start()
        thread.join()
        assert pool.snapshot() == []
        inside = allocate(1000)
        assert len(pool.snapshot()) == 1
    others.clear()
    del inside, pool


def test_a_tensor_may_outlive_its_pool():
    pool = torch.xpu.MemPool()
    with torch.xpu.use_mem_pool(pool):
        inside = allocate(30 * MIB)
    del pool
    gc.collect()
    assert torch.xpu.memory_allocated() == 30 * MIB
    del inside
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == 0


def test_a_pool_may_help_out_when_memory_runs_out():
    for helps in (False, True):
        pool = torch.xpu.MemPool(use_on_oom=helps)
        with torch.xpu.use_mem_pool(pool):
            allocate(200 * MIB)
        if helps:
            assert allocate(150 * MIB).nbytes() == 150 * MIB
        else:
            with pytest.raises(torch.OutOfMemoryError):
                allocate(150 * MIB)
        del pool
        gc.collect()


def test_a_pool_may_have_an_allocator_of_its_own():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    asked: list[int] = []
    freed: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def its_allocate(size: int, device: int, queue: int) -> int | None:
        asked.append(size)
        return libc.malloc(ctypes.c_size_t(size)) if size < 100 * MIB else None

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def its_free(pointer: int, size: int, device: int, queue: int) -> None:
        freed.append(size)
        libc.free(ctypes.c_void_p(pointer))

    KEPT_ALIVE.extend((its_allocate, its_free))
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (its_allocate, its_free)]
    pool = torch.xpu.MemPool(torch._C._xpu_customAllocator(*addresses))
    with torch.xpu.use_mem_pool(pool):
        inside = [allocate(1000), allocate(1000)]
        assert asked == [2 * MIB]
        with pytest.raises(torch.OutOfMemoryError):
            allocate(120 * MIB)
        with torch.xpu.device(1), torch.xpu.use_mem_pool(pool, 1):
            inside.append(allocate(3 * MIB, device=1))
    assert asked == [2 * MIB, 120 * MIB, 120 * MIB, 20 * MIB]
    assert torch.xpu.mem_get_info(1)[0] == DEVICE_BYTES
    del inside, pool
    gc.collect()
    assert sorted(freed) == [2 * MIB, 20 * MIB]


def test_pools_misused_say_so():
    with pytest.raises(RuntimeError, match="no memory pool"):
        torch._C._xpu_releasePool(0, (77, 77))
    with pytest.raises(RuntimeError, match="was begun"):
        torch._C._xpu_endAllocateToPool(0, (77, 77))
