"""What the demo says while it works: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Narrator:
    """Shows the row in work and its stage; use as a context manager around all rows."""

    def __init__(self, console: Console, rows: int) -> None:
        self.console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=rows)
        self._row = ""
        self._start = time.monotonic()

    def __enter__(self) -> Narrator:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """One row of the table."""
        self._row = name
        begin = time.monotonic()
        try:
            yield
        finally:
            self._progress.advance(self._task)
            self.console.print(f"[dim]{self._elapsed()}[/] {name}: {time.monotonic() - begin:.1f} s", highlight=False)

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """A part of the row's work that may take long."""
        self._progress.update(self._task, description=f"[bold]{self._row}[/] {what}")
        if not self.console.is_terminal:
            self.console.print(f"{self._elapsed()}   {self._row}: {what}", highlight=False, soft_wrap=True)
        yield

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes:2d}:{seconds:02d}"
