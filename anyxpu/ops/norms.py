"""Layer norm and RMS norm on xpu, forward and backward, by the kernels of ``norm_kernels.py``.

A function of layer norm returns ``NotImplemented`` for a call that it does not serve (dtypes, operands that do not
fit); the host then computes it, or raises what CPU torch raises. RMS norm's, of which the CPU has no kernel, are
composed of other operators then.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching
from anyxpu.ops.current_device import current
from anyxpu.shim import lib

_NARROW = (torch.bfloat16, torch.float16)
_BLOCK = 1024  # columns of a row read once, or in one step of several; measured on a CPU, 512 to 2048 are alike
_TILE = 1024  # numbers that a program holds of short rows
# Rows and columns of which a program makes sums over rows. On a CPU more than two registers of each sum are spilled:
# 8 x 64 takes 5 to 8 times as long.
_STRIPS = {"cpu": (1, 128), "gpu": (8, 64)}
_PIECE = 256  # numbers of a row of which much would be left over in one step, as of 768
_LONG = 64  # numbers of a row that a CPU has enough to do with
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
    mean, rstd = (torch.empty(_kept(x, shape), dtype=wide, device=x.device) for _ in range(2))
    if rows:
        _normalize(x, weight, bias, out, mean, rstd, rows, columns, eps)
    return out, mean, rstd


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """aten::_fused_rms_norm: ``x (*, *shape)`` over the root of the mean of its squares over ``shape``.

    Args:
        x: of any floating or complex dtype.
        shape: x's last sizes.
        weight: of that shape.
        eps: what is added to the mean of squares; by default the dtype's in which sums are (f32, of f64: f64).

    Returns:
        The result, contiguous, in x's dtype; 1 / sqrt(mean of squares + eps) of each row, f32 (f64: f64), of x's shape
        with ones for ``shape``.
    """
    rows, columns = _sizes(x, shape)
    wide = _wide(x, shape, (weight,), rows, columns)
    eps = torch.finfo(_sums(x)).eps if eps is None else eps
    if wide is None:
        given = x.to(_sums(x))
        root = (given.square().mean(_dims(shape), keepdim=True) + eps).rsqrt()
        made = given * root
        return (made if weight is None else made * weight).to(x.dtype), root
    x = x.contiguous()
    out = torch.empty_like(x)
    rstd = torch.empty(_kept(x, shape), dtype=wide, device=x.device)
    if rows:
        _normalize(x, weight, None, out, None, rstd, rows, columns, eps)
    return out, rstd


def _normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    rows: int,
    columns: int,
    eps: float,
) -> None:
    """Without a mean it is RMS norm."""
    from anyxpu.ops import norm_kernels

    some, block = _tile(x.device, columns)
    tiles = -(-rows // some)
    down = _down(x.device, tiles)
    with current(x.device):
        norm_kernels.layer_norm[(-(-tiles // down),)](
            x, _read(weight, x), _read(bias, x), out, rstd if mean is None else mean, rstd, rows, columns,
            down, eps, _bits(eps), WEIGHT=weight is not None, BIAS=bias is not None, WIDE=rstd.dtype is torch.float64,
            RMS=mean is None, ONE=columns <= block, R=some, BN=block, num_warps=_warps(x.device),
        )  # fmt: skip


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
    return _gradients(grad, x, mean, rstd, weight, bias, asked, rows, columns)


def rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, asked: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """aten::_fused_rms_norm_backward.

    Args:
        grad: of the result, in x's shape and dtype.
        x, shape, rstd, weight: as :func:`rms_norm` took and returned them.
        asked: whether the gradients of x and weight are.

    Returns:
        Those gradients, each in its own dtype; None where not asked for.
    """
    rows, columns = _sizes(x, shape)
    wide = _wide(x, shape, (weight,), rows, columns)
    alike = (grad.shape, grad.dtype, grad.device) == (x.shape, x.dtype, x.device)
    if wide is not None and alike and (rstd.numel(), rstd.dtype, rstd.device) == (rows, wide, x.device):
        grad, x, rstd = (t.contiguous() for t in (grad, x, rstd))
        return _gradients(grad, x, None, rstd, weight, None, (*asked, False), rows, columns)[:2]
    g, normal = grad.to(_sums(x)), x.to(_sums(x)) * rstd
    of_x = of_weight = None
    if asked[0]:
        down = g if weight is None else g * weight.conj()
        of_x = (rstd * (down - normal * (down * normal.conj()).mean(_dims(shape), keepdim=True))).to(x.dtype)
    if asked[1] and weight is not None:
        of_weight = (g * normal.conj()).reshape(-1, *shape).sum(0).to(weight.dtype)
    return of_x, of_weight


def _gradients(
    grad: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    asked: Sequence[bool],
    rows: int,
    columns: int,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of x, weight and bias; all but the factors contiguous. Without a mean it is RMS norm."""
    of_x = torch.empty_like(x) if asked[0] else None
    factors = [t is not None and a for t, a in zip((weight, bias), asked[1:], strict=True)]
    if rows == 0:
        of_weight, of_bias = (
            torch.zeros_like(t) if a and t is not None else None for t, a in zip((weight, bias), factors, strict=True)
        )
        return of_x, of_weight, of_bias
    from anyxpu.ops import norm_kernels

    some, block = _tile(x.device, columns)
    tiles = -(-rows // some)
    down = _down(x.device, tiles)
    with current(x.device):
        if of_x is not None:
            norm_kernels.layer_norm_rows[(-(-tiles // down),)](
                grad, x, rstd if mean is None else mean, rstd, _read(weight, x), of_x, rows, columns, down,
                WEIGHT=weight is not None, WIDE=rstd.dtype is torch.float64, RMS=mean is None, ONE=columns <= block,
                R=some, BN=block, num_warps=_warps(x.device),
            )  # fmt: skip
        of_weight, of_bias = _of_factors(grad, x, mean, rstd, rows, columns, weight, bias, factors)
    return of_x, of_weight, of_bias


def _of_factors(
    grad: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    rows: int,
    columns: int,
    weight: Tensor | None,
    bias: Tensor | None,
    asked: Sequence[bool],
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
        None if t is None else t if parts == 1 else torch.empty(parts, columns, dtype=rstd.dtype, device=x.device)
        for t in made
    ]
    norm_kernels.layer_norm_columns[(strips, parts)](
        grad, x, rstd if mean is None else mean, rstd, _read(sums[0], x), _read(sums[1], x), rows, columns, chunk,
        WEIGHT=asked[0], BIAS=asked[1], WIDE=rstd.dtype is torch.float64, RMS=mean is None, R=some, BN=strip,
        num_warps=1,
    )  # fmt: skip
    if parts > 1:
        for each, total in zip(sums, made, strict=True):
            if each is not None:
                norm_kernels.totals[(strips,)](each, total, columns, parts, BN=strip, num_warps=1)
    return made


def _sizes(x: Tensor, shape: Sequence[int]) -> tuple[int, int]:
    columns = prod(shape)
    return (x.numel() // columns if columns else 0), columns


def _kept(x: Tensor, shape: Sequence[int]) -> list[int]:
    """The shape of what there is one of for each row."""
    return [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]


def _dims(shape: Sequence[int]) -> list[int]:
    return [-1 - d for d in range(len(shape))]


def _sums(x: Tensor) -> torch.dtype:
    """In which sums of composed operators are."""
    return torch.promote_types(x.dtype, torch.float32)


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


def _down(device: torch.device, tiles: int) -> int:
    """How many tiles of rows a program does one after the other: on a CPU to begin one takes as long as a row."""
    return max(1, tiles // (4 * launching.programs(device.index))) if _type(device.index) == "cpu" else 1


def _tile(device: torch.device, columns: int) -> tuple[int, int]:
    """Rows and columns that a program holds at once."""
    if columns > _BLOCK:
        return 1, _BLOCK
    block = max(16, 1 << (columns - 1).bit_length())
    if block >= _LONG and _type(device.index) == "cpu":  # one row, which needs no mask of rows
        return 1, _PIECE if columns > _PIECE and block - columns > block // 8 else block
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
