"""``anyxpu get-ocloc``: Intel's offline GPU compiler from Debian's archive, unpacked into a folder of its own."""

from __future__ import annotations

import shlex
from pathlib import Path

from anyxpu import debian
from anyxpu.cache import cache_dir, make_folder
from anyxpu.ocloc import VARIABLE, OclocError

_PACKAGES = ("intel-ocloc", "libigc2", "libigdfcl2", "libigdgmm12", *debian.C_LIBRARY)
_OTHERWISE = f"Install intel-ocloc in another way and name the program in {VARIABLE}."


def install(prefix: Path | None = None, suite: str | None = None, say: debian.Say = lambda _: None) -> Path:
    """Unpack the compiler under ``prefix`` (in anyxpu's cache where None is given); the program's path.

    What is already there is replaced once the new one works.

    Raises:
        OclocError: apt-get or dpkg-deb is missing, no Debian archive is configured, or a step failed.
    """
    target = (prefix or cache_dir("ocloc")).absolute()
    try:
        debian.unpack(_PACKAGES, target, _finish, otherwise=_OTHERWISE, suite=suite, say=say)
    except debian.DebianError as error:
        raise OclocError(f"get-ocloc: {error}") from error
    return target / "bin/ocloc"


def _finish(made: Path, target: Path) -> None:
    # The launcher names its folder, so it is written for where it will be; here it is only tried.
    _write_launcher(made, made)
    debian.run([str(made / "bin/ocloc"), "ids", "bmg"])
    _write_launcher(made, target)


def _write_launcher(made: Path, final: Path) -> None:
    programs = sorted((made / "root/usr/bin").glob("ocloc*"), key=lambda p: (len(p.name), p.name))
    if not programs:
        raise debian.DebianError("the package intel-ocloc has no program ocloc")
    library = debian.libraries(final)
    program = final / "root/usr/bin" / programs[-1].name
    loader, path = shlex.quote(str(library / debian.LOADER)), shlex.quote(str(library))
    launcher = made / "bin/ocloc"
    make_folder(launcher.parent)
    launcher.write_text(f'#!/bin/sh\nexec {loader} --library-path {path} {shlex.quote(str(program))} "$@"\n')
    launcher.chmod(0o755)
