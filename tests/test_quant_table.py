"""docs/quantization.md holds what passing tests said, and links tests that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from anyxpu.bench.quant_workflows import WORKFLOWS
from tests import quant_table

DOCS = Path(__file__).parents[1] / "docs"
TABLE = (DOCS / "quantization.md").read_text()


def report(outcome: str, *cell: str, when: str = "call") -> pytest.TestReport:
    properties = [("quant cell", json.dumps(cell))]
    node = "tests/test_torchao.py::test_what[int4]"
    return pytest.TestReport(node, ("", 0, ""), {}, outcome, None, when, user_properties=properties)  # type: ignore[arg-type]


def test_only_a_test_that_passed_fills_a_cell(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    speed = tmp_path / "speed.json"
    rows = [
        {"case": case, "workflow": "int4", "rows": 1, "ratio": {"bf16": r}} for case, r in (("o", 2.0), ("up", 8.0))
    ]
    speed.write_text(json.dumps({"rows": rows}))
    collector = quant_table._Collector(tmp_path / "table.md", str(speed))
    collector.pytest_runtest_logreport(report("passed", "int4", "eager", "19.7 dB"))
    collector.pytest_runtest_logreport(report("failed", "int8", "eager", "0.1 dB"))
    collector.pytest_runtest_logreport(report("passed", "int8", "eager", "0.2 dB", when="teardown"))
    collector.pytest_sessionfinish()
    text = (tmp_path / "table.md").read_text()
    assert '[19.7 dB](../tests/test_torchao.py "test_what") | 4.00 (1) |' in text
    assert "0.1 dB" not in text and "0.2 dB" not in text
    assert "layers o, up" in text


def test_every_workflow_has_a_row_and_every_cell_a_test() -> None:
    for name in WORKFLOWS:
        assert re.search(rf"^\| {re.escape(name)} \| .*\[.* dB\]", TABLE, re.MULTILINE), name
    linked = set(re.findall(r'\]\(\.\./(tests/\w+\.py) "(\w+)"\)', TABLE))
    assert len(linked) > 8
    for file, test in linked:
        assert f"def {test}(" in (DOCS.parent / file).read_text(), test
