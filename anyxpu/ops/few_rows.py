"""Products of a few rows of 16-bit floats, on CPUs without instructions for those: decoding with a language model.

There oneDNN's products of bfloat16 and float16 take several times what reading the matrix takes. Where a call is not
of this kind it is oneDNN's (:mod:`anyxpu.onednn.matmul`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from anyxpu.onednn import functions, linear, matmul
from anyxpu.ops.current_device import current
from anyxpu.runtime.vectors import has_short_vectors
from anyxpu.shim import lib

MOST_ROWS = 8
LEAST = 1 << 16
"""Elements of a matrix, with fewer of which a launch is what both take."""
_BLOCKS = {1: 4, 2: 4, 3: 2, 4: 2}
"""Rows of the matrix that a program takes, by the number of rows that they meet; 1 for more."""


def _serves(a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    """Whether ``a @ b`` is such a product; ``b`` is ``(k, n)``, either way round in memory."""
    if a.dtype not in matmul.SIXTEEN_BITS or a.dim() != 2 or b.dim() != 2 or not 0 < a.shape[0] <= MOST_ROWS:
        return False
    if b.numel() < LEAST or a.shape[1] != b.shape[0] or (b.dtype, b.device) != (a.dtype, a.device):
        return False
    if bias is not None and (bias.shape != b.shape[1:] or (bias.dtype, bias.device) != (a.dtype, a.device)):
        return False
    (k, n), (row, column) = b.shape, b.stride()
    return ((row == 1 and column >= k) or (column == 1 and row >= n)) and has_short_vectors(a.device)


def _product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    then: functions.Unary | None = None,
    other: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``a @ b + bias`` and what follows it, in float32 and rounded once.

    Args:
        then: a function; or the name of an operator, where ``other``, contiguous, is its second operand.
        out: where it goes, contiguous; None: a new tensor.
    """
    from anyxpu.ops import few_rows_kernels as kernels  # Triton, which `import torch` does without

    (m, k), n = a.shape, b.shape[1]
    x = (a if m == 1 else a.float()).contiguous()
    out = a.new_empty(m, n) if out is None else out
    name, numbers = then or ("none", ())
    pointers = (x, b, x if bias is None else bias.contiguous(), x if other is None else other, out)
    follows = {"BIAS": bias is not None, "FUNCTION": name} | dict(zip("PQ", (*numbers, 0.0, 0.0), strict=False))
    with current(a.device):
        if b.stride(0) == 1:
            block, lanes = _BLOCKS.get(m, 1), 16
            kernels.by_rows[(-(-n // block),)](
                *pointers, n, k, b.stride(1), M=m, **follows, TAIL=k % lanes != 0,
                SUMS=1 << (m * block - 1).bit_length(), BN=block, BK=lanes, num_warps=1,
            )  # fmt: skip
        else:
            block = 64 if m <= 2 else 32
            kernels.by_columns[(-(-n // block),)](
                *pointers, n, k, b.stride(0), M=m, **follows, MASKED=n % block != 0, BN=block, num_warps=1,
            )  # fmt: skip
    return out


def mm(a: Tensor, b: Tensor) -> Any:
    """aten::mm."""
    return _product(a, b) if _serves(a, b) else matmul.mm(a, b)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmm."""
    if beta == alpha == 1 and _serves(a, b, c):
        return _product(a, b, c)
    return matmul.addmm(c, a, b, beta=beta, alpha=alpha)


def _takes(out: Tensor, a: Tensor, b: Tensor, *others: Tensor) -> bool:
    """Whether the result may be written there while the operands are read."""
    if out.shape != (a.shape[0], b.shape[1]) or (out.dtype, out.device) != (a.dtype, a.device):
        return False
    memory = out.untyped_storage().data_ptr()
    return out.is_contiguous() and all(t.untyped_storage().data_ptr() != memory for t in (a, b, *others))


def mm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Any:
    """aten::mm.out."""
    if not _serves(a, b) or not _takes(out, a, b):
        return matmul.mm_out(a, b, out=out)
    lib().note_written(out.data_ptr())
    return _product(a, b, out=out)


def addmm_out(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Any:
    """aten::addmm.out."""
    if not (beta == alpha == 1 and _serves(a, b, c) and _takes(out, a, b, c)):
        return matmul.addmm_out(c, a, b, beta=beta, alpha=alpha, out=out)
    lib().note_written(out.data_ptr())
    return _product(a, b, c, out=out)


def linear_pointwise(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attr: str,
    scalars: Sequence[float | None],
    algorithm: str | None,
) -> Tensor:
    """mkldnn::_linear_pointwise, as :func:`anyxpu.onednn.linear.linear_pointwise` has it."""
    result = _linear(source, weight, bias, lambda: functions.unary(attr, scalars, algorithm, "a linear layer"), None)
    return linear.linear_pointwise(source, weight, bias, attr, scalars, algorithm) if result is None else result


def linear_pointwise_binary(source: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, attr: str) -> Tensor:
    """mkldnn::_linear_pointwise.binary, as :func:`anyxpu.onednn.linear.linear_pointwise_binary` has it."""
    result = None
    if attr in functions.BINARY and other.dtype == source.dtype and other.device == source.device:
        result = _linear(source, weight, bias, lambda: (attr, ()), other)
    return linear.linear_pointwise_binary(source, other, weight, bias, attr) if result is None else result


def _linear(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    then: Callable[[], functions.Unary | None],
    other: Tensor | None,
) -> Tensor | None:
    """A linear layer and what follows it, where it is such a product."""
    if source.dtype not in matmul.SIXTEEN_BITS or not source.numel() or weight.dim() != 2:
        return None
    rows, shape = source.numel() // source.shape[-1], (*source.shape[:-1], weight.shape[0])
    if rows > MOST_ROWS or (other is not None and other.shape != shape):
        return None
    matrix = weight.t()
    x = source.reshape(rows, source.shape[-1])
    if not _serves(x, matrix, bias):
        return None
    return _product(x, matrix, bias, then(), None if other is None else other.contiguous()).view(shape)
