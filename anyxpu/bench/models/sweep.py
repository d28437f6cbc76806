"""Runs the models of a suite one after the other, each in a process with a limit of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyxpu.bench.models.catalogue import entries
from anyxpu.bench.report import Column, Goal, Report

TITLE = "Models, beside the CPU"
MODES = ("inference", "training")
DTYPES = ("f32", "bf16", "f16", "amp")


@dataclass(frozen=True)
class Order:
    """What a sweep is about.

    Attributes:
        suite, mode, dtype: see ``anyxpu bench models --help``.
        only: models by name; empty: all.
        shard: (i, n): the i-th of n shares, from 1; a model's share depends on its place in the whole suite.
        full: upstream's sizes.
        rounds: timed rounds; 0 leaves it to how long they take.
        time_limit: seconds a model.
        memory_limit: bytes of resident memory a model.
        accuracy: results alone, as upstream's ``--accuracy``: nothing is timed, nor compiled for the CPU.
        profile: a folder for a trace of each model, compiled; None: none are taken.
    """

    suite: str
    mode: str
    dtype: str
    only: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)
    full: bool = False
    rounds: int = 0
    time_limit: float = 1800.0
    memory_limit: int = 22 << 30
    accuracy: bool = False
    profile: Path | None = None

    def names(self) -> list[str]:
        """The models to run, in the suite's order."""
        all_of_it = entries(self.suite)
        number, parts = self.shard
        return [
            name
            for place, (name, entry) in enumerate(all_of_it.items())
            if (not self.only or name in self.only)
            and place % parts == number - 1
            and (entry.training or self.mode != "training")
        ]


def run(order: Order, earlier: Report | None, keep: Path | None) -> Iterator[tuple[str, Report]]:
    """Yields each model's name before it runs, and once more at the end, with the report so far.

    Args:
        earlier: rows that are there already, of whichever sweeps; they stay, and their models are not run again, but
            for those of results alone where times are asked for.
        keep: the file that the report is written to after every model.
    """
    report = earlier or Report(title=TITLE, columns=COLUMNS)
    untimed = {key(row) for row in report.rows if row.get("accuracy") and not order.accuracy}
    done = {key(row) for row in report.rows} - untimed
    for name in order.names():
        if key({"suite": order.suite, "model": name, "mode": order.mode, "dtype": order.dtype}) in done:
            continue
        yield name, report
        row = _row(order, name)
        report.rows = [r for r in report.rows if key(r) != key(row)] + [row]
        report.goals = goals(report.rows)
        report.wrong = [
            f"{row['model']} {row['mode']} {row['dtype']}: {row['status']}"
            for row in report.rows
            if row["status"] == "fail_accuracy"
        ]
        if keep is not None:
            partial = keep.with_name(f"{keep.name}.part")
            report.write(str(partial))
            os.replace(partial, keep)
    yield "", report


def load(file: Path) -> Report:
    """The report of an earlier sweep, to go on with.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        rows = json.loads(file.read_text())["rows"]
        for row in rows:
            key(row)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no result of `anyxpu bench models`: {error!r}") from error
    return Report(title=TITLE, columns=COLUMNS, rows=rows)


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is about."""
    return row["suite"], row["model"], row["mode"], row["dtype"]


def _row(order: Order, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"suite": order.suite, "model": name, "mode": order.mode, "dtype": order.dtype}
    entry = entries(order.suite)[name]
    row["accuracy"] = order.accuracy
    row["full"], row["batch_size"] = order.full, (entry.upstream if order.full else entry.small).batch
    folder = Path(tempfile.mkdtemp(prefix="anyxpu-model-"))
    try:
        # Caches of their own: the first process compiles all, the second finds it.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        environment["TRITON_CACHE_DIR"] = str(folder / "triton")
        row.update(_child(order, name, folder, environment, compile_only=False))
        if row["status"] == "pass" and not order.accuracy:
            warm = _child(order, name, folder, environment, compile_only=True)
            row.update({k: v for k, v in warm.items() if k.startswith("warm_")})
            if warm["status"] != "pass":
                row["warm_error"] = warm["error"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def _child(order: Order, name: str, folder: Path, environment: dict[str, str], compile_only: bool) -> dict[str, Any]:
    path = folder / f"{'warm' if compile_only else 'row'}.json"
    trace = order.profile and order.profile / f"{order.suite}-{name}-{order.mode}-{order.dtype}.json"
    words = {
        "suite": order.suite,
        "name": name,
        "mode": order.mode,
        "dtype": order.dtype,
        "full": order.full,
        "rounds": order.rounds,
        "accuracy": order.accuracy,
        "profile": trace and str(trace.absolute()),
        "row": str(path),
        "compile_only": compile_only,
    }
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "anyxpu.bench.models.child", json.dumps(words)],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            stopped = _watch(process, order)
        except BaseException:
            _kill(process)
            raise
    row = json.loads(path.read_text()) if path.exists() else {}
    if stopped or process.returncode or "status" not in row:
        row.setdefault("stage", "starting")
        row["status"] = stopped or "crashed"
        row["error"] = f"{row['status']} in the stage {row['stage']!r} (exit status {process.returncode})"
        row["log"] = log.read_text(errors="replace")[-8000:]
    return row


def _watch(process: subprocess.Popen[bytes], order: Order) -> str:
    """Waits for the process; why it was stopped, or ""."""
    end = time.monotonic() + order.time_limit
    while process.poll() is None:
        if time.monotonic() > end:
            _kill(process)
            return "timeout"
        if _resident(process.pid) > order.memory_limit:
            _kill(process)
            return "out_of_memory"
        time.sleep(0.2)
    return ""


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started, compilers among them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- what the rows say together ------------------------------------------------------------------------------------
# (mode, dtype) -> share of models whose results are to be right.
_ACCURATE = {
    ("inference", "f32"): 0.98,
    ("inference", "bf16"): 0.98,
    ("training", "f32"): 0.95,
    ("training", "amp"): 0.95,
}
_FASTER = {"inference": 1.15, "training": 1.1}


def goals(rows: Sequence[dict[str, Any]]) -> list[Goal]:
    """For each suite, mode and dtype among the rows: how many are right, how fast, how soon compiled."""
    made: list[Goal] = []
    for suite, mode, dtype in dict.fromkeys((r["suite"], r["mode"], r["dtype"]) for r in rows):
        these = [r for r in rows if (r["suite"], r["mode"], r["dtype"]) == (suite, mode, dtype)]
        what = f"{suite} {mode} {dtype}"
        if share := _ACCURATE.get((mode, dtype)):
            passed = sum(r["status"] == "pass" for r in these) / len(these)
            made.append(Goal(f"{what}: share of models that are right", passed, share, "higher"))
        host = [r["host_operators"] for r in these if "host_operators" in r]
        made.append(Goal(f"{what}: host operators in compiled models", float(sum(host)) if host else None, 0, "lower"))
        if all(r.get("accuracy") for r in these):
            continue  # nothing was timed
        ratios = [r["speedup_over_cpu_inductor"] for r in these if "speedup_over_cpu_inductor" in r]
        mean = statistics.geometric_mean(ratios) if ratios else None
        made.append(Goal(f"{what}: geometric mean over CPU Inductor", mean, _FASTER[mode], "higher"))
        made.append(Goal(f"{what}: lowest over CPU Inductor", min(ratios, default=None), 0.8, "higher"))
        for start in ("cold", "warm"):
            found = [
                r[f"{start}_compile_s"] / r[f"{start}_compile_s_inductor"]
                for r in these
                if f"{start}_compile_s" in r and f"{start}_compile_s_inductor" in r
            ]
            slower = statistics.geometric_mean(found) if found else None
            made.append(Goal(f"{what}: {start} compile over CPU Inductor's", slower, 1.2, "lower"))
    return made


def _number(field: str, form: str) -> Any:
    return lambda row: form.format(row[field]) if field in row else "-"


COLUMNS = (
    Column("model", lambda row: row["model"], left=True),
    Column("mode", lambda row: f"{row['mode']} {row['dtype']}", left=True),
    Column("result", lambda row: row["status"], left=True),
    Column("breaks", _number("graph_breaks", "{}")),
    Column("host", _number("host_operators", "{}")),
    Column("over inductor", _number("speedup_over_cpu_inductor", "{:.2f}x")),
    Column("over cpu eager", _number("speedup_over_cpu_eager", "{:.2f}x")),
    Column("over xpu eager", _number("speedup_over_xpu_eager", "{:.2f}x")),
    Column("cold s", _number("cold_compile_s", "{:.1f}")),
    Column("inductor's", _number("cold_compile_s_inductor", "{:.1f}")),
    Column("warm s", _number("warm_compile_s", "{:.1f}")),
    Column("inductor's", _number("warm_compile_s_inductor", "{:.1f}")),
    Column("peak MiB", lambda row: f"{row['peak_memory_bytes'] / 2**20:.0f}" if "peak_memory_bytes" in row else "-"),
)
