"""``embedding_bag`` and its gradients: sums, means and maxima of rows of a table.

A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it, or raises what
CPU torch raises. Sums of 16 bits are summed in float32; they come in the order of the indices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyxpu.errors import ArgumentError
from anyxpu.ops import launching, whole

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """aten::_embedding_bag.

    Args:
        weight: ``(V, D)`` of floats.
        indices: ``(N,)`` of int64 or int32, the bags one after the other.
        offsets: ``(B,)``, where each bag begins; ``include_last_offset``: ``(B + 1,)``, and where the last one ends.
        mode: 0 sum, 1 mean, 2 maximum; a bag of nothing is 0.
        per_sample_weights: ``(N,)`` factors, of sums alone.
        padding_idx: an index that counts nothing.

    Returns:
        ``(B, D)``; the bag of each index ``(N,)``; how many count in each bag, of the shape of ``offsets``; of maxima
        the index that each is of, ``(B, D)``, -1 in a bag of nothing, else an empty tensor.

    Raises:
        ArgumentError: indices are a matrix, of which torch's own kernels read and write beyond the ends.

    An index out of range, and offsets that do not fit, are found by the kernel, as with CUDA, and raised at the next
    wait.
    """
    if indices.dim() == 2:
        raise ArgumentError(
            f"embedding_bag wants indices of one dimension, not of shape {tuple(indices.shape)}: flatten them, and say "
            "by offsets where each row begins, as torch.nn.functional.embedding_bag does"
        )
    if weight.dtype not in _FLOATS or weight.dim() != 2 or mode not in (_SUM, _MEAN, _MAX) or indices.numel() == 0:
        return NotImplemented
    if indices.dim() != 1 or offsets.dim() != 1 or indices.dtype != offsets.dtype:
        return NotImplemented
    if indices.dtype not in (torch.int64, torch.int32) or not indices.device == offsets.device == weight.device:
        return NotImplemented
    if per_sample_weights is not None and (
        mode != _SUM or per_sample_weights.shape != indices.shape or per_sample_weights.dtype != weight.dtype
    ):
        return NotImplemented
    bags = offsets.numel() - int(include_last_offset)
    if bags <= 0 or weight.shape[1] == 0:
        return NotImplemented
    if not whole.served(weight) or max(indices.numel(), bags * weight.shape[1]) > whole.MOST:
        return NotImplemented
    weight, indices, offsets = weight.contiguous(), indices.contiguous(), offsets.contiguous()
    rows, width, n, device = *weight.shape, indices.numel(), weight.get_device()
    kind, wide = indices.dtype, torch.float64 if weight.dtype is torch.float64 else torch.float32
    factors = weight if per_sample_weights is None else per_sample_weights.contiguous()
    out = torch.empty(bags, width, dtype=weight.dtype, device=weight.device)
    bag_of, sizes = torch.empty_like(indices), torch.empty_like(offsets)
    if include_last_offset:  # what is behind the last bag's end is in none
        bag_of.fill_(bags)
        sizes[-1:].zero_()
    maxima = torch.empty(out.shape if mode == _MAX else (0,), dtype=kind, device=weight.device)
    lanes = launching.power_of_two(width, 8, 64 if launching.on_cpu(device) else 256)
    # A CPU's program takes whole rows of many bags, a GPU's what its lanes hold of one.
    across = width if launching.on_cpu(device) else lanes
    down = max(1, -(-bags // (2 * launching.programs(device)))) if launching.on_cpu(device) else 1
    made = whole.launch(
        "bags.forward", (weight, indices, offsets, factors, out, bag_of, sizes, maxima if mode == _MAX else indices),
        -(-bags // down) * -(-width // across), n * width, bags, n, rows, width, down, across, max(padding_idx, -1),
        MODE=mode, WEIGHTED=per_sample_weights is not None, LAST=include_last_offset, OP=whole.NAMES[wide], L=lanes,
    )  # fmt: skip
    return (out, bag_of, sizes, maxima) if made else NotImplemented


def embedding_bag_forward_only(*args: Any, **kwargs: Any) -> Any:
    """aten::_embedding_bag_forward_only: :func:`embedding_bag` without what its gradient needs."""
    return embedding_bag(*args, **kwargs)


def _with_none(grad: Tensor, sizes: Tensor) -> Tensor:
    """The gradient of each bag; where the last one's end was said, behind them of what is in none."""
    return torch.cat([grad, grad.new_zeros(1, grad.shape[1])]) if sizes.numel() > grad.shape[0] else grad


def dense_backward(
    grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """aten::_embedding_bag_dense_backward: the gradient of the table ``(num_weights, D)``."""
    if grad.dtype not in _FLOATS or mode not in (_SUM, _MEAN, _MAX) or indices.numel() == 0:
        return NotImplemented
    if mode == _MAX:
        if maximum_indices.shape != grad.shape:
            return NotImplemented
        at = maximum_indices.long()
        wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
        made = torch.zeros(num_weights, grad.shape[1], dtype=wide, device=grad.device)
        return made.scatter_add_(0, at.clamp_min(0), torch.where(at < 0, 0, grad).to(wide)).to(grad.dtype)
    if offset2bag.numel() != indices.numel():
        return NotImplemented
    rows = _with_none(grad, bag_size).index_select(0, offset2bag)
    if mode == _MEAN:
        rows = rows / bag_size.index_select(0, offset2bag).clamp_min(1).to(grad.dtype)[:, None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    return torch.ops.aten.embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


def backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """aten::_embedding_bag_backward: :func:`dense_backward`, or torch's own of a sparse gradient."""
    if mode not in (_SUM, _MEAN, _MAX) or offset2bag.numel() != indices.numel() or indices.numel() == 0:
        return NotImplemented
    if sparse:
        of_bags, sizes = _with_none(grad, bag_size), bag_size.clamp_min(1)  # by which means are divided
        return torch.ops.aten._embedding_bag_sparse_backward(
            of_bags, indices, offsets, offset2bag, sizes, num_weights, scale_grad_by_freq, mode, per_sample_weights,
            padding_idx,
        )  # fmt: skip
    return torch.ops.aten._embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


def per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int, padding_idx: int = -1
) -> Any:
    """aten::_embedding_bag_per_sample_weights_backward: the gradient of the factors ``(N,)``."""
    if mode != _SUM or grad.dtype not in _FLOATS or offset2bag.numel() != indices.numel() or indices.numel() == 0:
        return NotImplemented
    wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
    of_bags = _with_none(grad, offsets).index_select(0, offset2bag)
    made = (of_bags.to(wide) * weight.index_select(0, indices).to(wide)).sum(1)
    return (made if padding_idx < 0 else torch.where(indices == padding_idx, 0.0, made)).to(grad.dtype)


def embedding_renorm_(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Any:
    """aten::embedding_renorm_: rows of the table that are named and longer than ``max_norm`` made so long."""
    if self.dim() != 2 or self.dtype not in _FLOATS or indices.numel() == 0 or indices.device != self.device:
        return NotImplemented
    if indices.dtype not in (torch.int64, torch.int32) or norm_type <= 0:
        return NotImplemented
    named = indices.reshape(-1)
    rows = self.index_select(0, named)
    wide = torch.float64 if self.dtype is torch.float64 else torch.float32
    size = torch.linalg.vector_norm(rows, norm_type, 1, True, dtype=wide)
    shorter = torch.where(size > max_norm, rows * (max_norm / (size + 1e-7)), rows.to(wide))
    return self.index_copy_(0, named, shorter.to(self.dtype))  # a row that is named twice is the same both times
