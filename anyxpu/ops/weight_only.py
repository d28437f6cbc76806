"""Products with weights of 4 or 8 bits: ``_weight_int4pack_mm_with_scales_and_zeros`` and ``_weight_int8pack_mm``.

torchao's ``int4`` in the packing ``plain_int32``, AWQ, GPTQ and HQQ over it, and their kin call the first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn.weight_only import Weight, product
from anyxpu.ops.current_device import current

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_ROWS, _WORDS = 8, 16  # of a block; 16 words are a register


def _require(holds: bool, what: str, wanted: str) -> None:
    if not holds:
        raise RuntimeError(f"{what} on xpu {wanted}")


def convert_weight_to_int4pack(self: Tensor, innerKTiles: int) -> Tensor:
    """aten::_convert_weight_to_int4pack as XPU has it.

    Args:
        self: uint8 ``(n, k / 2)``, of two numbers each, that of the even column in the lower four bits.
        innerKTiles: 2, 4 or 8, which makes no difference.

    Returns:
        int32 ``(n, k / 8)``, of eight numbers each, the first in the lowest bits.

    Raises:
        RuntimeError: another dtype or shape, or a k that 8 does not divide.
    """
    what = "_convert_weight_to_int4pack"
    _require(self.dtype == torch.uint8 and self.dim() == 2, what, f"wants uint8 (n, k / 2), not {_said(self)}")
    _require(innerKTiles in (2, 4, 8), what, f"takes innerKTiles of 2, 4 or 8, not {innerKTiles}")
    _require(self.shape[1] % 4 == 0, what, f"wants a k that 8 divides, not {self.shape[1] * 2}: pad the weight")
    return self.clone(memory_format=torch.contiguous_format).view(torch.int32)


def int4pack_mm(
    self: Tensor,
    mat2: Tensor,
    qGroupSize: int,
    qScale: Tensor,
    qZeros: Tensor,
) -> Tensor:
    """aten::_weight_int4pack_mm_with_scales_and_zeros: ``self @ ((q - zero) * scale).t()``.

    Args:
        self: ``(m, k)``, float32, bfloat16 or float16.
        mat2: int32 ``(n, k / 8)``, of :func:`convert_weight_to_int4pack`.
        qGroupSize: how many along k share a scale; a multiple of 8 that divides k.
        qScale: ``(k / qGroupSize, n)``, of a floating-point dtype.
        qZeros: int8, the same.

    Returns:
        ``(m, n)`` of self's dtype; the sums are of float32 on a CPU device, and oneDNN's on a GPU.

    Raises:
        RuntimeError: operands that do not fit.
    """
    what = "_weight_int4pack_mm_with_scales_and_zeros"
    _check_source(self, what)
    _require(mat2.dtype == torch.int32 and mat2.dim() == 2, what, f"wants int32 weights (n, k / 8), not {_said(mat2)}")
    rows, depth = mat2.shape[0], mat2.shape[1] * 8
    _require(self.shape[1] == depth, what, f"cannot take k of {self.shape[1]} with a weight whose k is {depth}")
    fits = qGroupSize > 0 and qGroupSize % 8 == 0 and depth % qGroupSize == 0
    _require(fits, what, f"takes a group size that 8 divides and that divides k ({depth}), not {qGroupSize}")
    shape = (depth // qGroupSize, rows)
    _require(tuple(qScale.shape) == shape, what, f"wants scales of shape {shape}, not {tuple(qScale.shape)}")
    _require(qScale.dtype in _FLOATS, what, f"wants floating-point scales, not {qScale.dtype}")
    _require(
        tuple(qZeros.shape) == shape and qZeros.dtype == torch.int8,
        what,
        f"wants int8 zero points of shape {shape}, not {_said(qZeros)}",
    )
    _check_devices(what, self, mat2, qScale, qZeros)
    weight = Weight(mat2.contiguous(), _as(qScale, self.dtype), qZeros.contiguous(), qGroupSize)
    return _product(self, weight)


def int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """aten::_weight_int8pack_mm: ``self @ (mat2 * scales[:, None]).t()``.

    Args:
        self: ``(m, k)``, float32, bfloat16 or float16.
        mat2: int8 ``(n, k)``.
        scales: ``(n,)``, of a floating-point dtype.

    Returns:
        ``(m, n)`` of self's dtype.

    Raises:
        RuntimeError: operands that do not fit.
    """
    what = "_weight_int8pack_mm"
    _check_source(self, what)
    _require(mat2.dtype == torch.int8 and mat2.dim() == 2, what, f"wants int8 weights (n, k), not {_said(mat2)}")
    rows, depth = mat2.shape
    _require(self.shape[1] == depth, what, f"cannot take k of {self.shape[1]} with a weight whose k is {depth}")
    fits = tuple(scales.shape) == (rows,) and scales.dtype in _FLOATS
    _require(fits, what, f"wants floating-point scales of shape {(rows,)}, not {_said(scales)}")
    _check_devices(what, self, mat2, scales)
    return _product(self, Weight(mat2.contiguous(), _as(scales, self.dtype).view(1, rows), None, depth))


def _said(t: Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)}"


def _as(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales that oneDNN takes beside a source: of its dtype, or float32, and no rounding."""
    return (scales if scales.dtype in (dtype, torch.float32) else scales.float()).contiguous()


def _check_source(source: Tensor, what: str) -> None:
    fits = source.dim() == 2 and source.dtype in _FLOATS
    _require(fits, what, f"wants (m, k) of float32, bfloat16 or float16, not {_said(source)}")


def _check_devices(what: str, source: Tensor, *others: Tensor) -> None:
    elsewhere = {str(t.device) for t in others} - {str(source.device)}
    _require(not elsewhere, what, f"wants all operands on {source.device}, not on {', '.join(sorted(elsewhere))}")


def _product(source: Tensor, weight: Weight) -> Tensor:
    rows, depth = weight.shape
    if 0 in (source.shape[0], rows):
        return source.new_empty(source.shape[0], rows)
    if depth == 0:
        return source.new_zeros(source.shape[0], rows)
    source = source.contiguous()
    if source.shape[0] <= _few(weight) and not depth * weight.bits % 32 and _on_cpu(source.get_device()):
        return _few_rows(source, weight)
    result: Any = product(source, weight)
    return source @ dequantized(weight, source.dtype).t() if result is NotImplemented else result


def _few(weight: Weight) -> int:
    """Rows up to which the kernel of few rows is faster on a CPU device than oneDNN.

    Measured, of 4096 x 4096 in bf16, in ms: oneDNN, which unpacks the weight for a tile of rows, takes 6 to 7 of 4 bits
    and 3.3 of 8; the kernel 1.8 for a row and 4 for four, but 3.5 and 10 where lanes have scales of their own.
    """
    if weight.bits == 8:
        return 2
    return 4 if _even(weight) else 1


def _even(weight: Weight) -> bool:
    """Whether a register's words are of one group."""
    return weight.group == weight.shape[1] or weight.group % (32 // weight.bits * _WORDS) == 0


@functools.lru_cache(maxsize=64)
def _on_cpu(device: int) -> bool:
    return bool(torch.xpu.get_device_properties(device).type == "cpu")


def _few_rows(source: Tensor, weight: Weight) -> Tensor:
    from anyxpu.ops import weight_only_kernels as kernels  # Triton, which `import torch` does without

    (m, depth), rows, each = source.shape, weight.shape[0], 32 // weight.bits
    words = depth // each
    x = torch.empty((m, each, words), dtype=torch.float32, device=source.device)
    x.copy_(source.view(m, words, each).transpose(1, 2))
    result = source.new_empty(m, rows)
    with current(source.device):
        kernels.few_rows[(-(-rows // _ROWS), m)](
            x, weight.values.view(torch.int32), weight.scales, _points(weight), result, rows, words,
            GROUP=weight.group, BITS=weight.bits, POINTS=weight.zero_points is not None,
            EVEN=_even(weight), FULL=rows % _ROWS == 0, BN=_ROWS, BW=_WORDS,
            num_warps=1,
        )  # fmt: skip
    return result


def dequantized(weight: Weight, dtype: torch.dtype) -> Tensor:
    """What a weight stands for, ``(n, k)``, rounded once to ``dtype``."""
    from anyxpu.ops import weight_only_kernels as kernels

    rows, depth = weight.shape
    if depth * weight.bits % 32:
        assert weight.zero_points is None and weight.group == depth
        return (weight.values.float() * weight.scales.float().t()).to(dtype)
    words = depth * weight.bits // 32
    out = torch.empty((rows, depth), dtype=dtype, device=weight.values.device)
    with current(out.device):
        kernels.dequantize[(-(-words // 64), rows)](
            weight.values.view(torch.int32), weight.scales, _points(weight), out, rows, words,
            GROUP=weight.group, BITS=weight.bits, POINTS=weight.zero_points is not None, BW=64, num_warps=1,
        )  # fmt: skip
    return out


def _points(weight: Weight) -> Tensor:
    """Zero points; any pointer where there are none."""
    return weight.scales if weight.zero_points is None else weight.zero_points
