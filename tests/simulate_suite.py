"""``./run test --simulate bmg,pvc [pytest's arguments]``: the everyday suite on simulated Intel GPUs, launch-only.

Every file of tests is run in a process of its own on each device. Where one dies, the test that killed it is named,
and the file's other tests are run by another process. What checks values is off (tests/simulated.py); everything else
has to hold. Status 1 if a test failed or aborted, on any device.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anyxpu.simulate import DEVICES, SimulationError, driver

ROOT = Path(__file__).parents[1]
HANGS_AFTER = 1800  # seconds without a test's end, for one file
NAMED = ("refused", "failed", "aborted")
COLUMNS = ("passed", *NAMED, "values off")
LAUNCHES = ("build", "build_refused", "kernel", "launch", "launch_refused")


@dataclass
class Row:
    """What the tests did on one device.

    Attributes:
        counts: of tests by outcome (:data:`COLUMNS`), and of the driver's answers (:data:`LAUNCHES`).
        refused, failed, aborted: tests by name, with the reason.
    """

    device: str
    counts: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    aborted: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.failed and not self.aborted


def run_file(device: str, target: str, options: Sequence[str], work: Path, row: Row) -> None:
    """Run one file's tests in as many processes as it takes, and add what they did to ``row``."""
    name = Path(target.split("::")[0]).stem
    done: list[str] = []
    for old in work.glob(f"{name}.*"):  # of an earlier run that was kept
        old.unlink()
    while True:
        report, log = work / f"{name}.{len(done)}.jsonl", work / "driver.jsonl"
        command = [sys.executable, "-m", "anyxpu", "simulate", device, "--log", str(log), "--"]
        command += [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, target]
        command += [f"--deselect={test}" for test in done]
        with open(work / f"{name}.txt", "a") as output:
            status = _run(command, report, work, output)
        ended, running = _take(report, row)
        done += ended
        if status >= 0:
            if status not in (0, 1, 5):  # 5: no test was left
                row.failed[target] = f"pytest ended with status {status}; see {work / name}.txt"
            return
        why = "hung" if status == -signal.SIGKILL else signal.Signals(-status).name
        row.aborted[running or f"{target} (outside of any test)"] = why
        if running is None:
            return
        done.append(running)


def _run(command: Sequence[str], report: Path, work: Path, output: object) -> int:
    variables = {
        "ANYXPU_TEST_REPORT": str(report),
        # One device's compiled graphs and kernels are not another's.
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TRITON_CACHE_DIR": str(work / "triton"),
    }
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(HANGS_AFTER)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _take(report: Path, row: Row) -> tuple[list[str], str | None]:
    """Add a process's report to ``row``; the tests that ended, and the one that was running when the process did."""
    ended: list[str] = []
    running, bad, off = None, set(), 0
    for line in report.read_text().splitlines() if report.exists() else ():
        said = json.loads(line)
        test, outcome = said["test"], said["outcome"]
        off = said.get("values_off", off)
        if outcome == "started":
            running = test
        elif outcome == "failed":
            bad.add(test)
            row.failed[test] = said["why"]
        elif outcome == "skipped":
            bad.add(test)
            row.refused[test] = said["why"]
        else:
            row.counts["passed"] += test not in bad
            ended.append(test)
            running = None
    row.counts["values off"] += off
    return ended, running


def run_device(device: str, targets: Sequence[str], options: Sequence[str], work: Path) -> Row:
    """The files of tests on one device."""
    row = Row(device)
    for target in targets:
        start, before = time.monotonic(), (row.counts["passed"], len(row.refused), len(row.failed), len(row.aborted))
        run_file(device, target, options, work, row)
        after = (row.counts["passed"], len(row.refused), len(row.failed), len(row.aborted))
        words = ", ".join(f"{b - a} {w}" for a, b, w in zip(before, after, COLUMNS[:4], strict=True) if b > a)
        print(f"{device} {target}: {words or 'nothing'} ({time.monotonic() - start:.0f} s)", flush=True)
    log = work / "driver.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        said = json.loads(line)
        row.counts.update({name: said.get(name, 0) for name in LAUNCHES})
    row.counts.update({"refused": len(row.refused), "failed": len(row.failed), "aborted": len(row.aborted)})
    return row


def report(rows: Sequence[Row]) -> None:
    """Print what was refused, failed and aborted by name, then the table."""
    for title in NAMED:
        for row in rows:
            for test, why in getattr(row, title).items():
                print(f"{title} on {row.device}: {test}: {why}")
    heads = ("device", *COLUMNS, *(name.replace("_", " ") for name in LAUNCHES))
    lines = [heads, *((r.device, *(str(r.counts[n]) for n in (*COLUMNS, *LAUNCHES))) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)))


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run test", description="The everyday suite on simulated Intel GPUs.")
    parser.add_argument("--simulate", required=True, metavar="DEVICES", help=f"of {', '.join(DEVICES)}; or all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what pytest printed, a file a file of tests")
    asked, rest = parser.parse_known_args(None if arguments is None else list(arguments))
    devices = list(DEVICES) if asked.simulate == "all" else asked.simulate.split(",")
    if unknown := set(devices) - set(DEVICES):
        parser.error(f"no device {', '.join(unknown)} can be simulated; there are {', '.join(DEVICES)}")
    targets = [word for word in rest if (ROOT / word.split("::")[0]).exists()]
    options = [word for word in rest if word not in targets]
    targets = targets or [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_*.py"))]
    try:
        if not driver.is_installed():
            driver.install(say=lambda words: print(words, file=sys.stderr))
    except SimulationError as error:
        parser.exit(1, f"{error}\n")
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="anyxpu-simulated-"))
    print(f"what pytest prints goes to {folder}")
    rows = []
    for device in devices:
        (folder / device).mkdir(parents=True, exist_ok=True)
        (folder / device / "driver.jsonl").unlink(missing_ok=True)
        rows.append(run_device(device, targets, options, (folder / device).absolute()))
    report(rows)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
