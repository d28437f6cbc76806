"""Is a model's result right? Judged as PyTorch's dynamo benchmark does, by the same function of torch."""

from __future__ import annotations

from typing import Any

import torch

from anyxpu.bench.models.entry import Entry

# Of the suites in PyTorch's benchmarks/dynamo: what an element may differ by, in inference and in training.
_FLOAT32 = {"hf": (1e-3, 1e-2), "timm": (1e-3, 1e-2), "torchbench": (1e-4, 1e-3), "llm": (1e-3, 1e-2)}
_NARROW = (1e-2, 2e-2)


def tolerance(entry: Entry, suite: str, training: bool, dtype: str) -> tuple[float, bool]:
    """The largest difference granted, and whether results are compared by their cosine alone.

    Args:
        dtype: "f32", "bf16", "f16" or "amp".
    """
    allowed = (entry.tolerance or _FLOAT32[suite])[training]
    if dtype == "f32":
        return allowed, entry.cosine
    # Upstream compares gradients of autocast by their cosine: sums of 16-bit terms are taken in another order.
    return max(allowed, _NARROW[training]), entry.cosine or (dtype == "amp" and training)


def right(found: Any, expected: Any, exact: Any, allowed: float, cosine: bool) -> bool:
    """Whether ``found`` is as good as ``expected``.

    Args:
        found: tensors of the side under test, nested as they like, on the CPU.
        expected: the same of eager PyTorch on the CPU in the same dtype.
        exact: the same in float64, or None where that could not be had. With it, ``found`` may be a little farther
            from it than ``expected`` is.
        allowed: see :func:`tolerance`.
        cosine: see :func:`tolerance`.
    """
    from torch._dynamo.utils import same

    return bool(
        same(
            expected,
            found,
            exact,
            cos_similarity=cosine,
            tol=allowed,
            equal_nan=True,
            exact_dtype=False,
            log_error=lambda text, *words: complaints.append(text % words if words else text),
        )
    )


complaints: list[str] = []
"""What torch said of results that differed, the latest last."""


def on_cpu(tensors: Any, double: bool = False) -> Any:
    """The tensors as the CPU's own; the copies are no part of what is tested."""
    if isinstance(tensors, torch.Tensor):
        there = tensors.detach().cpu()
        return there.double() if double and there.is_floating_point() else there.clone()
    if isinstance(tensors, dict):
        return {key: on_cpu(value, double) for key, value in tensors.items()}
    if isinstance(tensors, (list, tuple)):
        return [on_cpu(value, double) for value in tensors]
    return tensors
