"""What the tests on simulated GPUs share: a program run on one, and what Intel's driver said of it."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from anyxpu import ocloc, simulate
from anyxpu.simulate import DEVICES, Simulation, driver
from anyxpu.simulate.run import prepare

needs_driver = pytest.mark.skipif(
    simulate.active() is not None or not driver.is_installed(),
    reason="it simulates devices of its own" if simulate.active() else "needs Intel's GPU driver: anyxpu get-driver",
)

# Both adapters of Unified Runtime: SYCL takes the newer one on Xe2 and later, and either is an owner's.
ADAPTERS = {"v1": "0", "v2": "1"}

# The everyday slice: one device with sub-groups of 8 for products and no FP64, one with 2-D block loads.
EVERYDAY = ("bmg", "dg2")


def devices(*everyday: str) -> list:
    """Every device, as a test's parameters; all but those named are for the full suite."""
    return [pytest.param(name, marks=() if name in everyday else pytest.mark.full) for name in DEVICES]


@dataclass(frozen=True)
class Outcome:
    """A program that ran: what it printed, and what the driver said in every process of it."""

    stdout: str
    stderr: str
    records: list[dict]

    def last(self) -> dict:
        """Its last line, as JSON."""
        return dict(json.loads(self.stdout.splitlines()[-1]))

    def refused(self) -> dict[str, int]:
        """How often the driver refused what, over all processes; empty where it refused nothing."""
        return self._sums("_refused")

    def accepted(self, kind: str) -> int:
        """How often it took one of ``alloc``, ``build``, ``kernel``, ``launch``, ``synchronize``."""
        return sum(int(record.get(kind, 0)) for record in self.records)

    def _sums(self, ending: str) -> dict[str, int]:
        kinds = {key for record in self.records for key in record if key.endswith(ending)}
        sums = {kind: sum(int(record.get(kind, 0)) for record in self.records) for kind in kinds}
        return {kind: count for kind, count in sums.items() if count}


def run_on(
    device: str, source: str, folder: Path, *arguments: str, count: int = 1, timeout: float = 600, **variables: str
) -> Outcome:
    """Run Python source on simulated devices; ``cpu`` runs it on the CPU device. Fails the test where it fails.

    Skips it where nothing is there that compiles for the device.
    """
    if device in simulate.COMPILED_BY_OCLOC and ocloc.find() is None:
        pytest.skip("needs Intel's offline compiler: anyxpu get-ocloc")
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    log = folder / f"{device}.jsonl"
    log.unlink(missing_ok=True)
    command, environment = _on(device, log, count)(["python", str(program), *arguments])
    done = subprocess.run(
        command,
        # The program lies in a folder of its own and may import what lies beside the tests.
        env={**environment, "PYTHONPATH": str(Path(__file__).parent.parent), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode} on {device}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return Outcome(done.stdout, done.stderr, records)


def _on(device: str, log: Path, count: int) -> Callable[[list[str]], tuple[list[str], dict[str, str]]]:
    import sys

    if device == "cpu":
        return lambda command: ([sys.executable, *command[1:]], dict(os.environ))

    def simulated(command: list[str]) -> tuple[list[str], dict[str, str]]:
        words, environment = prepare(Simulation(device, count, log=log), command)
        return words, dict(environment)

    return simulated


def on_gpu(
    device: str,
    source: str,
    folder: Path,
    *,
    count: int = 1,
    adapter: str | None = None,
    faults: str = "",
    status: int = 0,
    timeout: float = 300,
    **variables: str,
) -> str:
    """Run ``source`` on a simulated device, with compile caches of its own in ``folder``; what it printed.

    Fails the test if the process leaves with another status, and shows what it said.
    """
    words, environment = prepare(Simulation(device, count, faults=faults), ["python", "-X", "faulthandler", "-"])
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    chosen = {"SYCL_UR_USE_LEVEL_ZERO_V2": ADAPTERS[adapter]} if adapter else {}
    done = subprocess.run(
        words,
        input=textwrap.dedent(source),
        env={**environment, **caches, **chosen, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout
