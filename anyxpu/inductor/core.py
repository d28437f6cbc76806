"""What of a CPU's core decides the sizes of blocks: its vector registers and its first-level cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LINE_BYTES = 64
# Where the operating system does not say: the smallest that a CPU with AVX2 has.
_SMALLEST_CACHE = 32 << 10


def _power_of_two(value: int) -> int:
    """The largest that is not above ``value``."""
    return 1 << max(value, 1).bit_length() - 1


@dataclass(frozen=True)
class Core:
    """One core of a CPU device. Elements are f32.

    Attributes:
        lanes: elements of a vector register.
        cache_bytes: of the first-level data cache.
    """

    lanes: int = 16
    cache_bytes: int = _SMALLEST_CACHE

    @classmethod
    def of(cls, capability: Mapping[str, Any]) -> Core:
        """The core of a device with such a capability dictionary (``torch.xpu.get_device_capability()``)."""
        lanes = int(capability.get("gpu_eu_simd_width") or cls.lanes)
        return cls(max(4, min(16, lanes)), int(capability.get("first_level_cache_size") or cls.cache_bytes))

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return _LINE_BYTES // 4

    @property
    def tile(self) -> int:
        """Elements of a work-group's tile: enough to hide the cost of starting it, few enough that four live values of
        each stay in the first-level cache."""
        return _power_of_two(self.cache_bytes // 4 // 4)

    @property
    def registers(self) -> int:
        """Elements of a tile whose accumulators stay in registers: half of them, which AVX-512 has 32 of and other
        vector units 16."""
        return (16 if self.lanes == 16 else 8) * self.lanes

    @property
    def row(self) -> int:
        """Elements of a row that is kept whole: half of the first-level cache, which leaves the rest for the rest."""
        return _power_of_two(self.cache_bytes // 2 // 4)

    @property
    def side(self) -> int:
        """Elements along each side of a square tile of at most half the first-level cache."""
        return _power_of_two(int(self.row**0.5))
