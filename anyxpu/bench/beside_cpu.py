"""What suites share that time models' operators on xpu and on the CPU, eager and compiled."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import SETTLE_SECONDS, Sample, alternate

CPU, XPU, CPU_COMPILED, XPU_COMPILED = "cpu eager", "xpu eager", "cpu inductor", "xpu compiled"
SIDES = (CPU, XPU, CPU_COMPILED, XPU_COMPILED)
_TARGET_SECONDS = 0.03  # of one timing
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}  # of the largest element

Sides = Mapping[str, Callable[[], Sequence[Tensor]]]
"""By the names above: what each is to run, and the tensors that it gives."""


def first_wrong(sides: Sides, expected: Sequence[Tensor], dtype: torch.dtype) -> str:
    """Runs every side once; which differs from the exact results by more than ``dtype`` explains, or ""."""
    for label, call in sides.items():
        for mine, theirs in zip(call(), expected, strict=True):
            error = float((mine.detach().cpu().double() - theirs).abs().max() / theirs.abs().max())
            if not error <= _TOLERANCE[dtype]:
                return f"{label}: wrong by {error:.2g} of the largest element"
    return ""


def time_sides(row: dict[str, Any], sides: Sides, rounds: int, operations: float, peak: float) -> None:
    """Times the sides in turn, and puts into ``row`` their times, ratios and share of ``peak`` (operations/s)."""
    once = alternate(sides, rounds=1, warmup=1, synchronize=torch.xpu.synchronize)
    count = max(1, math.ceil(_TARGET_SECONDS / max(sample.median for sample in once.values())))
    samples: dict[str, Sample] = alternate(
        sides, rounds=rounds, calls=count, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS
    )
    for label, sample in samples.items():
        row[label] = {**sample.as_dict("ms"), "spread": sample.spread, "flop_per_second": operations / sample.median}
    row["of_peak"] = operations / samples[XPU].median / peak
    row["ratio"] = {
        "eager": samples[CPU].median / samples[XPU].median,
        "compiled": samples[CPU_COMPILED].median / samples[XPU_COMPILED].median,
    }


def goals(report: Report, lowest: float, mean: float) -> list[Goal]:
    """Of the rows' ratios: the lowest, and their geometric mean, eager and compiled."""
    made = []
    for key, what in (("eager", "eager over CPU eager"), ("compiled", "compiled over CPU Inductor")):
        ratios = [row["ratio"][key] for row in report.rows if row["ratio"]]
        found = statistics.geometric_mean(ratios) if ratios else None
        made.append(Goal(f"lowest ratio, {what}", min(ratios, default=None), lowest, "higher"))
        made.append(Goal(f"geometric mean, {what}", found, mean, "higher"))
    return made


def peak() -> float:
    """Operations a second of an f32 product on this machine's CPU, the best of several."""
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2.0 * 1024**3 / min(times)


def short(dtype: torch.dtype) -> str:
    """Its name without torch's."""
    return str(dtype).removeprefix("torch.")


def progress(text: str) -> None:
    """A line for who waits."""
    print(text, file=sys.stderr, flush=True)


def _time(side: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side]['median_ms']:.2f} ±{row[side]['spread']:.0%}" if side in row else "-"


def ratio(key: str) -> Callable[[dict[str, Any]], str]:
    """A column's text of one of a row's ratios."""
    return lambda row: f"{row['ratio'][key]:.2f}x" if row["ratio"] else "-"


MEASURED = (
    *(Column(side, _time(side)) for side in SIDES),
    Column("eager", ratio("eager")),
    Column("compiled", ratio("compiled")),
    Column("f32 peak", lambda row: f"{row['of_peak']:.0%}" if "of_peak" in row else "-"),
)
"""The columns of what :func:`time_sides` measures."""
