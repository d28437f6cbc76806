"""``anyxpu simulate``: which programs run on the simulated GPU, and one clear error for each thing that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu import debian, simulate
from anyxpu.simulate import SimulationError, driver, proxy
from tests.gpu_support import needs_driver

pytestmark = pytest.mark.not_simulated("starts simulations of its own")


def anyxpu(*words: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anyxpu", *words],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def refused(words: tuple[str, ...], *said: str, **variables: str) -> None:
    """The command leaves with status 1 or 2 and one error that says all that."""
    done = anyxpu(*words, **variables)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    text = " ".join(done.stderr.split())
    for part in said:
        assert part in text, done.stderr


def test_what_cannot_be_simulated_is_said_with_the_way_out(tmp_path) -> None:
    refused(("simulate", "rtx", "--", "python"), "no device 'rtx'", *simulate.DEVICES)
    refused(("simulate", "bmg", "--count", "9", "--", "python"), "1 to 4")
    refused(("simulate", "bmg"), "Missing argument 'command'")
    missing = {driver.VARIABLE: str(tmp_path)}
    refused(("simulate", "bmg", "--", "python"), "anyxpu get-driver", str(tmp_path), **missing)


@needs_driver
def test_a_command_that_is_not_there_is_named() -> None:
    refused(("simulate", "bmg", "--", "no-such-program"), "no command 'no-such-program'")


def test_get_driver_says_what_it_lacks(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SimulationError, match=r"needs apt-get.*ANYXPU_GPU_DRIVER"):
        driver.install(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_python_that_does_not_start_under_the_drivers_c_library_is_named(tmp_path) -> None:
    libraries = debian.libraries(tmp_path)
    libraries.mkdir(parents=True)
    loader = libraries / debian.LOADER
    loader.write_text("#!/bin/sh\necho GLIBC_9.99 not found >&2\nexit 1\n")
    loader.chmod(0o755)
    with pytest.raises(SimulationError, match=r"does not run under the C library.*GLIBC_9.99 not found"):
        proxy.make(Path(sys.executable), tmp_path)


@needs_driver
def test_a_driver_that_shows_no_gpu_is_not_replaced_by_the_cpu(tmp_path) -> None:
    code = "import torch; torch.ones(1, device='xpu')"
    # A newer driver that knows the switch no more is one for which it is not set.
    done = anyxpu("simulate", "bmg", "--", "env", "SetCommandStreamReceiver=0", "python", "-c", code)
    assert done.returncode == 1
    assert "was to simulate a bmg and shows no GPU" in done.stderr and "anyxpu get-driver" in done.stderr


CHILDREN = """
import multiprocessing, subprocess, sys
import torch
def name(_=None):
    return torch.xpu.get_device_properties().target
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(name, [0])[0]
    code = "import torch; print(torch.xpu.get_device_properties().target)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    shell = subprocess.run(["sh", "-c", f"python -c '{code}'"], capture_output=True, text=True).stdout.strip()
    print(name(), spawned, child, shell, sys.argv[1:])
"""


@needs_driver
def test_a_program_and_the_pythons_it_starts_see_the_device(tmp_path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = anyxpu("simulate", "lnl", "--", "python", "children.py", "--count", "3", folder=tmp_path)
    assert done.stdout.strip() == "lnl lnl lnl lnl ['--count', '3']", done.stderr[-2000:]


@needs_driver
@pytest.mark.parametrize("command", ["pytest", str(Path(sys.executable).with_name("pytest"))])
@pytest.mark.rotates(2)
def test_scripts_of_the_environment_run_under_the_simulation(command, tmp_path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(): import torch; assert torch.xpu.get_device_name()[:5] == 'Intel'"
    )
    done = anyxpu("simulate", "dg2", "--", command, "-q", "-p", "no:cacheprovider", folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@needs_driver
def test_a_program_leaves_with_its_own_status_and_the_driver_is_counted(tmp_path) -> None:
    import json

    log = tmp_path / "log.jsonl"
    code = "import torch; torch.ones(5, device='xpu').sort(); raise SystemExit(7)"
    done = anyxpu("simulate", "bmg", "--log", str(log), "--", "python", "-c", code)
    assert done.returncode == 7
    record = json.loads(log.read_text())
    assert record["launch"] >= 1 and record["build"] >= 1 and record["alloc"] >= 1
    assert not any(count for kind, count in record.items() if kind.endswith("_refused"))


@needs_driver
def test_doctor_tells_a_simulated_gpu(tmp_path) -> None:
    done = anyxpu("simulate", "ptl", "--", "anyxpu", "doctor")
    assert done.returncode == 0, done.stderr
    assert "simulated ptl" in done.stdout and "level-zero" in done.stdout and "xpu works here" in done.stdout
