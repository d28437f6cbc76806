"""Taking by an index, and joining: which operators there are, and the kernels of their signature classes.

The calls themselves are the shim's (``shim/indexing.cpp``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import registry
from anyxpu.shim import lib

# Operator -> what the shim makes of it.
TABLE: dict[str, str] = {
    "index_select": "rows",
    "index_select.out": "rows",
    "gather": "elements",
    "gather.out": "elements",
    "cat": "cat",
    "cat.out": "cat",
}


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Compiles nothing and starts no driver. Idempotent."""
    for name, kind in TABLE.items():
        if lib().serve_indexing(f"aten::{name}", kind):
            registry.declare(f"aten::{name}", "compiled")


def source(kernel: str, type: str, index: str, rows: int, columns: int) -> Any:
    """What to compile for one signature class.

    Args:
        kernel: of ``indexing_kernels.py``.
        type: unsigned integers of the elements' width: they are moved as they are.
        index: ``i32`` or ``i64``.
        rows, columns: of a tile.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    from triton.compiler import ASTSource

    from anyxpu.ops import indexing_kernels

    signature = {"x": f"*{type}", "index": f"*{index}", "out": f"*{type}", **dict.fromkeys("ANBKS", "i32")}
    constants = {"R": rows, "C": columns}
    return ASTSource(
        getattr(indexing_kernels, kernel), signature | dict.fromkeys(constants, "constexpr"), constants, {}
    )


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """aten::embedding_dense_backward: rows of ``grad (*indices.shape, D)`` added up by their index.

    Returns:
        ``(num_weights, D)``, summed in float32 where grad is of 16 bits; ``NotImplemented`` where gradients are
        divided by how often an index occurs.
    """
    if scale_grad_by_freq or not grad.is_floating_point() or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    width = grad.shape[-1]
    flat = indices.reshape(-1, 1)
    rows = grad.reshape(-1, width)
    if padding_idx >= 0:
        rows = rows.masked_fill(flat == padding_idx, 0)
    wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
    sums = torch.zeros(num_weights, width, dtype=wide, device=grad.device)
    if flat.numel():
        sums.scatter_add_(0, flat.expand(-1, width), rows.to(wide))
    return sums.to(grad.dtype)
