"""Choosing among configurations of a kernel on a simulated GPU, where kernels do not execute and times mean nothing.

Every configuration is compiled, loaded and launched once, so that one which the driver does not take is out as it would
be on a GPU; the time that a tuner asks for is then a cost of what is known without running: fewest spills first, then
most hardware threads up to what the device holds at once, then the order in which they were listed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anyxpu import simulate

# The costs of the launches since a measurement began; None while there is none.
_costs: list[float] | None = None


@dataclass(frozen=True)
class Record:
    """What is known of a kernel.

    Attributes:
        spills: bytes a hardware thread.
        registers: of a hardware thread; 0 where not known.
        warps: hardware threads of a work-group.
    """

    spills: int
    registers: int
    warps: int

    def cost(self, groups: int) -> float:
        """Of a launch of so many work-groups, in no unit: a spilled byte outweighs any number of threads."""
        return (self.spills or 0) + 1 / min(max(groups * self.warps, 1), _most_threads(self.registers))


def watched(launch: Callable[..., None], record: Record) -> Callable[..., None]:
    """``launch``, which takes the grid first, made to tell a measurement that it is called."""

    def call(x: int, y: int, z: int, *arguments: Any) -> None:
        launch(x, y, z, *arguments)
        if _costs is not None:
            _costs.append(record.cost(x * y * z))

    return call


def measure(call: Callable[[], object]) -> float:
    """What stands for the time of ``call``, in milliseconds to those who ask: it is called once.

    A call that launches no kernel of Triton's is a library's, and taken for one that spills nothing and fills the
    device: of equals, tuners take the first listed, and they list libraries first.

    Raises:
        whatever ``call`` raises, or the driver says of it.
    """
    global _costs
    import torch

    _say_once()
    before, _costs = _costs, []
    try:
        call()
        torch.xpu.synchronize()
        return sum(_costs) or 1 / _most_threads()
    finally:
        _costs = before


def do_bench(
    fn: Callable[[], object], *_: Any, quantiles: Sequence[float] | None = None, **__: Any
) -> float | list[float]:
    """In the place of ``triton.testing.do_bench``, where Triton's own tuner calls it."""
    cost = measure(fn)
    return [cost] * len(quantiles) if quantiles else cost


@functools.cache
def _most_threads(registers: int = 0) -> int:
    """Hardware threads that the current device holds at once; with more than 128 registers each, half as many."""
    import torch

    capability = torch.xpu.get_device_capability()
    threads = int(capability["gpu_eu_count"]) * int(capability.get("gpu_hw_threads_per_eu") or 8)
    return max(threads // 2 if registers > 128 else threads, 1)


@functools.cache
def _say_once() -> None:
    warnings.warn(
        f"anyxpu: kernels are not timed on a simulated {simulate.active()}: autotuning takes the configuration with "
        "the fewest spills, then the most hardware threads, then the first listed",
        stacklevel=3,
    )
