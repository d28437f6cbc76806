"""The tree is lint-clean, typed, formatted, and its folders import only what lies below them."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.not_simulated("it is about the source")

# Lowest first, as README's picture has it. A module may import from its own room and from those before it; rooms on
# one line are siblings.
ROOMS = (
    ("processor",),
    ("torch_first", "cache", "errors", "supported", "variables", "build", "debian", "ocloc", "get_ocloc", "simulate"),
    ("patches",),
    ("drivers",),
    ("shim",),
    ("runtime",),
    ("triton", "onednn"),
    ("ops",),
    ("inductor",),
    ("bench", "warm"),
    ("demo", "doctor"),
    ("cli", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def tool(name: str, *arguments: str) -> None:
    """Run a tool of requirements/test.txt as a module; skips where it is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name} (requirements/test.txt)")
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    tool("ruff", "check", "--no-cache", ".")


def test_python_is_formatted():
    tool("ruff", "format", "--no-cache", "--check", "anyxpu", "tests")


@pytest.mark.slow
def test_types():
    tool("mypy")


def test_cpp_is_formatted():
    program = shutil.which("clang-format", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs clang-format (requirements/test.txt)")
    sources = [str(p) for pattern in ("*.cpp", "*.h") for p in sorted((ROOT / "anyxpu").rglob(pattern))]
    done = subprocess.run([program, "--dry-run", "-Werror", *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def imports(path: Path) -> set[str]:
    """The rooms of anyxpu that a file's import statements name."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {parts[1] for name in names if (parts := name.split("."))[0] == "anyxpu" and len(parts) > 1}
    return rooms & set(LEVEL)


@pytest.mark.parametrize("room", LEVEL)
def test_imports_point_down(room):
    folder = ROOT / "anyxpu" / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    upward = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in files
        for other in imports(path)
        if LEVEL[other] > LEVEL[room]
        or (LEVEL[other] == LEVEL[room] and other != room and room in ("triton", "onednn"))
    }
    assert upward == set()


def test_every_room_is_listed():
    package = ROOT / "anyxpu"
    found = {
        p.stem for p in package.iterdir() if (p / "__init__.py").exists() or (p.suffix == ".py" and p.stem[:2] != "__")
    }
    assert found - set(LEVEL) == set()
