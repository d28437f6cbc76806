"""``torch.optim.Adagrad(fused=True)``: one step of all its tensors, by a few launches of many tensors each.

Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fused_adagrad_(
    self: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    state_steps: list[Tensor],
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Any:
    """aten::_fused_adagrad_: parameters less ``lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum of g * g) + eps)``.

    Args:
        self, grads, state_sums: parameters, their gradients and the sums of their squares, as many of each.
        state_steps: ``()`` each, float32: how many steps there were, this one among them.
        lr: a number, or a tensor of one element (``tensor_lr``).
        weight_decay: this share of a parameter is added to its gradient.
        maximize: step up, not down.
        grad_scale: the gradients are divided by it first, and stay so.
        found_inf: where it is 1, nothing is written; read on the device.

    Returns:
        None; ``NotImplemented`` for types that the host takes.
    """
    lists = (self, grads, state_sums)
    if not self or any(len(t) != len(self) for t in (*lists, state_steps)):
        return NotImplemented
    device = self[0].device
    if any(not t.is_floating_point() or t.device != device or t.is_sparse for each in lists for t in each):
        return NotImplemented
    if any(step.dtype is not torch.float32 or step.numel() != 1 for step in state_steps):
        return NotImplemented
    stopped = None if found_inf is None else found_inf.reshape(()).to(device) == 1
    if grad_scale is not None:
        by = grad_scale.reshape(()).to(device).reciprocal()
        if stopped is not None:
            by = torch.where(stopped, 1.0, by)
        torch._foreach_mul_(grads, by)
    # Of 16 bits in float32, where eps is not 0.
    params, sums, made = (_wide(each) for each in (self, state_sums, grads))
    if maximize:
        made = list(torch._foreach_neg(made))
    if weight_decay:
        made = list(torch._foreach_add(made, params, alpha=weight_decay))
    if stopped is not None:
        made = [torch.where(stopped, 0.0, g).to(g.dtype) for g in made]
    torch._foreach_addcmul_(sums, made, made)
    below = torch._foreach_sqrt(sums)
    torch._foreach_add_(below, eps)
    if stopped is not None:
        torch._foreach_add_(below, stopped.float())  # 0 / 0 is no step either
    if lr_decay:
        for t, step in zip(below, state_steps, strict=True):
            wide = torch.float64 if t.dtype is torch.float64 else torch.float32
            t.mul_((step.reshape(()).to(device, wide) - 1) * lr_decay + 1)
    if isinstance(lr, Tensor):
        torch._foreach_addcdiv_(params, torch._foreach_mul(made, -lr.reshape(()).to(device)), below)
    else:
        torch._foreach_addcdiv_(params, made, below, value=-lr)
    for given, each in ((self, params), (state_sums, sums)):
        if any(a is not b for a, b in zip(given, each, strict=True)):
            torch._foreach_copy_(given, each)
    return None


def _wide(tensors: list[Tensor]) -> list[Tensor]:
    return [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]
