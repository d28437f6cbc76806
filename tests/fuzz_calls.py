"""Steps for :mod:`tests.fuzz_steps`: functions of several returns, scalars out of tensors, tuples, descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz_programs import I32, STORED, Builder, Env, Value


def _by_cases(a: int, b: int) -> int:
    if a > b:
        return a - b if a > 10 else a + b
    return a * 2 if b == 3 else b - a


def _wrapped(value: int) -> Any:
    return np.int64(value).astype(np.int32)


def several_returns(b: Builder) -> None:
    """A function that returns early, out of branches in branches."""
    x = b.exact(lambda v: v.kind is I32 and v.shape == ())
    y = b.like(x, I32)
    text = f"by_cases({x.name}, {y.name})"
    b.define(text, I32, (), lambda env: _wrapped(_by_cases(int(env[x.name]), int(env[y.name]))))


def scalar_of_tensor(b: Builder) -> None:
    """The one element of a tensor of one, as a scalar."""
    kind = b.draw.pick(STORED)
    x, i = b.argument(kind, b.numbers(kind, 4)), b.draw.below(4)
    b.define(f"tl.load({x.name} + {i} + tl.arange(0, 1)).item()", kind, (), lambda env: env[x.name][i])


def through_a_tuple(b: Builder) -> None:
    """Two values into a function as a tuple, and out of it the other way round."""
    x, y = b.exact(), b.exact()
    pair, first, second = b.fresh("t"), Value(b.fresh(), y.kind, y.shape), Value(b.fresh(), x.kind, x.shape)

    def run(env: Env) -> None:
        env[first.name], env[second.name] = env[y.name], env[x.name]

    lines = (f"{pair} = ({x.name}, {y.name})", f"{first.name}, {second.name} = exchanged({pair})")
    b.emit(lines, run)
    b.scope += [first, second]


def described(b: Builder) -> None:
    """A tile that a descriptor loads, partly outside of what it describes."""
    kind = b.draw.pick([k for k in STORED if k.bits >= 8])
    rows, columns = b.draw.pick([5, 16, 33]), b.draw.pick([16, 48, 64])
    shape = (b.draw.pick([4, 16]), 16)
    at = (b.draw.pick([0, 3, 8]), b.draw.pick([0, 16, 24]))
    x = b.argument(kind, b.numbers(kind, rows * columns))

    def run(env: Env) -> Any:
        whole = np.zeros((at[0] + shape[0] + rows, at[1] + shape[1] + columns), env[x.name].dtype)
        whole[:rows, :columns] = env[x.name][: rows * columns].reshape(rows, columns)
        return whole[at[0] : at[0] + shape[0], at[1] : at[1] + shape[1]]

    made = f"tl.make_tensor_descriptor({x.name}, [{rows}, {columns}], [{columns}, 1], {list(shape)})"
    b.define(f"{made}.load([{at[0]}, {at[1]}])", kind, shape, run)


STEPS: list[Callable[[Builder], Any]] = [several_returns, scalar_of_tensor, through_a_tuple, described]
