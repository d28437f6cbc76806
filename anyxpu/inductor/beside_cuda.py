"""What in-tree code takes for granted: that a process has CUDA or xpu, but not both. Where only one is, this changes
nothing it answers."""

from __future__ import annotations

from types import ModuleType

import torch

from anyxpu.runtime import accelerator


def fake_tensors(module: ModuleType) -> None:
    """Let ``FakeTensorMode`` work in a torch built with CUDA; it refuses where it sees xpu beside it."""
    original = module.FakeTensorMode.avoid_device_init

    def avoid_device_init(mode: object) -> bool:
        if not torch.cuda._is_compiled():
            return bool(original.fget(mode))
        return not (torch.cuda.is_available() or torch.xpu.is_available())

    module.FakeTensorMode.avoid_device_init = property(avoid_device_init, doc=original.__doc__)


def gpu_type(module: ModuleType) -> None:
    """Let Inductor's question for the one kind of GPU have an answer with both: the accelerator."""
    module.__dict__["get_gpu_type"] = _with_both(module.get_gpu_type)


def default_gpu_type(module: ModuleType) -> None:
    """The same of what its tuners ask."""
    module.__dict__["_get_default_gpu_device_type"] = _with_both(module._get_default_gpu_device_type)


def _with_both(original: object) -> object:
    def gpu_type() -> str:
        if torch.cuda.is_available() and torch.xpu.is_available():
            return accelerator.wanted()
        return str(original())  # type: ignore[operator]

    return gpu_type
