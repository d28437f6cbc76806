"""Decompositions that Inductor withholds from xpu although these devices compile what they decompose to."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def apply(module: ModuleType) -> None:
    """Change the table of ``torch._inductor.decomposition``.

    ``embedding_dense_backward`` is left to an eager kernel on xpu there, because Intel's own is faster than atomics
    on some GPUs. Here that eager kernel is a call of the host, inside a compiled graph.
    """
    import torch
    from torch._decomp.decompositions import embedding_dense_backward as decomposed

    def embedding_dense_backward(
        grad_output: torch.Tensor,
        indices: torch.Tensor,
        num_weights: int,
        padding_idx: int,
        scale_grad_by_freq: bool,
    ) -> torch.Tensor:
        return decomposed(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)

    module.decompositions[torch.ops.aten.embedding_dense_backward.default] = embedding_dense_backward
