"""``anyxpu bench attention``: both sides are checked before they are timed, and a wrong one is said."""

from __future__ import annotations

import pytest
import torch

from anyxpu.bench import Request, attention, beside_cpu

pytestmark = pytest.mark.not_simulated("compares results")


@pytest.mark.rotates(3)
def test_a_case_is_checked_and_timed(xpu, monkeypatch):
    monkeypatch.setitem(attention.CASES, "small", attention.Case(1, 4, 2, 40, 70, 16))
    report = attention.run(Request(quick=True, rounds=1, only=("small",)))
    assert report.wrong == [] and len(report.rows) == 4  # two dtypes, forward and training
    for row in report.rows:
        assert all(row[side]["median_ms"] > 0 and row[side]["flop_per_second"] > 0 for side in beside_cpu.SIDES)
        ratio = row[beside_cpu.CPU]["median_ms"] / row[beside_cpu.XPU]["median_ms"]
        assert row["ratio"]["eager"] == pytest.approx(ratio)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("form", ["plain", "alibi", "window"])
def test_flex_attention_is_checked_against_its_mask(xpu, monkeypatch, form):
    monkeypatch.setitem(attention.CASES, "small", attention.Case(1, 4, 2, 160, 160, 16, trained=False, flex=form))
    monkeypatch.setattr(attention, "DTYPES", (torch.float32,))
    report = attention.run(Request(quick=True, rounds=1, only=("small",)))
    assert report.wrong == [] and len(report.rows) == 1 and set(report.rows[0]["ratio"]) == {"eager", "compiled"}
    seen = 160 * 160 if form != "window" else sum(min(q + 1, 128) for q in range(160))
    assert attention.CASES["small"].operations() == pytest.approx(4.0 * 4 * seen * 16)


def test_a_cpu_that_has_no_flex_attention_is_said(xpu, monkeypatch):
    ours = attention._flexible
    monkeypatch.setattr(attention, "_flexible", lambda case, t: ours(case, t) if t[0].is_xpu else None)
    monkeypatch.setitem(attention.CASES, "small", attention.Case(1, 2, 2, 40, 40, 16, trained=False, flex="plain"))
    monkeypatch.setattr(attention, "DTYPES", (torch.float32,))
    (row,) = attention.run(Request(quick=True, rounds=1, only=("small",))).rows
    assert row["cpu_by_mask"] and attention._COLUMNS[0].text(row) == "small (CPU by a mask)"


def test_a_wrong_side_is_said_and_not_timed(xpu, monkeypatch):
    monkeypatch.setitem(attention.CASES, "small", attention.Case(1, 2, 2, 40, 40, 16, trained=False))
    right = attention.scaled_dot_product_attention

    def wrong(query, *rest, **options):
        made = right(query, *rest, **options)
        return made * 1.01 if query.device.type == "xpu" else made

    monkeypatch.setattr(attention, "scaled_dot_product_attention", wrong)
    monkeypatch.setattr(attention, "DTYPES", (torch.float32,))
    report = attention.run(Request(quick=True, rounds=1, only=("small",)))
    assert len(report.wrong) == 1 and "xpu eager" in report.wrong[0]
    assert report.rows[0]["ratio"] == {}
