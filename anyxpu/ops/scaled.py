"""Products of scaled 8-bit floating-point numbers: ``_scaled_mm`` and ``_scaled_mm_v2``, by tensors and by rows.

Products are oneDNN's, in float32; scales and bias follow in one kernel. A function here returns ``NotImplemented`` for
what it does not serve (results of 8 bits, scales of blocks), which goes to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn.eight_bits import product
from anyxpu.ops.current_device import current

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_RESULTS = (torch.float32, torch.bfloat16, torch.float16)

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
        self: float8_e4m3fn or float8_e5m2 ``(m, k)``.
        mat2: the same, ``(k, n)``; of any strides.
        scale_a, scale_b: float32, of one element both; or ``(m, 1)`` and ``(1, n)``.
        bias: ``(n,)``, of a floating-point dtype.
        scale_result: of results of 8 bits.
        out_dtype: of the result; self's where it is None.
        use_fast_accum: makes no difference: sums are of float32.

    Returns:
        ``(m, n)``.

    Raises:
        RuntimeError: operands that do not fit.
    """
    return _product(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, None)


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
    out: Tensor,
) -> Any:
    """aten::_scaled_mm.out: :func:`scaled_mm` into ``out``, which is resized to ``(m, n)``."""
    return _product(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, out)


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
    """aten::_scaled_mm_v2 and its ``.out``, as torch.nn.functional.scaled_mm calls them: :func:`scaled_mm`."""
    recipes = (tuple(recipe_a), tuple(recipe_b))
    served = recipes in (((TENSORWISE,), (TENSORWISE,)), ((ROWWISE,), (ROWWISE,)))
    plain = not any(swizzle_a) and not any(swizzle_b) and tuple(contraction_dim) in ((), (1, 0), (-1, -2))
    if not served or not plain or len(scale_a) != 1 or len(scale_b) != 1:
        return NotImplemented
    if recipes[0] == (TENSORWISE,) and not scale_a[0].numel() == scale_b[0].numel() == 1:
        shapes = f"{tuple(scale_a[0].shape)} and {tuple(scale_b[0].shape)}"
        raise RuntimeError(
            f"_scaled_mm_v2 on xpu wants one scale of a tensor where the recipe is TensorWise, not {shapes}"
        )
    return _product(self, mat2, scale_a[0], scale_b[0], bias, None, out_dtype, out)


def _product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    dtype: torch.dtype | None,
    out: Tensor | None,
) -> Any:
    dtype = dtype or (a.dtype if out is None else out.dtype)
    if dtype not in _RESULTS or scale_result is not None or a.dtype not in EIGHT_BITS or b.dtype not in EIGHT_BITS:
        return NotImplemented
    if not (a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]):
        raise RuntimeError(f"_scaled_mm on xpu wants (m, k) and (k, n), not {tuple(a.shape)} and {tuple(b.shape)}")
    (m, k), n = a.shape, b.shape[1]
    whole = scale_a.numel() == scale_b.numel() == 1
    by_rows = tuple(scale_a.shape) == (m, 1) and tuple(scale_b.shape) == (1, n)
    if not (whole or by_rows) or scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        return NotImplemented
    if bias is not None and (tuple(bias.shape) != (n,) or bias.dtype not in _RESULTS):
        raise RuntimeError(f"_scaled_mm on xpu wants a bias of shape {(n,)}, not {bias.dtype} {tuple(bias.shape)}")
    operands = {"mat2": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias, "out": out}
    for name, operand in operands.items():
        if operand is not None and operand.device != a.device:
            raise RuntimeError(f"_scaled_mm on xpu wants {name} on {a.device}, not on {operand.device}")
    if out is None:
        out = torch.empty((m, n), dtype=dtype, device=a.device)
    else:
        if out.dtype != dtype:
            raise RuntimeError(f"_scaled_mm on xpu wants an out= of {dtype}, not of {out.dtype}")
        from torch._prims_common.wrappers import _maybe_resize_out

        out = _maybe_resize_out(out, (m, n))  # with torch's own warning where it holds elements
    if 0 in (m, n):
        return out
    sums = product(a, b) if k else torch.zeros((m, n), dtype=torch.float32, device=a.device)
    if sums is NotImplemented:
        return sums
    _rescale(sums, scale_a.contiguous(), scale_b.contiguous(), bias, out)
    return out


def _rescale(sums: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    from anyxpu.ops import scaled_kernels as kernels  # Triton, which `import torch` does without

    (m, n), columns = sums.shape, 256
    with current(sums.device):
        kernels.rescale[(-(-n // columns), m)](
            sums, a, b, a if bias is None else bias.contiguous(), out, n, int(a.numel() > 1), int(b.numel() > 1),
            *out.stride(), BIAS=bias is not None, BN=columns, num_warps=1,
        )  # fmt: skip
