"""The yardstick: a model's row holds what was measured, a wrong result is one, and no model ends the sweep."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import itertools
import json
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from anyxpu.bench import fusions
from anyxpu.bench.models import catalogue, child, small_models, sweep
from anyxpu.bench.models.accuracy import right, tolerance
from anyxpu.bench.models.entry import Entry, Size, cast, scalar, tensors_of
from anyxpu.bench.served import counters, served_since
from anyxpu.cli import app
from anyxpu.shim import lib


class Small(nn.Module):
    """A layer and a loss; ``lies`` adds to its result on xpu."""

    def __init__(self, lies: float = 0.0) -> None:
        super().__init__()
        self.layer, self.lies = nn.Linear(12, 8), lies

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.nn.functional.gelu(self.layer(x))
        return {"logits": y + self.lies if x.is_xpu else y}


def entry(name: str, lies: float = 0.0) -> Entry:
    return Entry(
        name=name,
        build=lambda: Small(lies),
        inputs=lambda g, size: {"x": torch.randn(size.batch, size.length, 12, generator=g)},
        small=Size(2, 5),
        upstream=Size(4, 9),
    )


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = lib().eager()  # a model's process is its own, and waits for kernels from some time on
    made = {"honest": entry("honest"), "liar": entry("liar", lies=0.1)}
    monkeypatch.setattr(catalogue, "entries", lambda suite: made)
    monkeypatch.setattr(sweep, "entries", lambda suite: made)
    yield
    lib().set_eager(before)


def measured(tmp_path: Path, name: str, **words: Any) -> dict[str, Any]:
    order = {"suite": "hf", "name": name, "mode": "inference", "dtype": "f32", "full": False, "rounds": 3}
    row = child.Row(tmp_path / "row.json")
    torch._dynamo.reset()
    child._measure(order | words, row)
    assert json.loads(row.path.read_text()) == row.fields
    return row.fields


@pytest.mark.parametrize(("mode", "dtype"), [("inference", "f32"), ("inference", "bf16"), ("training", "amp")])
def test_a_row_holds_what_was_measured(models: None, tmp_path: Path, mode: str, dtype: str) -> None:
    row = measured(tmp_path, "honest", mode=mode, dtype=dtype)
    assert row["status"] == "pass", row
    assert row["stage"] == "done"
    assert row["eager_accurate"]
    assert row["graph_breaks"] == row["host_operators"] == 0
    assert set(row["times"]) == {child.XPU, child.XPU_EAGER, child.INDUCTOR, child.EAGER}
    assert all(side["rounds"] == 3 and side["median_ms"] > 0 for side in row["times"].values())
    assert row["speedup_over_cpu_inductor"] > 0
    assert row["cold_compile_s"] > 0
    assert row["peak_memory_bytes"] > 0


def test_a_row_counts_the_fusions_of_the_compiled_side(
    models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusions, "fired", lambda: Counter(fuse_attention=3))
    assert measured(tmp_path, "honest", accuracy=True)["fusions"] == {"fuse_attention": 3}


def test_results_alone_take_no_time(models: None, tmp_path: Path) -> None:
    row = measured(tmp_path, "honest", accuracy=True)
    assert (row["status"], row["stage"], row["eager_accurate"], row["host_operators"]) == ("pass", "done", True, 0)
    assert "times" not in row and "cold_compile_s_inductor" not in row


def test_a_profile_says_what_the_device_did(models: None, tmp_path: Path) -> None:
    row = measured(tmp_path, "honest", accuracy=True, profile=str(tmp_path / "traces" / "honest.json"))
    assert row["status"] == "pass" and len(row["profile"]) >= 1
    assert all(event["device_us"] > 0 and event["count"] >= 1 for event in row["profile"])
    events = json.loads((tmp_path / "traces" / "honest.json").read_text())["traceEvents"]
    assert {event["name"] for event in row["profile"]} <= {event.get("name") for event in events}


def test_a_wrong_result_is_one(models: None, tmp_path: Path) -> None:
    row = measured(tmp_path, "liar")
    assert row["status"] == "fail_accuracy"
    assert not row["eager_accurate"]


def test_results_are_judged_by_what_is_exact() -> None:
    exact = torch.randn(64, dtype=torch.float64)
    expected = exact.to(torch.bfloat16)
    assert right([expected.clone()], [expected], [exact], 1e-3, False)
    assert right([expected * 1.001], [expected], [exact], 1e-2, False)
    assert not right([expected + 0.5], [expected], [exact], 1e-2, False)
    assert not right([torch.full_like(expected, float("nan"))], [expected], [exact], 1e-2, False)


class NotInDouble(Small):
    """What float64 cannot be had of."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if x.dtype is torch.float64:
            raise RuntimeError("expected a narrower type")
        return super().forward(x)


def test_without_float64_float32_is_what_16_bits_are_held_against(
    models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = dataclasses.replace(entry("narrow"), build=NotInDouble)
    monkeypatch.setattr(catalogue, "entries", lambda suite: {"narrow": narrow})
    judged = []
    monkeypatch.setattr("anyxpu.bench.models.accuracy.right", lambda *words: judged.append(words[2]) or True)
    for dtype in ("bf16", "f32"):
        row = measured(tmp_path, "narrow", dtype=dtype, accuracy=True)
        assert row["status"] == "pass" and "narrower type" in row["no_reference"]
    assert judged[0][0].dtype is torch.float64 and judged[2] is None


def test_a_noisy_model_is_granted_what_upstream_grants() -> None:
    plain, noisy = entry("plain"), next(e for e in catalogue.entries("hf").values() if e.tolerance)
    assert tolerance(plain, "hf", False, "f32") == (1e-3, False)
    assert tolerance(plain, "hf", True, "amp") == (2e-2, True)
    assert tolerance(noisy, "hf", True, "f32")[0] > tolerance(plain, "hf", True, "f32")[0]


def stands_for_python(folder: Path, program: str) -> str:
    """A program that is started as Python is, and runs this instead."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\norder = json.loads(sys.argv[3])\n{program}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import os; print('last words', flush=True); os.abort()", "crashed", "last words"),
        ("import time; open(order['row'], 'w').write('{\"stage\": \"timing\"}'); time.sleep(60)", "timeout", "timing"),
        ("import time; a = bytearray(1 << 30); time.sleep(60)", "out_of_memory", "starting"),
        ("print('nothing')", "crashed", "nothing"),
    ],
)
def test_what_ends_a_process_is_a_row(
    models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: str, said: str
) -> None:
    monkeypatch.setattr(sweep.sys, "executable", stands_for_python(tmp_path, program))
    order = sweep.Order("hf", "inference", "f32", time_limit=3, memory_limit=512 << 20)
    kept = tmp_path / "kept.json"
    *_, (name, report) = sweep.run(order, None, kept)
    assert name == ""
    assert [row["status"] for row in report.rows] == [status] * 2
    assert said in report.rows[0]["error"] + report.rows[0]["log"]
    assert len(sweep.load(kept).rows) == 2


def test_a_warm_start_that_fails_is_said(models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "if order['compile_only']: sys.exit(3)\n"
        "open(order['row'], 'w').write(json.dumps({'status': 'pass', 'stage': 'done'}))"
    )
    monkeypatch.setattr(sweep.sys, "executable", stands_for_python(tmp_path, program))
    *_, (_, report) = sweep.run(sweep.Order("hf", "inference", "f32", only=("honest",)), None, None)
    (row,) = report.rows
    assert row["status"] == "pass"
    assert "exit status 3" in row["warm_error"]


def test_a_sweep_goes_on_where_it_was_left(models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = 'open(order["row"], "w").write(json.dumps({"status": "pass", "stage": "done"}))'
    monkeypatch.setattr(sweep.sys, "executable", stands_for_python(tmp_path, program))
    kept, order = tmp_path / "kept.json", sweep.Order("hf", "inference", "f32")
    names = []
    for name, _ in sweep.run(order, None, kept):
        names.append(name)
        if len(names) == 2:  # the second model is about to begin
            break
    again = [name for name, _ in sweep.run(order, sweep.load(kept), kept)]
    assert (names, again) == (["honest", "liar"], ["liar", ""])
    assert len(sweep.load(kept).rows) == 2
    other = sweep.Order("hf", "inference", "bf16", only=("honest",))
    assert [name for name, _ in sweep.run(other, sweep.load(kept), kept)] == ["honest", ""]


def test_models_whose_results_alone_are_known_are_timed_when_asked_for(
    models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        'open(order["row"], "w").write(json.dumps({"status": "pass", "stage": "done", "rounds": order["rounds"]}))'
    )
    monkeypatch.setattr(sweep.sys, "executable", stands_for_python(tmp_path, program))
    kept, right = tmp_path / "kept.json", sweep.Order("hf", "inference", "f32", accuracy=True)
    assert [name for name, _ in sweep.run(right, None, kept)] == ["honest", "liar", ""]
    report = sweep.load(kept)
    assert not [goal.name for goal in sweep.goals(report.rows) if "Inductor" in goal.name]
    assert [name for name, _ in sweep.run(right, report, kept)] == [""]
    timed = sweep.Order("hf", "inference", "f32", only=("liar",), rounds=7)
    assert [name for name, _ in sweep.run(timed, sweep.load(kept), kept)] == ["liar", ""]
    rows = {row["model"]: row for row in sweep.load(kept).rows}
    assert set(rows) == {"honest", "liar"} and rows["liar"]["rounds"] == 7 and not rows["liar"]["accuracy"]


def test_shares_hold_every_model_once() -> None:
    shares = [sweep.Order("hf", "inference", "f32", shard=(i, 3)).names() for i in (1, 2, 3)]
    assert sorted(itertools.chain(*shares)) == sorted(catalogue.entries("hf"))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_another_files_rows_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"rows": [{"kernel": "add"}]}')
    with pytest.raises(ValueError, match="is no result of `anyxpu bench models`"):
        sweep.load(file)


def test_goals_are_computed_from_the_rows() -> None:
    about = {"suite": "hf", "mode": "inference", "dtype": "f32"}
    fast = {"speedup_over_cpu_inductor": 2.0, "cold_compile_s": 3.0, "cold_compile_s_inductor": 2.0}
    rows = [
        about | fast | {"model": "a", "status": "pass", "host_operators": 0},
        about | fast | {"model": "b", "status": "pass", "host_operators": 2, "speedup_over_cpu_inductor": 0.5},
        about | {"model": "c", "status": "crashed"},
    ]
    goals = {goal.name.removeprefix("hf inference f32: "): goal for goal in sweep.goals(rows)}
    assert goals["share of models that are right"].value == pytest.approx(2 / 3)
    assert goals["host operators in compiled models"].value == 2
    assert not goals["host operators in compiled models"].met
    assert goals["geometric mean over CPU Inductor"].value == pytest.approx(1.0)
    assert goals["lowest over CPU Inductor"].value == 0.5
    assert goals["cold compile over CPU Inductor's"].value == pytest.approx(1.5)
    assert goals["warm compile over CPU Inductor's"].value is None


@pytest.mark.parametrize("suite", ["timm", "torchbench"])
def test_what_a_suite_needs_is_said(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm", "torchvision"):
        monkeypatch.setitem(sys.modules, name, None)
    catalogue.entries.cache_clear()
    done = CliRunner().invoke(app, ["bench", "models", "--suite", suite])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert f"the suite {suite} needs" in said
    assert f'pip install "anyxpu[models]" torch=={torch.__version__.partition("+")[0]}' in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "nlp"], "none of hf, timm, torchbench, llm"),
        (["--dtype", "f64"], "none of f32, bf16"),
        (["--shard", "3/2"], "is not i/n"),
        (["--only", "NoSuchModel"], "no model NoSuchModel"),
        (["--resume"], "needs --json FILE"),
    ],
)
def test_what_there_is_not_is_refused_at_once(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", "models", *words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_the_suites_have_the_models_that_were_asked_for() -> None:
    assert len(catalogue.entries("hf")) >= 40
    llm = catalogue.entries("llm")
    assert {"LlamaForCausalLM", "MixtralForCausalLM", "MambaForCausalLM", "LlamaForCausalLM-decode"} <= set(llm)


@pytest.mark.parametrize(("suite", "least"), [("timm", 55), ("torchbench", 30)])
def test_the_suites_of_packages_have_the_models_that_were_asked_for(suite: str, least: int) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("timm", "torchvision", "diffusers", "torch_geometric")):
        pytest.skip("needs requirements/models.txt")
    catalogue.entries.cache_clear()
    assert len(catalogue.entries(suite)) >= least
    with torch.device("meta"):
        for entry in catalogue.entries(suite).values():
            assert next(entry.build().parameters()).is_meta, entry.name
    assert all(entry.make_inputs(False) for entry in catalogue.entries(suite).values())


SMALL: dict[str, tuple[nn.Module, dict[str, Tensor]]] = {
    "dcgan": (small_models.Discriminator(4), {"images": torch.randn(2, 3, 64, 64)}),
    "dlrm": (
        small_models.Dlrm(2, 50),
        {"dense": torch.randn(4, 512), "bags": torch.randint(0, 50, (2, 4, 3))},
    ),
    "recommender": (small_models.Recommender(60), {"ratings": torch.randn(3, 60)}),
    "unet": (small_models.UNet((4, 6, 8)), {"images": torch.randn(1, 3, 21, 30)}),
    "actor": (small_models.Actor(32), {"states": torch.randn(5, 3)}),
    "lennard_jones": (small_models.LennardJones(), {"offsets": torch.randn(7, 3)}),
    "nanogpt": (
        small_models.NanoGpt(90, 16, 128, 1),
        {"input_ids": torch.randint(0, 90, (2, 9)), "labels": torch.randint(0, 90, (2, 9))},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_models_that_no_package_has_are_the_cpus_compiled_too(name: str) -> None:
    module, inputs = SMALL[name]
    there, given = copy.deepcopy(module).xpu(), cast(inputs, torch.float32, "xpu")
    torch._dynamo.reset()
    before = counters()
    want = tensors_of(module(**inputs))
    for found in (there(**given), torch.compile(there)(**given)):
        for a, b in zip(tensors_of(found), want, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=2e-4, atol=2e-5)
    assert not served_since(before, "host")


def test_a_token_more_is_what_the_whole_sequence_has_there() -> None:
    entry = catalogue.find("llm", "Qwen3ForCausalLM-decode")
    decoding = entry.make().eval()
    words = torch.randint(5, 32000, (1, 9))
    with torch.no_grad():
        whole = decoding.model(words, use_cache=True)
        pairs = [(layer.keys[:, :, :-1], layer.values[:, :, :-1]) for layer in whole.past_key_values.layers]
        logits, *kept = decoding(words[:, -1:], pairs)
    torch.testing.assert_close(logits[:, 0], whole.logits[:, -1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(kept[-1], whole.past_key_values.layers[-1].values[:, :, -1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["DistilBertForMaskedLM", "T5Small"])
def test_a_model_of_huggingface_has_a_loss_and_the_same_weights_each_time(name: str) -> None:
    one = catalogue.find("hf", name)
    inputs = one.inputs(torch.Generator().manual_seed(0), Size(1, 16))
    modules = [one.make().eval() for _ in range(2)]
    with torch.no_grad():
        outputs = [module(**inputs) for module in modules]
    assert outputs[0].loss.isfinite()
    for a, b in zip(tensors_of(outputs[0]), tensors_of(outputs[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_scalar_of_a_model_without_a_loss_reaches_all_it_returns() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    scalar((a, {"b": b, "index": torch.arange(3)})).backward()
    assert a.grad is not None and b.grad is not None
