"""What the tests share: a fresh Python with chosen variables, the device, optional tools, and the list of skips."""

from __future__ import annotations

import datetime
import os
import random
import re
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# A test asks for kernels or for the host, and gets what it asks for at its first call. Before torch is imported.
os.environ.setdefault("ANYXPU_EAGER", "compile")

from anyxpu import simulate
from tests import quant_table

FULL = os.environ.get("ANYXPU_FULL", "0") not in ("", "0")
# One day for all the workers of a run, that may begin before midnight; set it to run another day's share again.
DAY = os.environ.setdefault("ANYXPU_TEST_DAY", datetime.date.today().isoformat())
# Each test draws from this and its own name: other numbers every day, the same ones all day, so that a failure is seen
# again.
SEED = os.environ.setdefault("ANYXPU_TEST_SEED", DAY)
MANY = 4  # cases of one test, of which a day has half
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    quant_table.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    quant_table.register(config)
    config.addinivalue_line("markers", "full: a long sweep, run by `./run test --full` alone")
    config.addinivalue_line(
        "markers",
        f"rotates(parts): the everyday suite runs one part of its cases a day, `./run test --full` all; from {MANY} "
        "cases on two parts where it is not said, and 1 is all",
    )
    config.addinivalue_line("markers", "slow: takes more than half a minute")
    config.addinivalue_line("markers", "not_simulated(why): means nothing on a simulated GPU, or is about no GPU")
    if simulate.active():
        from tests import simulated

        config.pluginmanager.register(simulated)  # which calls its pytest_configure too


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long sweeps out, and the cases of other days, unless they were asked for."""
    if FULL:
        return
    left = {item for item in items if item.get_closest_marker("full")}
    if not config.option.keyword and not any("::" in str(argument) for argument in config.args):
        left |= set(of_other_days([item for item in items if item not in left], DAY))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def of_other_days(items: list[pytest.Item], day: str) -> list[pytest.Item]:
    """The cases of tests that rotate which are not this day's: those that say so, and those of many cases.

    A day has one part of a test's cases; of fewer cases than parts it may have none, on the others' days.
    """
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        cases.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    left = []
    for (path, name), each in cases.items():
        marker = each[0].get_closest_marker("rotates")
        parts = marker.args[0] if marker else 2 if len(each) >= MANY else 1
        count, rest = divmod(len(each), parts)
        count += _hash(day, path.name, name) % parts < rest
        each.sort(key=lambda item: _hash(day, item.nodeid))
        left += each[count:]
    return left


def _hash(*words: str) -> int:
    return zlib.crc32(" ".join(words).encode())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every skipped test with its reason, and count them."""
    skipped = terminalreporter.stats.get("skipped", [])
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"skipped {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"{len(skipped)} skipped")
    terminalreporter.write_line(f"ANYXPU_TEST_SEED={SEED} ANYXPU_TEST_DAY={DAY} draws the same numbers and cases again")


@pytest.fixture(scope="session")
def full() -> bool:
    """Were the long sweeps asked for? A test may then draw more cases."""
    return FULL


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """``run_python(source, status=0, timeout=300, **variables)`` runs source in a fresh Python, in an empty folder.

    Variables are added to the environment (a value of None removes one). Fails the test if the status differs, and
    shows what the process printed. Returns the CompletedProcess, its output as text.
    """

    def run(
        source: str, *, status: int = 0, timeout: float = 300, **variables: str | None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **{name: value for name, value in variables.items() if value is not None}}
        for name in (name for name, value in variables.items() if value is None):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def xpu() -> Iterator[object]:
    """The device ``xpu``. Its absence is a failure, not a reason to skip: the CPU device comes with the package."""
    import torch

    assert torch.xpu.is_available(), "torch.xpu is not available; `./run doctor` says why"
    yield torch.device("xpu")
    torch.xpu.synchronize()


@pytest.fixture(autouse=True)
def _drawn_numbers(request: pytest.FixtureRequest) -> None:
    """The numbers of a test are of the run's seed and its name, whatever ran before it in the same process."""
    drawn = _hash(SEED, request.node.nodeid)
    random.seed(drawn)
    if "torch" in sys.modules:  # a test of the drivers alone need not import it
        sys.modules["torch"].manual_seed(drawn)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(drawn)


@pytest.fixture(autouse=True)
def _in_python_first(request: pytest.FixtureRequest) -> None:
    """A test that puts other functions in the place of operators' sees them called (see shim/replay.cpp)."""
    if "monkeypatch" in request.fixturenames:
        from anyxpu.shim import lib

        lib().forget_programs()


@pytest.fixture
def compiled() -> Iterator[None]:
    """Eager operators by their kernels, which are waited for."""
    from anyxpu.shim import lib

    before = lib().eager()
    lib().set_eager("compile")
    yield
    lib().set_eager(before)


@pytest.fixture
def no_host(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test fails if any operator in it was served by the host.

    A device without double precision leaves that to the host: there a test of it, told by its name, may.
    """
    import torch

    import anyxpu.ops

    anyxpu.ops.reset_counters()
    yield
    of_doubles = re.search(r"float64|complex128|\bf64\b", request.node.name)
    hosted = {op: ways for op, ways in anyxpu.ops.counters().items() if "host" in ways}
    assert not hosted or (of_doubles and not torch.xpu.get_device_properties(0).has_fp64)


@pytest.fixture
def ocloc_program() -> str:
    """Path of Intel's offline compiler; skips where there is none."""
    from anyxpu import ocloc

    path = ocloc.find()
    if path is None:
        pytest.skip("needs Intel's offline compiler: anyxpu get-ocloc")
    return path
