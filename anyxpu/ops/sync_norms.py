"""Batch norm in pieces: what ``torch.nn.SyncBatchNorm`` puts between its collectives, and the newer forms of the whole.

The CPU has no kernels for the pieces, so that a call which is not served raises; a kernel that is not built is waited
for. The kernels are those of ``channel_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import channels
from anyxpu.ops.channels import Kernels, Layout
from anyxpu.ops.current_device import current


def _read(what: str, x: Tensor, others: Sequence[Tensor | None]) -> tuple[Tensor, Layout, Kernels, list[Tensor | None]]:
    """``x`` as dense memory, its layout, the kernels, and what is of a channel, contiguous."""
    if x.dim() < 2:
        raise RuntimeError(f"{what} on xpu wants (N, C, *), not {tuple(x.shape)}")
    given = [None if t is None else t.contiguous() for t in others]
    wide = channels.computed_in(x, given, x.shape[1])
    if wide is None:
        seen = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in (x, *others) if t is not None)
        raise RuntimeError(
            f"{what} on xpu wants floats (float64 with its like, where the device computes in it) of one device, some "
            f"elements (fewer than 2**31), and {x.shape[1]} numbers of the channels each, not {seen}"
        )
    x, at = channels.laid_out(x)
    return x, at, Kernels(x, wide, wait=True), given


def _there(what: str, made: Any) -> Any:
    """What a kernel made; an error where the device has none."""
    if made is None:
        raise RuntimeError(
            f"{what}: this device runs no kernels, and the host has none for it; `anyxpu doctor` says why"
        )
    return made


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """aten::batch_norm_stats: mean and 1 / sqrt(variance + eps) of each channel of ``x (N, C, *)``; f32 (f64: f64)."""
    x, at, kernels, _ = _read("batch_norm_stats", x, ())
    with current(x.device):
        found: tuple[Tensor, Tensor] = _there("batch_norm_stats", channels.moments(kernels, x, at, eps))
    return found


def elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:  # fmt: skip
    """aten::batch_norm_elemt: ``(x - mean) * invstd * weight + bias``, in x's format; ``eps`` is in ``invstd``."""
    x, at, kernels, (weight, bias, mean, invstd) = _read("batch_norm_elemt", x, (weight, bias, mean, invstd))  # type: ignore[assignment]
    with current(x.device):
        made = channels.normalized(kernels, x, at, mean, invstd, weight, bias, 0, None)
        out: Tensor = _there("batch_norm_elemt", made)
    return out


def gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """aten::batch_norm_gather_stats_with_counts: the statistics of parts, as one.

    Args:
        x: what they are of; not read.
        mean, invstd: ``(parts, C)``, of each part.
        running_mean, running_var: ``(C,)``, moved by ``momentum``; or None.
        counts: ``(parts,)``, how many elements a channel of each part has.

    Returns:
        Mean and 1 / sqrt(variance + eps) of all, ``(C,)``. The parts' sums of squares around a common mean: Chan,
        Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    wide = torch.float64 if mean.dtype is torch.float64 else torch.float32
    means, scales, weights = mean.to(wide), invstd.to(wide), counts.to(wide).reshape(-1, 1)
    total = weights.sum()
    all_mean = (means * weights).sum(0) / total
    squares = ((scales.pow(-2) - eps + (means - all_mean).square()) * weights).sum(0)
    for running, found in ((running_mean, all_mean), (running_var, squares / (total - 1))):
        if running is not None:
            running.copy_(running.to(wide) * (1 - momentum) + found * momentum)
    return all_mean, torch.rsqrt(squares / total + eps)


def gather_stats(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """aten::batch_norm_gather_stats: :func:`gather_stats_with_counts` of parts of one size."""
    counts = torch.full((mean.shape[0],), float(count), device=mean.device)
    return gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """aten::batch_norm_backward_reduce: what of each channel a backward sums over the elements.

    Returns:
        The sums of ``grad`` and of ``grad * (x - mean)``, and the gradients of weight and bias; None where not asked.
    """
    what = "batch_norm_backward_reduce"
    x, at, kernels, (mean, invstd, weight) = _read(what, x, (mean, invstd, weight))  # type: ignore[assignment]
    grad = _alike(what, grad, x)
    with current(x.device):
        sums, dots = (t.sum(0) for t in _there(what, channels.products(kernels, grad, x, at, mean, 0)))
        own = sums.dtype if weight is None else weight.dtype
        return (
            sums if of_input else None,
            dots if of_input else None,
            (dots * invstd).to(own) if of_weight else None,
            sums.to(own) if of_bias else None,
        )


def backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """aten::batch_norm_backward_elemt: the gradient of ``x``, from the sums of all parts and their ``count``."""
    what = "batch_norm_backward_elemt"
    x, at, kernels, given = _read(what, x, (mean, invstd, weight, sum_dy, sum_dy_xmu))
    mean, invstd, weight, sum_dy, sum_dy_xmu = given  # type: ignore[assignment]
    grad = _alike(what, grad, x)
    with current(x.device):
        by = 1 / count.sum().to(kernels.wide)
        if weight is not None:
            by = by * weight.to(kernels.wide)
        first, second = sum_dy.to(kernels.wide) * by, sum_dy_xmu.to(kernels.wide) * by * invstd
        made = channels.gradient(kernels, grad, x, at, mean, invstd, weight, first, second, 0, None)
        out: Tensor = _there(what, made)
    return out


def _alike(what: str, grad: Tensor, x: Tensor) -> Tensor:
    """``grad`` laid out as ``x`` is."""
    if (grad.shape, grad.dtype, grad.device) != (x.shape, x.dtype, x.device):
        raise RuntimeError(
            f"{what} on xpu wants a gradient of the input's shape, dtype and device, {tuple(x.shape)} {x.dtype} on "
            f"{x.device}, not {tuple(grad.shape)} {grad.dtype} on {grad.device}"
        )
    return grad.contiguous(memory_format=channels.format_of(x))


# --- the newer forms of the whole ---------------------------------------------------------------------------------


def update_stats(x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float) -> Any:
    """aten::batch_norm_update_stats: mean and variance of each channel; the running ones are moved."""
    if x.dim() < 2 or channels.computed_in(x, (running_mean, running_var), x.shape[1]) is None:
        return NotImplemented
    x, at, kernels, _ = _read("batch_norm_update_stats", x, (running_mean, running_var))
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    with current(x.device):
        found = channels.moments(kernels, x, at, 0.0, running, momentum)
        if found is None:
            return NotImplemented
        mean, rstd = found
        return mean, torch.where(torch.isinf(rstd), 0.0, rstd.pow(-2))


def with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """aten::_batch_norm_with_update: :func:`channels.batch_norm` in training, and an empty reserve."""
    return _reserved(channels.batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps))


def no_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """aten::_batch_norm_no_update: :func:`channels.batch_norm` by the running statistics, and an empty reserve."""
    return _reserved(channels.batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps))


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    update: bool,
    eps: float,
    asked: Sequence[bool],
    reserve: Tensor,
) -> Any:
    """aten::batch_norm_backward: :func:`channels.batch_norm_backward`; the reserve is not read."""
    return channels.batch_norm_backward(
        grad, x, weight, running_mean, running_var, mean, rstd, update, eps, asked
    )  # fmt: skip


def _reserved(made: Any) -> Any:
    return made if made is NotImplemented else (*made, torch.empty(0, dtype=torch.uint8, device=made[0].device))
