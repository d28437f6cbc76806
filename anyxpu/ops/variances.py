"""Variances and standard deviations over any dimensions, by the kernels of ``variance_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, dimensions that are none, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.ops import launching, notice, whole
from anyxpu.ops.current_device import current

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Numbers of a part, which the second and third reading find in a cache. A GPU's last cache holds more, and parts are to
# be few there: one program goes through all of a result's.
_PART = {"cpu": 1 << 14, "gpu": 1 << 18}
_LEAST = 1 << 12  # that a part has where parts are made to occupy a device
_TILE = 1024  # numbers that a program holds of rows
_LINE = 64  # results of which a program puts parts together


def var_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:  # fmt: skip
    """aten::var_mean.correction: the variance over ``dim``, and the mean; of complex numbers that of both parts.

    Args:
        x: bf16, f16, f32, f64 or complex.
        dim: None or empty: all of them.
        correction: what the number of elements is less in the divisor; 1 by default.

    Returns:
        Contiguous tensors of x's dtype (the variance of complex numbers: of their parts').
    """
    return _made("var_mean", x, dim, correction, keepdim, False)


def var(x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """aten::var.correction: the variance over ``dim``, as :func:`var_mean` has it."""
    return _first(_made("var", x, dim, correction, keepdim, False))


def std_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:  # fmt: skip
    """aten::std_mean.correction: the root of the variance over ``dim``, and the mean, as :func:`var_mean` has them."""
    return _made("std_mean", x, dim, correction, keepdim, True)


def std(x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """aten::std.correction: the root of the variance over ``dim``."""
    return _first(_made("std", x, dim, correction, keepdim, True))


def _first(made: Any) -> Any:
    return made if made is NotImplemented else made[0]


def _made(name: str, x: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool, root: bool) -> Any:
    """Variance or its root, and mean. ``name``: the operator's, for its warning."""
    if any(not -max(x.dim(), 1) <= d < max(x.dim(), 1) for d in dim or ()):
        return NotImplemented
    dims = sorted(d % max(x.dim(), 1) for d in dim) if dim else list(range(x.dim()))
    if len(set(dims)) != len(dims) or x.numel() == 0 or x.is_conj() or x.is_neg():
        return NotImplemented
    divisor = math.prod(x.shape[d] for d in dims if x.dim()) - (1 if correction is None else correction)
    if x.is_complex():
        parts = [_of(part, dims, divisor, False) for part in (x.real, x.imag)]
        if NotImplemented in parts:
            return NotImplemented
        (one, real), (other, imaginary) = parts
        made = one + other
        made = torch.sqrt(made) if root else made, torch.view_as_complex(torch.stack((real, imaginary), -1))
    else:
        made = _of(x, dims, divisor, root)
        if made is NotImplemented:
            return NotImplemented
    if divisor <= 0:
        notice.warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input"
            " numel divided by output numel)."
        )
    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    shape = kept if keepdim else [size for d, size in enumerate(x.shape) if d not in dims]
    return tuple(t.view(shape) for t in made)


class _Runs(NamedTuple):
    """Dense memory in which runs of dimensions that are reduced and that are kept take turns.

    Attributes:
        kept: the dimensions that are, in their order in memory.
    """

    source: Tensor
    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]
    kept: list[int]


def _runs(x: Tensor, dims: Sequence[int]) -> _Runs:
    """Of ``x`` as it lies, where that is dense, else of a copy. At least one run is reduced, if of one number."""
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    sizes: list[int] = []
    reduced: list[bool] = []
    for d in order:
        if x.shape[d] == 1:
            continue
        if reduced and reduced[-1] == (d in dims):
            sizes[-1] *= x.shape[d]
        else:
            sizes.append(x.shape[d])
            reduced.append(d in dims)
    if not any(reduced):
        sizes, reduced = [*sizes, 1], [*reduced, True]
    return _Runs(x.permute(order).contiguous(), tuple(sizes), tuple(reduced), [d for d in order if d not in dims])


def _of(x: Tensor, dims: Sequence[int], divisor: float, root: bool) -> Any:
    """Variance or its root, and mean, ``(results,)``."""
    if x.dtype not in _FLOATS or not whole.served(x):
        return NotImplemented
    with current(x.device):
        source, sizes, reduced, kept = _runs(x, dims)
        if reduced in ((True,), (False, True)):
            work: _Work = _Rows(source, math.prod(sizes[:-1]), sizes[-1], 1)
        elif reduced == (True, False, True):
            work = _Rows(source, sizes[0] * sizes[1], sizes[2], sizes[0])
        elif reduced == (True, False):
            work = _Columns(source, 1, *sizes)
        elif reduced == (False, True, False):
            work = _Columns(source, *sizes)
        else:
            source = x.permute(*kept, *dims).contiguous()
            rows = math.prod(x.shape[d] for d in kept)
            work = _Rows(source, rows, source.numel() // rows, 1)
        made = work.run(divisor, root)
        if made is NotImplemented or kept == sorted(kept):
            return made
        back = [kept.index(d) for d in sorted(kept)]
        return tuple(t.view([x.shape[d] for d in kept]).permute(back).contiguous() for t in made)


class _Work:
    """Runs of ``n`` numbers in parts of ``chunk``, by ``blocks`` programs each; ``alike`` runs are of one result.

    Attributes:
        results: how many there are.
    """

    kernel: str
    results: int
    blocks: int
    tile: tuple[int, int]

    def __init__(self, source: Tensor, n: int, alike: int) -> None:
        self.source, self.n, self.alike = source, n, alike
        self.cpu = launching.on_cpu(source.get_device())

    def _part(self, width: int) -> None:
        """Part the runs, of which a program goes through ``width`` beside each other: into what a cache holds, or where
        they are too few programs, into less."""
        most, least = _PART["cpu" if self.cpu else "gpu"] // width, max(_LEAST // width, 1)
        wanted = -(-launching.programs(self.source.get_device()) // self.blocks)
        parts = max(-(-self.n // most), min(wanted, self.n // least), 1)
        self.chunk = -(-self.n // parts)
        self.parts = -(-self.n // self.chunk)

    def _sizes(self) -> tuple[int, ...]:
        raise NotImplementedError

    def run(self, divisor: float, root: bool) -> Any:
        """Variance or its root, and mean; ``NotImplemented`` where a kernel is not there."""
        source, device = self.source, self.source.get_device()
        wide = torch.float64 if source.dtype is torch.float64 else torch.float32
        op, parted = whole.NAMES[wide], self.parts > 1 or self.alike > 1
        mean, spread = (torch.empty(self.results, dtype=source.dtype, device=source.device) for _ in range(2))
        left, finish = max(0.0, divisor), None
        if parted:
            finish = _launch(device, "variance.together", (wide, wide, mean.dtype, mean.dtype), op, ROOT=root, L=_LINE)
            into = torch.empty((2, self.parts, self.alike * self.results), dtype=wide, device=source.device).unbind()
        else:
            into = mean, spread
        rows, lanes = self.tile
        types = source.dtype, into[0].dtype, into[1].dtype
        find = _launch(device, f"variance.{self.kernel}", types, op, ROOT=root, PARTED=parted, R=rows, L=lanes)
        if find is None or (parted and finish is None):
            return NotImplemented
        find(self.parts * self.blocks, source.numel(), source, *into, *self._sizes(), self.chunk, left)
        if finish is not None:
            finish(
                -(-self.results // _LINE), into[0].numel(), *into, mean, spread, self.parts, self.alike, self.results,
                self.n, self.chunk, left,
            )  # fmt: skip
        return spread, mean


def _launch(
    device: int, kernel: str, types: Sequence[torch.dtype], op: str, **constants: Any
) -> Callable[..., None] | None:
    words = (("OP", op), *constants.items())
    return launching.kernel(device, "whole", kernel, tuple(whole.NAMES[t] for t in types), words)


class _Rows(_Work):
    """``rows`` of ``n`` numbers."""

    kernel = "rows"

    def __init__(self, source: Tensor, rows: int, n: int, alike: int) -> None:
        super().__init__(source, n, alike)
        lanes = launching.power_of_two(n, 16, whole.line(source.get_device()))
        self.tile = (min(16, max(1, _TILE // launching.power_of_two(n, 16, _TILE))), lanes)
        self.rows, self.results, self.blocks = rows, rows // alike, -(-rows // self.tile[0])
        self._part(1)

    def _sizes(self) -> tuple[int, ...]:
        return self.rows, self.n


class _Columns(_Work):
    """Memory ``(a, n, b)``, of which ``n`` is reduced."""

    kernel = "columns"

    def __init__(self, source: Tensor, a: int, n: int, b: int) -> None:
        super().__init__(source, n, 1)
        lanes = launching.power_of_two(b, 16, 128 if self.cpu else 64)
        self.tile = (1 if self.cpu else 16, lanes)
        self.a, self.b, self.results, self.blocks = a, b, a * b, a * -(-b // lanes)
        self._part(lanes)

    def _sizes(self) -> tuple[int, ...]:
        return self.a, self.n, self.b
