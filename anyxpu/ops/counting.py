"""How often each place is among others, or what is summed there: of ``bincount``, ``histc`` and ``histogram``."""

from __future__ import annotations

import torch
from torch import Tensor

from anyxpu.ops import launching, whole

_SHARE = 4096
"""Elements that are worth a row of sums of their own."""
_MOST = 2**31 - 1
"""That the kernel counts to, with what its last part begins beyond the elements."""
_COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def summed(places: Tensor, count: int, values: Tensor | None = None) -> Tensor:
    """What belongs to each place.

    Args:
        places: integers ``(N,)``, from 0 to count - 1.
        count: of the places.
        values: ``(N,)``, float32 or float64: what each adds; None: 1.

    Returns:
        ``(count,)``: int64, or of the values' dtype. On a CPU device each part of the elements adds to a row of its
        own, and rows are added up in their order, so that results repeat; elsewhere by atomic additions. Measured with
        two cores, 4,000,000 places of 500 and of 50,000: 0.1 of the time of atomic additions.
    """
    n = places.numel()
    made = _in_rows(places.contiguous(), count, values) if launching.on_cpu(places.get_device()) else None
    if made is not None:
        return made
    if values is None:
        values = torch.ones(n, dtype=torch.int64, device=places.device)
    return torch.zeros(count, dtype=values.dtype, device=places.device).scatter_add_(0, places.long(), values)


def _in_rows(places: Tensor, count: int, values: Tensor | None) -> Tensor | None:
    n, device = places.numel(), places.get_device()
    rows = max(1, min(n // _SHARE, 4 * launching.programs(device)))
    if places.dtype not in _COUNTED or not 0 < n <= _MOST - rows or rows * count > max(n, 16 * _SHARE):
        return None
    dtype = torch.int32 if values is None else values.dtype
    sums = torch.zeros(rows, count, dtype=dtype, device=places.device)
    weights = sums if values is None else values.contiguous()
    share = -(-n // rows)
    made = whole.launch(
        "counting.parts", (places, weights, sums), rows, n, n, share, count, WEIGHED=values is not None
    )  # fmt: skip
    return sums.sum(0) if made else None
