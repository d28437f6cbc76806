"""Modules, kernels and launches of the sycl driver, called through ctypes."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from anyxpu import build
from anyxpu.drivers.abi import Driver, DriverError, Format, Memory, Status
from tests.driver_support import AXPY_AND_REVERSE, Gate, address, from_device, load, random_floats, refuses, to_device

SOURCE = (
    AXPY_AND_REVERSE
    + b"""
__kernel void where_am_i(__global int* out) {
  int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
  int i = (z * get_global_size(1) + y) * get_global_size(0) + x;
  out[4 * i] = get_group_id(0); out[4 * i + 1] = get_group_id(1); out[4 * i + 2] = get_group_id(2);
  out[4 * i + 3] = (get_local_id(2) * get_local_size(1) + get_local_id(1)) * get_local_size(0) + get_local_id(0);
}
__attribute__((reqd_work_group_size(64, 1, 1))) __kernel void needs_64(__global int* y) { y[get_global_id(0)] = 1; }
__kernel void add_one(__global int* x) { x[get_global_id(0)] = x[get_global_id(0)] + 1; }
__kernel void add_one_slowly(__global int* x, __global volatile int* clock) {
  int seen = x[get_global_id(0)];
  for (int i = 0; i < 30000; ++i) clock[get_global_id(0)] = i;
  x[get_global_id(0)] = seen + 1;
}
#ifdef cl_khr_fp64
__kernel void scalars(__global double* out, char c, uchar uc, short s, ulong ul, double d) {
  out[0] = c; out[1] = uc; out[2] = s; out[3] = (double)ul; out[4] = d;
}
#endif
"""
)


@pytest.fixture(scope="module")
def sycl(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if build.sycl_prefix() is None:
        pytest.skip("intel-sycl-rt is not installed")
    return load("sycl", tmp_path_factory, devices=2)


@pytest.fixture(scope="module")
def module(sycl: Driver) -> int:
    return sycl.module(0, Format.OPENCL_C, SOURCE, "-cl-std=CL3.0")


@pytest.fixture(autouse=True)
def open_gates() -> Iterator[None]:
    yield
    Gate.open_all()


# --- modules and launches -----------------------------------------------------------------------------------------
def test_a_kernel_computes(sycl: Driver, module: int) -> None:
    queue, n = sycl.queue(0), 1000
    x, y, a = random_floats(n), random_floats(n), np.float32(1.7)
    dx, dy = to_device(sycl, queue, x), to_device(sycl, queue, y)
    kernel = sycl.kernel(module, "axpy")
    sycl.launch(queue, kernel, (16, 1, 1), (64, 1, 1), dy, dx, ctypes.c_float(a), ctypes.c_int(n))
    expected = y.astype(np.float64) + np.float64(a) * x.astype(np.float64)
    np.testing.assert_allclose(from_device(sycl, queue, dy, y), expected, rtol=1e-5, atol=1e-6)


def test_groups_and_items_are_counted_x_first(sycl: Driver, module: int) -> None:
    groups, local = (5, 3, 2), (4, 2, 3)
    size = [g * w for g, w in zip(groups, local, strict=True)]
    queue, out = sycl.queue(0), np.zeros((size[2], size[1], size[0], 4), np.int32)
    pointer = to_device(sycl, queue, out)
    sycl.launch(queue, sycl.kernel(module, "where_am_i"), groups, local, pointer)
    z, y, x = np.indices(out.shape[:3])
    item = ((z % local[2]) * local[1] + y % local[1]) * local[0] + x % local[0]
    expected = np.stack([x // local[0], y // local[1], z // local[2], item], -1)
    assert np.array_equal(from_device(sycl, queue, pointer, out), expected)


def test_local_memory_is_an_argument(sycl: Driver, module: int) -> None:
    queue, data = sycl.queue(0), np.arange(256, dtype=np.int32)
    pointer = to_device(sycl, queue, data)
    sycl.launch(queue, sycl.kernel(module, "reverse_group"), (4, 1, 1), (64, 1, 1), pointer, ("local", 256))
    expected = data.reshape(4, 64)[:, ::-1].ravel()
    assert np.array_equal(from_device(sycl, queue, pointer, data), expected)


def test_scalars_of_every_width_arrive(sycl: Driver, module: int) -> None:
    if not sycl.properties(0).has_fp64:
        pytest.skip("the device has no doubles")
    queue, out = sycl.queue(0), np.zeros(5)
    pointer = to_device(sycl, queue, out)
    values = (ctypes.c_int8(-3), ctypes.c_uint8(250), ctypes.c_int16(-3000), ctypes.c_uint64(1 << 60), 2.25)
    sycl.launch(
        queue, sycl.kernel(module, "scalars"), (1, 1, 1), (1, 1, 1), pointer, *values[:4], ctypes.c_double(values[4])
    )
    assert from_device(sycl, queue, pointer, out).tolist() == [-3, 250, -3000, float(1 << 60), 2.25]


def test_native_code_goes_round(sycl: Driver, module: int) -> None:
    native = sycl.native(module)
    again = sycl.module(0, Format.NATIVE, native)
    queue, x, y = sycl.queue(0), random_floats(64), random_floats(64)
    dx, dy = to_device(sycl, queue, x), to_device(sycl, queue, y)
    kernel = sycl.kernel(again, "axpy")
    sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), dy, dx, ctypes.c_float(2), ctypes.c_int(64))
    np.testing.assert_allclose(from_device(sycl, queue, dy, y), y + 2.0 * x.astype(np.float64), rtol=1e-5, atol=1e-6)
    with refuses(Status.BUILD_FAILED):
        sycl.module(0, Format.NATIVE, native[: len(native) // 3])


def test_a_build_failure_holds_the_compilers_log(sycl: Driver) -> None:
    with pytest.raises(DriverError, match=re.compile(r":2:\d+: error: .*no_such_thing", re.S)) as caught:
        sycl.module(0, Format.OPENCL_C, b"__kernel void k(__global int* x) {\n  x[0] = no_such_thing; }")
    assert caught.value.status is Status.BUILD_FAILED


def test_a_missing_kernel_is_named_with_those_there_are(sycl: Driver, module: int) -> None:
    with refuses(Status.INVALID, "no kernel nope .*axpy"):
        sycl.kernel(module, "nope")


def test_kernel_information(sycl: Driver) -> None:
    source = b"""
    __attribute__((intel_reqd_sub_group_size(32))) __kernel void k(__global float* x) {
      __local float shared[100];
      shared[get_local_id(0) % 100] = x[get_global_id(0)];
      barrier(CLK_LOCAL_MEM_FENCE);
      x[get_global_id(0)] = shared[(get_local_id(0) + 1) % 100];
    }"""
    info = sycl.kernel_info(sycl.kernel(sycl.module(0, Format.OPENCL_C, source), "k"))
    assert info.sub_group_size == 32
    assert info.local_mem_size >= 400
    assert 0 < info.max_work_group_size <= sycl.properties(0).max_work_group_size


def test_wrong_launches_are_refused_at_once(sycl: Driver, module: int) -> None:
    queue, pointer = sycl.queue(0), sycl.allocate(0, 4096)
    axpy, needs_64 = sycl.kernel(module, "axpy"), sycl.kernel(module, "needs_64")
    args = (pointer, pointer, ctypes.c_float(0), ctypes.c_int(0))
    with refuses(Status.INVALID, "takes 4 arguments; it was given 3"):
        sycl.launch(queue, axpy, (1, 1, 1), (64, 1, 1), *args[:3])
    with refuses(Status.INVALID, r"work-groups of \d+ work-items"):
        sycl.launch(queue, axpy, (1, 1, 1), (1 << 20, 1, 1), *args)
    with refuses(Status.INVALID, "requires 64x1x1"):
        sycl.launch(queue, needs_64, (1, 1, 1), (32, 2, 1), pointer)
    with refuses(Status.LAUNCH_FAILED):
        sycl.launch(queue, axpy, (1, 1, 1), (64, 1, 1), *args[:3], ctypes.c_double(0))
    sycl.launch(queue, axpy, (0, 1, 1), (64, 1, 1), *args)  # nothing to do
    sycl.launch(queue, axpy, (1, 1, 1), (64, 1, 1), *args)
    sycl.synchronize(queue)


def launch_that_fails_later(sycl: Driver, queue: int, kernel: int, pointer: int) -> Gate:
    """Put a launch that the device will refuse behind a wait for another device, where the runtime holds it back."""
    other, event = sycl.queue(0), sycl.event(0)
    gate = Gate(sycl, other)
    sycl.record(event, other)
    sycl.wait(event, queue)
    sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), pointer, ("local", 1 << 30))  # more than there is
    return gate


@pytest.mark.parametrize("noticed_by", ["synchronize", "next command"])
def test_a_failure_that_comes_late_surfaces_and_the_queue_goes_on(sycl: Driver, noticed_by: str) -> None:
    queue, data, scratch = sycl.queue(1), np.arange(64, dtype=np.int32), sycl.allocate(1, 64)
    pointer = to_device(sycl, queue, data, device=1)
    kernel = sycl.kernel(sycl.module(1, Format.OPENCL_C, SOURCE, "-cl-std=CL3.0"), "reverse_group")
    launch_that_fails_later(sycl, queue, kernel, pointer).open()
    if noticed_by == "synchronize":
        with refuses(Status.LAUNCH_FAILED):
            sycl.synchronize(queue)
    else:
        with refuses(Status.LAUNCH_FAILED, "earlier"):
            for _ in range(1000):  # the failure is noticed by the runtime's own thread
                sycl.fill(queue, scratch, b"\0", 1)
                time.sleep(0.01)
    sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), pointer, ("local", 256))
    assert np.array_equal(from_device(sycl, queue, pointer, data), data[::-1])
    sycl.synchronize(sycl.queue(1))  # hears nothing of it


def test_a_failure_on_a_queue_that_is_gone_harms_nobody(sycl: Driver) -> None:
    queue, other, pointer = sycl.queue(1), sycl.queue(1), sycl.allocate(1, 4096)
    kernel = sycl.kernel(sycl.module(1, Format.OPENCL_C, SOURCE, "-cl-std=CL3.0"), "reverse_group")
    gate = launch_that_fails_later(sycl, queue, kernel, pointer)
    sycl.queue_destroy(queue)
    gate.open()
    for _ in range(20):
        time.sleep(0.01)
        sycl.fill(other, pointer, b"\0", 64)
        sycl.synchronize(other)


def test_threads_launch_one_kernel_with_their_own_arguments(sycl: Driver, module: int) -> None:
    kernel, n, rounds = sycl.kernel(module, "axpy"), 256, 200
    failures: list[object] = []

    def work(seed: int) -> None:
        queue = sycl.queue(0)
        x, y = np.full(n, seed, np.float32), np.zeros(n, np.float32)
        dx, dy = to_device(sycl, queue, x), to_device(sycl, queue, y)
        for _ in range(rounds):
            sycl.launch(queue, kernel, (4, 1, 1), (64, 1, 1), dy, dx, ctypes.c_float(1), ctypes.c_int(n))
        if not (from_device(sycl, queue, dy, y) == seed * rounds).all():
            failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_module_belongs_to_its_device(sycl: Driver, module: int) -> None:
    queue, pointer = sycl.queue(1), sycl.allocate(1, 4096)
    kernel = sycl.kernel(module, "reverse_group")
    with pytest.raises(DriverError):
        sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), pointer, ("local", 256))
    sycl.synchronize(queue)


# --- the process around it ------------------------------------------------------------------------------------------


# --- work that is little ------------------------------------------------------------------------------------------
LITTLE = 64


def test_little_work_on_an_idle_queue_is_done_when_the_launch_returns(sycl: Driver, module: int) -> None:
    queue, pointer = sycl.queue(0), sycl.allocate(0, 4 * LITTLE, Memory.HOST)
    numbers = np.ctypeslib.as_array((ctypes.c_int32 * LITTLE).from_address(pointer))
    numbers[:] = before = np.random.default_rng().integers(0, 1000, LITTLE)
    kernel = sycl.kernel(module, "add_one")
    for round_ in range(1, 4):
        sycl.launch(queue, kernel, (1, 1, 1), (LITTLE, 1, 1), pointer, work=LITTLE)
        assert np.array_equal(numbers, before + round_)
    sycl.launch(queue, sycl.kernel(module, "reverse_group"), (1, 1, 1), (LITTLE, 1, 1), pointer, ("local", 256), work=1)
    assert np.array_equal(numbers, (before + 3)[::-1])


def test_little_work_waits_for_what_is_before_it(sycl: Driver, module: int) -> None:
    queue, pointer = sycl.queue(0), sycl.allocate(0, 4 * LITTLE)
    kernel, seen = sycl.kernel(module, "add_one"), np.zeros(LITTLE, np.int32)
    gate = Gate(sycl, queue)
    sycl.fill(queue, pointer, b"\x07\x00\x00\x00", LITTLE)
    sycl.launch(queue, kernel, (1, 1, 1), (LITTLE, 1, 1), pointer, work=LITTLE)
    sycl.copy(queue, address(seen), pointer, seen.nbytes)
    assert not sycl.idle(queue) and not seen.any()
    gate.open()
    sycl.synchronize(queue)
    assert (seen == 8).all()


def test_little_work_waits_for_an_event_of_another_queue(sycl: Driver, module: int) -> None:
    writer, reader, event = sycl.queue(0), sycl.queue(0), sycl.event(0)
    pointer, seen = to_device(sycl, writer, np.zeros(LITTLE, np.int32)), np.zeros(LITTLE, np.int32)
    gate = Gate(sycl, writer)
    sycl.fill(writer, pointer, b"\x07\x00\x00\x00", LITTLE)
    sycl.record(event, writer)
    sycl.wait(event, reader)
    sycl.launch(reader, sycl.kernel(module, "add_one"), (1, 1, 1), (LITTLE, 1, 1), pointer, work=LITTLE)
    sycl.copy(reader, address(seen), pointer, seen.nbytes)
    gate.open()
    sycl.synchronize(reader)
    assert (seen == 8).all()


@pytest.mark.parametrize("works", [(1, 1), (1, 0)])
def test_little_work_of_two_threads_on_one_queue_does_not_overlap(
    sycl: Driver, module: int, works: tuple[int, int]
) -> None:
    """Each launch reads and writes the same number: one that began before another had ended would lose its step."""
    queue, pointer, clock, launches = sycl.queue(0), sycl.allocate(0, 4), sycl.allocate(0, 4), 500
    kernel, seen = sycl.kernel(module, "add_one_slowly"), np.zeros(1, np.int32)
    sycl.fill(queue, pointer, b"\x00", 4)
    sycl.synchronize(queue)

    def launch(work: int) -> None:
        for _ in range(launches):
            sycl.launch(queue, kernel, (1, 1, 1), (1, 1, 1), pointer, clock, work=work)
            sycl.synchronize(queue)  # so that the queue is idle time and again

    threads = [threading.Thread(target=launch, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sycl.copy(queue, address(seen), pointer, seen.nbytes)
    sycl.synchronize(queue)
    assert seen[0] == len(works) * launches


def test_wrong_launches_of_little_work_are_refused(sycl: Driver, module: int) -> None:
    queue, kernel = sycl.queue(0), sycl.kernel(module, "add_one")
    with refuses(Status.INVALID, "takes 1 arguments"):
        sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), work=1)
    pointer = sycl.allocate(0, 256)
    with refuses(Status.LAUNCH_FAILED, "SYCL answers"):
        sycl.launch(
            queue, sycl.kernel(module, "reverse_group"), (1, 1, 1), (64, 1, 1), pointer, ("local", 1 << 30), work=1
        )
    sycl.launch(queue, kernel, (1, 1, 1), (64, 1, 1), pointer, work=1)
    sycl.synchronize(queue)
