"""Running sums, products, extremes and logarithms of sums on xpu, by the kernels of ``scan_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import launching, whole
from anyxpu.runtime.vectors import has_short_vectors
from anyxpu.shim import lib

_NARROW = (torch.float16, torch.bfloat16)


def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """aten::cumsum: sums of the elements up to each one along ``dim``; integers are summed in int64."""
    return _scan(self, dim, dtype, False)


def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """aten::cumprod: the same of products."""
    return _scan(self, dim, dtype, True)


def cumsum_(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """aten::cumsum_: :func:`cumsum` into self."""
    return _in_place(self, dim, dtype, False)


def cumprod_(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """aten::cumprod_: :func:`cumprod` into self."""
    return _in_place(self, dim, dtype, True)


def cumsum_out(self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor) -> Any:
    """aten::cumsum.out: :func:`cumsum` into ``out``, in its dtype."""
    return _into(self, dim, dtype, False, out)


def cumprod_out(self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor) -> Any:
    """aten::cumprod.out: :func:`cumprod` into ``out``, in its dtype."""
    return _into(self, dim, dtype, True, out)


def _in_place(self: Tensor, dim: int, dtype: torch.dtype | None, product: bool) -> Any:
    if dtype not in (None, self.dtype):
        return NotImplemented
    made = _scan(self, dim, self.dtype, product)
    return made if made is NotImplemented else self.copy_(made)


def _into(self: Tensor, dim: int, dtype: torch.dtype | None, product: bool, out: Tensor) -> Any:
    if out.device != self.device or dtype not in (None, out.dtype):
        return NotImplemented
    made = _scan(self, dim, out.dtype, product)
    if made is NotImplemented:
        return made
    lib().resize_output(out, made.shape, torch.contiguous_format)
    return out.copy_(made)


def _scan_complex(x: Tensor, dim: int, product: bool) -> Any:
    """Sums of each part; of products, those of twice as many factors each time (Hillis and Steele, 1986)."""
    if not product:
        return torch.view_as_complex(torch.view_as_real(x).cumsum(dim))
    step, n = 1, x.shape[dim]
    while step < n:
        x = torch.cat([x.narrow(dim, 0, step), x.narrow(dim, step, n - step) * x.narrow(dim, 0, n - step)], dim)
        step *= 2
    return x.clone(memory_format=torch.contiguous_format) if n <= 1 else x


def _scan(self: Tensor, dim: int, dtype: torch.dtype | None, product: bool) -> Any:
    kind = dtype or (self.dtype if self.is_floating_point() else torch.int64)
    if self.is_complex() and dtype in (None, self.dtype):
        if not -max(self.dim(), 1) <= dim < max(self.dim(), 1):
            return NotImplemented
        x = self.resolve_conj().resolve_neg()
        return _scan_complex(x, dim % x.dim(), product) if x.dim() else x.clone()
    if self.is_complex() or kind not in whole.NAMES or kind is torch.bool:
        return NotImplemented
    # What is summed has the result's type first.
    x = self.to(kind) if kind.is_floating_point != self.is_floating_point() or self.dtype is torch.bool else self
    if not whole.served(x):
        return NotImplemented
    if not -max(self.dim(), 1) <= dim < max(self.dim(), 1):
        return NotImplemented
    out = torch.empty(self.shape, dtype=kind, device=self.device)
    if not whole.served(out):
        return NotImplemented
    if out.numel() == 0:
        return out
    if self.dim() == 0:
        return out.copy_(x)
    dim %= self.dim()
    x = x.contiguous()
    before, n, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    device = x.get_device()
    computed = torch.float32 if kind in _NARROW else kind if kind.is_floating_point else torch.int64
    constants: dict[str, Any] = {"PRODUCT": product, "OP": whole.NAMES[computed]}
    if after == 1:
        # Of larger tiles Xe-HPG spills; with AVX2 they were not measured.
        on_cpu = launching.on_cpu(device)
        lanes = launching.power_of_two(n, 16, 64 if on_cpu and has_short_vectors(self.device) else 256)
        rows = max(1, (128 if on_cpu else 256) // lanes)
        groups, kernel = -(-before // rows), "scan.rows"
        constants["DOUBLE"] = bool(kind is torch.float32 and not product and lib().properties(device).has_fp64)
    else:
        rows, lanes = 1, launching.power_of_two(after, 16, 64 if launching.on_cpu(device) else 128)
        groups, kernel = before * -(-after // lanes), "scan.columns"
    if not whole.launch(kernel, (x, out), groups, x.numel(), before, n, after, **constants, R=rows, L=lanes):
        return NotImplemented
    return out


# --- along columns alone --------------------------------------------------------------------------------------------


def cummax_helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> Any:
    """aten::_cummax_helper: the largest element up to each one along ``dim``, and the last place that it has."""
    return _extremes(self, values, indices, dim, True)


def cummin_helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> Any:
    """aten::_cummin_helper: the smallest element up to each one along ``dim``, and the last place that it has."""
    return _extremes(self, values, indices, dim, False)


def _extremes(self: Tensor, values: Tensor, indices: Tensor, dim: int, largest: bool) -> Any:
    if not whole.served(self) or self.dim() == 0 or self.numel() == 0 or not -self.dim() <= dim < self.dim():
        return NotImplemented
    kind = whole.NAMES[self.dtype] if self.dtype is not torch.bool else "u8"
    n, device = self.shape[dim], self.get_device()
    if prod(self.shape[dim % self.dim() + 1 :]) == 1:
        x = self.contiguous()
        out, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64, device=x.device)
        lanes = launching.power_of_two(n, 16, 64 if launching.on_cpu(device) else 256)
        rows = max(1, (64 if launching.on_cpu(device) else 256) // lanes)
        count = x.numel() // n
        if not whole.launch(
            "scan.extremes_of_rows", (x, out, places), -(-count // rows), x.numel(), count, n, 1,
            types=(kind, kind, "i64"), LARGEST=largest, R=rows, L=lanes,
        ):  # fmt: skip
            return NotImplemented
        values.copy_(out)
        indices.copy_(places)
        return None
    x = self.movedim(dim, 0).contiguous()
    after = x.numel() // n
    out, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64, device=x.device)
    lanes = _lanes(x, after)
    made = whole.launch(
        "scan.extremes", (x, out, places), -(-after // lanes), x.numel(), 1, n, after, types=(kind, kind, "i64"),
        LARGEST=largest, FLOATS=x.is_floating_point(), L=lanes,
    )  # fmt: skip
    if not made:
        return NotImplemented
    values.copy_(out.movedim(0, dim))
    indices.copy_(places.movedim(0, dim))
    return None


def logcumsumexp(self: Tensor, dim: int) -> Any:
    """aten::_logcumsumexp: logarithms of the sums of exponentials of the elements up to each one along ``dim``."""
    if not self.is_floating_point() or not whole.served(self) or self.numel() == 0:
        return NotImplemented
    if self.dim() == 0 and dim in (0, -1):
        return self.clone()
    if self.dim() == 0 or not -self.dim() <= dim < self.dim():
        return NotImplemented
    x = self.movedim(dim, 0).contiguous()
    n, after = x.shape[0], x.numel() // x.shape[0]
    out = torch.empty_like(x)
    lanes = _lanes(x, after)
    computed = torch.float32 if x.dtype in _NARROW else x.dtype
    made = whole.launch(
        "scan.log_sums", (x, out), -(-after // lanes), x.numel(), 1, n, after, OP=whole.NAMES[computed], L=lanes
    )
    return out.movedim(0, dim).contiguous() if made else NotImplemented


def _lanes(x: Tensor, columns: int) -> int:
    return launching.power_of_two(columns, 16, 64 if launching.on_cpu(x.get_device()) else 128)
