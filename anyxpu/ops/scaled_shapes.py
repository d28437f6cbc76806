"""Results of scaled products without their numbers, which torch.compile asks for: on xpu what is served, not CUDA's."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import scaled, scaled_groups


def of_products(module: ModuleType) -> None:
    """Let ``_scaled_mm`` and ``_scaled_mm_v2`` on xpu be asked what :func:`anyxpu.ops.scaled.result` says."""
    if hasattr(module, "_check_scaled_mm_sizes_v2"):  # torch 2.15 asks nothing there that depends on scales
        _of_named_products(module)
    before = module._check_scaled_mm_sizes

    @functools.wraps(before)
    def sizes(
        self: Tensor,
        mat2: Tensor,
        scale_a: Tensor,
        scale_b: Tensor,
        bias: Tensor | None = None,
        scale_result: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        use_fast_accum: bool = False,
    ) -> Any:
        if module.device_hint(self) != "xpu":
            return before(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
        scales = scaled.by_shapes(self, mat2, scale_a, scale_b)
        return scaled.result(self, mat2, scales, bias, scale_result, out_dtype)

    module._check_scaled_mm_sizes = sizes  # type: ignore[attr-defined]


def _of_named_products(module: ModuleType) -> None:
    before = module._check_scaled_mm_sizes_v2

    @functools.wraps(before)
    def sizes(
        self: Tensor,
        mat2: Tensor,
        scale_a: list[Tensor],
        scale_recipe_a: list[Any],
        scale_b: list[Tensor],
        scale_recipe_b: list[Any],
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        swizzle_a: list[Any] | None = None,
        swizzle_b: list[Any] | None = None,
        use_fast_accum: bool = False,
    ) -> Any:
        if module.device_hint(self) != "xpu":
            return before(
                self, mat2, scale_a, scale_recipe_a, scale_b, scale_recipe_b, bias, out_dtype, swizzle_a, swizzle_b,
                use_fast_accum,
            )  # fmt: skip
        scales = scaled.by_recipes(
            self, mat2, scale_a, scale_recipe_a, swizzle_a or (), scale_b, scale_recipe_b, swizzle_b or ()
        )
        return scaled.result(self, mat2, scales, bias, None, out_dtype)

    module._check_scaled_mm_sizes_v2 = sizes  # type: ignore[attr-defined]


def of_named_groups(module: ModuleType) -> None:
    """Give ``_scaled_grouped_mm_v2`` a kernel for meta tensors where torch has none."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_grouped_mm_v2", "Meta"):
        return
    module._anyxpu_library = library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[attr-defined]
    library.impl("_scaled_grouped_mm_v2", _groups)


def _groups(
    self: Tensor,
    mat2: Tensor,
    scale_a: list[Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Tensor:
    groups = self.shape[0] if offs is None else offs.shape[0]
    return self.new_empty(scaled_groups.shape(self, mat2, groups), dtype=out_dtype or torch.bfloat16)
