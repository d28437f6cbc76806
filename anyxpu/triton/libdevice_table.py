"""libdevice's functions as OpenCL C prints them: symbol to expression, and name to the symbols of each signature.

The symbols are ours (``ax_<name>_<types>``); kernels name the functions through ``tl.extra.libdevice``.
"""

from __future__ import annotations

# Functions of floats that give a float of the same type: name -> (number of arguments, C expression).
FLOAT_FUNCTIONS: dict[str, tuple[int, str]] = {
    "acos": (1, "acos({0})"),
    "acosh": (1, "acosh({0})"),
    "add_rn": (2, "({0} + {1})"),
    "asin": (1, "asin({0})"),
    "asinh": (1, "asinh({0})"),
    "atan": (1, "atan({0})"),
    "atan2": (2, "atan2({0}, {1})"),
    "atanh": (1, "atanh({0})"),
    "cbrt": (1, "cbrt({0})"),
    "ceil": (1, "ceil({0})"),
    "copysign": (2, "copysign({0}, {1})"),
    "cos": (1, "cos({0})"),
    "cosh": (1, "cosh({0})"),
    "cospi": (1, "cospi({0})"),
    "div_rn": (2, "({0} / {1})"),
    "erf": (1, "erf({0})"),
    "erfc": (1, "erfc({0})"),
    "exp": (1, "exp({0})"),
    "exp10": (1, "exp10({0})"),
    "exp2": (1, "exp2({0})"),
    "expm1": (1, "expm1({0})"),
    "fdim": (2, "fdim({0}, {1})"),
    "floor": (1, "floor({0})"),
    "fma": (3, "fma({0}, {1}, {2})"),
    "fma_rn": (3, "fma({0}, {1}, {2})"),
    "fmod": (2, "fmod({0}, {1})"),
    "hypot": (2, "hypot({0}, {1})"),
    "lgamma": (1, "lgamma({0})"),
    "log": (1, "log({0})"),
    "log10": (1, "log10({0})"),
    "log1p": (1, "log1p({0})"),
    "log2": (1, "log2({0})"),
    "logb": (1, "logb({0})"),
    "mul_rn": (2, "({0} * {1})"),
    "nearbyint": (1, "rint({0})"),
    "nextafter": (2, "nextafter({0}, {1})"),
    "norm3d": (3, "sqrt({0} * {0} + {1} * {1} + {2} * {2})"),
    "pow": (2, "pow({0}, {1})"),
    "rcbrt": (1, "(1 / cbrt({0}))"),
    "rcp_rn": (1, "(1 / {0})"),
    "remainder": (2, "remainder({0}, {1})"),
    "rhypot": (2, "(1 / hypot({0}, {1}))"),
    "rint": (1, "rint({0})"),
    "round": (1, "round({0})"),
    "rsqrt": (1, "rsqrt({0})"),
    "rsqrt_rn": (1, "(1 / sqrt({0}))"),
    "sin": (1, "sin({0})"),
    "sinh": (1, "sinh({0})"),
    "sinpi": (1, "sinpi({0})"),
    "sqrt": (1, "sqrt({0})"),
    "sqrt_rn": (1, "sqrt({0})"),
    "sub_rn": (2, "({0} - {1})"),
    "tan": (1, "tan({0})"),
    "tanh": (1, "tanh({0})"),
    "tgamma": (1, "tgamma({0})"),
    "trunc": (1, "trunc({0})"),
}
# The f32-only fast ones; here they are as exact as the others.
F32_FUNCTIONS: dict[str, tuple[int, str]] = {
    "fast_cosf": (1, "cos({0})"),
    "fast_dividef": (2, "({0} / {1})"),
    "fast_exp10f": (1, "exp10({0})"),
    "fast_expf": (1, "exp({0})"),
    "fast_log10f": (1, "log10({0})"),
    "fast_log2f": (1, "log2({0})"),
    "fast_logf": (1, "log({0})"),
    "fast_powf": (2, "pow({0}, {1})"),
    "fast_sinf": (1, "sin({0})"),
    "fast_tanf": (1, "tan({0})"),
    "fast_tanhf": (1, "tanh({0})"),
    "saturatef": (1, "clamp({0}, 0.0f, 1.0f)"),
}
# The rest: name -> {argument types: (C expression, result type)}.
OTHER_FUNCTIONS: dict[str, dict[tuple[str, ...], tuple[str, str]]] = {
    "abs": {
        ("int32",): ("(int)abs({0})", "int32"),
        ("int64",): ("(long)abs({0})", "int64"),
        ("fp32",): ("fabs({0})", "fp32"),
        ("fp64",): ("fabs({0})", "fp64"),
    },
    "brev": {("int32",): ("(int)ax_brev_u32((uint){0})", "int32")},
    "clz": {("int32",): ("(int)clz({0})", "int32"), ("int64",): ("(int)clz({0})", "int32")},
    "double_as_longlong": {("fp64",): ("as_long({0})", "int64")},
    "erfinv": {("fp32",): ("ax_erfinv_f32({0})", "fp32"), ("fp64",): ("ax_erfinv_f64({0})", "fp64")},
    "ffs": {(t,): ("({0} ? (int)ctz({0}) + 1 : 0)", "int32") for t in ("int32", "int64")},
    "finitef": {("fp32",): ("(int)isfinite({0})", "int32")},
    "float_as_int": {("fp32",): ("as_int({0})", "int32")},
    "float_as_uint": {("fp32",): ("(int)as_uint({0})", "uint32")},
    "ilogb": {("fp32",): ("ilogb({0})", "int32"), ("fp64",): ("ilogb({0})", "int32")},
    "int_as_float": {("int32",): ("as_float({0})", "fp32")},
    "isfinited": {("fp64",): ("(int)isfinite({0})", "int32")},
    "isinf": {("fp32",): ("(int)isinf({0})", "int32"), ("fp64",): ("(int)isinf({0})", "int32")},
    "isnan": {("fp32",): ("(int)isnan({0})", "int32"), ("fp64",): ("(int)isnan({0})", "int32")},
    "ldexp": {("fp32", "int32"): ("ldexp({0}, {1})", "fp32"), ("fp64", "int32"): ("ldexp({0}, {1})", "fp64")},
    "llrint": {("fp32",): ("(long)rint({0})", "int64"), ("fp64",): ("(long)rint({0})", "int64")},
    "llround": {("fp32",): ("(long)round({0})", "int64"), ("fp64",): ("(long)round({0})", "int64")},
    "longlong_as_double": {("int64",): ("as_double({0})", "fp64")},
    "mulhi": {
        ("int32", "int32"): ("mul_hi({0}, {1})", "int32"),
        ("uint32", "uint32"): ("(int)mul_hi((uint){0}, (uint){1})", "uint32"),
        ("int64", "int64"): ("mul_hi({0}, {1})", "int64"),
        ("uint64", "uint64"): ("(long)mul_hi((ulong){0}, (ulong){1})", "uint64"),
    },
    "popc": {("int32",): ("(int)popcount({0})", "int32"), ("int64",): ("(int)popcount({0})", "int32")},
    "scalbn": {("fp32", "int32"): ("ldexp({0}, {1})", "fp32"), ("fp64", "int32"): ("ldexp({0}, {1})", "fp64")},
    "signbit": {("fp32",): ("(int)signbit({0})", "int32"), ("fp64",): ("(int)signbit({0})", "int32")},
    "uint_as_float": {("uint32",): ("as_float({0})", "fp32")},
}


def _functions() -> dict[str, dict[tuple[str, ...], tuple[str, str]]]:
    out = {name: dict(entries) for name, entries in OTHER_FUNCTIONS.items()}
    for table, types in ((FLOAT_FUNCTIONS, ("fp32", "fp64")), (F32_FUNCTIONS, ("fp32",))):
        for name, (count, expression) in table.items():
            out[name] = {(t,) * count: (expression, t) for t in types}
    return out


# name -> {argument types: (C expression, result type)}, by Triton's names of types.
FUNCTIONS = _functions()


def symbol(name: str, types: tuple[str, ...]) -> str:
    return f"ax_{name}_{'_'.join(types)}"


# symbol -> C expression
SYMBOLS = {
    symbol(name, types): expression
    for name, signatures in FUNCTIONS.items()
    for types, (expression, _) in signatures.items()
}
