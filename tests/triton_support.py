"""What the tests of the Triton backend share: running a kernel on CPU tensors' data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from anyxpu import simulate
from anyxpu.triton import lower

# Triton 3.9 took block pointers out, in favour of tensor descriptors.
HAS_BLOCK_POINTERS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
needs_block_pointers = pytest.mark.skipif(not HAS_BLOCK_POINTERS, reason="this Triton has no block pointers")


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run ``kernel`` on copies of its CPU tensors on the device, then copy back what it left in them."""
    moved = [a.to("xpu") if isinstance(a, torch.Tensor) else a for a in args]
    kernel[grid](*moved, **constants)
    for before, after in zip(args, moved, strict=True):
        if isinstance(before, torch.Tensor):
            before.copy_(after)


def needs_engine(lanes: int) -> None:
    """Skip where the device's matrix engine, which a CPU device emulates, has sub-groups of another size."""
    device = simulate.active()
    if device and lanes not in (0, lower.MATRIX_LANES.get(device, 0)):
        pytest.skip(f"the matrix engine of {device} has no sub-groups of {lanes}")
