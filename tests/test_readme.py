"""What README says is so: its examples run, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_examples_run(run_python):
    examples = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 2
    shown = run_python("\n".join(examples), ANYXPU_DEVICES="2", timeout=600).stdout
    assert " ms\n" in shown
    assert "library" in shown


def test_every_variable_is_in_the_table():
    """A variable's name appears in the sources as a string, or as what a macro or a string spells out for getenv."""
    read = set()
    for suffix in (".py", ".cpp"):
        for path in (ROOT / "anyxpu").rglob(f"*{suffix}"):
            read |= set(re.findall(r'"(ANYXPU_[A-Z_]+[A-Z])"', path.read_text()))
    assert len(read) >= 5
    rows = [line for line in README.splitlines() if line.startswith("| `ANYXPU_")]
    documented = set(re.findall(r"`(ANYXPU_[A-Z_]+)", "\n".join(rows)))
    assert read - documented == set()


def test_every_folder_is_in_the_architecture_table():
    folders = {p.parent.name for p in (ROOT / "anyxpu").glob("*/__init__.py")}
    documented = set(re.findall(r"^\| `anyxpu/(\w+)/`", README, re.MULTILINE))
    assert folders == documented


def test_every_command_is_in_the_table():
    from anyxpu.bench import SUITES
    from anyxpu.cli import app

    commands = {(command.name or command.callback.__name__) for command in app.registered_commands if command.callback}
    names = [f"anyxpu {name}" for name in commands] + [f"anyxpu bench {name}" for name in SUITES]
    table = "\n".join(line for line in README.splitlines() if line.startswith("| `anyxpu"))
    assert [name for name in names if f"`{name}" not in table] == []
