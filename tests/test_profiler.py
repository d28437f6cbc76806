"""torch.profiler shows what xpu did, kernels, copies, fills, primitives and the host's stand-ins, and who asked."""

from __future__ import annotations

import collections
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule, supported_activities

BOTH = [ProfilerActivity.CPU, ProfilerActivity.XPU]
NO_TIMES = pytest.mark.not_simulated("a simulated GPU tells no times")
MANY = pytest.mark.not_simulated("a simulated GPU's driver takes a second to say of one command that it is done")


@triton.jit
def one_more(x, B: tl.constexpr):
    at = x + tl.arange(0, B)
    tl.store(at, tl.load(at) + 1)


def warmed(step: Callable[[], Any], **options: Any) -> profile:
    """A profile of one call of ``step``, whose kernels are there."""
    for _ in range(4):
        step()
    torch.xpu.synchronize()
    with profile(activities=options.pop("activities", BOTH), **options) as recorded:
        step()
    return recorded


def on_device(recorded: profile) -> list[Any]:
    return [event for event in recorded.events() if event.device_type == DeviceType.XPU]


def trace(recorded: profile, folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def test_xpu_is_among_the_activities() -> None:
    assert ProfilerActivity.XPU in supported_activities()


def test_kernels_copies_fills_and_primitives_have_times_of_the_device() -> None:
    x, weight = torch.randn(64, 96, device="xpu"), torch.randn(32, 96, device="xpu")
    there = torch.randn(1 << 20)

    def step() -> None:
        y = torch.nn.functional.linear(x, weight)
        torch.softmax(y, -1)
        there.to("xpu").zero_()

    recorded = warmed(step)
    events = on_device(recorded)
    names = [event.name for event in events]
    assert any("Memcpy HtoD" in name for name in names), names
    assert any("Memset" in name for name in names), names
    assert any("matmul" in name for name in names), names
    assert any("softmax" in name for name in names), names
    assert all(event.time_range.elapsed_us() >= 0 for event in events)
    assert sum(event.time_range.elapsed_us() for event in events) > 0
    rows = {row.key: row for row in recorded.key_averages()}
    for operator in ("aten::linear", "aten::softmax", "aten::zero_", "aten::copy_"):
        assert rows[operator].device_time_total > 0, operator
    total = sum(row.self_device_time_total for row in rows.values() if row.device_type == DeviceType.XPU)
    assert total == pytest.approx(sum(event.time_range.elapsed_us() for event in events))


def test_an_operators_time_is_that_of_what_it_asked_for() -> None:
    x = torch.randn(256, 256, device="xpu")
    recorded = warmed(lambda: torch.softmax(x, -1).add_(1))
    by_operator = {
        event.name: event.kernels for event in recorded.events() if event.kernels and event.name.startswith("aten::")
    }
    assert {"aten::_softmax", "aten::add_"} <= set(by_operator)
    assert any("softmax" in kernel.name for kernel in by_operator["aten::_softmax"])
    assert all(kernel.device == 0 for kernels in by_operator.values() for kernel in kernels)


def test_the_first_calls_of_an_operator_show_what_repeated_ones_do() -> None:
    """Operators written in Python are repeated without it from their fourth call on."""
    x = torch.randn(31, 7, device="xpu")
    torch.nn.functional.layer_norm(x, (7,))
    torch.xpu.synchronize()
    with profile(activities=BOTH) as recorded:
        for _ in range(6):
            torch.nn.functional.layer_norm(x, (7,))
    names = collections.Counter(event.name for event in on_device(recorded))
    assert set(names.values()) == {6}, names


def test_what_the_host_does_in_the_devices_place_is_shown() -> None:
    x = torch.randn(16, 16, device="xpu")
    recorded = warmed(lambda: torch.linalg.qr(x))
    names = [event.name for event in on_device(recorded)]
    assert any(name.startswith("aten::linalg_qr") and name.endswith("(host)") for name in names), names


def test_the_trace_leads_from_calls_to_kernels_on_their_streams(tmp_path: Path) -> None:
    x, side = torch.randn(64, 64, device="xpu"), torch.xpu.Stream()
    side.wait_stream(torch.xpu.current_stream())

    def step() -> None:
        x.exp()
        with torch.xpu.stream(side):
            x.sin()

    events = trace(warmed(step), tmp_path)
    kernels = {
        event["args"]["correlation"]: event for event in events if event.get("cat") == "kernel" and event["ph"] == "X"
    }
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "xpu_runtime"}
    assert len(kernels) == 2
    assert set(kernels) <= set(calls)
    assert {event["tid"] for event in kernels.values()} == {0, side.stream_id}
    assert len({event["args"]["stream"] for event in kernels.values()}) == 2
    for number, kernel in kernels.items():
        assert kernel["args"]["block"][0] > 0
        assert kernel["args"]["grid"][0] > 0
        assert calls[number]["ts"] <= kernel["ts"] + kernel["dur"] + 1000
    flows = [event for event in events if event.get("cat") == "ac2g"]
    starts, ends = ({e["id"] for e in flows if e["ph"] == phase} for phase in ("s", "f"))
    assert set(kernels) <= starts & ends
    labels = {event["args"].get("labels") for event in events if event["name"] == "process_labels"}
    assert "XPU 0" in labels


@NO_TIMES
def test_kernels_of_a_stream_do_not_overlap_and_lie_within_the_profile(tmp_path: Path) -> None:
    x, large = torch.randn(8, device="xpu"), torch.randn(1 << 20, device="xpu")

    def step() -> None:
        for _ in range(20):
            x.add_(1)
            large.mul_(1.5)

    before = time.time_ns()
    for _ in range(4):
        step()
    torch.xpu.synchronize()
    with profile(activities=BOTH) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    ours = sorted((e.start_ns(), e.end_ns()) for e in events if e.device_type() == DeviceType.XPU)
    assert len(ours) == 40
    for (_, end), (begin, _) in itertools.pairwise(ours):
        assert end <= begin
    slack = 5_000_000
    assert before - slack < ours[0][0]
    assert ours[-1][1] < time.time_ns() + slack
    # Their sum is what the stream took, not the time between the calls.
    longest = max(end - begin for begin, end in ours)
    assert longest < ours[-1][1] - ours[0][0]


def test_spans_of_the_users_cover_their_kernels(tmp_path: Path) -> None:
    x = torch.randn(128, 128, device="xpu")

    def step() -> None:
        with record_function("my span"):
            x.exp().sum()

    events = trace(warmed(step), tmp_path)
    (span,) = (event for event in events if event.get("cat") == "gpu_user_annotation")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert span["name"] == "my span"
    assert span["ts"] <= min(k["ts"] for k in kernels) + 1
    assert span["ts"] + span["dur"] >= max(k["ts"] + k["dur"] for k in kernels) - 1


def test_lines_of_the_program_are_charged_with_times_of_the_device(tmp_path: Path) -> None:
    x = torch.randn(128, 128, device="xpu")
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)  # else torch exports no stacks, on any device
    recorded = warmed(lambda: torch.softmax(x, -1), with_stack=True, experimental_config=verbose)
    path = tmp_path / "stacks.txt"
    recorded.export_stacks(str(path), "self_xpu_time_total")
    assert Path(__file__).name in path.read_text()


def test_a_schedule_records_the_steps_it_names() -> None:
    x, seen = torch.randn(16, device="xpu"), []
    x.exp()
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda recorded: seen.append([e.name for e in on_device(recorded)]),
    ) as recorded:
        for _ in range(8):
            x.exp()
            recorded.step()
    assert [len([name for name in names if "exp" in name]) for names in seen] == [2, 2]


def test_device_memory_has_its_timeline(tmp_path: Path) -> None:
    def step() -> torch.Tensor:
        return torch.randn(1 << 18, device="xpu").exp().sum()

    recorded = warmed(step, profile_memory=True, record_shapes=True, with_stack=True)
    assert max(row.device_memory_usage for row in recorded.key_averages()) >= 1 << 20
    path = tmp_path / "memory.json"
    recorded.export_memory_timeline(str(path), device="xpu:0")
    times, sizes = json.loads(path.read_text())
    assert len(times) == len(sizes) > 0
    assert max(map(sum, sizes)) >= 1 << 20


@MANY
def test_threads_are_charged_with_their_own() -> None:
    def work(name: str, operator: Callable[[torch.Tensor], torch.Tensor]) -> None:
        x = torch.randn(64, device="xpu")
        with record_function(name):
            for _ in range(50):
                operator(x)

    def step() -> None:
        threads = [threading.Thread(target=work, args=(op.__name__, op)) for op in (torch.exp, torch.sin)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    step()
    options = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=BOTH, experimental_config=options) as recorded:
        step()
    for name in ("exp", "sin"):
        kernels = [k.name for e in recorded.events() if e.name == f"aten::{name}" for k in e.kernels]
        assert len(kernels) == 50
        assert all(name in kernel for kernel in kernels), set(kernels)


@MANY
def test_profiles_begin_and_end_while_threads_go_on() -> None:
    """More commands at once than are held before the first are asked for their times."""
    stop, counts = threading.Event(), [0, 0, 0]
    sums = [torch.zeros(4, device="xpu") for _ in counts]

    def work(number: int) -> None:
        while not stop.is_set():
            sums[number].add_(1)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        found = []
        for least in (0, 10, 0, 5000, 0, 10):
            with profile(activities=BOTH) as recorded:
                end = sum(counts) + least
                while sum(counts) < end:
                    time.sleep(0.001)
            found.append(len(on_device(recorded)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [total.tolist() for total in sums] == [[float(count)] * 4 for count in counts]
    assert found[3] > 4096


def test_compiled_graphs_show_their_kernels() -> None:
    x = torch.randn(512, device="xpu")
    compiled = torch.compile(lambda t: (t.exp() * 2).sum())
    names = [event.name for event in on_device(warmed(lambda: compiled(x)))]
    assert any(name.startswith("triton_") for name in names), names


def test_kernels_of_triton_have_their_own_names() -> None:
    x = torch.zeros(64, device="xpu")
    names = [event.name for event in on_device(warmed(lambda: one_more[(1,)](x, B=64)))]
    assert names == ["one_more"]


def test_a_profile_of_the_host_alone_asks_nothing_of_the_device() -> None:
    x = torch.randn(16, device="xpu")
    recorded = warmed(x.exp, activities=[ProfilerActivity.CPU])
    assert not on_device(recorded)
    assert not any(event.name.startswith("xpu") for event in recorded.events())


def test_the_device_alone_can_be_profiled() -> None:
    x = torch.randn(16, device="xpu")
    recorded = warmed(x.exp, activities=[ProfilerActivity.XPU])
    assert any("exp" in event.name for event in on_device(recorded))


def test_a_profile_shows_where_the_host_waits(tmp_path: Path) -> None:
    x = torch.randn(1 << 16, device="xpu")

    def step() -> None:
        x.exp()
        torch.xpu.synchronize()
        x.sum().item()
        stream, event = torch.xpu.Stream(), torch.xpu.Event()
        with torch.xpu.stream(stream):
            x.add(1)
        event.record(stream)
        event.synchronize()
        stream.synchronize()

    events = trace(warmed(step), tmp_path)
    waits = [e for e in events if "Synchronize" in e.get("name", "")]
    # At the end torch waits once more. What waits for a device waits for its streams; that is not shown.
    assert [e["name"] for e in sorted(waits, key=lambda e: e["ts"])] == [
        "xpuDeviceSynchronize",
        "xpuStreamSynchronize",
        "xpuEventSynchronize",
        "xpuStreamSynchronize",
        "xpuDeviceSynchronize",
    ]
    item = next(e for e in events if e.get("name") == "aten::_local_scalar_dense")
    scalar = sorted(waits, key=lambda e: e["ts"])[1]
    assert scalar["cat"] == "xpu_runtime" and scalar["args"]["External id"] == item["args"]["External id"]
    assert item["ts"] <= scalar["ts"] and scalar["ts"] + scalar["dur"] <= item["ts"] + item["dur"]
    # No arrow leads from a wait to anything.
    numbers = {e["args"]["correlation"] for e in waits}
    assert not numbers & {e.get("id") for e in events if e.get("ph") in "sf"}


def test_what_the_device_does_can_be_left_out_for_a_while() -> None:
    x = torch.randn(16, device="xpu")
    for step in (x.exp, x.sin, x.cos, x.tan):
        warmed(step)
    with profile(activities=BOTH) as recorded:
        x.exp()
        recorded.toggle_collection_dynamic(False, [ProfilerActivity.XPU])
        recorded.toggle_collection_dynamic(False, [ProfilerActivity.XPU])
        x.sin()
        recorded.toggle_collection_dynamic(True, [ProfilerActivity.XPU])
        x.cos()
        recorded.toggle_collection_dynamic(False, BOTH)
        x.tan()
    done = " ".join(event.name for event in on_device(recorded))
    assert "exp" in done and "cos" in done and "sin" not in done and "tan" not in done
    operators = {"aten::exp", "aten::sin", "aten::cos", "aten::tan"} & {event.name for event in recorded.events()}
    assert operators == {"aten::exp", "aten::sin", "aten::cos"}
    # Neither before nor after a profile does it do anything, and the next begins as ever.
    recorded.toggle_collection_dynamic(True, [ProfilerActivity.XPU])
    assert not on_device(warmed(x.exp, activities=[ProfilerActivity.CPU]))
    recorded.toggle_collection_dynamic(False, [ProfilerActivity.XPU])
    assert on_device(warmed(x.exp))


def test_the_operators_numbers_can_be_left_out_of_a_trace(tmp_path: Path) -> None:
    x = torch.randn(16)
    for without in (False, True):
        config = torch._C._profiler._ExperimentalConfig(disable_external_correlation=without)
        events = trace(warmed(lambda: x.xpu().exp(), experimental_config=config), tmp_path)
        ours = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "xpu_runtime")]
        assert {e["cat"] for e in ours} == {"kernel", "gpu_memcpy", "xpu_runtime"}
        assert all((e["args"].get("External id", 0) == 0) == without for e in ours)


@MANY
def test_thousands_of_commands_are_kept_in_order() -> None:
    x = torch.zeros(4, device="xpu")
    x.add_(1)
    torch.xpu.synchronize()
    with profile(activities=BOTH) as recorded:
        for _ in range(5000):
            x.add_(1)
    assert len([e for e in on_device(recorded) if "add" in e.name]) == 5000
    assert x.tolist() == [5001.0] * 4


@NO_TIMES
def test_work_that_is_still_waiting_when_the_profile_ends_is_waited_for() -> None:
    x = torch.randn(1 << 22, device="xpu")
    x.sin()
    with profile(activities=BOTH) as recorded:
        for _ in range(8):
            x.sin()
    kernels = [e for e in on_device(recorded) if "sin" in e.name]
    assert len(kernels) == 8
    assert min(k.time_range.elapsed_us() for k in kernels) > 0


def test_a_launch_that_is_refused_leaves_the_profile_whole() -> None:
    from anyxpu.shim import lib

    source = b"__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void eight(__global int* x) { x[0] = 1; }"
    kernel, launcher = lib().load_module(0, "opencl_c", source).kernel("eight"), lib().Launcher(["*i32"], (16, 1, 1))
    out, x = torch.zeros(1, dtype=torch.int32, device="xpu"), torch.randn(16, device="xpu")
    x.exp()
    with profile(activities=BOTH) as recorded:
        with pytest.raises(RuntimeError, match="eight"):
            launcher(1, 1, 1, lib().current_raw_stream(0), kernel, out)
        x.exp()
    names = [event.name for event in on_device(recorded)]
    assert "eight" not in names
    assert any("exp" in name for name in names)
