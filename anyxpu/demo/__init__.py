"""The main job, ``anyxpu demo``: real models compiled by torch.compile for xpu, compared with the CPU, and timed."""

from __future__ import annotations

import statistics
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyxpu.bench.report import Goal, Report
    from anyxpu.demo.rows import Plan

QUICK_MODELS = ("bert-base", "resnet50")


@dataclass(frozen=True)
class Settings:
    """What the caller wants.

    Attributes:
        quick: two models and fewer rounds.
        models: names to run, in the demo's order; None means all (or the quick ones).
        rounds: timed rounds of each row; None leaves it to the demo.
        device: "xpu"; anything else only serves the demo's own development.
        freezing: both compilers fold and pack weights (``torch._inductor.config.freezing``); inference alone.
    """

    quick: bool = False
    models: Sequence[str] | None = None
    rounds: int | None = None
    device: str = "xpu"
    freezing: bool = False


def names() -> list[str]:
    """The models there are, in the order of the table."""
    from anyxpu.demo.models import MODELS

    return list(MODELS)


def plans(settings: Settings) -> list[Plan]:
    """The rows to make: inference in float32 and bfloat16, then the training rows in float32."""
    import torch

    from anyxpu.demo.models import MODELS
    from anyxpu.demo.rows import Plan

    chosen = settings.models or (QUICK_MODELS if settings.quick else list(MODELS))
    models = [model for name, model in MODELS.items() if name in chosen]
    rounds = settings.rounds or (3 if settings.quick else 5)
    inference = [
        Plan(model, "inference", dtype, settings.device, rounds)
        for model in models
        if model.inference
        for dtype in (torch.float32, torch.bfloat16)
    ]
    if settings.freezing:
        return inference
    training = [Plan(model, "training", torch.float32, settings.device, rounds) for model in models if model.optimizer]
    return inference + training


def run(settings: Settings) -> Report:
    """Make every row; a row that fails is reported as wrong and the others go on.

    Returns:
        the report; its ``wrong`` names each row that missed its error bound, needed the host, or raised.
    """
    import torch
    import torch._inductor.config
    from rich.console import Console

    from anyxpu.bench.report import Report
    from anyxpu.demo.progress import Narrator
    from anyxpu.demo.rows import run_row

    if settings.device == "xpu" and not torch.xpu.is_available():
        raise SystemExit("torch.xpu is not available here; `anyxpu doctor` says why and what mends it")
    todo = plans(settings)
    if not todo:
        raise SystemExit(f"{', '.join(settings.models or ())} only trains, and nothing is frozen that trains")
    report = Report(
        title="torch.compile on xpu beside the CPU" + (", frozen" if settings.freezing else ""),
        columns=_columns(),
        settings={
            "quick": settings.quick,
            "rounds": todo[0].rounds,
            "device": settings.device,
            "freezing": settings.freezing,
        },
    )
    console = Console(stderr=True)
    with Narrator(console, len(todo)) as narrator, torch._inductor.config.patch(freezing=settings.freezing):
        for plan in todo:
            row: dict[str, Any] = {"model": plan.model.name, "mode": plan.mode, "dtype": plan.dtype_name}
            with narrator.row(plan.title):
                try:
                    row = run_row(plan, narrator)
                except Exception as error:
                    traceback.print_exc(file=sys.stderr)
                    row["failed"] = f"{type(error).__name__}: {error}"
            report.rows.append(row)
    report.wrong = [sentence for row in report.rows for sentence in _wrong(row)]
    report.goals = _goals(report.rows)
    return report


def _wrong(row: dict[str, Any]) -> list[str]:
    name = f"{row['model']} {row['mode']} {row['dtype']}"
    if "failed" in row:
        return [f"{name}: {row['failed'].splitlines()[0][:400]}"]
    found = []
    if not row["error"] <= row["bound"]:
        found.append(f"{name}: relative error {row['error']:.2e} is above {row['bound']:.0e}")
    if row["host_operators"]:
        operators = ", ".join(f"{operator} x{count}" for operator, count in row["host_operator_names"].items())
        found.append(f"{name}: the host served operators inside the compiled graph: {operators}")
    return found


def _goals(rows: list[dict[str, Any]]) -> list[Goal]:
    from anyxpu.bench.report import Goal
    from anyxpu.demo.compare import BOUNDS

    done = [row for row in rows if "failed" not in row]
    goals = []
    for dtype, bound in BOUNDS.items():
        name = str(dtype).removeprefix("torch.")
        errors = [row["error"] for row in done if row["dtype"] == name]
        goals.append(Goal(f"largest relative error, {name}", max(errors, default=None), bound, "lower"))
    hosts = [row["host_operators"] for row in done]
    goals.append(Goal("operators served by the host in compiled graphs", sum(hosts) if hosts else None, 0, "lower"))
    goals.append(Goal("rows that ran", len(done), len(rows), "higher"))
    # A machine's speed is nothing that a run is wrong for: these are said, and written with the rest.
    ratios = [row["speedup_over_cpu_inductor"] for row in done if "speedup_over_cpu_inductor" in row]
    mean = statistics.geometric_mean(ratios) if ratios else None
    goals.append(Goal("lowest speed over CPU Inductor", min(ratios, default=None), 1.0, "higher"))
    goals.append(Goal("speed over CPU Inductor, geometric mean", mean, 1.25, "higher"))
    return goals


def _columns() -> list[Any]:
    from anyxpu.bench.report import Column
    from anyxpu.demo.rows import EAGER, INDUCTOR, XPU

    def time_of(side: str) -> Any:
        def text(row: dict[str, Any]) -> str:
            if "times" not in row:
                return "failed" if side == XPU else ""
            sample = row["times"][side]
            return f"{sample['median_ms']:.1f} ±{100 * sample['spread'] / 2:.0f}%"

        return text

    def ratio(key: str) -> Any:
        return lambda row: f"{row[key]:.2f}x" if key in row else ""

    def error(row: dict[str, Any]) -> str:
        if "error" not in row:
            return ""
        colour = "green" if row["error"] <= row["bound"] else "red"
        return f"[{colour}]{row['error']:.1e}[/]"

    def count(key: str) -> Any:
        return lambda row: str(row.get(key, ""))

    return [
        Column("model", lambda row: row["model"], left=True),
        Column("mode", lambda row: row["mode"], left=True),
        Column("dtype", lambda row: row["dtype"], left=True),
        Column("relative\nerror", error),
        Column("xpu compiled\nms", time_of(XPU)),
        Column("CPU Inductor\nms", time_of(INDUCTOR)),
        Column("CPU eager\nms", time_of(EAGER)),
        Column("over\nInductor", ratio("speedup_over_cpu_inductor")),
        Column("over\neager", ratio("speedup_over_cpu_eager")),
        Column("Triton\nkernels", count("triton_kernels")),
        Column("fusions", lambda row: str(sum(row["fusions"].values())) if "fusions" in row else ""),
        Column("host\noperators", count("host_operators")),
    ]
