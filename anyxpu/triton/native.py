"""From OpenCL C to native code of a GPU, with the number of registers that serves a kernel.

Who makes it, in this order: the GPU's own driver, where it is here and takes OpenCL C (Intel's OpenCL driver does, in
this process); ocloc, whose SPIR-V the driver finishes where the GPU is here; else there is one error that names both.
``$ANYXPU_GPU_COMPILER=ocloc`` has ocloc make all of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anyxpu import ocloc
from anyxpu.errors import AnyxpuError

GrfMode = Literal["default", "128", "256", "auto"]
GRF_OPTIONS: dict[str, str] = {
    "default": "",
    "128": "-cl-intel-128-GRF-per-thread",
    "256": "-cl-intel-256-GRF-per-thread",
    "auto": "-cl-intel-enable-auto-large-GRF-mode",
}

# What OpenCL's compilers round correctly by: all divisions and square roots of a kernel in float32.
ROUNDING = "-cl-fp32-correctly-rounded-divide-sqrt"

# Spilled bytes a thread from which a second compile with 256 registers is worth its time.
SPILL_LIMIT = 64

# With 256 registers half as many threads are resident, and a work-group has to be resident as a whole.
_THREADS_AT_256 = 32


@dataclass(frozen=True)
class Native:
    """Native code and how it was made.

    Attributes:
        code: the ELF file.
        info: what it says of the kernel; None where it says nothing.
        flags: the options it was built with.
    """

    code: bytes
    info: ocloc.KernelInfo | None
    flags: str

    @property
    def spills(self) -> int:
        """Bytes a thread; 0 where it is not known."""
        return self.info.spill_bytes if self.info else 0

    @property
    def registers(self) -> int:
        """General registers a thread, as the code says; where it says nothing, see :func:`registers_of`."""
        return self.info.grf_count if self.info else registers_of(self.flags)


def registers_of(flags: str) -> int:
    """Registers a thread where the build flags fix them, else 0."""
    return next((int(mode) for mode in ("128", "256") if GRF_OPTIONS[mode] in flags), 0)


def build(module: bytes, kernel: str, device: str, mode: str, warps: int) -> Native:
    """SPIR-V to native code for ``device`` by ocloc; see :func:`choose`.

    Raises:
        OclocError: ocloc is missing, failed, or took too long.
        DegenerateBinary: it made no code, also with more registers.
    """
    return choose(lambda flags: ocloc.zebin(module, device, flags), kernel, mode, warps)


def choose(compile: Callable[[str], bytes], kernel: str, mode: str, warps: int, options: str = "") -> Native:
    """Native code with the registers that a GRF mode asks for.

    In the mode ``default`` a kernel that spills more than :data:`SPILL_LIMIT`, or whose code is not there, is compiled
    again with 256 registers, and the better of the two is kept.

    Args:
        compile: from build options to an ELF file; what it raises passes through.
        options: build options beside that of the mode.

    Raises:
        DegenerateBinary: there is no code, also with more registers.
    """
    check_mode(mode)
    try:
        first = _compiled(compile, kernel, mode, options)
    except ocloc.DegenerateBinary:
        if mode != "default" or warps > _THREADS_AT_256:
            raise
        return _compiled(compile, kernel, "256", options)
    if mode != "default" or first.spills <= SPILL_LIMIT or warps > _THREADS_AT_256:
        return first
    second = _compiled(compile, kernel, "256", options)
    return second if second.spills < first.spills else first


def _compiled(compile: Callable[[str], bytes], kernel: str, mode: str, options: str) -> Native:
    flags = " ".join(option for option in (GRF_OPTIONS[mode], options) if option)
    code = compile(flags)
    info = ocloc.inspect(code, kernel)
    if info is None:
        warnings.warn(
            f"anyxpu: the native code of {kernel} has no .ze_info: its registers and spills are not known", stacklevel=2
        )
    return Native(code, info, flags)


def spirv(source: str, target: str, options: str) -> bytes:
    """OpenCL C to SPIR-V by ocloc, for the GPU that is here and whose driver does not take OpenCL C.

    Args:
        target: the device's short name; SPIR-V is of no one device, so one that ocloc does not know serves too.

    Raises:
        OclocError: ocloc is missing (with both ways out), refused the source, or took too long.
    """
    if ocloc.find() is None and ocloc.is_asked_for():
        raise ocloc.OclocError(f"{ocloc.COMPILER_VARIABLE}=ocloc, and ocloc is not installed. Get it: anyxpu get-ocloc")
    if ocloc.find() is None:
        raise ocloc.OclocError(
            "nothing here compiles OpenCL C for this GPU: neither Intel's OpenCL driver for it (apt-get install "
            "intel-opencl-icd) nor ocloc (anyxpu get-ocloc) is installed; one of them is enough"
        )
    return ocloc.spirv(source, target if target in ocloc.TARGETS else ocloc.TARGETS[0], options)


def check_mode(mode: str) -> None:
    """Raise ValueError unless ``mode`` is a GRF mode."""
    if mode not in GRF_OPTIONS:
        raise ValueError(f"grf_mode={mode!r}: there is no such mode; use one of {', '.join(GRF_OPTIONS)}")


def module_format(code: bytes) -> str:
    """The driver's word for a GPU binary of either kind: ``native`` or ``spirv``.

    Raises:
        AnyxpuError: it is neither.
    """
    if code.startswith(ocloc.ELF_MAGIC):
        return "native"
    if code.startswith(ocloc.SPIRV_MAGIC):
        return "spirv"
    raise AnyxpuError("the kernel's binary is neither native code nor SPIR-V; its cache file is damaged")
