"""The largest or smallest element and its index on xpu, by the kernels of ``extreme_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. Of equal elements the first counts, as on the CPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole


def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """aten::argmax: where the largest element along ``dim`` is, or of all where None; int64."""
    return _index(self, dim, keepdim, False)


def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """aten::argmin: where the smallest is."""
    return _index(self, dim, keepdim, True)


def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """aten::max.dim: the largest elements along ``dim``, and where they are."""
    return _both(self, dim, keepdim, False)


def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """aten::min.dim: the smallest ones."""
    return _both(self, dim, keepdim, True)


def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """aten::aminmax: the smallest and the largest elements along ``dim``, or of all where None."""
    if self.numel() == 0 or self.is_complex() or self.dtype not in whole.NAMES:
        return NotImplemented
    dims = list(range(self.dim())) if dim is None else [dim]
    return torch.amin(self, dims, keepdim), torch.amax(self, dims, keepdim)


def _index(self: Tensor, dim: int | None, keepdim: bool, smallest: bool) -> Any:
    if self.dtype is torch.bool:
        return NotImplemented  # which torch refuses
    if dim is None:
        made = _extreme(self.reshape(-1), 0, smallest)
        if made is None:
            return NotImplemented
        return made[1].view((1,) * self.dim() if keepdim else ())
    made = _both(self, dim, keepdim, smallest)
    return made if made is NotImplemented else made[1]


def _both(self: Tensor, dim: int, keepdim: bool, smallest: bool) -> Any:
    if not -max(self.dim(), 1) <= dim < max(self.dim(), 1):
        return NotImplemented
    if self.dim() == 0:
        made = _extreme(self.reshape(1), 0, smallest)
        return NotImplemented if made is None else tuple(t.view(()) for t in made)
    dim %= self.dim()
    logical = self.dtype is torch.bool
    made = _extreme(self.view(torch.uint8) if logical else self, dim, smallest)
    if made is None:
        return NotImplemented
    if logical:
        made = made[0].view(torch.bool), made[1]
    return tuple(t.unsqueeze(dim) if keepdim else t for t in made)


def _extreme(x: Tensor, dim: int, smallest: bool) -> tuple[Tensor, Tensor] | None:
    """Of ``x`` without dimension ``dim``."""
    if not whole.served(x) or x.numel() == 0 or x.dtype is torch.bool:
        return None
    x = x.contiguous()
    device = x.get_device()
    before, n, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    values = torch.empty(shape, dtype=x.dtype, device=x.device)
    indices = torch.empty(shape, dtype=torch.int64, device=x.device)
    computed = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    constants: dict[str, Any] = {"SMALLEST": smallest, "OP": whole.NAMES[computed]}
    cpu = launching.on_cpu(device)
    if after > 1:
        lanes = launching.power_of_two(after, 16, 64 if cpu else 128)
        served = whole.launch(
            "extreme.columns", (x, indices, values, indices), before * -(-after // lanes), x.numel(),
            before, n, after, 1, n, **constants, GIVEN=False, R=1, L=lanes,
        )  # fmt: skip
        return (values, indices) if served else None

    def reduced(x: Tensor, given: Tensor | None, out: Tensor, where: Tensor, n: int, parts: int, chunk: int) -> bool:
        lanes = launching.power_of_two(min(n, chunk), 16, 64 if cpu else 1024)
        rows = max(1, (64 if cpu else 1024) // lanes)
        return whole.launch(
            "extreme.rows", (x, where if given is None else given, out, where), -(-before // rows) * parts, x.numel(),
            before, n, 1, parts, chunk, **constants, GIVEN=given is not None, R=rows, L=lanes,
        )  # fmt: skip

    parts = min(-(-launching.programs(device) // before), max(1, n // 4096))
    chunk = -(-n // parts)
    parts = -(-n // chunk)
    if parts == 1:
        return (values, indices) if reduced(x, None, values, indices, n, 1, n) else None
    some = torch.empty((before, parts), dtype=x.dtype, device=x.device)
    places = torch.empty((before, parts), dtype=torch.int64, device=x.device)
    served = reduced(x, None, some, places, n, parts, chunk) and reduced(
        some, places, values, indices, parts, 1, parts
    )  # fmt: skip
    return (values, indices) if served else None
