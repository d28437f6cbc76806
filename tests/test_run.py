"""The script `run`: it sets up once, and the second call starts nothing but the tool."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.not_simulated("it is about the script")

# Stands for Python: answers run's questions, copies itself where a venv is asked for, and logs everything else.
FAKE_PYTHON = """#!/bin/bash
case "$*" in
  "-m venv "*) dir=${@: -1}; mkdir -p "$dir/bin"; cp "$0" "$dir/bin/python" ;;
  "-c "* | "--version") ;;
  *) echo "$*" >>"$LOG"; if [[ -n ${FAIL:-} && "$*" == *"$FAIL"* ]]; then exit 3; fi ;;
esac
"""


@pytest.fixture(autouse=True)
def no_choice_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`TORCH=2.15.0 ./run test` runs these tests, too."""
    monkeypatch.delenv("TORCH", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what run looks at, with a fake Python."""
    tree = tmp_path / "a clone"  # a space in the path is part of the test
    tree.mkdir()
    for name in ("run", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "requirements", tree / "requirements")
    (tree / "anyxpu" / "shim").mkdir(parents=True)
    (tree / "anyxpu" / "drivers").mkdir()
    (tree / "anyxpu" / "build.py").touch()
    (tree / "anyxpu" / "shim" / "a.cpp").write_text("int a;\n")
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    return tree


def calls(tree: Path, *arguments: str, status: int = 0, **environment: str) -> list[str]:
    """What Python was asked to do, in short: "install runtime.txt", "build", "anyxpu demo"..."""
    log = tree.parent / "log"
    log.write_text("")
    variables = {**os.environ, "PYTHON": str(tree.parent / "python"), "LOG": str(log), **environment}
    done = subprocess.run(
        [tree / "run", *arguments], env=variables, cwd=tree.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return [line.replace(str(tree), "TREE") for line in log.read_text().splitlines()]


def installs(lines: list[str]) -> list[str]:
    """The last argument of every pip call."""
    return [line.split("/")[-1].split()[-1] for line in lines if line.startswith("-m pip install")]


def test_first_call_sets_up_and_second_only_starts(tree):
    first = calls(tree, "demo", "--quick")
    assert installs(first) == ["torch.txt", "runtime.txt", "demo.txt", "TREE"]
    assert first[-2:] == ["-m anyxpu build", "-m anyxpu demo --quick"]
    assert calls(tree, "demo") == ["-m anyxpu demo"]


def test_torch_comes_first_and_alone_and_nothing_after_it_has_dependencies(tree):
    pips = [line for line in calls(tree, "setup") if line.startswith("-m pip install")]
    assert "--no-deps" not in pips[0]
    assert all("--no-deps" in line for line in pips[1:])


def test_another_torch_has_its_own_environment_and_its_own_triton(tree):
    lines = calls(tree, "setup", TORCH="2.15.0")
    pips = [line for line in lines if line.startswith("-m pip install")]
    assert pips[0].endswith("torch==2.15.0")
    assert (tree / ".venv-2.15.0" / "bin" / "python").exists() and not (tree / ".venv").exists()
    others = (tree / ".venv-2.15.0" / "runtime.txt").read_text()
    assert others == (tree / "requirements" / "runtime.txt").read_text().replace(f"{pinned_triton(tree)}\n", "")
    assert installs(calls(tree, "setup")) == ["torch.txt", "runtime.txt", "demo.txt", "quant.txt", "test.txt", "TREE"]


def pinned_triton(tree: Path) -> str:
    (line,) = [x for x in (tree / "requirements" / "runtime.txt").read_text().splitlines() if x.startswith("triton==")]
    return line


def test_another_command_adds_only_what_it_needs(tree):
    calls(tree, "doctor")
    assert installs(calls(tree, "bench", "onednn")) == []
    assert installs(calls(tree, "bench", "quant")) == ["quant.txt"]
    assert installs(calls(tree, "test")) == ["demo.txt", "test.txt"]


def test_changed_pins_are_installed_again(tree):
    calls(tree, "demo")
    with (tree / "requirements" / "demo.txt").open("a") as pins:
        pins.write("einops==0.8.0\n")
    assert installs(calls(tree, "demo")) == ["demo.txt"]


def test_changed_cpp_is_built_again(tree):
    calls(tree, "bench", "launch")
    (tree / "anyxpu" / "shim" / "a.cpp").write_text("int b;\n")
    assert calls(tree, "bench", "launch") == ["-m anyxpu build", "-m anyxpu bench launch"]


def test_a_failed_step_is_tried_again_next_time(tree):
    calls(tree, "demo", status=1, FAIL="runtime.txt")
    assert installs(calls(tree, "demo")) == ["torch.txt", "runtime.txt", "demo.txt", "TREE"]


def test_full_reaches_the_tests_as_a_variable(tree):
    assert calls(tree, "test", "--full", "-k", "streams")[-1] == "-m pytest -k streams"
    assert calls(tree, "test", "tests/test_run.py")[-1] == "-m pytest tests/test_run.py"
    assert calls(tree, "test")[-1] == "-m pytest -n 2 --dist worksteal"


def test_doctor_speaks_where_the_set_up_fails(tree):
    assert calls(tree, "doctor", FAIL="torch.txt")[-1] == "-m anyxpu.doctor"


def test_a_machine_without_python_is_told_what_to_install(tree, tmp_path):
    done = subprocess.run(
        [tree / "run", "setup"],
        env={**os.environ, "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "apt-get install python3" in done.stderr


def test_ci_calls_exactly_the_tests():
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec ./run test"
