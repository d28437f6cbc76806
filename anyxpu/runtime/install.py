"""Puts the bindings behind ``torch._C._xpu_*`` and lets ``torch.xpu`` see them."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import dataclass

from anyxpu import patches, supported, variables

DRIVER_VARIABLE = "ANYXPU_DRIVER"
DEVICES_VARIABLE = "ANYXPU_DEVICES"
DISABLE_VARIABLE = "ANYXPU_DISABLE"


@dataclass
class Status:
    """What :func:`install` did: ``active``, or why not."""

    active: bool = False
    reason: str = "anyxpu has not been asked to install itself yet: import torch"


status = Status()


def install() -> None:
    """Make ``torch.xpu`` real.

    Stands aside where ``ANYXPU_DISABLE=1`` is set or torch already has XPU compiled in. A failure (say, no compiler
    for the first build) is a warning: ``import torch`` goes on and ``torch.xpu.is_available()`` stays False.
    """
    import torch

    if status.active:
        return
    for complaint in variables.complaints():
        warnings.warn(f"anyxpu: {complaint}", stacklevel=2)
    if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0"):
        status.reason = f"{DISABLE_VARIABLE} is set"
        return
    if torch._C._has_xpu:
        status.reason = f"torch {torch.__version__} has XPU compiled in; anyxpu stands aside"
        return
    status.reason = supported.too_old(torch.__version__)
    if status.reason:
        warnings.warn(f"anyxpu cannot supply xpu to this torch: {status.reason}", stacklevel=2)
        _say_why_not()
        return
    if newer := supported.newer(torch.__version__):
        warnings.warn(newer, stacklevel=2)
    try:
        _install()
    except Exception as error:
        status.reason = str(error)
        warnings.warn(f"anyxpu cannot supply xpu to this torch: {error}\n(see: anyxpu doctor)", stacklevel=2)
        _say_why_not()
        return
    status.active, status.reason = True, ""


def _say_why_not() -> None:
    """Have ``torch.xpu`` say why it is not there where it is used, rather than that torch was not compiled with it."""
    import torch

    def _lazy_init() -> None:
        raise RuntimeError(f"anyxpu cannot supply xpu to this torch: {status.reason} (see: anyxpu doctor)")

    torch.xpu._lazy_init = _lazy_init


def _install() -> None:
    import torch

    from anyxpu.runtime import bindings, finishing
    from anyxpu.shim import lib

    lib().set_driver_resolver(choose_driver)
    for name, value in bindings.table().items():
        setattr(torch._C, name, value)
    torch._C._has_xpu = True  # type: ignore[misc]
    # These modules chose their dummies when torch was imported; let them choose again. Leaves first: torch.xpu
    # takes names from its submodules.
    for name in ("torch.xpu.streams", "torch.xpu.memory", "torch.xpu.graphs", "torch.xpu"):
        if name in sys.modules:
            importlib.reload(sys.modules[name])
    _register_upper_rooms()
    patches.install()
    finishing.install()


def _register_upper_rooms() -> None:
    """Let the rooms above put in what they have for torch, by name: runtime itself does not depend on them."""
    for room in ("anyxpu.ops", "anyxpu.inductor"):
        importlib.import_module(room).register()


def choose_driver() -> tuple[str, int]:
    """The path of the driver's library and how many devices to ask it for, from the environment.

    ``ANYXPU_DRIVER`` is ``sycl`` (default) or ``null``; ``ANYXPU_DEVICES=N`` shows the first device as N. Called
    by the shim when ``xpu`` is first used; builds the driver where it is not in the cache.

    Raises:
        ValueError: a variable makes no sense.
        anyxpu.build.BuildError: the driver cannot be built.
    """
    from anyxpu import build
    from anyxpu.runtime import accelerator

    name = os.environ.get(DRIVER_VARIABLE) or "sycl"
    if name not in build.DRIVERS:
        raise ValueError(f"{DRIVER_VARIABLE}={name!r}: there is no such driver; use one of {', '.join(build.DRIVERS)}")
    asked = os.environ.get(DEVICES_VARIABLE) or "0"
    if not asked.isdecimal() or int(asked) > 64:
        raise ValueError(f"{DEVICES_VARIABLE}={asked!r}: expected a number of devices from 1 to 64")
    accelerator.choose()
    return str(build.build(build.driver(name))), int(asked)
