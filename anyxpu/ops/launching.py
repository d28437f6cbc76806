"""Launches of signature classes' kernels from Python: for operators whose own work is large beside a call of Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyxpu.ops import classes
from anyxpu.shim import lib

Launch = Callable[..., None]
"""``(groups, elements, *arguments)``: enqueues the kernel on the current stream of its device; it makes that many."""

_made: dict[tuple[Any, ...], Launch] = {}


def kernel(device: int, family: str, *words: Any, wait: bool = False) -> Launch | None:
    """How to launch the kernel that these words name.

    Args:
        device: ordinal.
        family: of :mod:`anyxpu.ops.classes`, whose module has ``arguments(*words)``: the types of what the kernel
            takes, in order.
        words: what the family's ``source`` takes; strings, numbers, and tuples of them.
        wait: the host is not to serve meanwhile.

    Returns:
        None where the device does not run it, or the host is to serve while it is built.
    """
    key = (device, family, words)
    found = _made.get(key)
    if found is None:
        made = classes.provide(device, family, words, wait)
        if not made:
            return None
        found = _made[key] = _launch(device, family, words, made)  # type: ignore[arg-type]
    return found


def _launch(device: int, family: str, words: tuple[Any, ...], made: tuple[Any, int, int, list[str]]) -> Launch:
    handle, lanes, operations, messages = made
    types = importlib.import_module(classes.module_of(family)).arguments(*words)
    tile, queue = _tile(words), torch._C._xpu_getCurrentRawStream
    launchers: dict[int, Any] = {}

    def launch(groups: int, elements: int, *arguments: Any) -> None:
        # What a program does, to a power of two: whether a CPU device's launching thread does all itself hangs on it,
        # or shares it with its crew, or leaves it to the device's own threads, as work of which nothing is said.
        each = max(elements * operations // (tile * max(groups, 1)), 1)
        size = each.bit_length() if each * groups < _MUCH else 0
        run = launchers.get(size)
        if run is None:
            work = ((1 << size - 1, ()),) if size else ()
            run = launchers[size] = lib().Launcher(types, (lanes, 1, 1), 0, work, messages)
        run(groups, 1, 1, queue(device), handle, *arguments)

    return launch


def types_of(pointers: Sequence[str], takes: str, constants: Sequence[tuple[str, Any]]) -> list[str]:
    """The types of a kernel's arguments.

    Args:
        pointers: what its first arguments point to.
        takes: a letter for each of the others: ``i`` an integer of 32 bits, ``l`` of 64, ``#`` a number of the type
            that is computed in.
        constants: names and values; ``OP`` names that type.
    """
    kinds = {"i": "i32", "l": "i64", "#": dict(constants).get("OP")}
    return [f"*{t}" for t in pointers] + [str(kinds[letter]) for letter in takes]


def ast_source(function: Any, types: Sequence[str], constants: Sequence[tuple[str, Any]]) -> Any:
    """The ``triton.compiler.ASTSource`` of a jit function for arguments of such types, the rest being constants.

    Of the constants, ``OP`` is the name of a type, and lists become tuples.
    """
    from triton.compiler import ASTSource

    values: dict[str, Any] = {n: tuple(v) if isinstance(v, (list, tuple)) else v for n, v in constants}
    if "OP" in values:
        values["OP"] = classes.dtypes()[str(values["OP"])]
    taken = [name for name in function.arg_names if name not in values]
    signature = dict(zip(taken, types, strict=True))
    return ASTSource(function, signature | dict.fromkeys(values, "constexpr"), values, {})


_MUCH = 1 << 30  # operations


def _tile(words: Any) -> int:
    """Elements of a tile, of the words' R and L."""
    constants: dict[str, Any] = dict(word for word in words[-1] if isinstance(word, tuple))
    return int(constants.get("R", 1) * constants.get("L", 1))


def programs(device: int) -> int:
    """How many work-groups keep a device busy."""
    properties = lib().properties(device)
    return 2 * int(properties.max_compute_units) if properties.type == "cpu" else 512


def on_cpu(device: int) -> bool:
    """Is it a CPU device, whose programs are loops over few registers?"""
    return bool(lib().properties(device).type == "cpu")


def power_of_two(n: int, least: int, most: int) -> int:
    """The least power of two from n on, within bounds that are powers of two."""
    return min(max(least, 1 << max(n - 1, 0).bit_length()), most)
