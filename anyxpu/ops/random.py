"""Random numbers on xpu: ``random_``, ``uniform_``, ``normal_`` and ``bernoulli``, by Philox.

Every function draws from ``generator``, or from the device's own where it is None: it takes the generator's seed and
reserves the next of its offsets, so that a seed brings the same numbers again and no two calls share any. Values do
not depend on strides. A function here returns ``NotImplemented`` for a call that it does not serve (bounds that the
dtype cannot hold, dtypes that torch cannot draw); the host then raises what CPU torch raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from anyxpu.ops import kernels
from anyxpu.shim import lib

# Names that types.cl has for dtypes, and the bits of a float's significand.
_INTEGERS = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.uint16: "u16",
    torch.int16: "i16",
    torch.uint32: "u32",
    torch.int32: "i32",
    torch.uint64: "u64",
    torch.int64: "i64",
}
_FLOATS = {
    torch.float16: ("f16", 11),
    torch.bfloat16: ("bf16", 8),
    torch.float32: ("f32", 24),
    torch.float64: ("f64", 53),
}

_LANES, _PER_ITEM = 256, 4
# Of a work-group: ten rounds of Philox for each work-item, and as much again to make numbers of them.
_WORK = ((100 * _LANES, ()),)
_INT64_MIN = -(2**63)


def random_(self: Tensor, *, generator: Generator | None = None) -> Any:
    """aten::random_: integers from 0 to the largest that the dtype holds exactly (all before it too), inclusive."""
    span = _integers_of(self.dtype)
    return NotImplemented if span is None else _integers(self, 0, span[1] + 1, generator)


def random_to(self: Tensor, to: int, *, generator: Generator | None = None) -> Any:
    """aten::random_.to: integers from 0 up to, not including, ``to``."""
    return random_from(self, 0, to, generator=generator)


def random_from(self: Tensor, low: int, high: int | None, *, generator: Generator | None = None) -> Any:
    """aten::random_.from: integers from ``low`` up to, not including, ``high``.

    Args:
        high: None: up to, and including, the largest as for :func:`random_`; with the lowest int64 as ``low``, any 64
            bits.
    """
    span = _integers_of(self.dtype)
    if span is None:
        return NotImplemented
    if high is None:
        high = span[1] + 1
    if not span[0] <= low < high <= span[1] + 1:
        return NotImplemented
    return _integers(self, low, high, generator)


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Any:
    """aten::uniform_: floats from ``low`` up to, not including, ``high``; parts of a complex number are drawn apart."""
    if self.is_complex():
        uniform_(torch.view_as_real(self), low, high, generator=generator)
        return self
    if self.dtype not in _FLOATS or not _in_range(self.dtype, low, high, high - low) or low > high:
        return NotImplemented
    return _draw(self, "random_uniform", generator, 4, low, high)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Any:
    """aten::normal_: floats of the normal distribution; each part of a complex number has half of the variance."""
    if not std >= 0:
        return NotImplemented
    if self.is_complex():
        normal_(torch.view_as_real(self), mean, std / math.sqrt(2), generator=generator)
        return self
    if self.dtype not in _FLOATS:
        return NotImplemented
    return _draw(self, "random_normal", generator, 4, mean, std)


def bernoulli_(self: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Any:
    """aten::bernoulli_.float: 1 with probability ``p``, to 32 bits of it, else 0, in any real dtype."""
    if not 0 <= p <= 1:
        return NotImplemented
    return _draw(self, "random_bernoulli", generator, 4, round(p * 2**32))


def bernoulli_tensor_(self: Tensor, p: Tensor, *, generator: Generator | None = None) -> Any:
    """aten::bernoulli_.Tensor: 1 with the probability in ``p``, a tensor of floats that expands to ``self``.

    Where one is not between 0 and 1, the next call that waits for the device raises torch.AcceleratorError.
    """
    if p.device != self.device or p.dtype not in _FLOATS:
        return NotImplemented
    return _draw(self, "random_bernoulli_each", generator, 4, p.expand_as(self).float().contiguous())


def bernoulli_out(self: Tensor, *, generator: Generator | None = None, out: Tensor) -> Any:
    """aten::bernoulli.out: into ``out`` of ``self``'s shape, 1 with the probability in ``self``, else 0."""
    if out.device != self.device or self.dtype not in _FLOATS:
        return NotImplemented
    out.resize_(self.shape)
    return bernoulli_tensor_(out, self, generator=generator)


def dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """aten::native_dropout: ``x`` with a share ``p`` of its elements made 0, and the others larger by 1 / (1 - p).

    Returns:
        The result and the mask of the elements that are kept, laid out as x; x itself and a mask of ones where not
        in training.
    """
    if not x.is_floating_point() or x.numel() == 0 or not 0 <= p <= 1:
        return NotImplemented
    mask = torch.empty_like(x, dtype=torch.bool)
    if train is not None and not train:
        return x.clone(), mask.fill_(True)
    if p == 1:
        return torch.zeros_like(x), mask.zero_()
    mask.bernoulli_(1 - p)
    return torch.ops.aten.native_dropout_backward(x, mask, 1 / (1 - p)), mask


def fused_dropout(x: Tensor, p: float, generator: Generator | None = None) -> Any:
    """aten::_fused_dropout: ``x`` with a share ``p`` of its elements kept, larger by 1 / p, and the mask, of uint8."""
    if not x.is_floating_point() or x.numel() == 0 or not 0 < p <= 1:
        return NotImplemented
    mask = torch.empty_like(x, dtype=torch.uint8).bernoulli_(p, generator=generator)
    return masked_scale(x, mask, 1 / p), mask


def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Any:
    """aten::_masked_scale: ``x * scale`` where the mask, of uint8 or bool, is not 0, and 0 elsewhere."""
    if not x.is_floating_point() or mask.dtype not in (torch.uint8, torch.bool) or mask.shape != x.shape:
        return NotImplemented
    return torch.ops.aten.native_dropout_backward(x, mask != 0, scale)


def _integers_of(dtype: torch.dtype) -> tuple[int, int] | None:
    """The integers of a dtype that have no gaps between them, first and last; None for a dtype without."""
    if dtype is torch.bool:
        return 0, 1
    if dtype in _INTEGERS:
        return torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return (-(2 ** _FLOATS[dtype][1]), 2 ** _FLOATS[dtype][1]) if dtype in _FLOATS else None


def _integers(self: Tensor, low: int, high: int, generator: Generator | None) -> Any:
    """Integers from low up to, not including, high."""
    return _draw(self, "random_integers", generator, 8, (high - low) % 2**64, low)


def _in_range(dtype: torch.dtype, *values: float) -> bool:
    most = torch.finfo(dtype).max
    return all(-most <= value <= most for value in values)


_ARGUMENTS = {
    "random_integers": ("u64", "i64"),
    "random_bernoulli": ("u64",),
    "random_bernoulli_each": ("*fp32",),
    "random_uniform": ("real", "real"),
    "random_normal": ("real", "real"),
    "random_gamma": ("*fp32", "fp32"),
    "random_poisson": ("*fp32",),
    "random_binomial": ("*fp32", "*fp32"),
}
# Of these, which are distributions.cl's, each element has a stream of so many steps.
_STREAMED = ("random_gamma", "random_poisson", "random_binomial")
_TRIES = 64


# What the host says where a kernel finds it, at the next call that waits for the device.
_HELD = {
    "random_bernoulli_each": ("bernoulli: a probability is not between 0 and 1",),
    "random_poisson": ("poisson: invalid Poisson rate, expected rate to be non-negative",),
}


@cache
def _kernel(device: int, dtype: torch.dtype, name: str) -> Callable[..., None] | None:
    """The kernel for a type of elements; None where the device has no such type, or torch no such operator."""
    if dtype is torch.float64 and not lib().properties(device).has_fp64:
        return None
    options = ["-cl-std=CL3.0", f"-DELEMENTS_PER_ITEM={_PER_ITEM}", f"-DLOCAL_SIZE={_LANES}"]
    if dtype in _FLOATS:
        options += [f"-DDST={_FLOATS[dtype][0]}", "-DDST_FLOAT=1", f"-DDST_DIGITS={_FLOATS[dtype][1]}"]
    elif dtype in _INTEGERS:
        options += [f"-DDST={_INTEGERS[dtype]}"]
    else:
        return None
    if lib().properties(device).has_fp64:
        options.append("-DHAS_FP64")
    real = "fp64" if dtype is torch.float64 else "fp32"
    types = ["*dst", "u64", "u64", "u64", *(real if t == "real" else t for t in _ARGUMENTS[name])]
    texts: tuple[str, ...] = ("types.cl", "assertions.cl", "random.cl")
    if name in _STREAMED:
        texts = (*texts, "distributions.cl")
        options.append(f"-DTRIES={_TRIES}")
    held = _HELD.get(name, ())
    return kernels.launcher(device, texts, " ".join(options), name, types, _LANES, work=_WORK, assertions=held)


def each_of(self: Tensor, name: str, generator: Generator | None, *parameters: Any) -> Any:
    """Fill ``self``, of 16 or 32 bits, by a kernel of ``distributions.cl`` and its parameters, float32 and dense."""
    if self.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return NotImplemented
    return _draw(self, name, generator, 4 * _TRIES, *parameters)


def _draw(self: Tensor, name: str, generator: Generator | None, outputs: int, *arguments: Any) -> Any:
    """Fill ``self``; ``outputs`` is how many of Philox a work-item takes."""
    device = self.get_device()
    kernel = _kernel(device, self.dtype, name)
    if kernel is None:
        return NotImplemented
    seed, offset = lib().philox_state(generator, outputs, device)
    count = self.numel()
    if count == 0:
        return self
    dense = self if self.is_contiguous() else torch.empty(self.shape, dtype=self.dtype, device=self.device)
    kernel(-(-count // (_LANES * _PER_ITEM)), 1, dense, count, seed, offset, *arguments)
    if dense is not self:
        self.copy_(dense)
    return self
