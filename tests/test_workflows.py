"""The workflow files ask for what there is: commands, options, suites, and the versions of torch that are supported."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from anyxpu import supported
from anyxpu.cli import app

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OF_RUN = ("demo", "test", "setup", "doctor")


def jobs(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())["jobs"]


def commands() -> list[tuple[str, list[str]]]:
    """Each line of a workflow that starts ``./run``, with its file's name."""
    found = []
    for file in WORKFLOWS:
        for job in jobs(file).values():
            for step in job["steps"]:
                text = re.sub(r"\$\{\{.*?\}\}", "X", step.get("run", "")).replace("\\\n", " ")
                found += [(file.name, shlex.split(m)) for m in re.findall(r"\./run [^\n;&|]*", text)]
    return found


def test_there_are_workflows_for_all_that_is_to_be_run() -> None:
    assert {file.stem for file in WORKFLOWS} == {"tests", "gpu", "benchmark", "nightly"}


@pytest.mark.parametrize(("file", "words"), commands())
def test_commands_and_options_are_there(file: str, words: list[str]) -> None:
    command: Any = get_command(app)
    rest = words[1:]
    if rest[0] in OF_RUN:
        assert re.search(rf"^  {rest[0]}\)", (ROOT / "run").read_text(), re.MULTILINE)
        return
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= options


def test_supported_versions_of_torch_are_tested() -> None:
    matrix = next(file for file in WORKFLOWS if file.stem == "tests")
    asked = {version for version in jobs(matrix)["cpu"]["strategy"]["matrix"]["torch"] if version}
    known = {".".join(map(str, supported.minor(version))) for version in asked}
    assert known <= set(supported.SUPPORTED)
    assert {supported.OLDEST, supported.NEWEST} <= known


def test_every_job_ends() -> None:
    for file in WORKFLOWS:
        for name, job in jobs(file).items():
            assert 0 < job["timeout-minutes"] <= 360, (file.name, name)


def test_what_a_step_uses_has_a_version() -> None:
    for file in WORKFLOWS:
        for job in jobs(file).values():
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step)
                if "uses" in step:
                    assert re.fullmatch(r"[\w/-]+@v\d+", step["uses"]), step
