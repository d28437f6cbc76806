"""Tests whose cases rotate run one part of them a day, and every case on some of the days."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

from tests.conftest import MANY, of_other_days


def items(test: str, cases: int, parts: int | None) -> list:
    """What pytest collects of a parametrized test, as far as the rotation looks at it."""

    def marker(name: str):
        return SimpleNamespace(args=(parts,)) if name == "rotates" and parts else None

    names = [f"{test}[{case}]" for case in range(cases)]
    path = Path("tests/test_some.py")
    return [SimpleNamespace(name=n, path=path, nodeid=f"{path}::{n}", get_closest_marker=marker) for n in names]


def days(count: int) -> list[str]:
    return [(datetime.date(2026, 11, 25) + datetime.timedelta(days=n)).isoformat() for n in range(count)]


def test_a_day_has_one_part():
    long, always = items("test_long", 12, 3), items("test_always", MANY - 1, None)
    for day in days(5):
        left = of_other_days([*long, *always], day)
        assert len(left) == 8 and all(item in long for item in left)


def test_every_case_has_its_day():
    long = items("test_long", 41, 4)
    seen: set[str] = set()
    for day in days(40):
        left = {item.name for item in of_other_days(list(long), day)}
        assert len(left) in (30, 31)
        seen |= {item.name for item in long} - left
    assert len(seen) == 41
    assert of_other_days(list(long), "2026-11-25") == of_other_days(list(reversed(long)), "2026-11-25")


def test_fewer_cases_than_parts_have_some_of_the_days():
    single = items("test_single", 1, 3)
    runs = sum(not of_other_days(list(single), day) for day in days(300))
    assert 70 <= runs <= 130


def test_many_cases_run_every_other_day_unless_all_are_wanted():
    many, whole = items("test_many", 2 * MANY, None), items("test_whole", 2 * MANY, 1)
    for day in days(5):
        left = of_other_days([*many, *whole], day)
        assert len(left) == MANY and all(item in many for item in left)
