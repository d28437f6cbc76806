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
    "div_rn": (2, "ax_div_rn({0}, {1})"),
    "erf": (1, "ax_erf({0})"),
    "erfc": (1, "erfc({0})"),
    "exp": (1, "exp({0})"),
    "exp10": (1, "exp10({0})"),
    "exp2": (1, "ax_exp2({0})"),
    "expm1": (1, "expm1({0})"),
    "fdim": (2, "fdim({0}, {1})"),
    "floor": (1, "floor({0})"),
    "fma": (3, "fma({0}, {1}, {2})"),
    "fma_rn": (3, "fma({0}, {1}, {2})"),
    "fmod": (2, "fmod({0}, {1})"),
    "hypot": (2, "hypot({0}, {1})"),
    "log": (1, "log({0})"),
    "log10": (1, "log10({0})"),
    "log1p": (1, "log1p({0})"),
    "log2": (1, "log2({0})"),
    "logb": (1, "logb({0})"),
    "mul_rn": (2, "({0} * {1})"),
    "nearbyint": (1, "rint({0})"),
    "nextafter": (2, "nextafter({0}, {1})"),
    "norm3d": (3, "sqrt({0} * {0} + {1} * {1} + {2} * {2})"),
    "norm4d": (4, "sqrt({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3})"),
    "pow": (2, "pow({0}, {1})"),
    "rcbrt": (1, "(1 / cbrt({0}))"),
    "rcp_rn": (1, "ax_div_rn(1, {0})"),
    "remainder": (2, "remainder({0}, {1})"),
    "rhypot": (2, "(1 / hypot({0}, {1}))"),
    "rint": (1, "rint({0})"),
    "rnorm3d": (3, "(1 / sqrt({0} * {0} + {1} * {1} + {2} * {2}))"),
    "rnorm4d": (4, "(1 / sqrt({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3}))"),
    "round": (1, "round({0})"),
    "rsqrt": (1, "rsqrt({0})"),
    "rsqrt_rn": (1, "ax_div_rn(1, ax_sqrt_rn({0}))"),
    "sin": (1, "sin({0})"),
    "sinh": (1, "sinh({0})"),
    "sinpi": (1, "sinpi({0})"),
    "sqrt": (1, "ax_sqrt_rn({0})"),
    "sqrt_rn": (1, "ax_sqrt_rn({0})"),
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
    "brev": {
        ("int32",): ("(int)ax_brev_u32((uint){0})", "int32"),
        ("int64",): ("(long)((ulong)ax_brev_u32((uint){0}) << 32 | ax_brev_u32((uint)((ulong){0} >> 32)))", "int64"),
    },
    "byte_perm": {("int32", "int32", "int32"): ("ax_byte_perm({0}, {1}, {2})", "int32")},
    "clz": {("int32",): ("(int)clz({0})", "int32"), ("int64",): ("(int)clz({0})", "int32")},
    "double2hiint": {("fp64",): ("(int)(as_long({0}) >> 32)", "int32")},
    "double2loint": {("fp64",): ("(int)as_long({0})", "int32")},
    "double_as_longlong": {("fp64",): ("as_long({0})", "int64")},
    "erfinv": {("fp32",): ("ax_erfinv_f32({0})", "fp32"), ("fp64",): ("ax_erfinv_f64({0})", "fp64")},
    "ffs": {(t,): ("({0} ? (int)ctz({0}) + 1 : 0)", "int32") for t in ("int32", "int64")},
    "lgamma": {("fp32",): ("ax_lgamma_f32({0})", "fp32"), ("fp64",): ("lgamma({0})", "fp64")},
    "finitef": {("fp32",): ("(int)isfinite({0})", "int32")},
    "float_as_int": {("fp32",): ("as_int({0})", "int32")},
    "float_as_uint": {("fp32",): ("(int)as_uint({0})", "uint32")},
    "hadd": {
        ("int32", "int32"): ("hadd({0}, {1})", "int32"),
        ("uint32", "uint32"): ("(int)hadd((uint){0}, (uint){1})", "uint32"),
    },
    "hiloint2double": {("int32", "int32"): ("as_double((ulong)(uint){0} << 32 | (uint){1})", "fp64")},
    "ilogb": {("fp32",): ("ilogb({0})", "int32"), ("fp64",): ("ilogb({0})", "int32")},
    "int_as_float": {("int32",): ("as_float({0})", "fp32")},
    "isfinited": {("fp64",): ("(int)isfinite({0})", "int32")},
    "isinf": {("fp32",): ("(int)isinf({0})", "int32"), ("fp64",): ("(int)isinf({0})", "int32")},
    "isnan": {("fp32",): ("(int)isnan({0})", "int32"), ("fp64",): ("(int)isnan({0})", "int32")},
    "ldexp": {("fp32", "int32"): ("ldexp({0}, {1})", "fp32"), ("fp64", "int32"): ("ldexp({0}, {1})", "fp64")},
    "jn": {
        ("int32", "fp32"): ("ax_bessel_n_f32({0}, 0, {1})", "fp32"),
        ("int32", "fp64"): ("ax_bessel_n_f64({0}, 0, {1})", "fp64"),
    },
    "llrint": {("fp32",): ("(long)rint({0})", "int64"), ("fp64",): ("(long)rint({0})", "int64")},
    "llround": {("fp32",): ("(long)round({0})", "int64"), ("fp64",): ("(long)round({0})", "int64")},
    "longlong_as_double": {("int64",): ("as_double({0})", "fp64")},
    "mul24": {
        ("int32", "int32"): ("mul24({0}, {1})", "int32"),
        ("uint32", "uint32"): ("(int)mul24((uint){0}, (uint){1})", "uint32"),
    },
    "mulhi": {
        ("int32", "int32"): ("mul_hi({0}, {1})", "int32"),
        ("uint32", "uint32"): ("(int)mul_hi((uint){0}, (uint){1})", "uint32"),
        ("int64", "int64"): ("mul_hi({0}, {1})", "int64"),
        ("uint64", "uint64"): ("(long)mul_hi((ulong){0}, (ulong){1})", "uint64"),
    },
    "popc": {("int32",): ("(int)popcount({0})", "int32"), ("int64",): ("(int)popcount({0})", "int32")},
    "rcp64h": {("fp64",): ("as_double(as_ulong(1 / {0}) & 0xffffffff00000000ul)", "fp64")},
    "rhadd": {
        ("int32", "int32"): ("rhadd({0}, {1})", "int32"),
        ("uint32", "uint32"): ("(int)rhadd((uint){0}, (uint){1})", "uint32"),
    },
    "sad": {
        ("int32", "int32", "uint32"): ("(int)(abs_diff({0}, {1}) + (uint){2})", "int32"),
        ("uint32", "uint32", "uint32"): ("(int)(abs_diff((uint){0}, (uint){1}) + (uint){2})", "uint32"),
    },
    "scalbn": {("fp32", "int32"): ("ldexp({0}, {1})", "fp32"), ("fp64", "int32"): ("ldexp({0}, {1})", "fp64")},
    "signbit": {("fp32",): ("(int)signbit({0})", "int32"), ("fp64",): ("(int)signbit({0})", "int32")},
    "uint_as_float": {("uint32",): ("as_float({0})", "fp32")},
    "yn": {
        ("int32", "fp32"): ("ax_bessel_n_f32({0}, 1, {1})", "fp32"),
        ("int32", "fp64"): ("ax_bessel_n_f64({0}, 1, {1})", "fp64"),
    },
}
_POWERS_OF_INTEGERS: dict[tuple[str, ...], tuple[str, str]] = {
    ("fp32", "int32"): ("pown({0}, {1})", "fp32"),
    ("fp64", "int32"): ("pown({0}, {1})", "fp64"),
}


# Functions of one f32 or f64 that the prelude has: name -> expression, where {1} is the type's suffix.
_PRELUDE_FUNCTIONS = {
    "cyl_bessel_i0": "ax_bessel_i_{1}(0, {{0}})",
    "cyl_bessel_i1": "ax_bessel_i_{1}(1, {{0}})",
    "erfcinv": "ax_erfcinv_{1}({{0}})",
    "erfcx": "ax_erfcx_{1}({{0}})",
    "j0": "ax_bessel_jy_{1}(0, 0, {{0}})",
    "j1": "ax_bessel_jy_{1}(1, 0, {{0}})",
    "normcdf": "erfc({{0}} * ({0})-0.707106781186547524) / 2",
    "normcdfinv": "({0})(-1.41421356237309505) * ax_erfcinv_{1}(2 * {{0}})",
    "y0": "ax_bessel_jy_{1}(0, 1, {{0}})",
    "y1": "ax_bessel_jy_{1}(1, 1, {{0}})",
}

# CUDA's names of types in its conversions: Triton's name, and C's.
_CONVERTED = {
    "double": ("fp64", "double"),
    "float": ("fp32", "float"),
    "int": ("int32", "int"),
    "ll": ("int64", "long"),
    "uint": ("uint32", "uint"),
    "ull": ("uint64", "ulong"),
}
_ROUNDINGS = {"rd": "rtn", "rn": "rte", "ru": "rtp", "rz": "rtz"}
_FLOATS = ("double", "float")


def _conversions() -> dict[str, dict[tuple[str, ...], tuple[str, str]]]:
    """``float2int_rz`` and its like: rounded as named; what an integer cannot hold becomes its nearest, a NaN 0."""
    out: dict[str, dict[tuple[str, ...], tuple[str, str]]] = {}
    for source, (source_type, source_c) in _CONVERTED.items():
        for result, (result_type, result_c) in _CONVERTED.items():
            widening = source in _FLOATS and result == "double"
            if source == result or widening or (source not in _FLOATS and result not in _FLOATS):
                continue
            exact = result == "double" and source in ("int", "uint")  # for these CUDA has one name
            for name, mode in [("rn", "rte")] if exact else _ROUNDINGS.items():
                saturated = "" if result in _FLOATS else "_sat"
                x = "{0}" if source in _FLOATS else f"(({source_c}){{0}})"  # registers hold no unsigned numbers
                x = f"convert_{result_c}{saturated}_{mode}({x})"
                if saturated:  # the CPU driver makes the largest number of some NaN
                    x = f"({{0}} != {{0}} ? 0 : {x})"
                signed = {"uint": "int", "ulong": "long"}.get(result_c)
                expression = f"({signed}){x}" if signed else x
                out[f"{source}2{result}_{name}"] = {(source_type,): (expression, result_type)}
    return out


def _functions() -> dict[str, dict[tuple[str, ...], tuple[str, str]]]:
    out = {name: dict(entries) for name, entries in OTHER_FUNCTIONS.items()}
    out.update(_conversions())
    for name, form in _PRELUDE_FUNCTIONS.items():
        out[name] = {
            (t,): (form.format(c, suffix), t) for t, c, suffix in (("fp32", "float", "f32"), ("fp64", "double", "f64"))
        }
    for table, types in ((FLOAT_FUNCTIONS, ("fp32", "fp64")), (F32_FUNCTIONS, ("fp32",))):
        for name, (count, expression) in table.items():
            out[name] = {(t,) * count: (expression, t) for t in types}
    out["pow"].update(_POWERS_OF_INTEGERS)
    return out


# name -> {argument types: (C expression, result type)}, by Triton's names of types.
FUNCTIONS = _functions()


def symbol(name: str, types: tuple[str, ...]) -> str:
    return f"ax_{name}_{'_'.join(types)}"


FETCH_LINE = "ax_fetch_line"
"""The symbol of :func:`anyxpu.triton.hints.fetch_line`."""

POWER = "ax_power_of_2"
"""The symbol of :func:`anyxpu.triton.hints.power_of_2`."""

WEIGHTS_BY_TILES = "ax_weights_by_tiles"
"""The symbol of :func:`anyxpu.triton.hints.weights_by_tiles`."""

TO_TF32 = "ax_to_tf32"
"""The symbol of PTX's ``cvt.rna.tf32.f32``: to ten bits behind the point, from the middle away from zero."""

# symbol -> C expression
SYMBOLS = {
    symbol(name, types): expression
    for name, signatures in FUNCTIONS.items()
    for types, (expression, _) in signatures.items()
}
SYMBOLS[FETCH_LINE] = "ax_fetch_line({0})"
SYMBOLS[POWER] = "ax_power_of_2({0})"
SYMBOLS[WEIGHTS_BY_TILES] = f"ax_weights_by_tiles({', '.join(f'{{{i}}}' for i in range(13))})"
SYMBOLS[TO_TF32] = "ax_to_tf32({0})"
