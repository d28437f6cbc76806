"""Which of our Python the compiler's frontend leaves alone."""

from __future__ import annotations

import importlib
from types import ModuleType

ROOMS = ("drivers", "onednn", "ops", "runtime", "shim", "triton")
"""What operators call: folders of the package."""


def leave_operators(module: ModuleType) -> None:
    """Have Dynamo compile no frame of an operator's kernel.

    Where a graph broke, it looks at every Python frame that runs below, and those of our operators, which torch's
    dispatcher calls, are such frames: they were traced, guarded and compiled like the user's. What the user's code
    calls itself is traced as before.
    """
    for room in ROOMS:
        name = f"anyxpu.{room}"
        module.add(name)
        module.BUILTIN_INLINE_WHEN_CALLED.add(module._module_dir(importlib.import_module(name)))
