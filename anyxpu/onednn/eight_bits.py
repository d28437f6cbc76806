"""Products of 8-bit floating-point numbers, summed in float32, by oneDNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.fallbacks import COMPOSED, Fallback, count, named
from anyxpu.onednn.matmul import matrix_strides
from anyxpu.onednn.primitive import Attributes, Executable, MemoryDesc, PrimitiveDesc, SignatureCache, run

CACHE: SignatureCache[Any] = SignatureCache(capacity=1024)


def product(a: Tensor, b: Tensor) -> Any:
    """``a @ b`` in float32.

    Args:
        a, b: ``(m, k)`` and ``(k, n)``, float8_e4m3fn, float8_e5m2 or bfloat16, not empty, of any strides.

    Returns:
        float32 ``(m, n)``; ``NotImplemented`` where the driver's queues are not SYCL's. Where oneDNN has none of 8 bits
        it is a product of bfloat16, which has all of their numbers.
    """
    a, b = (t if _readable(t) else t.contiguous() for t in (a, b))
    key = tuple((t.dtype, t.get_device(), t.shape, t.stride()) for t in (a, b))
    return CACHE.get(key, _plan, a, b).run(a, b)


def _readable(t: Tensor) -> bool:
    return matrix_strides(t.shape, t.stride()) is not None


class _Primitive:
    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.index, what = a.device.index, f"matmul {tuple(a.shape)} x {tuple(b.shape)} {_operands(a, b)}"
        home, shape = engine.engine(self.index), (a.shape[0], b.shape[1])
        operands = [MemoryDesc.plain(t.shape, t.dtype, matrix_strides(t.shape, t.stride()) or ()) for t in (a, b)]
        result = MemoryDesc.plain(shape, torch.float32, (shape[1], 1))
        handle = Attributes().create(what)
        try:
            args = (home.handle, operands[0].handle, operands[1].handle, None, result.handle, handle)
            description = PrimitiveDesc("matmul", *args, what=what)
        finally:
            capi.library().primitive_attr_destroy(handle)
        self.executable = Executable(home, description, (Arg.SRC, Arg.WEIGHTS, Arg.DST))
        if self.executable.is_reference:
            raise capi.Unimplemented("primitive_desc_create", capi.Status.UNIMPLEMENTED, f"{what}, but for a slow one")

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        result = a.new_empty((a.shape[0], b.shape[1]), dtype=torch.float32)
        run(self.executable, engine.stream(self.index), a.device, *(t.data_ptr() for t in (a, b, result)))
        return result


class _Widened:
    def __init__(self, fallback: Fallback, dtype: torch.dtype) -> None:
        self.fallback, self.dtype = fallback, dtype

    def run(self, a: Tensor, b: Tensor) -> Any:
        count(self.fallback)
        return product(a.to(self.dtype), b.to(self.dtype))


class _Absent:
    def run(self, a: Tensor, b: Tensor) -> Any:
        return NotImplemented


class _Single:
    """Of float32, which every device has."""

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def _operands(a: Tensor, b: Tensor) -> str:
    names = (str(t.dtype).removeprefix("torch.") for t in (a, b))
    return f"{' x '.join(names)} on {a.device}"


def _plan(a: Tensor, b: Tensor) -> Any:
    if not engine.available():
        return _Absent()
    if a.dtype == torch.float32:
        return _Single()
    try:
        return _Primitive(a, b)
    except capi.Unavailable as error:
        narrow = a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16
        wider = torch.bfloat16 if narrow else torch.float32
        return _Widened(named("matmul", _operands(a, b), a.device, error, COMPOSED), wider)
