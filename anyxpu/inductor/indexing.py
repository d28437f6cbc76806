"""Index arithmetic of 32 bits only where the intermediate values fit as well.

Inductor indexes by i32 where the number of elements and the buffers' sizes fit. ``roll`` adds a shift to an index
before it takes the remainder, ``pad`` and ``cat`` offset it: of 2**31 - 2 elements that passes 2**31, and the kernel
reads elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any


def leave_room(module: ModuleType) -> None:
    """Change ``torch._inductor.codegen.simd``: kernels for xpu over 2**30 elements and more index by i64."""
    scheduling: Any = module.SIMDScheduling  # type: ignore[attr-defined]
    original = scheduling.can_use_32bit_indexing

    def can_use_32bit_indexing(numel: Any, buffers: Iterable[Any]) -> bool:
        from torch._inductor import config
        from torch._inductor.virtualized import V

        # Twice the number: a sum of two indices fits where that does.
        room = 1 if config.assume_32bit_indexing or "xpu" not in V.graph.device_types else 2
        return bool(original(room * numel, buffers))

    scheduling.can_use_32bit_indexing = staticmethod(can_use_32bit_indexing)


def small_block_numbers(module: ModuleType) -> None:
    """Change ``torch._inductor.codegen.triton_split_scan``: blocks are numbered by i32 whatever the index type.

    The helper that passes sums from block to block compares and replaces the number by constants of i32, so that Triton
    refuses to compile a scan over more elements than i32 counts.
    """
    kernel: Any = module.TritonSplitScanKernel  # type: ignore[attr-defined]
    original = kernel.scan

    def scan(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = self.iteration_ranges_get_pid
        if self.index_dtype == "tl.int64":
            self.iteration_ranges_get_pid = lambda entry: f"{number(entry)}.to(tl.int32)"
        try:
            return original(self, *args, **kwargs)
        finally:
            self.__dict__.pop("iteration_ranges_get_pid", None)

    kernel.scan = scan


def wide_constants(module: ModuleType) -> None:
    """Change ``torch._inductor.codegen.triton``: an index that is a constant of 2**31 and more is one of i64.

    Inductor writes all of them as i32: a negative index into so many elements has a wrapped size added to it.
    """
    kernel: Any = module.TritonKernel  # type: ignore[attr-defined]
    original = kernel.indexing

    def indexing(self: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
        options = original(self, index, *args, **kwargs)
        text = getattr(options, "index_str", "")
        constant: Any = getattr(options, "index", None)
        if not getattr(constant, "is_Integer", False) or -(1 << 31) <= int(constant) < 1 << 31:
            return options
        if text.startswith("tl.full("):
            options.index_str = text.replace(", tl.int32)", ", tl.int64)")
        return options

    kernel.indexing = indexing
