"""Tests whose cases rotate run one part of them a day, and every case within few days."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

from tests.conftest import of_other_days


def items(test: str, cases: int, parts: int | None) -> list:
    """What pytest collects of a parametrized test, as far as the rotation looks at it."""

    def marker(name: str):
        return SimpleNamespace(args=(parts,)) if name == "rotates" and parts else None

    names = [f"{test}[{case}]" for case in range(cases)]
    path = Path("tests/test_some.py")
    return [SimpleNamespace(name=n, path=path, nodeid=f"{path}::{n}", get_closest_marker=marker) for n in names]


def test_a_day_has_one_part_and_at_least_one_case():
    long, single, always = items("test_long", 10, 3), items("test_single", 1, 3), items("test_always", 4, None)
    left = of_other_days([*long, *single, *always], "2026-11-25")
    assert len(left) == 6 and all(item in long for item in left)


def test_every_case_has_its_day():
    long = items("test_long", 40, 4)
    day, seen = datetime.date(2026, 11, 25), set()
    for _ in range(40):
        left = {item.name for item in of_other_days(list(long), day.isoformat())}
        seen |= {item.name for item in long} - left
        day += datetime.timedelta(days=1)
    assert len(seen) == 40
    assert of_other_days(list(long), "2026-11-25") == of_other_days(list(reversed(long)), "2026-11-25")
