"""``anyxpu bench primitives``: oneDNN's primitives and compiled kernels are checked against f64 and timed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyxpu.bench import Request, primitives
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.not_simulated("compares results"),
    pytest.mark.skipif(
        not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
    ),
]
SMALL = {
    "softmax": (5, 7),
    "layer norm": (5, 768),
    "batch norm": (1, 256, 3, 3),
    "max pool": (1, 16, 6, 6),
    "average pool": (1, 16, 6, 6),
    "nearest": (1, 16, 3, 3),
    "bilinear": (1, 16, 3, 3),
}


def test_every_case_is_checked_and_timed(xpu, monkeypatch):
    import dataclasses

    cases = {}
    for name, case in primitives.CASES.items():
        (shape,) = (shape for kind, shape in SMALL.items() if name.startswith(kind))
        cases[name] = dataclasses.replace(case, shape=shape)
    monkeypatch.setattr(primitives, "CASES", cases)
    monkeypatch.setattr(primitives, "DTYPES", (torch.float32,))
    report = primitives.run(Request(rounds=1))
    assert report.wrong == [] and [row["case"] for row in report.rows] == list(cases)
    for row in report.rows:
        times = [row[side]["median_ms"] for side in (primitives.ONEDNN, primitives.COMPILED)]
        assert row["ratio"] == pytest.approx(times[0] / times[1]) and row["by"]


def test_a_wrong_side_is_said_and_not_timed(xpu, monkeypatch):
    case = primitives.Case((4, 6), lambda x: F.softmax(x, -1) * 1.01, primitives.CASES["softmax 1536 x 512"].describe)
    monkeypatch.setattr(primitives, "CASES", {"off": case})
    monkeypatch.setattr(primitives, "DTYPES", (torch.float32,))
    report = primitives.run(Request(rounds=1))
    assert len(report.wrong) == 1 and "oneDNN" in report.wrong[0] and report.rows[0]["ratio"] is None


def test_results_that_lose_a_nan_are_counted(xpu, monkeypatch):
    cases = {name: primitives.CASES[name] for name in ("softmax 1536 x 512", "layer norm 512 x 768")}
    monkeypatch.setattr(primitives, "CASES", cases)
    monkeypatch.setattr(primitives, "DTYPES", (torch.float32,))
    softmax, norm = primitives.run(Request(rounds=1)).rows
    assert softmax["not kept"][primitives.COMPILED] == norm["not kept"][primitives.COMPILED] == 0
    # One NaN in a row of 512 must make the whole row NaN; so must one infinity. oneDNN's leaves the others.
    assert softmax["not kept"][primitives.ONEDNN] == 2 * 511 and norm["not kept"][primitives.ONEDNN] == 0
