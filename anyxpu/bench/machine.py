"""What a result was measured on: the machine and the versions. Only the standard library is needed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from anyxpu import processor

PACKAGES = (
    "anyxpu",
    "torch",
    "triton",
    "intel-sycl-rt",
    "intel-opencl-rt",
    "onednn",
    "transformers",
)

_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "amx_fp16")


def version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cxx_version() -> str | None:
    """First line of the C++ compiler's ``--version`` (``$CXX`` or g++), or None where there is none."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


def versions() -> dict[str, str | None]:
    """Versions of Python, the compiler, and every package that changes a result; None where it is not installed."""
    return {
        "python": platform.python_version(),
        "c++": cxx_version(),
        **{package: version(package) for package in PACKAGES},
    }


def machine() -> dict[str, Any]:
    """The CPU, its memory, and the xpu devices if this process has torch loaded and a working xpu."""
    described: dict[str, Any] = {
        "cpu": processor.model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_flags": [flag for flag in _CPU_FLAGS if flag in processor.instructions()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        described["torch_threads"] = torch.get_num_threads()
        if torch.xpu.is_available():
            described["xpu"] = [torch.xpu.get_device_name(i) for i in range(torch.xpu.device_count())]
    return described
