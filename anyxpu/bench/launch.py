"""``anyxpu bench launch``: what one launch of a cached kernel costs, and one eager ``add``, beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anyxpu.bench import Request
from anyxpu.bench.report import Column, Report
from anyxpu.bench.timing import alternate

ELEMENTS = 1024  # small enough that the work itself takes no time worth naming

# The same kernel the Triton launch runs, for a launch that goes through nothing but the shim and the driver.
_SOURCE = """
__kernel void add(__global const float* a, __global const float* b, __global float* out, int n) {
  int i = get_global_id(0);
  if (i < n) out[i] = a[i] + b[i];
}
"""


def _shim_launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    from anyxpu.shim import lib

    shim, group = lib(), 256
    kernel = shim.load_module(0, "opencl_c", _SOURCE.encode()).kernel("add")
    launcher = shim.Launcher(["*fp32", "*fp32", "*fp32", "i32"], (group, 1, 1), 0)
    queue = shim.current_raw_stream(0)
    return lambda: launcher(ELEMENTS // group, 1, 1, queue, kernel, a, b, out, ELEMENTS)


def _triton_launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    from anyxpu.bench.launch_kernel import add

    return lambda: add[(1,)](a, b, out, ELEMENTS, BLOCK=ELEMENTS)


def _sides() -> dict[str, tuple[str, Callable[[], object], Callable[[], torch.Tensor]]]:
    """name → (device, the call, its result)."""
    a, b = torch.randn(ELEMENTS), torch.randn(ELEMENTS)
    xa, xb = a.to("xpu"), b.to("xpu")
    shim_out, triton_out = torch.empty_like(xa), torch.empty_like(xa)
    eager_out, cpu_out = torch.empty_like(xa), torch.empty_like(a)

    def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    on_xpu, on_cpu = torch.compile(plus, dynamic=False), torch.compile(plus, dynamic=False)
    return {
        "launch a loaded kernel": ("xpu", _shim_launch(xa, xb, shim_out), lambda: shim_out),
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
    sides = _sides()
    report = Report(f"One kernel over {ELEMENTS} float32, microseconds", _COLUMNS)
    report.settings = {"elements": ELEMENTS, "rounds": rounds, "calls": calls}
    for _, call, _ in sides.values():
        call()
    torch.xpu.synchronize()
    expected = sides["CPU: eager add"][2]()
    for name, (_, _, result) in sides.items():
        if not torch.equal(result().cpu(), expected):
            report.wrong.append(f"{name}: the result differs from the CPU's")
    functions = {name: call for name, (_, call, _) in sides.items()}
    # Synchronising only around the run of calls: the device works while the host enqueues.
    many = alternate(functions, rounds=rounds, calls=calls, synchronize=torch.xpu.synchronize)
    alone = alternate(
        {name: _until_done(device, call) for name, (device, call, _) in sides.items()}, rounds=rounds * 10, warmup=5
    )
    for name, (device, _, _) in sides.items():
        row: dict[str, Any] = {"what": name, "device": device}
        row["pipelined"] = {**many[name].as_dict("us"), "spread": many[name].spread}
        row["until_done"] = {**alone[name].as_dict("us"), "spread": alone[name].spread}
        report.rows.append(row)
    return report


def _time(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[key]['median_us']:.1f} ±{50 * row[key]['spread']:.0f}%"


_COLUMNS = (
    Column("what", lambda row: row["what"], left=True),
    Column("a call among many", _time("pipelined")),
    Column("one call until done", _time("until_done")),
)
