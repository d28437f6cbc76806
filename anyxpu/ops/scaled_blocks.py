"""Scales of blocks: which numbers of an operand share one, where it lies, and the operand that they make.

Formats: the OCP's microscaling ones (float8 or float4 in blocks of 32 with scales that are powers of two), nvfp4
(float4 in blocks of 16 with float8_e4m3fn scales) and float8 in blocks of 1x128 or 128x128 with float32 scales.
Scales of 8 bits lie by rows, or as cuBLAS wants them: tiles of 128 rows by 4, in each 32 x 4 x 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyxpu.errors import ArgumentError
from anyxpu.ops.current_device import current

BLOCKS_OF_16, BLOCKS_OF_32, BLOCKS_OF_128, SQUARES_OF_128 = 2, 3, 4, 5
"""Of torch.nn.functional.ScalingType, behind TensorWise and RowWise."""

FOUR_BITS = torch.float4_e2m1fn_x2
"""Two numbers a byte, side by side along k, the first in the lower bits."""

_ROUND = torch.float8_e8m0fnu


@dataclass(frozen=True)
class Blocks:
    """The scales of a matrix whose rows are along k."""

    scales: Tensor
    rows: int
    """Of a block."""
    k: int
    """Of a block, in numbers."""
    strides: tuple[int, int] | None
    """Of scales, from block to block along rows and along k; None where they lie in tiles."""


def logical_k(t: Tensor) -> int:
    """How many numbers lie along the second dimension of a matrix whose rows are along k."""
    return t.shape[1] * (2 if t.dtype == FOUR_BITS else 1)


def by_shapes(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[Blocks, Blocks] | None:
    """The blocks that ``_scaled_mm`` means, by dtypes and shapes; None where scales are not of blocks.

    Args:
        a: ``(m, k)``.
        b: ``(n, k)``: the second operand, transposed.
        scale_a: ``(m, k / 128)`` or ``(m / 128, k / 128)`` in float32; ``(m, k / 32)`` in float8_e8m0fnu or
            ``(m, k / 16)`` in float8_e4m3fn; or those of 8 bits in tiles, in any shape of as many elements.
        scale_b: transposed as ``b`` is where it lies by rows: ``(k / 128, n)`` and so on.

    Raises:
        ArgumentError: scales of 8 bits that fit neither way.
    """
    if scale_a.dtype == scale_b.dtype == torch.float32:
        if scale_a.dim() != 2 or scale_b.dim() != 2:
            return None
        kinds = [_float32_blocks(t, scale) for t, scale in ((a, scale_a), (b, scale_b.t()))]
        return None if kinds[0] is None or kinds[1] is None else (kinds[0], kinds[1])
    if not (scale_a.dtype == scale_b.dtype and narrow_block(a, scale_a) == narrow_block(b, scale_b) != 0):
        return None
    block = narrow_block(a, scale_a)
    rows = [(t.shape[0], -(-logical_k(t) // block)) for t in (a, b)]
    scales = scale_a, scale_b
    tiles = all(
        scale.is_contiguous() and scale.numel() == tiled(*shape) for scale, shape in zip(scales, rows, strict=True)
    )
    plain = tuple(scale_a.shape) == rows[0] and tuple(scale_b.shape) == rows[1][::-1]
    if tiles and (not plain or rows[1][0] == rows[1][1]):  # CUDA's alone; a square of both is CUDA's too
        return Blocks(scale_a, 1, block, None), Blocks(scale_b, 1, block, None)
    if plain:
        return lying(scale_a, 1, block), lying(scale_b.t(), 1, block)
    raise ArgumentError(
        f"_scaled_mm on xpu wants scales of blocks of {block} as {rows[0]} and {rows[1][::-1]}, or in tiles as "
        f"{tiled(*rows[0])} and {tiled(*rows[1])} elements in one piece, not {_said(scale_a)} and {_said(scale_b)}"
    )


def by_recipe(t: Tensor, scale: Tensor, recipe: int, swizzled: bool, name: str) -> Blocks:
    """The blocks that ``_scaled_mm_v2`` names.

    Args:
        t: ``(rows, k)``, either operand with its rows along k.
        scale: by rows, ``(rows, k / block)``; of squares ``(k / 128, rows / 128)``, whose first dimension may be a
            multiple of 4; swizzled, in any shape of as many elements.
        recipe: one of this file's.
        name: of the scale, for errors.

    Raises:
        ArgumentError: a scale that does not fit.
    """
    what = f"_scaled_mm_v2 on xpu wants {name}"
    block = {BLOCKS_OF_16: 16, BLOCKS_OF_32: 32}.get(recipe, 128)
    if swizzled and block == 128:
        raise ArgumentError(f"{what} without a swizzle where blocks are of 128")
    if block < 128 and narrow_block(t, scale) != block:
        kinds = "float4 with float8_e4m3fn" if block == 16 else "float8 or float4 with float8_e8m0fnu"
        raise ArgumentError(f"{what} of blocks of {block} to be of {kinds}, not of {t.dtype} with {scale.dtype}")
    if block == 128 and (scale.dtype != torch.float32 or t.dtype == FOUR_BITS):
        raise ArgumentError(f"{what} of blocks of 128 to be float8 with float32, not of {t.dtype} with {scale.dtype}")
    rows, parts = t.shape[0], -(-logical_k(t) // block)
    if swizzled:
        if scale.numel() != tiled(rows, parts) or not scale.is_contiguous():
            raise ArgumentError(f"{what} as {tiled(rows, parts)} elements in one piece, not {_said(scale)}")
        return Blocks(scale, 1, block, None)
    if recipe == SQUARES_OF_128:
        sides = [(length, -(-rows // 128)) for length in (parts, -(-parts // 4) * 4)]
        if tuple(scale.shape) not in sides:
            raise ArgumentError(f"{what} as {sides[0]}, not {_said(scale)}")
        return lying(scale.t(), 128, 128)
    if tuple(scale.shape) != (rows, parts):
        raise ArgumentError(f"{what} as {(rows, parts)}, not {_said(scale)}")
    return lying(scale, 1, block)


def multiplied(t: Tensor, blocks: Blocks) -> Tensor:
    """The numbers that they stand for.

    Args:
        t: ``(rows, k)``, float8_e4m3fn, float8_e5m2 or float4_e2m1fn_x2, of any strides.

    Returns:
        ``(rows, k)``: bfloat16, which has every product of such a number with a scale of 8 bits (but below 2**-133),
        or float32, rounded once.
    """
    from anyxpu.ops import scaled_kernels as kernels  # Triton, which `import torch` does without

    narrow, four = blocks.scales.dtype != torch.float32, t.dtype == FOUR_BITS
    rows, k = t.shape[0], logical_k(t)
    out = torch.empty((rows, k), dtype=torch.bfloat16 if narrow else torch.float32, device=t.device)
    powers = blocks.scales.dtype == _ROUND
    scales = blocks.scales.view(torch.uint8) if powers else blocks.scales
    strides = blocks.strides or (0, 0)
    columns = 512
    with current(t.device):
        kernels.multiplied[(-(-k // columns), rows)](
            t.view(torch.uint8) if four else t, scales, out, k, *t.stride(), *strides, -(-k // (4 * blocks.k)),
            ROWS=blocks.rows, BLOCK=blocks.k, FOUR=four, POWERS=powers, TILES=blocks.strides is None, BN=columns,
            num_warps=1,
        )  # fmt: skip
    return out


def _float32_blocks(t: Tensor, scale: Tensor) -> Blocks | None:
    parts = -(-t.shape[1] // 128)
    if t.dtype == FOUR_BITS:
        return None
    if tuple(scale.shape) == (t.shape[0], parts):
        return lying(scale, 1, 128)
    if tuple(scale.shape) == (-(-t.shape[0] // 128), parts):
        return lying(scale, 128, 128)
    return None


def narrow_block(t: Tensor, scale: Tensor) -> int:
    """How many numbers share one of these scales of 8 bits; 0 where they do not go together."""
    if scale.dtype == _ROUND:
        return 32
    return 16 if scale.dtype == torch.float8_e4m3fn and t.dtype == FOUR_BITS else 0


def lying(scale: Tensor, rows: int, k: int) -> Blocks:
    """Of scales by rows, ``(blocks along rows, blocks along k)``."""
    return Blocks(scale, rows, k, (scale.stride(0), scale.stride(1)))


def tiled(rows: int, parts: int) -> int:
    """How many elements scales in tiles have, of so many rows and blocks along k."""
    return -(-rows // 128) * 128 * (-(-parts // 4) * 4)


def _said(scale: Tensor) -> str:
    return f"{scale.dtype} {tuple(scale.shape)} with strides {tuple(scale.stride())}"


def names(recipes: Sequence[int]) -> str:
    """Recipes by the names that torch gives them."""
    from torch.nn.functional import ScalingType

    return ", ".join(ScalingType(recipe).name for recipe in recipes)
