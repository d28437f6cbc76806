"""Triton's compiler plugin for target ``xpu``: TTIR → TTGIR → OpenCL C → the device's own code.

The stages' names are the extensions of their files in Triton's cache, and the keys of ``kernel.asm``.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget

from anyxpu import ocloc, processor, simulate
from anyxpu.cache import cache_dir, digest, write_file
from anyxpu.errors import CacheError, KernelError, UnsupportedOperation
from anyxpu.triton import extra, identity, lower, matrix, native

_log = logging.getLogger(__name__)

# Triton imports this module while it looks for its backends, so that from then on ours has the name that Intel's has.
extra.offer(sys.modules["triton.backends"])

# Inductor looks for an xpu kernel's binary under this name; on the CPU device it holds the CPU driver's own code.
BINARY_EXT = "zebin"


class _BinaryExtension(str):
    """Triton reads a kernel's files as text, all but the one whose extension equals this; SPIR-V is binary as well."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) or other == "spv"

    __hash__ = str.__hash__


@dataclass(frozen=True)
class Options:
    """What a kernel is compiled with; every field is part of its cache key.

    ``num_warps`` sub-groups of ``warp_size`` work-items make a work-group. On a CPU device one core runs a whole
    work-group, so that more than one sub-group would only split its loops: there ``num_warps`` becomes 1 unless
    ``keep_warps`` is set. ``matrix_engine``, for tests, has a CPU device do products as GPUs do whose engine takes
    sub-groups of so many lanes (8 or 16).
    ``avx512``: on a CPU device, tensors are transposed by assembly with its registers, where there are any.
    ``amx``: likewise, products of bfloat16 and of bytes by its tile registers, where there are any.
    ``num_stages``: in a loop with products on a GPU's matrix engine, their operands are fetched into the cache
    ``num_stages - 1`` iterations before they are loaded.
    ``num_ctas`` and the other fields of Triton's own backends are accepted.
    """

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 2
    warp_size: int = 16
    keep_warps: bool = False
    matrix_engine: int = 0
    avx512: bool = False
    amx: bool = False
    maxnreg: int | None = None
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    generate_native_code: bool = False
    grf_mode: str = "default"
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e4nv", "fp8e5", "fp8e4b15")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[tuple[str, str], ...] = ()
    debug: bool = False
    backend_name: str = "intel"
    arch: str = ""
    sanitize_overflow: bool = False
    instrumentation_mode: str = ""
    ir_override: str | None = None

    def __post_init__(self) -> None:
        check_warps(self.num_warps)
        if self.matrix_engine not in (0, 8, 16):
            raise ValueError(f"matrix_engine must be 0, 8 or 16, not {self.matrix_engine}")
        native.check_mode(self.grf_mode)

    def hash(self) -> str:
        return hashlib.sha256(repr(sorted(vars(self).items())).encode()).hexdigest()


_OPTION_NAMES = frozenset(f.name for f in fields(Options))


def check_warps(count: int) -> None:
    """Raise ValueError unless it is a power of two."""
    if count < 1 or count & (count - 1):
        raise ValueError(f"num_warps must be a power of two, not {count}")


@functools.cache
def _is_tritons(name: str) -> bool:
    """Is the option one that this Triton gives each launch out of its own knobs, and that we have no use for?"""
    known = hasattr(knobs.compilation, name)
    if known:
        _log.debug("anyxpu ignores Triton's option %s", name)
    return known


@functools.cache
def _compiler_pass(group: str, name: str) -> Callable[[Any], None]:
    """A pass of Triton's; nothing where this Triton has none of that name, as what it did is then done elsewhere."""
    found = getattr(getattr(passes, group), name, None)
    if found is None:
        _log.debug("this Triton has no pass %s.%s; anyxpu goes on without it", group, name)
        return lambda pm: None
    return found  # type: ignore[no-any-return]


def device_kind(target: GPUTarget) -> str:
    """What the target's code runs on: ``cpu``, or an Intel GPU's short name (``bmg``, ``pvc``, …; ``gpu`` if unknown).

    ``target.arch`` is a device's capability dictionary, or names a device: ``{"device": "cpu"}``.
    """
    arch = target.arch
    if not isinstance(arch, dict):
        return "cpu"
    return str(arch.get("device") or arch.get("target") or arch.get("type") or "cpu")


def _device_version(target: GPUTarget) -> str:
    """What of the target changes the native code's bits, or what is chosen by running it."""
    keys = ("name", "platform_name", "driver_version", "version", "architecture")
    arch = target.arch if isinstance(target.arch, dict) else {}
    # Where kernels do not execute they are not timed, so that a real device has to choose anew.
    simulated = ["simulated"] if simulate.active() else []
    return "-".join([str(arch.get(k, "")) for k in keys] + simulated)


class IntelBackend(BaseBackend):
    """Compiles for Intel devices, and for whatever else an anyxpu driver answers for."""

    binary_ext = _BinaryExtension(BINARY_EXT)

    def __init__(self, target: GPUTarget) -> None:
        from anyxpu.triton import kernel_cache  # which needs Triton's runtime, and that imports this module

        super().__init__(target)
        kernel_cache.install()

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "xpu"

    def hash(self) -> str:
        kind = device_kind(self.target)
        # Whoever makes the native code: the CPU's driver, the GPU's (its version is in _device_version), or ocloc.
        maker = identity.host() if kind == "cpu" else "driver" if self._driver_compiles() else ocloc.version()
        if kind != "cpu" and ocloc.is_asked_for():
            maker += "-alone"
        return f"anyxpu-{'-'.join((identity.compiler(), maker, kind, _device_version(self.target)))}"

    def parse_options(self, opts: dict[str, Any]) -> Options:
        values = {k: v for k, v in opts.items() if k in _OPTION_NAMES and v is not None}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        # Inductor passes 32 for want of a property to read; the sub-group's size is ours to choose.
        values["warp_size"] = lower.warp_size(self.target.arch)
        values.setdefault("arch", device_kind(self.target))
        if isinstance(values.get("extern_libs"), dict):
            values["extern_libs"] = tuple(sorted(values["extern_libs"].items()))
        here = device_kind(self.target) == "cpu" and values["warp_size"] == lower.WARP_SIZE
        values["avx512"] = here and processor.long_vectors() and values.get("avx512", True)
        values["amx"] = values["avx512"] and processor.tiles() and values.get("amx", True)
        check_warps(values.get("num_warps", 1))
        if device_kind(self.target) == "cpu" and not values.get("keep_warps"):
            values["num_warps"] = 1
        parsed = Options(**values)
        # Triton refuses a launch with a keyword that is neither a parameter's nor an option's.
        vars(parsed).update({k: v for k, v in opts.items() if k not in _OPTION_NAMES and _is_tritons(k)})
        return parsed

    def add_stages(self, stages: dict[str, Any], options: Options, language: Any = None) -> None:
        stages["ttir"] = lambda src, metadata: self.make_ttir(src, metadata, options)
        stages["ttgir"] = lambda src, metadata: self.make_ttgir(src, metadata, options)
        stages["cl"] = lambda src, metadata: self.make_cl(src, metadata, options)
        if device_kind(self.target) == "cpu":
            stages[BINARY_EXT] = lambda src, metadata: self.make_cpu_code(src, metadata, options)
        elif self._driver_compiles():
            stages[BINARY_EXT] = lambda src, metadata: self.make_driver_code(src, metadata, options)
        else:
            stages["spv"] = lambda src, metadata: self.make_spirv(src, metadata)
            stages[BINARY_EXT] = lambda src, metadata: self.make_gpu_code(src, metadata, options)

    def load_dialects(self, context: Any) -> None:
        """Triton's own dialects are all that is needed."""

    def get_module_map(self) -> dict[str, ModuleType]:
        """Modules that kernels name -> those they get: every vendor's libdevice is ours."""
        from anyxpu.triton import libdevice

        return {f"triton.language.extra.{name}libdevice": libdevice for name in ("", "cuda.", "hip.")}

    def get_codegen_implementation(self, options: Options) -> dict[str, Any]:
        from anyxpu.triton import custom_types  # which needs Triton's language, and that imports this module

        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1), "convert_custom_types": custom_types.convert}

    def pack_metadata(self, metadata: Any) -> tuple[int, ...]:
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    # --- stages

    @staticmethod
    def make_ttir(mod: Any, metadata: dict[str, Any], options: Options) -> Any:
        mod = _all_inline(mod)
        pm = ir.pass_manager(mod.context)
        pm.enable_debug()
        _compiler_pass("common", "add_inliner")(pm)
        _compiler_pass("ttir", "add_rewrite_tensor_pointer")(pm)
        _compiler_pass("ttir", "add_rewrite_tensor_descriptor_to_pointer")(pm)
        _compiler_pass("common", "add_canonicalizer")(pm)
        _compiler_pass("ttir", "add_combine")(pm)
        _compiler_pass("ttir", "add_reorder_broadcast")(pm)
        _compiler_pass("common", "add_cse")(pm)
        _compiler_pass("common", "add_symbol_dce")(pm)
        _compiler_pass("ttir", "add_loop_unroll")(pm)
        pm.run(mod, "make_ttir")
        return mod

    def make_ttgir(self, mod: Any, metadata: dict[str, Any], options: Options) -> Any:
        lanes = options.matrix_engine or lower.MATRIX_LANES.get(device_kind(self.target), options.warp_size)
        if lanes != options.warp_size and matrix.has_products(str(mod), lanes):
            metadata["warp_size"] = lanes  # the whole kernel is compiled for one size of sub-groups
        pm = ir.pass_manager(mod.context)
        pm.enable_debug()
        passes.ttir.add_convert_to_ttgpuir(pm, "xpu", options.num_warps, metadata["warp_size"], options.num_ctas)
        _compiler_pass("ttgpuir", "add_coalesce")(pm)
        _compiler_pass("ttgpuir", "add_remove_layout_conversions")(pm)
        if "tt.gather" not in str(mod):  # of some gathers the pass of Triton 3.7 makes layouts that it then rejects
            _compiler_pass("ttgpuir", "add_optimize_thread_locality")(pm)
        _compiler_pass("ttgpuir", "add_remove_layout_conversions")(pm)
        _compiler_pass("ttgpuir", "add_reorder_instructions")(pm)
        _compiler_pass("ttir", "add_triton_licm")(pm)
        _compiler_pass("common", "add_cse")(pm)
        _compiler_pass("common", "add_symbol_dce")(pm)
        _compiler_pass("common", "add_canonicalizer")(pm)
        pm.run(mod, "make_ttgir")
        metadata["name"] = mod.get_entry_func_name()
        return mod

    def make_cl(self, mod: Any, metadata: dict[str, Any], options: Options) -> str:
        text = mod.str_nodebug()
        try:
            dialect = lower.dialect_of(device_kind(self.target), options.matrix_engine, options.avx512, options.amx)
            rendered = lower.render(text, dialect, options.enable_fp_fusion, options.num_stages)
        except UnsupportedOperation as error:
            raise UnsupportedOperation(f"{error} (its TTGIR: {_keep(metadata, 'ttgir', text)})") from error
        except Exception as error:
            path = _keep(metadata, "ttgir", text)
            message = f"anyxpu could not print it as OpenCL C, which is a bug: {type(error).__name__}: {error}"
            raise KernelError(str(metadata.get("name", "")), path, message) from error
        metadata["name"] = rendered.name
        metadata["shared"] = rendered.shared_bytes
        metadata["work"], metadata["work_once"] = rendered.work, rendered.once
        metadata["assertions"] = rendered.assertions
        metadata["makes_addresses"], metadata["reads"] = rendered.makes_addresses, rendered.reads
        metadata["rounding"] = native.ROUNDING if lower.rounds_to_nearest(rendered.text) else ""
        # Of a TTGIR file they are the file's, whatever the options for this device would be.
        metadata["num_warps"], metadata["warp_size"] = rendered.warps, rendered.lanes
        limit = self.target.arch.get("local_mem_size", 0) if isinstance(self.target.arch, dict) else 0
        if limit and rendered.shared_bytes > limit:
            from triton.runtime.errors import OutOfResources

            # What Triton says when it loads such a kernel; a GPU's compiler would refuse it before, in fewer words.
            raise OutOfResources(rendered.shared_bytes, limit, "shared memory")
        return rendered.text

    def make_cpu_code(self, source: str, metadata: dict[str, Any], options: Options) -> bytes:
        """Build the OpenCL C for the CPU device; its log goes into the error, the source stays on disk."""
        from anyxpu.triton import count_compilation
        from anyxpu.triton.driver import native_code

        dialect = lower.dialect_of(device_kind(self.target))
        count_compilation(metadata["name"])
        try:
            return native_code(source, dialect.options, metadata["name"], _work_items(metadata))
        except RuntimeError as error:
            path = _keep(metadata, "cl", source)
            raise KernelError(metadata["name"], path, f"the device's compiler refused it: {error}") from error

    def make_driver_code(self, source: str, metadata: dict[str, Any], options: Options) -> bytes:
        """OpenCL C to native code, in this process, by the driver of the GPU that is here."""
        from anyxpu.triton import count_compilation
        from anyxpu.triton.driver import native_code

        name, work_items = metadata["name"], _work_items(metadata)

        def compile(flags: str) -> bytes:
            return native_code(source, f"{lower.INTEL_GPU.options} {flags}".rstrip(), name, work_items)

        count_compilation(name)
        try:
            made = native.choose(
                compile, lower.c_name(name), options.grf_mode, metadata["num_warps"], metadata["rounding"]
            )
        except RuntimeError as error:
            said = f"the GPU's driver refused it: {error}"
            if self._lacks_doubles() and "cl_khr_fp64" in said:
                # The words are those of a real XPU build; the compiler's own come once for each use of the type.
                said = "Required aspect fp64 is not supported on the device: its has_fp64 is False. Use float32"
            raise KernelError(name, _keep(metadata, "cl", source), said) from error
        metadata.update(n_spills=made.spills, n_regs=made.registers, build_flags=made.flags)
        return made.code

    def make_spirv(self, source: str, metadata: dict[str, Any]) -> bytes:
        """OpenCL C to SPIR-V, by Intel's offline compiler."""
        from anyxpu.triton import count_compilation

        kind = device_kind(self.target)
        count_compilation(metadata["name"])
        try:
            if self._is_named():
                _check_target(metadata["name"], kind)
                return ocloc.spirv(source, kind, lower.INTEL_GPU.options)
            return native.spirv(source, kind, lower.INTEL_GPU.options)
        except ocloc.OclocError as error:
            raise KernelError(metadata["name"], _keep(metadata, "cl", source), str(error)) from error

    def make_gpu_code(self, module: bytes, metadata: dict[str, Any], options: Options) -> bytes:
        """Native code of SPIR-V: by ocloc where that was asked for or the target is another machine's, else by the
        driver of the GPU that is here.
        """
        name, kind = metadata["name"], device_kind(self.target)
        if self._wants_ocloc(options):
            _check_target(name, kind)

            def compile(flags: str) -> bytes:
                return ocloc.zebin(module, kind, flags)
        else:
            from anyxpu.triton.driver import finish

            work_items = _work_items(metadata)

            def compile(flags: str) -> bytes:
                return finish(module, flags, name, work_items)

        try:
            made = native.choose(
                compile, lower.c_name(name), options.grf_mode, metadata["num_warps"], metadata["rounding"]
            )
        except RuntimeError as error:
            raise KernelError(name, "", str(error)) from error
        metadata.update(n_spills=made.spills, n_regs=made.registers, build_flags=made.flags)
        return made.code

    def _is_named(self) -> bool:
        """Is the target named, and so need not be here?"""
        return isinstance(self.target.arch, dict) and "device" in self.target.arch

    def _driver_compiles(self) -> bool:
        """Does the driver of the target, which is here, take OpenCL C?"""
        return (
            isinstance(self.target.arch, dict)
            and not self._is_named()
            and self.target.arch.get("compiles_opencl_c", False)
        )

    def _lacks_doubles(self) -> bool:
        """Does the device that is here say that it does not compute in double precision?"""
        return isinstance(self.target.arch, dict) and self.target.arch.get("has_fp64") is False

    def _wants_ocloc(self, options: Options) -> bool:
        asked = options.generate_native_code or os.environ.get("TRITON_XPU_GEN_NATIVE_CODE") == "1"
        return self._is_named() or asked or ocloc.is_asked_for()


def _check_target(name: str, kind: str) -> None:
    """Raise KernelError unless ocloc is known to make native code for that device."""
    if kind not in ocloc.TARGETS:
        known = ", ".join(ocloc.TARGETS)
        raise KernelError(name, "", f"there is no native code for the device {kind!r}; known are {known}")


def _work_items(metadata: dict[str, Any]) -> int:
    return int(metadata["num_warps"] * metadata["warp_size"])


def _all_inline(mod: Any) -> Any:
    """The module without ``noinline``, which asks for separate code and not for another meaning: all is one kernel."""
    text = str(mod)
    if "noinline = true" not in text:
        return mod
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text.replace("noinline = true", "noinline = false"))
        file.flush()
        parsed = ir.parse_mlir_module(file.name, mod.context)
    parsed.context = mod.context
    return parsed


def _keep(metadata: dict[str, Any], extension: str, text: str) -> str:
    """Leave the source of a kernel that failed where its user can read it; the path, or "" where it cannot be kept."""
    try:
        path = cache_dir("failed") / f"{str(metadata.get('name', 'kernel'))[:100]}-{digest(text)[:12]}.{extension}"
        write_file(path, text.encode())
    except CacheError:
        return ""
    return str(path)
