"""Builds anyxpu's C++ (the shim and the drivers) against the torch and the Intel runtime installed here.

A torch extension fits exactly one torch version, so nothing binary is shipped: the sources travel in the wheel and
are compiled once per (sources, torch, Python) into the user's cache, by g++ and nothing else.
"""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from anyxpu.cache import VARIABLE, cache_dir, check_owner, digest, is_sealed, lock, make_folder, seal, writing

PACKAGE = Path(__file__).parent
SHIM_MODULE = "anyxpu_shim"
DRIVERS = ("sycl", "null")
BATCH = 5
"""Sources that are compiled as one file."""

COMMON_FLAGS = ("-std=c++20", "-fPIC", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")
# Messages name our files as anyxpu/…, wherever the package lies.
OWN_HEADERS = (f"-I{PACKAGE}", f"-ffile-prefix-map={PACKAGE}=anyxpu")

Report = Callable[[str], None]


class BuildError(RuntimeError):
    """The C++ half could not be built; the message holds the compiler's own words and the way out."""


@dataclass(frozen=True)
class Library:
    """One shared library: what it is made from, and what changes its bits."""

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    compile_flags: tuple[str, ...]
    include_flags: tuple[str, ...]
    """Where headers lie. Only paths: ``versions`` says what they hold, so another environment's objects serve too."""
    link_flags: tuple[str, ...]
    versions: tuple[str, ...]

    def key(self) -> str:
        texts = [p.name.encode() + b"\0" + p.read_bytes() for p in (*self.sources, *self.headers)]
        return digest(self.name, *self.compile_flags, *self.link_flags, *self.versions, *texts)[:20]

    def path(self) -> Path:
        return cache_dir("build") / f"{self.name}-{self.key()}" / f"{self.name}.so"

    def is_built(self) -> bool:
        """Is it in the cache, undamaged? Loading a library that was cut short would end the process."""
        return is_sealed(self.path())


def _package_files(*patterns: str) -> tuple[Path, ...]:
    return tuple(sorted(p for pattern in patterns for p in PACKAGE.glob(pattern)))


@cache
def shim() -> Library:
    """The torch extension: everything of ``shim/``, against the installed torch's headers."""
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    abi = int(torch.compiled_with_cxx11_abi())
    return Library(
        name=SHIM_MODULE,
        sources=_package_files("shim/*.cpp"),
        headers=_package_files("shim/*.h", "drivers/driver.h"),
        compile_flags=(
            *COMMON_FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            f"-DTORCH_EXTENSION_NAME={SHIM_MODULE}",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
        ),
        include_flags=(
            f"-isystem{include}",
            f"-isystem{include / 'torch/csrc/api/include'}",
            f"-isystem{sysconfig.get_paths()['include']}",
            *OWN_HEADERS,
        ),
        link_flags=(
            f"-L{root / 'lib'}",
            f"-Wl,-rpath,{root / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            "-ltorch",
            "-ltorch_python",
            "-ldl",
        ),
        versions=(torch.__version__, sys.implementation.cache_tag),
    )


@cache
def sycl_prefix() -> Path | None:
    """Where the SYCL headers and libsycl of the ``intel-sycl-rt`` package lie, or None if it is not installed.

    The package puts them under the prefix of the environment it was installed to, which need not be this
    process's ``sys.prefix`` (an environment may see another one's packages).
    """
    try:
        distribution = importlib.metadata.distribution("intel-sycl-rt")
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.as_posix().endswith("include/sycl/sycl.hpp"):
            prefix = Path(os.path.abspath(str(distribution.locate_file(file)))).parents[2]
            return prefix if (prefix / "lib/libsycl.so").exists() else None
    return None


def driver(name: str) -> Library:
    """The device driver ``name`` (see drivers/driver.h)."""
    headers = _package_files("drivers/driver.h", f"drivers/{name}/*.h")
    sources = _package_files(f"drivers/{name}/*.cpp")
    if not sources:
        raise BuildError(f"anyxpu has no driver named {name!r}; ANYXPU_DRIVER may be one of {', '.join(DRIVERS)}.")
    compile_flags: tuple[str, ...] = COMMON_FLAGS
    include_flags: tuple[str, ...] = OWN_HEADERS
    link_flags: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    if name == "sycl":
        prefix = sycl_prefix()
        if prefix is None:
            raise BuildError(
                "The SYCL runtime is not installed beside this Python. Install it: "
                "pip install intel-sycl-rt intel-opencl-rt"
            )
        compile_flags += ("-DCL_TARGET_OPENCL_VERSION=300",)
        include_flags += (f"-isystem{prefix / 'include'}",)
        link_flags += (f"-L{prefix / 'lib'}", f"-Wl,--disable-new-dtags,-rpath,{prefix / 'lib'}", "-lsycl", "-lOpenCL")
        versions += (importlib.metadata.version("intel-sycl-rt"),)
    return Library(f"anyxpu_{name}", sources, headers, compile_flags, include_flags, link_flags, versions)


def sycl_program(name: str, source: str) -> Library:
    """A library of one file of this package that speaks SYCL; ``source`` is its path in the package.

    Raises:
        BuildError: the SYCL runtime is not installed.
    """
    sycl = driver("sycl")
    return replace(sycl, name=name, sources=(PACKAGE / source,), headers=())


@cache
def compiler() -> str:
    """The C++ compiler's path: ``$CXX``, or the first g++ on the PATH that links the C++ library as a shared one.

    Raises:
        BuildError: there is none.
    """
    name = os.environ.get("CXX", "g++")
    found = [path for folder in os.get_exec_path() if (path := shutil.which(name, path=folder))]
    if not found and (path := shutil.which(name)):
        found = [path]
    if not found:
        raise BuildError(f"No C++ compiler: {name!r} is not on the PATH. Install one: apt-get install g++")
    for path in found:
        if _has_shared_library(path):
            return path
    raise BuildError(
        f"{found[0]} has the C++ library only as an archive (no libstdc++.so). A library with a copy of its own cannot "
        "pass exceptions to torch. Install another and name it in CXX: apt-get install g++"
    )


def _has_shared_library(cxx: str) -> bool:
    """Whether the compiler's libstdc++ is a shared one; a compiler prints a bare name for a file it does not have."""
    done = subprocess.run([cxx, "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and os.path.isabs(done.stdout.strip())


def build(library: Library, report: Report | None = None) -> Path:
    """Return the built library's path, compiling it first where this exact one is not in the cache.

    Two processes that ask at once: one builds, the other waits. Raises :class:`BuildError`.
    """
    target = library.path()
    for path in (target.parent, target):
        check_owner(path, VARIABLE)
    if is_sealed(target):
        return target
    cxx = compiler()
    with writing(target, VARIABLE):
        make_folder(target.parent)
        with lock(target.parent / "lock"):
            if not is_sealed(target):
                objects = _compile(cxx, library, report or (lambda _: None))
                command = [cxx, "-shared", *map(str, objects), *library.link_flags]
                _make(command, target, f"link {library.name}")
    return target


def _texts(source: Path) -> list[bytes]:
    """The source and those of our own headers that it includes, directly or not."""
    seen: dict[Path, bytes] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen[path] = path.read_bytes()
        for name in re.findall(rb'^\s*#include "([^"]+)"', seen[path], re.MULTILINE):
            waiting += [p for p in (PACKAGE / name.decode(), path.parent / name.decode()) if p.exists()]
    return [seen[path] for path in sorted(seen)]


def _batches(sources: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Neighbours in the list, up to ``BATCH`` of them: each batch is compiled as one file.

    Most of a file's time goes into torch's headers (17 of 20 seconds), which a batch reads once.
    """
    count = -(-len(sources) // BATCH)
    ends = [i * len(sources) // max(count, 1) for i in range(count + 1)]
    return [tuple(sources[i:j]) for i, j in itertools.pairwise(ends)]


def _compile(cxx: str, library: Library, report: Report) -> list[Path]:
    """Compile every source; an object is kept by the digest of all that goes into it."""
    folder = cache_dir("build", "objects")

    def object_of(batch: Sequence[Path]) -> Path:
        names = [source.name for source in batch]
        texts = [text for source in batch for text in _texts(source)]
        key = digest(cxx, *library.compile_flags, *library.versions, *names, *texts)[:20]
        return folder / f"{library.name}-{batch[0].stem}-{key}.o"

    def make(batch: Sequence[Path]) -> Path:
        out = object_of(batch)
        if not is_sealed(out):
            what = ", ".join(source.name for source in batch)
            command = [cxx, *library.compile_flags, *library.include_flags, "-c"]
            if len(batch) == 1:
                command.append(str(batch[0]))
                text = None
            else:
                command += ["-xc++", "-"]
                text = "".join(f'#include "{source}"\n' for source in batch)
            _make(command, out, f"compile {what}", text)
            report(what)
        return out

    def one(batch: Sequence[Path]) -> list[Path]:
        if not is_sealed(object_of(batch)) and all(is_sealed(object_of([source])) for source in batch):
            return [object_of([source]) for source in batch]
        try:
            return [make(batch)]
        except BuildError:
            if len(batch) == 1:
                raise
        # Two of them may use one name each for its own; whatever is wrong with a file itself is said of it alone.
        return [make([source]) for source in batch]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [path for paths in pool.map(one, _batches(library.sources)) for path in paths]


def _make(command: Sequence[str], out: Path, what: str, text: str | None = None) -> None:
    """Run a compiler's ``command``, with ``text`` as its input, to make ``out``, which appears whole or not at all."""
    temporary = out.with_suffix(f".{os.getpid()}.tmp")
    command = [*command, "-o", str(temporary)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, input=text)
        if done.returncode:
            raise BuildError(
                f"anyxpu could not {what}:\n{' '.join(command)}\n{done.stderr[-6000:]}\n"
                f"(What it makes goes to {out.parent}; {VARIABLE} moves it.)"
            )
        seal(temporary)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    if done.stderr and os.environ.get("ANYXPU_BUILD_VERBOSE"):
        sys.stderr.write(done.stderr)
