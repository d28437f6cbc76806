"""Random numbers made of uniform and normal ones, and permutations.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then draws, or raises what CPU
torch raises.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from anyxpu.ops import random

_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_NARROW)


def _uniform(x: Tensor, generator: Generator | None, dtype: torch.dtype | None = None) -> Tensor:
    """Of [0, 1), of x's shape, with the digits of float32 at least."""
    wide = dtype or (torch.float32 if x.dtype in _NARROW else x.dtype)
    return torch.empty(x.shape, dtype=wide, device=x.device).uniform_(generator=generator)


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Any:
    """aten::cauchy_: numbers of the Cauchy distribution."""
    if self.dtype not in _FLOATS or not sigma > 0:
        return NotImplemented
    return self.copy_(torch.tan((_uniform(self, generator) - 0.5) * math.pi) * sigma + median)


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Any:
    """aten::geometric_: how often it is tried until that succeeds which does so with probability ``p``."""
    if not 0 < p < 1 or self.is_complex() or self.dtype is torch.bool:
        return NotImplemented
    drawn = _uniform(self, generator, None if self.dtype in _FLOATS else torch.float32)
    tries = torch.ceil(torch.log1p(-drawn) / math.log1p(-p)).clamp_min(1)
    if not self.is_floating_point():
        tries = tries.clamp_max(torch.iinfo(self.dtype).max)
    return self.copy_(tries)


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Any:
    """aten::log_normal_: exponentials of normal numbers."""
    if self.dtype not in _FLOATS or not std > 0:
        return NotImplemented
    wide = torch.float32 if self.dtype in _NARROW else self.dtype
    drawn = torch.empty(self.shape, dtype=wide, device=self.device).normal_(mean, std, generator=generator)
    return self.copy_(torch.exp(drawn))


def normal(mean: Any, std: Any = 1.0, *, generator: Generator | None = None) -> Any:
    """aten::normal of tensors: normal numbers of means and deviations that are broadcast together."""
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    like = tensors[0]
    if any(t.dtype not in _FLOATS or t.dtype != like.dtype or t.device != like.device for t in tensors):
        return NotImplemented
    if not (bool((std >= 0).all()) if isinstance(std, Tensor) else std >= 0):
        return NotImplemented  # for torch's own words
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return NotImplemented
    drawn = torch.empty(shape, dtype=like.dtype, device=like.device).normal_(generator=generator)
    return drawn * std + mean


def randperm_out(n: int, *, generator: Generator | None, out: Tensor) -> Any:
    """aten::randperm.generator_out: the integers below ``n`` in the order of random keys of 63 bits."""
    if n <= 0 or (out.is_floating_point() and out.dtype not in _FLOATS) or out.is_complex() or out.dtype is torch.bool:
        return NotImplemented
    counted = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}
    if n > (counted[out.dtype] if out.dtype in counted else torch.iinfo(out.dtype).max):
        return NotImplemented
    keys = torch.empty(n, dtype=torch.int64, device=out.device).random_(generator=generator)
    out.resize_((n,))
    return out.copy_(torch.argsort(keys))


def rrelu(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Generator | None = None,
) -> Any:  # fmt: skip
    """aten::rrelu_with_noise: negative elements times random slopes, which ``noise`` gets; times their mean else."""
    if self.dtype not in _FLOATS or noise.dtype != self.dtype or noise.shape != self.shape or not lower <= upper:
        return NotImplemented
    if not training:
        return torch.nn.functional.leaky_relu(self, (lower + upper) / 2)
    drawn = torch.empty(self.shape, dtype=self.dtype, device=self.device).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(self <= 0, drawn, 1.0))
    return self * noise


def rrelu_(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Generator | None = None,
) -> Any:  # fmt: skip
    """aten::rrelu_with_noise_: :func:`rrelu` into self."""
    made = rrelu(self, noise, lower, upper, training, generator)
    return made if made is NotImplemented else self.copy_(made)


# --- numbers whose parameters are each element's own --------------------------------------------------------------


def _parameters(*tensors: Tensor) -> tuple[Tensor, list[Tensor]] | None:
    """An empty result for parameters that are broadcast together, and those as the kernels read them."""
    like = tensors[0]
    if any(t.dtype not in _FLOATS or (t.dtype, t.device) != (like.dtype, like.device) for t in tensors):
        return None
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return None
    out = torch.empty(shape, dtype=like.dtype, device=like.device)
    return out, [t.expand(shape).float().contiguous() for t in tensors]


def standard_gamma(self: Tensor, generator: Generator | None = None) -> Any:
    """aten::_standard_gamma: numbers above 0 of gamma distributions of rate 1 and the shapes in ``self``."""
    found = _parameters(self)
    if found is None:
        return NotImplemented
    return random.each_of(found[0], "random_gamma", generator, *found[1], torch.finfo(self.dtype).tiny)


def sample_dirichlet(self: Tensor, generator: Generator | None = None) -> Any:
    """aten::_sample_dirichlet: points of the simplex; the last dimension of ``self`` are a distribution's parameters.

    Gamma numbers over their sum.
    """
    if self.dim() == 0 or self.dtype not in _FLOATS:
        return NotImplemented
    found = _parameters(self.float() if self.dtype in _NARROW else self)
    drawn = found and random.each_of(found[0], "random_gamma", generator, *found[1], torch.finfo(torch.float32).tiny)
    if drawn is None or drawn is NotImplemented:
        return NotImplemented
    return (drawn / drawn.sum(-1, keepdim=True)).clamp_min(torch.finfo(self.dtype).tiny).to(self.dtype)


def poisson(self: Tensor, generator: Generator | None = None) -> Any:
    """aten::poisson: numbers of Poisson distributions whose rates are ``self``'s elements.

    Where one is below 0, the next call that waits for the device raises torch.AcceleratorError.
    """
    found = _parameters(self)
    return NotImplemented if found is None else random.each_of(found[0], "random_poisson", generator, *found[1])


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Any:
    """aten::binomial: how many of ``count`` trials succeed that do so with probability ``prob`` each."""
    found = _parameters(count, prob)
    return NotImplemented if found is None else random.each_of(found[0], "random_binomial", generator, *found[1])
