"""Products of floating-point numbers with weights of 4 or 8 bits, which are scaled as they are read, by oneDNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, Fallback, count, named
from anyxpu.onednn.primitive import (
    Attributes,
    Executable,
    Factors,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    run,
)

CACHE: SignatureCache[Any] = SignatureCache(capacity=1024)

_MODES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "none"}
"""What the weights' integers are computed with as, by the dtype of the source."""


@dataclass(frozen=True)
class Weight:
    """``(n, k)`` of narrow numbers: a number ``q`` stands for ``(q - zero_point) * scale``.

    Attributes:
        values: int8 ``(n, k)``, or int32 ``(n, k / 8)``, where each holds 8 of 4 bits without a sign, the first in the
            lowest ones, or float8_e4m3fn ``(n, k)``, which oneDNN has no product for; contiguous.
        scales: ``(k / group, n)``, contiguous.
        zero_points: int8, the same; None where all are 0.
        group: how many along k share a scale.
    """

    values: Tensor
    scales: Tensor
    zero_points: Tensor | None
    group: int

    @property
    def bits(self) -> int:
        """Of a number."""
        return 4 if self.values.dtype == torch.int32 else 8

    @property
    def shape(self) -> tuple[int, int]:
        """``(n, k)``"""
        rows, words = self.values.shape
        return rows, words if self.bits == 8 else words * 8


def product(source: Tensor, weight: Weight) -> Any:
    """``source @ weight.t()``, each number of the weight taken for what it stands for.

    Args:
        source: ``(m, k)``, float32, bfloat16 or float16, contiguous; not empty.

    Returns:
        ``(m, n)`` of the source's dtype, or ``NotImplemented`` where oneDNN has no such primitive.
    """
    points = weight.zero_points is not None
    key = (source.dtype, source.get_device(), source.shape, weight.shape, weight.bits, weight.scales.dtype, points)
    return CACHE.get((*key, weight.group), _plan, source, weight).run(source, weight)


class _Primitive:
    """One primitive, which reads the weight as it lies."""

    def __init__(self, source: Tensor, weight: Weight) -> None:
        self.index, what = source.device.index, f"matmul {_operands(source, weight)} of {tuple(source.shape)}"
        home, (rows, depth) = engine.engine(self.index), weight.shape
        grouped = weight.group < depth
        mask, groups = (0b11, (weight.group, 1)) if grouped else (0b10, ())
        scales = Factors(Arg.WEIGHTS, mask, weight.scales.dtype, groups)
        points = () if weight.zero_points is None else (Factors(Arg.WEIGHTS, mask, torch.int8, groups),)
        attributes = Attributes(math_mode=_MODES[source.dtype], widened=True, scales=(scales,), zero_points=points)
        handle = attributes.create(what)
        numbers = torch.int8 if weight.bits == 8 else torch.uint4  # type: ignore[attr-defined]
        shape = source.shape[0], rows
        result = MemoryDesc.plain(shape, source.dtype, (rows, 1))
        operand = MemoryDesc.plain(source.shape, source.dtype, source.stride())
        values = MemoryDesc.plain((depth, rows), numbers, (1, depth))
        try:
            args = (home.handle, operand.handle, values.handle, None, result.handle, handle)
            description = PrimitiveDesc("matmul", *args, what=what)
        finally:
            capi.library().primitive_attr_destroy(handle)
        form = (depth // weight.group, rows) if grouped else (rows,)
        strides = (rows, 1) if grouped else (1,)
        factors = {Arg.WEIGHTS_SCALE: MemoryDesc.plain(form, weight.scales.dtype, strides)}
        if points:
            factors[Arg.WEIGHTS_ZERO_POINT] = MemoryDesc.plain(form, torch.int8, strides)
        self.executable = Executable(home, description, (Arg.SRC, Arg.WEIGHTS, Arg.DST), factors)
        if self.executable.is_reference:
            raise capi.Unimplemented("primitive_desc_create", capi.Status.UNIMPLEMENTED, f"{what}, but for a slow one")

    def run(self, source: Tensor, weight: Weight) -> Tensor:
        result = source.new_empty(source.shape[0], weight.shape[0])
        operands = [source, weight.values, result, weight.scales]
        if weight.zero_points is not None:
            operands.append(weight.zero_points)
        run(self.executable, engine.stream(self.index), source.device, *(t.data_ptr() for t in operands))
        return result


class _Widened:
    """Computed in float32 on a device whose oneDNN does not compute in the source's 16 bits."""

    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback

    def run(self, source: Tensor, weight: Weight) -> Any:
        wide = Weight(weight.values, weight.scales.float(), weight.zero_points, weight.group)
        result = product(source.float(), wide)
        if result is NotImplemented:
            return result
        count(self.fallback)
        return result.to(source.dtype)


class _Absent:
    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback

    def run(self, source: Tensor, weight: Weight) -> Any:
        count(self.fallback)
        return NotImplemented


def _operands(source: Tensor, weight: Weight) -> str:
    return f"{str(source.dtype).removeprefix('torch.')} x {weight.bits}-bit weights on {source.device}"


def _plan(source: Tensor, weight: Weight) -> Any:
    if not engine.available():
        return _Absent(Fallback("matmul", _operands(source, weight), "the driver's queues are not SYCL's", COMPOSED))
    try:
        return _Primitive(source, weight)
    except capi.Unavailable as error:
        instead = COMPOSED if source.dtype == torch.float32 else FLOAT32
        fallback = named("matmul", _operands(source, weight), source.device, error, instead)
        return _Absent(fallback) if instead == COMPOSED else _Widened(fallback)
