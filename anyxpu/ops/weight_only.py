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
from anyxpu.processor import looks_up
from anyxpu.runtime.vectors import has_short_vectors

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_WORDS = 16  # a register
MOST_ROWS = 4
"""That the kernel of few rows multiplies at once. Of more its time is that of multiplying, as if they came in turn."""
_TOGETHER = {1: 2, 2: 2, 4: 4}
"""Rows of a weight that the kernel of few rows reads at once, by how many it multiplies them with, where a CPU's
registers are short. Where they are long (and there are twice as many) it reads 4: measured with AVX-512, over 2, one
row 1.0 to 1.15 of the speed, two rows 1.1 to 1.2."""
_MOST_TOGETHER = 4
_TURNS = 8
"""How often a program of it does so."""


BY_TILES = {4: range(2, 97), 8: range(5, 17), 9: range(3, 129)}
"""Rows of bfloat16 that a CPU's tiles multiply with a weight of 4 bits, 8 bits, or float8 (9).

Measured with AMX, 4096 x 4096, the time over that of what is taken else: 4 bits, 1 row 1.0 to 1.2, 2 0.99, 8 0.3, 32
0.45, 64 0.68, 128 0.97; 8 bits, 4 rows 1.2, 8 0.8, 17 1.16; float8, 1 row 1.24, 4 0.97, 8 0.5, 128 0.42.
"""
CHUNK, BLOCK, AT_ONCE = 128, 32, 16
"""Numbers of a row of the weight that such a kernel takes at a time, of how many rows, for how many of bfloat16."""
_PACKED = (torch.int32, torch.uint32, torch.uint8)
_GROUPS = (16, 32, 64, 128, 256)


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


def int4pack_mm_of_pairs(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:
    """aten::_weight_int4pack_mm as XPU has it: ``self @ ((q - 8) * scale + zero).t()``.

    Args:
        self: ``(m, k)``, float32, bfloat16 or float16.
        mat2: ``(n, k / 8)``, int32 of :func:`convert_weight_to_int4pack`; or uint8 ``(n, k / 2)`` of two numbers each.
        qGroupSize: 16, 32, 64, 128 or 256: how many along k share a scale; it divides k.
        qScaleAndZeros: ``(k / qGroupSize, n, 2)``: the scale, and the number that four bits of 8 stand for.

    Returns:
        ``(m, n)`` of self's dtype.

    Raises:
        RuntimeError: operands that do not fit.
    """
    what = "_weight_int4pack_mm"
    _check_source(self, what)
    _require(mat2.dim() == 2 and mat2.dtype in _PACKED, what, f"wants int32 (n, k / 8) or uint8, not {_said(mat2)}")
    _require(qGroupSize in _GROUPS, what, f"takes group sizes of {', '.join(map(str, _GROUPS))}, not {qGroupSize}")
    packed = mat2.contiguous().view(torch.int32)
    shape = (self.shape[1] // qGroupSize, packed.shape[0], 2)
    fits = tuple(qScaleAndZeros.shape) == shape and qScaleAndZeros.dtype in _FLOATS
    _require(fits, what, f"wants floating-point scales and zeros of shape {shape}, not {_said(qScaleAndZeros)}")
    _check_devices(what, self, mat2, qScaleAndZeros)
    scales, zeros = qScaleAndZeros.unbind(-1)
    middle = torch.full(shape[:2], 8, dtype=torch.int8, device=self.device)
    made = int4pack_mm(self, packed, qGroupSize, scales.contiguous(), middle)
    if made.numel() == 0 or self.shape[1] == 0:
        return made
    # What the zeros add is the same for all of a group: its sum times them.
    sums = self.reshape(self.shape[0], -1, qGroupSize).sum(-1, dtype=torch.float32)
    return (made + sums @ zeros.float()).to(self.dtype)


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


def float8_mm(self: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """anyxpu::_weight_float8_mm: ``self @ (weight * scales[:, None]).t()``, what torchao's float8 weights compile to.

    Args:
        self: ``(m, k)``, float32, bfloat16 or float16.
        weight: float8_e4m3fn ``(n, k)``.
        scales: float32, ``(n,)`` or of one element.

    Returns:
        ``(m, n)`` of self's dtype. On a CPU device by kernels that read the weight as it is: up to 8 rows, and
        up to 128 of bfloat16 where it has tile registers.

    Raises:
        RuntimeError: operands that do not fit.
    """
    what = "_weight_float8_mm"
    _check_source(self, what)
    fits = weight.dtype == torch.float8_e4m3fn and weight.dim() == 2
    _require(fits, what, f"wants float8_e4m3fn weights (n, k), not {_said(weight)}")
    rows, depth = weight.shape
    _require(self.shape[1] == depth, what, f"cannot take k of {self.shape[1]} with a weight whose k is {depth}")
    fits = scales.numel() in (1, rows) and scales.dtype == torch.float32
    _require(fits, what, f"wants float32 scales of shape {(rows,)} or of one element, not {_said(scales)}")
    _check_devices(what, self, weight, scales)
    if 0 in (self.shape[0], rows, depth):
        return self.new_zeros(self.shape[0], rows)
    narrow = Weight(weight.contiguous(), scales.contiguous().view(1, -1), None, depth)
    if goes_by_tiles(self, narrow):
        return by_tiles(self.contiguous(), narrow)
    if takes_few_rows(self, narrow):
        result = self.new_empty(self.shape[0], rows)
        for part, into in zip(self.contiguous().split(MOST_ROWS), result.split(MOST_ROWS), strict=True):
            few_rows(part, narrow, into)
        return result
    if scales.numel() != rows:
        narrow = Weight(narrow.values, scales.reshape(1, 1).expand(1, rows).contiguous(), None, depth)
    return self @ dequantized(narrow, self.dtype).t()


def takes_few_rows(source: Tensor, weight: Weight) -> bool:
    """Whether a float8 weight had better be multiplied by the kernel of few rows, of MOST_ROWS at a time."""
    few = 0 < source.shape[0] <= 2 * MOST_ROWS and weight.values.dtype == torch.float8_e4m3fn
    return few and weight.shape[1] % 4 == 0 and _on_cpu(source.get_device())


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
    if goes_by_tiles(source, weight):
        return by_tiles(source, weight)
    if source.shape[0] <= _few(weight) and not depth * weight.bits % 32 and _on_cpu(source.get_device()):
        return few_rows(source, weight)
    result: Any = product(source, weight)
    return source @ dequantized(weight, source.dtype).t() if result is NotImplemented else result


def goes_by_tiles(source: Tensor, weight: Weight) -> bool:
    """Whether a weight had better be multiplied by bfloat16's instructions as it is unpacked.

    Activations that are infinite, or within 2**11 of that, may make NaN then where they need not.
    """
    if source.dtype != torch.bfloat16 or source.shape[0] not in BY_TILES[_kind(weight)]:
        return False
    (rows, depth), group = weight.shape, weight.group
    whole = rows >= BLOCK and depth % CHUNK == 0 and (weight.bits == 8 or group % CHUNK == 0)
    known = weight.scales.dtype in (torch.bfloat16, torch.float32)
    return whole and known and looks_up() and _on_cpu(source.get_device())


def by_tiles(source: Tensor, weight: Weight) -> Tensor:
    """``source @ weight.t()``, both as :func:`goes_by_tiles` wants them, the source contiguous."""
    from anyxpu.ops import weight_tiles_kernels as kernels  # Triton, which `import torch` does without

    (m, depth), rows, kind = source.shape, weight.shape[0], _kind(weight)
    group, together = (weight.group, weight.group) if weight.bits == 4 else (depth, CHUNK)
    x, result = torch.empty_like(source), source.new_empty(m, rows)
    passes = -(-m // AT_ONCE)
    sums = torch.empty(passes, depth // group, AT_ONCE, dtype=torch.float32, device=source.device)
    one = weight.scales.numel() == 1 and weight.scales.dtype == torch.float32
    with current(source.device):
        kernels.arrange[(depth // together, m)](
            source, x, sums, depth, m, CHUNKS=together // CHUNK, KIND=kind, num_warps=1
        )
        kernels.product[(-(-rows // BLOCK), passes)](
            x, sums, weight.values, weight.scales, _points(weight), result, rows, depth, m, group,
            SCALE_BYTES=0 if one else weight.scales.element_size(), POINTS=weight.zero_points is not None, KIND=kind,
            num_warps=1,
        )  # fmt: skip
    return result


def _few(weight: Weight) -> int:
    """Rows up to which the kernel of few rows is faster on a CPU device than oneDNN."""
    return MOST_ROWS if weight.bits == 8 or _words_of_one_group(weight) else 0


def _words_of_one_group(weight: Weight) -> bool:
    """Whether a register's words are of one group, or of two or four."""
    lanes = 32 // weight.bits * _WORDS
    return weight.group == weight.shape[1] or weight.group % lanes == 0 or weight.group in (lanes // 2, lanes // 4)


@functools.lru_cache(maxsize=64)
def _on_cpu(device: int) -> bool:
    return bool(torch.xpu.get_device_properties(device).type == "cpu")


def few_rows(source: Tensor, weight: Weight, result: Tensor | None = None, factors: Tensor | None = None) -> Tensor:
    """``(source * factors) @ weight.t()`` by the kernel of few rows.

    Args:
        source: ``(m, k)`` of 1 to MOST_ROWS rows, contiguous, of floating-point numbers of 8 bits or more.
        weight: whose rows are whole words of 32 bits. Of 8 bits it may have one scale.
        result: what it is written into, contiguous; None: a new tensor of the source's dtype.
        factors: float32, one or m numbers.
    """
    from anyxpu.ops import weight_only_kernels as kernels  # Triton, which `import torch` does without

    (m, depth), rows, kind = source.shape, weight.shape[0], _kind(weight)
    each, points = 32 // weight.bits, int(weight.zero_points is not None)
    words, many = depth // each, 1 << (m - 1).bit_length()
    short = has_short_vectors(source.device)
    together = _TOGETHER[many] if short else _MOST_TOGETHER
    # Sums of four rows by four fill all registers, where those have 8 numbers.
    lanes = _WORDS // 2 if many == 4 and short else _WORDS
    group = max(weight.group, each * lanes) if weight.group == depth else weight.group
    x = torch.empty((many, each + points, -(-words // lanes) * lanes), dtype=torch.float32, device=source.device)
    result = source.new_empty(m, rows) if result is None else result
    with current(source.device):
        kernels.arrange[(-(-words // lanes), m)](
            source, x if factors is None else factors, x, words, int(factors is not None and factors.numel() > 1),
            SCALED=factors is not None, KIND=kind, POINTS=points, BW=lanes, num_warps=1,
        )  # fmt: skip
        kernels.few_rows[(-(-rows // (_TURNS * together)),)](
            x, weight.values.view(torch.int32), weight.scales, _points(weight), result, rows, words, m,
            int(weight.scales.numel() > 1),
            M=many, GROUP=group if weight.bits == 4 else 0, KIND=kind, POINTS=points,
            TAIL=words % lanes != 0, BN=_TURNS, TOGETHER=together, BW=lanes, num_warps=1,
        )  # fmt: skip
    return result


def _kind(weight: Weight) -> int:
    from anyxpu.ops import weight_only_kernels as kernels

    return kernels.E4M3 if weight.values.dtype == torch.float8_e4m3fn else weight.bits


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
            GROUP=weight.group, KIND=_kind(weight), POINTS=weight.zero_points is not None, BW=64, num_warps=1,
        )  # fmt: skip
    return out


def _points(weight: Weight) -> Tensor:
    """Zero points; any pointer where there are none."""
    return weight.scales if weight.zero_points is None else weight.zero_points
