"""The benchmarks of kernels measure what they say: every case is right on xpu, and wrong results are found."""

from __future__ import annotations

import pytest
import torch

from anyxpu.bench import Request, compile_time, gpu_code, kernels
from anyxpu.bench.kernel_cases import CASES, least_traffic, many

SMALL = (16, 64)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("name", CASES)
def test_each_case_compiles_for_xpu_and_is_right(name):
    torch.manual_seed(1)
    case = CASES[name]
    arguments = case.arguments(*SMALL)
    torch._dynamo.reset()
    side = kernels._compiled(case, [kernels._moved(a, "xpu") for a in arguments])
    assert kernels._wrong(case, arguments, side, name) == []


def test_a_wrong_result_is_found():
    case = CASES["softmax"]
    x = case.arguments(*SMALL)
    broken = kernels._side(lambda t: torch.softmax(t, 0), kernels._into(case.function), x)
    found = kernels._wrong(case, x, broken, "softmax")
    assert len(found) == 1 and "new" in found[0]


def test_a_dropout_that_drops_too_little_is_found():
    case = CASES["dropout"]
    x = case.arguments(64, 256)
    broken = kernels._side(lambda t: torch.nn.functional.dropout(t, 0.1), kernels._into(case.function), x)
    assert kernels._wrong(case, x, broken, "dropout")


def test_least_traffic_counts_each_byte_once():
    case = CASES["add broadcast"]
    arguments = case.arguments(*SMALL)
    results = many(case.function(*arguments))
    assert least_traffic(arguments, results) == 4 * (2 * 16 * 64 + 64)


def test_native_code_of_a_case_is_counted(ocloc_program):
    report = gpu_code.run(Request(quick=True, only=("softmax", "flash attention")))
    assert report.wrong == []
    softmax, attention = report.rows
    assert softmax["simd"] == attention["simd"] == 16
    assert 0 < softmax["send"] < softmax["instructions"]
    assert attention["dots"] and attention["barriers"] and attention["shared_bytes"]


@pytest.mark.rotates(6)
def test_a_compile_is_timed_by_stage_on_both_sides_and_a_second_process_compiles_nothing():
    report = compile_time.run(Request(rounds=1, only=("softmax",)))
    assert report.wrong == []
    kernel, summary = report.rows
    for side, last in ((compile_time.XPU, "zebin"), (compile_time.CUDA, "cubin")):
        assert {"source", "ttir", "ttgir", last} <= kernel[side].keys()
        stages = sum(t for name, t in kernel[side].items() if name not in ("total", "parse", "render"))
        assert 0 < kernel[side][last] < stages <= kernel[side]["total"]
        assert summary[side] == kernel[side]
    ours = kernel[compile_time.XPU]
    assert ours["parse"] + ours["render"] == pytest.approx(ours["text"]) and min(ours.values()) > 0
    assert (report.settings["compiled cold"], report.settings["compiled warm"]) == (1, 0)
    assert report.goals[0].value == ours["total"] / kernel[compile_time.CUDA]["total"]


def test_a_kernel_that_one_side_does_not_compile_is_named_with_the_reason(monkeypatch):
    from triton.backends.nvidia.compiler import CUDABackend

    def refuse(*args, **kwargs):
        raise RuntimeError("no such layout")

    monkeypatch.setattr(CUDABackend, "make_llir", refuse)
    monkeypatch.setattr(compile_time, "_two_processes", lambda names, wrong: (0, 0))
    report = compile_time.run(Request(rounds=1, only=("relu",)))
    assert report.rows == [] and report.wrong  # Inductor offers a GPU's autotuner more than one
    for reason in report.wrong:
        assert reason.startswith("relu, triton_poi_fused_relu") and "no such layout" in reason
    assert [goal.value for goal in report.goals] == [None] * 4
