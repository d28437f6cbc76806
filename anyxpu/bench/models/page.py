"""The report of sweeps: one page that holds all it needs, and CSV files in the columns of PyTorch's dashboard."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyxpu.bench.models.sweep import goals, key

Row = dict[str, Any]

_ACCURACY = ("dev", "name", "batch_size", "accuracy", "calls_captured", "unique_graphs", "graph_breaks")
_PERFORMANCE = (
    "dev",
    "name",
    "batch_size",
    "speedup",
    "abs_latency",
    "compilation_latency",
    "compression_ratio",
    "eager_peak_mem",
    "dynamo_peak_mem",
    "calls_captured",
    "unique_graphs",
    "graph_breaks",
)
_COMPILED = "xpu compiled"


@dataclass(frozen=True)
class Run:
    """One file of ``anyxpu bench models --json``."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    rows: list[Row]


def read(file: Path) -> Run:
    """A run's file.

    Raises:
        ValueError: it holds something else.
    """
    try:
        whole = json.loads(file.read_text())
        for row in whole["rows"]:
            key(row)
            row["status"]
        return Run(file.stem, whole["machine"], whole["versions"], whole["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no result of `anyxpu bench models`: {error!r}") from error


def merge(runs: Sequence[Run]) -> list[Row]:
    """The rows of all, in order; of two about the same model the later file's."""
    return list({key(row): row for run in runs for row in run.rows}.values())


def write(runs: Sequence[Run], folder: Path, baseline: Run | None = None, threshold: float = 0.9) -> list[str]:
    """Writes ``index.html`` and, for each suite, mode and dtype, two CSV files.

    Args:
        runs: merged into one.
        folder: made where it is not there.
        baseline: an earlier run, beside which models that were both measured are shown.
        threshold: of an earlier speed; what falls below it is listed.

    Returns:
        a sentence for each model that is slower than the threshold allows, or right no more.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    rows = merge(runs)
    folder.mkdir(parents=True, exist_ok=True)
    groups = [_group(about, rows) for about in dict.fromkeys(map(_about, rows))]
    changes = _changes(rows, baseline.rows, threshold) if baseline else []
    page = Environment(
        loader=PackageLoader("anyxpu.bench.models", "."), autoescape=select_autoescape(), undefined=StrictUndefined
    ).get_template("page.html")
    text = page.render(
        groups=groups,
        goals=[goal.as_dict() for goal in goals(rows)],
        failures=[row for row in rows if row["status"] != "pass"],
        changes=changes,
        baseline=baseline.name if baseline else "",
        machine=runs[-1].machine,
        versions=runs[-1].versions,
        threshold=threshold,
    )
    (folder / "index.html").write_text(text)
    for group in groups:
        _write_csv(folder, group)
    return [change["sentence"] for change in changes if change["worse"]]


def _about(row: Row) -> tuple[str, str, str]:
    return row["suite"], row["mode"], row["dtype"]


def _group(about: tuple[str, str, str], rows: Sequence[Row]) -> dict[str, Any]:
    these = [row for row in rows if _about(row) == about]
    timed = [row for row in these if "speedup_over_cpu_inductor" in row]

    def mean(field: str) -> float | None:
        found = [row[field] for row in these if row.get(field)]
        return statistics.geometric_mean(found) if found else None

    widest = max(
        (row["speedup_over_cpu_inductor"] * (1 + row["times"][_COMPILED]["spread"] / 2) for row in timed), default=1.0
    )
    longest = max((_slowest_start(row) for row in these), default=1.0) or 1.0
    largest = max((row.get("peak_memory_bytes", 0) for row in these), default=1) or 1
    return {
        "suite": about[0],
        "mode": about[1],
        "dtype": about[2],
        "rows": sorted(these, key=lambda row: -row.get("speedup_over_cpu_inductor", 0.0)),
        "models": len(these),
        "passed": sum(row["status"] == "pass" for row in these),
        "host_operators": sum(row.get("host_operators", 0) for row in these),
        "over_inductor": mean("speedup_over_cpu_inductor"),
        "over_cpu": mean("speedup_over_cpu_eager"),
        "over_eager": mean("speedup_over_xpu_eager"),
        "cold": mean("cold_compile_s"),
        "cold_inductor": mean("cold_compile_s_inductor"),
        "widest": max(widest, 1.0),
        "longest": longest,
        "largest": largest,
    }


def _slowest_start(row: Row) -> float:
    return max(row.get("cold_compile_s", 0.0), row.get("cold_compile_s_inductor", 0.0))


def _changes(rows: Sequence[Row], before: Sequence[Row], threshold: float) -> list[dict[str, Any]]:
    earlier = {key(row): row for row in before}
    found = []
    for row in rows:
        was = earlier.get(key(row))
        if was is None:
            continue
        name = f"{row['model']} ({row['mode']} {row['dtype']})"
        now, then = row.get("speedup_over_cpu_inductor"), was.get("speedup_over_cpu_inductor")
        ratio = now / then if now and then else None
        broken = was["status"] == "pass" and row["status"] != "pass"
        slower = ratio is not None and ratio < threshold
        sentence = f"{name}: {row['status']}, was right before" if broken else ""
        if slower and not broken:
            sentence = f"{name}: {now:.2f} times CPU Inductor, {then:.2f} before"
        found.append(
            {"name": name, "now": now, "then": then, "ratio": ratio, "status": row["status"], "was": was["status"]}
            | {"worse": broken or slower, "sentence": sentence}
        )
    return sorted(found, key=lambda change: (not change["worse"], change["ratio"] or 0.0))


def _write_csv(folder: Path, group: dict[str, Any]) -> None:
    for kind, columns in (("accuracy", _ACCURACY), ("performance", _PERFORMANCE)):
        name = f"inductor_{group['suite']}_{group['dtype']}_{group['mode']}_xpu_{kind}.csv"
        with (folder / name).open("w", newline="") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            for row in group["rows"]:
                if kind == "accuracy" or "times" in row:
                    table.writerow({column: _csv_field(row, column) for column in columns})


def _csv_field(row: Row, column: str) -> Any:
    eager, compiled = row.get("eager_peak_memory_bytes"), row.get("peak_memory_bytes")
    fields = {
        "dev": "xpu",
        "name": row["model"],
        "accuracy": row["status"],
        "speedup": row.get("speedup_over_xpu_eager"),
        "abs_latency": row.get("times", {}).get(_COMPILED, {}).get("median_ms"),
        "compilation_latency": row.get("cold_compile_s"),
        "compression_ratio": eager / compiled if eager and compiled else None,
        "eager_peak_mem": eager / 1e9 if eager else None,
        "dynamo_peak_mem": compiled / 1e9 if compiled else None,
    }
    return fields.get(column, row.get(column))
