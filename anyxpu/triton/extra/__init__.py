"""What Intel's own build of Triton carries and stock Triton does not: programs written for it import it by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

# Triton's package -> the folder here with what it lacks.
_FOLDERS = {"triton.language.extra": "language", "triton.backends": "backends"}


def offer(module: ModuleType) -> None:
    """Have one of Triton's packages find its own package ``intel`` here, unless this Triton has one."""
    if hasattr(module, "intel"):
        return
    module.__path__.append(str(Path(__file__).parent / _FOLDERS[module.__name__]))

    def __getattr__(name: str) -> Any:  # tl.extra.intel, without an import of it
        if name == "intel":
            return importlib.import_module(f"{module.__name__}.intel")
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
