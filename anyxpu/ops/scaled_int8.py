"""torchao::scaled_int8_mm, int8 mixed precision training's product, whose definition and CUDA kernel are torchao's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn.integer import int_mm
from anyxpu.ops.scaled import rescale

_WHAT = "torchao::scaled_int8_mm on xpu"


def scaled_int8_mm(a: Tensor, b: Tensor, row_scale: Tensor, col_scale: Tensor) -> Tensor:
    """``(a @ b) * row_scale[:, None] * col_scale``, of exact int32 sums.

    Args:
        a, b: int8 ``(m, k)`` and ``(k, n)``, of any strides.
        row_scale, col_scale: ``m`` and ``n`` numbers of one floating-point dtype; ``col_scale`` may be one number.

    Returns:
        ``(m, n)`` of the scales' dtype.

    Raises:
        RuntimeError: operands that do not fit.
    """
    m, n = a.shape[0], b.shape[-1]
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"{_WHAT} wants (m, k) and (k, n), not {tuple(a.shape)} and {tuple(b.shape)}")
    if row_scale.numel() != m or col_scale.numel() not in (1, n) or not row_scale.is_floating_point():
        shapes = f"{tuple(row_scale.shape)} and {tuple(col_scale.shape)}"
        raise RuntimeError(f"{_WHAT} wants {m} and {n} scales, not {row_scale.dtype} {shapes}")
    for name, operand in (("B", b), ("row_scale", row_scale), ("col_scale", col_scale)):
        if operand.device != a.device:
            raise RuntimeError(f"{_WHAT} wants {name} on {a.device}, not on {operand.device}")
    out = a.new_empty((m, n), dtype=row_scale.dtype)
    if not out.numel():
        return out
    if not a.shape[1]:
        return out.zero_()
    sums: Any = int_mm(a, b)
    if sums is NotImplemented:
        sums = torch._int_mm(a, b)
    rescale(sums, (row_scale, col_scale), None, None, out)
    return out
