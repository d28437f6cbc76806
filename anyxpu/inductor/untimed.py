"""Inductor's tuners on a simulated GPU: what they would time is measured without running (anyxpu.triton.untimed)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from anyxpu.triton.untimed import measure


def benchmarkers(module: ModuleType) -> None:
    """Replace how the classes of ``torch._inductor.runtime.benchmarking`` time a GPU's work."""

    def benchmark_gpu(
        self: object, _callable: Callable[[], object], *_: Any, return_mode: str = "min", **__: Any
    ) -> float | list[float]:
        cost = measure(_callable)
        return [cost] if return_mode == "all" else cost

    for name in ("TritonBenchmarker", "InductorBenchmarker", "TorchProfilerBenchmarker"):
        if found := getattr(module, name, None):
            found.benchmark_gpu = benchmark_gpu


def profiled_benchmark(module: ModuleType) -> None:
    """Replace the function of ``torch._inductor.utils`` that times by a profiler."""

    def do_bench_using_profiling(fn: Callable[[], object], *_: Any, **__: Any) -> float:
        return measure(fn)

    module.__dict__["do_bench_using_profiling"] = do_bench_using_profiling
