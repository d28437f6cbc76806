"""One form for every result: machine, versions, rows, goals; as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyxpu.bench.machine import machine, versions

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Goal:
    """One number the project set out to reach; ``value`` is computed from the rows, None where none was measured."""

    name: str
    value: float | None
    goal: float
    better: Literal["higher", "lower"]

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "goal": self.goal, "better": self.better, "met": self.met}


@dataclass(frozen=True)
class Column:
    """One column of the table: its heading and how it is read off a row."""

    heading: str
    text: Callable[[dict[str, Any]], str]
    left: bool = False


@dataclass
class Report:
    """What a suite hands back.

    Attributes:
        title: heading of the table.
        columns: how rows are shown; the JSON holds the rows as they are.
        rows: plain data, one dict a row.
        goals: see :class:`Goal`.
        settings: what was asked for (sizes, rounds, bounds).
        wrong: one sentence for each result that was wrong; any makes the exit status 1.
    """

    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "versions": versions(),
            "settings": self.settings,
            "rows": self.rows,
            "goals": [goal.as_dict() for goal in self.goals],
            "wrong": self.wrong,
        }

    def write(self, target: str) -> None:
        """Write the JSON to the file ``target``, or to standard output for "-"."""
        text = json.dumps(self.as_dict(), indent=1) + "\n"
        if target == "-":
            sys.stdout.write(text)
        else:
            Path(target).write_text(text)

    def show(self, console: Console) -> None:
        """Print the table, the goals, and what was wrong."""
        from rich.table import Table

        table = Table(title=self.title, title_justify="left")
        for column in self.columns:
            table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=column.left)
        for row in self.rows:
            table.add_row(*(column.text(row) for column in self.columns))
        console.print(table)
        for goal in self.goals:
            mark = "[green]met[/]" if goal.met else "[red]missed[/]"
            sign = ">=" if goal.better == "higher" else "<="
            value = "not measured" if goal.value is None else f"{goal.value:.4g}"
            console.print(f"  {mark}  {goal.name}: {value} (goal {sign} {goal.goal:g})", highlight=False)
        for sentence in self.wrong:
            console.print(f"  [red]wrong[/]  {sentence}", highlight=False)
