"""Products of groups of scaled 8-bit floating-point numbers: ``_scaled_grouped_mm`` and ``_scaled_grouped_mm_v2``.

Mixtures of experts in torchao's float8 call them. Each group is a product of :mod:`anyxpu.ops.scaled`, scaled by rows.
Where groups begin is a tensor, which is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyxpu.ops.scaled import ROWWISE, scaled_mm_out

_WHAT = "_scaled_grouped_mm on xpu"


def scaled_grouped_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """aten::_scaled_grouped_mm: the product of each of G groups, scaled by rows.

    Args:
        self: float8, ``(m, k)``, or ``(G, m, k)``.
        mat2: the same, ``(k, n)``, or ``(G, k, n)``; of any strides.
        scale_a: float32, one for each row of each group of ``self``: ``(m,)``, ``(G, m)``, or ``(G * m,)`` where the
            groups are of k.
        scale_b: the same for each column of ``mat2``: ``(n,)``, ``(G, n)`` or ``(G * n,)``.
        offs: int32 ``(G,)``, where each group ends along what is in one piece: the rows of a matrix by a batch, the
            columns of one after a batch, the k of two; None for two batches.
        bias, scale_result: None.
        out_dtype: bfloat16 (where it is None), float16 or float32.
        use_fast_accum: makes no difference.

    Returns:
        ``(m, n)``, or ``(G, m, n)`` of two batches or two matrices; 0 behind the last group.

    Raises:
        RuntimeError: operands that do not fit, or that are not served.
    """
    if bias is not None or scale_result is not None:
        raise RuntimeError(f"{_WHAT} takes neither a bias nor a scale of the result: apply them to what it returns")
    dtype = out_dtype or torch.bfloat16
    if (offs is None) != (self.dim() == mat2.dim() == 3):
        raise RuntimeError(f"{_WHAT} wants offs with matrices, and none with two batches")
    if self.dim() not in (2, 3) or mat2.dim() not in (2, 3) or self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"{_WHAT} cannot multiply {tuple(self.shape)} with {tuple(mat2.shape)}")
    ends = None if offs is None else [int(end) for end in offs.tolist()]
    groups = len(ends) if ends is not None else self.shape[0]
    batches = [t.shape[0] for t in (self, mat2) if t.dim() == 3]
    if any(batch != groups for batch in batches):
        raise RuntimeError(f"{_WHAT} has {groups} groups, and a batch of {batches}")
    parts = list(_parts(self, mat2, ends))
    pieces = self.dim() == mat2.dim()
    out = self.new_zeros((*((groups,) if pieces else ()), self.shape[-2], mat2.shape[-1]), dtype=dtype)
    wanted = _scales(self, groups, pieces, -2), _scales(mat2, groups, pieces, -1)
    for name, scale, count in zip(("scale_a", "scale_b"), (scale_a, scale_b), wanted, strict=True):
        if scale.numel() != count or scale.dtype != torch.float32:
            raise RuntimeError(f"{_WHAT} wants {count} float32 numbers as {name}, not {scale.dtype} {_shape(scale)}")
    rows, columns = self.shape[-2], mat2.shape[-1]
    flat_a, flat_b = scale_a.reshape(-1), scale_b.reshape(-1)
    for group, part in enumerate(parts):
        result = out[group] if pieces else out[part.rows, part.columns]
        own_a = flat_a[part.rows] if self.dim() == 2 and not pieces else flat_a[group * rows : (group + 1) * rows]
        own_b = flat_b[part.columns] if mat2.dim() == 2 and not pieces else flat_b[group * columns :][:columns]
        if result.numel() and part.a.shape[1]:
            made = scaled_mm_out(part.a, part.b, own_a[:, None], own_b[None, :], out_dtype=dtype, out=result)
            if made is NotImplemented:
                kinds = f"{self.dtype} and {mat2.dtype} with a result in {dtype}"
                raise RuntimeError(f"{_WHAT} multiplies float8_e4m3fn and float8_e5m2 to 16 or 32 bits, not {kinds}")
    return out


def scaled_grouped_mm_v2(
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """aten::_scaled_grouped_mm_v2, as torch.nn.functional.scaled_grouped_mm calls it: :func:`scaled_grouped_mm`.

    Raises:
        RuntimeError: another recipe than RowWise, or swizzled scales.
    """
    by_rows = list(recipe_a) == list(recipe_b) == [ROWWISE] and not any(swizzle_a) and not any(swizzle_b)
    if not by_rows or len(scale_a) != 1 or len(scale_b) != 1:
        recipes = f"recipes {list(recipe_a)} and {list(recipe_b)}"
        raise RuntimeError(f"{_WHAT} scales by rows (ScalingType.RowWise), without swizzles, not by {recipes}")
    return scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs, bias, None, out_dtype, use_fast_accum)


@dataclass(frozen=True)
class _Part:
    """A group: its operands, and which rows and columns of the result are its own."""

    a: Tensor
    b: Tensor
    rows: slice
    columns: slice


def _parts(a: Tensor, b: Tensor, ends: list[int] | None) -> Iterator[_Part]:
    every = slice(None)
    if ends is None:
        for one, other in zip(a, b, strict=True):
            yield _Part(one, other, every, every)
        return
    limit = a.shape[-1] if a.dim() == b.dim() else a.shape[0] if a.dim() == 2 else b.shape[1]
    if any(x > y for x, y in zip([0, *ends], [*ends, limit], strict=True)):
        raise RuntimeError(f"{_WHAT} wants offs that rise from 0 to {limit}, not {ends}")
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        some = slice(start, end)
        if a.dim() == b.dim():
            yield _Part(a[:, some], b[some], every, every)
        elif a.dim() == 2:
            yield _Part(a[some], b[group], some, every)
        else:
            yield _Part(a[group], b[:, some], every, some)


def _scales(t: Tensor, groups: int, pieces: bool, side: int) -> int:
    """How many scales it has."""
    return t.shape[side] * (groups if t.dim() == 3 or pieces else 1)


def _shape(t: Tensor) -> tuple[int, ...]:
    return tuple(t.shape)
