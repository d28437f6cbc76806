"""The steps that :mod:`tests.fuzz_programs` grows kernels of: each adds one thing, in Triton and in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests import fuzz_calls
from tests.fuzz_programs import (
    BOOL,
    COMMON,
    F32,
    FLOATS8,
    I32,
    KINDS,
    STORED,
    Builder,
    Env,
    Value,
    _Nothing,
)

Step = Callable[[Builder], Any]


def number(value: Value) -> bool:
    return value.kind is not BOOL


def integer(value: Value) -> bool:
    return value.kind.is_int


def real(value: Value) -> bool:
    return value.kind.is_float


def wide(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of elementwise operands, of which some may be scalars."""
    return max(shapes, key=len)


# --- elementwise


def _truncated(a: Any, b: Any) -> Any:
    """C's integer division, for divisors other than zero."""
    return (a - np.fmod(a, b)) // b


INTEGER = {
    "{a} + {b}": lambda a, b: a + b,
    "{a} - {b}": lambda a, b: a - b,
    "{a} * {b}": lambda a, b: a * b,
    "{a} & {b}": lambda a, b: a & b,
    "{a} | {b}": lambda a, b: a | b,
    "{a} ^ {b}": lambda a, b: a ^ b,
    "tl.minimum({a}, {b})": np.minimum,
    "tl.maximum({a}, {b})": np.maximum,
}
REAL = {
    "{a} + {b}": lambda a, b: a + b,
    "{a} - {b}": lambda a, b: a - b,
    "{a} * {b}": lambda a, b: a * b,
    "tl.minimum({a}, {b})": np.fmin,
    "tl.maximum({a}, {b})": np.fmax,
    "tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)": np.minimum,
    "tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)": np.maximum,
}
LOGICAL = {
    "{a} & {b}": lambda a, b: a & b,
    "{a} | {b}": lambda a, b: a | b,
    "{a} ^ {b}": lambda a, b: a ^ b,
}
COMPARISONS = {
    "{a} < {b}": lambda a, b: a < b,
    "{a} <= {b}": lambda a, b: a <= b,
    "{a} > {b}": lambda a, b: a > b,
    "{a} >= {b}": lambda a, b: a >= b,
    "{a} == {b}": lambda a, b: a == b,
    "{a} != {b}": lambda a, b: a != b,
}


def binary(b: Builder) -> None:
    x = b.exact()
    y = b.like(x)
    table: dict[str, Any] = LOGICAL if x.kind is BOOL else REAL if x.kind.is_float else INTEGER
    text = b.draw.pick(list(table))
    if b.draw.rarely(2):
        x, y = y, x
    cast = f".to({x.kind.tl})" if "tl." in text else ""  # Triton makes f32 of a bf16 minimum
    b.define(
        text.format(a=x.name, b=y.name) + cast,
        x.kind,
        wide(x.shape, y.shape),
        lambda env: table[text](env[x.name], env[y.name]),
    )


def with_constant(b: Builder) -> None:
    x = b.exact(number)
    table: dict[str, Any] = REAL if x.kind.is_float else INTEGER
    text, constant = b.draw.pick(list(table)[:3]), b.draw.pick([1, 2, 3, 7])
    c = float(constant) if x.kind.is_float else constant
    b.define(text.format(a=x.name, b=c), x.kind, x.shape, lambda env: table[text](env[x.name], x.kind.round(c)))


def compare(b: Builder) -> None:
    x = b.exact(number)
    y = b.like(x)
    text = b.draw.pick(list(COMPARISONS))
    f = COMPARISONS[text]
    shape = wide(x.shape, y.shape)
    b.define(text.format(a=x.name, b=y.name), BOOL, shape, lambda env: f(env[x.name], env[y.name]))


def compare_with_constant(b: Builder) -> None:
    """What masks are made of: numbers of elements against sizes, round ones more often than others."""
    x = b.exact(lambda v: v.kind in (I32, KINDS["i64"], KINDS["u32"]))
    text, c = b.draw.pick(list(COMPARISONS)), b.draw.pick([16, 64, 7, 100, 1024, 8, 1])
    b.define(text.format(a=x.name, b=c), BOOL, x.shape, lambda env: COMPARISONS[text](env[x.name], x.kind.round(c)))


def divide(b: Builder) -> None:
    x = b.exact(integer)
    y = b.like(x)
    text, f = b.draw.pick([("//", _truncated), ("%", np.fmod)])
    if x.kind.signed and b.draw.rarely(3):
        divisor = f"(-2 - ({y.name} & 15))"
        below = lambda env: x.kind.round(-2 - (env[y.name].astype(np.int64) & 15))  # noqa: E731
    else:
        divisor = f"(({y.name} & 15) + 1)"
        below = lambda env: x.kind.round((env[y.name] & x.kind.round(15)) + x.kind.round(1))  # noqa: E731
    b.define(f"{x.name} {text} {divisor}", x.kind, wide(x.shape, y.shape), lambda env: f(env[x.name], below(env)))


def divide_by_constant(b: Builder) -> None:
    x = b.exact(lambda v: v.kind in (I32, KINDS["i64"], KINDS["u32"], KINDS["u64"]))
    c = b.draw.pick([2, 16, 3, 64, 7, 1000])
    text, f = b.draw.pick([("//", _truncated), ("%", np.fmod)])
    b.define(f"{x.name} {text} {c}", x.kind, x.shape, lambda env: f(env[x.name], x.kind.round(c)))


def shift(b: Builder) -> None:
    x = b.exact(integer)
    y = b.like(x)
    text, f = b.draw.pick([("<<", np.left_shift), (">>", np.right_shift)])
    most = x.kind.bits - 1
    b.define(
        f"{x.name} {text} ({y.name} & {most})",
        x.kind,
        wide(x.shape, y.shape),
        lambda env: f(env[x.name], env[y.name] & x.kind.round(most)),
    )


def unary(b: Builder) -> None:
    x = b.exact()
    if x.kind is BOOL:
        b.define(f"~{x.name}", BOOL, x.shape, lambda env: ~env[x.name])
    elif x.kind.is_int:
        choices = [("~{}", np.invert), ("-{}", np.negative)] + ([("tl.abs({})", np.abs)] if x.kind.signed else [])
        text, f = b.draw.pick(choices)
        b.define(text.format(x.name), x.kind, x.shape, lambda env: f(env[x.name]))
    else:
        choices = [("-{}", np.negative), ("tl.abs({})", np.abs)]
        if x.kind.bits >= 32:
            choices += [("tl.floor({})", np.floor), ("tl.ceil({})", np.ceil)]
        if x.kind is F32:
            choices += [("tl.sqrt_rn({})", np.sqrt)]
        text, f = b.draw.pick(choices)
        b.define(text.format(x.name), x.kind, x.shape, lambda env: f(env[x.name]))


def where(b: Builder) -> None:
    x = b.exact()
    y = b.like(x)
    c = b.like(x, BOOL)
    if b.draw.rarely(2):
        x, y = y, x
    b.define(
        f"tl.where({c.name}, {x.name}, {y.name})",
        x.kind,
        wide(x.shape, y.shape, c.shape),
        lambda env: np.where(env[c.name], env[x.name], env[y.name]),
    )


def finite(b: Builder, x: Value, low: float, high: float) -> Value:
    """``x`` between two bounds, a NaN as zero: Triton's clamp leaves open what it makes of one."""
    n = x.name
    return b.define(
        f"tl.clamp(tl.where({n} == {n}, {n}, 0.0), {low}, {high}).to({x.kind.tl})",
        x.kind,
        x.shape,
        lambda env: np.clip(np.where(np.isnan(env[n]), 0, env[n]), low, high),
    )


def clamp(b: Builder) -> None:
    finite(b, b.exact(real), -2.5, 3.0)


def convert(b: Builder) -> None:
    x = b.exact()
    b.cast(x, b.draw.pick(COMMON))


def through_f8(b: Builder) -> None:
    """To eight bits and back. Numbers out of range are kept away: the two types answer them differently."""
    x = b.exact(lambda v: v.kind in (F32, KINDS["f16"], KINDS["bf16"]))
    kind = b.draw.pick(FLOATS8)
    clean = finite(b, b.cast(x, F32), -200.0, 200.0)
    small = b.define(f"{clean.name}.to({kind.tl})", kind, x.shape, lambda env: env[clean.name])
    back = b.draw.pick([F32, KINDS["f16"], KINDS["bf16"]])
    b.define(f"{small.name}.to({back.tl})", back, x.shape, lambda env: env[small.name])


def bits(b: Builder) -> None:
    """Integers of the same bits, signed or not."""
    x = b.exact(lambda v: integer(v))
    other = KINDS[("u" if x.kind.signed else "i") + str(x.kind.bits)]
    b.define(f"{x.name}.to({other.tl}, bitcast=True)", other, x.shape, lambda env: env[x.name].view(other.numpy))


def high_product(b: Builder) -> None:
    x = b.exact(lambda v: v.kind is KINDS["u32"])
    y = b.like(x)

    def high(env: Env) -> Any:
        return (env[x.name].astype(np.uint64) * env[y.name].astype(np.uint64)) >> np.uint64(32)

    b.define(f"tl.umulhi({x.name}, {y.name})", x.kind, wide(x.shape, y.shape), high)


LOOSE: dict[str, Callable[[Any], Any]] = {
    "tl.exp({x})": np.exp,
    "tl.exp2({x})": np.exp2,
    "tl.sin({x})": np.sin,
    "tl.cos({x})": np.cos,
    "tl.sigmoid({x})": lambda x: 1 / (1 + np.exp(-x)),
    "tl.log({x} * {x} + 1.0)": lambda x: np.log(x * x + 1),
    "tl.sqrt({x} * {x} + 1.0)": lambda x: np.sqrt(x * x + 1),
    "tl.rsqrt({x} * {x} + 1.0)": lambda x: 1 / np.sqrt(x * x + 1),
    "{x} / ({x} * {x} + 1.0)": lambda x: x / (x * x + 1),
    "tl.erf({x})": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
}


def function(b: Builder) -> None:
    """A function whose last bits are the library's own; the result goes no further than to be moved and stored."""
    x = b.exact(lambda v: v.kind in (F32, KINDS["f64"]))
    calm = finite(b, x, -20.0, 20.0)
    text = b.draw.pick(list(LOOSE))
    f = LOOSE[text]
    b.define(
        text.format(x=calm.name), x.kind, x.shape, lambda env: f(np.asarray(env[calm.name], np.float64)), loose=True
    )


def move_loose(b: Builder) -> None:
    x = b.find(lambda v: v.loose and len(v.shape) >= 1)
    c = b.like(Value("", BOOL, x.shape), BOOL)
    b.define(
        f"tl.where({c.name}, {x.name}, -{x.name})",
        x.kind,
        x.shape,
        lambda env: np.where(env[c.name], env[x.name], -env[x.name]),
        loose=True,
    )


# --- shapes


def transpose(b: Builder) -> None:
    x = b.tensor(lambda v: len(v.shape) >= 2)
    order = list(range(len(x.shape)))
    order = b.draw.pick([order[::-1], order[1:] + order[:1], [*order[:-2], order[-1], order[-2]]])
    b.define(
        f"tl.permute({x.name}, {tuple(order)})",
        x.kind,
        tuple(x.shape[i] for i in order),
        lambda env: env[x.name].transpose(order),
    )


def reshape(b: Builder) -> None:
    x = b.tensor()
    left, shape = x.elements, []
    for _ in range(b.draw.below(3)):
        size = b.draw.pick([s for s in (2, 4, 8, 1, 16, 64) if left % s == 0 and s <= left])
        shape.append(size)
        left //= size
    new = (*shape, left)
    b.define(f"tl.reshape({x.name}, {new})", x.kind, new, lambda env: env[x.name].reshape(new))


def spread(b: Builder) -> None:
    """A new axis, and as many copies along it."""
    x = b.exact(lambda v: len(v.shape) <= 2)
    size = b.draw.pick([s for s in (2, 4, 8, 16, 32, 1) if s * x.elements <= b.largest] or [1])
    if not x.shape:
        shape = b.shape()
        text = f"tl.zeros({shape}, {x.kind.tl}) + {x.name}"
        if x.kind is BOOL:
            text = f"tl.full({shape}, 1, tl.int1) & {x.name}"
        b.define(text, x.kind, shape, lambda env: np.broadcast_to(env[x.name], shape))
        return
    axis = b.draw.below(len(x.shape) + 1)
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    b.define(
        f"tl.broadcast_to(tl.expand_dims({x.name}, {axis}), {shape})",
        x.kind,
        shape,
        lambda env: np.broadcast_to(np.expand_dims(env[x.name], axis), shape),
    )


def outer(b: Builder) -> None:
    x = b.exact(lambda v: len(v.shape) == 1)
    y = b.exact(lambda v: len(v.shape) == 1 and v.elements * x.elements <= b.largest)
    y = b.cast(y, x.kind)
    table: dict[str, Any] = LOGICAL if x.kind is BOOL else REAL if x.kind.is_float else INTEGER
    text = b.draw.pick(list(table))
    b.define(
        text.format(a=f"{x.name}[:, None]", b=f"{y.name}[None, :]") + (f".to({x.kind.tl})" if "tl." in text else ""),
        x.kind,
        x.shape + y.shape,
        lambda env: table[text](env[x.name][:, None], env[y.name][None, :]),
    )


def join(b: Builder) -> None:
    x = b.tensor(lambda v: 2 * v.elements <= b.largest and len(v.shape) <= 3)
    y = b.exact(lambda v: v.shape == x.shape and v.kind is x.kind)
    shape = x.shape
    text, new, f = b.draw.pick(
        [
            ("tl.join({}, {})", (*shape, 2), lambda p, q: np.stack([p, q], -1)),
            (
                "tl.interleave({}, {})",
                (*shape[:-1], shape[-1] * 2),
                lambda p, q: np.stack([p, q], -1).reshape(*shape[:-1], shape[-1] * 2),
            ),
            ("tl.cat({}, {})", (shape[0] * 2, *shape[1:]), lambda p, q: np.concatenate([p, q])),
        ]
    )
    b.define(text.format(x.name, y.name), x.kind, new, lambda env: f(env[x.name], env[y.name]))


def split(b: Builder) -> None:
    x = b.tensor(lambda v: v.shape[-1] % 2 == 0 and v.elements >= 4)
    shape = x.shape
    if shape[-1] != 2 or len(shape) == 1:
        shape = (*shape[:-1], shape[-1] // 2, 2)
    left, right = (Value(b.fresh(), x.kind, shape[:-1]) for _ in range(2))

    def run(env: Env) -> None:
        pairs = env[x.name].reshape(shape)
        env[left.name], env[right.name] = pairs[..., 0], pairs[..., 1]

    b.emit(f"{left.name}, {right.name} = tl.split(tl.reshape({x.name}, {shape}))", run)
    b.scope += [left, right]


def flip(b: Builder) -> None:
    x = b.tensor(lambda v: number(v) and 1 not in v.shape)  # Triton's own flip refuses an axis of one element
    axis = b.draw.below(len(x.shape))
    b.define(f"tl.flip({x.name}, {axis})", x.kind, x.shape, lambda env: np.flip(env[x.name], axis))


def gather(b: Builder) -> None:
    x = b.tensor()
    axis = b.draw.below(len(x.shape))
    i = b.tensor(
        lambda v: (
            v.kind in (I32, KINDS["i64"])
            and len(v.shape) == len(x.shape)
            and all(p == q for a, (p, q) in enumerate(zip(v.shape, x.shape, strict=True)) if a != axis)
        )
    )
    n = x.shape[axis]

    def run(env: Env) -> Any:
        return np.take_along_axis(env[x.name], (env[i.name] & (n - 1)).astype(np.int64), axis)

    b.define(f"tl.gather({x.name}, {i.name} & {n - 1}, {axis})", x.kind, i.shape, run)


# --- along an axis


def calm(b: Builder, x: Value) -> Value:
    """``x`` without NaN, and whole and small where it is a float: sums are then exact in any order."""
    if not x.kind.is_float:
        return b.cast(x, I32) if x.kind is BOOL else x
    x = finite(b, b.cast(x, F32) if x.kind is not KINDS["f64"] else x, -8.0, 8.0)
    n = x.name
    return b.define(f"tl.floor({n})", x.kind, x.shape, lambda env: np.floor(env[n]))


def _dropped(shape: tuple[int, ...], axis: int | None, keep: bool) -> tuple[int, ...]:
    if axis is None:
        return (1,) * len(shape) if keep else ()
    return (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "tl.sum({x}, {axis}{keep})": np.add.reduce,
    "tl.max({x}, {axis}{keep})": np.maximum.reduce,
    "tl.min({x}, {axis}{keep})": np.minimum.reduce,
    "tl.reduce({x}, {axis}, add{keep})": np.add.reduce,
    "tl.xor_sum({x}, {axis}{keep})": np.bitwise_xor.reduce,
    "tl.reduce({x}, {axis}, bit_and{keep})": np.bitwise_and.reduce,
    "tl.reduce({x}, {axis}, multiply{keep})": np.multiply.reduce,
}


def reduce(b: Builder) -> None:
    x = calm(b, b.tensor())
    axis = b.draw.pick([*range(len(x.shape)), None])
    keep = b.draw.rarely(4)
    text = b.draw.pick(list(REDUCTIONS)[: 4 if x.kind.is_float else None])
    f = REDUCTIONS[text]
    result = x.kind
    if x.kind.bits < 32:  # as Triton widens them
        if "tl.sum" in text:
            result = KINDS["i32" if x.kind.signed else "u32"]
        elif "tl.max" in text or "tl.min" in text:
            result = I32
    b.define(
        text.format(x=x.name, axis=axis, keep=", keep_dims=True" if keep else ""),
        result,
        _dropped(x.shape, axis, keep),
        lambda env: f(env[x.name].astype(result.numpy), axis=axis, keepdims=keep, dtype=result.numpy),
    )


def arg_reduce(b: Builder) -> None:
    """The place of the largest or smallest, the first of equals."""
    x = calm(b, b.tensor(number))
    axis = b.draw.below(len(x.shape))
    name, f = b.draw.pick([("argmax", np.argmax), ("argmin", np.argmin)])
    shape = _dropped(x.shape, axis, False)
    b.define(f"tl.{name}({x.name}, {axis})", I32, shape, lambda env: f(env[x.name], axis=axis))


def reduce_pairs(b: Builder) -> None:
    """A combine function of two operands: the largest value with the smallest of its places."""
    x = calm(b, b.tensor(number))
    axis = b.draw.below(len(x.shape))
    places = Value(b.fresh(), I32, x.shape)
    index = "[" + ", ".join(":" if a == axis else "None" for a in range(len(x.shape))) + "]"
    where_ = np.arange(x.shape[axis], dtype=np.int32).reshape([-1 if a == axis else 1 for a in range(len(x.shape))])
    suffix = index if len(x.shape) > 1 else ""
    b.emit(
        f"{places.name} = tl.broadcast_to(tl.arange(0, {x.shape[axis]}){suffix}, {x.shape})",
        lambda env: env.__setitem__(places.name, np.broadcast_to(where_, x.shape)),
    )
    shape = _dropped(x.shape, axis, False)
    best, place = Value(b.fresh(), x.kind, shape), Value(b.fresh(), I32, shape)

    def run(env: Env) -> None:
        env[best.name] = np.max(env[x.name], axis=axis)
        env[place.name] = np.argmax(env[x.name], axis=axis).astype(np.int32)

    b.emit(f"{best.name}, {place.name} = tl.reduce(({x.name}, {places.name}), {axis}, larger_first)", run)
    b.scope += [places, best, place]


def scan(b: Builder) -> None:
    x = calm(b, b.tensor())
    axis, reverse = b.draw.below(len(x.shape)), b.draw.rarely(3)
    choices: list[tuple[str, Callable[..., Any]]] = [
        ("tl.associative_scan({}, {}, add, {})", np.add.accumulate),
        ("tl.associative_scan({}, {}, keep_last, {})", lambda a, axis, dtype: a),
    ]
    if not x.kind.is_float:
        choices += [
            ("tl.associative_scan({}, {}, multiply, {})", np.multiply.accumulate),
            ("tl.associative_scan({}, {}, bit_and, {})", np.bitwise_and.accumulate),
        ]
    if x.kind.bits >= 32:
        choices += [("tl.cumsum({}, {}, {})", np.add.accumulate)]
    text, f = b.draw.pick(choices)

    def run(env: Env) -> Any:
        a = np.flip(env[x.name], axis) if reverse else env[x.name]
        out = f(a, axis=axis, dtype=x.kind.numpy)
        return np.flip(out, axis) if reverse else out

    b.define(text.format(x.name, axis, reverse), x.kind, x.shape, run)


def scan_pairs(b: Builder) -> None:
    """Composition of maps ``a x + b``: associative, and the order of the operands matters."""
    x = b.tensor(lambda v: v.kind in (I32, KINDS["i64"], KINDS["u32"]))
    y = b.like(x)
    if y.shape != x.shape:
        raise _Nothing
    axis, reverse = b.draw.below(len(x.shape)), b.draw.rarely(3)
    p, q = Value(b.fresh(), x.kind, x.shape), Value(b.fresh(), x.kind, x.shape)

    def run(env: Env) -> None:
        a, c = (np.moveaxis(env[n].copy(), axis, 0) for n in (x.name, y.name))
        if reverse:
            a, c = a[::-1], c[::-1]
        a, c = a.copy(), c.copy()
        for i in range(1, len(a)):
            a[i], c[i] = a[i - 1] * a[i], c[i - 1] * a[i] + c[i]
        if reverse:
            a, c = a[::-1], c[::-1]
        env[p.name], env[q.name] = np.moveaxis(a, 0, axis), np.moveaxis(c, 0, axis)

    text = f"{p.name}, {q.name} = tl.associative_scan(({x.name}, {y.name}), {axis}, compose, {reverse})"
    b.emit(text, run)
    b.scope += [p, q]


def sort(b: Builder) -> None:
    x = calm(b, b.tensor(lambda v: number(v) and v.shape[-1] <= 256))
    down = b.draw.rarely(2)

    def run(env: Env) -> Any:
        out = np.sort(env[x.name], axis=-1)
        return np.flip(out, -1) if down else out

    b.define(f"tl.sort({x.name}, descending={down})", x.kind, x.shape, run)


def topk(b: Builder) -> None:
    x = calm(b, b.tensor(lambda v: number(v) and 4 <= v.shape[-1] <= 256))
    k = b.draw.pick([k for k in (2, 4, 8) if k < x.shape[-1]])
    b.define(
        f"tl.topk({x.name}, {k}).to({x.kind.tl})",  # Triton makes 32 bits of fewer
        x.kind,
        (*x.shape[:-1], k),
        lambda env: np.flip(np.sort(env[x.name], axis=-1), -1)[..., :k],
    )


def histogram(b: Builder) -> None:
    x = b.tensor(lambda v: v.kind is I32 and len(v.shape) == 1)
    bins = b.draw.pick([8, 16, 64])
    b.define(
        f"tl.histogram({x.name} & {bins - 1}, {bins})",
        I32,
        (bins,),
        lambda env: np.bincount(env[x.name] & (bins - 1), minlength=bins),
    )


def product(b: Builder) -> None:
    """A matrix product of small whole numbers, exact in any order."""
    x = b.tensor(lambda v: len(v.shape) in (2, 3) and number(v))
    y = b.tensor(lambda v: len(v.shape) == len(x.shape) and number(v) and v.shape[:-2] == x.shape[:-2])
    if x.shape[-1] != y.shape[-2]:
        if x.shape[-2] == y.shape[-2]:
            x = b.define(
                f"tl.permute({x.name}, {(1, 0) if len(x.shape) == 2 else (0, 2, 1)})",
                x.kind,
                (*x.shape[:-2], x.shape[-1], x.shape[-2]),
                lambda env, n=x.name: np.swapaxes(env[n], -1, -2),
            )
        else:
            raise _Nothing
    if x.elements * y.shape[-1] > 32 * b.largest:
        raise _Nothing
    kind = b.draw.pick([KINDS["f16"], F32, KINDS["bf16"], KINDS["i8"]])
    result = I32 if kind is KINDS["i8"] else F32
    p, q = (b.cast(_small(b, v), kind) for v in (x, y))
    shape = (*x.shape[:-1], y.shape[-1])
    if b.draw.rarely(2):
        b.define(
            f"tl.dot({p.name}, {q.name}, out_dtype={result.tl})",
            result,
            shape,
            lambda env: env[p.name].astype(np.float64) @ env[q.name].astype(np.float64),
        )
        return
    start = b.define(f"tl.full({shape}, 3, {result.tl})", result, shape, lambda env: np.full(shape, 3))
    b.define(
        f"tl.dot({p.name}, {q.name}, {start.name}, out_dtype={result.tl})",
        result,
        shape,
        lambda env: env[p.name].astype(np.float64) @ env[q.name].astype(np.float64) + 3,
    )


def _small(b: Builder, x: Value) -> Value:
    if x.kind.is_float:
        return calm(b, x)
    wide_ = b.cast(x, KINDS["i64"])
    return b.define(f"({wide_.name} & 15) - 8", KINDS["i64"], x.shape, lambda env: (env[wide_.name] & 15) - 8)


# --- memory


def load(b: Builder) -> None:
    shapes = [v.shape for v in b.scope if v.shape]
    b.load(b.draw.pick([shapes[-1], b.shape()]) if shapes else b.shape())


def load_scalar(b: Builder) -> None:
    kind = b.draw.pick(STORED)
    x = b.argument(kind, b.numbers(kind, b.program.grid))
    b.define(f"tl.load({x.name} + tl.program_id(0))", kind, (), lambda env: env[x.name][env["pid"]])


def number_argument(b: Builder) -> None:
    n = b.argument(I32, int(b.values.integers(-5, 100)))
    b.define(f"{n.name} + tl.program_id(0)", I32, (), lambda env: np.int32(env[n.name] + env["pid"]))


def move_by_argument(b: Builder) -> None:
    """Numbers of elements from somewhere on, which may be before zero, and a multiple that Triton knows of."""
    x = b.tensor(lambda v: v.kind is I32)
    n = b.argument(I32, b.draw.pick([16, -16, -48, 1024, 7, -5]))
    b.define(f"{x.name} + {n.name}", I32, x.shape, lambda env: env[x.name] + np.int32(env[n.name]))


def place(b: Builder) -> None:
    """Each element's row-major number: what masks and indices are made of."""
    shapes = [v.shape for v in b.scope if v.shape]
    b.offsets(b.draw.pick(shapes) if shapes else b.shape(), each_program=False)


ATOMICS = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def atomic(b: Builder) -> None:
    """Integers combined into a few places, in whatever order."""
    x = b.tensor(lambda v: v.kind in (I32, KINDS["u32"], KINDS["i64"], KINDS["u64"]))
    i = b.like(x, I32)
    if i.shape != x.shape:
        raise _Nothing
    bins = b.draw.pick([16, 4, 64, 1024])
    name = b.draw.pick(list(ATOMICS))
    o = b.argument(x.kind, b.numbers(x.kind, bins), output=True)
    mask = b.like(x, BOOL) if b.draw.rarely(3) else None
    if mask is not None and mask.shape != x.shape:
        mask = None

    def run(env: Env) -> None:
        at, v = env[i.name] & (bins - 1), env[x.name]
        if mask is not None:
            at, v = at[env[mask.name]], v[env[mask.name]]
        ATOMICS[name].at(env[o.name], at, v)

    text = f", mask={mask.name}" if mask is not None else ""
    b.emit(f"tl.atomic_{name}({o.name} + ({i.name} & {bins - 1}), {x.name}{text})", run)


ELEMENTWISE: list[Step] = [
    binary, binary, binary, with_constant, compare, compare_with_constant, where, where, unary, divide,
    divide_by_constant, shift, clamp, convert, convert, through_f8, bits, high_product, function, move_loose,
]  # fmt: skip
SHAPES: list[Step] = [transpose, reshape, spread, outer, join, join, split, flip, gather]
COLLECTIVE: list[Step] = [
    reduce, reduce, reduce, arg_reduce, reduce_pairs, scan, scan_pairs, sort, topk, histogram, product, product,
]  # fmt: skip
MEMORY: list[Step] = [
    load, load, load_scalar, number_argument, place, place, move_by_argument, atomic,
]  # fmt: skip
STEPS: list[Step] = [*ELEMENTWISE, *SHAPES, *COLLECTIVE, *MEMORY, *fuzz_calls.STEPS]
