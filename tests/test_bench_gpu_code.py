"""The bench of native code lays what the driver says of a kernel beside what its binary says."""

from __future__ import annotations

import json

import pytest

from anyxpu.bench import gpu_code
from tests.gpu_support import needs_driver

SAID = {"max_work_group_size": 1024, "sub_group_size": 16, "local_mem_size": 256, "private_mem_size": 0}
ROW = {"spill_bytes": 64, "simd": 16, "shared_bytes": 256, "work_items": 512}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spill_size": 0}, "spilled bytes: 0, the binary says 64"),
        ({"sub_group_size": 32}, "sub-group size: 32, the binary says 16"),
        ({"local_mem_size": 0}, "local memory: 0"),
        ({"max_work_group_size": 256}, "work-group limit: 256, the kernel has 512"),
    ],
)
def test_a_difference_is_said(changes, words):
    said = {**SAID, "spill_size": 64}
    assert gpu_code.differences(ROW, said) == []
    (sentence,) = gpu_code.differences(ROW, {**said, **changes})
    assert words in sentence


def test_without_a_driver_its_goals_are_not_measured():
    goals = gpu_code._driver_goals([dict(ROW)])
    assert [goal.value for goal in goals] == [None, None]
    row = {**ROW, "driver": SAID, "differences": [], "driver_compile_s": 1.0, "ocloc_compile_s": 4.0}
    agreeing, ratio = gpu_code._driver_goals([row, {**row, "driver_compile_s": 4.0, "differences": ["x"]}])
    assert agreeing.value == 0.5 and ratio.value == pytest.approx(0.5)


@needs_driver
def test_the_driver_is_asked_and_timed(run_python, ocloc_program):
    source = """
    import json
    from anyxpu.bench import Request, gpu_code
    report = gpu_code.run(Request(quick=True, rounds=1, only=("gemm 128x128x32",)))
    print(json.dumps(report.as_dict()))
    """
    result = json.loads(run_python(source, timeout=600).stdout.splitlines()[-1])
    (row,) = result["rows"]
    assert result["wrong"] == [] and row["differences"] == []
    assert row["driver"]["max_work_group_size"] >= row["work_items"] and row["driver"]["sub_group_size"] == row["simd"]
    assert row["driver_compile_s"] > 0 and row["ocloc_compile_s"] > 0


@needs_driver
def test_a_damaged_binary_is_the_drivers_refusal_and_not_the_end(run_python):
    source = """
    from anyxpu.bench.gpu_driver import DriverProcess
    from anyxpu.errors import AnyxpuError
    text = "__kernel void f(__global int* p) { p[get_global_id(0)] = 1; }"
    with DriverProcess("bmg") as process:
        try:
            process.properties(b"\\x7fELF and no more", "f")
        except AnyxpuError as error:
            print("refused")
        assert process.compile_seconds(text, "") > 0
    """
    assert "refused" in run_python(source).stdout
