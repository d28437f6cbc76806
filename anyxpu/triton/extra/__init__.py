"""What Intel's own build of Triton carries in ``triton.language.extra``: kernels written for it name it by that."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any


def offer(module: ModuleType) -> None:
    """Have ``triton.language.extra`` find its package ``intel`` here, unless this Triton has one."""
    if hasattr(module, "intel"):
        return
    module.__path__.append(str(Path(__file__).parent))

    def __getattr__(name: str) -> Any:  # tl.extra.intel, without an import of it
        if name == "intel":
            return importlib.import_module(f"{module.__name__}.intel")
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
