"""What in-tree Inductor lacks for these devices, and in wheels without XPU.

Nothing of Inductor is imported here. :func:`register` puts in the C functions that a wheel without XPU lacks, and
leaves a finder on ``sys.meta_path`` that waits for the modules named in :data:`_CHANGES`, to change them right after
they are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from anyxpu import simulate

Change = Callable[[ModuleType], None]


def _decompositions(module: ModuleType) -> None:
    from anyxpu.inductor import decompositions

    decompositions.apply(module)


def _heuristics(module: ModuleType) -> None:
    from anyxpu.inductor import heuristics

    heuristics.apply_to_autotuner(module)
    _fast_launcher(module)


def _fast_launcher(module: ModuleType) -> None:
    from anyxpu.triton import static_launch

    original = getattr(module.CachingAutotuner, "_build_fast_launcher", None)
    if original is None:  # older Inductors have none for any device
        return

    def build(self: object, launcher: object) -> object:
        return static_launch.fast_launcher(self, launcher) or original(self, launcher)

    module.CachingAutotuner._build_fast_launcher = build


def _padding(module: ModuleType) -> None:
    from anyxpu.inductor import heuristics

    heuristics.never_pad_products(module)


def _static_launcher(module: ModuleType) -> None:
    import torch

    from anyxpu.triton.static_launch import StaticXpuLauncher

    setattr(torch._C, "_StaticXpuLauncher", StaticXpuLauncher)  # noqa: B010 - a stub annotates it as another class


def _compile_workers(module: ModuleType) -> None:
    """Keep the driver out of the process that compile workers are forked from.

    Before it forks, that process asks every device for its properties, which would start the driver there; a child
    of a fork cannot use a driver that its parent started. The workers get the properties they need with each job.
    """

    original = module.caching_device_properties

    def caching_device_properties() -> None:
        import torch
        from torch._dynamo.device_interface import CudaInterface

        from anyxpu.shim import lib

        if lib().started():
            original()
        elif torch.cuda.is_available():
            CudaInterface.Worker.get_device_properties()

    module.__dict__["caching_device_properties"] = caching_device_properties


def _graph_cache(module: ModuleType) -> None:
    from anyxpu.inductor import caches

    caches.depend_on_devices(module)


def _fake_tensors(module: ModuleType) -> None:
    from anyxpu.inductor import beside_cuda

    beside_cuda.fake_tensors(module)


def _benchmarking(module: ModuleType) -> None:
    from anyxpu.inductor import beside_cuda

    beside_cuda.gpu_type(module)
    if simulate.active():
        from anyxpu.inductor import untimed

        untimed.benchmarkers(module)


def _utils(module: ModuleType) -> None:
    from anyxpu.inductor import beside_cuda, heuristics

    beside_cuda.gpu_type(module)
    heuristics.no_gpu_estimates(module)
    heuristics.sums_without_atomics(module)
    if simulate.active():
        from anyxpu.inductor import untimed

        untimed.profiled_benchmark(module)


def _choices(module: ModuleType) -> None:
    from anyxpu.inductor import heuristics

    heuristics.longer_rows(module)


# module -> what is done to it once it has been imported
_CHANGES: dict[str, Change] = {
    "torch._inductor.async_compile": _compile_workers,
    "torch._inductor.choices": _choices,
    "torch._inductor.codecache": _graph_cache,
    "torch._inductor.decomposition": _decompositions,
    "torch._inductor.fx_passes.pad_mm": _padding,
    "torch._inductor.runtime.benchmarking": _benchmarking,
    "torch._inductor.runtime.static_triton_launcher": _static_launcher,
    "torch._inductor.runtime.triton_heuristics": _heuristics,
    "torch._inductor.utils": _utils,
    "torch._subclasses.fake_tensor": _fake_tensors,
}


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the change."""

    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.change(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = _CHANGES.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)  # type: ignore[arg-type]
        return spec


def register() -> None:
    """Arrange for the changes; a module that is already imported is changed at once. Calling it again does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    import torch

    from anyxpu.shim import lib

    torch._C._dynamo.guards.__dict__["_empty_strided_xpu"] = lib()._empty_strided_xpu
    sys.meta_path.insert(0, _Finder())
    for name, change in _CHANGES.items():
        module = sys.modules.get(name)
        if module is not None:
            change(module)
