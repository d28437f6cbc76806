"""anyxpu doctor: it tells the truth, also where something is broken."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu import doctor

ROOT = Path(__file__).parents[1]


def findings(run_python, status: int = 0, **variables: str | None) -> dict:
    source = "import sys; from anyxpu.doctor import main; sys.exit(main(['--json', '-']))"
    return json.loads(run_python(source, status=status, **variables).stdout)


def check_of(found: dict, name: str) -> dict:
    return next(check for check in found["checks"] if check["name"] == name)


def test_on_a_sound_machine_everything_needed_is_ok(run_python):
    found = findings(run_python)
    assert found["usable"]
    assert [check for check in found["checks"] if check["state"] == "missing"] == []
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    sycl = [device for device in found["devices"] if device["driver"] == "sycl"]
    assert sycl and all(device["total_memory"] > 2**30 for device in sycl)


def test_devices_are_those_torch_shows(run_python, xpu):
    import torch

    found = findings(run_python, ANYXPU_DEVICES="2")
    names = [device["name"] for device in found["devices"] if device["driver"] == "sycl"]
    assert names == [torch.xpu.get_device_name(0)] * 2
    assert found["variables"]["ANYXPU_DEVICES"] == "2"


@pytest.mark.parametrize(
    ("variables", "mend"),
    [
        ({"ANYXPU_DISABLE": "1"}, "unset ANYXPU_DISABLE"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "unset TORCH_DEVICE_BACKEND_AUTOLOAD"),
        ({"ANYXPU_DRIVER": "cuda"}, "unset ANYXPU_DRIVER"),
    ],
)
@pytest.mark.rotates(2)
def test_unusable_xpu_is_status_1_and_names_the_remedy(run_python, variables, mend):
    found = findings(run_python, status=1, **variables)
    assert not found["usable"]
    assert check_of(found, "xpu")["mend"] == mend


def test_a_missing_compiler_is_named(run_python):
    found = findings(run_python, CXX="no-such-compiler")
    compiler = check_of(found, "c++ compiler")
    assert compiler["state"] == "missing"
    assert "no-such-compiler" in compiler["detail"]
    assert compiler["mend"] == "apt-get install g++"


@pytest.mark.rotates(2)
def test_offline_compiler_is_found_where_the_variable_points(run_python, tmp_path):
    program = tmp_path / "my-ocloc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert check_of(findings(run_python, ANYXPU_OCLOC=str(program)), "ocloc")["state"] == "ok"
    assert check_of(findings(run_python, ANYXPU_OCLOC=str(tmp_path / "none")), "ocloc")["state"] == "optional"


def test_speaks_where_torch_does_not_import(run_python, tmp_path):
    broken = tmp_path / "site" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')\n")
    found = findings(run_python, status=1, PYTHONPATH=str(broken.parent))
    assert not found["usable"]
    assert "libtorch_cpu.so" in check_of(found, "xpu")["detail"]


def test_speaks_without_site_packages():
    """On a bare Python: no torch, no typer, no rich."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "anyxpu.doctor"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "torch is not installed" in done.stdout
    assert "pip install 'torch" in done.stdout


def test_a_probe_that_crashes_is_reported():
    answer, problem = doctor._probe("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert answer is None
    assert "SIGSEGV" in problem


@pytest.mark.parametrize(
    ("found", "inside"),
    [("2.13.0+cpu", True), ("2.11.0", True), ("2.14.0", False), ("2.10.1", False), ("2.13.1.dev2", True)],
)
def test_version_ranges(found, inside):
    assert doctor._within(found, ">=2.11,<2.14") is inside


def test_packages_are_those_of_pyproject():
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(declared) == sorted(name + versions for name, versions in doctor.PACKAGES.items())


def test_a_cache_that_is_not_used_is_a_finding(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    environment = {**os.environ, "ANYXPU_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "anyxpu.doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{folder} can be written by others" in done.stdout and "chmod go-w" in done.stdout
    assert "xpu does not work here" in done.stdout
