"""Programs and libraries of Intel out of Debian's archive, each set unpacked into a folder of its own.

Nothing is installed into the system: packages are unpacked beside the C library that they were built for, and a
launcher runs what is in them with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from anyxpu.cache import make_folder
from anyxpu.errors import AnyxpuError

# The suite whose compiler and driver know all of ocloc.TARGETS.
SUITE = "forky"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
# What every program of such a folder runs with.
C_LIBRARY = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g")

Say = Callable[[str], None]


class DebianError(AnyxpuError):
    """A package could not be had or unpacked; the message says which step failed and the way out."""


def libraries(prefix: Path) -> Path:
    """Where the libraries of a folder made by :func:`unpack` lie."""
    return prefix / "root" / LIBRARIES


def unpack(
    packages: Sequence[str],
    target: Path,
    finish: Callable[[Path, Path], None],
    *,
    otherwise: str,
    suite: str | None = None,
    say: Say = lambda _: None,
) -> None:
    """Unpack ``packages`` of a suite under ``target/root``; what is there is replaced once the new one works.

    Args:
        finish: ``finish(made, target)`` writes what else belongs there into the folder ``made``, which will be
            renamed to ``target``, and tries it; what it raises leaves the old folder in place.
        otherwise: one sentence on how to do without Debian, for the errors.
        suite: :data:`SUITE` unless given.

    Raises:
        DebianError: apt-get or dpkg-deb is missing, no Debian archive is configured, or a step failed.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DebianError(
                f"{', '.join(packages[:2])} come out of Debian's packages, and that needs {tool}. {otherwise}"
            )
    make_folder(target.parent)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        folder = Path(temporary)
        made = folder / "made"
        _download(packages, folder, suite or SUITE, otherwise, say)
        say("unpacking")
        make_folder(made / "root")
        for package in sorted((folder / "archives").glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(made / "root")])
        finish(made, target)
        if target.exists():
            os.rename(target, folder / "old")
        os.rename(made, target)


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a step; what it printed.

    Raises:
        DebianError: it failed, with its own last words.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-3000:]
        raise DebianError(f"{command[0]} failed with status {done.returncode}: {words}")
    return done.stdout


def _download(packages: Sequence[str], folder: Path, suite: str, otherwise: str, say: Say) -> None:
    make_folder(folder / "lists/partial")
    make_folder(folder / "archives/partial")
    (folder / "sources.list").write_text(f"deb {_archive(otherwise)} {suite} main\n")
    apt = ["apt-get", "-qq"]
    for option in (
        f"Dir::Etc::SourceList={folder / 'sources.list'}",
        "Dir::Etc::SourceParts=-",
        f"Dir::State::Lists={folder / 'lists'}",
        f"Dir::Cache::archives={folder / 'archives'}",
        f"Dir::Cache={folder}",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
    ):
        apt += ["-o", option]
    say(f"reading Debian {suite}'s list of packages")
    run([*apt, "update"])
    say("downloading " + ", ".join(packages))
    run([*apt, "download", *packages], folder / "archives")


def _archive(otherwise: str) -> str:
    """The address of the Debian archive that this machine uses."""
    sites = run(["apt-get", "indextargets", "--format", "$(SITE)"]).split()
    found = next((s for s in sorted(set(sites)) if s.rstrip("/").endswith("/debian")), None)
    if found is None:
        raise DebianError(f"a Debian archive is needed, and apt-get has none here. {otherwise}")
    return found
