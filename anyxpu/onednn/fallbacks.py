"""Which calls oneDNN did not serve as they came, why, and what served them instead.

anyxpu.onednn.fallbacks.seen()  every such reason since the start or :func:`reset`, and how often it was met
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from anyxpu.onednn import capi
from anyxpu.shim import lib

HOST, FLOAT32, COMPOSED = "host", "float32", "composed"
"""CPU torch; a float32 primitive with conversions around it; a primitive and operators after it."""

MOST = 1000
"""Distinct fallbacks kept; whatever comes after is counted as one."""


@dataclass(frozen=True)
class Fallback:
    """Calls of one kind that another way served.

    Attributes:
        primitive: oneDNN's name of what was asked for: ``matmul``, ``convolution``, ``deconvolution``.
        operands: dtype and device, and the shapes where they are the reason.
        reason: why oneDNN did not do it as asked.
        instead: what did: :data:`HOST`, :data:`FLOAT32` or :data:`COMPOSED`.
    """

    primitive: str
    operands: str
    reason: str
    instead: str = HOST


_OTHERS = Fallback("others", "", f"more than {MOST} different ones")
_lock = threading.Lock()
_counts: dict[Fallback, Any] = {}  # the shim's Tally of each


def count(fallback: Fallback) -> None:
    """One more call of this kind."""
    with _lock:
        named = fallback if fallback in _counts or len(_counts) < MOST else _OTHERS
        tally = _counts.get(named) or _counts.setdefault(named, lib().Tally())
    tally.add()


def seen() -> dict[Fallback, int]:
    """Every fallback that was taken, and how often; the most frequent first."""
    with _lock:
        counts = {fallback: int(tally) for fallback, tally in _counts.items() if int(tally)}
    return dict(Counter(counts).most_common())


def reset() -> None:
    """Forget them."""
    with _lock:
        for tally in _counts.values():  # which calls that run without Python go on counting in
            tally.reset()


def named(primitive: str, operands: str, device: torch.device, error: capi.Unavailable, instead: str) -> Fallback:
    """The fallback for what oneDNN does not have on a device. Warns, once a device, where that could be mended."""
    name = torch.xpu.get_device_name(device)
    if isinstance(error, capi.NotBuilt):
        _warn(name, error.hint)
    return Fallback(primitive, operands, f"not to be had on {name}: {error}", instead)


@cache
def _warn(device: str, hint: str) -> None:
    warnings.warn(
        f"anyxpu: kernels that oneDNN wrote in OpenCL C do not build on {device}; what needs them goes another, slower "
        f"way, which anyxpu.ops.fallbacks() lists{hint}",
        stacklevel=2,
    )


class Declined:
    """The plan of a call that goes to the host."""

    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback

    def run(self, *operands: Any) -> Any:
        """Count it, and hand the call on."""
        count(self.fallback)
        return NotImplemented

    forward = backward = run
