"""Operators served by oneDNN: their registration on dispatch key XPU, and what becomes of calls it declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anyxpu.ops import serve

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


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Loads neither oneDNN nor a driver."""
    serve.register({name: f"anyxpu.onednn.{function}" for name, function in TABLE.items()}, "library", _decline)


def _decline(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hand a call to the host."""
    from anyxpu.ops import host_call

    if name in _HOST_FORMS:
        operator, convert = _HOST_FORMS[name]
        return host_call(operator, *convert(*args, **kwargs))
    return serve.to_host(name, args, kwargs)


def _with_bias_sizes(gradient: torch.Tensor, source: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    return (gradient, source, weight, [gradient.shape[1]], *rest)


# The operators a backend overrides have no CPU kernel: the CPU is reached by those that choose a backend themselves.
_HOST_FORMS: dict[str, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    "convolution_overrideable": (torch.ops.aten.convolution.default, lambda *args: args),
    "convolution_backward_overrideable": (torch.ops.aten.convolution_backward.default, _with_bias_sizes),
}
