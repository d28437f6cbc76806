"""What anyxpu changes in torch's own Python: one table, and how each change is made or left out.

A change needs names that are torch's or Inductor's internals, which may be gone in another version. Then that change is
left out with one warning, and everything else goes on. The modules that are changed are mostly Inductor's, which
nobody should wait for who does not compile: a finder on ``sys.meta_path`` changes each right after its import.

The table needs the standard library alone, so that ``anyxpu doctor`` can print it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from anyxpu import simulate, supported


@dataclass(frozen=True)
class Patch:
    """One change.

    Attributes:
        name: what it is called in warnings and by ``anyxpu doctor``.
        module: whose names are changed.
        needs: what that module must have, dotted; every one of them.
        change: ``module:function`` of ours that makes the change, called with the module.
        why: what torch does by itself.
        without: what is lost where the change is left out.
        since, until: the minor versions of torch that it is for; "" is no bound.
        simulated: is it for simulated GPUs alone?
        otherwise: ``module:function`` of ours, called where the change is left out, so that torch does without it.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    change: str
    why: str
    without: str
    since: str = ""
    until: str = ""
    simulated: bool = False
    otherwise: str = ""

    def is_for(self, torch_version: str) -> bool:
        """Is the change made in a process like this one with such a torch?"""
        return (not self.simulated or bool(simulate.active())) and supported.within(
            torch_version, self.since, self.until
        )


_INDUCTOR = "torch._inductor"

TABLE: tuple[Patch, ...] = (
    Patch(
        "printing",
        "torch._tensor_str",
        ("_tensor_str", "get_summarized_data", "PRINT_OPTS.threshold", "PRINT_OPTS.edgeitems"),
        "anyxpu.ops.printing:install",
        "torch formats a tensor by dozens of operators on its own device",
        "printing a tensor is slower",
    ),
    Patch(
        "telemetry",
        "torch.xpu",
        ("get_device_properties",),
        "anyxpu.runtime.telemetry:install",
        "torch.xpu.clock_rate and its siblings ask Level Zero Sysman, which only Intel GPUs have",
        "they raise on a CPU device",
    ),
    Patch(
        "device-index",
        "torch.xpu._utils",
        ("_get_device_index", "_torch_get_device_index"),
        "anyxpu.runtime.device_index:of_xpu",
        "torch.xpu's functions that are given no device ask CUDA for its current one, where there is a CUDA device",
        "beside a CUDA device torch.xpu.synchronize(), current_stream() and others mean xpu's device of CUDA's number",
    ),
    Patch(
        "accelerator",
        "torch._C",
        ("_get_accelerator",),
        "anyxpu.runtime.accelerator:install",
        "a torch built for CUDA takes CUDA for its accelerator, with or without a CUDA device",
        "in a torch built for CUDA, torch.accelerator does not become xpu before xpu is used",
    ),
    Patch(
        "xccl",
        "torch.distributed.distributed_c10d",
        (
            "_XCCL_AVAILABLE",
            "PrefixStore",
            "ProcessGroupGloo",
            "_create_process_group_wrapper",
            "_new_process_group_helper",
        ),
        "anyxpu.runtime.distributed:serve_xccl",
        "torch.distributed's backend for xpu is compiled into XPU wheels alone",
        'init_process_group needs backend="gloo" for xpu',
    ),
    Patch(
        "sharing",
        "torch.multiprocessing.reductions",
        ("reduce_storage", "rebuild_storage_fd", "rebuild_storage_filename", "fd_id", "shared_cache", "StorageWeakRef"),
        "anyxpu.runtime.sharing:share_storages",
        "torch.multiprocessing knows CPU and CUDA memory alone, and fails in the queue's own thread",
        "a tensor on xpu cannot be sent to another process, and the receiver waits for ever",
    ),
    Patch(
        "is-shared",
        "torch.storage",
        ("UntypedStorage.is_shared", "UntypedStorage.share_memory_"),
        "anyxpu.runtime.sharing:tell_what_is_shared",
        "all memory that is not the CPU's is said to be shared",
        "Tensor.is_shared() is always True on xpu, and share_memory_() does nothing",
    ),
    Patch(
        "profiler",
        "torch._C._autograd",
        ("_KinetoEvent.device_type", "_KinetoEvent.device_index"),
        "anyxpu.runtime.profiling:serve",
        "torch.profiler's recorder for xpu is compiled into XPU wheels alone; others take what a device did for CUDA's",
        "torch.profiler takes ProfilerActivity.XPU and records nothing for it",
    ),
    Patch(
        "profiler-toggle",
        "torch.autograd.profiler",
        ("_toggle_collection_dynamic",),
        "anyxpu.runtime.profiling:pause_too",
        "Kineto pauses CUDA's part of a profile alone",
        "profile.toggle_collection_dynamic(False, [ProfilerActivity.XPU]) goes on recording xpu",
    ),
    Patch(
        "outer-products",
        "torch._native.ops.bmm_outer_product.triton_impl",
        ("_register_for_dispatch_key",),
        "anyxpu.ops.natives:keep_products",
        "torch puts a Triton kernel of its own in the place of ours for bmm of one column by one row, on xpu too",
        "such a bmm of batches of two sizes is not refused, and reads behind the smaller one",
        since="2.14",
    ),
    Patch(
        "jagged-attention",
        "torch.nested._internal.sdpa",
        (
            "_select_sdp_backend",
            "_can_use_flash_sdpa_jagged",
            "_can_use_efficient_sdpa_jagged",
            "SDPAParams",
            "SDPBackend.FLASH_ATTENTION",
            "SDPBackend.EFFICIENT_ATTENTION",
        ),
        "anyxpu.ops.jagged:choose",
        "which form attention over jagged tensors takes is looked up among CUDA's",
        "it is composed of strided nested tensors, which the host serves",
    ),
    Patch(
        "scaled-shapes",
        "torch._meta_registrations",
        ("_check_scaled_mm_sizes", "device_hint"),
        "anyxpu.ops.scaled_shapes:of_products",
        "torch.compile takes those scales of _scaled_mm and scaled_mm alone that CUDA takes, and none of mxfp4",
        "torch.compile refuses mxfp4 in scaled_mm, scales by rows of mx and nvfp4, and ragged sizes",
    ),
    Patch(
        "scaled-groups-named",
        "torch.library",
        ("Library",),
        "anyxpu.ops.scaled_shapes:of_named_groups",
        "_scaled_grouped_mm_v2 has no kernel for meta tensors",
        "torch.compile fails on scaled_grouped_mm",
    ),
    Patch(
        "no-cpp-wrapper",
        f"{_INDUCTOR}.cpp_builder",
        ("get_cpp_torch_device_options",),
        "anyxpu.inductor.ahead:refuse",
        "AOTInductor and cpp_wrapper fail on xpu with words about a GPU driver that is not installed",
        "those words",
    ),
    Patch(
        "merged-products",
        f"{_INDUCTOR}.fx_passes.freezing_patterns",
        ("freezing_passes",),
        "anyxpu.inductor.merged:count",
        "Inductor does not count the products of frozen graphs that it makes one of",
        "they are missing where fusions are counted",
    ),
    Patch(
        "compile-workers",
        f"{_INDUCTOR}.async_compile",
        ("caching_device_properties",),
        "anyxpu.inductor.workers:keep_the_driver_out",
        "Inductor asks every device for its properties before it forks its workers, which starts the driver there",
        "compile workers may not use the device; TORCHINDUCTOR_COMPILE_THREADS=1 does without them",
    ),
    Patch(
        "longer-rows",
        f"{_INDUCTOR}.choices",
        ("InductorChoices.should_use_persistent_reduction",),
        "anyxpu.inductor.heuristics:longer_rows",
        "a GPU's registers bound the rows that a reduction keeps whole",
        "reductions over long rows read them twice on a CPU device",
    ),
    Patch(
        "attention-tiles",
        f"{_INDUCTOR}.choices",
        ("InductorChoices.get_flex_attention_fwd_configs", "InductorChoices.get_flex_decode_configs"),
        "anyxpu.inductor.attention_tiles:for_devices",
        "the blocks of flex_attention for XPU were chosen for another compiler",
        "flex_attention spills on Intel GPUs, and with long heads of float32 does not compile for Xe-HPG",
    ),
    Patch(
        "graph-caches",
        f"{_INDUCTOR}.codecache",
        ("CacheBase.get_system",),
        "anyxpu.inductor.caches:depend_on_devices",
        "the caches of compiled graphs depend on CUDA's devices alone",
        "a graph cached for another device or version of anyxpu may be taken; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 "
        "does without the caches",
    ),
    Patch(
        "graphs-await-kernels",
        f"{_INDUCTOR}.output_code",
        ("CompiledFxGraph.post_compile",),
        "anyxpu.inductor.awaiting:kernels",
        "a compiled graph's operators do not know that they are called by one",
        "on a CPU device the host may serve them at first, while their kernels are built",
    ),
    Patch(
        "embedding-backward",
        f"{_INDUCTOR}.decomposition",
        ("decompositions",),
        "anyxpu.inductor.decompositions:apply",
        "embedding_dense_backward is left to an eager kernel on xpu",
        "that operator leaves compiled graphs for the host",
    ),
    Patch(
        "small-sums",
        f"{_INDUCTOR}.lowering",
        ("needs_fallback_due_to_atomic_add_limitations",),
        "anyxpu.inductor.lowerings:no_small_atomics",
        "index_add of 8- and 16-bit integers becomes a kernel with atomics that Triton does not have",
        "such a graph fails to compile",
    ),
    Patch(
        "pool-backward",
        f"{_INDUCTOR}.lowering",
        ("lowerings", "TensorBox"),
        "anyxpu.inductor.lowerings:pool_backward",
        "the gradient of max_pool2d is left to an eager kernel on xpu",
        "that operator leaves compiled graphs for the host",
        since="2.14",
    ),
    Patch(
        "product-epilogues",
        f"{_INDUCTOR}.codegen.common",
        ("register_backend_for_device", "custom_backend_passes"),
        "anyxpu.inductor.passes:offer",
        "what follows a product or a convolution on a GPU, the bias too, is left to a kernel that reads it again, and "
        "weights of 8 bits are written wider before each product",
        "compiled linear layers and convolutions are slower, by a pass over their results, or over a layer's weights "
        "where those are narrow",
    ),
    Patch(
        "conv-epilogues",
        f"{_INDUCTOR}.kernel.conv",
        ("conv_layout", "ir.ExternKernel.require_stride_order", "ir.NHWC_STRIDE_ORDER"),
        "anyxpu.inductor.convolutions:lower",
        "there is no lowering for a convolution with what follows it, but for frozen graphs",
        "compiled convolutions are slower, by a pass over their results",
    ),
    Patch(
        "conv-epilogues-layout",
        f"{_INDUCTOR}.graph",
        ("is_mkldnn_conv",),
        "anyxpu.inductor.convolutions:prefer_channels_last",
        "such convolutions are none when layouts are decided on",
        "compiled convolutions are slower, as their activations are contiguous",
    ),
    Patch(
        "product-operands",
        f"{_INDUCTOR}.mkldnn_lowerings",
        ("register_onednn_fusion_ops",),
        "anyxpu.inductor.epilogues:as_they_are",
        "weights of fused linear layers are made contiguous, as the CPU's kernels want them",
        "compiled linear layers are slower, as without product-epilogues",
    ),
    Patch(
        "conv-weights",
        f"{_INDUCTOR}.kernel.conv",
        ("convolution", "ir.ExternKernel.require_stride_order", "ir.ExternKernel.realize_input"),
        "anyxpu.inductor.lowerings:weights_as_they_are",
        "every call of a graph permutes the weights of its convolutions to channels-last",
        "compiled convolutions are slower, by a pass over their weights",
    ),
    Patch(
        "scaled-products",
        f"{_INDUCTOR}.kernel.mm",
        ("tuned_scaled_mm_v2",),
        "anyxpu.inductor.lowerings:scaled_products_as_named",
        "scaled_mm becomes _scaled_mm, which takes other shapes for scales of blocks",
        "compiled scaled_mm with scales of blocks fails",
        since="2.13",
    ),
    Patch(
        "saved-conv-weights",
        f"{_INDUCTOR}.graph",
        ("GraphLowering.find_nodes_prefer_channels_last",),
        "anyxpu.inductor.lowerings:saved_weights_as_they_are",
        "a graph permutes the weights of its convolutions to channels-last for its backward",
        "training of compiled convolutions is slower, by a pass over their weights",
    ),
    Patch(
        "index-room",
        f"{_INDUCTOR}.codegen.simd",
        ("SIMDScheduling.can_use_32bit_indexing",),
        "anyxpu.inductor.indexing:leave_room",
        "indices are i32 up to 2**31 - 1 elements, and sums of two of them overflow; and a guard says so of any size",
        "compiled roll, pad and their like are wrong between 2**30 and 2**31 elements; a compiled function of a view"
        " and its base is an IndexError of Dynamo's at another length",
    ),
    Patch(
        "rows-apart",
        f"{_INDUCTOR}.codegen.simd",
        ("SIMDScheduling.get_tiling_and_scores", "SIMDScheduling.tiling_is_compatible"),
        "anyxpu.inductor.rows:rows_apart",
        "a pointwise kernel has one index, and divides it for what it reads once for each row",
        "compiled gradients of losses over a large vocabulary take several times as long on a CPU device",
    ),
    Patch(
        "block-numbers",
        f"{_INDUCTOR}.codegen.triton_split_scan",
        ("TritonSplitScanKernel.scan", "TritonSplitScanKernel.iteration_ranges_get_pid"),
        "anyxpu.inductor.indexing:small_block_numbers",
        "a scan split over blocks does not compile where indices are i64",
        "compiled scans over 2**30 elements and more fail to compile",
    ),
    Patch(
        "wide-constants",
        f"{_INDUCTOR}.codegen.triton",
        ("TritonKernel.indexing", "IndexingOptions"),
        "anyxpu.inductor.indexing:wide_constants",
        "an index that is a constant is written as i32, also where it does not fit",
        "compiled negative indices into 2**31 elements and more are out of bounds",
    ),
    Patch(
        "no-padding",
        f"{_INDUCTOR}.fx_passes.pad_mm",
        ("check_device",),
        "anyxpu.inductor.heuristics:never_pad_products",
        "products of ragged sizes are padded and timed, as a GPU's alignment asks",
        "compiling such products takes longer on a CPU device",
    ),
    Patch(
        "no-padded-strides",
        f"{_INDUCTOR}.compile_fx",
        ("maybe_disable_comprehensive_padding", "config.comprehensive_padding", "config.disable_padding_cpu"),
        "anyxpu.inductor.heuristics:never_pad_strides",
        "buffers' strides are padded, as a GPU's alignment asks",
        "compiled graphs use more memory and gain nothing by it on a CPU device",
    ),
    Patch(
        "views-of-padded-strides",
        f"{_INDUCTOR}.ir",
        (
            "FlexibleLayout",
            "View.create",
            "View.resolve_negative_size",
            "View.dynamic_reshape_indexer",
            "as_storage_and_layout",
            "is_storage_and_layout",
        ),
        "anyxpu.inductor.views:wait_for_strides",
        "a view of a buffer may be written for padded strides that are not the buffer's in the end",
        "compiled gradients of group norms of channels-last images are wrong where strides are padded, as on a GPU",
    ),
    Patch(
        "tuners-beside-cuda",
        f"{_INDUCTOR}.runtime.benchmarking",
        ("_get_default_gpu_device_type",),
        "anyxpu.inductor.beside_cuda:default_gpu_type",
        "with CUDA and xpu in one process Inductor's tuners refuse to choose",
        "autotuning fails where CUDA is beside xpu",
        since="2.13",
    ),
    Patch(
        "untimed-tuners",
        f"{_INDUCTOR}.runtime.benchmarking",
        ("TritonBenchmarker.benchmark_gpu", "InductorBenchmarker.benchmark_gpu"),
        "anyxpu.inductor.untimed:benchmarkers",
        "tuners time kernels, which do not run on a simulated GPU",
        "autotuning on a simulated GPU takes long and chooses by chance",
        simulated=True,
    ),
    Patch(
        "static-launcher",
        f"{_INDUCTOR}.runtime.static_triton_launcher",
        ("StaticallyLaunchedXpuKernel",),
        "anyxpu.triton.static_launch:offer",
        "torch._C._StaticXpuLauncher is compiled into XPU wheels alone",
        "compiled graphs launch their kernels by Triton's slower way",
        otherwise="anyxpu.inductor.launchers:tritons_alone",
    ),
    Patch(
        "block-sizes",
        f"{_INDUCTOR}.runtime.triton_heuristics",
        ("cached_autotune", "HeuristicType.POINTWISE", "HeuristicType.REDUCTION", "HeuristicType.PERSISTENT_REDUCTION"),
        "anyxpu.inductor.heuristics:apply_to_autotuner",
        "block sizes are a GPU's, and several are compiled and timed",
        "compiling takes longer and kernels are slower on a CPU device",
    ),
    Patch(
        "fast-launcher",
        f"{_INDUCTOR}.runtime.triton_heuristics",
        ("CachingAutotuner._build_fast_launcher",),
        "anyxpu.triton.static_launch:launch_faster",
        "Inductor's fast launcher is CUDA's",
        "a compiled graph's kernels take microseconds longer to launch",
        since="2.13",
    ),
    Patch(
        "inductor-beside-cuda",
        f"{_INDUCTOR}.utils",
        ("get_gpu_type",),
        "anyxpu.inductor.beside_cuda:gpu_type",
        "with CUDA and xpu in one process Inductor refuses to choose",
        "torch.compile may fail where CUDA is beside xpu",
    ),
    Patch(
        "no-gpu-estimates",
        f"{_INDUCTOR}.utils",
        ("is_big_gpu", "get_device_tflops", "config.max_autotune_gemm_backends", "config.max_autotune_conv_backends"),
        "anyxpu.inductor.heuristics:no_gpu_estimates",
        "a device's peak is looked up among GPUs, and templates are kept from small ones",
        "warnings about unknown devices; no Triton templates for products where they are asked for",
    ),
    Patch(
        "sums-without-atomics",
        f"{_INDUCTOR}.utils",
        ("use_scatter_fallback",),
        "anyxpu.inductor.heuristics:sums_without_atomics",
        "scatter_add becomes a kernel with atomics, as on a GPU",
        "compiled scatter_add is slower on a CPU device",
    ),
    Patch(
        "untimed-profiler",
        f"{_INDUCTOR}.utils",
        ("do_bench_using_profiling",),
        "anyxpu.inductor.untimed:profiled_benchmark",
        "kernels are timed by a profiler, and do not run on a simulated GPU",
        "autotuning by profiler fails on a simulated GPU",
        simulated=True,
    ),
    Patch(
        "intel-extra",
        "triton.language.extra",
        ("__path__",),
        "anyxpu.triton.extra:offer",
        "triton.language.extra.intel is in Intel's own build of Triton alone",
        "kernels that were written for Intel's Triton and import libdevice from there do not import",
    ),
    Patch(
        "loop-bounds",
        "triton.compiler.code_generator",
        ("CodeGenerator.visit_For", "language.range", "language.core.tensor"),
        "anyxpu.triton.loop_bounds:widen",
        "Triton compares loop bounds of 2**31 and more, which it types as u32, as signed numbers",
        "loops up to a constant of 2**31 and more do not run: reductions over so many elements are wrong",
    ),
    Patch(
        "sorts-by-loops",
        "triton.compiler.code_generator",
        ("CodeGenerator.call_JitFunction",),
        "anyxpu.triton.sorting:by_loops",
        "sorts inside of a kernel are traced stage by stage into it",
        "kernels that sort take seconds to compile, on a GPU minutes",
    ),
    Patch(
        "operators-frames",
        "torch._dynamo.trace_rules",
        ("add", "BUILTIN_INLINE_WHEN_CALLED", "_module_dir"),
        "anyxpu.inductor.frames:leave_operators",
        "below a graph break Dynamo compiles every Python frame, those of operators written in Python too",
        "compiling takes longer where graphs break",
        since="2.13",
    ),
    Patch(
        "weight-gradients",
        "torch._subclasses.fake_impls",
        ("op_implementations_dict",),
        "anyxpu.inductor.gradients:like_weights",
        "a weight's gradient is predicted in the layout of the activations, and copied into the weight's in every step",
        "every step copies the gradients of convolutions' weights, where activations alone are channels-last",
        otherwise="anyxpu.inductor.gradients:as_predicted",
    ),
    Patch(
        "weight-gradients-order",
        f"{_INDUCTOR}.kernel.conv",
        ("conv_bwd_weight_layout", "conv_bwd_input_layout", "ir.get_stride_order", "ir.FlexibleLayout.stride_ordered"),
        "anyxpu.inductor.gradients:activations_as_they_are",
        "a graph permutes activations into the order of a weight's gradient",
        "training of compiled convolutions is slower, by two passes over their activations",
        since="2.13",
    ),
    Patch(
        "fake-tensors-beside-cuda",
        "torch._subclasses.fake_tensor",
        ("FakeTensorMode.avoid_device_init.fget",),
        "anyxpu.inductor.beside_cuda:fake_tensors",
        "FakeTensorMode refuses xpu in a torch built for CUDA",
        "torch.compile fails in a torch built for CUDA",
    ),
)

# name -> why the change was left out; "" of one that was made. Those whose module was not imported are not here.
_done: dict[str, str] = {}


def install() -> None:
    """Make the changes: at once in modules that are imported, in others after their import. Idempotent."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in dict.fromkeys(patch.module for patch in TABLE):
        module = sys.modules.get(name)
        if module is not None:
            _change(module)


def states() -> dict[str, str]:
    """How it went with each change whose module has been imported: "" if made, else why not."""
    return dict(_done)


def examine() -> dict[str, str]:
    """:func:`states` after importing every module of the table."""
    for name in dict.fromkeys(patch.module for patch in TABLE):
        try:
            importlib.import_module(name)
        except Exception as error:
            for patch in TABLE:
                if patch.module == name:
                    _done[patch.name] = f"{name} does not import: {type(error).__name__}: {error}"
    return states()


def apply(patch: Patch, module: ModuleType) -> str:
    """Make one change to ``module``.

    Returns:
        "" if it was made, else why not. A change that is for this torch and was not made is also a warning.
    """
    import torch

    version = str(torch.__version__)
    if not patch.is_for(version):
        return "for simulated GPUs alone" if patch.simulated else f"not for torch {version}"
    missing = [name for name in patch.needs if not _has(module, name)]
    if missing:
        reason = f"torch {version} has no {patch.module}.{', '.join(missing)}"
    else:
        try:
            _call(patch.change, module)
            return ""
        except Exception as error:
            reason = f"it does not fit torch {version} ({type(error).__name__}: {error})"
    if patch.otherwise:
        _call(patch.otherwise, module)
    warnings.warn(
        f"anyxpu leaves out its change {patch.name!r}: {reason}. What is lost: {patch.without}.", stacklevel=2
    )
    return reason


def _call(name: str, module: ModuleType) -> None:
    room, function = name.split(":")
    getattr(importlib.import_module(room), function)(module)


def _change(module: ModuleType) -> None:
    for patch in TABLE:
        if patch.module == module.__name__ and patch.name not in _done:
            _done[patch.name] = apply(patch, module)


def _has(found: object, dotted: str) -> bool:
    for name in dotted.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the changes."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _change(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(patch.module == fullname for patch in TABLE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[arg-type]
        return spec
