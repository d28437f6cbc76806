"""``anyxpu bench compile``: what compiling a kernel takes, stage by stage, beside Triton's own NVIDIA backend.

The kernels are those that Inductor makes of ``anyxpu bench kernels``' functions. Both sides compile the same sources
in one process, with the block sizes that Inductor chose for xpu, each time into a cache that is empty; neither needs a
GPU for it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from anyxpu.bench import Request
from anyxpu.bench.inductors import inductors_kernels
from anyxpu.bench.kernel_cases import CASES
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import alternate

XPU, CUDA = "xpu", "cuda:90"
_QUICK = ("gelu", "sum outer", "softmax", "layernorm", "embedding backward", "transpose copy")

# What both backends can be asked for; a CPU device makes one sub-group of them.
_OPTIONS = {"num_warps": 4}

Milliseconds = dict[str, float]

_WARM_PROGRAM = """
import sys
from anyxpu.bench.inductors import run_case
for name in sys.argv[1:]:
    run_case(name)
"""


def run(request: Request) -> Report:
    """Compile every kernel for both targets, then run all of them in two further processes with one cache.

    Wrong is: a kernel that does not compile for either target, or that two processes could not run.
    """
    names = request.only or (_QUICK if request.quick else tuple(CASES))
    rounds = request.rounds or (3 if request.quick else 5)
    report = Report("Cold compiles, milliseconds", _COLUMNS, settings={"rounds": rounds, "options": _OPTIONS})
    for name in names:
        for source in inductors_kernels(name):
            row: dict[str, Any] = {"case": name, "kernel": source.name}
            try:
                row.update(_measure(source, rounds))
            except Exception as error:  # the other kernels' times are still wanted
                first = next(iter(str(error).strip().splitlines()), "")
                report.wrong.append(f"{name}, {source.name}: {type(error).__name__}: {first[:300]}")
            else:
                report.rows.append(row)
    medians = {side: _medians(report.rows, side) for side in (XPU, CUDA)}
    cold, warm = _two_processes(names, report.wrong)
    report.settings |= {"median kernel": medians, "compiled cold": cold, "compiled warm": warm}
    ours, theirs = medians[XPU], medians[CUDA]
    if report.rows:
        report.rows.append({"case": "median kernel", "kernel": "", XPU: ours, CUDA: theirs, "summary": True})
    report.goals = [
        Goal(
            "median time of a kernel over the NVIDIA backend's",
            ours["total"] / theirs["total"] if ours and theirs else None,
            1.0,
            "lower",
        ),
        Goal("parser and renderer, ms of the median kernel", ours.get("text"), 20.0, "lower"),
        Goal(
            "parser and renderer, ms of the slowest kernel",
            max((row[XPU]["text"] for row in report.rows), default=None),
            20.0,
            "lower",
        ),
        # A second process that compiles nothing says something only where the first one did.
        Goal("kernels that a second process compiles", warm if cold else None, 0, "lower"),
    ]
    return report


def _measure(source: Any, rounds: int) -> dict[str, Milliseconds]:
    """The median milliseconds of each stage, by target; ``total`` is the whole call of ``triton.compile``."""
    import triton
    from triton.backends.compiler import GPUTarget

    targets = {XPU: triton.runtime.driver.active.get_current_target(), CUDA: GPUTarget("cuda", 90, 32)}
    taken: dict[str, list[Milliseconds]] = {side: [] for side in targets}

    def compile_for(side: str) -> Callable[[], None]:
        def once() -> None:
            with _empty_cache(), _stages() as stages:
                triton.compile(source, target=targets[side], options=dict(_OPTIONS))
            taken[side].append(stages)

        return once

    totals = alternate({side: compile_for(side) for side in targets}, rounds=rounds, warmup=1)
    out = {}
    for side, measured in taken.items():
        timed = measured[-rounds:]
        out[side] = {stage: statistics.median(stages[stage] for stages in timed) for stage in timed[0]}
        out[side]["total"] = totals[side].median * 1e3
    return out


@contextmanager
def _empty_cache() -> Iterator[None]:
    import triton

    with tempfile.TemporaryDirectory(prefix="anyxpu-bench-") as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield


@contextmanager
def _stages() -> Iterator[Milliseconds]:
    """Fills in the stages of the one compile inside, as Triton times them; of ``cl`` also the parser by itself."""
    import triton

    from anyxpu.triton import lower
    from anyxpu.triton.parse import parse

    stages: Milliseconds = {}

    def timed_parse(text: str) -> Any:
        start = time.perf_counter()
        module = parse(text)
        stages["parse"] = (time.perf_counter() - start) * 1e3
        return module

    def listen(*, times: Any, **_: Any) -> None:
        stages["source"] = times.ir_initialization / 1e3
        stages.update((stage, microseconds / 1e3) for stage, microseconds in times.lowering_stages)
        stages["store"] = times.store_results / 1e3
        if "cl" in stages:
            stages["text"] = stages.pop("cl")
            stages["render"] = stages["text"] - stages["parse"]

    with triton.knobs.compilation.scope(), mock.patch.object(lower, "parse", timed_parse):
        triton.knobs.compilation.listener = listen
        yield stages


def _medians(rows: list[dict[str, Any]], side: str) -> Milliseconds:
    return {stage: statistics.median(row[side][stage] for row in rows) for stage in rows[0][side]} if rows else {}


def _two_processes(names: tuple[str, ...], wrong: list[str]) -> tuple[int, int]:
    """How many kernels each of two processes compiled that run the same cases one after the other, on one cache."""
    counts = []
    with tempfile.TemporaryDirectory(prefix="anyxpu-bench-") as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for number in ("first", "second"):
            log = Path(folder, number)
            log.touch()
            done = subprocess.run(
                [sys.executable, "-c", _WARM_PROGRAM, *names],
                env={**os.environ, **caches, "ANYXPU_LOG_COMPILES": str(log)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                last = next(iter(done.stderr.strip().splitlines()[-1:]), "")
                wrong.append(f"the {number} process failed with status {done.returncode}: {last[:300]}")
            counts.append(len(log.read_text().splitlines()))
    return counts[0], counts[1]


def _time(side: str, stage: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side][stage]:.0f}"


_COLUMNS = (
    Column("case", lambda row: row["case"], left=True),
    Column("source", _time(XPU, "source")),
    Column("ttir", _time(XPU, "ttir")),
    Column("ttgir", _time(XPU, "ttgir")),
    Column("parse", _time(XPU, "parse")),
    Column("render", _time(XPU, "render")),
    Column("native", _time(XPU, "zebin")),
    Column("xpu", _time(XPU, "total")),
    Column("source", _time(CUDA, "source")),
    Column("ttir", _time(CUDA, "ttir")),
    Column("ttgir", _time(CUDA, "ttgir")),
    Column("llir", _time(CUDA, "llir")),
    Column("ptx", _time(CUDA, "ptx")),
    Column("cubin", _time(CUDA, "cubin")),
    Column(CUDA, _time(CUDA, "total")),
    Column("ratio", lambda row: f"{row[XPU]['total'] / row[CUDA]['total']:.2f}x"),
)
