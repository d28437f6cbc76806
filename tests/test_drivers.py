"""Both drivers, called through ctypes: what driver.h promises holds, and breaks where it says it breaks."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from anyxpu import build, simulate
from anyxpu.drivers import NAMES, library_path
from anyxpu.drivers.abi import Driver, DriverError, Format, HostFunction, Memory, Status
from tests.driver_support import MIB, Gate, address, from_device, load, needs_intel, random_floats, refuses, to_device

DRIVERS = [pytest.param("null"), pytest.param("sycl", marks=needs_intel)]


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return load(request.param, tmp_path_factory, devices=2)


@pytest.fixture(scope="module")
def sycl(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if build.sycl_prefix() is None:
        pytest.skip("intel-sycl-rt is not installed")
    return load("sycl", tmp_path_factory, devices=2)


@pytest.fixture
def null(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("ANYXPU_NULL_MEMORY", str(64 * MIB))
    return load("null", tmp_path_factory, devices=2)


@pytest.fixture(autouse=True)
def open_gates() -> Iterator[None]:
    yield
    Gate.open_all()


# --- devices -----------------------------------------------------------------------------------------------------
def test_one_device_is_shown_as_two_separate_ones(driver: Driver) -> None:
    assert driver.device_count() == 2
    first, second = driver.properties(0), driver.properties(1)
    assert first.name == second.name
    assert bytes(first.uuid) != bytes(second.uuid)
    assert driver.can_access_peer(0, 1) and driver.can_access_peer(1, 0)


def test_a_device_that_is_not_there_is_refused(driver: Driver) -> None:
    for call in (driver.properties, driver.memory_info, driver.queue, driver.event):
        for device in (-1, 2):
            with refuses(Status.INVALID, f"no device {device}"):
                call(device)


@pytest.mark.not_simulated("it is about a CPU device")
def test_two_halves_of_a_cpu_share_its_memory(sycl: Driver) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for device in (0, 1):
        free, total = sycl.memory_info(device)
        assert total <= physical // 2
        assert 0 < free <= total


def test_properties_are_filled(sycl: Driver) -> None:
    p = sycl.properties(0)
    assert p.target and p.name and p.driver_version
    assert re.fullmatch(rb"\d+(\.\d+)+", p.version.encode() if isinstance(p.version, str) else p.version)
    assert (
        p.total_memory
        and p.local_mem_size
        and (p.first_level_cache_size or p.target != b"cpu")  # no GPU's driver tells it
        and p.first_level_cache_size <= p.last_level_cache_size
        and (p.clock_rate or simulate.active())  # nothing runs at any rate there
    )
    assert p.max_compute_units and p.gpu_eu_count and p.gpu_subslice_count and p.gpu_eu_simd_width
    sizes = [size for size in p.sub_group_sizes if size]
    assert 16 in sizes and sizes == sorted(sizes)
    assert p.max_num_sub_groups * sizes[0] >= p.max_work_group_size


@pytest.mark.parametrize(
    ("flag", "source"),
    [
        ("has_fp16", b"__kernel void k(__global half* x) { x[0] = x[0] * x[1] + (half)1; }"),
        ("has_fp64", b"__kernel void k(__global double* x) { x[0] = x[0] * x[1] + 1.0; }"),
        (
            "has_atomic64",
            b"#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
            b"__kernel void k(volatile __global long* x) { atom_add(x, 1L); }",
        ),
    ],
)
def test_a_feature_is_reported_exactly_if_its_kernel_compiles(sycl: Driver, flag: str, source: bytes) -> None:
    try:
        sycl.module_destroy(sycl.module(0, Format.OPENCL_C, source, "-cl-std=CL3.0 -Werror"))
        compiles = True
    except DriverError:
        compiles = False
    assert bool(getattr(sycl.properties(0), flag)) == compiles


# --- memory ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", Memory)
def test_memory_is_aligned_and_usable(driver: Driver, kind: Memory) -> None:
    queue, data = driver.queue(1), random_floats(1001)
    pointer = driver.allocate(1, data.nbytes, kind)
    assert pointer % 64 == 0
    driver.copy(queue, pointer, address(data), data.nbytes)
    assert np.array_equal(from_device(driver, queue, pointer, data), data)
    driver.deallocate(1, pointer, kind)


@pytest.mark.parametrize("kind", Memory)
def test_more_than_there_is_is_refused_and_the_device_goes_on(driver: Driver, kind: Memory) -> None:
    for nbytes in (1 << 62, 1 << 45):
        with pytest.raises(DriverError) as caught:
            driver.allocate(0, nbytes, kind)
        assert caught.value.status is Status.OUT_OF_MEMORY
    driver.deallocate(0, driver.allocate(0, MIB, kind), kind)


def test_a_device_gives_no_more_than_it_said_is_free(driver: Driver) -> None:
    free, total = driver.memory_info(0)
    with refuses(Status.OUT_OF_MEMORY, f"of {total}"):
        driver.allocate(0, free + 512 * MIB)


def test_what_is_handed_out_is_missing_until_it_is_freed(null: Driver) -> None:
    before = [null.memory_info(device) for device in (0, 1)]
    pointer = null.allocate(0, 48 * MIB)
    assert null.memory_info(0) == (before[0][0] - 48 * MIB, before[0][1])
    assert null.memory_info(1) == before[1]
    with refuses(Status.OUT_OF_MEMORY):
        null.allocate(0, 17 * MIB)
    null.deallocate(1, null.allocate(1, 17 * MIB))
    null.deallocate(0, pointer)
    assert null.memory_info(0) == before[0]


def test_a_cpu_does_not_promise_its_memory_twice(sycl: Driver) -> None:
    """Untouched pages count as taken: the next allocation must not be one the OS cannot back."""
    free, _ = sycl.memory_info(0)
    half = free // 2
    pointer = sycl.allocate(0, half)
    after, _ = sycl.memory_info(0)
    sycl.deallocate(0, pointer)
    # Other processes move the figure too, and what this one had resident counts once.
    assert after < free - half // 2


def test_wrong_frees_are_refused(driver: Driver) -> None:
    pointer = driver.allocate(0, 4096)
    driver.deallocate(0, pointer)
    with refuses(Status.INVALID, "not allocated"):
        driver.deallocate(0, pointer)
    with refuses(Status.INVALID, "0 bytes"):
        driver.allocate(0, 0)


# --- queues ------------------------------------------------------------------------------------------------------
def test_a_queue_is_in_order(driver: Driver) -> None:
    queue, words = driver.queue(0), 1 << 14
    a, out = driver.allocate(0, 4 * words), np.empty((40, words), np.uint32)
    gate = Gate(driver, queue)
    for i in range(len(out)):
        driver.fill(queue, a, i.to_bytes(4, "little"), words)
        driver.copy(queue, address(out[i]), a, 4 * words)
    gate.open()
    driver.synchronize(queue)
    assert np.array_equal(out, np.arange(len(out), dtype=np.uint32)[:, None].repeat(words, 1))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("uniform", [False, True])
def test_fill_repeats_the_pattern(driver: Driver, width: int, uniform: bool) -> None:
    queue, pattern = driver.queue(0), np.random.default_rng().integers(0, 256, width, np.uint8)
    if uniform:
        pattern[:] = pattern[0]
    pointer = to_device(driver, queue, np.zeros(width * 1000, np.uint8))
    driver.fill(queue, pointer, pattern.tobytes(), 999)
    out = from_device(driver, queue, pointer, np.zeros((1000, width), np.uint8))
    assert (out[:999] == pattern).all() and not out[999].any()


def test_fill_refuses_other_widths(driver: Driver) -> None:
    queue, pointer = driver.queue(0), driver.allocate(0, 64)
    with refuses(Status.INVALID, "not 3"):
        driver.fill(queue, pointer, b"abc", 1)


@pytest.mark.parametrize("other_device", [0, 1])
def test_host_functions_run_in_the_queues_order(driver: Driver, other_device: int) -> None:
    """Behind a fill, before a copy, and behind a wait for another queue of the same or another device."""
    queue, other, event = driver.queue(0), driver.queue(other_device), driver.event(other_device)
    pointer, seen = driver.allocate(0, 4096, Memory.HOST), np.zeros(4096, np.uint8)
    host = (ctypes.c_uint8 * 4096).from_address(pointer)
    found: list[int] = []

    def double(_: int | None) -> None:
        found.append(host[7])
        for i in range(4096):
            host[i] = 2 * host[i]

    function = HostFunction(double)
    gate = Gate(driver, other)
    driver.record(event, other)
    driver.wait(event, queue)
    for value in (b"\x03", b"\x05"):
        driver.fill(queue, pointer, value, 4096)
        driver.host_call(queue, function)
    driver.copy(queue, address(seen), pointer, 4096)
    time.sleep(0.02)
    assert not found
    gate.open()
    driver.synchronize(queue)
    assert found == [3, 5] and (seen == 10).all()


def test_copies_go_between_two_devices(driver: Driver) -> None:
    queues, data = [driver.queue(0), driver.queue(1)], random_floats(1 << 16)
    source, destination = to_device(driver, queues[0], data), driver.allocate(1, data.nbytes)
    driver.copy(queues[1], destination, source, data.nbytes)
    assert np.array_equal(from_device(driver, queues[1], destination, data), data)


def test_enqueueing_does_not_wait_and_a_query_tells(driver: Driver) -> None:
    queue, event = driver.queue(0), driver.event(0)
    assert driver.idle(queue) and driver.reached(event)
    gate = Gate(driver, queue)
    data = random_floats(100)
    pointer = driver.allocate(0, data.nbytes)
    driver.copy(queue, pointer, address(data), data.nbytes)
    driver.record(event, queue)
    assert not driver.idle(queue) and not driver.reached(event)
    gate.open()
    driver.event_synchronize(event)
    assert driver.reached(event)
    driver.synchronize(queue)
    assert driver.idle(queue)


def test_priorities_are_accepted(driver: Driver) -> None:
    for priority in (-2, -1, 0, 1):
        queue = driver.queue(0, priority)
        driver.synchronize(queue)
        driver.queue_destroy(queue)


def test_a_queue_destroyed_early_still_does_its_work(driver: Driver) -> None:
    queue, event, data = driver.queue(0), driver.event(0), random_floats(5000)
    pointer, out = to_device(driver, queue, data), np.zeros_like(data)
    gate = Gate(driver, queue)
    driver.copy(queue, address(out), pointer, data.nbytes)
    driver.record(event, queue)
    driver.queue_destroy(queue)
    gate.open()
    driver.event_synchronize(event)
    assert np.array_equal(out, data)


# --- events ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reader_device", [0, 1])
def test_event_orders_two_queues(driver: Driver, reader_device: int) -> None:
    """The writer is held by a gate that opens only after the reader was enqueued: without the event it reads zeros."""
    writer, reader = driver.queue(0), driver.queue(reader_device)
    pointer = to_device(driver, writer, np.zeros(4096, np.uint8))
    event, seen = driver.event(0), np.zeros(4096, np.uint8)
    gate = Gate(driver, writer)
    driver.fill(writer, pointer, b"\x07", 4096)
    driver.record(event, writer)
    driver.wait(event, reader)
    driver.copy(reader, address(seen), pointer, 4096)
    assert not driver.idle(reader)
    gate.open()
    driver.synchronize(reader)
    assert (seen == 7).all()


@pytest.mark.parametrize("reader_device", [0, 1])
def test_without_an_event_two_queues_do_not_wait_for_each_other(driver: Driver, reader_device: int) -> None:
    writer, reader = driver.queue(0), driver.queue(reader_device)
    pointer = to_device(driver, writer, np.zeros(4096, np.uint8))
    seen = np.full(4096, 9, np.uint8)
    gate = Gate(driver, writer)
    driver.fill(writer, pointer, b"\x07", 4096)
    driver.copy(reader, address(seen), pointer, 4096)
    driver.synchronize(reader)
    gate.open()
    driver.synchronize(writer)
    assert not seen.any()


def test_an_event_stands_for_its_last_recording(driver: Driver) -> None:
    queue, held, event = driver.queue(0), driver.queue(0), driver.event(0)
    driver.record(event, queue)
    driver.event_synchronize(event)
    gate = Gate(driver, held)
    driver.record(event, held)
    assert not driver.reached(event)
    gate.open()
    driver.event_synchronize(event)


def test_waiting_for_an_event_never_recorded_waits_for_nothing(driver: Driver) -> None:
    queue, event = driver.queue(0), driver.event(0)
    driver.wait(event, queue)
    driver.synchronize(queue)


def test_elapsed_time_is_what_passed_between(driver: Driver) -> None:
    queue = driver.queue(0)
    events = [driver.event(0, timing=True) for _ in range(4)]
    sleep = HostFunction(lambda _: time.sleep(0.05))
    for event in events[:3]:
        driver.record(event, queue)
        driver.host_call(queue, sleep)
    driver.synchronize(queue)
    driver.record(events[3], queue)  # on an idle queue
    driver.event_synchronize(events[3])
    steps = [driver.elapsed(a, b) for a, b in itertools.pairwise(events)]
    assert all(step >= 49 for step in steps), steps
    assert driver.elapsed(events[0], events[3]) == pytest.approx(sum(steps), abs=1e-3)
    assert driver.elapsed(events[3], events[0]) == pytest.approx(-sum(steps), abs=1e-3)
    assert driver.elapsed(events[0], events[0]) == 0


def test_elapsed_time_needs_two_timing_events_that_were_reached(driver: Driver) -> None:
    queue, plain = driver.queue(0), driver.event(0)
    start, end = driver.event(0, timing=True), driver.event(0, timing=True)
    driver.record(start, queue)
    with refuses(Status.INVALID, "recorded"):
        driver.elapsed(start, end)
    driver.record(plain, queue)
    with refuses(Status.INVALID, "timing"):
        driver.elapsed(start, plain)
    gate = Gate(driver, queue)
    driver.record(end, queue)
    with refuses(Status.NOT_READY):
        driver.elapsed(start, end)
    gate.open()
    driver.synchronize(queue)
    assert driver.elapsed(start, end) >= 0


def test_a_command_tells_when_it_ran(driver: Driver) -> None:
    queue = driver.queue(0)
    memory, host = driver.allocate(0, MIB), np.zeros(MIB, dtype=np.uint8)
    asked: list[tuple[int, int, int]] = []

    def timed(enqueue: Callable[[], None]) -> None:
        event = driver.event(0, timing=True)
        driver.event_of_next(event)
        before = time.monotonic_ns()
        enqueue()
        driver.synchronize(queue)
        asked.append((event, before, time.monotonic_ns()))

    sleep = HostFunction(lambda _: time.sleep(0.05))
    timed(lambda: driver.host_call(queue, sleep))
    timed(lambda: driver.copy(queue, memory, address(host), MIB))
    timed(lambda: driver.copy(queue, memory, address(host), 16))  # which the calling thread may do itself
    timed(lambda: driver.fill(queue, memory, b"\x07", MIB))
    timed(lambda: driver.fill(queue, memory, b"\x07\x01", MIB // 2))
    slack = 1_000_000  # two clocks, and who waits is told late
    for event, before, after in asked:
        begin, end = driver.interval(event)
        assert before - slack <= begin <= end <= after + slack
    begin, end = driver.interval(asked[0][0])
    assert end - begin >= 49_000_000


def test_the_time_of_a_command_is_asked_of_its_own_event(driver: Driver) -> None:
    queue, event, plain = driver.queue(0), driver.event(0, timing=True), driver.event(0)
    with refuses(Status.INVALID, "timing"):
        driver.event_of_next(plain)
    with refuses(Status.UNSUPPORTED, "no command"):
        driver.interval(event)
    driver.event_of_next(event)
    driver.event_of_next(None)
    memory = driver.allocate(0, 64)
    driver.fill(queue, memory, b"\0", 64)
    driver.synchronize(queue)
    with refuses(Status.UNSUPPORTED, "no command"):
        driver.interval(event)
    gate = Gate(driver, queue)
    driver.event_of_next(event)
    driver.copy(queue, memory + 32, memory, 32)
    with refuses(Status.NOT_READY, "once it is done"):
        driver.interval(event)
    gate.open()
    driver.synchronize(queue)
    begin, end = driver.interval(event)
    assert 0 < begin <= end


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "OCL_ICD_FILENAMES" or simulate.active()}
    return subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True, timeout=120
    )


@needs_intel
def test_the_cpu_driver_is_found_without_help() -> None:
    done = run_python("from anyxpu.drivers.abi import Driver; print(Driver('sycl').device_count())")
    assert done.stdout.strip() == "1", done.stderr


@needs_intel
@pytest.mark.not_simulated("it is about a CPU device")
def test_a_missing_cpu_driver_is_named_with_the_way_out() -> None:
    done = run_python(
        "from anyxpu.drivers.abi import Driver; Driver('sycl')",
        OCL_ICD_FILENAMES="/nonexistent.so",
        OCL_ICD_VENDORS="/nonexistent",
        ONEAPI_DEVICE_SELECTOR="opencl:cpu",
    )
    assert "NO_DEVICE" in done.stderr and "pip install intel-opencl-rt" in done.stderr


@pytest.mark.parametrize("name", DRIVERS)
def test_a_process_may_end_while_its_queues_are_busy(name: str) -> None:
    code = f"""
import ctypes
from anyxpu.drivers.abi import Driver, Format
d = Driver({name!r}, 2)
source = b"__kernel void spin(__global int* x, int n) {{ for (int i = 0; i < n; i++) x[i % 7] += x[(i + 1) % 7]; }}"
for device in (0, 1):
    kernel = d.kernel(d.module(device, Format.OPENCL_C, source), "spin")
    queue, pointer, event = d.queue(device), d.allocate(device, 4096), d.event(device)
    for _ in range(3):
        d.launch(queue, kernel, (1, 1, 1), (1, 1, 1), pointer, ctypes.c_int(10**7))
    d.record(event, queue)
    d.wait(event, d.queue(1 - device))
print("end")
"""
    done = run_python(code)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "end", ""), done.stderr


# --- injected faults -------------------------------------------------------------------------------------------------
@pytest.fixture
def faults(null: Driver):
    """Sets faults of the test's own instance of the null driver."""

    def set_fault(name: str, value: int) -> int:
        return null.library.anyxpu_null_set_fault(name.encode(), ctypes.c_int64(value))

    return set_fault


def test_the_nth_next_allocation_fails(null: Driver, faults) -> None:
    faults("alloc", 3)
    pointers = [null.allocate(0, 64), null.allocate(0, 64)]
    with refuses(Status.OUT_OF_MEMORY, "injected"):
        null.allocate(0, 64)
    pointers.append(null.allocate(0, 64))
    assert len(set(pointers)) == 3


def test_modules_and_launches_fail_on_demand(null: Driver, faults) -> None:
    faults("build", 1)
    with refuses(Status.BUILD_FAILED, "injected"):
        null.module(0, Format.OPENCL_C, b"__kernel void axpy() {}")
    kernel, queue = null.kernel(null.module(0, Format.OPENCL_C, b"__kernel void axpy() {}"), "axpy"), null.queue(0)
    faults("launch", 2)
    null.launch(queue, kernel, (1, 1, 1), (1, 1, 1))
    with refuses(Status.LAUNCH_FAILED, "kernel axpy"):
        null.launch(queue, kernel, (1, 1, 1), (1, 1, 1))
    faults("run", 1)
    null.launch(queue, kernel, (1, 1, 1), (1, 1, 1))
    with refuses(Status.LAUNCH_FAILED, "broke kernel axpy"):
        null.synchronize(queue)
    null.synchronize(queue)


def test_slow_copies_are_slow_and_asynchronous(null: Driver, faults) -> None:
    queue, start, end = null.queue(0), null.event(0, timing=True), null.event(0, timing=True)
    data = random_floats(16)
    pointer = null.allocate(0, data.nbytes)
    faults("copy_ms", 200)
    null.record(start, queue)
    null.copy(queue, pointer, address(data), data.nbytes)
    null.record(end, queue)
    assert not null.reached(end)
    null.synchronize(queue)
    assert null.elapsed(start, end) >= 199


def test_an_unknown_fault_is_refused(faults) -> None:
    assert faults("no_such_fault", 1) == Status.INVALID
    done = run_python("from anyxpu.drivers.abi import Driver; Driver('null')", ANYXPU_NULL_FAULTS="alloc:1,nope:2")
    assert "nope:2" in done.stderr


def test_faults_and_counts_from_python_and_from_the_environment() -> None:
    code = """
from anyxpu.drivers import null
from anyxpu.drivers.abi import Driver, DriverError
d = Driver("null")
def fails():
    try:
        d.deallocate(0, d.allocate(0, 64))
    except DriverError:
        return True
    return False
print([fails() for _ in range(3)])
with null.faults(alloc=1):
    print(fails(), fails())
null.reset_counts()
d.allocate(0, 64)
print(null.counts()["allocate"], null.counts()["launch"], d.device_count())
"""
    done = run_python(code, ANYXPU_NULL_FAULTS="alloc:2")
    assert done.stdout.split("\n")[:3] == ["[False, True, False]", "True False", "1 0 1"], done.stderr


def test_there_are_exactly_these_drivers() -> None:
    assert set(NAMES) == {"sycl", "null"}
    with pytest.raises(build.BuildError, match="one of sycl, null"):
        library_path("cuda")
