"""Products of scaled floating-point numbers of 8 and 4 bits: ``_scaled_mm`` and ``_scaled_mm_v2``.

Products are oneDNN's, in float32. Scales of tensors and of rows follow in one kernel, with the bias; operands are
multiplied by scales of blocks (:mod:`anyxpu.ops.scaled_blocks`) before. A function here returns ``NotImplemented``
where the driver has no oneDNN, and for dtypes that are nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.errors import ArgumentError
from anyxpu.onednn.eight_bits import product
from anyxpu.onednn.weight_only import Weight
from anyxpu.ops import scaled_blocks, weight_only
from anyxpu.ops.current_device import current
from anyxpu.ops.scaled_blocks import FOUR_BITS, Blocks

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_WIDE = (torch.float32, torch.bfloat16, torch.float16)
_WHAT = "_scaled_mm on xpu"

TENSORWISE, ROWWISE = 0, 1
"""Of torch.nn.functional.ScalingType."""


def scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """aten::_scaled_mm: ``(self * scale_a) @ (mat2 * scale_b) + bias``.

    Args:
        self: float8_e4m3fn, float8_e5m2 or float4_e2m1fn_x2 ``(m, k)``; two numbers of 4 bits are one element.
        mat2: the same, ``(k, n)``; of any strides.
        scale_a, scale_b: float32, of one element both; or ``(m, 1)`` and ``(1, n)``; or of blocks, as
            :func:`anyxpu.ops.scaled_blocks.by_shapes` has them.
        bias: ``(n,)``, of a floating-point dtype.
        scale_result: float32, of one element: results of 8 bits are multiplied by it, as CUDA's are; no others.
        out_dtype: of the result: float32, bfloat16, float16, or 8 bits, whose results end at their largest number;
            self's where it is None.
        use_fast_accum: makes no difference: sums are of float32.

    Returns:
        ``(m, n)``.

    Raises:
        ArgumentError: operands that do not fit.
    """
    return scaled_mm_out(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out=None)


def scaled_mm_out(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: Tensor | None,
) -> Any:
    """aten::_scaled_mm.out: :func:`scaled_mm` into ``out``, which is resized to ``(m, n)``."""
    if not _known(self) or not _known(mat2):
        return NotImplemented
    return multiply(self, mat2, by_shapes(self, mat2, scale_a, scale_b), bias, scale_result, out_dtype, out)


def scaled_mm_v2(
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
) -> Any:
    """aten::_scaled_mm_v2 and its ``.out``, as torch.nn.functional.scaled_mm calls them: :func:`scaled_mm`.

    Scales of blocks lie as :func:`anyxpu.ops.scaled_blocks.by_recipe` has them: ``mat2``'s along its columns.

    Raises:
        ArgumentError: operands or recipes that do not fit.
    """
    scales = by_recipes(
        self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim=contraction_dim
    )
    return multiply(self, mat2, scales, bias, None, out_dtype, out)


@dataclass(frozen=True)
class Scales:
    """What the numbers of both operands are multiplied by: factors of tensors or of rows, blocks, or both."""

    factors: tuple[Tensor, Tensor] | None
    blocks: tuple[Blocks, Blocks] | None = None


def by_shapes(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Scales:
    """The scales that ``_scaled_mm`` means.

    Raises:
        ArgumentError: operands or scales that do not fit.
    """
    _check_operands(a, b)
    whole = scale_a.numel() == scale_b.numel() == 1
    by_rows = tuple(scale_a.shape) == (a.shape[0], 1) and tuple(scale_b.shape) == (1, b.shape[1])
    single = scale_a.dtype == scale_b.dtype == torch.float32
    if single and (whole or by_rows) and a.dtype != FOUR_BITS:
        return Scales((scale_a, scale_b))
    blocks = scaled_blocks.by_shapes(a, b.t(), scale_a, scale_b)
    if blocks is None:
        raise ArgumentError(
            f"{_WHAT} cannot scale {_said(a)} and {_said(b)} by {_said(scale_a)} and {_said(scale_b)}: it takes one "
            "float32 for each operand, (m, 1) and (1, n) of them, (m, k / 128) or (m / 128, k / 128) and the same of "
            "mat2 transposed, float8_e8m0fnu for blocks of 32, or float8_e4m3fn for blocks of 16 of 4 bits"
        )
    return Scales(None, blocks)


def by_recipes(
    a: Tensor,
    b: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    contraction_dim: Sequence[int] = (),
) -> Scales:
    """The scales that ``_scaled_mm_v2`` names.

    Raises:
        ArgumentError: operands, recipes or scales that do not fit.
    """
    if tuple(contraction_dim) not in ((), (1, 0), (-1, 0), (1, -2), (-1, -2)):
        raise ArgumentError(f"{_WHAT} sums over dimensions 1 and 0, not over {tuple(contraction_dim)}")
    _check_operands(a, b)
    recipes = tuple(int(r) for r in recipe_a), tuple(int(r) for r in recipe_b)
    if (len(scale_a), len(scale_b)) != (len(recipes[0]), len(recipes[1])):
        raise ArgumentError(f"{_WHAT} wants as many scales as recipes, not {len(scale_a)} and {len(scale_b)}")
    if recipes in _OF_FACTORS and a.dtype != FOUR_BITS:
        want = ((), ()) if recipes[0] == (TENSORWISE,) else ((a.shape[0], 1), (1, b.shape[1]))
        for scale, shape in ((scale_a[0], want[0]), (scale_b[0], want[1])):
            if scale.numel() != math.prod(shape) or scale.dim() > 2 or scale.dtype != torch.float32:
                kind = scaled_blocks.names(recipes[0])
                raise ArgumentError(
                    f"{_WHAT} wants float32 scales of {shape} where recipes are {kind}, not {_said(scale)}"
                )
        return Scales((scale_a[0].reshape(want[0]), scale_b[0].reshape(want[1])))
    if recipes not in _OF_BLOCKS:
        said = [scaled_blocks.names(recipe) for recipe in recipes]
        raise ArgumentError(
            f"{_WHAT} has no recipe {said[0]} with {said[1]} of {_said(a)}: it takes TensorWise and RowWise of 8 bits, "
            "BlockWise1x32 and BlockWise1x16 (and TensorWise after it) with the same, and BlockWise1x128 and "
            "BlockWise128x128 with any of the two"
        )
    swizzled = [bool(swizzle and int(swizzle[0])) for swizzle in (swizzle_a, swizzle_b)]
    blocks = (
        scaled_blocks.by_recipe(a, scale_a[0], recipes[0][0], swizzled[0], "scale_a"),
        scaled_blocks.by_recipe(b.t(), scale_b[0], recipes[1][0], swizzled[1], "scale_b"),
    )
    if len(recipes[0]) == 1:
        return Scales(None, blocks)
    for name, scale in (("scale_a", scale_a[1]), ("scale_b", scale_b[1])):
        if scale.numel() != 1 or scale.dtype != torch.float32:
            raise ArgumentError(f"{_WHAT} wants one float32 as the second {name}, not {_said(scale)}")
    return Scales((scale_a[1], scale_b[1]), blocks)


_OF_FACTORS = tuple(((recipe,), (recipe,)) for recipe in (TENSORWISE, ROWWISE))
_OF_128 = (scaled_blocks.BLOCKS_OF_128, scaled_blocks.SQUARES_OF_128)
_OF_BLOCKS = (
    *(((first,), (second,)) for first in _OF_128 for second in _OF_128),
    *(((recipe,), (recipe,)) for recipe in (scaled_blocks.BLOCKS_OF_16, scaled_blocks.BLOCKS_OF_32)),
    ((scaled_blocks.BLOCKS_OF_16, TENSORWISE),) * 2,
)


def result(
    a: Tensor,
    b: Tensor,
    scales: Scales,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """What the result is to be written into, on ``a``'s device, which may be meta.

    Raises:
        ArgumentError: operands that do not fit.
    """
    dtype = dtype or (a.dtype if out is None else out.dtype)
    if dtype not in (*_WIDE, *EIGHT_BITS):
        raise ArgumentError(f"{_WHAT} has results in float32, bfloat16, float16 and 8 bits, not in {dtype}")
    n = b.shape[1]
    if bias is not None and (tuple(bias.shape) != (n,) or bias.dtype not in _WIDE):
        raise ArgumentError(f"{_WHAT} wants a bias of shape {(n,)}, not {bias.dtype} {tuple(bias.shape)}")
    if scale_result is not None and (scale_result.numel() != 1 or scale_result.dtype != torch.float32):
        raise ArgumentError(f"{_WHAT} wants one float32 as scale_result, not {_said(scale_result)}")
    operands = {"mat2": b, "bias": bias, "scale_result": scale_result, "out": out}
    names = ("scale_a", "scale_b") if scales.blocks is None else ("the second scale_a", "the second scale_b")
    operands |= zip(names, scales.factors or (), strict=False)
    operands |= zip(("scale_a", "scale_b"), (blocks.scales for blocks in scales.blocks or ()), strict=False)
    for name, operand in operands.items():
        if operand is not None and operand.device != a.device:
            raise ArgumentError(f"{_WHAT} wants {name} on {a.device}, not on {operand.device}")
    if out is None:
        return torch.empty((a.shape[0], n), dtype=dtype, device=a.device)
    if out.dtype != dtype:
        raise ArgumentError(f"{_WHAT} wants an out= of {dtype}, not of {out.dtype}")
    from torch._prims_common.wrappers import _maybe_resize_out

    return _maybe_resize_out(out, (a.shape[0], n))  # with torch's own warning where it holds elements


def multiply(
    a: Tensor,
    b: Tensor,
    scales: Scales,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Any:
    """The product, as :func:`scaled_mm` has it."""
    out = result(a, b, scales, bias, scale_result, dtype, out)
    if 0 in out.shape:
        return out
    if scales.blocks is None and scales.factors is not None and a.shape[1]:
        weight = Weight(b.t(), scales.factors[1].contiguous().view(1, -1), None, a.shape[1])
        if b.t().is_contiguous() and weight_only.takes_few_rows(a, weight):
            return _few_rows(a.contiguous(), weight, scales.factors[0].reshape(-1), bias, scale_result, out)
    if not a.shape[1]:
        sums = torch.zeros(out.shape, dtype=torch.float32, device=a.device)
    elif scales.blocks is None:
        sums = product(a, b)
    else:
        first, second = scales.blocks
        sums = product(scaled_blocks.multiplied(a, first), scaled_blocks.multiplied(b.t(), second).t())
    if sums is NotImplemented:
        return sums
    rescale(sums, scales.factors, bias, scale_result if out.dtype in EIGHT_BITS else None, out)
    return out


def _few_rows(
    a: Tensor, weight: Weight, factors: Tensor, bias: Tensor | None, scale_result: Tensor | None, out: Tensor
) -> Tensor:
    """The product of a weight that is read once for some rows of ``a``, which are as few."""
    most = weight_only.MOST_ROWS
    whole = bias is None and out.dtype in _WIDE and out.is_contiguous()
    sums = out if whole else out.new_empty(out.shape, dtype=torch.float32)
    of_rows = factors.split(most) if factors.numel() > 1 else (factors,) * -(-a.shape[0] // most)
    for part, into, scale in zip(a.split(most), sums.split(most), of_rows, strict=True):
        weight_only.few_rows(part, weight, into, scale)
    if not whole:
        rescale(sums, None, bias, scale_result if out.dtype in EIGHT_BITS else None, out)
    return out


def _known(t: Tensor) -> bool:
    return t.dtype in EIGHT_BITS or t.dtype == FOUR_BITS


def _check_operands(a: Tensor, b: Tensor) -> None:
    if not (a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]):
        raise ArgumentError(f"{_WHAT} wants (m, k) and (k, n), not {tuple(a.shape)} and {tuple(b.shape)}")
    if not _known(a) or not _known(b) or (a.dtype == FOUR_BITS) != (b.dtype == FOUR_BITS):
        raise ArgumentError(f"{_WHAT} multiplies 8 bits with 8, or 4 with 4, not {a.dtype} with {b.dtype}")


def rescale(
    sums: Tensor, factors: tuple[Tensor, Tensor] | None, bias: Tensor | None, scale: Tensor | None, out: Tensor
) -> None:
    """Write ``(sums * factors + bias) * scale`` into ``out``, rounded once.

    Args:
        sums: float32 or int32 ``(m, n)``, contiguous.
        factors: one number each, or ``m`` and ``n`` of them.
    """
    from anyxpu.ops import scaled_kernels as kernels  # Triton, which `import torch` does without

    (m, n), columns = sums.shape, 256
    a, b = (t.contiguous() for t in factors) if factors is not None else (sums, sums)
    largest = torch.finfo(out.dtype).max if out.dtype in EIGHT_BITS else None
    with current(sums.device):
        kernels.rescale[(-(-n // columns), m)](
            sums, a, b, sums if bias is None else bias.contiguous(), sums if scale is None else scale, out, n,
            int(a.numel() > 1), int(b.numel() > 1), *out.stride(), SCALED=factors is not None, BIAS=bias is not None,
            RESULT=scale is not None, LARGEST=largest, BN=columns, num_warps=1,
        )  # fmt: skip


def _said(t: Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)}"
