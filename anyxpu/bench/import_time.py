"""``anyxpu bench import``: what anyxpu adds to ``import torch``, each import in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from anyxpu.bench import Request
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import Sample

GOAL_MS = 50.0

# A driver that has started has its libraries mapped into the process, whoever loaded them.
_PROBE = """
import json, sys, time
start, cpu_start = time.perf_counter(), time.process_time()
import torch
seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
maps = open("/proc/self/maps").read()
drivers = [n for n in ("libsycl", "libOpenCL", "libintelocl", "libze_", "anyxpu_sycl", "anyxpu_null") if n in maps]
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "has_xpu": torch._C._has_xpu, "drivers": drivers}))
"""

# torch's own switch leaves every backend out; ours loads the entry point and stands aside.
SIDES: dict[str, dict[str, str]] = {
    "anyxpu": {},
    "ANYXPU_DISABLE=1": {"ANYXPU_DISABLE": "1"},
    "TORCH_DEVICE_BACKEND_AUTOLOAD=0": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
}
WITH, WITHOUT = "anyxpu", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"


def _import_once(variables: dict[str, str]) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k not in ("ANYXPU_DISABLE", "TORCH_DEVICE_BACKEND_AUTOLOAD")}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=environment | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"import torch failed with {variables or 'no variables'}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(request: Request) -> Report:
    """Import torch with anyxpu, with it disabled and without any backend, alternating.

    Wrong is: a driver started during an import, or xpu missing after the import with anyxpu.
    """
    rounds = request.rounds or (5 if request.quick else 15)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    names = list(SIDES)
    for number in range(-1, rounds):  # the first round only warms the disk cache
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            result = _import_once(SIDES[name])
            if number >= 0:
                taken[name].append(result)
    rows = []
    for name, results in taken.items():
        sample = Sample(tuple(result["seconds"] for result in results))
        # Each round's own pair: the machine's drift between rounds is larger than what is measured.
        pairs = list(zip(results, taken[WITHOUT], strict=True))
        rows.append(
            {
                "side": name,
                **sample.as_dict("ms"),
                "added_ms": 1e3 * statistics.median(a["seconds"] - b["seconds"] for a, b in pairs),
                # Processor time is what other work on the machine does not stretch.
                "added_cpu_ms": 1e3 * statistics.median(a["cpu_seconds"] - b["cpu_seconds"] for a, b in pairs),
                "drivers_started": sorted({driver for result in results for driver in result["drivers"]}),
                "has_xpu": all(result["has_xpu"] for result in results),
            }
        )
    by_name = {row["side"]: row for row in rows}
    report = Report("import torch", _COLUMNS, rows, settings={"rounds": rounds})
    report.goals = [Goal("import torch costs more with anyxpu, ms", by_name[WITH]["added_ms"], GOAL_MS, "lower")]
    if by_name[WITH]["drivers_started"]:
        report.wrong.append(f"import torch started a driver: {', '.join(by_name[WITH]['drivers_started'])} were loaded")
    if not by_name[WITH]["has_xpu"]:
        report.wrong.append("after import torch with anyxpu installed torch has no xpu; `anyxpu doctor` says why")
    return report


_COLUMNS = (
    Column("side", lambda row: row["side"], left=True),
    Column("median ms", lambda row: f"{row['median_ms']:.0f}"),
    Column("quartiles ms", lambda row: f"{row['q1_ms']:.0f} - {row['q3_ms']:.0f}"),
    Column("added ms", lambda row: f"{row['added_ms']:+.1f}"),
    Column("added CPU ms", lambda row: f"{row['added_cpu_ms']:+.1f}"),
    Column("xpu", lambda row: "yes" if row["has_xpu"] else "no"),
    Column("drivers started", lambda row: ", ".join(row["drivers_started"]) or "none"),
)
