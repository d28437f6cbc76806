"""Scaled numbers on the CPU and what they stand for in float64, for tests of products of them."""

from __future__ import annotations

import torch

E4M3, E5M2, E8M0, FP4 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2
FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def numbers(rows: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ``(rows, k)`` of a narrow dtype, and in float64."""
    if dtype == FP4:
        pairs = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
        both = torch.stack([pairs & 15, pairs >> 4], -1).reshape(rows, k)
        return pairs.view(FP4), FOUR_BITS[both.long()]
    made = torch.randn(rows, k).to(dtype)
    return made, made.double()


def scales(rows: int, parts: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Random scales ``(rows, parts)``, and in float64."""
    if dtype == E8M0:
        exponents = torch.randint(124, 131, (rows, parts), dtype=torch.uint8)
        return exponents.view(E8M0), torch.exp2(exponents.double() - 127)
    made = (torch.rand(rows, parts) + 0.1).to(dtype)
    return made, made.double()


def spread(scale: torch.Tensor, rows: int, k: int, of: tuple[int, int]) -> torch.Tensor:
    """Scales of blocks of some rows by some k, one for each number."""
    return scale.repeat_interleave(of[0], 0)[:rows].repeat_interleave(of[1], 1)[:, :k]


def tiles(scale: torch.Tensor) -> torch.Tensor:
    """Scales as cuBLAS has them: of tiles of 128 rows by 4, 32 x 4 x 4; what is beyond them is junk."""
    rows, parts = scale.shape
    whole = torch.full((-(-rows // 128) * 128, -(-parts // 4) * 4), 77, dtype=torch.uint8)
    whole[:rows, :parts] = scale.view(torch.uint8)
    cut = whole.view(whole.shape[0] // 128, 4, 32, whole.shape[1] // 4, 4)
    return cut.permute(0, 3, 2, 1, 4).reshape(-1).view(scale.dtype)
