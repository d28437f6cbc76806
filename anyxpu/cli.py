"""The command ``anyxpu``. Every command imports what it needs when it runs, so that ``--help`` stays instant."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from anyxpu import __version__
from anyxpu.bench import SUITES

app = typer.Typer(
    name="anyxpu",
    help="The device half of PyTorch's xpu support, over a stock wheel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
bench_app = typer.Typer(
    help="Benchmarks: both sides in one run, alternating, results checked first.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench")


def _writable(file: str | None) -> str | None:
    """Refuse before the work what could not be written after it."""
    if file not in (None, "-"):
        path = Path(file)
        if path.is_dir() or not path.parent.is_dir():
            raise typer.BadParameter(f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise typer.BadParameter(f"{path} may not be written")
    return file


JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", callback=_writable, help="Write the result as JSON; - for stdout."),
]
Quick = Annotated[bool, typer.Option("--quick", help="A slice, in under three minutes once the caches are warm.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"anyxpu {__version__}")
        raise typer.Exit


@app.command()
def demo(
    quick: Quick = False,
    models: Annotated[
        str | None, typer.Option("--models", help="Comma-separated names; `--models list` prints them.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Timed rounds of each row.")] = None,
    json_file: JsonFile = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate", metavar="DEVICE", help="On a GPU that is not here: launched, not compared or timed."
        ),
    ] = None,
    freezing: Annotated[
        bool, typer.Option("--freezing", help="Inference alone, with weights folded and packed by both compilers.")
    ] = False,
    device: Annotated[str, typer.Option("--device", hidden=True)] = "xpu",
) -> None:
    """Compile and run BERT, GPT-2, ResNet and ViT on xpu, compare with the CPU, and time all sides.

    Leaves with status 1 if an error bound is missed or a compiled graph needed the host. On a simulated GPU: if a
    graph needed the host, a result has another shape or dtype, or Intel's driver refused anything.
    """
    from anyxpu import demo as demo_job
    from anyxpu.build import BuildError
    from anyxpu.simulate import SimulationError

    if models == "list":
        typer.echo("\n".join(demo_job.names()))
        raise typer.Exit
    chosen = [name.strip() for name in models.split(",") if name.strip()] if models else None
    unknown = sorted(set(chosen or ()) - set(demo_job.names()))
    if unknown:
        raise typer.BadParameter(f"no model {', '.join(unknown)}; there are {', '.join(demo_job.names())}")
    settings = demo_job.Settings(quick=quick, models=chosen, rounds=rounds, device=device, freezing=freezing)
    if simulate is None:
        _finish(demo_job.run(settings), json_file)
        return
    if rounds is not None:
        raise typer.BadParameter("nothing is timed on a simulated GPU", param_hint="--rounds")
    if freezing:
        raise typer.BadParameter("not with --simulate, which tries training too", param_hint="--freezing")
    from anyxpu.demo import simulated

    try:
        report = simulated.run(settings, simulate)
    except (SimulationError, BuildError) as error:
        _refuse(error)
    _finish(report, json_file)


@app.command("get-ocloc")
def get_ocloc(
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="DIR", help="Where; anyxpu's cache otherwise.")
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Debian's suite to take it from.")] = None,
) -> None:
    """Get Intel's offline GPU compiler (ocloc) from Debian's archive, into a folder of its own.

    It compiles kernels for Intel GPUs that are not in this machine. Nothing is installed into the system.
    """
    from anyxpu import get_ocloc as getter
    from anyxpu.ocloc import VARIABLE, OclocError

    try:
        path = getter.install(Path(prefix) if prefix else None, suite, lambda t: typer.echo(t, err=True))
    except OclocError as error:
        _refuse(error)
    typer.echo(str(path))
    if prefix:
        typer.echo(f"anyxpu finds it with {VARIABLE}={path}", err=True)


@app.command("get-driver")
def get_driver(
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="DIR", help="Where; anyxpu's cache otherwise.")
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Debian's suite to take it from.")] = None,
) -> None:
    """Get Intel's GPU driver from Debian's archive, into a folder of its own, for `anyxpu simulate`.

    Nothing is installed into the system.
    """
    from anyxpu.simulate import SimulationError, driver

    try:
        path = driver.install(Path(prefix) if prefix else None, suite, lambda text: typer.echo(text, err=True))
    except SimulationError as error:
        _refuse(error)
    typer.echo(str(path))
    if prefix:
        typer.echo(f"anyxpu finds it with {driver.VARIABLE}={path}", err=True)


@app.command()
def simulate(
    device: Annotated[str, typer.Argument(help="dg2, pvc, bmg, lnl, ptl or cri.")],
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, behind `--`.")],
    count: Annotated[int, typer.Option("--count", help="How many of it the program sees.")] = 1,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Add what the driver accepted and refused to FILE.")
    ] = None,
) -> None:
    """Run a program against Intel's own GPU driver for a GPU that is not here: anyxpu simulate bmg -- python x.py

    Devices, properties, memory, streams, the compiler and launches are the driver's; kernels do not execute, so what
    they would compute is unspecified. `anyxpu get-driver` gets the driver.
    """
    from anyxpu.build import BuildError
    from anyxpu.simulate import Simulation, SimulationError
    from anyxpu.simulate.run import run

    try:
        run(Simulation(device, count, Path(log) if log else None), command)
    except (SimulationError, BuildError) as error:
        _refuse(error)


def _bench_command(name: str) -> None:
    suite = SUITES[name]

    def command(
        quick: Quick = False,
        rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Timed rounds.")] = None,
        only: Annotated[str | None, typer.Option("--only", help="Cases to run, by name, with commas between.")] = None,
        json_file: JsonFile = None,
    ) -> None:
        from anyxpu.bench import Request
        from anyxpu.ocloc import OclocError

        chosen = tuple(part.strip() for part in only.split(",") if part.strip()) if only else ()
        if unknown := sorted(set(chosen) - set(suite.case_names())):
            known = ", ".join(suite.case_names()) or "none"
            raise typer.BadParameter(f"no case {', '.join(unknown)}; there are: {known}", param_hint="--only")
        try:
            report = suite.load()(Request(quick=quick, rounds=rounds, only=chosen))
        except OclocError as error:
            _refuse(error)
        _finish(report, json_file)

    bench_app.command(name, help=suite.summary)(command)


for _name in SUITES:
    _bench_command(_name)


@bench_app.command("models")
def _bench_models(
    suite: Annotated[str, typer.Option("--suite", help="hf, timm, torchbench or llm.")] = "hf",
    mode: Annotated[str, typer.Option("--mode", help="inference or training.")] = "inference",
    dtype: Annotated[str, typer.Option("--dtype", help="f32, bf16, f16, or amp (autocast to bfloat16).")] = "f32",
    only: Annotated[str | None, typer.Option("--only", help="Models, by name, with commas between.")] = None,
    shard: Annotated[str, typer.Option("--shard", metavar="I/N", help="The i-th of n shares of the suite.")] = "1/1",
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the rows of --json's file; run what it lacks.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Upstream's batch sizes and lengths.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The first two models of the choice.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="Timed rounds; 0: by how long they take.")] = 0,
    time_limit: Annotated[float, typer.Option("--time-limit", min=1, help="Seconds a model.")] = 1800,
    memory_limit: Annotated[float, typer.Option("--memory-limit", min=1, help="GiB of memory a model.")] = 22,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Results alone: nothing is timed, nor compiled for the CPU.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", file_okay=False, help="Where a trace of one run of each compiled model goes."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Whole models, each in a process of its own: accuracy, graph breaks, compile time, memory and speed."""
    from anyxpu.bench.models import catalogue, sweep

    for value, known, option in (
        (suite, tuple(catalogue.SUITES), "--suite"),
        (mode, sweep.MODES, "--mode"),
        (dtype, sweep.DTYPES, "--dtype"),
    ):
        if value not in known:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(known)}", param_hint=option)
    number, _, parts = shard.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise typer.BadParameter(f"{shard!r} is not i/n with 1 <= i <= n", param_hint="--shard")
    chosen = tuple(part.strip() for part in only.split(",") if part.strip()) if only else ()
    try:
        catalogue.entries(suite)
    except ImportError as error:
        _refuse(error)
    if unknown := sorted(set(chosen) - set(catalogue.entries(suite))):
        known_names = ", ".join(catalogue.entries(suite))
        raise typer.BadParameter(f"no model {', '.join(unknown)}; there are: {known_names}", param_hint="--only")
    keep = Path(json_file) if json_file not in (None, "-") else None
    earlier = None
    if resume:
        if keep is None:
            raise typer.BadParameter("needs --json FILE, whose rows it keeps", param_hint="--resume")
        try:
            earlier = sweep.load(keep) if keep.exists() else None
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--resume") from None
    order = sweep.Order(
        suite, mode, dtype, chosen, (int(number), int(parts)), full, rounds, time_limit, int(memory_limit * 2**30),
        accuracy, profile,
    )  # fmt: skip
    if quick:
        order = dataclasses.replace(order, only=tuple(order.names()[:2]))
    _finish(_with_progress(order, earlier, keep), json_file)


@bench_app.command("report")
def _bench_report(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Files of `bench models --json`.")],
    folder: Annotated[Path, typer.Option("-o", "--output", file_okay=False, help="Where the page goes.")],
    baseline: Annotated[
        Path | None, typer.Option("--baseline", exists=True, dir_okay=False, help="An earlier run to compare with.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="Of the earlier speed; below it the status is 1.")
    ] = 0.9,
) -> None:
    """One page and CSV files of runs of `bench models`, merged, and what is worse than in an earlier run."""
    from anyxpu.bench.models import page

    try:
        runs = [page.read(file) for file in files]
        earlier = page.read(baseline) if baseline else None
        worse = page.write(runs, folder, earlier, threshold)
    except (ValueError, OSError) as error:
        _refuse(error)
    typer.echo(f"{folder / 'index.html'}")
    for sentence in worse:
        typer.echo(f"worse: {sentence}", err=True)
    if worse:
        raise typer.Exit(1)


def _with_progress(order: Any, earlier: Any, keep: Path | None) -> Any:
    """Run a sweep, with a bar on standard error that names the model and the time that is left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from anyxpu.bench.models import sweep

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    report = earlier
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(order.names()))
        for name, report in sweep.run(order, earlier, keep):  # noqa: B007
            done = len(order.names()) if not name else order.names().index(name)
            progress.update(task, description=name or "done", completed=done)
    return report


def _refuse(error: Exception) -> NoReturn:
    """Say why a command cannot do what it was asked, and leave with status 1."""
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1) from None


def _finish(report: Any, json_file: str | None) -> None:
    """Show a report, write it, and leave with status 1 if something in it was wrong."""
    from rich.console import Console

    report.show(Console(stderr=json_file == "-", width=None if sys.stdout.isatty() else 150))
    if json_file:
        report.write(json_file)
    if report.wrong:
        raise typer.Exit(1)


@app.command()
def doctor(json_file: JsonFile = None) -> None:
    """Say what is installed, which devices are seen, and the one command that mends each missing thing."""
    from anyxpu.doctor import main as doctor_main

    raise typer.Exit(doctor_main(["--json", json_file] if json_file else []))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ops(
    context: typer.Context,
    script: Annotated[str | None, typer.Argument(help="A Python script to run first; its arguments follow it.")] = None,
    json_file: JsonFile = None,
) -> None:
    """List xpu's operators and how each is served: structural, library, compiled or host.

    With a script, run it first and list what it used and how often.
    """
    from anyxpu.bench.operators import run

    if script and not Path(script).is_file():
        raise typer.BadParameter(f"there is no file {script}", param_hint="SCRIPT")
    _finish(run([script, *context.args] if script else []), json_file)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def warm(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script, or -m and a module; its arguments follow it.")],
) -> None:
    """Run a program once and compile ahead of time all that it compiles, for every later run.

    The host serves eager operators while it runs; their kernels are then built on all cores and kept on disk.
    """
    from anyxpu.warm import run

    if script != "-m" and not Path(script).is_file():
        raise typer.BadParameter(f"there is no file {script}", param_hint="SCRIPT")
    raise typer.Exit(run([script, *context.args]))


@app.command()
def build() -> None:
    """Build the C++ half (the shim and the drivers) where this exact one is not in the cache yet."""
    # torch is needed for its headers only; its autoload would load the very thing that is to be built.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import time

    from anyxpu import build as native

    start = time.monotonic()
    try:
        for library in (native.shim(), *map(native.driver, native.DRIVERS)):
            if library.is_built():
                continue
            typer.echo(f"building {library.name}: {len(library.sources)} files", err=True)
            native.build(library, lambda source: typer.echo(f"  {source} ({time.monotonic() - start:.0f} s)", err=True))
    except native.BuildError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"the C++ half is built ({time.monotonic() - start:.1f} s)")


@app.command()
def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove every entry.")] = False) -> None:
    """Say where compiled code is cached and how much of it there is."""
    import shutil

    from anyxpu.cache import cache_dir

    root = cache_dir()
    if clear:
        for entry in root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    typer.echo(f"{root}")
    for entry in sorted(root.iterdir()):
        files = [p for p in ([entry] if entry.is_file() else entry.rglob("*")) if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        typer.echo(f"  {entry.name:<16} {len(files):>6} files  {size / 2**20:>9.1f} MiB")


def main() -> None:
    """Entry point of the command ``anyxpu``."""
    from anyxpu.build import BuildError
    from anyxpu.errors import CacheError

    try:
        app()
    except (BuildError, CacheError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(f"error: {error.strerror}: {error.filename}")
