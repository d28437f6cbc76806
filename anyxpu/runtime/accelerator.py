"""Which device is "the accelerator" in a torch that was built with CUDA.

ATen has one accelerator a process: ``torch.accelerator`` speaks of it, autograd minds its streams alone, and backward
through tensors of another accelerator fails an assertion. A wheel made for CUDA takes CUDA for it, device or not. Here
it becomes xpu where there is no CUDA device, or where ``ANYXPU_ACCELERATOR=xpu`` asks for it; beside a CUDA device it
stays CUDA otherwise. The choice is made when xpu is first used, or ``torch.accelerator`` is, and not before: to look
for CUDA devices takes time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from anyxpu.shim import lib

VARIABLE = "ANYXPU_ACCELERATOR"


def wanted() -> str:
    """``"cuda"`` or ``"xpu"``, for a torch built with CUDA.

    Raises:
        ValueError: ``ANYXPU_ACCELERATOR`` is neither.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "cuda", "xpu"):
        raise ValueError(f"{VARIABLE}={asked!r}: there is no such accelerator; use cuda or xpu")
    # The count comes from NVML where that is installed, so that a process may still fork after it.
    return asked or ("cuda" if torch.cuda.device_count() else "xpu")


@functools.cache
def choose() -> None:
    """Make the choice, once."""
    if torch.backends.cuda.is_built() and wanted() == "xpu":
        lib().become_accelerator()


def install(module: ModuleType) -> None:
    """Have the choice made by the first use of anything under ``torch.accelerator``."""
    if not torch.backends.cuda.is_built():
        return
    torch.Tensor.xpu = _of_xpu(torch.Tensor.xpu)  # type: ignore[method-assign]
    for name in dir(torch._C):
        if name == "_get_accelerator" or name.startswith("_accelerator_"):
            setattr(torch._C, name, _chosen_first(getattr(torch._C, name)))


def _of_xpu(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``Tensor.xpu`` that takes an index for one of xpu: torch takes it for one of whichever is the accelerator."""

    @functools.wraps(original, updated=())
    def xpu(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(device, int) and not isinstance(device, bool):
            device = torch.device("xpu", device)
        return original(self, device, *args, **kwargs)

    return xpu


def _chosen_first(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        choose()
        return function(*args, **kwargs)

    return call
