"""Elementwise operators of strided nested tensors: those of dense ones, on the buffers in which all parts lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops.nested import alike, buffer_of

OVERLOADS = (
    *("abs", "abs_", "sgn", "sgn_", "neg", "neg_", "sqrt", "sin", "cos", "tanh", "tanh_", "logical_not"),
    *("logical_not_", "isnan", "isinf", "isposinf", "isneginf", "relu", "relu_", "silu", "silu_", "silu_backward"),
    *("gelu", "gelu_", "gelu_backward", "threshold_backward", "native_dropout_backward", "native_dropout", "ones_like"),
    *("add.Tensor", "add_.Tensor", "sub.Tensor", "mul.Tensor", "mul_.Tensor", "div.Tensor", "eq.Tensor"),
    *("mul.Scalar", "mul_.Scalar", "div.Scalar", "eq.Scalar", "ge.Scalar", "gt.Scalar", "fill_.Scalar"),
    *("fill_.Tensor", "zero_", "normal_"),
)
"""That :func:`__getattr__` makes functions for, by the name that :func:`function` gives them."""


def function(overload: str) -> str:
    """The function of this module that serves the overload."""
    return "on_" + overload.replace(".", "_")


def __getattr__(name: str) -> Callable[..., Any]:
    for overload in OVERLOADS:
        if name == function(overload):
            made: Callable[..., Any] = globals().setdefault(name, _on_buffers(overload))
            return made
    raise AttributeError(f"module {__name__} has no attribute {name}")


def _on_buffers(overload: str) -> Callable[..., Any]:
    """The operator of dense tensors on the buffers: of nested tensors alike, numbers, and tensors of no dimension."""
    packet, _, name = overload.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), name or "default")
    in_place = operator._schema.is_mutable

    def call(*args: Any, **kwargs: Any) -> Any:
        like: Tensor | None = None
        dense: list[Any] = []
        for value in args:
            if isinstance(value, Tensor) and value.is_nested:
                if like is not None and not alike(like, value):
                    return NotImplemented
                like = value if like is None else like
                count, value = value.numel(), buffer_of(value)
                if value.numel() != count or count == 0:  # a part of what lies there is not the whole
                    return NotImplemented
            elif isinstance(value, Tensor) and value.dim() > 0:
                return NotImplemented
            dense.append(value)
        if like is None or (in_place and not args[0].is_nested):
            return NotImplemented
        if kwargs.get("memory_format") is not None or kwargs.get("layout") not in (None, torch.strided):
            return NotImplemented
        made = operator(*dense, **kwargs)
        if in_place:
            return args[0]
        places = like._nested_tensor_size(), like._nested_tensor_strides(), like._nested_tensor_storage_offsets()
        if isinstance(made, tuple):
            return tuple(torch._nested_view_from_buffer(t, *places) for t in made)
        return torch._nested_view_from_buffer(made, *places)

    return call
