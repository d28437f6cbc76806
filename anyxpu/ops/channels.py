"""Batch norm and group norm on xpu, forward and backward, by the kernels of ``channel_kernels.py``.

A function here returns ``NotImplemented`` for a call that it does not serve (types, operands that do not fit, a kernel
that is still being built); the host then computes it, or raises what CPU torch raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.errors import ArgumentError
from anyxpu.ops import launching
from anyxpu.ops.current_device import current
from anyxpu.shim import lib

_NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
_MOST = 2**31 - 2**16  # elements, that kernels count in 32 bits
_PART = 1 << 16  # elements of a part, whose second reading is to find them in a cache
_STEP = 1 << 14  # elements that a CPU's program goes through, where it only maps them

# What each kernel takes behind its pointers.
_TAKES = {
    "moments": "iiiiii",
    "statistics": "iiiiiii##",
    "normalized": "iiiiii#",
    "products": "iiiiiii",
    "factors": "iii#",
    "gradient": "iiiiii#",
}


def arguments(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> list[str]:
    """The types of what a kernel takes; words as for :func:`source`."""
    return launching.types_of(types, _TAKES[kernel], constants)


def source(kernel: str, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> Any:
    """What to compile for one signature class: a kernel of ``channel_kernels.py``; what its pointers point to, in
    order; names and values of its constants.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    from anyxpu.ops import channel_kernels

    return launching.ast_source(getattr(channel_kernels, kernel), arguments(kernel, types, constants), constants)


class Layout(NamedTuple):
    """How a kernel sees memory: (N, C, S), or with ``last`` (N, C)."""

    n: int
    c: int
    s: int
    last: bool


def laid_out(x: Tensor) -> tuple[Tensor, Layout]:
    """``x (N, C, *)`` as dense memory, in its own format."""
    n, c = x.shape[:2]
    s = x[0, 0].numel() if n and c else 0
    for format, dims in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.dim() == dims and not x.is_contiguous() and x.is_contiguous(memory_format=format):
            return x, Layout(n * s, c, 1, True)
    if s == 1:
        return x.contiguous(), Layout(n, c, 1, True)
    return x.contiguous(), Layout(n, c, s, False)


class _Parts(NamedTuple):
    """How (N, S) is parted for sums: along S into ``across``; ``n`` and ``s`` of a part; their number, and the tile."""

    across: int
    n: int
    s: int
    number: int
    rows: int
    lanes: int


def _parted(device: int, at: Layout) -> _Parts:
    cpu = launching.on_cpu(device)
    if at.last:
        rows, lanes = (1, 128) if cpu else (16, 64)
        alike = -(-at.c // lanes)
    else:
        lanes = launching.power_of_two(at.s, 16, 256)
        rows = (256 if cpu else 1024) // lanes
        alike = at.c
    size = at.n * at.s * (lanes if at.last else 1)
    wanted = max(-(-launching.programs(device) // alike), -(-size // _PART))
    along_n = min(wanted, -(-at.n // rows))
    n = -(-at.n // along_n)
    along_n = -(-at.n // n)
    across = min(-(-wanted // along_n), max(1, at.s // 4096))
    s = -(-at.s // across)
    across = -(-at.s // s)
    return _Parts(across, n, s, along_n * across, rows, lanes)


class _Steps(NamedTuple):
    """How elements are walked that are only mapped: rows and lanes a program; programs; the tile."""

    down: int
    across: int
    groups: int
    rows: int
    lanes: int


def _walked(device: int, rows: int, width: int) -> _Steps:
    cpu = launching.on_cpu(device)
    lanes = launching.power_of_two(width, 16, 256)
    tall = (256 if cpu else 1024) // lanes
    across = min(_STEP, -(-width // lanes) * lanes) if cpu else lanes
    down = max(1, min(_STEP // across, -(-rows // launching.programs(device))) // tall) * tall if cpu else tall
    return _Steps(down, across, -(-rows // down) * -(-width // across), tall, lanes)


class Kernels:
    """Kernels of one computed type on one device; ``None`` instead of the first that is not there."""

    def __init__(self, x: Tensor, wide: torch.dtype, wait: bool = False) -> None:
        self.device, self.wide, self.op = x.get_device(), wide, _NAMES[wide]
        # The host's statistics of 16 bits are of 16 bits: it does not serve meanwhile.
        self.wait = wait or x.dtype in (torch.bfloat16, torch.float16)

    def get(self, kernel: str, tensors: Sequence[Tensor], **constants: Any) -> launching.Launch | None:
        types = tuple(_NAMES[t.dtype] for t in tensors)
        words = (("OP", self.op), *constants.items())
        return launching.kernel(self.device, "channels", kernel, types, words, wait=self.wait)


def computed_in(x: Tensor, others: Sequence[Tensor | None], size: int) -> torch.dtype | None:
    """The type that is computed in; None where the operands are not served. ``others`` have ``size`` elements."""
    if x.dtype not in _NAMES or x.numel() == 0 or x.numel() > _MOST:
        return None
    for t in others:
        if t is not None and (t.dtype not in _NAMES or t.device != x.device or t.numel() != size):
            return None
        if t is not None and (t.dim() != 1 or not t.is_contiguous()):
            return None
    if x.dtype is not torch.float64:
        return None if any(t is not None and t.dtype is torch.float64 for t in others) else torch.float32
    return torch.float64 if lib().properties(x.get_device()).has_fp64 else None


def moments(
    kernels: Kernels,
    x: Tensor,
    at: Layout,
    eps: float,
    running: tuple[Tensor, Tensor] | None = None,
    momentum: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """Mean and 1 / sqrt(variance + eps) of each channel; the running ones are moved."""
    parts = _parted(kernels.device, at)
    means, squares = torch.empty((2, parts.number, at.c), dtype=kernels.wide, device=x.device)
    mean, rstd = torch.empty((2, at.c), dtype=kernels.wide, device=x.device)
    moved = running or (mean, rstd)
    find = kernels.get("moments", (x, means, squares), LAST=at.last, R=parts.rows, L=parts.lanes)
    finish = kernels.get(
        "statistics", (means, squares, mean, rstd, *moved), RUNNING=running is not None, L=_LINE
    )  # fmt: skip
    if find is None or finish is None:
        return None
    alike = -(-at.c // parts.lanes) if at.last else at.c
    sizes = (at.n, at.c, at.s, parts.across, parts.n, parts.s)
    find(parts.number * alike, x.numel(), x, means, squares, *sizes)
    finish(-(-at.c // _LINE), means.numel(), means, squares, mean, rstd, *moved, *sizes, parts.number, eps, momentum)
    return mean, rstd


_LINE = 64  # channels whose parts a program adds up


def normalized(
    kernels: Kernels,
    x: Tensor,
    at: Layout,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    depth: int,
    eps: float | None,
) -> Tensor | None:
    """``eps``: rstd is the variance. ``depth``: channels that share statistics; 0: statistics are of a channel."""
    out = torch.empty_like(x, memory_format=format_of(x))
    rows, width = (at.n, at.c) if at.last else (at.n * at.c, at.s)
    steps = _walked(kernels.device, rows, width)
    tensors = (x, out, mean, rstd, mean if weight is None else weight, mean if bias is None else bias)
    run = kernels.get(
        "normalized", tensors, LAST=at.last, GROUPED=depth > 0, VARIANCE=eps is not None,
        WEIGHT=weight is not None, BIAS=bias is not None, R=steps.rows, L=steps.lanes,
    )  # fmt: skip
    if run is None:
        return None
    run(steps.groups, x.numel(), *tensors, rows, at.c, at.s, depth, steps.down, steps.across, eps or 0.0)
    return out


def products(
    kernels: Kernels, grad: Tensor, x: Tensor, at: Layout, mean: Tensor, depth: int
) -> tuple[Tensor, Tensor] | None:
    """Of each part of a channel the sums of grad and of ``grad * (x - mean)``, ``(parts, C)``."""
    parts = _parted(kernels.device, at)
    sums, dots = torch.empty((2, parts.number, at.c), dtype=kernels.wide, device=x.device)
    tensors = (grad, x, mean, sums, dots)
    run = kernels.get("products", tensors, LAST=at.last, GROUPED=depth > 0, R=parts.rows, L=parts.lanes)
    if run is None:
        return None
    alike = -(-at.c // parts.lanes) if at.last else at.c
    run(parts.number * alike, x.numel(), *tensors, at.n, at.c, at.s, depth, parts.across, parts.n, parts.s)
    return sums, dots


def gradient(
    kernels: Kernels,
    grad: Tensor,
    x: Tensor,
    at: Layout,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    first: Tensor,
    second: Tensor,
    depth: int,
    eps: float | None,
) -> Tensor | None:
    out = torch.empty_like(x, memory_format=format_of(x))
    rows, width = (at.n, at.c) if at.last else (at.n * at.c, at.s)
    steps = _walked(kernels.device, rows, width)
    tensors = (grad, x, out, mean, rstd, mean if weight is None else weight, first, second)
    run = kernels.get(
        "gradient", tensors, LAST=at.last, GROUPED=depth > 0, VARIANCE=eps is not None, WEIGHT=weight is not None,
        R=steps.rows, L=steps.lanes,
    )  # fmt: skip
    if run is None:
        return None
    run(steps.groups, x.numel(), *tensors, rows, at.c, at.s, depth, steps.down, steps.across, eps or 0.0)
    return out


# --- batch norm ---------------------------------------------------------------------------------------------------


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """aten::native_batch_norm and aten::_native_batch_norm_legit: of ``x (N, C, *)``, normalized over all but C.

    Args:
        x: bf16, f16, f32 or f64.
        weight, bias: ``(C,)``, or None.
        running_mean, running_var: ``(C,)``; moved by ``momentum`` towards the statistics in training, and used
            instead of them otherwise. Both or none.
        eps: what is added to the variance.

    Returns:
        The result in x's memory format; the mean and 1 / sqrt(variance + eps) of each channel, f32 (f64: f64), and
        empty out of training.
    """
    if x.dim() < 2 or (running_mean is None) != (running_var is None) or (not training and running_mean is None):
        return NotImplemented
    given = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    for name, t in given.items():
        if t is not None and t.numel() != x.shape[1]:  # which torch's own kernels read beyond the end of
            raise ArgumentError(f"batch norm wants a {name} of {x.shape[1]} elements, not of shape {tuple(t.shape)}")
    wide = computed_in(x, tuple(given.values()), x.shape[1])
    if wide is None:
        return NotImplemented
    x, at = laid_out(x)
    kernels = Kernels(x, wide)
    with current(x.device):
        if not training:
            assert running_mean is not None and running_var is not None
            out = normalized(kernels, x, at, running_mean, running_var, weight, bias, 0, eps)
            if out is None:
                return NotImplemented
            return out, *torch.empty((2, 0), dtype=wide, device=x.device)
        running = None if running_mean is None or running_var is None else (running_mean, running_var)
        # Asked for before anything is written: what the host computes instead moves the running statistics too.
        steps = _walked(kernels.device, *((at.n, at.c) if at.last else (at.n * at.c, at.s)))
        stand_in = torch.empty(0, dtype=wide, device=x.device)
        if not kernels.get(
            "normalized", (x, x, stand_in, stand_in, stand_in if weight is None else weight,
                           stand_in if bias is None else bias),
            LAST=at.last, GROUPED=False, VARIANCE=False, WEIGHT=weight is not None, BIAS=bias is not None,
            R=steps.rows, L=steps.lanes,
        ):  # fmt: skip
            return NotImplemented
        found = moments(kernels, x, at, eps, running, momentum)
        if found is None:
            return NotImplemented
        return normalized(kernels, x, at, *found, weight, bias, 0, None), *found


def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """aten::_native_batch_norm_legit.no_stats: :func:`batch_norm` without running statistics."""
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    asked: Sequence[bool],
) -> Any:
    """aten::native_batch_norm_backward.

    Args:
        grad: of the result, in x's shape and dtype.
        x, weight, running_mean, running_var, training, eps: as :func:`batch_norm` took them.
        mean, rstd: what that returned.
        asked: whether the gradients of x, weight and bias are.

    Returns:
        Those gradients, each in its operand's dtype; None where not asked for.
    """
    if x.dim() < 2 or (grad.shape, grad.dtype, grad.device) != (x.shape, x.dtype, x.device):
        return NotImplemented
    statistics = (mean, rstd) if training else (running_mean, running_var)
    wide = computed_in(x, (weight, *statistics), x.shape[1])
    if wide is None or statistics[0] is None or statistics[1] is None:
        return NotImplemented
    x, at = laid_out(x)
    grad = grad.contiguous(memory_format=format_of(x))
    kernels = Kernels(x, wide)
    variance = None if training else eps
    own = wide if weight is None else weight.dtype
    of_weight, of_bias = (torch.empty(at.c, dtype=own, device=x.device) for _ in range(2))
    first, second = torch.empty((2, at.c), dtype=wide, device=x.device)
    with current(x.device):
        if training or asked[1] or asked[2]:
            found = products(kernels, grad, x, at, statistics[0], 0)
            tensors = (statistics[1], statistics[1] if weight is None else weight, of_weight, of_bias, first, second)
            finish = found and kernels.get(
                "factors", (*found, *tensors), VARIANCE=not training, WEIGHT=weight is not None,
                OF_WEIGHT=asked[1], OF_BIAS=asked[2], L=_LINE,
            )  # fmt: skip
            if not found or not finish:
                return NotImplemented
            finish(-(-at.c // _LINE), found[0].numel(), *found, *tensors, at.c, found[0].shape[0], at.n * at.s, eps)
        made = None
        if asked[0]:
            made = gradient(kernels, grad, x, at, *statistics, weight, first, second, 0, variance)  # type: ignore[arg-type]
            if made is None:
                return NotImplemented
    return made, of_weight if asked[1] else None, of_bias if asked[2] else None


def format_of(x: Tensor) -> torch.memory_format:
    if x.is_contiguous():
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


# --- group norm ---------------------------------------------------------------------------------------------------


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, s: int, groups: int, eps: float
) -> Any:
    """aten::native_group_norm: of ``x (N, C, *)``, normalized over groups of channels.

    Args:
        x: bf16, f16, f32 or f64.
        weight, bias: ``(C,)``, or None.
        n, c, s: N, C and the product of the rest.
        groups: how many; they divide C.
        eps: what is added to the variance.

    Returns:
        The result, contiguous; the mean and 1 / sqrt(variance + eps) ``(N, groups)``, f32 (f64: f64).
    """
    wide = computed_in(x, (weight, bias), c)
    if wide is None or groups <= 0 or c % groups or x.numel() != n * c * s:
        return NotImplemented
    x = x.contiguous()
    kernels = Kernels(x, wide)
    depth = c // groups
    with current(x.device):
        found = moments(kernels, x, Layout(1, n * groups, depth * s, False), eps)
        out = found and normalized(kernels, x, Layout(n, c, s, False), *found, weight, bias, depth, None)
    if found is None or out is None:
        return NotImplemented
    return out, *(t.view(n, groups) for t in found)


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    s: int,
    groups: int,
    asked: Sequence[bool],
) -> Any:
    """aten::native_group_norm_backward.

    Args:
        grad: of the result, in x's shape and dtype.
        x, mean, rstd, weight, n, c, s, groups: as :func:`group_norm` took and returned them.
        asked: whether the gradients of x, weight and bias are.

    Returns:
        Those gradients, each in its operand's dtype; None where not asked for.
    """
    wide = computed_in(x, (weight,), c)
    if wide is None or c % groups or (grad.shape, grad.dtype, grad.device) != (x.shape, x.dtype, x.device):
        return NotImplemented
    if any((t.numel(), t.device) != (n * groups, x.device) or t.dtype not in _NAMES for t in (mean, rstd)):
        return NotImplemented
    x, grad = x.contiguous(), grad.contiguous()
    mean, rstd = mean.to(wide).contiguous(), rstd.to(wide).contiguous()
    kernels = Kernels(x, wide)
    depth = c // groups
    at = Layout(n, c, s, False)
    with current(x.device):
        # Sums over the elements of one channel of one of N.
        found = products(kernels, grad, x, Layout(1, n * c, s, False), mean, depth)
        if found is None:
            return NotImplemented
        sums, dots = (t.sum(0) if t.shape[0] > 1 else t[0] for t in found)
        dots = (dots.view(n, groups, depth) * rstd.view(n, groups, 1)).view(n, c)
        sums = sums.view(n, c)
        made = None
        if asked[0]:
            by = 1.0 / (depth * s)
            means = [t if weight is None else t * weight.to(wide) for t in (sums, dots)]
            first, second = ((t.view(n, groups, depth).sum(2) * by).contiguous() for t in means)
            made = gradient(kernels, grad, x, at, mean, rstd, weight, first, second, depth, None)
            if made is None:
                return NotImplemented
    own = wide if weight is None else weight.dtype
    return made, dots.sum(0).to(own) if asked[1] else None, sums.sum(0).to(own) if asked[2] else None
