"""Discrete Fourier transforms: by products with small matrices on devices of their own memory, else by the host.

A transform of ``n = a * b`` elements is one of ``a``, factors of each element, and one of ``b`` (Cooley and Tukey, "An
algorithm for the machine calculation of complex Fourier series", 1965), down to lengths whose matrix is small: products
are what such devices are fastest at. Lengths with a large prime in them are convolutions of a power of two (Bluestein,
"A linear filtering approach to the computation of discrete Fourier transform", 1970). A CPU device leaves all that to
the host's library, which is faster there. Strides are those that XPU documents, which compiled graphs rely on.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching
from anyxpu.shim import lib

_WHOLE = 128  # the longest transform by one product where it can be parted
_PRIME = 512  # and where it cannot
_TOGETHER = 3  # dimensions that libraries transform at once, which shows in the strides
_WIDE = {torch.complex32: torch.complex64, torch.float16: torch.float32}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128, torch.float16: torch.complex32}
_REAL = {made: of for of, made in _COMPLEX.items()}


def here(device: int, double: bool = False) -> bool:
    """Are transforms made of products on the device, of float64 with ``double``?"""
    if launching.on_cpu(device):
        return not lib().properties(device).host_accessible and not double
    return not double or bool(lib().properties(device).has_fp64)


def _here(t: Tensor) -> bool:
    return here(t.get_device(), t.dtype in (torch.float64, torch.complex128))


# --- strides ------------------------------------------------------------------------------------------------------


def _order(strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Dimensions from the outermost to the innermost of a result: what is no part of it in its order, then ``dims``."""
    others = sorted((d for d in range(len(strides)) if d not in dims), key=lambda d: strides[d], reverse=True)
    return [*others, *dims]


def _by_stride(t: Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: t.stride(d), reverse=True)


def _laid(t: Tensor, order: Sequence[int]) -> Tensor:
    """``t`` dense, its dimensions from the outermost to the innermost as ``order`` says."""
    back = sorted(range(len(order)), key=lambda i: order[i])
    return t.permute(*order).contiguous().permute(*back) if order else t


# --- transforms along the last dimension --------------------------------------------------------------------------
# Tables are kept for the stream that made them: one that is given up may be in use there, and nowhere else.


def _place(t: Tensor) -> tuple[torch.device, int]:
    return t.device, torch._C._xpu_getCurrentRawStream(t.get_device())


@lru_cache(maxsize=32)
def _matrix(n: int, sign: int, dtype: torch.dtype, device: torch.device, queue: int) -> Tensor:
    """What complex rows of ``n``, parts side by side, are multiplied with: ``(2 * n, 2 * n)``."""
    turns = torch.outer(torch.arange(n), torch.arange(n)) % n
    angles = turns.double() * (sign * 2 * math.pi / n)
    cosines, sines = angles.cos(), angles.sin()
    pairs = torch.stack([torch.stack([cosines, sines], -1), torch.stack([-sines, cosines], -1)], 1)
    return pairs.reshape(2 * n, 2 * n).to(dtype).to(device)


@lru_cache(maxsize=16)
def _factors(a: int, b: int, sign: int, dtype: torch.dtype, device: torch.device, queue: int) -> Tensor:
    """``exp(sign * 2 pi i * j * k / (a * b))`` for ``j`` below ``b`` and ``k`` below ``a``: ``(b, a)``."""
    turns = torch.outer(torch.arange(b), torch.arange(a)).double() * (sign * 2 * math.pi / (a * b))
    return torch.polar(torch.ones_like(turns), turns).to(dtype).to(device)


@lru_cache(maxsize=8)
def _chirp(n: int, m: int, sign: int, dtype: torch.dtype, device: torch.device, queue: int) -> tuple[Tensor, Tensor]:
    """``exp(sign * pi i * j * j / n)``, and the transform, of ``m`` elements, of its conjugate on both sides of 0."""
    j = torch.arange(n)
    angles = (j * j % (2 * n)).double() * (sign * math.pi / n)
    chirp = torch.polar(torch.ones_like(angles), angles)
    around = torch.zeros(m, dtype=torch.complex128)
    around[:n] = chirp.conj()
    around[m - n + 1 :] = chirp[1:].conj().flip(0)
    return chirp.to(dtype).to(device), torch.fft.fft(around).to(dtype).to(device)


def _divisor(n: int) -> int:
    """The largest divisor of ``n`` that one product takes; 1 where there is none."""
    return next((d for d in range(min(_WHOLE, n // 2), 1, -1) if n % d == 0), 1)


def _transform(x: Tensor, sign: int) -> Tensor:
    """``sum over j of x[..., j] * exp(sign * 2 pi i * j * k / n)``; ``x`` is complex and dense."""
    n = x.shape[-1]
    if n == 1:
        return x
    part = _divisor(n) if n > _WHOLE else 1
    if n <= (_PRIME if part == 1 else _WHOLE):
        real = _REAL[x.dtype]
        rows = torch.view_as_real(x).reshape(-1, 2 * n)
        made = rows @ _matrix(n, sign, real, *_place(x))
        return torch.view_as_complex(made.view(*x.shape, 2))
    if part == 1:
        return _convolved(x, sign)
    rest = n // part
    across = _transform(x.unflatten(-1, (part, rest)).transpose(-1, -2).contiguous(), sign)
    across = across * _factors(part, rest, sign, x.dtype, *_place(x))
    along = _transform(across.transpose(-1, -2).contiguous(), sign)
    return along.transpose(-1, -2).flatten(-2)


def _convolved(x: Tensor, sign: int) -> Tensor:
    n = x.shape[-1]
    m = 1 << (2 * n - 2).bit_length()
    chirp, around = _chirp(n, m, sign, x.dtype, *_place(x))
    padded = x.new_zeros(*x.shape[:-1], m)
    padded[..., :n].copy_(x * chirp)
    made = _transform(_transform(padded, -1) * around, 1)[..., :n]
    return made * (chirp * (1 / m))


def _along(x: Tensor, dim: int, sign: int) -> Tensor:
    """The transform along ``dim``."""
    return _transform(x.movedim(dim, -1).contiguous(), sign).movedim(-1, dim)


def _scale(normalization: int, sizes: Sequence[int]) -> float:
    """1; 1 over the root of how many elements a signal has; or 1 over that."""
    return (1.0, math.prod(sizes) ** -0.5, 1.0 / math.prod(sizes))[normalization]


def _scaled(x: Tensor, normalization: int, sizes: Sequence[int]) -> Tensor:
    return x if normalization == 0 else x * _scale(normalization, sizes)


def _fits(t: Tensor, dim: Sequence[int], normalization: int) -> bool:
    if t.numel() == 0 or not dim or normalization not in (0, 1, 2) or not all(0 <= d < t.dim() for d in dim):
        return False
    return len(set(dim)) == len(dim)


# --- operators ----------------------------------------------------------------------------------------------------


def c2c(self: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """aten::_fft_c2c: of complex numbers, along each of ``dim``.

    Args:
        self: complex, any shape.
        normalization: 0 none, 1 by the root of how many elements are transformed, 2 by how many.
        forward: with a negative exponent.
    """
    if not _fits(self, dim, normalization) or self.dtype not in _REAL or not _here(self):
        return NotImplemented
    made = self.resolve_conj().to(_WIDE.get(self.dtype, self.dtype))
    for d in dim:
        made = _along(made, d, -1 if forward else 1)
    made = _scaled(made, normalization, [self.shape[d] for d in dim])
    return _laid(made, _order(self.stride(), _by_stride(self, dim))).to(self.dtype)


def r2c(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """aten::_fft_r2c: of real numbers, ``dim``'s last first; with ``onesided`` the half of that which says all."""
    if not _fits(self, dim, normalization) or self.dtype not in _COMPLEX:
        return NotImplemented
    here, last, dtype = _here(self), dim[-1], _COMPLEX[self.dtype]
    if not onesided:
        if here:
            made = c2c(self.to(dtype), dim, normalization, True)
        elif len(dim) == 1:
            return NotImplemented
        else:
            made = _by_host(self, dim, normalization, False)
        return _laid(made, _order(self.stride(), dim)) if len(dim) == 1 else made.contiguous()
    if len(dim) > 1:
        # The last one, and then all others, as many at a time as a library takes.
        made, rest = torch.ops.aten._fft_r2c(self, [last], normalization, True), list(dim[:-1])
        while rest:
            rest = _by_stride(made, rest)
            made = torch.ops.aten._fft_c2c(made, rest[-_TOGETHER:], normalization, True)
            rest = rest[:-_TOGETHER]
        return made
    if not here:
        # Dimensions of equal strides come in an order of the library's own.
        others = [self.stride(d) for d in range(self.dim()) if d != last]
        if len(set(others)) == len(others):
            return NotImplemented
        return _laid(_by_host(self, dim, normalization, True), _order(self.stride(), dim))
    n = self.shape[last]
    rows = self.movedim(last, -1).contiguous()
    rows = rows.to(_WIDE.get(self.dtype, self.dtype))
    if n <= _WHOLE:
        matrix = _matrix(n, -1, rows.dtype, *_place(rows))[::2, : 2 * (n // 2 + 1)]
        parts = rows.reshape(-1, n) @ matrix
        made = torch.view_as_complex(parts.view(*rows.shape[:-1], n // 2 + 1, 2))
    else:
        made = _transform(rows.to(_COMPLEX[rows.dtype]), -1)[..., : n // 2 + 1]
    made = _scaled(made, normalization, [n]).movedim(-1, last)
    return _laid(made, _order(self.stride(), dim)).to(dtype)


def _by_host(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    from anyxpu.ops import host_call

    made: Tensor = host_call(torch.ops.aten._fft_r2c.default, self, dim, normalization, onesided)
    return made


def c2r(self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """aten::_fft_c2r: back to real numbers, ``last_dim_size`` of them along ``dim``'s last, of which half is given."""
    if not _fits(self, dim, normalization) or self.dtype not in _REAL or not _here(self):
        return NotImplemented
    last, n = dim[-1], last_dim_size
    if n < 1 or self.shape[last] != n // 2 + 1:
        return NotImplemented
    made = self
    if len(dim) > 1:
        made = c2c(self, dim[:-1], normalization, False)
    order = _order(made.stride(), [last])
    half = made.movedim(last, -1).resolve_conj().contiguous()
    half = half.to(_WIDE.get(self.dtype, self.dtype))
    # The other half is this one's conjugate, backwards; what 0 and the middle have of an imaginary part says nothing.
    ends = torch.zeros_like(half.real)
    ends[..., 1 : (n + 1) // 2].copy_(half.imag[..., 1 : (n + 1) // 2])
    half = torch.complex(half.real.contiguous(), ends)
    other = half[..., 1 : (n + 1) // 2].flip(-1).conj().resolve_conj()
    whole = torch.cat([half, other], -1)
    real = _transform(whole, 1).real.contiguous()
    real = _scaled(real, normalization, [n]).movedim(-1, last)
    return _laid(real, order).to(_REAL[self.dtype])
