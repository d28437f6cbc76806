"""The command anyxpu: its help is instant, its results have one form, its wrong results are status 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from anyxpu import __version__
from anyxpu.bench import SUITES, timing
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.cli import app


def anyxpu(*arguments: str, status: int = 0, **environment: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env=environment)
    assert result.exit_code == status, result.output
    return result.output


def command(*arguments: str, status: int, **environment: str) -> str:
    """What the command says as a process of its own, entry point and all."""
    done = subprocess.run(
        [sys.executable, "-m", "anyxpu", *arguments],
        env={**os.environ, "COLUMNS": "1000", **environment},  # a long path breaks no line
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_help_imports_neither_torch_nor_rich_tables():
    source = "import sys, anyxpu.cli\nprint(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version():
    assert anyxpu("--version").strip() == f"anyxpu {__version__}"


def test_every_suite_has_a_command():
    assert all(name in anyxpu("bench", "--help") for name in SUITES)


def test_unknown_model_is_refused_by_name():
    assert "no model bert-huge" in anyxpu("demo", "--models", "bert-base,bert-huge", status=2)


def test_cache_says_where_and_clears(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "entry").write_bytes(b"x" * 2**20)
    shown = anyxpu("cache", ANYXPU_CACHE_DIR=str(tmp_path))
    assert str(tmp_path) in shown.replace("\n", "") and "1.0 MiB" in shown
    anyxpu("cache", "--clear", ANYXPU_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_ops_counts_what_a_script_used(tmp_path, xpu):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, sys\nx = torch.ones(4, device='xpu')\nfor _ in range(int(sys.argv[1])): x = x + x\n"
    )
    command = [sys.executable, "-m", "anyxpu", "ops", "--json", "-", str(script), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {row["operator"]: row for row in json.loads(done.stdout)["rows"]}
    assert sum(rows["aten::add.Tensor" if "aten::add.Tensor" in rows else "aten::add.out"]["calls"].values()) == 3


class TestReport:
    def report(self, **fields) -> Report:
        return Report("title", [Column("a", lambda row: str(row["a"]))], [{"a": 1}], **fields)

    def test_json_has_the_keys_of_the_contract(self, tmp_path):
        target = tmp_path / "result.json"
        self.report(goals=[Goal("speed", 2.0, 1.5, "higher")]).write(str(target))
        written = json.loads(target.read_text())
        assert {"machine", "versions", "rows", "goals"} <= set(written)
        assert written["goals"] == [{"name": "speed", "value": 2.0, "goal": 1.5, "better": "higher", "met": True}]
        assert written["machine"]["cores"] >= 1 and written["versions"]["anyxpu"]

    @pytest.mark.parametrize(
        ("value", "goal", "better", "met"),
        [
            (1, 1, "higher", True),
            (0.9, 1, "higher", False),
            (None, 1, "higher", False),
            (1, 1, "lower", True),
            (1.1, 1, "lower", False),
            (None, 1, "lower", False),
        ],
    )
    def test_goal(self, value, goal, better, met):
        assert Goal("g", value, goal, better).met is met


class TestTiming:
    def test_sides_alternate_and_take_turns_at_being_first(self):
        order = []
        sides = {name: (lambda name=name: order.append(name)) for name in "abc"}
        samples = timing.alternate(sides, rounds=3, warmup=0)
        assert order == list("abcbcacab")
        assert all(len(sample.seconds) == 3 for sample in samples.values())

    def test_warmup_is_not_counted_and_calls_are_averaged(self):
        calls = []
        sample = timing.alternate({"a": lambda: calls.append(1)}, rounds=2, warmup=3, calls=5)["a"]
        assert (len(calls), len(sample.seconds)) == (25, 2)

    def test_device_is_waited_for_on_both_sides_of_the_clock(self):
        events = []
        timing.alternate(
            {"a": lambda: events.append("run")}, rounds=1, warmup=0, synchronize=lambda: events.append("wait")
        )
        assert events == ["wait", "run", "wait"]

    def test_long_calls_end_after_three_rounds_and_run_no_call_that_is_not_timed(self, monkeypatch):
        now, calls = [0.0], []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)

        def side(seconds):
            def run():
                now[0] += seconds
                calls.append(seconds)

            return run

        samples = timing.alternate({"long": side(8.0), "short": side(0.1)}, rounds=9, warmup=0, settle=0.1, enough=20.0)
        assert [len(samples[name].seconds) for name in ("long", "short")] == [3, 3]
        assert calls.count(8.0) == 4 and calls.count(0.1) == 6  # before the first timing nobody knows

    def test_statistics(self):
        sample = timing.Sample((4.0, 1.0, 3.0, 2.0, 5.0))
        assert (sample.median, sample.quartiles) == (3.0, (2.0, 4.0))
        assert sample.as_dict("ms")["median_ms"] == 3000.0
        assert sample.spread == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("ops", "{}/none.py"), 2, "there is no file"),
        (("ops", "--json", "{}/none/x.json"), 2, "there is no folder"),
        (("doctor", "--json", "{}"), 2, "is a folder"),
        (("get-ocloc", "--prefix", "{}/file/x"), 1, "error: "),
        (("get-driver", "--prefix", "{}/file/x"), 1, "error: "),
    ],
    ids=["ops", "json", "json-folder", "get-ocloc", "get-driver"],
)
def test_a_path_that_does_not_do_is_one_clear_error(tmp_path, arguments, status, says):
    (tmp_path / "file").touch()
    shown = command(*(a.format(tmp_path) for a in arguments), status=status)
    assert says in " ".join(shown.split()) and "Traceback" not in shown


def test_no_compiler_is_one_clear_error(tmp_path):
    shown = command("ops", status=1, CXX="/none/g++", ANYXPU_CACHE_DIR=str(tmp_path))
    assert "No C++ compiler" in shown.splitlines()[-1] and "Traceback" not in shown
