"""Index arithmetic of 32 bits only where the intermediate values fit as well.

Inductor indexes by i32 where the number of elements and the buffers' sizes fit. ``roll`` adds a shift to an index
before it takes the remainder, ``pad`` and ``cat`` offset it: of 2**31 - 2 elements that passes 2**31, and the kernel
reads elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch


def leave_room(module: ModuleType) -> None:
    """Change ``torch._inductor.codegen.simd``: kernels for xpu over 2**30 elements and more index by i64.

    So do those over a size that Dynamo has no source for, as the length of a view's base that AOTAutograd alone looked
    at: i32 wants a guard, and Dynamo fails to write one with an IndexError.
    """
    scheduling: Any = module.SIMDScheduling  # type: ignore[attr-defined]
    original = scheduling.can_use_32bit_indexing

    def can_use_32bit_indexing(numel: Any, buffers: Iterable[Any]) -> bool:
        from torch._inductor import config
        from torch._inductor.virtualized import V

        if "xpu" in V.graph.device_types:
            buffers = list(buffers)
            if not _can_be_guarded(V.graph.sizevars.shape_env, [numel, *_storage_sizes(buffers)]):
                return False
        # Twice the number: a sum of two indices fits where that does.
        room = 1 if config.assume_32bit_indexing or "xpu" not in V.graph.device_types else 2
        return bool(original(room * numel, buffers))

    scheduling.can_use_32bit_indexing = staticmethod(can_use_32bit_indexing)


def _storage_sizes(buffers: Iterable[Any]) -> Iterator[Any]:
    """Elements of each buffer's storage, and of those that it stands for where it only says that they were written."""
    for buffer in buffers:
        if buffer.has_tensor_output():
            yield buffer.get_layout().storage_size()
        elif isinstance(buffer, torch._inductor.ir.MutationOutput):
            yield from _storage_sizes(buffer.get_mutation_buffers())


def _can_be_guarded(shape_env: Any, sizes: Iterable[Any]) -> bool:
    """Whether Dynamo has a source for each symbol of the sizes; what is no size of an input needs none."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    wanted = [shape_env.replace(size) for size in sizes if getattr(size, "free_symbols", ())]
    symbols = set().union(*(size.free_symbols - free_unbacked_symbols(size) for size in wanted))
    return not symbols or not shape_env.tracked_fakes or symbols <= _known_symbols(shape_env)


def _known_symbols(shape_env: Any) -> set[Any]:
    """The symbols that Dynamo's inputs have as their sizes; views' bases are none of its inputs.

    Kept with the environment, as each kernel of a graph asks; one that is an input's size only later is unknown.
    """
    fakes = shape_env.tracked_fakes
    count, known = getattr(shape_env, "_anyxpu_known_symbols", (0, set()))
    if count != len(fakes):
        known = {number.node.expr for fake in fakes for number in _numbers(fake.fake) if hasattr(number, "node")}
        shape_env._anyxpu_known_symbols = len(fakes), known
    return known


def _numbers(fake: Any) -> Iterator[Any]:
    """Sizes, strides and offset of a tensor and of those that it is made of, or the number that it is."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not hasattr(fake, "stride"):
        yield fake
        return
    yield from fake.size()
    if is_traceable_wrapper_subclass(fake):
        for name in fake.__tensor_flatten__()[0]:
            yield from _numbers(getattr(fake, name))
    elif fake.layout == torch.strided:
        yield from (*fake.stride(), fake.storage_offset())


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
