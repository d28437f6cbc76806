"""The kernels of signature classes that the shim asks for: of which family, from where, and when.

A family makes the Triton source of a class from its words; ``shim/classes.cpp`` keeps what :func:`provide` gives it.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from anyxpu.ops import builder, prepared
from anyxpu.shim import lib

VARIABLE = "ANYXPU_EAGER"
# Family -> the module whose `source(*words)` makes the triton.compiler.ASTSource of a class.
_FAMILIES = {
    "pointwise": "pointwise",
    "reduction": "reductions",
    "softmax": "reductions",
    "indexing": "indexing",
    "channels": "channels",
    "windows": "windows",
    "foreach": "foreach",
    "whole": "whole",
}
# Of these, kernels write where tables in memory say, and the shim notes it.
_BY_TABLES = ("foreach",)


def register() -> None:
    """Have the shim ask here, and serve eager operators as ``ANYXPU_EAGER`` says."""
    lib().set_class_provider(provide)
    lib().set_eager(os.environ.get(VARIABLE) or "auto")


def provide(
    device: int, family: str, words: tuple[Any, ...], wait: bool = False
) -> tuple[Any, int, int, list[str]] | bool | None:
    """The kernel of one signature class.

    Args:
        device: ordinal.
        family: one of :data:`_FAMILIES`.
        words: what the family's ``source`` takes; strings, numbers, and lists of them.
        wait: build it now where it is not there yet, whatever ``ANYXPU_EAGER`` says.

    Returns:
        The shim's ``Kernel``, the work-items of its work-groups, the operations of one of them, and what the host says
        where it finds that a condition does not hold; False where it
        is not there yet and the host is to serve meanwhile; None where the device does not run it.
    """
    if lib().driver_name() == "null" or (_doubles(words) and not lib().properties(device).has_fp64):
        return None
    wait = wait or lib().properties(device).type != "cpu" or _alone(family, words) or lib().waits_for_kernels()
    if lib().eager() == "auto" and not wait:
        found = prepared.found(device, _name(family, words), _warps(device))
        if found is None and builder.wanted((device, family, words)):
            lib().note_building()
            return False
        made = found or build(device, family, words)
    else:
        made = build(device, family, words)
    made.kernel.call_it(title(family, words))
    return made.kernel, made.lanes, made.operations, list(made.assertions)


def module_of(family: str) -> str:
    """The module that makes a family's kernels."""
    return f"anyxpu.ops.{_FAMILIES[family]}"


def build(device: int, family: str, words: tuple[Any, ...]) -> prepared.Prepared:
    """The kernel that these arguments of :func:`provide` name; compiled where it is not on disk."""

    def source() -> Any:
        return importlib.import_module(module_of(family)).source(*words)

    return prepared.prepare(device, _name(family, words), source, _warps(device), family in _BY_TABLES)


def title(family: str, words: tuple[Any, ...]) -> str:
    """What profiles call the kernel: the words of its class that are names, each once.

    >>> title("pointwise", ("gelu", "tanh", "fp32", ["fp32", "fp32"], [[2, 2]], 0))
    'pointwise_gelu_tanh_fp32'
    """
    names: list[str] = [family]
    for word in words:
        for name in word if isinstance(word, (list, tuple)) else (word,):
            if isinstance(name, str) and name.replace("_", "a").isalnum() and name not in names:
                names.append(name)
    return "_".join(names)


def dtypes() -> dict[str, Any]:
    """Triton's types by the names that the shim gives them."""
    import triton.language as tl

    return {
        "fp16": tl.float16,
        "bf16": tl.bfloat16,
        "fp32": tl.float32,
        "fp64": tl.float64,
        "i1": tl.int1,
        **{f"i{w}": getattr(tl, f"int{w}") for w in (8, 16, 32, 64)},
        **{f"u{w}": getattr(tl, f"uint{w}") for w in (8, 16, 32, 64)},
    }


def _doubles(words: Any) -> bool:
    return any(_doubles(w) if isinstance(w, (list, tuple)) else w == "fp64" for w in words)


# Family -> words of classes that the host has no kernels for (unsigned integers beyond 8 bits), or other ones: its
# pooling of 16-bit floats adds up in 16 bits, its norms of lists add one number after the other.
_ALONE = {
    "pointwise": ("u16", "u32", "u64"),
    "reduction": ("u16", "u32", "u64"),
    "foreach": ("partial_norms", "norms"),
    "windows": ("fp16", "bf16"),
}


def _alone(family: str, words: Any) -> bool:
    """Are these kernels waited for?"""
    types = _ALONE.get(family, ())
    if isinstance(words, (list, tuple)):
        return bool(types) and any(_alone(family, word) for word in words)
    return words in types


def _name(family: str, words: tuple[Any, ...]) -> str:
    return f"{family} {json.dumps(words)}"


def _warps(device: int) -> int:
    return 1 if lib().properties(device).type == "cpu" else 4
