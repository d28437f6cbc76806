"""Loops and branches for :mod:`tests.fuzz_programs`: each a block of steps, and variables that it changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz_programs import I32, Builder, Env, Statement, Value
from tests.fuzz_steps import Step, number


def _run_all(block: list[Statement], env: Env) -> None:
    for statement in block:
        statement.run(env)


def _lines(block: list[Statement]) -> list[str]:
    return [f"    {line}" for s in block for line in s.lines]


def _carry(b: Builder) -> list[tuple[Value, Value]]:
    """One to three variables that a block changes, each with the exact value it begins with."""
    pairs = []
    for _ in range(1 + b.draw.below(3)):
        start = b.exact(number)
        pairs.append((Value(b.fresh("c"), start.kind, start.shape), start))
    return pairs


def _begin(b: Builder, pairs: list[tuple[Value, Value]]) -> None:
    for i, (carried, start) in enumerate(pairs):
        # Each begins with a value of its own: Triton 3.7 takes variables that begin as one for one variable, even
        # where the loop exchanges them (`a, b, c = y, x, a` from `a = b = c` on; seen in its IR before any backend).
        other = start.kind.round(i)
        b.emit(
            f"{carried.name} = {start.name}" + (f" + {i}" if i else ""),
            lambda env, c=carried.name, s=start.name, k=start.kind, o=other: env.__setitem__(c, k.round(env[s] + o)),
        )


def _end(b: Builder, pairs: list[tuple[Value, Value]], block: list[Statement], scope: list[Value]) -> None:
    """Let the block end by overwriting the carried variables, in any order of reading: an exchange included."""
    for carried, _ in pairs:
        fitting = [v for v in reversed(scope) if v.kind is carried.kind and v.shape == carried.shape and not v.loose]
        source = fitting[min(b.draw.below(len(fitting)), b.draw.below(len(fitting)))] if fitting else carried
        block.append(
            Statement(
                (f"{carried.name}_next = {source.name}",),
                lambda env, c=carried.name, s=source.name: env.__setitem__(f"{c}_next", env[s]),
            )
        )
    for carried, _ in pairs:
        block.append(
            Statement(
                (f"{carried.name} = {carried.name}_next",),
                lambda env, c=carried.name: env.__setitem__(c, env[f"{c}_next"]),
            )
        )


def _limit(b: Builder, most: int) -> tuple[str, Callable[[Env], int]]:
    """A number of rounds: a constant, an argument, or one that only the kernel knows."""
    style = b.draw.below(3)
    if style == 0:
        n = 1 + b.draw.below(most)
        return str(n), lambda env: n
    if style == 1:
        a = b.argument(I32, int(b.values.integers(0, most + 1)))
        return a.name, lambda env: env[a.name]
    s = b.exact(lambda v: not v.shape and v.kind is I32)
    return f"({s.name} & {most - 1})", lambda env: int(env[s.name]) & (most - 1)


def for_loop(b: Builder) -> None:
    pairs = _carry(b)
    limit, rounds = _limit(b, 4)
    static = limit.isdigit() and b.draw.rarely(3)
    _begin(b, pairs)
    i = Value(b.fresh("i"), I32, ())
    outside = b.scope
    # A loop that Triton unrolls has a Python number for a counter, which has no type of its own.
    b.scope = [*outside, *(c for c, _ in pairs), *([] if static else [i])]
    block, made = b.inner(1 + b.draw.below(4))
    _end(b, pairs, block, [*b.scope, *made])
    b.scope = [*outside, *(c for c, _ in pairs)]

    def run(env: Env) -> None:
        for k in range(rounds(env)):
            env[i.name] = np.int32(k)
            _run_all(block, env)

    b.emit([f"for {i.name} in {'tl.static_range' if static else 'range'}({limit}):", *_lines(block)], run)


def while_loop(b: Builder) -> None:
    pairs = _carry(b)
    limit, rounds = _limit(b, 4)
    _begin(b, pairs)
    i = b.fresh("i")
    b.emit(f"{i} = 0", lambda env: None)
    outside = b.scope
    b.scope = [*outside, *(c for c, _ in pairs)]
    block, made = b.inner(1 + b.draw.below(4))
    _end(b, pairs, block, [*b.scope, *made])
    b.scope = [*outside, *(c for c, _ in pairs)]

    def run(env: Env) -> None:
        for _ in range(rounds(env)):
            _run_all(block, env)

    b.emit([f"while {i} < {limit}:", *_lines(block), f"    {i} += 1"], run)


def branch(b: Builder) -> None:
    pairs = _carry(b)
    scalar = b.exact(lambda v: not v.shape and v.kind.is_int)
    _begin(b, pairs)
    outside = b.scope
    b.scope = [*outside, *(c for c, _ in pairs)]
    then, made = b.inner(1 + b.draw.below(3))
    _end(b, pairs, then, [*b.scope, *made])
    otherwise: list[Statement] = []
    if b.draw.rarely(2):
        otherwise, made = b.inner(1 + b.draw.below(3))
        _end(b, pairs, otherwise, [*b.scope, *made])
    b.scope = [*outside, *(c for c, _ in pairs)]
    lines = [f"if ({scalar.name} & 1) == 0:", *_lines(then)]
    if otherwise:
        lines += ["else:", *_lines(otherwise)]

    def run(env: Env) -> None:
        _run_all(then if int(env[scalar.name]) & 1 == 0 else otherwise, env)

    b.emit(lines, run)


NESTED: list[Step] = [for_loop, while_loop, branch]
