"""Operators served by oneDNN: their registration on dispatch key XPU, and what happens to calls it declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anyxpu.onednn import convolution, matmul
from anyxpu.ops import registry

NAMESPACE = "aten"

# Overload -> what serves it. The operators these stand for (linear, matmul, mv, conv2d, ...) are composites of them.
TABLE: dict[str, Callable[..., Any]] = {
    "mm": matmul.mm,
    "mm.out": matmul.mm_out,
    "addmm": matmul.addmm,
    "addmm.out": matmul.addmm_out,
    "addmm_": matmul.addmm_,
    "bmm": matmul.bmm,
    "bmm.out": matmul.bmm_out,
    "baddbmm": matmul.baddbmm,
    "baddbmm.out": matmul.baddbmm_out,
    "baddbmm_": matmul.baddbmm_,
    "addmv": matmul.addmv,
    "addmv.out": matmul.addmv_out,
    "addmv_": matmul.addmv_,
    "dot": matmul.dot,
    "vdot": matmul.dot,
    "convolution_overrideable": convolution.forward,
    "convolution_backward_overrideable": convolution.backward,
}
