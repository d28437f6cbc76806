"""Random well-typed Triton kernels, each with what it means in NumPy.

:func:`draw_program` grows a kernel statement by statement. Every statement knows its line of Triton and how to run on a
dictionary of NumPy arrays, one for each variable, so that a kernel's expected outputs come from NumPy alone.

Results are compared exactly wherever IEEE 754 leaves one answer. What depends on the order of an addition or on the
quality of a function is a *loose* value: it may be moved, chosen and stored, and is compared with a tolerance, but
nothing that could magnify its error is computed from it. What Triton leaves undefined (a shift by too much, a division
by zero, a cast out of range) is kept out by construction.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Env = dict[str, Any]

# Names that the kernels may call besides Triton's own.
PREAMBLE = """\
import triton
import triton.language as tl

from tests.fuzz_functions import add, bit_and, by_cases, compose, exchanged, keep_last, larger_first, multiply
from tests.fuzz_programs import unpacked


"""


@dataclass(frozen=True)
class Kind:
    """An element type. bf16 and f8 values are held as float32 that the type can represent."""

    name: str
    tl: str
    numpy: Any
    torch: torch.dtype
    bits: int

    @property
    def is_float(self) -> bool:
        return self.name[0] in "fb" and self.name != "b1"

    @property
    def is_int(self) -> bool:
        return self.name[0] in "iu"

    @property
    def signed(self) -> bool:
        return self.name[0] == "i"

    def round(self, array: Any) -> Any:
        """``array``'s values as this type rounds them."""
        with np.errstate(all="ignore"):
            if self.name == "b1":
                return np.asarray(array) != 0
            if self.name not in ("bf16", "f8e5", "f8e4"):
                return np.asarray(array).astype(self.numpy)
        wide = torch.from_numpy(
            np.array(array, dtype=np.float64 if np.asarray(array).dtype == np.float64 else np.float32)
        )
        return wide.to(self.torch).to(torch.float32).numpy()

    def tensor(self, array: Any) -> torch.Tensor:
        """A CPU tensor of ``array``'s values."""
        return torch.from_numpy(np.array(array)).to(self.torch)

    def array(self, tensor: torch.Tensor) -> Any:
        return (tensor.to(torch.float32) if self.numpy is np.float32 else tensor).numpy()


KINDS = {
    k.name: k
    for k in (
        Kind("b1", "tl.int1", np.bool_, torch.bool, 1),
        Kind("i8", "tl.int8", np.int8, torch.int8, 8),
        Kind("i16", "tl.int16", np.int16, torch.int16, 16),
        Kind("i32", "tl.int32", np.int32, torch.int32, 32),
        Kind("i64", "tl.int64", np.int64, torch.int64, 64),
        Kind("u8", "tl.uint8", np.uint8, torch.uint8, 8),
        Kind("u16", "tl.uint16", np.uint16, torch.uint16, 16),
        Kind("u32", "tl.uint32", np.uint32, torch.uint32, 32),
        Kind("u64", "tl.uint64", np.uint64, torch.uint64, 64),
        Kind("f16", "tl.float16", np.float16, torch.float16, 16),
        Kind("bf16", "tl.bfloat16", np.float32, torch.bfloat16, 16),
        Kind("f32", "tl.float32", np.float32, torch.float32, 32),
        Kind("f64", "tl.float64", np.float64, torch.float64, 64),
        Kind("f8e5", "tl.float8e5", np.float32, torch.float8_e5m2, 8),
        Kind("f8e4", "tl.float8e4nv", np.float32, torch.float8_e4m3fn, 8),
    )
}
STORED = [k for k in KINDS.values() if k.name not in ("b1", "f8e5", "f8e4")]
COMMON = [
    KINDS[n] for n in ("f32", "i32", "f32", "i32", "i64", "f16", "bf16", "i8", "i16", "f64", "u8", "u32", "u64", "u16")
]
FLOATS8 = [KINDS["f8e5"], KINDS["f8e4"]]
I32, I64, F32, BOOL = KINDS["i32"], KINDS["i64"], KINDS["f32"], KINDS["b1"]


@dataclass(frozen=True, eq=False)
class Value:
    """A variable of the kernel; ``shape`` () is a scalar. ``loose`` values are inexact, see the module's docstring."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    loose: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Statement:
    """Lines of Triton, already indented against their block, and what they do to the variables."""

    lines: tuple[str, ...]
    run: Callable[[Env], None]


@dataclass
class Argument:
    """A kernel's argument: an array in memory (``data`` before the kernel runs), or a number."""

    name: str
    kind: Kind
    data: Any
    skip: int = 0  # the tensor begins this many elements into its memory, so that its address is odd
    output: bool = False
    loose: bool = False


@dataclass
class Program:
    """A kernel with its arguments, the number of its programs, and the options it is compiled with."""

    arguments: list[Argument] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    grid: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def source(self) -> str:
        names = ", ".join(a.name for a in self.arguments)
        body = [f"    {line}" for s in self.statements for line in s.lines]
        return "\n".join([f"{PREAMBLE}@triton.jit", f"def kernel({names}):", *body, ""])

    def expected(self) -> dict[str, Any]:
        """The outputs by NumPy, program after program."""
        memory = {a.name: np.array(a.data) if isinstance(a.data, np.ndarray) else a.data for a in self.arguments}
        with np.errstate(all="ignore"):
            for pid in range(self.grid):
                env: Env = {**memory, "pid": np.int32(pid)}
                for statement in self.statements:
                    statement.run(env)
        return {a.name: memory[a.name] for a in self.arguments if a.output}


# --- a program's data in its file


def packed(data: Any) -> str:
    """Python that gives ``data`` again: an array as its compressed bytes, which are too many to be read anyway."""
    if not isinstance(data, np.ndarray):
        return repr(data)
    text = base64.b85encode(zlib.compress(np.ascontiguousarray(data).tobytes(), 9)).decode()
    lines = "\n".join(f"        {text[i : i + 100]!r}" for i in range(0, len(text), 100))
    return f'unpacked("{data.dtype.name}", (\n{lines}\n    ))'


def unpacked(dtype: str, text: str) -> Any:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype).copy()


# --- drawing


Below = Callable[[int], int]


class Draw:
    """Choices out of one function ``below(n)``, which gives a number in [0, n). Zero is the simplest choice."""

    def __init__(self, below: Below) -> None:
        self.below = below

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def rarely(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1


class _Nothing(Exception):
    """A step that has no fitting operands."""


class Builder:
    """Grows one program. ``scope`` holds the variables in reach; blocks of loops and branches push a copy."""

    def __init__(self, draw: Draw, largest: int) -> None:
        self.draw, self.largest = draw, largest
        self.program = Program()
        self.block = self.program.statements
        self.scope: list[Value] = []
        self.depth = 0
        self.count = 0
        self.values = np.random.default_rng(draw.below(1 << 16))

    # --- names and statements

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def emit(self, lines: str | Sequence[str], run: Callable[[Env], None]) -> None:
        self.block.append(Statement((lines,) if isinstance(lines, str) else tuple(lines), run))

    def define(
        self,
        text: str,
        kind: Kind,
        shape: tuple[int, ...],
        compute: Callable[[Env], Any],
        *,
        loose: bool = False,
    ) -> Value:
        """One line ``name = text``; ``compute``'s result is rounded to ``kind``."""
        value = Value(self.fresh(), kind, tuple(shape), loose)

        def run(env: Env) -> None:
            env[value.name] = kind.round(compute(env))

        self.emit(f"{value.name} = {text}", run)
        self.scope.append(value)
        return value

    # --- finding operands

    def find(self, wanted: Callable[[Value], bool]) -> Value:
        """A variable in reach; the latest are the likeliest."""
        found = [v for v in reversed(self.scope) if wanted(v)]
        if not found:
            raise _Nothing
        return found[min(self.draw.below(len(found)), self.draw.below(len(found)))]

    def exact(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        return self.find(lambda v: not v.loose and v.kind not in FLOATS8 and wanted(v))

    def tensor(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        return self.exact(lambda v: bool(v.shape) and wanted(v))

    def like(self, value: Value, kind: Kind | None = None) -> Value:
        """An exact value of the same shape (a scalar will do) and of ``kind``, cast to it if there is none."""
        kind = kind or value.kind
        try:
            if self.draw.rarely(4):
                raise _Nothing
            return self.exact(lambda v: v.kind is kind and v.shape in (value.shape, ()))
        except _Nothing:
            source = self.exact(lambda v: v.shape in (value.shape, ()))
            return self.cast(source, kind)

    def cast(self, v: Value, kind: Kind) -> Value:
        if v.kind is kind:
            return v
        n = v.name
        if v.kind.is_float and not kind.is_float:
            if kind is BOOL:
                return self.define(f"{n} > 0", BOOL, v.shape, lambda env: env[n] > 0)
            high = 100.0 if kind.bits == 8 else 1000.0
            low = -high if kind.signed else 0.0
            from tests.fuzz_steps import finite

            v = finite(self, v, low, high)
            m = v.name
            return self.define(f"{m}.to({kind.tl})", kind, v.shape, lambda env: np.trunc(env[m]))
        if v.kind is BOOL and kind.is_int and kind.signed:  # Triton's own words differ on the sign of a true bit
            return self.define(f"tl.where({n}, 1, 0).to({kind.tl})", kind, v.shape, lambda env: env[n])
        return self.define(f"{n}.to({kind.tl})", kind, v.shape, lambda env: env[n])

    # --- memory

    def argument(self, kind: Kind, data: Any, **more: Any) -> Argument:
        argument = Argument(self.fresh("x" if isinstance(data, np.ndarray) else "n"), kind, data, **more)
        self.program.arguments.append(argument)
        return argument

    def numbers(self, kind: Kind, n: int) -> Any:
        """Fresh random data: small numbers, wide ones, and the special ones of floats."""
        r, style = self.values, self.draw.below(4)
        if kind.is_float:
            small = r.integers(-8, 9, n).astype(np.float64)
            data = small if style == 0 else r.standard_normal(n) * (1 if style < 3 else 100)
            if style == 3:
                special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, -1.5])
                data = np.where(r.random(n) < 0.2, r.choice(special, n), data)
            return kind.round(data)
        info = np.iinfo(kind.numpy)
        if style < 2:
            return r.integers(max(-9, info.min), 10, n).astype(kind.numpy)
        return r.integers(info.min, info.max, n, dtype=kind.numpy, endpoint=True)

    def offsets(self, shape: tuple[int, ...], each_program: bool = True) -> Value:
        """The row-major number of each element, or another order of them; a program's own where ``each_program``."""
        order = list(range(len(shape)))
        if self.draw.rarely(3):
            order = self.draw.pick([order, order[::-1], order[1:] + order[:1]])
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], step = step, step * shape[axis]
        terms = []
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            index = "[" + ", ".join(":" if a == axis else "None" for a in range(len(shape))) + "]"
            terms.append(f"tl.arange(0, {size}){index if len(shape) > 1 else ''} * {stride}")
        base = np.zeros(shape, np.int32)
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            view = [1] * len(shape)
            view[axis] = size
            base = base + (np.arange(size, dtype=np.int32) * stride).reshape(view)
        whole = math.prod(shape) if each_program and self.program.grid > 1 else 0
        text = " + ".join(terms) + (f" + tl.program_id(0) * {whole}" if whole else "")
        return self.define(text, I32, shape, lambda env: base + env["pid"] * whole)

    def load(self, shape: tuple[int, ...]) -> Value:
        kind = self.draw.pick(COMMON)
        n = math.prod(shape) * self.program.grid
        skip = self.draw.pick([0, 0, 0, 1])
        x = self.argument(kind, self.numbers(kind, n), skip=skip)
        style = self.draw.below(4)
        if style == 3:
            try:
                return self.gathered(x, self.tensor(lambda v: v.shape == shape and v.kind.is_int))
            except _Nothing:
                style = 0
        offsets = self.offsets(shape)
        if style == 0:
            return self.define(
                f"tl.load({x.name} + {offsets.name})", kind, shape, lambda env: env[x.name][env[offsets.name]]
            )
        return self.masked(x, offsets, style == 2)

    def masked(self, x: Argument, offsets: Value, random_mask: bool) -> Value:
        """A load that leaves elements out: those past a number, or as any bits say."""
        n = len(x.data)
        kind, name = x.kind, offsets.name
        if random_mask:
            try:
                mask = self.like(offsets, BOOL)
                if mask.shape != offsets.shape:
                    raise _Nothing
            except _Nothing:
                random_mask = False
        if not random_mask:
            limit = int(self.values.integers(1, n + 1))
            # Triton compiles a kernel apart for multiples of 16.
            limit = self.argument(I32, -(-limit // 16) * 16 if self.draw.rarely(2) else limit)
            mask = self.define(f"{name} < {limit.name}", BOOL, offsets.shape, lambda env: env[name] < env[limit.name])
        other = self.draw.pick([0, 1, 3])
        text = f"tl.load({x.name} + {name}, mask={mask.name}, other={other})"
        return self.define(
            text, kind, offsets.shape, lambda env: np.where(env[mask.name], env[x.name][env[name]], kind.round(other))
        )

    def gathered(self, x: Argument, index: Value) -> Value:
        n, i = len(x.data), index.name
        wide = self.define(
            f"({i}.to(tl.int64) % {n} + {n}) % {n}",
            I64,
            index.shape,
            lambda env: (np.fmod(env[i].astype(np.int64), n) + n) % n,
        )
        w = wide.name
        return self.define(f"tl.load({x.name} + {w})", x.kind, index.shape, lambda env: env[x.name][env[w]])

    def store(self, value: Value) -> None:
        """Store to memory of its own; a part of it where a mask says so."""
        kind = KINDS["i8"] if value.kind is BOOL else value.kind
        n = max(1, value.elements) * self.program.grid
        o = self.argument(kind, kind.round(np.full(n, 7)), output=True, loose=value.loose)
        v = value.name
        if not value.shape:

            def run_scalar(env: Env) -> None:
                env[o.name][env["pid"]] = kind.round(env[v])

            self.emit(f"tl.store({o.name} + tl.program_id(0), {v})", run_scalar)
            return
        offsets = self.offsets(value.shape).name
        mask = None
        if self.draw.rarely(3):
            try:
                mask = self.tensor(lambda m: m.shape == value.shape and m.kind is BOOL).name
            except _Nothing:
                mask = None

        def run(env: Env) -> None:
            at = env[offsets] if mask is None else env[offsets][env[mask]]
            env[o.name][at] = kind.round(env[v] if mask is None else env[v][env[mask]])

        self.emit(f"tl.store({o.name} + {offsets}, {v}{f', mask={mask}' if mask else ''})", run)

    # --- the program

    def shape(self) -> tuple[int, ...]:
        rank = self.draw.pick([1, 2, 1, 2, 3])
        budget = self.draw.pick([64, 16, 256, 1024, self.largest])
        shape = []
        for _ in range(rank):
            size = self.draw.pick([s for s in (4, 16, 8, 2, 32, 1, 64, 128, 512, 2048) if s <= budget])
            shape.append(size)
            budget //= size
        return tuple(shape)

    def step(self) -> None:
        """Add one step; one that finds no operands adds nothing."""
        from tests.fuzz_control import NESTED
        from tests.fuzz_steps import STEPS

        # Blocks are costly to run and to read, and at most two deep.
        step = self.draw.pick(NESTED) if self.depth < 2 and self.draw.rarely(8) else self.draw.pick(STEPS)
        try:
            step(self)
        except _Nothing:
            return

    def inner(self, steps: int) -> tuple[list[Statement], list[Value]]:
        """Steps in a block of their own; the statements, and the values that they made."""
        outer_block, outer_scope = self.block, self.scope
        self.block, self.scope, self.depth = [], list(outer_scope), self.depth + 1
        for _ in range(steps):
            self.step()
        block, made = self.block, [v for v in self.scope if v not in outer_scope]
        self.block, self.scope, self.depth = outer_block, outer_scope, self.depth - 1
        return block, made


def draw_program(below: Below, steps: int = 14, largest: int = 2048) -> Program:
    """A kernel of about ``steps`` steps over tiles of at most ``largest`` elements."""
    builder = Builder(Draw(below), largest)
    draw, program = builder.draw, builder.program
    program.grid = draw.pick([1, 2, 1, 3])
    program.options = draw.pick([{}, {"num_warps": 4, "keep_warps": True}, {"num_warps": 2, "keep_warps": True}])
    program.options = {**program.options, "enable_fp_fusion": False}
    shape = builder.shape()
    for _ in range(1 + draw.below(3)):
        builder.load(shape)
    for _ in range(1 + draw.below(steps)):
        builder.step()
    loads = len(builder.scope)
    stored = builder.scope[-1:] + [builder.scope[draw.below(loads)] for _ in range(draw.below(4))]
    for value in dict.fromkeys(stored):
        builder.store(value)
    return program
