"""Reductions and softmax: which operators there are, and the kernels of their signature classes.

The call itself is the shim's (``shim/reductions.cpp``).
"""

from __future__ import annotations

from typing import Any

from anyxpu.ops import classes, registry
from anyxpu.shim import lib

# Operator -> what the shim makes of it.
TABLE: dict[str, str] = {
    "sum.dim_IntList": "sum",
    "sum.IntList_out": "sum",
    "mean.dim": "mean",
    "mean.out": "mean",
    "prod": "prod",
    "prod.dim_int": "prod",
    "prod.int_out": "prod",
    "amax": "amax",
    "amax.out": "amax",
    "amin": "amin",
    "amin.out": "amin",
    "max": "amax",
    "min": "amin",
    "any": "any",
    "any.dim": "any",
    "any.out": "any",
    "any.all_out": "any",
    "all": "all",
    "all.dim": "all",
    "all.out": "all",
    "all.all_out": "all",
    "linalg_vector_norm": "norm",
    "linalg_vector_norm.out": "norm",
    "_softmax": "softmax",
    "_softmax.out": "softmax",
    "_log_softmax": "log_softmax",
    "_log_softmax.out": "log_softmax",
    "_softmax_backward_data": "softmax_backward",
    "_softmax_backward_data.out": "softmax_backward",
    "_log_softmax_backward_data": "log_softmax_backward",
    "_log_softmax_backward_data.out": "log_softmax_backward",
}


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Compiles nothing and starts no driver. Idempotent."""
    for name, kind in TABLE.items():
        if lib().serve_reduction(f"aten::{name}", kind):
            registry.declare(f"aten::{name}", "compiled")


def source(kernel: str, *words: Any) -> Any:
    """What to compile for one signature class.

    Args:
        kernel: of ``reduction_kernels.py``.
        words: what is done to an element, to two, and to the result; the operand's type, the one it becomes first, the
            one that is computed in, the result's. Of a softmax: the operands' types, the one that is computed in, the
            result's, whether it is the logarithm, of rows how often one is read. Then rows and columns of a tile.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    from triton.compiler import ASTSource

    from anyxpu.ops import reduction_kernels

    function = getattr(reduction_kernels, kernel)
    if "softmax" in kernel:
        signature, constants = _softmax("columns" in kernel, *words)
    else:
        signature, constants = _reduction(kernel, *words)
    return ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), constants, {})


def _reduction(
    kernel: str,
    map: str,
    combine: str,
    finish: str,
    type: str,
    common: str,
    computed: str,
    out: str,
    rows: int,
    columns: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    from anyxpu.ops import reduction_kernels

    dtypes = classes.dtypes()
    number = "fp64" if computed == "fp64" else "fp32"
    sizes = ("A", "N", "down" if kernel == "rows" else "B", "parts", "chunk")
    signature = {"x": f"*{type}", "out": f"*{out}", **dict.fromkeys(sizes, "i32")}
    signature |= {"p": number, "count": number}
    constants = {
        "MAP": getattr(reduction_kernels, map),
        "COMBINE": combine,
        "FINISH": getattr(reduction_kernels, finish),
        "COMMON": dtypes[common],
        "OP": dtypes[computed],
        "OUT": dtypes[out],
        "NEUTRAL": _neutral(combine, computed),
        "R": rows,
        "C": columns,
    }
    return signature, constants


def _neutral(combine: str, type: str) -> float | int:
    """What changes nothing."""
    if combine in ("add", "multiply"):
        return int(combine == "multiply")
    low, high = float("-inf"), float("inf")
    if not type.startswith("fp"):
        bits = int(type[1:])
        low, high = (0, 2**bits - 1) if type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if combine == "larger" else high


def _softmax(columns: bool, types: list[str], computed: str, out: str, log: bool, *words: Any) -> tuple[Any, Any]:
    dtypes = classes.dtypes()
    names = ("x",) if len(types) == 1 else ("grad", "y")
    signature = {name: f"*{type}" for name, type in zip(names, types, strict=True)}
    signature |= {"out": f"*{out}", **dict.fromkeys(("A", "N", "B" if columns else "down"), "i32")}
    constants = {"LOG": log, "OP": dtypes[computed], "OUT": dtypes[out]}
    return signature, constants | dict(zip(("R", "C") if columns else ("READS", "R", "C"), words, strict=True))
