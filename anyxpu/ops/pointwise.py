"""Pointwise operators: which there are, what torch's rules for each are, and the kernels that the shim asks for.

The call itself is the shim's (``shim/pointwise.cpp``): torch's TensorIterator decides types, shapes, strides and what
is an error; of a signature class that was met before nothing here runs. What a row does not take goes to the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from anyxpu.ops import classes, registry
from anyxpu.shim import lib


@dataclass(frozen=True)
class Row:
    """One operator in its functional, in-place and ``out=`` forms.

    Attributes:
        overload: the functional form, or the in-place one where torch makes the functional one of it.
        function: of ``pointwise_functions.py`` or ``activation_functions.py``, or of those that :data:`SPECIAL` names.
        rule: which TensorIterator: ``same`` (as ``promote``, but operands of different types are not taken),
            ``promote`` (operands have a common type, which is the result's), ``float`` (integers become the default
            float), ``compare`` (operands have a common type, the result is bool), ``test`` (of one operand, bool),
            ``where`` (a condition before two operands), ``fill`` (a mask behind the tensor that is filled).
        roles: of the arguments in order: ``T`` a tensor; ``N`` a number that takes part in finding the common type, as
            a tensor of no dimensions would; ``E`` such a one, whose usual values select a variant; ``P`` a number
            handed to the function; ``M`` such a one that would take part in the type, and goes to the host where it
            changes it; ``V`` selects a variant.
        kinds: common types that are taken: ``f`` floats, ``i`` integers up to 64 bits and uint8, ``b`` bool.
        exact: a CPU number beside 16-bit floats is not rounded to 16 bits first.
    """

    overload: str
    function: str
    rule: str
    roles: str
    kinds: str = "f"
    exact: bool = False


# By functions of special_functions.py, bessel_functions.py and polynomial_functions.py.
SPECIAL: tuple[Row, ...] = (
    *(
        Row(f"special_{name}", name, "float", "T")
        for name in (
            *("entr", "erfcx", "log_ndtr", "ndtri", "i0e", "i1", "i1e", "modified_bessel_i0", "spherical_bessel_j0"),
            *("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
            *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"),
        )
    ),
    Row("special_modified_bessel_i1", "i1", "float", "T"),
    *(
        Row(f"special_{name}", name, "float", "TT")
        for name in (
            *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
            *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
            "zeta",
        )
    ),
    Row("digamma", "digamma", "float", "T"),
    Row("polygamma", "polygamma", "float", "PT"),
    Row("igamma", "igamma", "promote", "TT"),
    Row("igammac", "igammac", "promote", "TT"),
    Row("angle", "angle", "float", "T"),
    Row("gcd", "gcd", "promote", "TT", "i"),
    Row("lcm", "lcm", "promote", "TT", "i"),
    Row("nextafter", "nextafter", "promote", "TT"),
    Row("round.decimals", "round_decimals", "promote", "TP"),
    Row("logit_backward", "logit_backward", "promote", "TTP"),
)

ROWS: tuple[Row, ...] = (
    *SPECIAL,
    Row("add.Tensor", "add", "promote", "TTP", "fib", exact=True),
    Row("sub.Tensor", "sub", "promote", "TTP", "fi", exact=True),
    Row("rsub.Tensor", "rsub", "promote", "TTP", "fi", exact=True),
    Row("mul.Tensor", "mul", "promote", "TT", "fib", exact=True),
    Row("div.Tensor", "div", "float", "TT", exact=True),
    Row("div.Tensor_mode", "div", "promote", "TTV", "fi"),
    Row("fmod.Tensor", "fmod", "promote", "TT", "fi"),
    Row("remainder.Tensor", "remainder", "promote", "TT", "fi"),
    Row("remainder.Scalar_Tensor", "remainder", "promote", "NT", "fi"),
    Row("floor_divide", "div_floor", "promote", "TT", "fi"),
    Row("neg", "neg", "promote", "T", "fi"),
    Row("abs", "abs", "promote", "T", "fib"),
    Row("sign", "sign", "promote", "T", "fib"),
    Row("sgn", "sign", "promote", "T", "fib"),
    Row("pow.Tensor_Tensor", "pow", "promote", "TT", "fi"),
    Row("pow.Tensor_Scalar", "pow", "promote", "TE", "fi"),
    Row("pow.Scalar", "pow", "promote", "NT", "fi"),
    Row("reciprocal", "reciprocal", "float", "T"),
    Row("addcmul", "addcmul", "promote", "TTTP", "fi"),
    Row("addcdiv", "addcdiv", "promote", "TTTP", "f"),
    Row("lerp.Scalar", "lerp", "same", "TTP"),
    Row("lerp.Tensor", "lerp", "same", "TTT"),
    Row("ceil", "ceil", "promote", "T", "fi"),
    Row("floor", "floor", "promote", "T", "fi"),
    Row("trunc", "trunc", "promote", "T", "fi"),
    Row("round", "round", "promote", "T", "fi"),
    Row("frac", "frac", "promote", "T"),
    Row("maximum", "maximum", "promote", "TT", "fib"),
    Row("minimum", "minimum", "promote", "TT", "fib"),
    Row("fmax", "fmax", "promote", "TT", "fib"),
    Row("fmin", "fmin", "promote", "TT", "fib"),
    Row("clamp", "clamp", "promote", "TMM", "fi"),
    Row("clamp.Tensor", "clamp", "promote", "TTT", "fi"),
    Row("clamp_min", "maximum", "promote", "TN", "fi"),
    Row("clamp_min.Tensor", "maximum", "promote", "TT", "fi"),
    Row("clamp_max", "minimum", "promote", "TN", "fi"),
    Row("clamp_max.Tensor", "minimum", "promote", "TT", "fi"),
    *(Row(f"{name}.Tensor", name, "compare", "TT", "fib") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(Row(f"{name}.Scalar", name, "compare", "TN", "fib") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(Row(name, name, "compare", "TT", "fib") for name in ("logical_and", "logical_or", "logical_xor")),
    Row("logical_not", "logical_not", "test", "T", "fib"),
    Row("isnan", "isnan", "test", "T", "fib"),
    Row("isposinf", "isposinf", "test", "T", "fib"),
    Row("isneginf", "isneginf", "test", "T", "fib"),
    Row("signbit", "signbit", "test", "T", "fi"),
    *(Row(f"bitwise_{name}.Tensor", f"bitwise_{name}", "promote", "TT", "ib") for name in ("and", "or", "xor")),
    Row("bitwise_not", "bitwise_not", "promote", "T", "ib"),
    Row("bitwise_left_shift.Tensor", "left_shift", "promote", "TT", "i"),
    Row("bitwise_right_shift.Tensor", "right_shift", "promote", "TT", "i"),
    *(
        Row(f"__{i}{name}__.{other}", function, "promote", "TT" if other == "Tensor" else "TN", "i")
        for name, function in (("lshift", "left_shift"), ("rshift", "right_shift"))
        for i in ("", "i")
        for other in ("Tensor", "Scalar")
    ),
    Row("where.self", "where", "where", "TTT", "fib"),
    Row("masked_fill_.Scalar", "masked_fill", "fill", "TTP", "fib"),
    Row("masked_fill_.Tensor", "masked_fill", "fill", "TTT", "fib"),
    Row("copysign.Tensor", "copysign", "float", "TT"),
    Row("heaviside", "heaviside", "same", "TT", "fi"),
    *(
        Row(name, name, "float", "T")
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan"),
            *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sinc"),
            *("sigmoid", "erfinv", "lgamma", "i0"),
        )
    ),
    Row("atan2", "atan2", "float", "TT"),
    Row("hypot", "hypot", "promote", "TT"),
    Row("logaddexp", "logaddexp", "promote", "TT"),
    Row("logaddexp2", "logaddexp2", "promote", "TT"),
    Row("xlogy.Tensor", "xlogy", "float", "TT"),
    Row("special_xlog1py", "xlog1py", "float", "TT"),
    Row("logit", "logit", "float", "TP"),
    Row("native_dropout_backward", "scaled", "promote", "TTP"),
    Row("sigmoid_backward", "sigmoid_backward", "same", "TT"),
    Row("tanh_backward", "tanh_backward", "same", "TT"),
    Row("relu", "relu", "promote", "T", "fi"),
    Row("threshold", "threshold", "promote", "TPP", "fi"),
    Row("threshold_backward", "threshold_backward", "same", "TTP", "fi"),
    Row("leaky_relu", "leaky_relu", "promote", "TP"),
    Row("leaky_relu_backward", "leaky_relu_backward", "same", "TTPV"),
    Row("_prelu_kernel", "leaky_relu", "same", "TT"),
    Row("gelu", "gelu", "promote", "TV"),
    Row("gelu_backward", "gelu_backward", "same", "TTV"),
    Row("silu", "silu", "promote", "T"),
    Row("silu_backward", "silu_backward", "same", "TT"),
    Row("mish", "mish", "promote", "T"),
    Row("mish_backward", "mish_backward", "same", "TT"),
    Row("softplus", "softplus", "promote", "TPP"),
    Row("softplus_backward", "softplus_backward", "same", "TTPP"),
    Row("hardtanh", "hardtanh", "promote", "TMM"),
    Row("hardtanh_backward", "hardtanh_backward", "same", "TTPP"),
    Row("hardsigmoid", "hardsigmoid", "promote", "T"),
    Row("hardsigmoid_backward", "hardsigmoid_backward", "same", "TT"),
    Row("hardswish", "hardswish", "promote", "T"),
    Row("hardswish_backward", "hardswish_backward", "same", "TT"),
    Row("elu", "elu", "promote", "TPPP"),
    Row("elu_backward", "elu_backward", "same", "TPPPVT"),
    Row("softshrink", "softshrink", "promote", "TP"),
    Row("softshrink_backward", "shrink_backward", "same", "TTP"),
    Row("hardshrink", "hardshrink", "promote", "TP"),
    Row("hardshrink_backward", "shrink_backward", "same", "TTP"),
)

PART = "complex_"
"""Before the names of functions of ``complex_functions.py``, which compute a part of a complex number."""

# (function, variant) -> function, where the call's words or the numbers that it leaves out select another one.
_VARIANTS = {
    ("div", "floor"): "div_floor",
    ("div", "trunc"): "div_trunc",
    ("gelu", "tanh"): "gelu_tanh",
    ("gelu_backward", "tanh"): "gelu_tanh_backward",
    ("elu_backward", "True"): "elu_backward_of_result",
    ("clamp", "-max"): "maximum",
    ("clamp", "-min"): "minimum",
    ("logit", ""): "logit_within",
    ("logit", "-eps"): "logit",
    ("logit_backward", ""): "logit_backward_within",
    ("logit_backward", "-eps"): "logit_backward",
    ("pow", "2"): "square",
    ("pow", "3"): "cube",
    ("pow", "-2"): "inverse_square",
    ("pow", "-1"): "reciprocal",
    ("pow", "0.5"): "sqrt",
    ("pow", "-0.5"): "rsqrt",
}


def forms(overload: str) -> Iterator[str]:
    """The operator's functional, in-place and ``out=`` overloads that torch leaves to a backend to serve."""
    base, _, name = overload.partition(".")
    if base.endswith("_"):  # the others are made of it
        yield overload
        return
    wanted = _inputs(torch._C._get_schema(f"aten::{base}", name))
    for each in (base, f"{base}_"):
        found = torch._C._jit_get_operation(f"aten::{each}")
        for other in (found[1] or ()) if found else ():
            full = f"aten::{each}.{other}" if other else f"aten::{each}"
            schema = torch._C._get_schema(f"aten::{each}", other)
            if _inputs(schema) == wanted and not _composite(full):
                yield full.removeprefix("aten::")


def _composite(name: str) -> bool:
    """Does torch make it of other operators on every device?"""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


def _inputs(schema: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def register() -> None:
    """Put every form of every row on dispatch key XPU. Compiles nothing and starts no driver. Idempotent."""
    taken = set()
    for row in ROWS:
        for form in forms(row.overload):
            if form not in taken and lib().serve_pointwise(
                f"aten::{form}", row.function, row.rule, row.roles, row.kinds, row.exact
            ):
                taken.add(form)
                registry.declare(f"aten::{form}", "compiled")


def _special(function: str) -> bool:
    return any(row.function == function for row in SPECIAL)


def _function(function: str, variant: str, common: str) -> Any:
    """The Triton function of a row's variant; one of its own for a type, where steps are rounded to that type."""
    from anyxpu.ops import (
        activation_functions,
        bessel_functions,
        complex_functions,
        pointwise_functions,
        polynomial_functions,
        special_functions,
    )

    name = _VARIANTS.get((function, variant), function)
    rooms: tuple[Any, ...] = (pointwise_functions, activation_functions)
    if _special(function):
        rooms = (special_functions, bessel_functions, polynomial_functions)
    if name.startswith(PART):
        rooms, name = (complex_functions,), name.removeprefix(PART)
    found = [getattr(room, each) for each in (f"{name}_{common}", name) for room in rooms if hasattr(room, each)]
    return found[0]


def source(
    function: str,
    variant: str,
    common: str,
    types: list[str],
    kinds: list[list[int]],
    raw: int,
    params: int,
    logical: bool,
    tile: tuple[int, int],
) -> Any:
    """What to compile for one signature class.

    Args:
        function, variant: of the row, and which variant of it the call selects.
        common: the type that operands have in common, by Triton's name (``fp32``).
        types: of the result and of each operand.
        kinds: how the result and each operand lie (``pointwise_kernels.py``), for each dimension: one, or the first
            two and as often the number of the others, which are any.
        raw: bits of the operands that are conditions.
        params: how many further numbers the function takes.
        logical: whether its result is bool whatever the operands are.
        tile: rows and columns that are walked at once.

    Returns:
        A ``triton.compiler.ASTSource``.
    """
    from triton.compiler import ASTSource

    from anyxpu.ops import pointwise_kernels

    dtypes = classes.dtypes()
    computed = "fp32" if common in ("fp16", "bf16") else common
    # A kernel has no arguments of one bit.
    argument = "i8" if computed == "i1" else computed
    operands = len(types) - 1
    rows, columns = tile
    if _special(function):  # of a GPU's tile a part at once: more elements a work-item spill registers
        columns = min(columns, 256)
        rows = min(rows, 256 // columns)
    constants: dict[Any, Any] = {
        "F": _function(function, variant, common),
        "KIND": tuple(kinds[0]),
        "RAW": tuple(bool(raw >> k & 1) for k in range(operands)),
        "COMMON": dtypes[common],
        "OP": dtypes[computed],
        "OUT": dtypes[types[0]],
        "LOGICAL": logical,
        "C": columns,
    }
    known = {0: 0, 1: 0, 2: 1}  # kind -> the stride that it stands for
    signature: dict[str, Any] = {
        "out": f"*{types[0]}",
        "ins": tuple(argument if kinds[0][k + 1] == 0 else f"*{types[k + 1]}" for k in range(operands)),
        "params": (argument,) * params,
    }

    def strides(along: list[int]) -> tuple[str, ...]:
        return tuple("i32" if kind not in known else "constexpr" for kind in along)

    if len(kinds) == 1:
        kernel, place = pointwise_kernels.line, 4
        signature |= {"n": "i32", "strides": strides(kinds[0]), "step": "i32"}
        for k, kind in enumerate(kinds[0]):
            if kind in known:
                constants[place, k] = known[kind]
    else:
        kernel, place = pointwise_kernels.grid, 4
        signature |= {"sizes": ("i32",) * len(kinds), "strides": tuple(map(strides, kinds)), "step": "i32"}
        signature |= {"rows": "i32"}
        for d, along in enumerate(kinds):
            for k, kind in enumerate(along):
                if kind in known:
                    constants[place, d, k] = known[kind]
        constants |= {"ND": len(kinds), "R": rows}
    signature |= {name: "constexpr" for name in constants if isinstance(name, str)}
    return ASTSource(kernel, signature, constants, {})
