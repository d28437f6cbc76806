"""Casts of ``fp8e4b15``, which MLIR does not know: its values travel as bytes.

The type has four bits of exponent, biased by 15, and three of significand, no infinity and no NaN: an f16 without its
highest bit of exponent and its lowest seven of significand. Casts to it round to nearest even and saturate at 1.875.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl


def convert(value: tl.tensor, target: tl.dtype, rounding: Any, _semantic: Any) -> tl.tensor:
    """Cast to or from fp8e4b15; the hook that Triton's frontend calls ``convert_custom_types``.

    Raises:
        NotImplementedError: a rounding mode other than to nearest even was asked for.
    """
    if rounding is not None and str(rounding.name).lower() != "rtne":
        raise NotImplementedError(f"casts of fp8e4b15 round to nearest even, not {rounding.name.lower()}")
    if target.scalar.is_fp8e4b15():
        return _from_float16(_semantic.cast(value, tl.float16), target, _semantic)
    return _semantic.cast(_to_float16(value, _semantic), target.scalar)


def _from_float16(value: tl.tensor, target: tl.dtype, s: Any) -> tl.tensor:
    bits = s.bitcast(value, _like(value, tl.uint16))
    sign = s.and_(s.lshr(bits, _int(8, s)), _int(0x80, s))
    largest = s.and_(bits, _int(0x7FFF, s))
    magnitude = s.minimum(largest, _int(0x3F80, s), tl.PropagateNan.NONE)
    half = s.add(s.and_(s.lshr(magnitude, _int(7, s)), _int(1, s)), _int(0x3F, s), False)
    code = s.lshr(s.add(magnitude, half, False), _int(7, s))
    return s.bitcast(s.cast(s.or_(sign, code), tl.uint8), _like(value, target.scalar))


def _to_float16(value: tl.tensor, s: Any) -> tl.tensor:
    bits = s.cast(s.bitcast(value, _like(value, tl.uint8)), tl.uint16)
    sign = s.shl(s.and_(bits, _int(0x80, s)), _int(8, s))
    magnitude = s.shl(s.and_(bits, _int(0x7F, s)), _int(7, s))
    return s.bitcast(s.or_(sign, magnitude), _like(value, tl.float16))


def _like(value: tl.tensor, element: tl.dtype) -> tl.dtype:
    return tl.block_type(element, value.type.shape) if value.type.is_block() else element


def _int(number: int, s: Any) -> tl.tensor:
    return s.scalar_constant(number, tl.uint16)
