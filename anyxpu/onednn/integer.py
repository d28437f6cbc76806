"""Products of integers: ``_int_mm``, which torchao's dynamic int8 quantization and int8 training call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn.quantized_plans import INTEGERS, Call, compute

_WHAT = "_int_mm on xpu"


def int_mm(self: Tensor, mat2: Tensor) -> Any:
    """aten::_int_mm: ``self @ mat2`` in int32.

    Args:
        self: int8 or uint8 ``(m, k)``, of any strides.
        mat2: int8 ``(k, n)``, of any strides. oneDNN's own layout of it is made at the second product and kept.

    Returns:
        int32 ``(m, n)``; or ``NotImplemented`` where oneDNN has no such product, which the host then computes.

    Raises:
        RuntimeError: operands that do not fit.
    """
    return _product(self, mat2, None)


def int_mm_out(self: Tensor, mat2: Tensor, *, out: Tensor) -> Any:
    """aten::_int_mm.out: :func:`int_mm` into ``out``, int32 ``(m, n)`` of any strides."""
    if self.dim() == mat2.dim() == 2 and (out.dtype != torch.int32 or tuple(out.shape) != (len(self), mat2.shape[1])):
        wanted = f"torch.int32 {(len(self), mat2.shape[1])}"
        raise RuntimeError(f"{_WHAT} wants an out= of {wanted}, not {out.dtype} {tuple(out.shape)}")
    return _product(self, mat2, out)


def _product(self: Tensor, mat2: Tensor, out: Tensor | None) -> Any:
    if self.dtype not in INTEGERS or mat2.dtype != torch.int8:
        raise RuntimeError(f"{_WHAT} wants int8 (or uint8) and int8, not {self.dtype} and {mat2.dtype}")
    if not (self.dim() == mat2.dim() == 2 and self.shape[1] == mat2.shape[0]):
        raise RuntimeError(f"{_WHAT} wants (m, k) and (k, n), not {tuple(self.shape)} and {tuple(mat2.shape)}")
    for operand in (mat2, out):
        if operand is not None and operand.device != self.device:
            raise RuntimeError(f"{_WHAT} wants all operands on {self.device}, not {operand.device}")
    if 0 in (*self.shape, *mat2.shape):
        result = self.new_empty((len(self), mat2.shape[1]), dtype=torch.int32) if out is None else out
        return result.zero_()
    into = out if out is not None and torch._debug_has_internal_overlap(out) != 1 else None
    call = Call(self.contiguous(), 1.0, 0, mat2, None, None, None, torch.int32, 1.0, 0, None, into=into)
    result = compute(call)
    return result if result is NotImplemented or out is None or out is into else out.copy_(result)
