"""The examples run; a language model that one of them trains loses little by each of torchao's workflows."""

from __future__ import annotations

import copy
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from anyxpu.bench.quant_workflows import WORKFLOWS
from anyxpu.shim import lib
from tests.quant_table import cell  # noqa: F401 (a fixture)

pytest.importorskip("torchao", reason="torchao is not installed (requirements/quant.txt)")
pytestmark = [
    pytest.mark.skipif(
        not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
    ),
    pytest.mark.not_simulated("a model learns nothing from values that are not there"),
    pytest.mark.full,
]

EXAMPLES = Path(__file__).parents[1] / "examples"
Cell = Callable[[str, str, str], None]


def example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_model_is_trained_quantized_and_writes() -> None:
    said = example("quantize_and_generate", "--steps", "150", "--workflow", "int4", "--workflow", "float8 rowwise")
    losses = re.findall(r"^(int4|float8 rowwise): ([\d.]+) -> ([\d.]+)\n  ['\"].{60,}", said, re.MULTILINE)
    assert [name for name, _, _ in losses] == ["int4", "float8 rowwise"], said
    for _, before, after in losses:
        assert float(before) < 2.7  # of a text with about 90 characters, 4.5 at first
        assert float(after) == pytest.approx(float(before), abs=0.05)


def test_float8_training_follows_bfloat16s_curve(cell: Cell) -> None:  # noqa: F811
    said = example("float8_training", "--steps", "100", "--recipe", "rowwise")
    rows = [(float(a), float(b)) for a, b in re.findall(r"bfloat16 ([\d.]+), float8 ([\d.]+)", said)]
    assert len(rows) == 10 and rows[-1][1] < 2.8 < rows[0][1]
    assert all(b == pytest.approx(a, rel=0.01) for a, b in rows)
    off = max(abs(b / a - 1) for a, b in rows)
    cell("float8 training, rowwise", "language model", f"loss ±{off:.1%}")


@pytest.fixture(scope="module")
def trained() -> tuple[ModuleType, torch.nn.Module, torch.Tensor, float]:
    """The example's module, a model of it that has learned from the README, the text, and the loss on new text."""
    spec = importlib.util.spec_from_file_location("language_model", EXAMPLES / "language_model.py")
    assert spec is not None and spec.loader is not None
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    text, alphabet = examples.read([EXAMPLES.parent / "README.md"])
    torch.manual_seed(0)
    model = examples.LanguageModel(len(alphabet)).bfloat16().to("xpu")
    examples.train(model, text, 300, "xpu")
    return examples, model, text, examples.evaluate(model, text, "xpu")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_language_model_loses_little(name: str, trained: Any, cell: Cell) -> None:  # noqa: F811
    from torchao.quantization import quantize_

    examples, model, text, before = trained
    made = copy.deepcopy(model)
    quantize_(made.layers, WORKFLOWS[name].config())
    after = examples.evaluate(made, text, "xpu")
    assert abs(after - before) < (0.1 if WORKFLOWS[name].least < 12 else 0.03)
    cell(name, "language model", f"{before:.3f} → {after:.3f}")


def test_awq_loses_less_than_rounding(trained: Any) -> None:
    """Of the logits, not of the loss, which a small model's rounding may as well improve."""
    from torchao.prototype.awq import AWQConfig
    from torchao.quantization import quantize_

    examples, model, text, _ = trained
    rounded, calibrated = copy.deepcopy(model), copy.deepcopy(model)
    quantize_(rounded.layers, WORKFLOWS["int4"].config())
    quantize_(calibrated.layers, AWQConfig(WORKFLOWS["int4"].config(), step="prepare"))
    examples.evaluate(calibrated, text[: len(text) * 9 // 10], "xpu", count=4)
    quantize_(calibrated.layers, AWQConfig(WORKFLOWS["int4"].config(), step="convert"))
    batch = examples.batches(text[len(text) * 9 // 10 :], 1, seed=2)[0][:, :-1].to("xpu")
    with torch.no_grad():
        want = model(batch).float()
        noises = [float((made(batch).float() - want).norm() / want.norm()) for made in (rounded, calibrated)]
    assert noises[1] < noises[0], noises
