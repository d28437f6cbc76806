"""``triton.backends.intel.compiler``: the backend and its options by Intel's names, and the sizes of ``dpas``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyxpu.triton.compiler import IntelBackend as XPUBackend
from anyxpu.triton.compiler import Options as XPUOptions

__all__ = ["XPUBackend", "XPUOptions", "min_dot_size"]

_DEPTH = 8  # steps of the matrix engine, in each of which a channel takes 32 bits of either operand


def min_dot_size(device_props: Mapping[str, Any]) -> Callable[[Any, Any], tuple[int, int, int]]:
    """The least product that fills the matrix engine: what tilings start from. Smaller ones compile, too.

    Args:
        device_props: a device's properties by name, of which ``sub_group_sizes`` is read.

    Returns:
        A function of the two operands' Triton types that gives (M, N, K). M is 1, as ``dpas`` repeats 1 to 8 rows; N is
        the device's least sub-group size; K is how many elements of the wider operand 8 steps of 32 bits hold.
    """
    lanes = min(device_props["sub_group_sizes"])

    def least(lhs: Any, rhs: Any) -> tuple[int, int, int]:
        bits = max(t.scalar.primitive_bitwidth for t in (lhs, rhs))
        return 1, lanes, _DEPTH * max(1, min(8, 32 // bits))

    return least
