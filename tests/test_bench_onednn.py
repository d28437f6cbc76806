"""``anyxpu bench onednn``: products and convolutions are checked against f64 and timed, frozen ones too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyxpu.bench import Request, beside_cpu, onednn

pytestmark = pytest.mark.not_simulated("compares results")


def test_cases_are_checked_and_timed(xpu, monkeypatch):
    cases = {
        "linear": onednn.Linear(20, 30, 40, "gelu"),
        "conv": onednn.Convolution(1, 8, 10, 16, 3, stride=2),
        "lstm": onednn.Recurrent("LSTM", 3, 2, 5, 8, layers=2),
    }
    monkeypatch.setattr(onednn, "CASES", cases)
    monkeypatch.setattr(onednn, "DTYPES", (torch.float32,))
    report = onednn.run(Request(rounds=1))
    assert report.wrong == [] and [row["case"] for row in report.rows] == list(cases)
    for row in report.rows:
        assert all(row[side]["median_ms"] > 0 for side in beside_cpu.SIDES)
        fused = row[beside_cpu.XPU]["median_ms"] / row[beside_cpu.XPU_COMPILED]["median_ms"]
        assert row["ratio"]["fused"] == pytest.approx(fused)


def test_operations_are_those_of_the_result():
    convolution = onednn.Convolution(3, 8, 11, 16, 3, stride=2, groups=4)
    made = convolution.module()(convolution.source(torch.Generator()))
    assert made.shape == (3, 16, 6, 6)
    assert convolution.operations() == 2 * made.numel() * (8 // 4) * 9
    recurrent = onednn.Recurrent("GRU", 3, 2, 5, 8, layers=2)
    weights = [p for p in recurrent.module().parameters() if p.dim() == 2]
    assert recurrent.operations() == 2 * 3 * 2 * sum(w.numel() for w in weights)


def test_a_wrong_side_is_said_and_not_timed(xpu, monkeypatch):
    class Off(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.01 if x.device.type == "xpu" else 1.0)

    case = onednn.Linear(4, 5, 6)
    monkeypatch.setattr(onednn, "CASES", {"small": case})
    monkeypatch.setattr(onednn, "DTYPES", (torch.float32,))
    monkeypatch.setattr(onednn.Linear, "module", lambda self: Off(self.depth, self.columns))
    report = onednn.run(Request(rounds=1))
    assert len(report.wrong) == 1 and "xpu eager" in report.wrong[0]
    assert report.rows[0]["ratio"] == {}
