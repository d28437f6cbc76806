"""Operators on lists of tensors and fused optimizers: which there are, and the kernels of their signature classes.

The calls themselves are the shim's (``shim/foreach.cpp``), in one launch for the whole list, two for norms. Lists that
are not alike in type and layout, and integers, go as torch makes these operators of others: a tensor after the other.
"""

from __future__ import annotations

from typing import Any

from anyxpu.ops import classes, registry
from anyxpu.shim import lib

_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "log"),
    *("log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)
# Overload -> function of ``pointwise_functions.py``, and what arguments are: L a list, N a number, Z a list of numbers
# (or a tensor of them on the CPU), T a tensor of one element; 1: none, the function gets a 1; I: none, it gets nothing.
TABLE: dict[str, tuple[str, str]] = {
    "add.Scalar": ("add", "LN1"),
    "add.List": ("add", "LLN"),
    "add.ScalarList": ("add", "LZ1"),
    "add.Tensor": ("add", "LTN"),
    "sub.Scalar": ("sub", "LN1"),
    "sub.List": ("sub", "LLN"),
    "sub.ScalarList": ("sub", "LZ1"),
    **{f"{name}.Tensor": (name, "LT") for name in ("mul", "div")},
    **{
        f"{name}.{form}": (function, roles)
        for name, function in (
            ("mul", "mul"),
            ("div", "div"),
            ("clamp_max", "minimum"),
            ("clamp_min", "maximum"),
            ("maximum", "maximum"),
            ("minimum", "minimum"),
            ("pow", "pow"),
        )
        for form, roles in (("Scalar", "LN"), ("List", "LL"), ("ScalarList", "LZ"))
    },
    **{
        f"{name}.{form}": (name, f"LLL{role}")
        for name in ("addcmul", "addcdiv")
        for form, role in (("Scalar", "N"), ("ScalarList", "Z"), ("Tensor", "Z"))
    },
    "lerp.List": ("lerp", "LLL"),
    "lerp.Scalar": ("lerp", "LLN"),
    "lerp.ScalarList": ("lerp", "LLZ"),
    "copy_": ("replaced", "LLI"),
    "zero_": ("zero", "L"),
    **{name: (name, "L") for name in _UNARY},
}
_OTHERS = ("_foreach_norm.Scalar", "_fused_adam_", "_fused_adamw_", "_fused_sgd_")
_FUSED = {name: f"{name}.tensor_lr" for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_")}


def register() -> None:
    """Put every operator of :data:`TABLE`, norms and optimizers on dispatch key XPU. Compiles nothing. Idempotent."""
    for name, (function, roles) in TABLE.items():
        base, dot, overload = name.partition(".")
        for form in {base, f"{base.removesuffix('_')}_"}:
            if lib().serve_foreach(f"aten::_foreach_{form}{dot}{overload}", "mapped", function, roles):
                registry.declare(f"aten::_foreach_{form}{dot}{overload}", "compiled")
    for name in (*_OTHERS, *_FUSED.values(), "_amp_foreach_non_finite_check_and_unscale_"):
        kind = name.removeprefix("_foreach_").removeprefix("_fused_").partition(".")[0].removesuffix("_")
        if lib().serve_foreach(f"aten::{name}", kind.removeprefix("_amp_foreach_"), "", ""):
            registry.declare(f"aten::{name}", "compiled")


def source(kernel: str, type: str, computed: str, words: list[Any], lanes: int) -> Any:
    """What to compile for one signature class.

    Args:
        kernel: of ``foreach_kernels.py``.
        type: of the elements.
        computed: the type that is computed in.
        words: what else the kernel is built for, as ``shim/foreach.cpp`` says it.
        lanes: elements at once.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    from triton.compiler import ASTSource

    from anyxpu.ops import foreach_kernels, pointwise_functions, reduction_kernels

    dtypes = classes.dtypes()
    constants: dict[Any, Any] = {"TYPE": dtypes[type], "OP": dtypes[computed], "C": lanes}
    signature: dict[str, Any] = {"table": "*i64", "chunks": "*i64"}
    if kernel == "mapped":
        function, roles, which, singles, params, width = words
        own = getattr(foreach_kernels, function, None)
        constants |= {
            "F": own or getattr(pointwise_functions, function),
            "ROLES": tuple(roles),
            "WHICH": tuple(which),
            "WIDTH": width,
        }
        signature |= {"singles": tuple(f"*{t}" for t in singles), "params": (computed,) * params, "step": "i32"}
    elif kernel == "partial_norms":
        mapping, combine = words
        constants |= {"MAP": getattr(reduction_kernels, mapping), "COMBINE": combine, "WIDTH": 2}
        signature |= {"partials": f"*{computed}", "step": "i32"}
    elif kernel == "norms":
        combine, finish = words
        constants |= {"COMBINE": combine, "FINISH": getattr(reduction_kernels, finish)}
        signature = {"partials": f"*{computed}", "places": "*i64", "out": f"*{type}"}
    elif kernel == "unscaled":
        (constants["WIDTH"],) = words
        signature |= {"inverse": "*fp32", "found": "*fp32", "step": "i32"}
    else:
        names = ("WIDTH", "LR", "SCALE", "FOUND", "MAXIMIZE")
        more = ("LARGEST", "DECOUPLED") if kernel == "adam" else ("MOMENTUM", "FIRST", "NESTEROV")
        constants |= dict(zip((*names, *more), words, strict=True))
        of_adam = ("lr", "kept1", "kept2", "new1", "new2", "log1", "log2", "decay", "eps")
        numbers = of_adam if kernel == "adam" else ("lr", "momentum", "new", "decay")
        signature |= {"single_lr": "*fp32", "scale": "*fp32", "found": "*fp32", "step": "i32"}
        signature |= dict.fromkeys(numbers, computed)
    signature |= dict.fromkeys((name for name in constants if isinstance(name, str)), "constexpr")
    return ASTSource(getattr(foreach_kernels, kernel), signature, constants, {})
