"""``anyxpu get-ocloc``: Intel's offline GPU compiler from Debian's archive, unpacked into a folder of its own.

Nothing is installed into the system: the packages are unpacked beside the C library that they were built for, and a
launcher runs the compiler with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from anyxpu.cache import cache_dir
from anyxpu.ocloc import VARIABLE, OclocError

# The suite whose compiler knows all of ocloc.TARGETS.
SUITE = "forky"
_PACKAGES = ("intel-ocloc", "libigc2", "libigdfcl2", "libigdgmm12", "libc6", "libstdc++6", "libgcc-s1", "zlib1g")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_OTHERWISE = f"Install intel-ocloc in another way and name the program in {VARIABLE}."

Say = Callable[[str], None]


def install(prefix: Path | None = None, suite: str = SUITE, say: Say = lambda _: None) -> Path:
    """Unpack the compiler under ``prefix`` (in anyxpu's cache where None is given); the program's path.

    What is already there is replaced once the new one works.

    Raises:
        OclocError: apt-get or dpkg-deb is missing, no Debian archive is configured, or a step failed.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise OclocError(f"get-ocloc takes ocloc out of Debian's packages and needs {tool}. {_OTHERWISE}")
    target = (prefix or cache_dir("ocloc")).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        folder = Path(temporary)
        made = folder / "made"
        _download(folder, suite, say)
        say("unpacking")
        (made / "root").mkdir(parents=True)
        for package in sorted((folder / "archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(made / "root")])
        # The launcher names its folder, so it is written for where it will be; here it is only tried.
        _write_launcher(made, made)
        _run([str(made / "bin/ocloc"), "ids", "bmg"])
        _write_launcher(made, target)
        if target.exists():
            os.rename(target, folder / "old")
        os.rename(made, target)
    return target / "bin/ocloc"


def _download(folder: Path, suite: str, say: Say) -> None:
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "archives/partial").mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {_archive()} {suite} main\n")
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
    _run([*apt, "update"])
    say("downloading " + ", ".join(_PACKAGES))
    _run([*apt, "download", *_PACKAGES], folder / "archives")


def _archive() -> str:
    """The address of the Debian archive that this machine uses."""
    sites = _run(["apt-get", "indextargets", "--format", "$(SITE)"]).split()
    found = next((s for s in sorted(set(sites)) if s.rstrip("/").endswith("/debian")), None)
    if found is None:
        raise OclocError(f"get-ocloc needs a Debian archive, and apt-get has none here. {_OTHERWISE}")
    return found


def _write_launcher(made: Path, final: Path) -> None:
    library = final / "root" / _LIBRARIES
    programs = sorted((made / "root/usr/bin").glob("ocloc*"), key=lambda p: (len(p.name), p.name))
    if not programs:
        raise OclocError("the package intel-ocloc has no program ocloc")
    program = final / "root/usr/bin" / programs[-1].name
    loader, path = shlex.quote(str(library / "ld-linux-x86-64.so.2")), shlex.quote(str(library))
    launcher = made / "bin/ocloc"
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(f'#!/bin/sh\nexec {loader} --library-path {path} {shlex.quote(str(program))} "$@"\n')
    launcher.chmod(0o755)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-3000:]
        raise OclocError(f"{command[0]} failed with status {done.returncode}: {words}")
    return done.stdout
