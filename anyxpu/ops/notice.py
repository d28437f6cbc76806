"""What is said at the line of the program that called an operator: that the host served it, what it is warned of."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

from anyxpu.shim import lib

# What lies between a program and its operators.
_BETWEEN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")


def ran_on_the_host(name: str) -> None:
    """Warn that ATen's CPU kernel served ``name`` (``aten::cumsum``). The shim calls it once for each operator."""
    if lib().eager() == "host":
        why = "ran on the host (ATen's CPU kernel), as ANYXPU_EAGER=host asks"
    else:
        why = "has no kernel for xpu yet that takes these arguments and ran on the host (ATen's CPU kernel)"
    said = (
        f"anyxpu: {name} {why}. This is said once an operator; `anyxpu ops` lists how each is served, and "
        "anyxpu.ops.counters() how often."
    )
    warn(said)


def warn(said: str) -> None:
    """Warn at the line of the program that called an operator."""
    frame = _caller()
    if frame is None:  # a thread without a program's frames, as autograd's
        warnings.warn(said, UserWarning, stacklevel=2)
        return
    module = frame.f_globals
    warnings.warn_explicit(
        said,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=str(module.get("__name__", "__main__")),
        registry=module.setdefault("__warningregistry__", {}),
        source=None,
    )


def place() -> str:
    """The line of the program that called an operator, for an error that names it: ``" at train.py:12"``."""
    frame = _caller()
    if frame is None:  # autograd's thread
        return " in a backward pass (torch.autograd.detect_anomaly() names the line of its forward one)"
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}"


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame
