"""Products of a few rows, on CPUs, where oneDNN is slower than reading the matrix: decoding with a language model.

Without fast instructions for those its products of bfloat16 and float16 take several times what that takes. With
AVX-512 float16 takes 1.4 to 4.6 times as long there as here (with instructions of its own that are not AMX's 1.0 to 2.7
times by a matrix in columns, and 0.9 to 1.4 times by one in rows), and bfloat16 (asked not to use its instructions)
from three rows on 1.8 to 3 times, but 0.6 to 1.4 times of fewer. Of float32 a matrix in columns that no cache holds
takes 1.1 to 1.7 times as long there, of 1 to 8 rows (smaller ones 0.5 to 1.4), and one in rows 1.1 to 1.6 times, of one
row. Where a call is not of this kind it is oneDNN's (:mod:`anyxpu.onednn.matmul`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import functions, linear, matmul
from anyxpu.ops.current_device import current
from anyxpu.runtime.vectors import has_short_vectors, has_tiles, multiplies
from anyxpu.shim import lib

MOST_ROWS = 8
LEAST = 1 << 16
"""Elements of a matrix, with fewer of which a launch is what both take."""
LEAST_OF_F32 = 1 << 23
"""Likewise of float32, where oneDNN is the faster one as long as the caches hold the matrix."""
_DTYPES = (*matmul.SIXTEEN_BITS, torch.float32)
_BLOCKS = {1: 4, 2: 4, 3: 2, 4: 2}
"""Rows of the matrix that a program takes, by the number of rows that they meet, where registers are short and few; 1
for more."""
_SUMS = 24
"""Registers that hold sums where there are 32: of more, some are spilled. Measured with AVX-512: two to five rows by
four are 1.1 to 1.3 times as fast as by two and 1.4 to 1.7 as by one, eight by three 2 times as by one."""


def _is_ours(device: torch.device, dtype: torch.dtype, rows: int) -> bool:
    """Whether kernels are the faster way, on such a device. On a GPU they are not."""
    if dtype == torch.float32:
        return torch.xpu.get_device_properties(device).type == "cpu" and not has_short_vectors(device)
    if has_short_vectors(device):
        return True
    if dtype == torch.float16:
        return not has_tiles(device, dtype)
    return rows > 2 and not multiplies(device, dtype)


def _serves(a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    """Whether ``a @ b`` is such a product; ``b`` is ``(k, n)``, either way round in memory."""
    if a.dtype not in _DTYPES or a.dim() != 2 or b.dim() != 2 or not 0 < a.shape[0] <= MOST_ROWS:
        return False
    least = LEAST_OF_F32 if a.dtype == torch.float32 else LEAST
    if b.numel() < least or a.shape[1] != b.shape[0] or (b.dtype, b.device) != (a.dtype, a.device):
        return False
    if bias is not None and (bias.shape != b.shape[1:] or (bias.dtype, bias.device) != (a.dtype, a.device)):
        return False
    (k, n), (row, column) = b.shape, b.stride()
    readable = (row == 1 and column >= k) or (column == 1 and row >= n)
    if a.dtype == torch.float32 and row != 1 and a.shape[0] > 1:  # 0.5 to 1.3 times as fast
        return False
    return readable and _is_ours(a.device, a.dtype, a.shape[0])


def _product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    then: functions.Unary | None = None,
    operator: str | None = None,
    other: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``a @ b + bias`` and what follows it, in float32 and rounded once.

    Args:
        then: a function, of what the operator makes where there is one.
        operator: Inductor's name of one, whose second operand is ``other``, contiguous.
        out: where it goes, contiguous; None: a new tensor.
    """
    from anyxpu.ops import few_rows_kernels as kernels  # Triton, which `import torch` does without

    (m, k), n = a.shape, b.shape[1]
    x = (a if m == 1 else a.float()).contiguous()
    out = a.new_empty(m, n) if out is None else out
    name, numbers = then or ("none", ())
    pointers = (x, b, x if bias is None else bias.contiguous(), x if other is None else other, out)
    follows = {"BIAS": bias is not None, "OPERATOR": operator or "none", "FUNCTION": name}
    follows |= dict(zip("PQ", (*numbers, 0.0, 0.0), strict=False))
    with current(a.device):
        if b.stride(0) == 1:
            block = _BLOCKS.get(m, 1) if has_short_vectors(a.device) else min(4, _SUMS // m)
            lanes = 16
            kernels.by_rows[(-(-n // block),)](
                *pointers, n, k, b.stride(1), M=m, **follows, TAIL=k % lanes != 0,
                SUMS=1 << (m * block - 1).bit_length(), BN=block, BK=lanes, num_warps=1,
            )  # fmt: skip
        else:
            block = 128 if m <= 4 else 64
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
    if not _serves_layer(source, weight, bias):
        return linear.linear_pointwise(source, weight, bias, attr, scalars, algorithm)
    return _layer(source, weight, bias, functions.unary(attr, scalars, algorithm, "a linear layer"))


def linear_pointwise_binary(source: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, attr: str) -> Tensor:
    """mkldnn::_linear_pointwise.binary, as :func:`anyxpu.onednn.linear.linear_pointwise_binary` has it."""
    return linear_pointwise_chain(source, other, weight, bias, attr, None, (), None)


def linear_pointwise_chain(
    source: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    binary_attr: str,
    unary_attr: str | None,
    unary_scalars: Sequence[float | None],
    unary_algorithm: str | None,
) -> Tensor:
    """anyxpu::_linear_pointwise, as :func:`anyxpu.onednn.linear.linear_pointwise_chain` has it."""
    function = unary_attr, unary_scalars, unary_algorithm
    shape = (*source.shape[:-1], *weight.shape[:1])
    alike = (other.dtype, other.device, other.shape) == (source.dtype, source.device, shape)
    if binary_attr not in functions.BINARY or not alike or not _serves_layer(source, weight, bias):
        return linear.linear_pointwise_chain(source, other, weight, bias, binary_attr, *function)
    return _layer(source, weight, bias, functions.unary(*function, "a linear layer"), binary_attr, other.contiguous())


def _serves_layer(source: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a linear layer is such a product."""
    if source.dtype not in _DTYPES or not source.numel() or weight.dim() != 2:
        return False
    rows = source.numel() // source.shape[-1]
    return rows <= MOST_ROWS and _serves(source.reshape(rows, source.shape[-1]), weight.t(), bias)


def _layer(source: Tensor, weight: Tensor, bias: Tensor | None, *follows: Any) -> Tensor:
    """A linear layer and what follows it, as :func:`_product` has that."""
    made = _product(source.reshape(-1, source.shape[-1]), weight.t(), bias, *follows)
    return made.view(*source.shape[:-1], weight.shape[0])
