"""One model in a process of its own: ``python -m anyxpu.bench.models.child ORDER``, ORDER as JSON, a row on the pipe.

The row grows with each stage and is written after each, so that what is killed leaves what it had.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

XPU, XPU_EAGER, INDUCTOR, EAGER = "xpu compiled", "xpu eager", "cpu inductor", "cpu eager"
_ENOUGH_SECONDS = 20.0  # of timing, for all sides together; at least three rounds


class Row:
    """What is known so far, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields: dict[str, Any] = {}

    def stage(self, name: str) -> None:
        """What comes next; it is what a row names that was cut off there."""
        self.put(stage=name)

    def put(self, **fields: Any) -> None:
        self.fields.update(fields)
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps(self.fields))
        os.replace(partial, self.path)


def main() -> None:
    """What the order asks for: suite, name, mode, dtype, full, rounds, accuracy, profile, compile_only; row: a file."""
    order = json.loads(sys.argv[1])
    row = Row(Path(order["row"]))
    try:
        if order["compile_only"]:
            _compile_only(order, row)
        else:
            _measure(order, row)
    except MemoryError as error:
        row.put(status="out_of_memory", error=str(error))
    except Exception as error:
        out_of_memory = type(error).__name__ == "OutOfMemoryError"
        eager = row.fields.get("stage", "").endswith("eager") or row.fields.get("stage") in ("building", "reference")
        status = "out_of_memory" if out_of_memory else "eager_fail" if eager else "fail_to_run"
        row.put(status=status, error=f"{type(error).__name__}: {error}"[:2000], log=traceback.format_exc()[-8000:])


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    import torch

    start = time.perf_counter()
    result = call()
    torch.xpu.synchronize()
    return result, time.perf_counter() - start


def _parts(order: dict[str, Any]) -> Any:
    from anyxpu.bench.models.catalogue import find
    from anyxpu.bench.models.side import DTYPES, Side

    entry = find(order["suite"], order["name"])
    kind = DTYPES[order["dtype"]]
    # Rounded first: every side has the same weights, the exact one too.
    module, inputs = entry.make().to(kind), entry.make_inputs(order["full"])

    def side(device: str, compiled: bool, dtype: str = order["dtype"]) -> Side:
        training = order["mode"] == "training"
        return Side(entry, module, inputs, device=device, dtype=dtype, training=training, compiled=compiled)

    return entry, side


def _measure(order: dict[str, Any], row: Row) -> None:
    import torch

    from anyxpu.bench import fusions
    from anyxpu.bench.models.accuracy import complaints, right, tolerance
    from anyxpu.bench.served import counters, served_since
    from anyxpu.shim import lib

    row.stage("building")
    entry, side = _parts(order)
    training = order["mode"] == "training"
    row.stage("reference")
    try:
        exact = side("cpu", False, "f64").results()
    except (RuntimeError, NotImplementedError) as error:  # as upstream: without it the comparison is stricter
        # Beside 16 bits float32 is as good; else what two sides differ by is all that is known.
        exact = side("cpu", False, "f32").results(double=True) if order["dtype"] in ("bf16", "f16") else None
        row.put(no_reference=str(error)[:300])
    row.stage(EAGER)
    sides = {EAGER: side("cpu", False)}
    expected = sides[EAGER].results()

    row.stage(f"{XPU}, first call")
    torch._dynamo.utils.counters.clear()
    torch.xpu.reset_peak_memory_stats()
    sides[XPU] = side("xpu", True)
    found, seconds = _timed(sides[XPU].results)
    breaks = dict(torch._dynamo.utils.counters["graph_break"])
    stats = torch._dynamo.utils.counters["stats"]
    row.put(calls_captured=stats["calls_captured"], unique_graphs=stats["unique_graphs"], fusions=dict(fusions.fired()))
    row.put(cold_compile_s=seconds, graph_breaks=sum(breaks.values()), graph_break_reasons=list(breaks)[:5])
    allowed, cosine = tolerance(entry, order["suite"], training, order["dtype"])
    accurate = right(found, expected, exact, allowed, cosine)
    row.put(status="pass" if accurate else "fail_accuracy", tolerance=allowed, by_cosine=cosine)
    if not accurate:
        row.put(error="; ".join(complaints[-3:])[:1000])
    del exact, found

    row.stage(f"{XPU}, second call")
    if lib().eager() == "auto":  # behind a graph break the host serves while kernels are built: they are waited for
        lib().set_eager("compile")
        _timed(sides[XPU])
    before = counters()
    _timed(sides[XPU])
    host = served_since(before, "host")
    row.put(host_operators=sum(host.values()), host_operator_names=host)
    row.put(peak_memory_bytes=torch.xpu.max_memory_allocated())
    if order.get("profile"):
        row.stage(f"{XPU}, profiled")
        row.put(profile=_profile(sides[XPU], Path(order["profile"])))

    row.stage(XPU_EAGER)
    others = torch.xpu.memory_allocated()
    torch.xpu.reset_peak_memory_stats()
    sides[XPU_EAGER] = side("xpu", False)
    eager = sides[XPU_EAGER].results()
    row.put(eager_peak_memory_bytes=torch.xpu.max_memory_allocated() - others)
    row.put(eager_accurate=right(eager, expected, None, allowed, cosine))
    del expected, eager
    if order.get("accuracy"):
        row.stage("done")
        return

    row.stage(INDUCTOR)
    sides[INDUCTOR] = side("cpu", True)
    _, seconds = _timed(sides[INDUCTOR].results)
    row.put(cold_compile_s_inductor=seconds)

    row.stage("timing")
    _time(order, row, sides)
    row.stage("done")


def _time(order: dict[str, Any], row: Row, sides: dict[str, Any]) -> None:
    import torch

    from anyxpu.bench.timing import SETTLE_SECONDS, alternate

    once = alternate(sides, rounds=1, warmup=1, synchronize=torch.xpu.synchronize)
    total = sum(sample.median for sample in once.values())
    rounds = order["rounds"] or max(3, min(15, int(_ENOUGH_SECONDS / max(total, 1e-3))))
    samples = alternate(sides, rounds=rounds, warmup=0, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS)
    row.put(times={name: {**sample.as_dict("ms"), "spread": sample.spread} for name, sample in samples.items()})
    for name in (INDUCTOR, EAGER, XPU_EAGER):
        # Of each round's own pair, so that a machine whose speed drifts does not tilt it.
        pairs = zip(samples[name].seconds, samples[XPU].seconds, strict=True)
        row.put(**{f"speedup_over_{name.replace(' ', '_')}": statistics.median(a / b for a, b in pairs)})


def _profile(side: Callable[[], Any], file: Path) -> list[dict[str, Any]]:
    """One run's trace into a file for Perfetto or chrome://tracing; what the device did, the longest first.

    Returns:
        For each kernel, primitive, copy and fill its name, how often it ran, and its microseconds on the device.
    """
    import torch
    from torch.profiler import DeviceType, ProfilerActivity, profile

    file.parent.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.XPU]) as recorded:
        side()
        torch.xpu.synchronize()
    recorded.export_chrome_trace(str(file))
    done = [event for event in recorded.key_averages() if event.device_type == DeviceType.XPU]
    done.sort(key=lambda event: -event.self_device_time_total)
    return [{"name": e.key, "count": e.count, "device_us": e.self_device_time_total} for e in done]


def _compile_only(order: dict[str, Any], row: Row) -> None:
    """First calls with what an earlier process left in the caches."""
    row.stage("building")
    _, side = _parts(order)
    for field, device in (("warm_compile_s", "xpu"), ("warm_compile_s_inductor", "cpu")):
        row.stage(f"warm start, {device}")
        compiled = side(device, True)
        row.put(**{field: _timed(compiled.results)[1]})
    row.stage("done")
    row.put(status="pass")


if __name__ == "__main__":
    main()
