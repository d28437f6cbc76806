"""How each elementwise op is printed: one entry an op, one line of C an entry.

A float of 16 bits or fewer is held in a C ``float`` that always has a value of the narrow type: arithmetic runs in
f32 and is rounded to the narrow type after each op. For ``+ - * /`` and sqrt that gives the correctly rounded narrow
result, because f32 carries at least 2·p + 2 bits for their precisions p (Figueroa, "When is double rounding
innocuous?", 1995).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton.ir import Op, Pointer, Scalar, Type

# --- C types

REGISTER_TYPES = {
    "i1": "bool",
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
    "index": "long",
    "f16": "float",
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "f8E5M2": "float",
    "f8E4M3FN": "float",
    "f8E4M3FNUZ": "float",
    "f8E5M2FNUZ": "float",
}
MEMORY_TYPES = REGISTER_TYPES | {
    "i1": "uchar",
    "f16": "ushort",
    "bf16": "ushort",
    "f8E5M2": "uchar",
    "f8E4M3FN": "uchar",
    "f8E4M3FNUZ": "uchar",
    "f8E5M2FNUZ": "uchar",
}
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong", "bool": "bool"}
BITS_TYPES = {8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}

# Types held in a wider C type: the prelude's suffix of their ax_load_, ax_store_, ax_round_ and ax_bits_ functions.
NARROW_FLOATS = {"f16": "f16", "bf16": "bf16", "f8E5M2": "f8e5", "f8E4M3FN": "f8e4nv"}


def register_type(t: Type) -> str:
    """The C type of one element in a variable."""
    if isinstance(t, Pointer):
        return f"__global {memory_type(t.pointee)}*"
    if isinstance(t, Scalar) and t.name in REGISTER_TYPES:
        return REGISTER_TYPES[t.name]
    raise UnsupportedOperation(f"values of type {t} are not supported")


def memory_type(t: Type) -> str:
    """The C type of one element in global memory."""
    if isinstance(t, Pointer):
        return "ulong"
    if isinstance(t, Scalar) and t.name in MEMORY_TYPES:
        return MEMORY_TYPES[t.name]
    raise UnsupportedOperation(f"memory of type {t} is not supported")


def storage_type(t: Type) -> str:
    """The C type of one element in a private or local array (OpenCL C has no arrays of bool in local memory)."""
    return "uchar" if isinstance(t, Scalar) and t.name == "i1" else register_type(t)


def unsigned(t: Type) -> str:
    return UNSIGNED[register_type(t)]


_FLOAT_SUFFIX = {"float": "f", "double": ""}


def literal(value: float | int, t: Type) -> str:
    """A constant of type ``t`` as C prints it, exact to the bit."""
    assert isinstance(t, Scalar)
    c = register_type(t)
    if t.is_float:
        return _float_literal(float(value), c)
    value = int(value)
    if t.name == "i1":
        return "true" if value else "false"
    value &= (1 << t.bits) - 1
    if value >> (t.bits - 1):
        value -= 1 << t.bits
    if value == -(1 << (t.bits - 1)) and t.bits >= 32:
        return f"((int)0x{1 << 31:x}u)" if t.bits == 32 else f"((long)0x{1 << 63:x}ul)"
    text = f"{value}l" if c == "long" else str(value)
    return f"({text})" if value < 0 else text


def _float_literal(value: float, c: str) -> str:
    if math.isnan(value):
        return f"(({c})NAN)"
    if math.isinf(value):
        return f"(({c}){'-' if value < 0 else ''}INFINITY)"
    text = value.hex() + _FLOAT_SUFFIX[c]
    return f"({text})" if math.copysign(1.0, value) < 0 else text


# --- Elementwise ops. An entry gets the op and its operands' C expressions, and gives the result's.

Printer = Callable[[Op, Sequence[str]], str]


def _element(op: Op) -> Scalar | Pointer:
    return op.results[0].element


def rounded(expression: str, t: Type) -> str:
    """``expression``, of C type float, rounded to the narrow float ``t`` where it is one."""
    suffix = NARROW_FLOATS.get(t.name) if isinstance(t, Scalar) else None
    return f"ax_round_{suffix}({expression})" if suffix else expression


def _float(template: str) -> Printer:
    return lambda op, a: rounded(template.format(*a), _element(op))


def _wrapping(symbol: str) -> Printer:
    """Two's complement: C leaves signed overflow undefined, so the arithmetic is unsigned."""

    def emit(op: Op, a: Sequence[str]) -> str:
        t = _element(op)
        c = register_type(t)
        if t.bits == 1:
            return f"(({a[0]}) {'&' if symbol == '*' else '^'} ({a[1]}))"
        if t.bits < 32 or op.attrs.get("exact"):
            # Narrow types compute in int. `exact` marks address arithmetic, where overflow has no meaning and
            # saying so lets the device's vectoriser see unit strides.
            return f"({c})({a[0]} {symbol} {a[1]})" if t.bits < 32 else f"({a[0]} {symbol} {a[1]})"
        u = UNSIGNED[c]
        return f"({c})(({u}){a[0]} {symbol} ({u}){a[1]})"

    return emit


def _integer(template: str) -> Printer:
    """``{c}`` is the signed C type, ``{u}`` the unsigned one."""

    def emit(op: Op, a: Sequence[str]) -> str:
        c = register_type(_element(op))
        return template.format(*a, c=c, u=UNSIGNED[c])

    return emit


def _shift(template: str) -> Printer:
    """A shift by the width or more is poison in MLIR but must not be undefined in C, nor masked differently."""

    def emit(op: Op, a: Sequence[str]) -> str:
        t = _element(op)
        c = register_type(t)
        return template.format(*a, c=c, u=UNSIGNED[c], top=t.bits - 1, bits=t.bits)

    return emit


_INTEGER_PREDICATES = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "slt": "{0} < {1}",
    "sle": "{0} <= {1}",
    "sgt": "{0} > {1}",
    "sge": "{0} >= {1}",
    "ult": "({u}){0} < ({u}){1}",
    "ule": "({u}){0} <= ({u}){1}",
    "ugt": "({u}){0} > ({u}){1}",
    "uge": "({u}){0} >= ({u}){1}",
}
# A signed i1 is 0 or -1, so its order is the reverse of bool's.
_BOOL_PREDICATES = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle"}
_FLOAT_PREDICATES = {
    "false": "false",
    "oeq": "{0} == {1}",
    "ogt": "{0} > {1}",
    "oge": "{0} >= {1}",
    "olt": "{0} < {1}",
    "ole": "{0} <= {1}",
    "one": "({0} < {1}) | ({0} > {1})",
    "ord": "({0} == {0}) & ({1} == {1})",
    "ueq": "!(({0} < {1}) | ({0} > {1}))",
    "ugt": "!({0} <= {1})",
    "uge": "!({0} < {1})",
    "ult": "!({0} >= {1})",
    "ule": "!({0} > {1})",
    "une": "{0} != {1}",
    "uno": "({0} != {0}) | ({1} != {1})",
    "true": "true",
}


def _cmpi(op: Op, a: Sequence[str]) -> str:
    t = op.operands[0].element
    predicate = op.words[0]
    if t.bits == 1:
        predicate = _BOOL_PREDICATES.get(predicate, predicate)
    u = "ulong" if isinstance(t, Pointer) else unsigned(t)
    return f"({_INTEGER_PREDICATES[predicate].format(*a, u=u)})"


def _cmpf(op: Op, a: Sequence[str]) -> str:
    return f"({_FLOAT_PREDICATES[op.words[0]].format(*a)})"


def _select(op: Op, a: Sequence[str]) -> str:
    return f"({a[0]} ? {a[1]} : {a[2]})"


# --- casts


def _extend_unsigned(op: Op, a: Sequence[str]) -> str:
    source, target = op.operands[0].element, _element(op)
    return f"({register_type(target)})({unsigned(source)}){a[0]}"


def _extend_signed(op: Op, a: Sequence[str]) -> str:
    c = register_type(_element(op))
    return f"({c})-({c}){a[0]}" if op.operands[0].element.bits == 1 else f"({c}){a[0]}"


def _truncate(op: Op, a: Sequence[str]) -> str:
    t = _element(op)
    return f"(bool)({a[0]} & 1)" if t.bits == 1 else f"({register_type(t)}){a[0]}"


def _float_to_float(op: Op, a: Sequence[str]) -> str:
    source, target = op.operands[0].element, _element(op)
    assert isinstance(source, Scalar) and isinstance(target, Scalar)
    rounding = str(op.attrs.get("rounding", "rtne"))
    if rounding not in ("rtne", "rtz"):
        raise UnsupportedOperation(f"{op.name} with rounding {rounding!r}")
    from_c, to_c = register_type(source), register_type(target)
    value = a[0]
    narrow = NARROW_FLOATS.get(target.name)
    if narrow is None:
        if to_c == "float" and from_c == "double":
            return f"convert_float_{'rtz' if rounding == 'rtz' else 'rte'}({value})"
        return f"({to_c}){value}" if from_c != to_c else value
    if source == target or (source.bits < target.bits and target.name == "f32"):
        return value
    if from_c == "double":
        value = f"ax_odd_f64({value})"
    return f"ax_round{'_rtz' if rounding == 'rtz' else ''}_{narrow}({value})"


def _int_to_float(signed: bool) -> Printer:
    def emit(op: Op, a: Sequence[str]) -> str:
        source, target = op.operands[0].element, _element(op)
        assert isinstance(target, Scalar)
        value = f"({unsigned(source)}){a[0]}" if not signed else a[0]
        if signed and source.bits == 1:
            value = f"-(int){a[0]}"
        narrow = NARROW_FLOATS.get(target.name)
        if narrow is None:
            return f"({register_type(target)})({value})"
        # Rounding to f32 first and to the narrow type next would round twice; to odd, the first one is harmless.
        if source.bits == 64:
            value = f"ax_odd_{'i64' if signed else 'u64'}({value})"
        else:
            value = f"ax_odd_i64((long)({value}))" if source.bits == 32 else f"(float)({value})"
        return f"ax_round_{narrow}({value})"

    return emit


def _float_to_int(signed: bool) -> Printer:
    def emit(op: Op, a: Sequence[str]) -> str:
        t = _element(op)
        c = register_type(t)
        if t.bits == 1:
            return f"(bool)((int){a[0]} & 1)"
        if signed:
            return f"({c})(int){a[0]}" if t.bits < 32 else f"({c}){a[0]}"
        return f"({c})(uint){a[0]}" if t.bits < 32 else f"({c})({UNSIGNED[c]}){a[0]}"

    return emit


def _bitcast(op: Op, a: Sequence[str]) -> str:
    source, target = op.operands[0].element, _element(op)
    if isinstance(target, Pointer) or isinstance(source, Pointer) or source == target:
        return f"({register_type(target)}){a[0]}" if source != target else a[0]
    assert isinstance(source, Scalar) and isinstance(target, Scalar)
    bits = bits_of(a[0], source)
    return from_bits(bits, target)


def bits_of(value: str, t: Scalar) -> str:
    """The value's bits as an unsigned integer of its own width."""
    if t.name in NARROW_FLOATS:
        return f"ax_bits_{NARROW_FLOATS[t.name]}({value})"
    if t.is_float:
        return f"as_{BITS_TYPES[t.bits]}({value})"
    return f"({unsigned(t)}){value}"


def from_bits(bits: str, t: Scalar) -> str:
    """The value of type ``t`` whose bits are the unsigned integer ``bits``."""
    if t.name in NARROW_FLOATS:
        return f"ax_from_bits_{NARROW_FLOATS[t.name]}({bits})"
    if t.is_float:
        return f"as_{register_type(t)}({bits})"
    return f"({register_type(t)})({bits})"


def _address(op: Op, a: Sequence[str]) -> str:
    return f"({a[0]} + {a[1]})"


def _mulhi(op: Op, a: Sequence[str]) -> str:
    c = register_type(_element(op))
    return f"({c})mul_hi(({UNSIGNED[c]}){a[0]}, ({UNSIGNED[c]}){a[1]})"


def _clampf(op: Op, a: Sequence[str]) -> str:
    if op.attrs.get("propagateNan") == "all":
        return f"({a[0]} < {a[1]} ? {a[1]} : {a[0]} > {a[2]} ? {a[2]} : {a[0]})"
    return f"fmin(fmax({a[0]}, {a[1]}), {a[2]})"


def _divide(symbol: str, signed: bool) -> Printer:
    """A constant divisor is divided by; any other goes through the prelude, where 0 and -1 do not trap."""

    def emit(op: Op, a: Sequence[str]) -> str:
        t = _element(op)
        c = register_type(t)
        if is_literal(a[1]) and a[1].strip("()l") not in ("0", "-1"):
            u = "" if signed else f"({UNSIGNED[c]})"
            return f"({c})({u}{a[0]} {symbol} {u}{a[1]})"
        function = f"ax_{'div' if symbol == '/' else 'rem'}_{'' if signed else 'u'}{t}"
        return f"({c}){function}({a[0]}, {a[1]})"

    return emit


_LITERAL = re.compile(r"\(?-?\d+[uUlL]*\)?")


def is_literal(expression: str) -> bool:
    """Whether a C expression is a decimal integer."""
    return _LITERAL.fullmatch(expression) is not None


ELEMENTWISE: dict[str, Printer] = {
    "arith.addi": _wrapping("+"),
    "arith.subi": _wrapping("-"),
    "arith.muli": _wrapping("*"),
    "arith.divsi": _divide("/", True),
    "arith.remsi": _divide("%", True),
    "arith.divui": _divide("/", False),
    "arith.remui": _divide("%", False),
    "arith.ceildivsi": _integer("({c})({0} / {1} + (({0} % {1} != 0) & (({0} < 0) == ({1} < 0))))"),
    "arith.floordivsi": _integer("({c})({0} / {1} - (({0} % {1} != 0) & (({0} < 0) != ({1} < 0))))"),
    "arith.ceildivui": _integer("({c})(({u}){0} / ({u}){1} + (({u}){0} % ({u}){1} != 0))"),
    "arith.andi": _integer("({c})({0} & {1})"),
    "arith.ori": _integer("({c})({0} | {1})"),
    "arith.xori": _integer("({c})({0} ^ {1})"),
    "arith.shli": _shift("(({u}){1} > {top} ? ({c})0 : ({c})(({u}){0} << ({1} & {top})))"),
    "arith.shrui": _shift("(({u}){1} > {top} ? ({c})0 : ({c})(({u}){0} >> ({1} & {top})))"),
    "arith.shrsi": _shift("({c})({0} >> (({u}){1} > {top} ? {top} : {1}))"),
    "arith.maxsi": _integer("({c})max(({c}){0}, ({c}){1})"),
    "arith.minsi": _integer("({c})min(({c}){0}, ({c}){1})"),
    "arith.maxui": _integer("({c})max(({u}){0}, ({u}){1})"),
    "arith.minui": _integer("({c})min(({u}){0}, ({u}){1})"),
    "arith.cmpi": _cmpi,
    "arith.cmpf": _cmpf,
    "arith.select": _select,
    "arith.extsi": _extend_signed,
    "arith.extui": _extend_unsigned,
    "arith.trunci": _truncate,
    "arith.index_cast": _extend_signed,
    "arith.index_castui": _extend_unsigned,
    "arith.bitcast": _bitcast,
    "arith.extf": _float_to_float,
    "arith.truncf": _float_to_float,
    "arith.sitofp": _int_to_float(True),
    "arith.uitofp": _int_to_float(False),
    "arith.fptosi": _float_to_int(True),
    "arith.fptoui": _float_to_int(False),
    "arith.addf": _float("({0} + {1})"),
    "arith.subf": _float("({0} - {1})"),
    "arith.mulf": _float("({0} * {1})"),
    "arith.divf": _float("({0} / {1})"),
    "arith.remf": _float("fmod({0}, {1})"),
    "arith.negf": _float("(-{0})"),
    "arith.maxnumf": _float("fmax({0}, {1})"),
    "arith.minnumf": _float("fmin({0}, {1})"),
    # No call in a choice: a CPU's compiler makes a branch of it, for each lane (with AVX-512 5 times as long). The
    # inner choice is what x86 calls a maximum, which is the second of two that cannot be compared.
    "arith.maximumf": _float("({0} != {0} ? {0} : ({0} > {1} ? {0} : {1}))"),
    "arith.minimumf": _float("({0} != {0} ? {0} : ({0} < {1} ? {0} : {1}))"),
    "math.absf": _float("fabs({0})"),
    "math.absi": _integer("({c})abs({0})"),
    "math.ceil": _float("ceil({0})"),
    "math.cos": _float("cos({0})"),
    "math.erf": _float("ax_erf({0})"),
    "math.exp": _float("exp({0})"),
    "math.exp2": _float("ax_exp2({0})"),
    "math.floor": _float("floor({0})"),
    "math.fma": _float("fma({0}, {1}, {2})"),
    "math.log": _float("log({0})"),
    "math.log2": _float("log2({0})"),
    "math.rsqrt": _float("rsqrt({0})"),
    "math.sin": _float("sin({0})"),
    "math.sqrt": _float("sqrt({0})"),
    "math.tanh": _float("tanh({0})"),
    "tt.addptr": _address,
    "tt.bitcast": _bitcast,
    "tt.clampf": _clampf,
    "tt.fp_to_fp": _float_to_float,
    "tt.int_to_ptr": _bitcast,
    "tt.mulhiui": _mulhi,
    "tt.precise_divf": _float("ax_div_rn({0}, {1})"),
    "tt.precise_sqrt": _float("ax_sqrt_rn({0})"),
    "tt.ptr_to_int": _bitcast,
}

# Ops cheap enough to be computed again where they are needed rather than kept: integers, addresses, masks. Keeping an
# index would also hide from the device's vectoriser that it is linear in the lane.
RECOMPUTED = frozenset(
    name
    for name in ELEMENTWISE
    if name in ("arith.select", "arith.extf", "tt.addptr", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int")
    or (name.startswith("arith.") and name.endswith(("i", "ui", "cast", "castui")) and not name.endswith("fptoui"))
) - {"arith.fptosi", "arith.fptoui"}
