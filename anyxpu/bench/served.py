"""Which operators were served in which way, between two moments."""

from __future__ import annotations

from typing import Any


def served_since(before: dict[str, dict[str, int]], way: str) -> dict[str, int]:
    """Calls of each operator served in ``way`` since ``before`` was taken with :func:`counters`."""
    since = {operator: ways.get(way, 0) - before.get(operator, {}).get(way, 0) for operator, ways in counters().items()}
    return {operator: count for operator, count in since.items() if count}


def counters() -> dict[str, dict[str, int]]:
    """A snapshot of :func:`anyxpu.ops.counters`."""
    from anyxpu import ops

    snapshot: Any = ops.counters()
    return {operator: dict(ways) for operator, ways in snapshot.items()}
