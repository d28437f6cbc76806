"""Layer norm on xpu, forward and backward, by the kernels of ``norm_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (dtypes, operands that do not fit); the
host then computes it, or raises what CPU torch raises.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops.current_device import current
from anyxpu.shim import lib

_NARROW = (torch.bfloat16, torch.float16)
_BLOCK = 1024  # columns of a row read once, or in one step of several; measured on a CPU, 512 to 2048 are alike
_TILE = 1024  # numbers that a program holds of short rows
# Rows and columns of which a program makes sums over rows. On a CPU more than two registers of each sum are spilled:
# 8 x 64 takes 5 to 8 times as long.
_STRIPS = {"cpu": (1, 128), "gpu": (8, 64)}
_LEAST = 32  # rows that such a program has at least
_MOST = 2**31 - 2**12  # rows, and columns, that kernels count in 32 bits, to the end of the last program's tile
_GPU_PROGRAMS = 512  # that keep a GPU busy


def layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """aten::native_layer_norm: of ``x (*, *shape)``, normalized over ``shape``.

    Args:
        x: bf16, f16, f32 or f64.
        shape: x's last sizes.
        weight, bias: of that shape; x's dtype, or f32 beside bf16 and f16.
        eps: what is added to the variance.

    Returns:
        The result, contiguous; the mean and 1 / sqrt(variance + eps) of each row, f32 (f64: f64), of x's shape with
        ones for ``shape``.
    """
    rows, columns = _sizes(x, shape)
    wide = _wide(x, shape, (weight, bias), rows, columns)
    if wide is None:
        return NotImplemented
    x = x.contiguous()
    out = torch.empty_like(x)
    kept = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    mean, rstd = (torch.empty(kept, dtype=wide, device=x.device) for _ in range(2))
    if rows == 0:
        return out, mean, rstd
    from anyxpu.ops import norm_kernels

    some, block = _tile(columns)
    with current(x.device):
        norm_kernels.layer_norm[(-(-rows // some),)](
            x, _read(weight, x), _read(bias, x), out, mean, rstd, rows, columns, eps, _bits(eps),
            WEIGHT=weight is not None, BIAS=bias is not None, WIDE=wide is torch.float64, ONE=columns <= block,
            R=some, BN=block, num_warps=_warps(x.device),
        )  # fmt: skip
    return out, mean, rstd


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    asked: Sequence[bool],
) -> Any:
    """aten::native_layer_norm_backward.

    Args:
        grad: of the result, in x's shape and dtype.
        x, shape, mean, rstd, weight, bias: as :func:`layer_norm` took and returned them.
        asked: whether the gradients of x, weight and bias are.

    Returns:
        Those gradients, each in its own dtype; None where not asked for.
    """
    rows, columns = _sizes(x, shape)
    wide = _wide(x, shape, (weight, bias), rows, columns)
    if wide is None or (grad.shape, grad.dtype, grad.device) != (x.shape, x.dtype, x.device):
        return NotImplemented
    if any((t.numel(), t.dtype, t.device) != (rows, wide, x.device) for t in (mean, rstd)):
        return NotImplemented
    grad, x, mean, rstd = (t.contiguous() for t in (grad, x, mean, rstd))
    of_x = torch.empty_like(x) if asked[0] else None
    factors = [t is not None and a for t, a in zip((weight, bias), asked[1:], strict=True)]
    if rows == 0:
        empty = (
            torch.zeros_like(t) if a and t is not None else None for t, a in zip((weight, bias), factors, strict=True)
        )
        return of_x, *empty
    from anyxpu.ops import norm_kernels

    some, block = _tile(columns)
    with current(x.device):
        if of_x is not None:
            norm_kernels.layer_norm_rows[(-(-rows // some),)](
                grad, x, mean, rstd, _read(weight, x), of_x, rows, columns, WEIGHT=weight is not None,
                WIDE=wide is torch.float64, ONE=columns <= block, R=some, BN=block, num_warps=_warps(x.device),
            )  # fmt: skip
        of_weight, of_bias = _of_factors(grad, x, mean, rstd, rows, columns, weight, bias, factors, wide)
    return of_x, of_weight, of_bias


def _of_factors(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    rows: int,
    columns: int,
    weight: Tensor | None,
    bias: Tensor | None,
    asked: Sequence[bool],
    wide: torch.dtype,
) -> list[Tensor | None]:
    """The gradients of the weight and the bias: sums over parts of the rows, then over the parts."""
    from anyxpu.ops import norm_kernels

    if not any(asked):
        return [None, None]
    some, strip = _STRIPS["cpu" if _type(x.get_device()) == "cpu" else "gpu"]
    strips = -(-columns // strip)
    programs = _programs(x.get_device())
    parts = max(1, min(-(-programs // strips), rows // _LEAST))
    chunk = -(-rows // parts)
    parts = -(-rows // chunk)
    # Contiguous, whatever the strides of what they are gradients of: kernels write them so.
    made = [
        torch.empty(t.shape, dtype=t.dtype, device=t.device) if a and t is not None else None
        for t, a in zip((weight, bias), asked, strict=True)
    ]
    # One part's sums are the totals.
    sums = [
        None if t is None else t if parts == 1 else torch.empty(parts, columns, dtype=wide, device=x.device)
        for t in made
    ]
    norm_kernels.layer_norm_columns[(strips, parts)](
        grad, x, mean, rstd, _read(sums[0], x), _read(sums[1], x), rows, columns, chunk, WEIGHT=asked[0],
        BIAS=asked[1], WIDE=wide is torch.float64, R=some, BN=strip, num_warps=1,
    )  # fmt: skip
    if parts > 1:
        for each, total in zip(sums, made, strict=True):
            if each is not None:
                norm_kernels.totals[(strips,)](each, total, columns, parts, BN=strip, num_warps=1)
    return made


def _sizes(x: Tensor, shape: Sequence[int]) -> tuple[int, int]:
    columns = prod(shape)
    return (x.numel() // columns if columns else 0), columns


def _wide(
    x: Tensor, shape: Sequence[int], factors: Sequence[Tensor | None], rows: int, columns: int
) -> torch.dtype | None:
    """The dtype of sums and statistics; None where the operands are not served."""
    if x.dtype not in (*_NARROW, torch.float32, torch.float64) or columns == 0 or max(rows, columns) > _MOST:
        return None
    if not 0 < len(shape) <= x.dim() or tuple(x.shape[-len(shape) :]) != tuple(shape):
        return None
    own = (x.dtype, torch.float32) if x.dtype in _NARROW else (x.dtype,)
    for t in factors:
        if t is not None and (tuple(t.shape) != tuple(shape) or t.dtype not in own or t.device != x.device):
            return None
    if x.dtype is not torch.float64:
        return torch.float32
    return torch.float64 if lib().properties(x.get_device()).has_fp64 else None


def _read(t: Tensor | None, instead: Tensor) -> Tensor:
    return instead if t is None else t.contiguous()


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _tile(columns: int) -> tuple[int, int]:
    """Rows and columns that a program holds."""
    if columns > _BLOCK:
        return 1, _BLOCK
    block = max(16, 1 << (columns - 1).bit_length())
    return min(16, max(1, _TILE // block)), block


@cache
def _type(device: int) -> str:
    return str(lib().properties(device).type)


def _warps(device: torch.device) -> int:
    return 1 if _type(device.index) == "cpu" else 4


@cache
def _programs(device: int) -> int:
    properties = lib().properties(device)
    return 2 * int(properties.max_compute_units) if properties.type == "cpu" else _GPU_PROGRAMS
