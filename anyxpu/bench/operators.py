"""``anyxpu ops``: the operators, the way each is served on xpu, and how often each ran in this process."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from anyxpu.bench.report import Column, Report


def run(script: Sequence[str]) -> Report:
    """List every ATen operator, or, after running ``script`` (a path and its arguments), those that it used.

    The JSON's rows are ``{"operator", "way", "calls": {way: count}}``; ``way`` is how a call would be served now.
    """
    import torch  # noqa: F401  (its autoload makes xpu real)

    from anyxpu import ops
    from anyxpu.ops import registry

    if script:
        ops.reset_counters()
        sys.argv = list(script)
        runpy.run_path(script[0], run_name="__main__")
    calls = ops.counters()
    ways = registry.operators()
    rows: list[dict[str, Any]] = [
        {"operator": name, "way": ways.get(name) or ops.resolve(name), "calls": calls.get(name, {})}
        for name in sorted({*ways, *calls})
        if name in calls or not script
    ]
    totals: Counter[str] = Counter(row["way"] for row in rows)
    by_way = ", ".join(f"{count} {way}" for way, count in totals.most_common())
    return Report(
        title=f"{len(rows)} operators: {by_way}", columns=_COLUMNS, rows=rows, settings={"script": list(script)}
    )


_COLUMNS = (
    Column("operator", lambda row: row["operator"], left=True),
    Column("way", lambda row: row["way"], left=True),
    Column("calls", lambda row: ", ".join(f"{count} {way}" for way, count in row["calls"].items()), left=True),
)
