"""Eager operators on xpu: structural ones by the shim, libraries, compiled kernels, and the host path at the end.

anyxpu.ops.counters()               how often each operator ran, and how it was served
anyxpu.ops.resolve("aten::mm.out")  how it would be served now
anyxpu.ops.fallbacks()              what a library did not serve as it came, why, and what served it instead
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from anyxpu.ops import (
    attention,
    classes,
    compiled,
    complex_compositions,
    complex_numbers,
    foreach,
    indexing,
    kernels,
    nested_attention,
    pointwise,
    recurrent,
    reductions,
    registry,
)
from anyxpu.shim import lib

if TYPE_CHECKING:  # not for the sake of one name: it loads what `import torch` does without
    from anyxpu.onednn.fallbacks import Fallback


def register() -> None:
    """Give torch the operators. Called once by the install; starts no driver and compiles nothing."""
    lib().set_kernel_provider(kernels.provide)
    lib().set_replay(os.environ.get("ANYXPU_REPLAY") != "0")
    attention.register()
    nested_attention.register()
    recurrent.register()
    compiled.register()
    pointwise.register()
    reductions.register()
    complex_numbers.register()
    complex_compositions.register()
    indexing.register()
    foreach.register()
    classes.register()
    if importlib.util.find_spec("anyxpu.ops.library"):
        library = importlib.import_module("anyxpu.ops.library")
        library.register()
        for name in (*library.TABLE, *library.FEW_ROWS):
            registry.declare(f"aten::{name}", "library")
        for name in library.SUMS:
            registry.declare(f"aten::{name}", "compiled")
        for name in (*library.FUSED, *library.FUSED_FEW_ROWS):
            registry.declare(f"mkldnn::{name}", "library")


def counters() -> dict[str, dict[str, int]]:
    """How often each operator ran since the start or :func:`reset_counters`, by the way it was served.

    Returns:
        ``{"aten::add.out": {"host": 3}, ...}``; ways are ``structural``, ``library``, ``compiled`` and ``host``.
        A call whose tensors have no elements is ``structural``, though the CPU's kernel says its result's shape.
    """
    return lib().op_counters()


def reset_counters() -> None:
    """Set all counts to zero, those of :func:`fallbacks` too."""
    from anyxpu.onednn.fallbacks import reset

    lib().reset_op_counters()
    reset()


def fallbacks() -> dict[Fallback, int]:
    """What a library was asked for and did not do as it came, since the start or :func:`reset_counters`.

    Returns:
        Each :class:`~anyxpu.onednn.fallbacks.Fallback` (primitive, operands, reason, what served it instead), and how
        often; the most frequent first.
    """
    from anyxpu.onednn.fallbacks import seen

    return seen()


def resolve(op: str) -> str:
    """How ``op`` is served on xpu now; see :func:`anyxpu.ops.registry.resolve`."""
    return registry.resolve(op)


def host_call(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` by ATen's CPU kernel, whatever else is registered for it; counted as host.

    For a kernel that declines a call: it hands the call on as it came.

    Args:
        op: an overload, as ``torch.ops.aten.mm.default``.
        args, kwargs: the operator's own; xpu tensors are read and written where they are.

    Returns:
        What the operator returns, on xpu. Raises what the CPU kernel raises.
    """
    return lib().host_call(op._schema.name, op._schema.overload_name, *args, **kwargs)
