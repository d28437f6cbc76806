"""The wheel: what it holds, and that it works from a clean environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.not_simulated("it is about the wheel")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, for building leaves files beside the sources
    source.mkdir()
    shutil.copytree(ROOT / "anyxpu", source / "anyxpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_source(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    wanted = {
        str(p.relative_to(ROOT))
        for suffix in (".py", ".cpp", ".h", ".cl")
        for p in (ROOT / "anyxpu").rglob(f"*{suffix}")
    }
    assert len(wanted) > 30
    assert wanted - inside == set()
    assert not any(name.endswith((".so", ".o")) for name in inside)


@pytest.mark.slow
def test_wheel_works_from_a_clean_environment(wheel, tmp_path):
    """Torch and Intel's packages are seen through a .pth, so that nothing is downloaded."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=tmp_path)

    where = run(python, "-c", "import anyxpu; print(anyxpu.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    shown = run(python, "-c", "import torch; print(torch.ones(2, device='xpu'))", cwd=tmp_path)
    assert shown.strip() == "tensor([1., 1.], device='xpu:0')"
    assert run(environment / "bin" / "anyxpu", "--version", cwd=tmp_path).startswith("anyxpu ")
