"""Intel's offline compiler for its GPUs: where it is, one run of it, and what its binary says of a kernel."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyxpu.cache import cache_dir
from anyxpu.errors import AnyxpuError

# Devices by the short names that ocloc and GPUTarget("xpu", {"device": …}, 16) take.
TARGETS = ("dg2", "pvc", "bmg", "lnl", "ptl", "cri")

VARIABLE = "ANYXPU_OCLOC"
TIMEOUT_VARIABLE = "ANYXPU_OCLOC_TIMEOUT"
_DEFAULT_TIMEOUT = 300.0  # seconds
COMPILER_VARIABLE = "ANYXPU_GPU_COMPILER"  # which drivers/sycl/gpu_compiler.cpp reads too

SPIRV_MAGIC = b"\x03\x02\x23\x07"
ELF_MAGIC = b"\x7fELF"


class OclocError(AnyxpuError):
    """ocloc is missing, refused its input, or took too long; the message has its own words or the way out."""


class DegenerateBinary(OclocError):
    """ocloc reported success and its binary has no code for the kernel."""


def installed_path() -> Path:
    """Where ``anyxpu get-ocloc`` puts it."""
    return cache_dir("ocloc") / "bin" / "ocloc"


def find() -> str | None:
    """The program: ``$ANYXPU_OCLOC``, else on the PATH, else where ``anyxpu get-ocloc`` put it; None if nowhere."""
    if asked := os.environ.get(VARIABLE):
        return shutil.which(asked)
    return shutil.which("ocloc") or shutil.which(str(installed_path()))


def is_asked_for() -> bool:
    """Does ``$ANYXPU_GPU_COMPILER`` want native code by ocloc, whatever the GPU's driver compiles?

    Raises:
        AnyxpuError: it says something else than ``driver``, ``ocloc`` or nothing.
    """
    asked = os.environ.get(COMPILER_VARIABLE, "")
    if asked not in ("", "driver", "ocloc"):
        raise AnyxpuError(f"{COMPILER_VARIABLE}={asked!r} is no compiler; it is one of driver, ocloc")
    return asked == "ocloc"


@functools.cache
def version() -> str:
    """What the program says of itself, "" where there is none: another version makes other code."""
    program = find()
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=timeout())
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def timeout() -> float:
    """Seconds that one run may take, from ``$ANYXPU_OCLOC_TIMEOUT``."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        return float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        raise OclocError(f"{TIMEOUT_VARIABLE}={text!r} is not a number of seconds") from None


def run(arguments: Sequence[str], folder: Path) -> str:
    """Run ocloc in ``folder``; what it printed.

    Raises:
        OclocError: there is no ocloc, it failed, or it ran longer than :func:`timeout`.
    """
    program = find()
    if program is None:
        asked = os.environ.get(VARIABLE)
        where = f"{VARIABLE}={asked} is not a program" if asked else f"it is neither on the PATH nor in {VARIABLE}"
        raise OclocError(f"compiling for an Intel GPU needs ocloc, and {where}. Get it: anyxpu get-ocloc")
    limit = timeout()
    try:
        done = subprocess.run(
            [program, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise OclocError(
            f"ocloc ran longer than {limit:g} s and was stopped ({TIMEOUT_VARIABLE} sets the limit)"
        ) from None
    except OSError as error:
        raise OclocError(f"{program} cannot be run: {error}") from error
    output = f"{done.stdout}{done.stderr}".strip()
    if done.returncode:
        raise OclocError(f"ocloc {' '.join(arguments)} failed with status {done.returncode}:\n{output[-6000:]}")
    return output


def _compile(source: bytes, name: str, arguments: Sequence[str], extension: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="anyxpu-ocloc-") as temporary:
        folder = Path(temporary)
        (folder / name).write_bytes(source)
        log = run(["compile", "-file", name, *arguments, "-out_dir", "out"], folder)
        found = sorted((folder / "out").glob(f"*{extension}"))
        if not found:
            raise DegenerateBinary(f"ocloc wrote no {extension} file:\n{log}")
        return found[0].read_bytes(), log


def spirv(source: str, device: str, options: str) -> bytes:
    """OpenCL C to SPIR-V for ``device``.

    Raises:
        OclocError: see :func:`run`; the message holds the compiler's own.
    """
    return _compile(source.encode(), "kernel.cl", ["-device", device, "-options", options, "-spv_only"], ".spv")[0]


def zebin(module: bytes, device: str, options: str) -> bytes:
    """SPIR-V to native code for ``device``: an ELF file."""
    arguments = ["-spirv_input", "-device", device]
    if options:
        arguments += ["-options", options]
    return _compile(module, "kernel.spv", arguments, ".bin")[0]


@dataclass(frozen=True)
class KernelInfo:
    """What a native binary says of one kernel.

    Attributes:
        grf_count: general registers a thread.
        simd_size: work-items a thread.
        spill_bytes: private memory for spilled registers, a thread.
        threads: hardware threads of an execution unit at this number of registers.
        shared_bytes: shared local memory a work-group.
        barriers: named barriers.
        dpas: does it use the matrix engine?
    """

    grf_count: int
    simd_size: int
    spill_bytes: int
    threads: int
    shared_bytes: int
    barriers: int
    dpas: bool


def inspect(binary: bytes, kernel: str) -> KernelInfo | None:
    """Read ``.ze_info``; None where the binary has no such section.

    Raises:
        DegenerateBinary: the binary has no code for ``kernel``, or is damaged.
    """
    with _undamaged():
        return _inspect(binary, kernel)


@contextlib.contextmanager
def _undamaged() -> Iterator[None]:
    """Of what is damaged, the readers of ELF and YAML raise whatever their code happens to meet."""
    try:
        yield
    except DegenerateBinary:
        raise
    except Exception as error:
        raise DegenerateBinary(f"the binary is damaged: {type(error).__name__}: {error}") from error


def _inspect(binary: bytes, kernel: str) -> KernelInfo | None:
    import yaml  # type: ignore[import-untyped]
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(binary))
    code = file.get_section_by_name(f".text.{kernel}")
    if code is None or not code["sh_size"]:
        raise DegenerateBinary(f"the binary has no code for {kernel}")
    section = file.get_section_by_name(".ze_info")
    if section is None:
        return None
    about = yaml.safe_load(section.data().rstrip(b"\0"))
    entry = next((k for k in about.get("kernels", ()) if k["name"] == kernel), None)
    if entry is None:
        raise DegenerateBinary(f"the binary's description has no kernel {kernel}")
    environment = entry["execution_env"]
    return KernelInfo(
        grf_count=int(environment["grf_count"]),
        simd_size=int(environment["simd_size"]),
        spill_bytes=_spill_bytes(entry, environment),
        threads=int(environment.get("eu_thread_count", 0)),
        shared_bytes=int(environment.get("slm_size", 0)),
        barriers=int(environment.get("barrier_count", 0)),
        dpas=bool(environment.get("has_dpas", False)),
    )


def disassemble(binary: bytes, device: str, kernel: str) -> str:
    """The kernel's instructions, one a line.

    Raises:
        OclocError: see :func:`run`.
    """
    with tempfile.TemporaryDirectory(prefix="anyxpu-ocloc-") as temporary:
        folder = Path(temporary)
        (folder / "kernel.bin").write_bytes(binary)
        run(["disasm", "-file", "kernel.bin", "-device", device, "-dump", "dump"], folder)
        return (folder / "dump" / f".text.{kernel}.asm").read_text()


# A message that loads and names no register to load into; the comment is the disassembler's.
_PREFETCH = re.compile(r"^.*\bsend\S*\s+\(\S+\)\s+null\s.*//.*\bload\S*\.ugm", re.MULTILINE)


def prefetches(assembly: str) -> int:
    """How many of a kernel's instructions (see :func:`disassemble`) only bring memory into the cache."""
    return len(_PREFETCH.findall(assembly))


def build_flags(binary: bytes) -> str:
    """The options that a binary was built with.

    Raises:
        DegenerateBinary: it is damaged.
    """
    from elftools.elf.elffile import ELFFile

    with _undamaged():
        section = ELFFile(io.BytesIO(binary)).get_section_by_name(".misc.buildOptions")
        return section.data().rstrip(b"\0").decode() if section else ""


def _spill_bytes(entry: dict[str, object], environment: dict[str, object]) -> int:
    """IGC writes ``spill_size`` for a thread where there is any."""
    return int(str(environment.get("spill_size", entry.get("spill_size", 0))))
