"""Pointwise kernels over long rows, a row's part at a time on a CPU device.

Inductor numbers the elements of a pointwise kernel by one index and divides that by the rows' length where a read is of
a row, as the gradient of a loss reads the sums of its softmax. Each lane then has its own row, all of them the same: a
division and a gather for what is one number of the whole work-group.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

LONG = 1024
"""Elements of a row, from which on a work-group's own cost does not count."""

SCORES = {"x": 1.0, "y": 0.0}
"""Inductor's estimate of how much memory is contiguous along each dimension; nothing is along y."""


def rows_apart(module: ModuleType) -> None:
    """Change ``torch._inductor.codegen.simd``: where a pointwise kernel reads what is one for each row, rows are y."""
    from anyxpu.inductor.heuristics import only_cpu_devices

    scheduling: Any = module.SIMDScheduling  # type: ignore[attr-defined]
    original = scheduling.get_tiling_and_scores.__func__

    def get_tiling_and_scores(
        cls: Any, nodes: Any, numel: Any, reduction_numel: Any = 1, *args: Any, **kwargs: Any
    ) -> Any:
        found = original(cls, nodes, numel, reduction_numel, *args, **kwargs)
        if reduction_numel != 1 or "y" in found[0] or not only_cpu_devices():
            return found
        length = _row_length(module.EnableReduction.filter(nodes), numel)
        if length is None:
            return found
        apart = cls.create_tiling([numel // length, length], [reduction_numel])
        return (apart, SCORES) if cls.tiling_is_compatible(nodes, numel, reduction_numel, apart) else found

    scheduling.get_tiling_and_scores = classmethod(get_tiling_and_scores)


def _row_length(nodes: Iterable[Any], numel: Any) -> int | None:
    """The length of the long rows of which a node reads what is one for each; None where none does."""
    from torch._inductor.dependencies import MemoryDep, extract_read_writes

    if not _is_number(numel):
        return None
    for node in nodes:
        if getattr(node.get_device(), "type", None) != "xpu" or getattr(node, "_body", None) is None:
            return None
        sizes = node.get_ranges()[0]
        if len(sizes) < 2 or not _is_number(sizes[-1]) or not LONG <= int(sizes[-1]) < int(numel):
            continue
        accesses = extract_read_writes(node._body, *node._sizes)
        # Of a loop's indices an access names those that it depends on; what is written depends on all.
        writes = [write.var_names for write in accesses.writes if isinstance(write, MemoryDep)]
        inner = {names[-1] for names in writes if len(names) == len(sizes)}
        for read in accesses.reads:
            used = read.index.free_symbols if isinstance(read, MemoryDep) else set()
            if len(inner) == 1 and used and not used & inner:
                return int(sizes[-1])
    return None


def _is_number(size: Any) -> bool:
    return isinstance(size, int) or bool(getattr(size, "is_Integer", False))
