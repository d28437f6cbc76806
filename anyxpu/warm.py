"""``anyxpu warm SCRIPT``: everything that a program compiles, compiled and kept on disk before it is needed.

The program is run once with ``ANYXPU_EAGER=auto``: the host serves what has no kernel yet, and each signature class
that was asked for is written to a file (:mod:`anyxpu.ops.builder`) instead of being built at its second call. When it
has ended these kernels are built, as many at a time as there are cores. What compiles in the foreground (torch.compile,
kernels of Triton, attention, sorting) is on disk already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from anyxpu.ops.builder import WARM


def run(command: Sequence[str]) -> int:
    """Run a Python program, then build the kernels that it asked for.

    Args:
        command: what follows ``python``: a script and its arguments, or ``-m`` and a module.

    Returns:
        The program's exit status; 1 where it is 0 and a kernel could not be built.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anyxpu-warm-") as folder:
        asked = Path(folder) / "asked"
        status = subprocess.run(
            [sys.executable, *command], env={**os.environ, "ANYXPU_EAGER": "auto", WARM: str(asked)}, check=False
        ).returncode
        lines = list(dict.fromkeys(asked.read_text().splitlines())) if asked.exists() else []
    failed: list[str] = []
    columns = ("building kernels", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not lines) as progress:
        task = progress.add_task("", total=len(lines))
        for line, made in built(lines):
            if not made:
                failed.append(line)
            progress.advance(task)
    console.print(f"anyxpu warm: {len(lines) - len(failed)} kernels of eager operators built", highlight=False)
    for line in failed:
        console.print(f"could not be built: {line}", style="red", highlight=False, soft_wrap=True)
    if status:
        console.print(f"the program itself left with status {status}", highlight=False)
    return status or int(bool(failed))


def built(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Build signature classes, each line the arguments of :func:`anyxpu.ops.classes.build`; line, and was it made?"""
    cores = min(len(os.sched_getaffinity(0)), len(lines))
    if not cores:
        return
    waiting: SimpleQueue[str | None] = SimpleQueue()
    done: SimpleQueue[tuple[str, bool]] = SimpleQueue()
    for line in [*lines, *[None] * cores]:
        waiting.put(line)
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(cores):
            pool.submit(_work, waiting, done)
        for _ in lines:
            yield done.get()


def _work(waiting: SimpleQueue[str | None], done: SimpleQueue[tuple[str, bool]]) -> None:
    """Hand lines to a builder of one's own, one after the other; to another one where it dies."""
    builder = None
    while (line := waiting.get()) is not None:
        made = False
        try:
            if builder is None or builder.poll() is not None:
                builder = _start()
            assert builder.stdin is not None and builder.stdout is not None
            builder.stdin.write(line + "\n")
            builder.stdin.flush()
            made = builder.stdout.readline().startswith("made ")
        except OSError:
            builder = None
        finally:
            done.put((line, made))
    if builder is not None:
        assert builder.stdin is not None
        builder.stdin.close()
        builder.wait()


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "anyxpu.ops.builder"],
        env={**os.environ, "ANYXPU_EAGER": "compile"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
