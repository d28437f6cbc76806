"""The same elements, lying otherwise in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layout = Callable[[torch.Tensor], torch.Tensor]


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The last two dimensions lie the other way round."""
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t


def reversed_dimensions(t: torch.Tensor) -> torch.Tensor:
    """The first dimension lies innermost, the last outermost."""
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def sliced(t: torch.Tensor) -> torch.Tensor:
    """Every second element of a wider tensor, from the second on; what lies between is no zero."""
    if t.dim() == 0:
        return t
    wide = torch.zeros((*t.shape[:-1], 2 * t.shape[-1] + 1), dtype=t.dtype, device=t.device)
    wide.view(torch.uint8).fill_(0x5B)
    return wide[..., 1::2].copy_(t)


def channels_last(t: torch.Tensor) -> torch.Tensor:
    """The second dimension lies innermost, where there are pictures or volumes."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def conjugated(t: torch.Tensor) -> torch.Tensor:
    """A complex tensor that is the conjugate of what lies in memory."""
    return t.conj().resolve_conj().conj() if t.is_complex() else t


def negated(t: torch.Tensor) -> torch.Tensor:
    """The negative of what lies in memory."""
    return torch._neg_view(-t) if t.is_floating_point() or t.is_complex() else t


LAYOUTS: dict[str, Layout] = {
    f.__name__: f for f in (transposed, reversed_dimensions, sliced, channels_last, conjugated, negated)
}


def there(t: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on the device over a copy of all of its storage, with the same strides and offset."""
    whole = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).to(device)
    made = torch.empty(0, dtype=t.dtype, device=device)
    made = made.set_(whole.untyped_storage(), t.storage_offset(), t.shape, t.stride())
    made = made.conj() if t.is_conj() else made
    return torch._neg_view(made) if t.is_neg() else made
