"""Block sizes for kernels on a CPU device, chosen rather than tried.

Inductor compiles several configurations of a kernel and keeps the fastest. Most differ in the number of warps and in
how a tile is spread over them, which on a CPU device (one sub-group a work-group) is no difference at all; the rest is
worth less there than the seconds of compiling it costs. ``max_autotune`` still tries them all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from anyxpu.inductor import rows
from anyxpu.inductor.core import Core


def apply_to_autotuner(module: ModuleType) -> None:
    """Wrap ``cached_autotune`` of ``torch._inductor.runtime.triton_heuristics``."""
    original = module.cached_autotune
    kinds = module.HeuristicType

    def cached_autotune(size_hints: Any, configs: list[Any], *args: Any, **kwargs: Any) -> Any:
        meta = kwargs.get("inductor_meta") or {}
        kind = kwargs.get("heuristic_type")
        device = (kwargs.get("triton_meta") or {}).get("device")
        tuned = meta.get("max_autotune") or meta.get("max_autotune_pointwise")
        if device is not None and size_hints and on_cpu(device) and not tuned:
            core = Core.of(device.cc)
            if kind in (kinds.REDUCTION, kinds.PERSISTENT_REDUCTION):
                config = nearest(core, configs, size_hints)
                if kind == kinds.REDUCTION:
                    config = in_registers(core, config, size_hints, meta.get("tiling_scores"))
                configs = [one_row(core, config, size_hints)]
            elif kind == kinds.POINTWISE:
                if len(size_hints) == 1:
                    configs = [nearest(core, configs, size_hints)]
                elif meta.get("tiling_scores") == rows.SCORES:
                    configs = [along_rows(core, configs[0], size_hints)]
                else:
                    configs = [square(core, configs[0], size_hints)]
        return original(size_hints, configs, *args, **kwargs)

    module.__dict__["cached_autotune"] = cached_autotune


def on_cpu(device: Any) -> bool:
    """Whether Inductor's description of a device (``DeviceProperties``) is of an xpu that is a CPU."""
    return getattr(device, "type", None) == "xpu" and isinstance(device.cc, dict) and device.cc.get("type") == "cpu"


def nearest(core: Core, configs: Sequence[Any], size_hints: dict[str, int]) -> Any:
    """The configuration to take untried: of those that serve either memory order, the nearest to the wanted size.

    Inductor offers several for a reduction where it does not know which dimension is contiguous. A block of a few
    elements along that one reads a cache line for each, so blocks long in every dimension are taken where there are
    some. Of two at the same distance the one listed first is taken.
    """

    def blocks(config: Any) -> list[int]:
        # A persistent reduction's own block is not in the configuration: it is the whole dimension.
        whole = {dim: 1 << max(size - 1, 0).bit_length() for dim, size in size_hints.items()}
        return [config.kwargs.get(f"{dim.upper()}BLOCK") or size for dim, size in whole.items()]

    def distance(config: Any) -> float:
        return abs(math.log2(math.prod(blocks(config)) / core.tile))

    def long(config: Any) -> bool:
        return all(b >= min(core.line, s) for b, s in zip(blocks(config), size_hints.values(), strict=True))

    return min([c for c in configs if long(c)] or configs, key=distance)


def square(core: Core, config: Any, size_hints: dict[str, int]) -> Any:
    """The configuration of a pointwise kernel in two dimensions, with a tile that serves whichever is contiguous."""
    blocks = {f"{dim.upper()}BLOCK": size for dim, size in size_hints.items()}
    if set(blocks) != {"XBLOCK", "YBLOCK"} or not set(blocks) <= set(config.kwargs):
        return config
    config = copy.deepcopy(config)
    config.kwargs.update({name: min(core.side, 1 << max(size - 1, 0).bit_length()) for name, size in blocks.items()})
    return config


def along_rows(core: Core, config: Any, size_hints: dict[str, int]) -> Any:
    """The configuration of a pointwise kernel with rows for y: a tile of one row."""
    config = copy.deepcopy(config)
    config.kwargs.update(XBLOCK=min(core.tile, 1 << max(size_hints["x"] - 1, 0).bit_length()), YBLOCK=1)
    return config


def in_registers(core: Core, config: Any, size_hints: dict[str, int], scores: dict[str, float] | None) -> Any:
    """The configuration of a looped reduction with a tile whose accumulators stay in registers.

    ``scores`` is Inductor's estimate of how much memory is contiguous along each dimension.
    """
    if not {"XBLOCK", "R0_BLOCK"} <= set(config.kwargs) or set(size_hints) != {"x", "r0_"}:
        return config
    if size_hints["x"] < core.line:
        x = 1
    elif scores:
        x = 4 * core.line if scores.get("x", 0) > scores.get("r0_", 0) else 1
    else:
        x = 1 if config.kwargs["XBLOCK"] < core.line else core.line
    config = copy.deepcopy(config)
    config.kwargs.update(XBLOCK=x, R0_BLOCK=core.registers // x)
    return config


def one_row(core: Core, config: Any, size_hints: dict[str, int]) -> Any:
    """The configuration of a persistent reduction with long rows, one row at a time.

    Inductor makes rows longer than 64 persistent only where they are contiguous, so that one of them is long enough
    a read, and several would only push each other out of the first-level cache.
    """
    if set(size_hints) != {"x", "r0_"} or "R0_BLOCK" in config.kwargs or size_hints["r0_"] < core.registers:
        return config
    config = copy.deepcopy(config)
    config.kwargs["XBLOCK"] = 1
    return config


def longer_rows(module: ModuleType) -> None:
    """Let ``torch._inductor.choices`` keep longer contiguous rows whole on a CPU device.

    A kernel that keeps its row reads it once; one that loops reads it once for each pass, and computes what the passes
    have in common again. A GPU's registers bound the row in-tree; here its place is the first-level cache.
    """
    import torch
    from torch._inductor import config
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.virtualized import V

    original = module.InductorChoices.should_use_persistent_reduction

    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        if original(features, cooperative_reduction):
            return True
        return bool(
            config.triton.persistent_reductions
            and not cooperative_reduction
            and features.get_reduction_hint() == ReductionHint.INNER
            and V.graph.get_current_device_or_throw().type == "xpu"
            and only_cpu_devices()
            and V.graph.sizevars.statically_known_leq(
                features.reduction_numel, Core.of(torch.xpu.get_device_capability()).row
            )
        )

    module.InductorChoices.should_use_persistent_reduction = staticmethod(should_use_persistent_reduction)


def never_pad_strides(module: ModuleType) -> None:
    """Keep graphs of ``torch._inductor.compile_fx`` from padding their buffers' strides on CPU devices.

    Padding serves a GPU's alignment rules, and in-tree Inductor does not pad on a CPU either.
    """
    import torch
    from torch._inductor import config

    original = module.maybe_disable_comprehensive_padding

    def maybe_disable_comprehensive_padding(example_inputs: Sequence[Any]) -> Any:
        # CUDA may be beside: what counts is where this graph runs.
        devices = {t.device for t in example_inputs if isinstance(t, torch.Tensor) and t.device.type != "cpu"}
        cpus = all(d.type == "xpu" and torch.xpu.get_device_properties(d).type == "cpu" for d in devices)
        if devices and cpus and config.comprehensive_padding and config.disable_padding_cpu:
            return config.patch(comprehensive_padding=False)
        return original(example_inputs)

    module.__dict__["maybe_disable_comprehensive_padding"] = maybe_disable_comprehensive_padding


def _asks_for_templates(config: Any) -> bool:
    """Do the backends that autotuning may choose from leave nothing but Triton's templates?

    In-tree Inductor makes none on a small device, and then has no choice at all ("NoValidChoicesError").
    """
    asked = (config.max_autotune_gemm_backends, config.max_autotune_conv_backends)
    names = [{name.strip().upper() for name in backends.split(",")} for backends in asked]
    return any("TRITON" in each and "ATEN" not in each for each in names)


def no_gpu_estimates(module: ModuleType) -> None:
    """Keep ``torch._inductor.utils`` from measuring a CPU device by a GPU's yardsticks, and from warning that it fails.

    Without a figure for its peak a kernel's time is estimated by the bytes it moves, and products are oneDNN's.
    """
    import torch

    big, peak = module.is_big_gpu, module.get_device_tflops

    def is_big_gpu(index_or_device: int | torch.device = 0) -> bool:
        if _asks_for_templates(module.config):
            return True
        return not only_cpu_devices() and bool(big(index_or_device))

    def get_device_tflops(dtype: torch.dtype) -> float:
        return 0.0 if only_cpu_devices() else float(peak(dtype))

    module.__dict__.update(is_big_gpu=is_big_gpu, get_device_tflops=get_device_tflops)


def sums_without_atomics(module: ModuleType) -> None:
    """Make ``torch._inductor.utils`` leave ``scatter_add`` to the eager kernel on a CPU device.

    A generated kernel adds by atomics there, each a loop of compare-and-swap; the eager one gives each work-item lines
    of its own. In-tree Inductor does the same for CPU tensors.
    """
    import torch

    original = module.use_scatter_fallback

    def use_scatter_fallback(
        op_overload: torch._ops.OpOverload,
        reduction_type: str | None,
        self_dtype: torch.dtype,
        src_dtype: torch.dtype,
        src_device_type: str,
        src_is_tensor: bool,
    ) -> bool:
        sums = op_overload.overloadpacket == torch.ops.aten.scatter_reduce_ and reduction_type == "sum"
        if sums and src_is_tensor and src_device_type == "xpu" and only_cpu_devices():
            return True
        return bool(original(op_overload, reduction_type, self_dtype, src_dtype, src_device_type, src_is_tensor))

    module.__dict__["use_scatter_fallback"] = use_scatter_fallback


def only_cpu_devices() -> bool:
    import torch

    if torch.cuda.is_available() or not torch.xpu.is_available():
        return False
    return bool(torch.xpu.get_device_properties().type == "cpu")


def never_pad_products(module: ModuleType) -> None:
    """Keep ``torch._inductor.fx_passes.pad_mm`` from timing padded matrix products on a CPU device.

    Padding serves a GPU's alignment rules; oneDNN on a CPU handles ragged sizes itself.
    """
    import torch

    original = module.check_device

    def check_device(a: torch.Tensor, b: torch.Tensor) -> bool:
        if not original(a, b):
            return False
        forced = torch._inductor.config.force_shape_pad
        return bool(forced or not a.is_xpu or torch.xpu.get_device_properties(a.device).type != "cpu")

    module.__dict__["check_device"] = check_device
