"""Eager operators on xpu: structural ones by the shim, libraries, compiled kernels, and the host path at the end.

anyxpu.ops.counters()               how often each operator ran, and how it was served
anyxpu.ops.resolve("aten::mm.out")  how it would be served now
"""

from __future__ import annotations

import importlib
import importlib.util

from anyxpu.shim import lib


def register() -> None:
    """Give torch the operators. Called once by the install; starts no driver and compiles nothing."""
    from anyxpu.ops import kernels, printing

    lib().set_kernel_provider(kernels.provide)
    printing.install()
    if importlib.util.find_spec("anyxpu.ops.library"):
        importlib.import_module("anyxpu.ops.library").register()


def counters() -> dict[str, dict[str, int]]:
    """How often each operator ran since the start or :func:`reset_counters`, by the way it was served.

    Returns:
        ``{"aten::add.out": {"host": 3}, ...}``; ways are ``structural``, ``library``, ``compiled`` and ``host``.
    """
    return lib().op_counters()


def reset_counters() -> None:
    """Set all counts to zero."""
    lib().reset_op_counters()


def resolve(op: str) -> str:
    """How ``op`` is served on xpu now; see :func:`anyxpu.ops.registry.resolve`."""
    from anyxpu.ops import registry

    return registry.resolve(op)
