"""Printing an xpu tensor reads it; formatting is the host's.

torch formats a tensor by operators on the tensor's own device (masked_select, isfinite, ...), which for a device
means dozens of kernels to print a few numbers. Here the elements that will be shown are copied to the CPU first.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import _tensor_str


def install(module: ModuleType) -> None:
    """Let ``repr`` of a dense xpu tensor fetch what it shows."""
    format_tensor, summarize = _tensor_str._tensor_str, _tensor_str.get_summarized_data

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        # A large tensor stays where it is: only its edges are shown, and summarized_data fetches those.
        if _ours(self) and self.numel() <= _tensor_str.PRINT_OPTS.threshold:
            self = self.detach().cpu()
        return format_tensor(self, indent)

    def summarized_data(self: torch.Tensor) -> torch.Tensor:
        return edges(self, _tensor_str.PRINT_OPTS.edgeitems) if _ours(self) else summarize(self)

    _tensor_str._tensor_str, _tensor_str.get_summarized_data = tensor_str, summarized_data


def _ours(tensor: Any) -> bool:
    return tensor.device.type == "xpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def edges(tensor: torch.Tensor, items: int) -> torch.Tensor:
    """The first and last ``items`` of every dimension longer than twice that, on the CPU.

    Args:
        tensor: any dense tensor.
        items: how many at each end, ≥ 0.

    Returns:
        A CPU tensor of the same dtype, each dimension min(size, 2 * items) long.
    """
    for dim, size in enumerate(tensor.shape):
        if size <= 2 * items:
            continue
        shape = list(tensor.shape)
        shape[dim] = 2 * items
        # Along the first long dimension only the edges leave the device; from then on it is the CPU's work.
        ends = torch.empty(shape, dtype=tensor.dtype)
        ends.narrow(dim, 0, items).copy_(tensor.narrow(dim, 0, items))
        ends.narrow(dim, items, items).copy_(tensor.narrow(dim, size - items, items))
        tensor = ends
    return tensor.cpu()
