"""How far a result is from its reference, and which operators the host served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Largest relative error a row may show, by the dtype it computed in.
BOUNDS: dict[torch.dtype, float] = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def relative_error(found: Iterable[Tensor], reference: Iterable[Tensor]) -> float:
    """``||found - reference|| / ||reference||`` over all the tensors taken as one vector, computed in float64.

    Args:
        found, reference: tensors of equal shapes, any dtype, any device.

    Returns:
        the error; infinity where ``found`` holds something that is not finite or the reference is all zeros and
        ``found`` is not, so that no bound accepts it.
    """
    distance = torch.zeros((), dtype=torch.float64)
    norm = torch.zeros((), dtype=torch.float64)
    for a, b in zip(found, reference, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"the result has shape {tuple(a.shape)}, its reference {tuple(b.shape)}")
        # The cast is the CPU's, so that nothing under test takes part in judging itself.
        a64, b64 = a.detach().cpu().double(), b.detach().cpu().double()
        distance += (a64 - b64).square().sum()
        norm += b64.square().sum()
    if not torch.isfinite(distance) or (norm == 0 and distance != 0):
        return float("inf")
    return float((distance / norm).sqrt()) if norm else 0.0


def triton_kernels(modules: Iterable[Any]) -> int:
    """How many different Triton kernels the modules that Inductor generated hold."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    return sum(isinstance(value, CachingAutotuner) for module in modules for value in vars(module).values())
