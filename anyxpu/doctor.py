"""``anyxpu doctor``: what is installed, which devices are seen, and the one command that mends each missing thing.

Needs the standard library alone, and looks at torch and at every driver from a process of its own, so that it
speaks even where one of them does not import or crashes. ``python -m anyxpu.doctor`` works without typer and rich.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from anyxpu import build, ocloc, patches, simulate, supported, variables
from anyxpu.bench import machine as about
from anyxpu.cache import cache_dir
from anyxpu.errors import CacheError
from anyxpu.simulate import driver as simulated

State = Literal["ok", "missing", "optional", "note"]

# The versions that anyxpu is made for; the same ranges as pyproject.toml's dependencies.
PACKAGES: dict[str, str] = {
    "torch": f">={supported.OLDEST}",
    "triton": f">={supported.SUPPORTED[supported.OLDEST]}",
    "numpy": ">=1.26",
    "intel-sycl-rt": ">=2026.1,<2027",
    "intel-opencl-rt": ">=2026.1,<2027",
    "onednn": ">=2026.0,<2027",
    "pyelftools": ">=0.31",
    "PyYAML": ">=6",
    "rich": ">=13.7",
    "typer": ">=0.15",
}

ENTRY_POINTS = {"torch.backends": "anyxpu", "triton.backends": "intel"}

# Not ours, but they change what ours does.
FOREIGN_VARIABLES = (
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "ONEAPI_DEVICE_SELECTOR",
    "OCL_ICD_FILENAMES",
    "OCL_ICD_VENDORS",
    "ZE_AFFINITY_MASK",
    "ZE_ENABLE_ALT_DRIVERS",
    "SYCL_UR_USE_LEVEL_ZERO_V2",
    "ProductFamilyOverride",
    "CXX",
)

_BUILD_SECONDS = 900  # a probe may find that the C++ half must be built first


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        state: "ok", "missing" (xpu may not work without it), "optional" (absent, and only some need it), "note".
        mend: the command that mends it; "" where there is nothing to mend.
    """

    name: str
    state: State
    detail: str
    mend: str = ""


@dataclass
class Findings:
    """All that the doctor found; ``usable`` is whether a tensor on xpu could be made and read back."""

    usable: bool = False
    checks: list[Check] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"machine": about.machine(), "versions": about.versions(), **asdict(self)}


def examine() -> Findings:
    """Look at everything, from the ground up."""
    findings = Findings(variables=_variables())
    for look in (_python, _compiler, _packages, _entry_points, _cache, _offline_compiler, _simulation):
        try:
            findings.checks += look()
        except CacheError:
            detail = "not looked for: it would be in the cache, which is not used (above)"
            findings.checks.append(Check(look.__name__.strip("_").replace("_", " "), "missing", detail))
    for name in build.DRIVERS:
        check, devices = _driver(name)
        findings.checks.append(check)
        findings.devices += devices
    findings.checks += _gpus(findings.devices)
    findings.usable, check, made = _autoload()
    findings.checks.append(check)
    if made:
        findings.changes = _changes(made)
        left_out = [change["name"] for change in findings.changes if change["state"] == "left out"]
        detail = f"{', '.join(left_out)} left out" if left_out else "those for this version are made"
        findings.checks.append(Check("changes to torch", "note" if left_out else "ok", detail))
    return findings


def _python() -> Iterator[Check]:
    version = platform.python_version()
    if sys.version_info >= (3, 11):  # noqa: UP036 (this file alone may be run by an older one)
        yield Check("python", "ok", version)
    else:
        yield Check("python", "missing", f"{version}; anyxpu needs 3.11 or newer", "apt-get install python3")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if header.exists():
        yield Check("python headers", "ok", str(header.parent))
    else:
        yield Check("python headers", "missing", f"no {header}", "apt-get install python3-dev")


def _compiler() -> Iterator[Check]:
    try:
        yield Check("c++ compiler", "ok", f"{about.cxx_version()} ({build.compiler()})")
    except build.BuildError as error:
        yield Check("c++ compiler", "missing", str(error), "apt-get install g++")


def _packages() -> Iterator[Check]:
    for name, wanted in PACKAGES.items():
        found = about.version(name)
        if found is None:
            yield Check(name, "missing", "not installed", f"pip install '{name}{wanted}'")
        elif not _within(found, wanted):
            yield Check(name, "missing", f"{found}, but anyxpu is made for {wanted}", f"pip install '{name}{wanted}'")
        elif name == "torch" and (newer := supported.newer(found)):
            yield Check(name, "note", newer)
        elif name == "torch":
            whole = " and ".join(supported.WHOLE_SUITE)
            served = f"made for {supported.OLDEST} to {supported.NEWEST}; whole suite on {whole}"
            yield Check(name, "ok", f"{found} ({served})")
        else:
            yield Check(name, "ok", found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdecimal())


def _within(found: str, wanted: str) -> bool:
    """Does the version ``found`` lie in ``wanted``, a list of >= and < bounds? Needs no ``packaging``."""
    for bound in wanted.split(","):
        if bound.startswith(">="):
            inside = _numbers(found) >= _numbers(bound[2:])
        else:
            inside = _numbers(found) < _numbers(bound[1:])
        if not inside:
            return False
    return True


def _entry_points() -> Iterator[Check]:
    for group, name in ENTRY_POINTS.items():
        if any(point.name == name for point in importlib.metadata.entry_points(group=group)):
            yield Check(f"entry point {group}", "ok", name)
        else:
            detail = f"no {name!r}: this anyxpu is a folder on the path, not an installed package"
            yield Check(f"entry point {group}", "missing", detail, f"pip install --no-deps {build.PACKAGE.parent}")


def _cache() -> Iterator[Check]:
    try:
        root = cache_dir()
        with tempfile.NamedTemporaryFile(dir=root):
            pass
    except CacheError as error:  # what to do is in its words
        yield Check("cache", "missing", str(error), "export ANYXPU_CACHE_DIR=/a/folder/of/yours")
        return
    except OSError as error:
        yield Check("cache", "missing", f"cannot be written: {error}", "export ANYXPU_CACHE_DIR=/a/folder/of/yours")
        return
    size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    yield Check("cache", "ok", f"{root} ({size / 2**20:.0f} MiB)")


def _offline_compiler() -> Iterator[Check]:
    path = ocloc.find()
    if path:
        yield Check("ocloc", "ok", path)
        return
    asked = os.environ.get(ocloc.VARIABLE)
    where = f"{ocloc.VARIABLE}={asked} is not a program" if asked else "not installed"
    detail = f"{where}; only needed to compile for Intel GPUs that are not in this machine"
    yield Check("ocloc", "optional", detail, "anyxpu get-ocloc")


def _simulation() -> Iterator[Check]:
    if device := simulate.active():
        detail = f"this process sees a simulated {device}: kernels are taken by Intel's driver and do not execute"
        yield Check("simulation", "note", detail)
    elif simulated.is_installed():
        yield Check(
            "simulation", "ok", f"{simulated.folder()}; anyxpu simulate {next(iter(simulate.DEVICES))} -- COMMAND"
        )
    else:
        detail = "Intel's GPU driver is not here; only needed to run programs on simulated Intel GPUs"
        yield Check("simulation", "optional", detail, "anyxpu get-driver")


def _probe(source: str, **variables: str) -> tuple[dict[str, Any] | None, str]:
    """Run ``source`` in a fresh Python; (the JSON object on its last line or None, what went wrong)."""
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"did not answer within {_BUILD_SECONDS} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer, ""
    if done.returncode < 0:
        return None, f"the process died of {signal.Signals(-done.returncode).name}"
    errors = [line for line in done.stderr.strip().splitlines() if line and not line.startswith(" ")]
    return None, _short(errors[-1]) if errors else f"status {done.returncode}"


def _short(problem: str) -> str:
    """torch ends some errors with a page of dispatch keys."""
    return problem if len(problem) <= 400 else problem[:397] + "..."


_DRIVER_PROBE = """
import json, sys
from anyxpu.drivers.abi import Driver
driver = Driver({name!r}, {devices})
def plain(value):
    if isinstance(value, bytes): return value.decode(errors="replace")
    return value if isinstance(value, int) else list(value)
devices = []
for ordinal in range(driver.device_count()):
    properties = driver.properties(ordinal)
    fields = {{field[0]: plain(getattr(properties, field[0])) for field in properties._fields_}}
    fields["uuid"] = bytes(fields["uuid"]).hex()
    fields["sub_group_sizes"] = [size for size in fields["sub_group_sizes"] if size]
    fields["type"] = ("cpu", "gpu", "other")[fields["type"]]
    fields["free_memory"] = driver.memory_info(ordinal)[0]
    devices.append({{"driver": {name!r}, "ordinal": ordinal, **fields}})
print(json.dumps({{"description": driver.description, "devices": devices}}))
"""

# Where a driver does not answer: what its words contain → what mends it. The first that fits.
_DRIVER_MENDS: tuple[tuple[str, str], ...] = (
    ("compiler", "apt-get install g++"),
    ("intel-sycl-rt", "pip install 'intel-sycl-rt>=2026.1,<2027' 'intel-opencl-rt>=2026.1,<2027'"),
    ("no device", "pip install --force-reinstall 'intel-opencl-rt>=2026.1,<2027'"),
    ("", "anyxpu cache --clear && anyxpu build"),
)


def _driver(name: str) -> tuple[Check, list[dict[str, Any]]]:
    """Whether a driver is built and loads, and the devices it shows, without torch."""
    try:
        built = "built" if build.driver(name).is_built() else "built just now"
    except CacheError as error:
        return Check(f"driver {name}", "missing", str(error)), []
    except build.BuildError as error:
        return Check(f"driver {name}", "missing", str(error), _mend(str(error))), []
    devices = os.environ.get("ANYXPU_DEVICES", "0")
    source = _DRIVER_PROBE.format(name=name, devices=int(devices) if devices.isdecimal() else 0)
    answer, problem = _probe(source)
    if answer is None:
        return Check(f"driver {name}", "missing", problem, _mend(problem)), []
    count = len(answer["devices"])
    detail = f"{built}; {answer['description']}; {count} device{'' if count == 1 else 's'}"
    return Check(f"driver {name}", "ok", detail), answer["devices"]


def _mend(problem: str) -> str:
    return next(command for words, command in _DRIVER_MENDS if words.lower() in problem.lower())


def _gpus(devices: list[dict[str, Any]]) -> Iterator[Check]:
    """An Intel GPU that the kernel shows and the driver does not."""
    vendors = [p for p in Path("/sys/class/drm").glob("renderD*/device/vendor") if p.read_text().strip() == "0x8086"]
    seen = [device for device in devices if device["driver"] == "sycl" and device["type"] == "gpu"]
    if vendors and not seen:
        detail = "this machine has an Intel GPU, but its Level Zero driver is not installed or may not open the device"
        yield Check("intel gpu", "optional", detail, "apt-get install libze1 libze-intel-gpu1")
    elif not seen:
        yield Check("intel gpu", "note", "none in this machine; xpu is the CPU")
    else:
        yield Check("intel gpu", "ok", ", ".join(device["name"] for device in seen))


_AUTOLOAD_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch
from anyxpu.runtime import status
answer = {"active": status.active, "reason": status.reason, "available": torch.xpu.is_available(), "error": ""}
try:
    answer["sum"] = torch.ones(8, device="xpu").sum().item()
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
from anyxpu import patches
answer["changes"] = patches.examine() if answer["active"] else {}
print(json.dumps(answer))
"""

# Why a torch that imports has no xpu: the sign of it → the command that mends it. The first that fits.
_AUTOLOAD_MENDS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda reason: os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0", "unset TORCH_DEVICE_BACKEND_AUTOLOAD"),
    (lambda reason: reason.startswith("ANYXPU_DISABLE"), "unset ANYXPU_DISABLE"),
    (lambda reason: "not been asked" in reason, f"pip install --no-deps {build.PACKAGE.parent}"),
    (lambda reason: "ANYXPU_DRIVER" in reason, "unset ANYXPU_DRIVER"),
    (lambda reason: "ANYXPU_DEVICES" in reason, "unset ANYXPU_DEVICES"),
    (lambda reason: "set ANYXPU_CACHE_DIR" in reason, "export ANYXPU_CACHE_DIR=/a/folder/of/yours"),
    (lambda reason: "g++" in reason, "apt-get install g++"),
    (lambda reason: True, "anyxpu cache --clear && anyxpu build"),
)


def _autoload() -> tuple[bool, Check, dict[str, str]]:
    """The whole way once, as a user goes it: import torch, make a tensor, compute, read it back.

    Returns:
        whether it worked, what to say of it, and how it went with each change to torch (:func:`patches.states`).
    """
    if importlib.util.find_spec("torch") is None:
        return False, Check("xpu", "missing", "torch is not installed", f"pip install 'torch{PACKAGES['torch']}'"), {}
    answer, problem = _probe(_AUTOLOAD_PROBE)
    if answer is None:
        return False, Check("xpu", "missing", problem, _autoload_mend(problem)), {}
    # The null driver computes nothing, so there the sum proves nothing either way.
    if answer["available"] and not answer["error"]:
        by = "anyxpu, loaded with torch" if answer["active"] else f"torch itself ({answer['reason']})"
        return True, Check("xpu", "ok", f"works; supplied by {by}"), answer["changes"]
    reason = _short(answer["reason"] or answer["error"])
    return False, Check("xpu", "missing", reason, _autoload_mend(reason)), answer["changes"]


def _changes(made: dict[str, str]) -> list[dict[str, Any]]:
    """The table of :mod:`anyxpu.patches` with each change's state here: "made", "not for this torch" or "left out"."""

    def state(patch: patches.Patch) -> str:
        reason = made.get(patch.name, f"{patch.module} was not imported")
        if not reason:
            return "made"
        return "left out" if patch.is_for(about.version("torch") or "") else "not for this torch"

    return [
        {
            "name": patch.name,
            "changes": f"{patch.module}: {', '.join(patch.needs)}",
            "versions": f"{patch.since or supported.OLDEST} to {patch.until or supported.NEWEST}",
            "why": patch.why,
            "without": patch.without,
            "state": state(patch),
            "reason": made.get(patch.name, ""),
        }
        for patch in patches.TABLE
    ]


def _autoload_mend(reason: str) -> str:
    return next(command for fits, command in _AUTOLOAD_MENDS if fits(reason))


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("ANYXPU_") or name in FOREIGN_VARIABLES
    }


_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "32"),
    "missing": ("MISSING", "31"),
    "optional": ("optional", "33"),
    "note": ("note", "2"),
}


def show(findings: Findings) -> None:
    """Print the findings as text, in colour on a terminal."""
    colour = sys.stdout.isatty()

    def mark(state: State) -> str:
        word, code = _MARKS[state]
        return f"\033[{code}m{word:<8}\033[0m" if colour else f"{word:<8}"

    for check in findings.checks:
        print(f"{mark(check.state)} {check.name:<28} {check.detail}")
        if check.mend:
            print(f"{'':<8} {'':<28} mend: {check.mend}")
    chosen = os.environ.get("ANYXPU_DRIVER", "sycl")
    for device in (device for device in findings.devices if device["driver"] == chosen):
        print(f"\ndevice {device['ordinal']} of driver {device['driver']}")
        for name, value in device.items():
            if name not in ("driver", "ordinal"):
                print(f"  {name:<56} {value}")
    if findings.changes:
        print("\nwhat anyxpu changes in torch's Python")
    for change in findings.changes:
        print(f"  {change['name']:<26} {change['state']:<19} {change['changes']}")
        print(f"  {'':<26} {change['versions']:<19} why: {change['why']}")
        print(f"  {'':<26} {'':<19} lost without it: {change['without']}")
        if change["state"] == "left out":
            print(f"  {'':<26} {'':<19} left out: {change['reason']}")
    print("\nenvironment" + ("" if findings.variables else ": no variable that anyxpu reads is set"))
    for name, value in findings.variables.items():
        print(f"  {name}={value}")
    for complaint in variables.complaints():
        print(f"  ! {complaint}")
    print(f"\n{'xpu works here' if findings.usable else 'xpu does not work here; see what is MISSING above'}")


def main(arguments: list[str] | None = None) -> int:
    """Examine, print or write, and return the exit status: 0 if xpu is usable, else 1."""
    parser = argparse.ArgumentParser(prog="anyxpu doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the findings as JSON; - for stdout")
    target = parser.parse_args(arguments).json
    findings = examine()
    if target != "-":
        show(findings)
    if target:
        text = json.dumps(findings.as_dict(), indent=1) + "\n"
        if target == "-":
            sys.stdout.write(text)
        else:
            Path(target).write_text(text)
    return 0 if findings.usable else 1


if __name__ == "__main__":
    sys.exit(main())
