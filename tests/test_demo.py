"""The main job's judgement: it accepts what is right, and reports what is wrong."""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from anyxpu import demo
from anyxpu.bench import fusions, served
from anyxpu.demo import compare, rows, simulated
from tests.gpu_support import needs_driver


def needs(package: str) -> None:
    """Skip where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


class TestRelativeError:
    def test_is_the_norm_of_the_difference_over_the_norm(self):
        reference = torch.randn(100, dtype=torch.float64)
        found = reference + 0.01 * torch.randn(100, dtype=torch.float64)
        expected = float((found - reference).norm() / reference.norm())
        assert compare.relative_error([found], [reference]) == pytest.approx(expected)
        halves = compare.relative_error(found.split(30), reference.split(30))
        assert halves == pytest.approx(expected)

    def test_not_finite_is_never_accepted(self):
        for bad in (math.nan, math.inf):
            assert compare.relative_error([torch.tensor([1.0, bad])], [torch.ones(2)]) == math.inf

    def test_zero_reference(self):
        assert compare.relative_error([torch.zeros(2)], [torch.zeros(2)]) == 0
        assert compare.relative_error([torch.ones(2)], [torch.zeros(2)]) == math.inf

    def test_different_shapes_or_numbers_of_tensors_are_refused(self):
        with pytest.raises(ValueError, match="shape"):
            compare.relative_error([torch.ones(2)], [torch.ones(1)])
        with pytest.raises(ValueError):
            compare.relative_error([torch.ones(2)], [])


def row(**changes):
    good = {"model": "m", "mode": "inference", "dtype": "float32", "error": 1e-6, "bound": 1e-4}
    return {**good, "host_operators": 0, "host_operator_names": {}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error": 2e-4}, "above"),
        ({"error": math.inf}, "above"),
        ({"error": math.nan}, "above"),
        ({"host_operators": 2, "host_operator_names": {"aten::erf": 2}}, "aten::erf x2"),
        ({"failed": "RuntimeError: no\nmore"}, "RuntimeError: no"),
    ],
)
def test_a_wrong_row_is_named(changes, words):
    (sentence,) = demo._wrong(row(**changes))
    assert "m inference float32" in sentence and words in sentence


def test_a_right_row_is_not():
    assert demo._wrong(row()) == []


def test_a_failed_row_misses_the_goals():
    met = {goal.name: goal.met for goal in demo._goals([row(), {**row(), "failed": "x"}])}
    assert met["rows that ran"] is False
    assert met["largest relative error, float32"] is True


def test_speeds_are_goals_and_nothing_that_a_row_is_wrong_for():
    both = [row(speedup_over_cpu_inductor=speed) for speed in (4.0, 0.5)]
    assert [sentence for slow in both for sentence in demo._wrong(slow)] == []
    found = {goal.name: (goal.value, goal.met) for goal in demo._goals(both)}
    assert found["lowest speed over CPU Inductor"] == (0.5, False)
    assert found["speed over CPU Inductor, geometric mean"] == (pytest.approx(math.sqrt(2)), True)


def test_host_operators_are_the_difference_of_two_snapshots(xpu):
    before = served.counters()
    torch.ones(4, 4, device="xpu").geqrf()
    first = served.served_since(before, "host")
    assert sum(first.values()) == 1
    assert served.served_since(served.counters(), "host") == {}


def test_fusions_are_counted_for_xpu_over_all_calls_that_compile(xpu):
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(24, 40), torch.nn.Linear(40, 8)

        def forward(self, x):
            # A function that oneDNN takes along on any machine, and one that it never may (it would lose a NaN).
            return torch.nn.functional.relu6(self.second(torch.sigmoid(self.first(x))))

    recorder = rows.Recorder(SimpleNamespace(synchronize=torch.xpu.synchronize))
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        for count, device in enumerate(("cpu", "xpu", "xpu")):
            torch._dynamo.reset()
            with recorder.compiling(rows.XPU if device == "xpu" else rows.INDUCTOR):
                torch.compile(Step().to(device))(torch.randn(3, 24, device=device))
            assert recorder.fields.get("fusions", {}) == ({"mkldnn_unary_fusion": count} if count else {})


def test_fusions_are_those_of_inductors_passes_and_neither_packing_nor_all_patterns(monkeypatch):
    from torch._dynamo.utils import counters

    monkeypatch.setitem(counters, "inductor", Counter())
    before = fusions.fired()
    counters["inductor"].update(
        pattern_matcher_count=9,
        pattern_matcher_nodes=30,
        fuse_attention=2,
        qconv_unary_matcher_count=3,
        qconv_unary_matcher_nodes=7,
        mkldnn_conv_weight_pack_matcher_count=4,
        mkldnn_rnn_fusion_matcher_count=0,
        fxgraph_cache_hit=1,
    )
    assert fusions.fired_since(before) == {"fuse_attention": 2, "qconv_unary": 3}
    assert fusions.fired_since(fusions.fired()) == {}


def test_weights_are_the_same_each_time():
    needs("transformers")
    from anyxpu.demo.models import MODELS

    first, second = (dict(MODELS["resnet18"].make().state_dict()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    a, b = (MODELS["resnet18"].make_batch() for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_frozen_rows_are_of_inference_alone(xpu):
    needs("transformers")
    from anyxpu import demo

    frozen, all_ = (demo.plans(demo.Settings(freezing=freezing)) for freezing in (True, False))
    assert frozen == [plan for plan in all_ if plan.mode == "inference"] != all_
    with pytest.raises(SystemExit, match="resnet18 only trains"):
        demo.run(demo.Settings(models=["resnet18"], freezing=True))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.not_simulated("it compares and times; test_a_simulated_row_end_to_end is its like")
def test_a_training_row_end_to_end(tmp_path, run_python):
    """The smallest real row, whole: compiled, compared, counted and timed."""
    needs("transformers")
    source = """
    import json
    from anyxpu import demo
    report = demo.run(demo.Settings(models=["resnet18"], rounds=1))
    print(json.dumps(report.as_dict()))
    """
    result = json.loads(run_python(source, timeout=900).stdout.splitlines()[-1])
    assert result["wrong"] == []
    (only,) = result["rows"]
    assert only["triton_kernels"] > 10
    assert only["host_operators"] == 0
    assert set(only["times"]) == {"xpu compiled", "cpu inductor", "cpu eager"}


def simulated_row(**changes):
    good = {"model": "m", "mode": "training", "dtype": "float16", "compared": 3, "differences": [], "refused": {}}
    return {**good, "kernels": 9, "launches": 40, "host_operators": 0, "host_operator_names": {}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refused": {"build": 2, "launch": 1}}, "refused 2 x build, 1 x launch"),
        ({"host_operators": 1, "host_operator_names": {"aten::erf": 1}}, "aten::erf x1"),
        ({"differences": ["result 0 on xpu:0 is (1,), not (2,)"]}, "result 0"),
        ({"failed": "KernelError: no (status 1)"}, "KernelError: no"),
        ({"launches": 0}, "nothing to launch"),
    ],
)
def test_a_wrong_simulated_row_is_named(changes, words):
    (sentence,) = simulated.wrong(simulated_row(**changes))
    assert "m training float16" in sentence and words in sentence
    assert simulated.wrong(simulated_row()) == []


def test_what_the_driver_refused_misses_the_goal():
    def met(*rows):
        return {goal.name: goal.met for goal in simulated.goals(list(rows))}

    good, refused, failed = simulated_row(), simulated_row(refused={"build": 1}), {**simulated_row(), "failed": "x"}
    assert all(met(good).values())
    assert not met(good, refused)["part of the kernels that the driver accepted"]
    assert not met(good, failed)["rows that ran"]


def test_results_of_another_shape_dtype_device_or_number_differ(xpu):
    made = [torch.empty(2, 3, device=xpu), torch.empty(4, dtype=torch.float16, device=xpu)]
    expected = [torch.empty(2, 3, device="meta"), torch.empty(4, dtype=torch.float16, device="meta")]
    assert list(simulated.differences(made, expected)) == []
    (shape,) = simulated.differences(made, [expected[0], expected[1][:3]])
    assert "result 1" in shape and "(3,)" in shape
    assert len(list(simulated.differences(made, [e.double() for e in expected]))) == 2
    assert len(list(simulated.differences([m.cpu() for m in made], expected))) == 2
    assert "1 tensors" in next(iter(simulated.differences(made[:1], expected)))


@needs_driver
@pytest.mark.slow
@pytest.mark.full
def test_a_simulated_row_end_to_end(run_python, tmp_path):
    needs("transformers")
    source = """
    import json
    from anyxpu.demo import Settings, simulated
    print(json.dumps(simulated.run(Settings(models=["resnet18"]), "bmg").as_dict()))
    """
    result = json.loads(run_python(source, timeout=1800).stdout.splitlines()[-1])
    assert result["wrong"] == [] and all(goal["met"] for goal in result["goals"])
    assert [row["dtype"] for row in result["rows"]] == list(simulated.DTYPES)
    assert all("times" not in row and row["triton_kernels"] > 10 and row["launches"] for row in result["rows"])
    # A driver that refuses is told of, and the row does not pass.
    result = json.loads(run_python(source, timeout=1800, ANYXPU_SIMULATE_FAULTS="build:5").stdout.splitlines()[-1])
    assert len(result["wrong"]) == 3 and all(row["refused"] or "failed" in row for row in result["rows"])
