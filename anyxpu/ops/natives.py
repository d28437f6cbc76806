"""Operators for which torch has kernels of its own in Triton (``torch._native``), and which are ours on xpu."""

from __future__ import annotations

from types import ModuleType


def keep_products(module: ModuleType) -> None:
    """Have aten::bmm of one row by one column stay ours: torch's own kernel does not compare the operands' sizes."""
    register = module._register_for_dispatch_key

    def register_for(dispatch_key: str) -> None:
        if dispatch_key != "XPU":
            register(dispatch_key)

    module._register_for_dispatch_key = register_for  # type: ignore[attr-defined]
