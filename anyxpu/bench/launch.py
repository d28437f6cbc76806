"""``anyxpu bench launch``: what one launch of a cached kernel costs, and one eager ``add``, beside the CPU's.

Beside them stands a bare SYCL submission of the same kernel to the same queue, in C++: what is above it is ours. On a
simulated GPU no kernel runs, so what is measured there is the host side alone, ours and the driver's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from anyxpu import build, simulate
from anyxpu.bench import Request
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import Sample, alternate

ELEMENTS = 1024  # small enough that the work itself takes no time worth naming

# The same kernel the Triton launch runs, for a launch that goes through nothing but the shim and the driver.
_SOURCE = """
__kernel void add(__global const float* a, __global const float* b, __global float* out, int n) {
  int i = get_global_id(0);
  if (i < n) out[i] = a[i] + b[i];
}
"""


GROUP = 256
LAUNCH, BARE = "launch a loaded kernel", "C++: bare SYCL submit"
# Our launch over a bare submission; issue 9 asks it of GPU queues.
LAUNCH_GOAL = 1.3


def _loaded_kernel() -> Any:
    from anyxpu.shim import lib

    return lib().load_module(0, "opencl_c", _SOURCE.encode()).kernel("add")


def _shim_launch(kernel: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    from anyxpu.shim import lib

    # It says what a work-group does, as our compiler's launchers do: a wait for unknown work goes by another thread.
    launcher = lib().Launcher(["*fp32", "*fp32", "*fp32", "i32"], (GROUP, 1, 1), work=[(GROUP, [])])
    queue = lib().current_raw_stream(0)
    return lambda: launcher(ELEMENTS // GROUP, 1, 1, queue, kernel, a, b, out, ELEMENTS)


def _bare_submits(kernel: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, calls: int) -> Callable[[], object]:
    """``calls`` submissions at once, so that calling C++ from Python is none of their time."""
    from anyxpu.shim import lib

    submits = ctypes.CDLL(str(build.build(build.sycl_program("anyxpu_bare_submit", "bench/bare_submit.cpp"))))
    addresses = (ctypes.c_void_p * 3)(*(t.data_ptr() for t in (a, b, out)))
    # Handles of the sycl driver begin with the SYCL object that they stand for.
    queue, handle = ctypes.c_void_p(lib().current_raw_stream(0)), ctypes.c_void_p(kernel.handle)
    items, group = ctypes.c_size_t(ELEMENTS), ctypes.c_size_t(GROUP)

    def run() -> None:
        if submits.anyxpu_bare_submits(queue, handle, addresses, ELEMENTS, items, group, calls):
            raise RuntimeError("SYCL refused a bare submission")

    return run


def _triton_launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    from anyxpu.bench.launch_kernel import add

    return lambda: add[(1,)](a, b, out, ELEMENTS, BLOCK=ELEMENTS)


def _sides(
    kernel: Any, a: torch.Tensor, b: torch.Tensor
) -> dict[str, tuple[str, Callable[[], object], Callable[[], torch.Tensor]]]:
    """name → (device, the call, its result)."""
    xa, xb = a.to("xpu"), b.to("xpu")
    shim_out, triton_out = torch.empty_like(xa), torch.empty_like(xa)
    eager_out, cpu_out = torch.empty_like(xa), torch.empty_like(a)

    def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    on_xpu, on_cpu = torch.compile(plus, dynamic=False), torch.compile(plus, dynamic=False)
    return {
        LAUNCH: ("xpu", _shim_launch(kernel, xa, xb, shim_out), lambda: shim_out),
        "launch through triton.jit": ("xpu", _triton_launch(xa, xb, triton_out), lambda: triton_out),
        "call a compiled graph of one kernel": ("xpu", lambda: on_xpu(xa, xb), lambda: on_xpu(xa, xb)),
        "eager add": ("xpu", lambda: torch.add(xa, xb, out=eager_out), lambda: eager_out),
        "CPU: call a compiled graph of one kernel": ("cpu", lambda: on_cpu(a, b), lambda: on_cpu(a, b)),
        "CPU: eager add": ("cpu", lambda: torch.add(a, b, out=cpu_out), lambda: cpu_out),
    }


def _until_done(device: str, call: Callable[[], object]) -> Callable[[], object]:
    def until_done() -> None:
        call()
        torch.xpu.synchronize()

    return until_done if device == "xpu" else call


def run(request: Request) -> Report:
    """Time each call twice: as part of a run of calls (what the caller pays), and alone until the device is done.

    Wrong is: a side whose result differs from the CPU's sum.
    """
    rounds, calls = request.rounds or (11 if request.quick else 41), 100
    a, b, kernel = torch.randn(ELEMENTS), torch.randn(ELEMENTS), _loaded_kernel()
    sides = _sides(kernel, a, b)
    simulated = simulate.active()
    where = f", simulated {simulated}: the host's side alone" if simulated else ""
    report = Report(f"One kernel over {ELEMENTS} float32, microseconds{where}", _COLUMNS)
    report.settings = {"elements": ELEMENTS, "rounds": rounds, "calls": calls, "simulated": simulated}
    for _, call, _ in sides.values():
        call()
    torch.xpu.synchronize()
    expected = sides["CPU: eager add"][2]()
    for name, (_, _, result) in sides.items():
        if not simulated and not torch.equal(result().cpu(), expected):
            report.wrong.append(f"{name}: the result differs from the CPU's")
    functions = {name: call for name, (_, call, _) in sides.items()}
    # Synchronising only around the run of calls: the device works while the host enqueues.
    many = alternate(functions, rounds=rounds, calls=calls, synchronize=torch.xpu.synchronize)
    alone = alternate(
        {name: _until_done(device, call) for name, (device, call, _) in sides.items()}, rounds=rounds * 10, warmup=5
    )
    bare = _against_bare(kernel, sides[LAUNCH][1], a.to("xpu"), b.to("xpu"), rounds, calls)
    report.rows.append(
        {"what": BARE, "device": "xpu", "pipelined": {**bare[BARE].as_dict("us"), "spread": bare[BARE].spread}}
    )
    ratio = bare[LAUNCH].median / bare[BARE].median
    report.goals.append(Goal("our launch from Python over a bare SYCL submit in C++", ratio, LAUNCH_GOAL, "lower"))
    for name, (device, _, _) in sides.items():
        row: dict[str, Any] = {"what": name, "device": device}
        row["pipelined"] = {**many[name].as_dict("us"), "spread": many[name].spread}
        row["until_done"] = {**alone[name].as_dict("us"), "spread": alone[name].spread}
        report.rows.append(row)
    return report


def _against_bare(
    kernel: Any, launch: Callable[[], object], a: torch.Tensor, b: torch.Tensor, rounds: int, calls: int
) -> dict[str, Sample]:
    """Seconds a call of our launch and of a bare submission, each as one run of ``calls``, alternating."""

    def launches() -> None:
        for _ in range(calls):
            launch()

    pair = {LAUNCH: launches, BARE: _bare_submits(kernel, a, b, torch.empty_like(a), calls)}
    taken = alternate(pair, rounds=rounds, warmup=3, synchronize=torch.xpu.synchronize)
    return {name: Sample(tuple(seconds / calls for seconds in sample.seconds)) for name, sample in taken.items()}


def _time(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[key]['median_us']:.1f} ±{50 * row[key]['spread']:.0f}%" if key in row else ""


_COLUMNS = (
    Column("what", lambda row: row["what"], left=True),
    Column("a call among many", _time("pipelined")),
    Column("one call until done", _time("until_done")),
)
