"""Intel's GPU driver (Level Zero, OpenCL and the compiler in both) from Debian's archive, in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

from anyxpu import build, debian
from anyxpu.cache import cache_dir, check_owner
from anyxpu.simulate import SimulationError

# A folder made by :func:`install`, where it is not in anyxpu's cache.
VARIABLE = "ANYXPU_GPU_DRIVER"
# The driver that the switches were found with; another one may know other switches.
TESTED_VERSION = "26.27"

_PACKAGES = (
    "libze1",
    "libze-intel-gpu1",
    "intel-opencl-icd",
    "libigc2",
    "libigdfcl2",
    "libigdgmm12",
    "libdrm2",
    *debian.C_LIBRARY,
)
_LEVEL_ZERO = "libze_intel_gpu.so.1"
_OPENCL = "intel-opencl/libigdrcl.so"
_OTHERWISE = f"Unpack those packages in another way and name the folder (it holds root/usr/lib/…) in {VARIABLE}."


def install(prefix: Path | None = None, suite: str | None = None, say: debian.Say = lambda _: None) -> Path:
    """Unpack the driver under ``prefix`` (in anyxpu's cache where None is given); the folder.

    What is already there is replaced once the new one starts.

    Raises:
        SimulationError: apt-get or dpkg-deb is missing, no Debian archive is configured, or a step failed.
    """
    target = (prefix or cache_dir("gpu-driver")).absolute()

    def finish(made: Path, target: Path) -> None:
        _check(made)
        version = next((made / "root").glob(f"{debian.LIBRARIES}/libze_intel_gpu.so.1.*"), None)
        say(f"driver {version.name.removeprefix('libze_intel_gpu.so.') if version else 'of unknown version'}")

    try:
        debian.unpack(_PACKAGES, target, finish, otherwise=_OTHERWISE, suite=suite, say=say)
    except debian.DebianError as error:
        raise SimulationError(f"get-driver: {error}") from error
    return target


def folder() -> Path:
    """Where the driver is: ``$ANYXPU_GPU_DRIVER``, else where :func:`install` put it.

    Raises:
        SimulationError: it is not there, or not whole.
    """
    asked = os.environ.get(VARIABLE)
    found = Path(asked).absolute() if asked else cache_dir("gpu-driver")
    for library in (found, opencl(found), debian.libraries(found) / _LEVEL_ZERO):
        check_owner(library, VARIABLE)
    _check(found)
    return found


def is_installed() -> bool:
    """Is there a driver to simulate with?"""
    try:
        folder()
    except SimulationError:
        return False
    return True


def _check(prefix: Path) -> None:
    libraries = debian.libraries(prefix)
    missing = [n for n in (_LEVEL_ZERO, _OPENCL, "libze_loader.so.1", debian.LOADER) if not (libraries / n).exists()]
    if missing:
        raise SimulationError(
            f"Intel's GPU driver is not in {prefix} (no {', '.join(missing)}). Get it: anyxpu get-driver"
        )


def opencl(prefix: Path) -> Path:
    """The OpenCL driver in a folder."""
    return debian.libraries(prefix) / _OPENCL


def interposer(prefix: Path) -> Path:
    """The library that the Level Zero loader takes for the driver (interposer.cpp); built where it is not yet.

    Raises:
        anyxpu.build.BuildError: it does not build.
    """
    libraries = debian.libraries(prefix)
    source = Path(__file__).with_name("interposer.cpp")
    library = build.Library(
        name="anyxpu_ze_simulated",
        sources=(source,),
        headers=(source.with_name("constants.h"),),
        compile_flags=build.COMMON_FLAGS,
        include_flags=build.OWN_HEADERS,
        # The driver needs a newer C library than the linker knows; it comes with it.
        link_flags=(
            f"-L{libraries}",
            "-Wl,--no-as-needed,--allow-shlib-undefined",
            f"-l:{_LEVEL_ZERO}",
            f"-Wl,--disable-new-dtags,-rpath,{libraries}",
            "-ldl",
        ),
        versions=(),
    )
    return build.build(library)
