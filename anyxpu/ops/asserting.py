"""Conditions in tensors that are asserted without waiting for them, as on every accelerator: by a kernel that tells the
host, which raises an error at its next wait (shim/assertions.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import kernels

_SAID = "Expected Tensor with single nonzero value, but got zero"  # where the caller says nothing


@lru_cache(maxsize=256)
def _kernel(device: int, message: str) -> Callable[..., None]:
    return kernels.launcher(
        device, ("assertions.cl", "assert.cl"), "", "holds", ["*condition"], 1, assertions=(message,)
    )


def assert_async(condition: Tensor, message: str = "") -> Any:
    """aten::_assert_async and its form with a message: the element of ``condition`` is not zero."""
    if condition.numel() != 1:
        return NotImplemented  # the host says what is wrong with it
    true = condition if condition.dtype is torch.bool else condition != 0
    _kernel(condition.device.index, message or _SAID)(1, 1, true)
    return None


def functional_assert_async(condition: Tensor, message: str, token: Tensor) -> Any:
    """aten::_functional_assert_async.msg: the same; a copy of ``token``, which orders such calls, is returned."""
    return NotImplemented if assert_async(condition, message) is NotImplemented else token.clone()
