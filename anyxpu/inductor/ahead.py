"""Inductor's C++ wrappers on xpu, ahead of time or not: they are not there yet, and that is what is said."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def refuse(module: ModuleType) -> None:
    """Change ``torch._inductor.cpp_builder``: C++ for xpu is refused for what is missing."""
    original = module.get_cpp_torch_device_options  # type: ignore[attr-defined]

    def get_cpp_torch_device_options(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "xpu":
            raise NotImplementedError(
                "anyxpu: AOTInductor and torch._inductor.config.cpp_wrapper do not serve xpu yet: the C++ that they "
                "generate needs parts of an XPU build of torch that anyxpu does not supply. torch.compile without "
                "cpp_wrapper works; its kernels persist in Inductor's cache; torch.export saves a program alone"
            )
        return original(device_type, *args, **kwargs)

    module.__dict__["get_cpp_torch_device_options"] = get_cpp_torch_device_options
