"""``anyxpu demo --simulate DEVICE``: every model compiled for and launched on a GPU that is not here.

Intel's own driver compiles, loads, checks and takes every kernel and executes none. So a row compares what does not
depend on values (shapes and dtypes, with the same model on the CPU), counts what the host had to serve
inside compiled graphs, and what the driver took and refused. Values are not compared and nothing is timed.

Each row is a process of its own: the driver tells what it refused when its process ends, and a row that kills its
process costs no other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyxpu.demo import QUICK_MODELS, Settings
from anyxpu.simulate import DEVICES, Simulation, SimulationError
from anyxpu.simulate.run import prepare

if TYPE_CHECKING:
    from torch import Tensor

    from anyxpu.bench.report import Column, Goal, Report
    from anyxpu.demo.models import Model

DTYPES = ("float32", "bfloat16", "float16")
# What the driver's log counts (interposer.cpp), each also as ``…_refused``.
KINDS = ("build", "kernel", "launch", "alloc", "synchronize")
# The driver itself takes no minutes; this stops a process that waits for something that will not come.
_ROW_TIMEOUT = 1800.0


def run(settings: Settings, device: str) -> Report:
    """Make every row on ``device``; a row that fails is reported as wrong and the others go on.

    Returns:
        the report; its ``wrong`` names each row that failed, needed the host, had a result of another shape or dtype,
        or of which the driver refused something.

    Raises:
        SimulationError: there is no such device, or no driver to simulate it with.
        anyxpu.build.BuildError: what stands between loader and driver does not build.
    """
    from rich.console import Console

    from anyxpu.bench.report import Report
    from anyxpu.demo.progress import Narrator

    todo = list(_rows(settings))
    product = DEVICES[Simulation(device).device].product
    report = Report(
        title=f"torch.compile on a simulated {device} ({product}): compiled by Intel's driver, loaded and launched.\n"
        "Kernels do not execute there: shapes and dtypes are checked, values are not compared, nothing is timed",
        columns=_columns(),
        settings={"quick": settings.quick, "device": device, "values": "not compared", "times": "not taken"},
    )
    with tempfile.TemporaryDirectory(prefix="anyxpu-demo-") as folder, Narrator(Console(stderr=True), len(todo)) as say:
        for model, mode, dtype in todo:
            row = {"model": model, "mode": mode, "dtype": dtype}
            with say.row(" ".join(row.values())), say.stage(f"compiling for {device}"):
                report.rows.append({**row, **_in_a_process(device, row, Path(folder))})
    report.wrong = [sentence for row in report.rows for sentence in wrong(row)]
    report.goals = goals(report.rows)
    return report


def _rows(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """(model, mode, dtype) of each row: all inference, then all training."""
    from anyxpu.demo.models import MODELS

    chosen = settings.models or (QUICK_MODELS if settings.quick else list(MODELS))
    models = [model for name, model in MODELS.items() if name in chosen]
    yield from ((model.name, "inference", dtype) for model in models if model.inference for dtype in DTYPES)
    yield from ((model.name, "training", dtype) for model in models if model.optimizer for dtype in DTYPES)


def _in_a_process(device: str, row: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What :func:`main` says of one row on the simulated device, and what the driver said."""
    log = folder / "-".join(row.values())
    words, environment = prepare(Simulation(device, log=log), ["python", "-m", __name__, *row.values()])
    try:
        done = subprocess.run(
            words, env=dict(environment), capture_output=True, text=True, check=False, timeout=_ROW_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"did not end within {_ROW_TIMEOUT:g} s"}
    found: dict[str, Any] = driver_counts(log)
    if done.returncode:
        sys.stderr.write(done.stderr)
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        status = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return {**found, "failed": f"{last[:400]} ({status})"}
    return {**found, **json.loads(done.stdout.splitlines()[-1])}


def driver_counts(log: Path) -> dict[str, Any]:
    """What the driver took, by kind, and what it refused, over all processes that wrote to ``log``.

    The compile workers of a row are such processes: the driver compiles in them.
    """
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    sums = {k: sum(record.get(k, 0) for record in records) for kind in KINDS for k in (kind, f"{kind}_refused")}
    refused = {kind: sums[f"{kind}_refused"] for kind in KINDS if sums[f"{kind}_refused"]}
    return {"modules": sums["build"], "kernels": sums["kernel"], "launches": sums["launch"], "refused": refused}


def wrong(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row, a sentence each."""
    name = f"{row['model']} {row['mode']} {row['dtype']}"
    if "failed" in row:
        return [f"{name}: {row['failed']}"]
    found = [f"{name}: {sentence}" for sentence in row["differences"]]
    if row["host_operators"]:
        operators = ", ".join(f"{operator} x{count}" for operator, count in row["host_operator_names"].items())
        found.append(f"{name}: the host served operators inside the compiled graph: {operators}")
    if row["refused"]:
        found.append(f"{name}: the driver refused {', '.join(f'{n} x {kind}' for kind, n in row['refused'].items())}")
    if not row["launches"]:
        found.append(f"{name}: the driver was given nothing to launch")
    return found


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    """The goals that the issue named, from the rows."""
    from anyxpu.bench.report import Goal

    done = [row for row in rows if "failed" not in row]
    taken = sum(row.get("kernels", 0) for row in rows)
    refused = sum(row.get("refused", {}).get(kind, 0) for row in rows for kind in ("build", "kernel", "launch"))
    hosts = [row["host_operators"] for row in done]
    differences = [len(row["differences"]) for row in done]
    return [
        Goal("rows that ran", len(done), len(rows), "higher"),
        Goal("part of the kernels that the driver accepted", taken / max(taken + refused, 1), 1.0, "higher"),
        Goal("operators served by the host in compiled graphs", sum(hosts) if hosts else None, 0, "lower"),
        Goal("results of another shape or dtype", sum(differences) if differences else None, 0, "lower"),
    ]


def _columns() -> list[Column]:
    from anyxpu.bench.report import Column

    def plain(key: str, heading: str, left: bool = False) -> Column:
        return Column(heading, lambda row: str(row.get(key, "")), left=left)

    return [
        plain("model", "model", left=True),
        plain("mode", "mode", left=True),
        plain("dtype", "dtype", left=True),
        Column("shapes and\ndtypes", _agreement),
        plain("triton_kernels", "Triton\nkernels"),
        plain("kernels", "kernels the\ndriver took"),
        plain("launches", "launches"),
        Column("refused", lambda row: str(sum(row.get("refused", {}).values()))),
        plain("library_calls", "library\ncalls"),
        plain("host_operators", "host\noperators"),
    ]


def _agreement(row: dict[str, Any]) -> str:
    if "failed" in row:
        return "[red]failed[/]"
    return f"[red]{len(row['differences'])} differ[/]" if row["differences"] else f"[green]{row['compared']} agree[/]"


# --- in the process of one row


def main(arguments: list[str]) -> None:
    """Compile and run one row on the device that is here, and print what there is to say of it as one line of JSON."""
    import torch

    from anyxpu.demo.models import MODELS

    name, mode, dtype = arguments
    sys.stdout.write("\n" + json.dumps(one_row(MODELS[name], mode, getattr(torch, dtype))) + "\n")


def one_row(model: Model, mode: str, dtype: Any) -> dict[str, Any]:
    """Compile ``model`` for xpu, run it, and compare its results' shapes and dtypes with those of the CPU.

    Returns:
        ``compared``: how many tensors were; ``differences``: a sentence for each that differs; and the counts of
        :class:`anyxpu.demo.rows.Recorder`.
    """
    from anyxpu.demo.rows import XPU, Plan, Recorder
    from anyxpu.demo.sides import Inference, Training

    recorder = Recorder(Plan(model, mode, dtype, "xpu", rounds=0))
    module, batch = model.make().to(dtype), model.make_batch()
    if mode == "inference":
        side = Inference(model, module, batch, dtype, "xpu", compiled=True)
        with recorder.compiling(XPU):
            side()
        with recorder.serving(XPU):
            found = [side()]
        expected = [Inference(model, module, batch, dtype, "cpu", compiled=False)()]
    else:
        trainer = Training(model, module, batch, dtype, "xpu", compiled=True)
        for _ in range(2):  # only the second step of the optimizer has a state
            with recorder.compiling(XPU):
                trainer()
        with recorder.serving(XPU):
            found = [trainer.backward(), *trainer.gradients()]
            trainer.update()
        reference = Training(model, module, batch, dtype, "cpu", compiled=False)
        expected = [reference.backward(), *reference.gradients()]
    counts = {key: value for key, value in recorder.fields.items() if not key.startswith("first_calls")}
    return {"sizes": model.sizes, "compared": len(found), "differences": list(differences(found, expected)), **counts}


def differences(found: Iterable[Tensor], expected: Iterable[Tensor]) -> Iterator[str]:
    """A sentence for each tensor that is not on xpu or has another shape or dtype than the one expected."""
    found, expected = list(found), list(expected)
    if len(found) != len(expected):
        yield f"{len(found)} tensors where there should be {len(expected)}"
    for number, (a, b) in enumerate(zip(found, expected, strict=False)):
        if (a.shape, a.dtype, a.device.type) != (b.shape, b.dtype, "xpu"):
            what, wanted = (f"{tuple(t.shape)} of {t.dtype}" for t in (a, b))
            yield f"result {number} on {a.device} is {what}, not {wanted} on xpu"


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1:])
    else:
        raise SimulationError("this is a row of `anyxpu demo --simulate DEVICE`")
