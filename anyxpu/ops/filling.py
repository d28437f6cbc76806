"""``arange``, what is made of it and triangles of matrices on xpu, by the kernels of ``filling_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole
from anyxpu.shim import lib

_INT64 = 2**63


def arange_out(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Any:
    """aten::arange.start_out: ``start + i * step`` below ``end``, into ``out``, which is resized."""
    numbers = (start, end, step)
    if any(isinstance(n, complex) or (isinstance(n, float) and not math.isfinite(n)) for n in numbers) or step == 0:
        return NotImplemented
    if out.dtype not in whole.NAMES or out.dtype is torch.bool or (end - start) * step < 0:
        return NotImplemented
    if not out.dtype.is_floating_point and not all(-_INT64 <= int(n) < _INT64 for n in numbers):
        return NotImplemented
    if out.dtype is torch.int64:
        if any(isinstance(n, float) for n in numbers):
            # Before torch 2.15 their whole parts counted, for this type alone.
            count = torch.arange(start, end, step, dtype=torch.int64, device="meta").numel()
        else:
            count = -(-(end - start) // step)
        start, step = int(start), int(step)
    else:
        count = math.ceil((float(end) - float(start)) / float(step))
        if not out.dtype.is_floating_point:
            start, step = int(start), int(step)
    if not 0 <= count <= whole.MOST or (out.dtype is torch.float64 and not whole.served(out)):
        return NotImplemented
    if out.numel() != count:
        if out.numel():
            return NotImplemented  # which torch warns of
        out.resize_((count,))
    if count == 0:
        return out
    made = out if out.is_contiguous() else torch.empty(count, dtype=out.dtype, device=out.device)
    lanes = whole.line(out.get_device())
    kernel = "filling.arange_integers"
    constants: dict[str, Any] = {}
    if out.dtype.is_floating_point:
        computed = torch.float64 if out.dtype is torch.float64 else torch.float32
        kernel, constants = "filling.arange", {"OP": whole.NAMES[computed]}
    if not whole.launch(kernel, (made,), -(-count // lanes), count, count, start, step, **constants, L=lanes):
        return NotImplemented
    return out if made is out else out.copy_(made.view(out.shape))


def tril(self: Tensor, diagonal: int = 0) -> Any:
    """aten::tril: matrices ``(*, M, N)`` with zeros above the ``diagonal``-th diagonal."""
    return _triangle(self, diagonal, False)


def triu(self: Tensor, diagonal: int = 0) -> Any:
    """aten::triu: with zeros below."""
    return _triangle(self, diagonal, True)


def tril_(self: Tensor, diagonal: int = 0) -> Any:
    """aten::tril_: :func:`tril` into self."""
    made = tril(self, diagonal)
    return made if made is NotImplemented else self.copy_(made)


def triu_(self: Tensor, diagonal: int = 0) -> Any:
    """aten::triu_: :func:`triu` into self."""
    made = triu(self, diagonal)
    return made if made is NotImplemented else self.copy_(made)


def _triangle(self: Tensor, diagonal: int, upper: bool) -> Any:
    width = whole.bits(self)
    if self.dim() < 2 or width is None or not 0 < self.numel() <= whole.MOST or self.is_conj() or self.is_neg():
        return NotImplemented
    x = self.contiguous()
    out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
    m, n = self.shape[-2:]
    rows = self.numel() // n
    device = x.get_device()
    cpu = launching.on_cpu(device)
    lanes = launching.power_of_two(n, 8, 256)
    tall = (256 if cpu else 1024) // lanes
    down = tall * (max(1, min(16, rows // (tall * launching.programs(device)))) if cpu else 1)
    served = whole.launch(
        "filling.triangle", (x, out), -(-rows // down) * -(-n // lanes), x.numel(), rows, m, n, down, diagonal,
        types=(width, width), UPPER=upper, R=tall, L=lanes,
    )  # fmt: skip
    return out if served else NotImplemented


# --- made of arange -------------------------------------------------------------------------------------------------


def linspace(start: Any, end: Any, steps: int, *, out: Tensor) -> Any:
    """aten::linspace.out: ``steps`` numbers from ``start`` to ``end`` at one distance, from both ends inwards."""
    made = _spaced(start, end, steps, out)
    return made if made is NotImplemented else _filled(out, made)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, out: Tensor) -> Any:
    """aten::logspace.out: ``base`` to the power of the numbers of :func:`linspace`."""
    made = _spaced(start, end, steps, out)
    if made is NotImplemented or base <= 0:
        return NotImplemented
    return _filled(out, torch.pow(base, made))


def _spaced(start: Any, end: Any, steps: int, out: Tensor) -> Any:
    if isinstance(start, complex) or isinstance(end, complex) or steps < 0 or not out.dtype.is_floating_point:
        return NotImplemented
    if out.dtype not in whole.NAMES or steps > whole.MOST or out.numel() not in (0, steps):
        return NotImplemented
    if steps == 0:
        return torch.empty(0, dtype=out.dtype, device=out.device)
    wide = torch.float64 if out.dtype is torch.float64 else torch.float32
    i = torch.arange(steps, dtype=wide, device=out.device)
    if steps == 1:
        return i + start
    step = (float(end) - float(start)) / (steps - 1)
    return torch.where(i < steps // 2, i * step + start, end - (steps - 1 - i) * step)


def _filled(out: Tensor, numbers: Tensor) -> Tensor:
    """Of as many elements it keeps its shape, as torch has it."""
    if out.numel() != numbers.numel():
        out.resize_(numbers.shape)
    return out.copy_(numbers.view(out.shape))


def eye(n: int, m: int | None = None, *, out: Tensor) -> Any:
    """aten::eye.m_out: ones where the row is the column of ``(n, m)``."""
    m = n if m is None else m
    if n < 0 or m < 0 or out.numel() not in (0, n * m):
        return NotImplemented
    out.resize_((n, m)).zero_().diagonal().fill_(1)
    return out


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Any:  # fmt: skip
    """aten::tril_indices: rows and columns ``(2, K)`` of the elements not above the ``offset``-th diagonal."""
    return _places(row, col, dtype, device, lambda i, j: j - i <= offset)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Any:  # fmt: skip
    """aten::triu_indices: of those not below it."""
    return _places(row, col, dtype, device, lambda i, j: j - i >= offset)


def _places(row: int, col: int, dtype: torch.dtype | None, device: Any, there: Any) -> Any:
    dtype = dtype or torch.int64
    if row < 0 or col < 0 or row * col > whole.MOST or dtype not in (torch.int64, torch.int32):
        return NotImplemented
    if row * col == 0:
        return torch.empty((2, 0), dtype=dtype, device=device)
    i, j = torch.arange(row, device=device)[:, None], torch.arange(col, device=device)[None, :]
    return torch.nonzero(there(i, j)).t().contiguous().to(dtype)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None,
    layout: Any = None, device: Any = None, pin_memory: Any = None,
) -> Any:  # fmt: skip
    """aten::kaiser_window.beta: ``I0(beta * sqrt(1 - x * x)) / I0(beta)`` for x from -1 to 1, ``(window_length,)``.

    Args:
        window_length: 2 or more; a shorter one is the host's.
        periodic: one less than a symmetric window of one element more.
        beta: finite; how narrow it is.
        dtype: of floats; torch's default where None.
    """
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point or dtype not in whole.NAMES or layout not in (None, torch.strided):
        return NotImplemented
    if not 1 < window_length < whole.MOST or not math.isfinite(beta):
        return NotImplemented
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    last = window_length - (0 if periodic else 1)
    # 1 - x * x of x = u - 1 with u from the nearer end, which loses nothing beside either.
    i = torch.arange(window_length, dtype=wide, device=device, pin_memory=bool(pin_memory))
    u = torch.minimum(i, last - i) * 2 / last
    heights = torch.special.i0((u * (2 - u)).sqrt() * beta)
    return (heights / torch.special.i0(torch.full((), beta, dtype=wide, device=device))).to(dtype)


def kaiser_window_out(window_length: int, periodic: bool = True, beta: float = 12.0, *, out: Tensor) -> Any:
    """aten::kaiser_window.beta_out: :func:`kaiser_window` of out's type, into ``out``, which is resized."""
    made = kaiser_window(window_length, periodic, beta, dtype=out.dtype, device=out.device)
    if made is NotImplemented:
        return made
    lib().resize_output(out, made.shape, torch.contiguous_format)
    return out.copy_(made)
