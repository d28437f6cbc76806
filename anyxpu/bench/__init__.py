"""Benchmark suites, by name. A suite's module is imported only when it is run.

A suite is one function ``run(request: Request) -> anyxpu.bench.report.Report``. It checks that the sides computed
the same, times them alternating in one process (:mod:`anyxpu.bench.timing`), and lists the goals its issue named.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyxpu.bench.report import Report


@dataclass(frozen=True)
class Request:
    """What the caller wants of a suite.

    Attributes:
        quick: only a slice, in under two minutes, with the same keys in the result.
        rounds: timed rounds; None leaves it to the suite.
        only: the cases to run, by name; empty: all.
    """

    quick: bool = False
    rounds: int | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A benchmark's one-line summary and the module whose ``run`` it is; ``cases``: the module of its ``CASES``."""

    summary: str
    module: str
    cases: str = ""

    def load(self) -> Callable[[Request], Report]:
        run: Any = importlib.import_module(self.module).run
        return run

    def case_names(self) -> tuple[str, ...]:
        """The names that :attr:`Request.only` may hold."""
        return tuple(importlib.import_module(self.cases).CASES) if self.cases else ()


SUITES: dict[str, Suite] = {
    "launch": Suite("Time to launch a cached kernel and to run one eager `add`.", "anyxpu.bench.launch"),
    "eager": Suite(
        "Eager operators at three sizes and training steps, beside the CPU's.",
        "anyxpu.bench.eager",
        cases="anyxpu.bench.eager",
    ),
    "kernels": Suite(
        "Common kernels through torch.compile, beside Inductor's C++ and eager on the CPU.",
        "anyxpu.bench.kernels",
        cases="anyxpu.bench.kernel_cases",
    ),
    "attention": Suite(
        "Attention of common models, eager and compiled, beside the CPU.",
        "anyxpu.bench.attention",
        cases="anyxpu.bench.attention",
    ),
    "onednn": Suite(
        "Products, convolutions and recurrent layers of common models, eager and frozen, beside the CPU.",
        "anyxpu.bench.onednn",
        cases="anyxpu.bench.onednn",
    ),
    "primitives": Suite(
        "oneDNN's softmax, norms, pooling and resampling, which are not bound, beside compiled kernels.",
        "anyxpu.bench.primitives",
        cases="anyxpu.bench.primitives",
    ),
    "quant": Suite(
        "torchao's workflows on Llama's layers, beside bfloat16 and torchao on the CPU.",
        "anyxpu.bench.quant",
        cases="anyxpu.bench.quant",
    ),
    "gpu-code": Suite(
        "Native code for every Intel GPU target: registers, spills, instructions.",
        "anyxpu.bench.gpu_code",
        cases="anyxpu.bench.gpu_code",
    ),
    "compile": Suite(
        "Time to compile each of those kernels by stage, beside Triton's own NVIDIA backend.",
        "anyxpu.bench.compile_time",
        cases="anyxpu.bench.kernel_cases",
    ),
    "import": Suite("What anyxpu adds to the time of `import torch`.", "anyxpu.bench.import_time"),
}
