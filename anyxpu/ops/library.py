"""Operators served by oneDNN: their registration on dispatch key XPU, and what becomes of calls it declines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from anyxpu.shim import lib

# Operator -> the function under anyxpu.onednn that serves it, imported at the first call. linear, matmul, mv, conv2d
# and the like are torch's compositions of these.
TABLE: dict[str, str] = {
    "mm": "matmul.mm",
    "mm.out": "matmul.mm_out",
    "addmm": "matmul.addmm",
    "addmm.out": "matmul.addmm_out",
    "addmm_": "matmul.addmm_",
    "bmm": "matmul.bmm",
    "bmm.out": "matmul.bmm_out",
    "baddbmm": "matmul.baddbmm",
    "baddbmm.out": "matmul.baddbmm_out",
    "baddbmm_": "matmul.baddbmm_",
    "addmv": "matmul.addmv",
    "addmv.out": "matmul.addmv_out",
    "addmv_": "matmul.addmv_",
    "dot": "matmul.dot",
    "vdot": "matmul.dot",
    "convolution_overrideable": "convolution.forward",
    "convolution_backward_overrideable": "convolution.backward",
}

_registered: list[torch.library.Library] = []


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Loads neither oneDNN nor a driver."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL", "XPU")
    for name in TABLE:
        library.impl(name, _served(name))
    _registered.append(library)


def _served(name: str) -> Callable[..., Any]:
    """The operator's kernel: oneDNN's, counted, and the host for what it declines."""
    kernel: Callable[..., Any] | None = None
    count: Callable[[], None] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel, count
        if kernel is None or count is None:
            module, _, function = TABLE[name].partition(".")
            count = lib().OpCount(f"aten::{name}", "library")
            kernel = getattr(importlib.import_module(f"anyxpu.onednn.{module}"), function)
        result = kernel(*args, **kwargs)
        if result is NotImplemented:
            return _decline(name, args, kwargs)
        count()
        return result

    return call


def _decline(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hand a call to the host, which computes it or raises what CPU torch raises for such operands."""
    from anyxpu.ops import host_call

    if name in _HOST_FORMS:
        operator, convert = _HOST_FORMS[name]
        return host_call(operator, *convert(*args, **kwargs))
    packet, _, overload = name.partition(".")
    return host_call(getattr(getattr(torch.ops.aten, packet), overload or "default"), *args, **kwargs)


def _with_bias_sizes(gradient: torch.Tensor, source: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    return (gradient, source, weight, [gradient.shape[1]], *rest)


# The operators a backend overrides have no CPU kernel: the CPU is reached by those that choose a backend themselves.
_HOST_FORMS: dict[str, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    "convolution_overrideable": (torch.ops.aten.convolution.default, lambda *args: args),
    "convolution_backward_overrideable": (torch.ops.aten.convolution_backward.default, _with_bias_sizes),
}
