"""Timing that both sides of a comparison can live with: one process, alternating, median and spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

SETTLE_SECONDS = 0.02
"""After which the other sides' threads have gone to sleep."""


@dataclass(frozen=True)
class Sample:
    """Durations of one side, in seconds, in the order they were taken."""

    seconds: tuple[float, ...]

    @cached_property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a fraction of the median."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median else 0.0

    def as_dict(self, unit: str = "ms") -> dict[str, float | int]:
        """Median, quartiles and the number of rounds, in ``unit`` ("s", "ms" or "us")."""
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        low, high = self.quartiles
        return {
            f"median_{unit}": self.median * scale,
            f"q1_{unit}": low * scale,
            f"q3_{unit}": high * scale,
            "rounds": len(self.seconds),
        }


def alternate(
    sides: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 1,
    calls: int = 1,
    synchronize: Callable[[], object] = lambda: None,
    tick: Callable[[], object] = lambda: None,
    settle: float = 0.0,
    enough: float = float("inf"),
) -> dict[str, Sample]:
    """Time every side ``rounds`` times, one after the other in each round, each round starting with another side.

    Args:
        sides: what to run, by name.
        warmup: untimed rounds before.
        calls: how many calls one timing averages over (for things of microseconds).
        synchronize: waits for the device; called before each start and before each stop of the clock.
        tick: called after each round, for progress.
        settle: seconds to sleep before each timing, followed by one untimed call: threads of the side before go on
            spinning for milliseconds after their work (GNU's OpenMP does) and would take a core from this one. A call
            that took a second is not made for that: they are no part of it.
        enough: seconds of timed calls after which three rounds are enough.

    Returns:
        seconds a call of each side.
    """
    names = list(sides)
    taken: dict[str, list[float]] = {name: [] for name in names}
    long: set[str] = set()
    for number in range(-warmup, rounds):
        if number >= 3 and sum(map(sum, taken.values())) * calls > enough:
            break
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            run = sides[name]
            if settle:
                time.sleep(settle)
                if name not in long:
                    run()
            synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            synchronize()
            elapsed = (time.perf_counter() - start) / calls
            if elapsed * calls > 1:
                long.add(name)
            if number >= 0:
                taken[name].append(elapsed)
        tick()
    return {name: Sample(tuple(values)) for name, values in taken.items()}
