"""Streams and events order work, on the CPU device and on two devices made of it.

Each ordering test first makes a stream busy with a kernel that spins and only then writes, so that a missing wait
is seen as a wrong value, not as a rare race.
"""

from __future__ import annotations

import pytest
import torch

SLOW_WRITE = b"""
__kernel void slow_write(__global int* out, int value, int rounds) {
  uint x = 1;
  for (int i = 0; i < rounds; i++) x = x * 1664525u + (uint)value;
  out[get_global_id(0)] = value + (x == 77u ? 1 : 0);
}
"""
ROUNDS = 60_000_000  # some 50 ms a work-item


@pytest.fixture
def slow_write(xpu):
    from anyxpu.shim import lib

    shim = lib()
    kernel = shim.load_module(0, "opencl_c", SLOW_WRITE).kernel("slow_write")
    launcher = shim.Launcher(["*i32", "i32", "i32"], (1, 1, 1), 0)

    def run(out: torch.Tensor, value: int, stream: torch.xpu.Stream) -> None:
        launcher(out.numel(), 1, 1, stream.sycl_queue, kernel, out, value, ROUNDS)

    return run


def zeros(n: int = 2) -> torch.Tensor:
    made = torch.zeros(n, dtype=torch.int32, device="xpu")
    torch.xpu.synchronize()
    return made


def test_launch_returns_before_the_kernel_is_done(slow_write):
    out, stream = zeros(), torch.xpu.current_stream()
    slow_write(out, 7, stream)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()
    assert out.tolist() == [7, 7]


def test_event_orders_two_streams(slow_write):
    first, second = torch.xpu.Stream(), torch.xpu.Stream()
    for value in (3, 4):
        out, seen = zeros(), zeros()
        slow_write(out, value, first)
        event = torch.xpu.Event()
        event.record(first)
        assert not event.query()
        event.wait(second)
        with torch.xpu.stream(second):
            seen.copy_(out)
        second.synchronize()
        assert seen.tolist() == [value, value]
        assert event.query()


def test_unordered_streams_do_overtake(slow_write):
    """The counter-test: without the wait the second stream sees the old value."""
    first, second = torch.xpu.Stream(), torch.xpu.Stream()
    out, seen = zeros(1), zeros(1)
    slow_write(out, 5, first)
    with torch.xpu.stream(second):
        seen.copy_(out)
    second.synchronize()
    assert seen.tolist() == [0]
    first.synchronize()
    assert out.tolist() == [5]


def test_generic_stream_and_event_classes(slow_write):
    first, second = torch.Stream("xpu"), torch.Stream("xpu")
    out, seen = zeros(), zeros()
    same_queue = torch.xpu.Stream(
        stream_id=first.stream_id, device_index=first.device_index, device_type=first.device_type
    )
    slow_write(out, 9, same_queue)
    event = torch.Event("xpu")
    event.record(first)
    assert not event.query()
    second.wait_event(event)
    with second:
        seen.copy_(out)
    second.synchronize()
    assert seen.tolist() == [9, 9]


def test_wait_stream(slow_write):
    first, second = torch.xpu.Stream(), torch.xpu.Stream()
    out, seen = zeros(), zeros()
    slow_write(out, 12, first)
    second.wait_stream(first)
    with torch.xpu.stream(second):
        seen.copy_(out)
    second.synchronize()
    assert seen.tolist() == [12, 12]


@pytest.mark.not_simulated("a kernel that does not execute is done before the host asks, and takes no time")
def test_elapsed_time_covers_the_work_between(slow_write):
    start, end = torch.xpu.Event(enable_timing=True), torch.xpu.Event(enable_timing=True)
    out, stream = zeros(1), torch.xpu.current_stream()
    start.record()
    slow_write(out, 1, stream)
    end.record()
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    end.synchronize()
    one = start.elapsed_time(end)
    start.record()
    for _ in range(4):
        slow_write(out, 1, stream)
    end.record()
    end.synchronize()
    assert 0 < one < start.elapsed_time(end)


def test_elapsed_time_needs_timing_and_recording(xpu):
    timed, untimed = torch.xpu.Event(enable_timing=True), torch.xpu.Event()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        timed.elapsed_time(torch.xpu.Event(enable_timing=True))
    timed.record()
    untimed.record()
    torch.xpu.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        timed.elapsed_time(untimed)


def test_streams_are_distinct_queues_with_priorities(xpu):
    streams = [torch.xpu.Stream(priority=p) for p in (-1, 0, 1)]
    assert len({s.sycl_queue for s in streams}) == 3
    assert [s.priority for s in streams] == [-1, 0, 1]
    assert torch.xpu.Stream(priority=-100).priority == -1
    assert torch.xpu.current_stream() not in streams
    with torch.xpu.stream(streams[0]):
        assert torch.xpu.current_stream() == streams[0]
        assert torch._C._xpu_getCurrentRawStream(0) == streams[0].sycl_queue
        assert torch.accelerator.current_stream().stream_id == streams[0].stream_id
    assert torch.xpu.current_stream() not in streams


def test_external_stream_runs_on_the_queue_it_wraps(slow_write):
    owner = torch.xpu.Stream()
    wrapped = torch.xpu.get_stream_from_external(owner.sycl_queue)
    assert wrapped.sycl_queue == owner.sycl_queue
    out = zeros(1)
    slow_write(out, 2, wrapped)
    assert not owner.query()
    owner.synchronize()
    assert out.tolist() == [2]


def test_event_names_its_sycl_event_once_recorded(xpu):
    event = torch.xpu.Event()
    assert "uninitialized" in repr(event)
    event.record()
    assert event.sycl_event != 0
    assert "sycl_event=0x" in repr(event)


TWO_DEVICES = """
import torch
assert torch.xpu.device_count() == 2
from anyxpu.shim import lib
shim = lib()
kernel = shim.load_module(0, "opencl_c", {slow!r}).kernel("slow_write")
launcher = shim.Launcher(["*i32", "i32", "i32"], (1, 1, 1), 0)
a, b = torch.xpu.Stream("xpu:0"), torch.xpu.Stream("xpu:1")
out = torch.zeros(2, dtype=torch.int32, device="xpu:0")
seen = torch.zeros(2, dtype=torch.int32, device="xpu:1")
torch.xpu.synchronize(0); torch.xpu.synchronize(1)
"""

EVENT_ACROSS_DEVICES = """
# A raw kernel on b alone: tensor copies would order themselves against both devices' current streams.
copier = shim.load_module(1, "opencl_c", b"__kernel void c(__global int* d, __global int* s)"
                          b"{d[get_global_id(0)] = s[get_global_id(0)];}").kernel("c")
copy = shim.Launcher(["*i32", "*i32"], (1, 1, 1), 0)
copy(2, 1, 1, b.sycl_queue, copier, seen, seen)  # warm
torch.xpu.synchronize(1)
launcher(2, 1, 1, a.sycl_queue, kernel, out, 6, ROUNDS)
event = a.record_event()
WAIT
copy(2, 1, 1, b.sycl_queue, copier, seen, out.data_ptr())
b.synchronize()
print(seen.tolist())
"""

COPY_ACROSS_DEVICES = """
launcher(2, 1, 1, torch.xpu.current_stream("xpu:0").sycl_queue, kernel, out, 8, ROUNDS)
moved = out.to("xpu:1")
print(moved.tolist(), moved.device)
"""


def two_devices(run_python, body: str) -> str:
    source = TWO_DEVICES.format(slow=SLOW_WRITE) + body.replace("ROUNDS", str(ROUNDS))
    return run_python(source, ANYXPU_DEVICES="2").stdout.strip()


def test_event_orders_two_devices(run_python):
    assert two_devices(run_python, EVENT_ACROSS_DEVICES.replace("WAIT", "event.wait(b)")) == "[6, 6]"
    assert two_devices(run_python, EVENT_ACROSS_DEVICES.replace("WAIT", "")) == "[0, 0]"


def test_copy_between_devices_waits_for_the_source(run_python):
    assert two_devices(run_python, COPY_ACROSS_DEVICES) == "[8, 8] xpu:1"
