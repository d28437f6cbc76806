"""Products of groups of scaled floating-point numbers: ``_scaled_grouped_mm`` and ``_scaled_grouped_mm_v2``.

Mixtures of experts call them (torchao's float8 and mx, nvfp4). Each group is a product of :mod:`anyxpu.ops.scaled`,
scaled by rows or by blocks. Where groups begin is a tensor, which is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyxpu.errors import ArgumentError
from anyxpu.ops import scaled_blocks
from anyxpu.ops.scaled import EIGHT_BITS, ROWWISE, TENSORWISE, Scales, multiply
from anyxpu.ops.scaled_blocks import BLOCKS_OF_16, BLOCKS_OF_32, FOUR_BITS, Blocks

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
    """aten::_scaled_grouped_mm: the product of each of G groups.

    Args:
        self: float8, ``(m, k)``, or ``(G, m, k)``.
        mat2: the same, ``(k, n)``, or ``(G, k, n)``; of any strides.
        scale_a: float32, one for each row of each group of ``self``: ``(m,)``, ``(G, m)``, or ``(G * m,)`` where the
            groups are of k. Or float8_e8m0fnu of blocks of 32 in cuBLAS's tiles, group after group.
        scale_b: the same for each column of ``mat2``: ``(n,)``, ``(G, n)`` or ``(G * n,)``; or blocks.
        offs: int32 ``(G,)``, where each group ends along what is in one piece: the rows of a matrix by a batch, the
            columns of one after a batch, the k of two; None for two batches.
        bias, scale_result: None.
        out_dtype: bfloat16 (where it is None), float16 or float32.
        use_fast_accum: makes no difference.

    Returns:
        ``(m, n)``, or ``(G, m, n)`` of two batches or two matrices; 0 behind the last group.

    Raises:
        ArgumentError: operands that do not fit, or that are not served.
    """
    if scale_result is not None:
        raise ArgumentError(f"{_WHAT} takes no scale of the result: multiply what it returns")
    block = 0 if scale_a.dtype == torch.float32 else 32
    first = _Side("scale_a", self, scale_a, None, block, True)
    return _groups(first, _Side("scale_b", mat2.transpose(-2, -1), scale_b, None, block, True), offs, bias, out_dtype)


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

    Recipes are RowWise, BlockWise1x32 and BlockWise1x16, which one scale of each group may follow (TensorWise).
    Scales of blocks lie by rows along k where they are not swizzled.

    Raises:
        ArgumentError: another recipe, or operands that do not fit.
    """
    recipes = [int(recipe) for recipe in recipe_a], [int(recipe) for recipe in recipe_b]
    blocks = {(ROWWISE,): 0, (BLOCKS_OF_32,): 32, (BLOCKS_OF_16,): 16, (BLOCKS_OF_16, TENSORWISE): 16}
    block = blocks.get(tuple(recipes[0]), -1)
    swizzles = [bool(swizzle and int(swizzle[0])) for swizzle in (swizzle_a, swizzle_b)]
    if block < 0 or recipes[0] != recipes[1] or (block == 0 and any(swizzles)):
        said = " and ".join(scaled_blocks.names(recipe) for recipe in recipes)
        swizzled = ", swizzled" if any(swizzles) else ""
        raise ArgumentError(
            f"{_WHAT} scales both operands by RowWise without a swizzle, BlockWise1x32 or BlockWise1x16 (with "
            f"TensorWise), not by {said}{swizzled}"
        )
    if not len(scale_a) == len(scale_b) == len(recipes[0]):
        raise ArgumentError(f"{_WHAT} wants as many scales as recipes, not {len(scale_a)} and {len(scale_b)}")
    if tuple(contraction_dim) not in ((), (-1, -2)):
        raise ArgumentError(f"{_WHAT} sums over dimensions -1 and -2, not over {tuple(contraction_dim)}")
    second = [scales[1] if len(scales) > 1 else None for scales in (scale_a, scale_b)]
    first = _Side("scale_a", self, scale_a[0], second[0], block, swizzles[0])
    other = _Side("scale_b", mat2.transpose(-2, -1), scale_b[0], second[1], block, swizzles[1])
    return _groups(first, other, offs, bias, out_dtype)


def shape(self: Tensor, mat2: Tensor, groups: int) -> tuple[int, ...]:
    """Of the result of so many groups."""
    pieces = (groups,) if self.dim() == mat2.dim() else ()
    return (*pieces, self.shape[-2], mat2.shape[-1])


@dataclass(frozen=True)
class _Side:
    """An operand with its rows along k, and its scales.

    Attributes:
        second: one float32 for each group beside its scales.
        block: how many numbers along k share a scale; 0 where rows have one.
        tiles: do scales of blocks lie in cuBLAS's tiles?
    """

    name: str
    t: Tensor
    scale: Tensor
    second: Tensor | None
    block: int
    tiles: bool

    def check(self, groups: int, along_k: bool) -> None:
        """Raise ArgumentError where dtypes or sizes do not fit."""
        if self.t.dtype not in (*EIGHT_BITS, FOUR_BITS) or (self.t.dtype == FOUR_BITS and not self.block):
            raise ArgumentError(f"{_WHAT} multiplies 8 bits, and 4 bits in blocks, not {self.t.dtype}")
        kinds = {0: torch.float32, 32: torch.float8_e8m0fnu, 16: torch.float8_e4m3fn}
        if self.scale.dtype != kinds[self.block] or (self.block == 16 and self.t.dtype != FOUR_BITS):
            raise ArgumentError(f"{_WHAT} has no {self.name} of {self.scale.dtype} for {self.t.dtype}")
        if self.second is not None and (self.second.dtype != torch.float32 or self.second.numel() != groups):
            raise ArgumentError(f"{_WHAT} wants {groups} float32 numbers as the second {self.name}")
        rows, k = self.t.shape[-2], self.t.shape[-1] * (2 if self.t.dtype == FOUR_BITS else 1)
        if self.block == 0:
            want = rows * (groups if self.t.dim() == 3 or along_k else 1)
            if self.scale.numel() != want:
                raise ArgumentError(
                    f"{_WHAT} wants {want} float32 numbers as {self.name}, not {tuple(self.scale.shape)}"
                )
            return
        parts = -(-k // self.block)
        given: tuple[int, ...] = tuple(self.scale.shape)
        if self.tiles and self.t.dim() == 3:
            fits = given[0] == groups and self.scale.numel() == groups * scaled_blocks.tiled(rows, parts)
            wanted = f"({groups}, {scaled_blocks.tiled(rows, parts)})"
        elif not self.tiles:
            fits = given == (*self.t.shape[:-1], parts)
            wanted = str((*self.t.shape[:-1], parts))
        else:
            return  # how many there are depends on the groups
        if not fits:
            raise ArgumentError(f"{_WHAT} wants {self.name} as {wanted}, not {given}")

    def cut(self, ends: list[int] | None, along_k: bool) -> Iterator[tuple[Tensor, Tensor | Blocks]]:
        """Each group's operand and scales."""
        rows, packed = self.t.shape[-2], 2 if self.t.dtype == FOUR_BITS else 1
        flat, place = self.scale.reshape(-1) if self.tiles or not self.block else self.scale, 0
        if ends is None or self.t.dim() == 3:
            for group, t in enumerate(self.t):
                yield t, self._of(t, flat[group * rows : (group + 1) * rows] if not self.block else self.scale[group])
            return
        for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if along_k and (start % packed or end % packed):
                raise ArgumentError(
                    f"{_WHAT} wants groups of an even k of {self.t.dtype}, not one from {start} to {end}"
                )
            t = self.t[:, start // packed : end // packed] if along_k else self.t[start:end]
            if not self.block:
                yield t, flat[group * rows : (group + 1) * rows] if along_k else flat[start:end]
            elif self.tiles:
                size = scaled_blocks.tiled(t.shape[0], -(-t.shape[1] * packed // self.block))
                if place + size > flat.numel():
                    raise ArgumentError(
                        f"{_WHAT} wants {self.name} of {place + size} elements or more, not {flat.numel()}"
                    )
                yield t, self._of(t, flat[place : place + size])
                place += size
            elif not along_k:
                yield t, self._of(t, flat[start:end])
            else:
                if start % self.block:
                    raise ArgumentError(f"{_WHAT} wants groups that begin at multiples of {self.block}, not at {start}")
                yield t, self._of(t, flat[:, start // self.block : -(-end // self.block)])

    def _of(self, t: Tensor, scale: Tensor) -> Tensor | Blocks:
        if not self.block:
            return scale
        if self.tiles:
            return Blocks(scale.reshape(-1), 1, self.block, None)
        return scaled_blocks.lying(scale, 1, self.block)


def _groups(a: _Side, b: _Side, offs: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    if bias is not None:
        raise ArgumentError(f"{_WHAT} takes no bias: add it to what it returns")
    dtype = out_dtype or torch.bfloat16
    dims = a.t.dim(), b.t.dim()
    if (offs is None) != (dims == (3, 3)):
        raise ArgumentError(f"{_WHAT} wants offs with matrices, and none with two batches")
    four = [side.t.dtype == FOUR_BITS for side in (a, b)]
    if not set(dims) <= {2, 3} or a.t.shape[-1] != b.t.shape[-1] or four[0] != four[1]:
        said = [f"{t.dtype} {tuple(t.shape)}" for t in (a.t, b.t.transpose(-2, -1))]
        raise ArgumentError(f"{_WHAT} cannot multiply {said[0]} with {said[1]}")
    ends = None if offs is None else [int(end) for end in offs.tolist()]
    groups = len(ends) if ends is not None else a.t.shape[0]
    batches = [side.t.shape[0] for side in (a, b) if side.t.dim() == 3]
    if any(batch != groups for batch in batches):
        raise ArgumentError(f"{_WHAT} has {groups} groups, and a batch of {batches}")
    along_k = dims == (2, 2)
    if ends is not None:
        limit = scaled_blocks.logical_k(a.t) if along_k else a.t.shape[0] if dims[0] == 2 else b.t.shape[0]
        if any(x > y for x, y in zip([0, *ends], [*ends, limit], strict=True)):
            raise ArgumentError(f"{_WHAT} wants offs that rise from 0 to {limit}, not {ends}")
    for side in (a, b):
        side.check(groups, along_k)
    out = a.t.new_empty(0, dtype=dtype).new_zeros(shape(a.t, b.t.transpose(-2, -1), groups))
    start = [0, 0]
    for group, ((first, by_a), (second, by_b)) in enumerate(
        zip(a.cut(ends, along_k), b.cut(ends, along_k), strict=True)
    ):
        if dims[0] == dims[1]:
            result = out[group]
        else:
            stop = [start[0] + first.shape[0], start[1] + second.shape[0]]
            result = out[start[0] : stop[0]] if dims[0] == 2 else out[:, start[1] : stop[1]]
            start = stop
        if not result.numel() or not first.shape[1]:
            continue
        if isinstance(by_a, Blocks) and isinstance(by_b, Blocks):
            factors = None if a.second is None or b.second is None else (a.second[group], b.second[group])
            scales = Scales(factors, (by_a, by_b))
        else:
            assert isinstance(by_a, Tensor) and isinstance(by_b, Tensor)
            scales = Scales((by_a[:, None], by_b[None, :]))
        if multiply(first, second.t(), scales, dtype=dtype, out=result) is NotImplemented:
            raise ArgumentError(f"{_WHAT} needs oneDNN, which the driver does not have")
    return out
