"""Pooling on xpu, forward and backward, by the kernels of ``window_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, windows that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises. ``x`` is ``(N, C, *)`` or
``(C, *)``, bf16, f16, f32 or f64; results have its memory format, but for averages of three dimensions, which are
contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import windows

Triple = tuple[int, int, int]


def max_pool(
    dims: int, x: Tensor, size: Sequence[int], step: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> Any:  # fmt: skip
    """aten::max_pool{2,3}d_with_indices: the largest element of each window, and its index within the plane."""
    what = _Windows.of(dims, size, step, padding, dilation)
    read = windows.read(x, dims)
    if what is None or read is None:
        return NotImplemented
    sizes = what.outputs(read.sizes, ceil_mode)
    if sizes is None:
        return NotImplemented
    out, indices = read.empty(sizes), read.empty(sizes, torch.int64)
    served = windows.launch(
        "max_pool", (read.tensor, out, indices), read, sizes, read.sizes, sizes,
        K=what.size, S=what.step, P=what.padding, A=what.dilation,
    )  # fmt: skip
    return (out, indices) if served else NotImplemented


def max_pool_backward(
    dims: int, grad: Tensor, x: Tensor, size: Sequence[int], step: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
) -> Any:  # fmt: skip
    """aten::max_pool{2,3}d_with_indices_backward: the gradient of :func:`max_pool`'s x."""
    what = _Windows.of(dims, size, step, padding, dilation)
    read = windows.read(x, dims)
    if what is None or read is None or (indices.dtype, indices.device) != (torch.int64, x.device):
        return NotImplemented
    sizes = what.outputs(read.sizes, ceil_mode)
    made = _like_result(grad, read, sizes)
    if sizes is None or made is None or indices.shape != grad.shape:
        return NotImplemented
    where = indices.contiguous(memory_format=read.format)
    out = torch.empty_like(read.tensor, memory_format=read.format)
    served = windows.launch(
        "max_pool_backward", (made, where, out), read, read.sizes, read.sizes, sizes,
        K=what.size, S=what.step, P=what.padding, A=what.dilation,
    )  # fmt: skip
    return out if served else NotImplemented


def _means(dims: int, out: Tensor) -> Tensor:
    """Contiguous in three dimensions, where ATen's averages have no channels-last form."""
    return out.contiguous() if dims == 3 else out


def avg_pool(
    dims: int, x: Tensor, size: Sequence[int], step: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """aten::avg_pool{2,3}d: the mean of each window."""
    what = _Windows.of(dims, size, step, padding, (1,))
    read = windows.read(x, dims)
    if what is None or read is None or divisor_override == 0:
        return NotImplemented
    sizes = what.outputs(read.sizes, ceil_mode)
    if sizes is None or (dims == 3 and any(n < k for n, k in zip(read.sizes, what.size, strict=True))):
        return NotImplemented  # which torch refuses, in three dimensions
    out = read.empty(sizes)
    served = windows.launch(
        "avg_pool", (read.tensor, out), read, sizes, read.sizes, sizes, divisor_override or 1,
        K=what.size, S=what.step, P=what.padding, PADDED=count_include_pad, DIVISOR=divisor_override is not None,
    )  # fmt: skip
    return _means(dims, out) if served else NotImplemented


def avg_pool_backward(
    dims: int, grad: Tensor, x: Tensor, size: Sequence[int], step: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    """aten::avg_pool{2,3}d_backward: the gradient of :func:`avg_pool`'s x."""
    what = _Windows.of(dims, size, step, padding, (1,))
    read = windows.read(x, dims)
    if what is None or read is None or divisor_override == 0:
        return NotImplemented
    sizes = what.outputs(read.sizes, ceil_mode)
    made = _like_result(grad, read, sizes)
    if sizes is None or made is None:
        return NotImplemented
    out = torch.empty_like(read.tensor, memory_format=read.format)
    served = windows.launch(
        "avg_pool_backward", (made, out), read, read.sizes, read.sizes, sizes, divisor_override or 1,
        K=what.size, S=what.step, P=what.padding, PADDED=count_include_pad, DIVISOR=divisor_override is not None,
    )  # fmt: skip
    return _means(dims, out) if served else NotImplemented


def adaptive_avg_pool(dims: int, x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::_adaptive_avg_pool{2,3}d: the means of ``output_size`` windows that cover x."""
    read = windows.read(x, dims)
    if read is None or len(output_size) != dims or min(output_size) <= 0:
        return NotImplemented
    sizes = (1,) * (3 - dims) + tuple(output_size)
    most = [(windows.widest(i, o),) for i, o in zip(read.sizes, sizes, strict=True)]
    out = windows.each_dimension("adaptive_avg_pool", read, sizes, read.sizes, most, [], backward=False)
    return NotImplemented if out is None else _means(dims, out)


def adaptive_avg_pool_backward(dims: int, grad: Tensor, x: Tensor) -> Any:
    """aten::_adaptive_avg_pool{2,3}d_backward: the gradient of :func:`adaptive_avg_pool`'s x."""
    read = windows.read(x, dims)
    if read is None or grad.dim() != x.dim() or min(grad.shape) <= 0:
        return NotImplemented
    sizes = (1,) * (3 - dims) + tuple(grad.shape[grad.dim() - dims :])
    made = _like_result(grad, read, sizes)
    if made is None:
        return NotImplemented
    most = [(windows.widest(o, i),) for i, o in zip(read.sizes, sizes, strict=True)]
    given = read._replace(tensor=made)
    out = windows.each_dimension("adaptive_avg_pool_backward", given, read.sizes, sizes, most, [])
    return NotImplemented if out is None else _means(dims, out)


class _Windows:
    """Size, step, padding and dilation along (D, H, W)."""

    def __init__(self, size: Triple, step: Triple, padding: Triple, dilation: Triple) -> None:
        self.size, self.step, self.padding, self.dilation = size, step, padding, dilation

    @classmethod
    def of(
        cls, dims: int, size: Sequence[int], step: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ) -> _Windows | None:
        """As operators take them, one number standing for all; None where torch has something to say to them."""
        size_ = _triple(dims, size, 1)
        given = (size_, _triple(dims, step or size, 1), _triple(dims, padding, 0), _triple(dims, dilation, 1))
        if any(each is None for each in given):
            return None
        sizes, steps, paddings, dilations = given
        assert sizes is not None and steps is not None and paddings is not None and dilations is not None
        if min(*sizes, *steps, *dilations) <= 0 or min(paddings) < 0:
            return None
        if any(2 * p > k for p, k in zip(paddings, sizes, strict=True)):
            return None
        return cls(sizes, steps, paddings, dilations)

    def outputs(self, sizes: Sequence[int], ceil_mode: bool) -> Triple | None:
        """How many windows there are; None where there is none."""
        made = []
        for n, k, s, p, a in zip(sizes, self.size, self.step, self.padding, self.dilation, strict=True):
            out = (n + 2 * p - a * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
            if ceil_mode and (out - 1) * s >= n + p:  # it would begin behind the end
                out -= 1
            made.append(out)
        return None if min(made) <= 0 else (made[0], made[1], made[2])


def _triple(dims: int, given: Sequence[int], missing: int) -> Triple | None:
    values = [int(v) for v in given]
    if len(values) == 1:
        values = values * dims
    if len(values) != dims:
        return None
    whole = [missing] * (3 - dims) + values
    return whole[0], whole[1], whole[2]


def _like_result(grad: Tensor, read: windows.Source, sizes: Sequence[int] | None) -> Tensor | None:
    """The gradient of a result of such sizes, in the source's format; None where it is not that."""
    x = read.tensor
    if sizes is None or (grad.dtype, grad.device) != (x.dtype, x.device):
        return None
    if tuple(grad.shape) != (*x.shape[: x.dim() - read.dims], *sizes[3 - read.dims :]):
        return None
    return grad.contiguous(memory_format=read.format)


# --- the operators ------------------------------------------------------------------------------------------------


def max_pool2d(
    x: Tensor, size: Any, step: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    """aten::max_pool2d_with_indices; see :func:`max_pool`."""
    return max_pool(2, x, size, step, padding, dilation, ceil)


def max_pool3d(
    x: Tensor, size: Any, step: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    """aten::max_pool3d_with_indices; see :func:`max_pool`."""
    return max_pool(3, x, size, step, padding, dilation, ceil)


def max_pool2d_backward(*given: Any) -> Any:
    """aten::max_pool2d_with_indices_backward; see :func:`max_pool_backward`."""
    return max_pool_backward(2, *given)


def max_pool3d_backward(*given: Any) -> Any:
    """aten::max_pool3d_with_indices_backward; see :func:`max_pool_backward`."""
    return max_pool_backward(3, *given)


def avg_pool2d(x: Tensor, *given: Any) -> Any:
    """aten::avg_pool2d; see :func:`avg_pool`."""
    return avg_pool(2, x, *given)


def avg_pool3d(x: Tensor, *given: Any) -> Any:
    """aten::avg_pool3d; see :func:`avg_pool`."""
    return avg_pool(3, x, *given)


def avg_pool2d_backward(grad: Tensor, x: Tensor, *given: Any) -> Any:
    """aten::avg_pool2d_backward; see :func:`avg_pool_backward`."""
    return avg_pool_backward(2, grad, x, *given)


def avg_pool3d_backward(grad: Tensor, x: Tensor, *given: Any) -> Any:
    """aten::avg_pool3d_backward; see :func:`avg_pool_backward`."""
    return avg_pool_backward(3, grad, x, *given)


def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::_adaptive_avg_pool2d; see :func:`adaptive_avg_pool`."""
    return adaptive_avg_pool(2, x, output_size)


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """aten::_adaptive_avg_pool3d; see :func:`adaptive_avg_pool`."""
    return adaptive_avg_pool(3, x, output_size)


def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Any:
    """aten::_adaptive_avg_pool2d_backward; see :func:`adaptive_avg_pool_backward`."""
    return adaptive_avg_pool_backward(2, grad, x)


def adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Any:
    """aten::_adaptive_avg_pool3d_backward; see :func:`adaptive_avg_pool_backward`."""
    return adaptive_avg_pool_backward(3, grad, x)
