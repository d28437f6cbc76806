"""A Python environment that is another one's double, under the C library of Intel's driver.

A process that loads the driver has to run under the C library that the driver was built for, and so do the Pythons
that it starts. So the double has a ``bin`` of its own, whose ``python`` is a shell script that starts the real
interpreter under the other loader and calls itself ``sys.executable``; the packages are the real environment's, where
they lie.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from anyxpu import debian
from anyxpu.cache import cache_dir, digest, lock, make_folder, write_file
from anyxpu.simulate import SimulationError

_ABOUT = """
import json, platform, site, sys, sysconfig
print(json.dumps({
    "base": sys._base_executable, "version": "%d.%d" % sys.version_info[:2], "prefix": sys.prefix,
    "site": [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))],
    "libraries": sysconfig.get_config_var("LIBDIR") or "", "scripts": sysconfig.get_path("scripts"),
    "libc": platform.libc_ver(),
}))
"""


def resolve(command: Sequence[str], driver: Path) -> tuple[list[str], Path]:
    """What to execute for ``command``, and the folder to put first on the PATH.

    A Python interpreter, or a script that one runs, is run by its environment's double; anything else as it is, and
    finds this environment's double first on the PATH.

    Raises:
        SimulationError: there is no such command, or its Python cannot run under the driver's C library.
    """
    own = make(Path(sys.executable), driver)
    # A bare name means the environment that anyxpu runs in, as it would in an activated one.
    if os.sep not in command[0] and (own / command[0]).exists():
        return [str(own / command[0]), *command[1:]], own
    program = shutil.which(command[0])
    if program is None:
        raise SimulationError(f"there is no command {command[0]!r}")
    interpreter = _python_of(Path(program))
    if interpreter is None:
        return [program, *command[1:]], own
    folder = make(interpreter, driver)
    script = [] if _is_python(Path(program)) else [program]
    return [str(folder / "python"), *script, *command[1:]], folder


def make(python: Path, driver: Path) -> Path:
    """The ``bin`` folder of the double of ``python``'s environment.

    Raises:
        SimulationError: the interpreter does not answer, or is not of the GNU C library.
    """
    about = _about(python)
    if about["libc"][0] != "glibc":
        raise SimulationError(f"{python} is not of the GNU C library, which Intel's driver needs; use another Python")
    key = digest(json.dumps(about, sort_keys=True), str(driver), _LAYOUT)[:16]
    root = cache_dir("simulate") / key
    make_folder(root)
    with lock(root / "lock"):
        if not (root / "made").exists():
            _write(root, about, driver)
            _try(root / "bin" / "python", python)
            write_file(root / "made", b"")
    return root / "bin"


_LAYOUT = "1"  # another one where what _write makes changes


def _about(python: Path) -> dict:
    done = subprocess.run([str(python), "-c", _ABOUT], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimulationError(f"{python} does not run: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def _write(root: Path, about: dict, driver: Path) -> None:
    binaries = root / "bin"
    site = root / "lib" / f"python{about['version']}" / "site-packages"
    for folder in (binaries, site):
        make_folder(folder)
    base = Path(about["base"]).resolve()
    write_file(root / "pyvenv.cfg", f"home = {base.parent}\ninclude-system-site-packages = false\n".encode())
    # addsitedir and not a bare path: the .pth files there (editable installs) count too.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in about["site"])
    write_file(site / "anyxpu_double.pth", lines.encode())
    libraries = debian.libraries(driver)
    search = [libraries, Path(about["prefix"]) / "lib", about["libraries"], base.parent.parent / "lib"]
    search += ["/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
    path = ":".join(dict.fromkeys(str(entry) for entry in search if str(entry)))
    loader = shlex.join([str(libraries / debian.LOADER), "--library-path", path])
    python = binaries / "python"
    _script(python, f'exec {loader} --argv0 {shlex.quote(str(python))} {shlex.quote(str(base))} "$@"')
    for name in ("python3", f"python{about['version']}"):
        (binaries / name).unlink(missing_ok=True)
        (binaries / name).symlink_to("python")
    for script in sorted(Path(about["scripts"]).iterdir()):
        if script.is_file() and not _is_python(script) and _python_of(script) is not None:
            _script(binaries / script.name, f'exec {shlex.quote(str(python))} {shlex.quote(str(script))} "$@"')


def _try(double: Path, python: Path) -> None:
    """A Python whose own libraries want a newer C library than the driver's does not start under that."""
    done = subprocess.run([str(double), "-c", "import ctypes, ssl"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimulationError(
            f"{python} does not run under the C library that Intel's driver came with: {done.stderr.strip()[-500:]}. "
            "Use a Python built for an older one, or get a newer driver: anyxpu get-driver --suite sid"
        )


def _script(path: Path, line: str) -> None:
    write_file(path, f"#!/bin/sh\n{line}\n".encode())
    path.chmod(0o755)


def _is_python(program: Path) -> bool:
    return program.name.startswith("python") and _first_line(program) is None


def _first_line(program: Path) -> str | None:
    """What a script names after ``#!``; None for what is none."""
    with open(program, "rb") as file:
        if file.read(2) != b"#!":
            return None
        return file.readline(1000).decode(errors="replace").strip()


def _python_of(program: Path) -> Path | None:
    """The interpreter that a program is, or that its first line names; None for other programs."""
    if _is_python(program):
        return program
    line = _first_line(program)
    words = shlex.split(line) if line else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    found = shutil.which(words[0])
    return Path(found) if found else None
