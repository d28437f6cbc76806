"""Nested tensors of the strided layout: what their operators do to the one buffer in which all parts lie.

The sizes of the parts are torch's own, on the CPU; nothing here waits for the device but what makes sizes of a mask.
A function here returns ``NotImplemented`` for a call that it does not serve; the host then computes it on copies, or
raises what CPU torch raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import jagged

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


# --- what a nested tensor is made of ------------------------------------------------------------------------------


def buffer_of(n: Tensor) -> Tensor:
    """All its elements in a row, as they lie."""
    return n.values()


def is_plain(n: Tensor) -> bool:
    """Do its parts lie one behind the other, each without gaps, and has it elements?"""
    sizes = n._nested_tensor_size()
    return sizes.dim() == 2 and n.is_contiguous() and buffer_of(n).numel() == n.numel() > 0


def of_buffer(buffer: Tensor, sizes: Tensor) -> Tensor:
    """A nested tensor whose parts, of ``sizes (B, D)``, lie one behind the other in ``buffer``."""
    strides, offsets = torch._nested_compute_contiguous_strides_offsets(sizes)
    return torch._nested_view_from_buffer(buffer.reshape(-1), sizes, strides, offsets)


def of_parts(parts: Sequence[Tensor]) -> Tensor:
    """A nested tensor of such parts, copied into one buffer."""
    sizes = torch.tensor([part.shape for part in parts], dtype=torch.int64).view(len(parts), parts[0].dim())
    return of_buffer(torch.cat([part.reshape(-1) for part in parts]), sizes)


def with_rows(n: Tensor, rows: Tensor) -> Tensor:
    """``n`` with its last dimension replaced: ``rows`` are those of all its parts, ``(rows, D)``."""
    sizes = n._nested_tensor_size()
    if int(sizes[0, -1]) != rows.shape[-1]:
        sizes = sizes.clone()
        sizes[:, -1] = rows.shape[-1]
    return of_buffer(rows, sizes)


def rows_of(n: Tensor) -> Tensor | None:
    """The rows of all parts, ``(rows, D)``; None where parts do not lie in a row or their last dimension differs."""
    sizes = n._nested_tensor_size()
    if not is_plain(n) or bool((sizes[:, -1] != sizes[0, -1]).any()):
        return None
    return buffer_of(n).view(-1, int(sizes[0, -1]))


def lengths_of(n: Tensor) -> list[int]:
    """How long the first dimension of each part is."""
    lengths: list[int] = n._nested_tensor_size()[:, 0].tolist()
    return lengths


def begins_of(lengths: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Where each of parts so long begins, and where the last one ends: ``(B + 1,)`` on the device."""
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    return torch.tensor(begins, dtype=dtype).to(device)


def alike(a: Tensor, b: Tensor) -> bool:
    """Do the parts of both lie in the same way?"""
    if a is b:
        return True
    of = (torch.Tensor._nested_tensor_size, torch.Tensor._nested_tensor_strides)
    same = all(torch.equal(what(a), what(b)) for what in of)
    return (
        same
        and torch.equal(a._nested_tensor_storage_offsets(), b._nested_tensor_storage_offsets())
        and buffer_of(a).numel() == buffer_of(b).numel()
    )


# --- rows ---------------------------------------------------------------------------------------------------------


def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """aten::linear of a nested ``(B, *, K)`` and ``(N, K)``."""
    if not self.is_nested or weight.is_nested or (bias is not None and bias.is_nested):
        return NotImplemented
    rows = rows_of(self)
    if rows is None or self.dim() < 3 or weight.dim() != 2 or weight.shape[1] != rows.shape[1]:
        return NotImplemented
    return with_rows(self, torch.nn.functional.linear(rows, weight, bias))


def linear_backward(self: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool]) -> Any:
    """aten::linear_backward: the gradients of the nested input, the weight and the bias, those that ``mask`` asks."""
    if not self.is_nested or not grad.is_nested or weight.is_nested:
        return NotImplemented
    rows, back = rows_of(self), rows_of(grad)
    if rows is None or back is None or weight.dim() != 2:
        return NotImplemented
    return (
        with_rows(self, back @ weight) if mask[0] else None,
        back.t() @ rows if mask[1] else None,
        back.sum(0) if mask[2] else None,
    )


def layer_norm(n: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """aten::native_layer_norm over last dimensions that all parts have in common; the means, and 1 / deviation."""
    flat = _normed(n, shape)
    if flat is None:
        return NotImplemented
    made, mean, rstd = torch.native_layer_norm(flat, list(shape), weight, bias, eps)
    return of_buffer(made, n._nested_tensor_size()), mean.view(-1), rstd.view(-1)


def _normed(n: Tensor, shape: Sequence[int]) -> Tensor | None:
    """The parts as rows of ``shape``."""
    if not n.is_nested or not is_plain(n) or n.dtype not in _FLOATS or not shape:
        return None
    sizes = n._nested_tensor_size()
    if len(shape) >= sizes.shape[1] or bool((sizes[:, -len(shape) :] != torch.tensor(list(shape))).any()):
        return None
    return buffer_of(n).view(-1, *shape)


def layer_norm_backward(
    grad: Tensor,
    n: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    """aten::native_layer_norm_backward: the gradients of the nested input, the weight and the bias."""
    if not grad.is_nested or (flat := _normed(n, shape)) is None or (back := _normed(grad, shape)) is None:
        return NotImplemented
    along = (-1, *(1 for _ in shape))
    statistics = mean.view(along), rstd.view(along)
    by, *rest = torch.ops.aten.native_layer_norm_backward(
        back, flat, list(shape), *statistics, weight, bias, list(mask)
    )
    return of_buffer(by, n._nested_tensor_size()) if mask[0] else None, *rest


def _along(n: Tensor, dim: int) -> int | None:
    """``dim`` of a nested tensor counted from the end."""
    return dim - n.dim() if 0 < dim < n.dim() else dim if -n.dim() < dim < 0 else None


def _by_part(n: Tensor, dim: int, of: Callable[..., Tensor], *others: Tensor) -> Any:
    """``of(part, ..., dim)``, by rows at once where ``dim`` is the last one and of one size."""
    along = _along(n, dim)
    if along is None or any(not t.is_nested or not alike(n, t) for t in others) or not is_plain(n):
        return NotImplemented
    rows = [rows_of(t) for t in (n, *others)]
    if along == -1 and all(t is not None for t in rows):
        return with_rows(n, of(*rows, -1))
    parts = zip(*(t.unbind() for t in (n, *others)), strict=True)
    return of_parts([of(*part, along) for part in parts])


def softmax(n: Tensor, dim: int, half_to_float: bool) -> Any:
    """aten::_softmax of each part."""
    if half_to_float or n.dtype not in _FLOATS:
        return NotImplemented
    return _by_part(n, dim, torch.softmax)


def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """aten::_softmax_backward_data of each part."""
    if not grad.is_nested or not output.is_nested or input_dtype != grad.dtype:
        return NotImplemented
    of = torch.ops.aten._softmax_backward_data
    return _by_part(grad, dim, lambda g, o, along: of(g, o, along, input_dtype), output)


def sum_of(n: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """aten::sum.dim_IntList over the last dimension, which stays, as torch asks of nested tensors."""
    if not dim or len(dim) != 1 or not keepdim or not n.is_nested or not is_plain(n) or _along(n, dim[0]) != -1:
        return NotImplemented
    return _by_part(n, dim[0], lambda part, along: part.sum(along, keepdim=True, dtype=dtype))


def sum_backward(grad: Tensor, n: Tensor, dim: Sequence[int] | None, keepdim: bool = False) -> Any:
    """aten::_nested_sum_backward: the gradients of sums over the last dimension, one for each that was summed."""
    if not dim or len(dim) != 1 or not keepdim or not grad.is_nested or not is_plain(n) or not is_plain(grad):
        return NotImplemented
    if _along(n, dim[0]) != -1 or (rows := rows_of(n)) is None or rows_of(grad) is None:
        return NotImplemented
    return with_rows(n, rows_of(grad).expand(rows.shape).contiguous())  # type: ignore[union-attr]


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """aten::embedding: a row of ``weight`` for each index of a nested ``(B, *)``."""
    if weight.is_nested or not indices.is_nested or not is_plain(indices) or weight.dim() != 2:
        return NotImplemented
    rows = torch.nn.functional.embedding(buffer_of(indices), weight)
    sizes = indices._nested_tensor_size()
    return of_buffer(rows, torch.cat([sizes, torch.full((len(sizes), 1), weight.shape[1])], 1))


def matmul(a: Tensor, b: Tensor) -> Any:
    """aten::matmul and aten::bmm of two nested tensors: that of each of their parts."""
    if (
        not a.is_nested
        or not b.is_nested
        or a.dim() < 3
        or b.dim() != a.dim()
        or a.size(0) != b.size(0)
        or a.size(0) == 0
    ):
        return NotImplemented
    parts = list(zip(a.unbind(), b.unbind(), strict=True))
    if any(x.shape[-1] != y.shape[-2] or x.shape[:-2] != y.shape[:-2] or 0 in (*x.shape, *y.shape) for x, y in parts):
        return NotImplemented
    return of_parts([torch.matmul(x, y) for x, y in parts])


def matmul_backward(grad: Tensor, a: Tensor, b: Tensor, mask: Sequence[bool]) -> Any:
    """aten::matmul_backward of two nested tensors."""
    if not grad.is_nested or not a.is_nested or not b.is_nested:
        return NotImplemented
    by_a = matmul(grad, b.transpose(-2, -1)) if mask[0] else None
    by_b = matmul(a.transpose(-2, -1), grad) if mask[1] else None
    return NotImplemented if by_a is NotImplemented or by_b is NotImplemented else (by_a, by_b)


# --- padded -------------------------------------------------------------------------------------------------------


def to_padded(n: Tensor, padding: float, output_size: Sequence[int] | None = None) -> Any:
    """aten::to_padded_tensor: a dense one, ``(B, ...)`` of the largest sizes or of ``output_size``, filled up."""
    if not n.is_nested or not is_plain(n):
        return NotImplemented
    sizes = n._nested_tensor_size()
    largest = [len(sizes), *sizes.amax(0).tolist()]
    wanted = largest if output_size is None else list(output_size)
    if len(wanted) != len(largest) or any(w < least for w, least in zip(wanted, largest, strict=True)):
        return NotImplemented  # torch says why
    rows = rows_of(n) if sizes.shape[1] == 2 else None
    if rows is not None and wanted[0] == largest[0]:
        made = jagged.to_padded(rows, [begins_of(lengths_of(n), n.device)], [wanted[1]], padding)
        if made is NotImplemented:
            return made
        wider = wanted[2] - largest[2]
        return torch.nn.functional.pad(made, (0, wider), value=padding) if wider else made
    made = torch.full(wanted, padding, dtype=n.dtype, device=n.device)
    for place, part in zip(made, n.unbind(), strict=False):
        place[tuple(slice(0, size) for size in part.shape)].copy_(part)
    return made


def from_padded(padded: Tensor, sizes: Tensor, fuse_transform_0213: bool = False) -> Any:
    """aten::_nested_from_padded: the parts of ``sizes (B, D)``, on the CPU, of a padded batch.

    Args:
        padded: ``(B, ...)``, filled up; with ``fuse_transform_0213`` ``(B, H, L, E)``, for parts of ``(L, H * E)``.
        sizes: int64, what each part has of it.
    """
    if padded.is_nested or sizes.dim() != 2 or padded.numel() == 0 or sizes.is_xpu:
        return NotImplemented
    if fuse_transform_0213:
        if padded.dim() != 4:
            return NotImplemented
        padded = padded.transpose(1, 2).flatten(2)
    if padded.dim() != sizes.shape[1] + 1 or len(padded) != len(sizes) or int(sizes.prod(1).sum()) == 0:
        return NotImplemented
    if bool((sizes > torch.tensor(padded.shape[1:])).any()) or bool((sizes < 0).any()):
        return NotImplemented
    widths = sizes[:, -1]
    if sizes.shape[1] == 2 and bool((widths == widths[0]).all()):
        lengths = sizes[:, 0].tolist()
        kept = padded[..., : int(widths[0])]
        rows = jagged.from_padded(kept, [begins_of(lengths, padded.device)], sum(lengths))
        return rows if rows is NotImplemented else of_buffer(rows, sizes.clone())
    return of_parts([part[tuple(slice(0, s) for s in size)] for part, size in zip(padded, sizes.tolist(), strict=True)])


def from_padded_like(padded: Tensor, example: Tensor) -> Any:
    """aten::_nested_from_padded_and_nested_example: :func:`from_padded` with the sizes of another nested tensor."""
    return from_padded(padded, example._nested_tensor_size()) if example.is_nested else NotImplemented


def _check_mask(t: Tensor, mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"Expected mask to be of ScalarType Bool, but got {mask.dtype} instead.")
    if mask.dim() != 2 or t.dim() != 3 or t.shape[:2] != mask.shape:
        raise RuntimeError(
            f"a nested tensor of a mask wants an input (N, L, D) and a mask (N, L), not {tuple(t.shape)} and "
            f"{tuple(mask.shape)}"
        )


def is_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """aten::_nested_tensor_from_mask_left_aligned: has each row of ``mask (N, L)`` its true elements first?"""
    _check_mask(t, mask)
    if mask.numel() == 0:
        return True
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())  # waits for the device


def from_mask(t: Tensor, mask: Tensor, mask_check: bool = True) -> Any:
    """aten::_nested_tensor_from_mask: of ``t (N, L, D)`` the rows where ``mask (N, L)`` is true; waits for the device.

    Raises:
        RuntimeError: shapes or a dtype that do not fit; with ``mask_check`` a mask that is not left-aligned.
    """
    if mask_check and not is_left_aligned(t, mask):
        raise RuntimeError("Mask must be left-aligned without gaps: its true elements come first in every row")
    _check_mask(t, mask)
    lengths = mask.sum(1).cpu()
    sizes = torch.stack([lengths, torch.full_like(lengths, t.shape[2])], 1)
    made = from_padded(t, sizes)
    if made is not NotImplemented:
        return made
    if math.prod(t.shape) and int(lengths.sum()):
        return of_parts([rows[:length] for rows, length in zip(t, lengths.tolist(), strict=True)])
    return of_buffer(t.new_empty(0), sizes)
