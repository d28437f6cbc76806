# ruff: noqa: E501 (tables of Markdown have long lines)
"""docs/quantization.md: which of torchao's workflows run on xpu, in which stages; a cell is a test that passed.

``./run test --full tests/test_torchao.py tests/test_examples.py --quant-table docs/quantization.md`` writes it, with ``--quant-speed FILE``
from what ``anyxpu bench quant --json FILE`` measured. A test fills a cell by the fixture ``cell``.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

STAGES = (
    *("eager", "compiled", "saved and loaded", "from the CPU", "calibrated"),
    *("trained", "trained, compiled", "language model"),
)
_CELL = "quant cell"

_HEAD = """# Quantization: torchao on xpu

torchao (`pip install anyxpu[quant]`) runs as it is: its own branches for xpu call operators that anyxpu supplies.
Written by `./run test --full tests/test_torchao.py tests/test_examples.py --quant-table docs/quantization.md`; a
cell is what a test said that passed. dB: signal over noise beside the same in bfloat16 (weights and activations
normally distributed, torch {torch}, torchao {torchao}, on a CPU device). In compiled graphs no operator runs on the host.

"""

_FOOT = """
## What torchao keeps from xpu

| workflow | why | what upstream would have to change |
|---|---|---|
| GPTQ | `gptq_quantize` asserts that the device is CUDA's | that assertion, and a `torch.cuda.synchronize()` beside it |
| HQQ of int4 | asserts the packing format tile_packed_to_4d, which asks `torch.cuda` for its capability | the assertion: plain_int32 holds the same numbers. `IntxWeightOnlyConfig(…, intx_choose_qparams_algorithm="hqq_scale_only")` runs |
| QAT for int4 plain_int32 | `_infer_fake_quantize_configs` lists plain and preshuffled alone | that list; QAT for the same numbers by `IntxWeightOnlyConfig` runs |
| QAT for int8 | `_infer_fake_quantize_configs` has no such configuration on any device | `IntxFakeQuantizeConfig(torch.int8, …)` given to `QATConfig` runs |
| nvfp4 activations | asserts compute capability 10.0 | that assertion; `F.scaled_mm` of nvfp4 runs |
| float8 blockwise training | asserts compute capability 9.0, and has Triton kernels for CUDA tensors | that assertion |
| mxfp8 of experts, native | asserts CUDA's own kernels; emulated it runs | those kernels |
| int4 plain, float8 x int4 | need `mslk`, a library of CUDA kernels | |
| int8 mixed precision training, compiled | torch 2.13 does not trace its autograd function, which breaks the graph; with `module_swap=False` the products stay wide, on any device | `allow_in_graph` of that function |
| QAT of float8 rows | gradients do not reach the weights, and are NaN in a compiled graph, on the CPU too | |
"""


def add_options(parser: pytest.Parser) -> None:
    """--quant-table and --quant-speed."""
    parser.addoption("--quant-table", metavar="FILE", help="write the table of torchao's workflows to FILE")
    parser.addoption("--quant-speed", metavar="FILE", help="with speed, from what `anyxpu bench quant --json` wrote")


def register(config: pytest.Config) -> None:
    """Collect cells where a table was asked for."""
    target = config.getoption("--quant-table", default=None)
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(Path(target), config.getoption("--quant-speed")))


@pytest.fixture
def cell(record_property: object) -> Iterator[object]:
    """``cell(workflow, stage, figure)``: what this test shows, if it passes."""

    def fill(workflow: str, stage: str, figure: str) -> None:
        assert stage in STAGES, stage
        record_property(_CELL, json.dumps([workflow, stage, figure]))  # type: ignore[operator]

    yield fill


class _Collector:
    def __init__(self, target: Path, speed: str | None) -> None:
        self.target, self.speed = target, speed
        self.cells: dict[tuple[str, str], str] = {}
        self.layers: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or not report.passed:
            return
        file, _, name = report.nodeid.split("[")[0].partition("::")
        for kind, value in report.user_properties:
            if kind == _CELL:
                workflow, stage, figure = json.loads(str(value))
                self.cells[workflow, stage] = f'[{figure}](../{file} "{name}")'

    def pytest_sessionfinish(self) -> None:
        self.target.write_text(self.text())

    def text(self) -> str:
        import torch
        import torchao

        from anyxpu.bench.quant_workflows import WORKFLOWS

        rows = list(WORKFLOWS) + sorted({workflow for workflow, _ in self.cells} - set(WORKFLOWS))
        columns = [stage for stage in STAGES if any(found == stage for _, found in self.cells)]
        speed = self._speed()
        lines = ["| workflow | weight | activation | " + " | ".join(columns) + (" | speed |" if speed else " |")]
        lines.append("|" + "---|" * (len(columns) + 3 + bool(speed)))
        for name in rows:
            known = WORKFLOWS.get(name)
            held = (known.weight, known.activation) if known else ("", "")
            cells = [self.cells.get((name, stage), "") for stage in columns] + ([speed.get(name, "")] if speed else [])
            lines.append("| " + " | ".join((name, *held, *cells)) + " |")
        head = _HEAD.format(torch=torch.__version__.split("+")[0], torchao=torchao.__version__)
        return head + "\n".join(lines) + "\n" + (_SPEED.format(layers=", ".join(self.layers)) if speed else "") + _FOOT

    def _speed(self) -> dict[str, str]:
        if not self.speed:
            return {}
        ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in json.loads(Path(self.speed).read_text())["rows"]:
            if row.get("ratio") and not row["case"].startswith("generate"):
                self.layers = sorted({*self.layers, row["case"]})
                ratios[row["workflow"]][row["rows"]].append(row["ratio"]["bf16"])
        return {
            name: ", ".join(f"{statistics.geometric_mean(found):.2f} ({rows})" for rows, found in sorted(by.items()))
            for name, by in ratios.items()
        }


_SPEED = """
Speed: compiled, over bfloat16 on xpu in the same run (so many rows of activations), geometric mean over Llama-3-8B's
layers {layers} (`anyxpu bench quant`).
"""
