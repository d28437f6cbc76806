"""`./run test --simulate`: a slice of the suite holds on two simulated GPUs, and what goes wrong there is named."""

from __future__ import annotations

import os

import pytest

from tests import simulate_suite
from tests.gpu_support import needs_driver

pytestmark = needs_driver

# Memory and copies, streams and events, launches, eager kernels, and Triton's.
SLICE = ("test_structural.py", "test_streams.py", "test_launch.py", "test_sort.py", "test_triton_work.py")

BROKEN = """
import os, signal
import pytest, torch

def test_values():
    assert torch.ones(3, device="xpu").add(1).tolist() == [7, 7]

def test_shapes():
    assert torch.ones(3, device="xpu").shape == (4,)

def test_death():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after_death():
    assert "bmg" in os.environ["ANYXPU_SIMULATE"]

@pytest.mark.not_simulated("a reason")
def test_refused():
    assert False
"""


@pytest.mark.rotates(5)
@pytest.mark.slow
@pytest.mark.parametrize("device", ["bmg", "pvc"])
def test_a_slice_of_the_suite_holds_on_a_simulated_gpu(device, tmp_path):
    row = simulate_suite.run_device(device, [f"tests/{name}" for name in SLICE], (), tmp_path)
    assert (row.failed, row.aborted) == ({}, {})
    assert row.counts["passed"] > 200 and row.counts["values off"] > 200
    assert row.counts["build"] > 50 and row.counts["launch"] > 200 and row.counts["launch_refused"] == 0


@pytest.mark.rotates(2)
def test_what_fails_dies_and_is_refused_is_named_and_the_others_run(tmp_path, capsys):
    file = simulate_suite.ROOT / "tests" / f"broken_{os.getpid()}.py"  # where the suite's conftest.py is in force
    file.write_text(BROKEN)
    try:
        row = simulate_suite.run_device("bmg", [f"tests/{file.name}"], (), tmp_path)
    finally:
        file.unlink()
    names = {
        name: {test.split("::")[1]: why for test, why in getattr(row, name).items()} for name in simulate_suite.NAMED
    }
    assert names["failed"].keys() == {"test_shapes"}
    assert names["aborted"] == {"test_death": "SIGSEGV"}
    assert names["refused"] == {"test_refused": "not simulated: a reason"}
    assert {name: row.counts[name] for name in simulate_suite.COLUMNS} == {
        **dict.fromkeys(("refused", "failed", "aborted"), 1),
        "passed": 2,
        "values off": 1,
    }
    assert not row.good
    simulate_suite.report([row])
    printed = capsys.readouterr().out
    assert "test_death: SIGSEGV" in printed and "test_refused: not simulated: a reason" in printed


def test_a_device_that_cannot_be_simulated_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        simulate_suite.main(["--simulate", "bmg,rtx"])
    assert caught.value.code == 2 and "no device rtx" in capsys.readouterr().err
