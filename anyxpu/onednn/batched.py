"""Products of batches where they lie: any number of batch dimensions of any strides, and float32 results of 16 bits.

The parts of attention. Where oneDNN has no such product on a device the caller does without.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.matmul import matrix_strides
from anyxpu.onednn.primitive import Attributes, Executable, MemoryDesc, PrimitiveDesc, SignatureCache, run

CACHE: SignatureCache[Executable | None] = SignatureCache(capacity=512)


def product(a: Tensor, b: Tensor, out: Tensor) -> bool:
    """``out = a @ b``, enqueued on the current stream.

    Args:
        a, b: (…, m, k) and (…, k, n) of one dtype and the same batch dimensions; rows or columns are dense.
        out: (…, m, n), whose rows are dense; of the same dtype, or float32. It overlaps neither.

    Returns:
        Whether oneDNN has such a product; False leaves ``out`` as it is.
    """
    mode = torch._C._get_fp32_precision_getter("mkldnn", "matmul") if a.dtype is torch.float32 else "none"
    exact = torch._C._get_deterministic_algorithms()
    key = (*(_facts(t) for t in (a, b, out)), a.get_device(), mode, exact)
    executable = CACHE.get(key, _make, a, b, out, Attributes(math_mode=mode, deterministic=exact))
    if executable is None:
        return False
    run(executable, engine.stream(a.get_device()), a.device, a.data_ptr(), b.data_ptr(), out.data_ptr())
    return True


def _facts(t: Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride()


def _make(a: Tensor, b: Tensor, out: Tensor, attributes: Attributes) -> Executable | None:
    if not engine.available() or not all(_readable(t) for t in (a, b, out)):
        return None
    home = engine.engine(a.get_device())
    what = f"products {tuple(a.shape)} x {tuple(b.shape)} {str(a.dtype).removeprefix('torch.')}"
    memories = [MemoryDesc.plain(t.shape, t.dtype, _strides(t)) for t in (a, b, out)]
    source, weights, result = (memory.handle for memory in memories)
    handle = attributes.create(what)
    try:
        description = PrimitiveDesc("matmul", home.handle, source, weights, None, result, handle, what=what)
        return Executable(home, description, (Arg.SRC, Arg.WEIGHTS, Arg.DST))
    except capi.Unavailable:
        return None
    finally:
        capi.library().primitive_attr_destroy(handle)


def _readable(t: Tensor) -> bool:
    """Matrices that lie densely in one direction, in a batch none of which is repeated."""
    repeated = any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride(), strict=True))
    return not repeated and matrix_strides(t.shape[-2:], t.stride()[-2:]) is not None


def _strides(t: Tensor) -> tuple[int, ...]:
    """Dimensions of size 1 leave their stride free: a matrix gets those under which it is read in place."""
    matrix = matrix_strides(t.shape[-2:], t.stride()[-2:])
    assert matrix is not None
    return (*t.stride()[:-2], *matrix)
