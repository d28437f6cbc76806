"""Sorting inside of a kernel, by loops.

Triton's ``tl.sort`` and ``tl.topk`` and Inductor's ``sort_with_index`` are bitonic networks whose log²(n) stages are
each traced into the kernel, as reshapes and sums of a hypercube: a sort of 1,024 elements is 55 copies of a stage, and
takes a compiler seconds, or a minute for a GPU. Here the same networks, compare for compare, are two loops around one
stage, whose partner lanes are reached by ``tl.gather`` (K. Batcher, "Sorting networks and their applications", 1968).
Results are the same bits, also of NaNs and of ties; but zeros of ``tl.topk`` may have the other sign, since halves are
joined by a maximum, which of 0 and -0 is either.

Triton has no sort that takes indices along, so libraries of attention and of routing (FLA, vLLM, SGLang, FlagGems)
carry a network of their own, made from Triton 2.2's by hand: ``_bitonic_merge(x, ids, stage, order, n_dims)``, which
calls ``_compare_and_swap(x, ids, flip, i, n_dims)``. By their text they are known, and become loops as well; of 256
elements, theirs is half a megabyte of OpenCL C and minutes for a compiler.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import triton
import triton.language as tl

# A stage's elements pass through local memory, of which the smallest device has 64 KiB; larger sorts stay unrolled.
_MOST_BYTES = 32 << 10


@triton.jit
def _merge(x, place, stage, last, descending: tl.constexpr):
    """``stage`` compare-and-swaps of rows [rows, n]; directions alternate but where the stage is the ``last``."""
    flip = tl.where(stage == last, tl.full(place.shape, descending, tl.int32), (place >> stage) & 1)
    for step in range(stage):
        bit = stage - 1 - step
        y = tl.gather(x, place ^ (1 << bit), 1)
        x = tl.where((x > y) != ((flip ^ (place >> bit)) & 1 != 0), y, x)
    return x


@triton.jit
def _places(rows: tl.constexpr, n: tl.constexpr):
    return tl.broadcast_to(tl.arange(0, n)[None, :], [rows, n])


@triton.jit
def sort_impl(x, k: tl.constexpr = None, dim: tl.constexpr = None, descending: tl.constexpr = 0):
    """``triton.language.standard.sort_impl``: sort the last dimension, or give its ``k`` first in that order."""
    n: tl.constexpr = x.shape[len(x.shape) - 1]
    kept: tl.constexpr = n if k is None else k
    tl.static_assert(dim is None or dim == len(x.shape) - 1, "only minor dimension is currently supported")
    tl.static_assert(kept > 0 and kept <= n and kept & (kept - 1) == 0, "topk: k must be a power of two up to the size")
    rows: tl.constexpr = x.numel // n
    log_n: tl.constexpr = n.bit_length() - 1
    log_k: tl.constexpr = kept.bit_length() - 1

    h = tl.reshape(x, [rows, n])
    place = _places(rows, n)
    for stage in range(1, log_k + 1):
        h = _merge(h, place, stage, log_n, descending)
    for i in tl.static_range(log_k + 1, log_n + 1):
        # Of each two sorted runs of k, one ascends and one descends: their larger (smaller) halves are a bitonic run.
        pairs = tl.reshape(h, [rows, 1 << (log_n - i), 2, kept])
        best = tl.max(pairs, 2) if descending else tl.min(pairs, 2)
        h = tl.reshape(best, [rows, kept << (log_n - i)])
        h = _merge(h, _places(rows, kept << (log_n - i)), log_k, log_k if i == log_n else -1, descending)
    return tl.reshape(h, x.shape[:-1] + [kept])  # noqa: RUF005, as Triton's own lists have no such display


@triton.jit
def sort_with_index(
    x,
    idxs,
    rnumel,
    dim: tl.constexpr = None,
    stable: tl.constexpr = False,
    descending: tl.constexpr = False,
):
    """Inductor's: sort the last dimension, and ``idxs`` along. NaNs are the largest; ``idxs >= rnumel`` come last."""
    x, idxs = tl.broadcast(x, idxs)
    n: tl.constexpr = x.shape[len(x.shape) - 1]
    tl.static_assert(dim is None or dim == len(x.shape) - 1, "only minor dimension is currently supported")
    rows: tl.constexpr = x.numel // n
    log_n: tl.constexpr = n.bit_length() - 1
    floating: tl.constexpr = x.dtype.is_floating()

    h = tl.reshape(x, [rows, n])
    ids = tl.reshape(idxs, [rows, n])
    place = _places(rows, n)
    for stage in range(1, log_n + 1):
        flip = (place >> stage) & 1 != 0  # none of the last stage's: places end below 1 << log_n
        for step in range(stage):
            bit = stage - 1 - step
            partner = place ^ (1 << bit)
            other = tl.gather(h, partner, 1)
            other_id = tl.gather(ids, partner, 1)
            is_right = (place >> bit) & 1 != 0
            left, right = tl.where(is_right, other, h), tl.where(is_right, h, other)
            left_id, right_id = tl.where(is_right, other_id, ids), tl.where(is_right, ids, other_id)

            swap = left < right if descending else left > right
            equal = left == right
            if floating:
                nan_left, nan_right = left != left, right != right
                first_nan = nan_right if descending else nan_left
                if stable:
                    first_nan = first_nan & (~nan_left if descending else ~nan_right)
                swap = swap | first_nan
                equal = equal | (nan_left & nan_right)
            if stable:
                swap = swap | (equal & (left_id > right_id))
            if rnumel is not None:
                left_in, right_in = left_id < rnumel, right_id < rnumel
                swap = (right_in & ~left_in) | ((right_in == left_in) & swap)
            swap = swap ^ flip
            h = tl.where(swap, other, h)
            ids = tl.where(swap, other_id, ids)
    return tl.reshape(h, x.shape), tl.reshape(ids, x.shape)


@triton.jit
def bitonic_merge(x, ids, stage: tl.constexpr, order: tl.constexpr, n_dims: tl.constexpr):
    """Libraries' own: ``stage`` compare-and-swaps of rows of ``1 << n_dims``, ``ids`` moving along.

    ``order`` is 0 for ascending, 1 for descending runs and 2 for runs that alternate. Infinities and -0 are kept; the
    original multiplies the ones by 0, and loses the other's sign in a sum.
    """
    tl.static_assert(stage <= n_dims)
    n: tl.constexpr = x.numel
    place = _places(1, n)
    h, moved = tl.reshape(x, [1, n]), tl.reshape(ids, [1, n])
    for step in range(stage):
        bit = stage - 1 - step
        partner = place ^ (1 << bit)
        other, other_moved = tl.gather(h, partner, 1), tl.gather(moved, partner, 1)
        is_right = (place >> bit) & 1 != 0
        swap = tl.where(is_right, other, h) > tl.where(is_right, h, other)
        if order == 2:
            swap = swap ^ ((place >> stage) & 1 != 0)
        elif order:
            swap = ~swap
        h, moved = tl.where(swap, other, h), tl.where(swap, other_moved, moved)
    return tl.reshape(h, x.shape), tl.reshape(moved, ids.shape)


# What is replaced: the module that a function is defined in and its name -> ours, of the same parameters.
_LOOPS: dict[tuple[str, str], Any] = {
    ("triton.language.standard", "sort_impl"): sort_impl,
    ("torch._inductor.runtime.triton_helpers", "sort_with_index"): sort_with_index,
}


_MERGE = ["x", "ids", "stage", "order", "n_dims"]
_SWAP = ["x", "ids", "flip", "i", "n_dims"]
_SWAP_CALLS = {"reshape", "broadcast_to", "arange", "sum", "to", "where", "zeros_like", "get_int_dtype", "constexpr"}
_MERGE_CALLS = {"reshape", "broadcast_to", "arange", "static_range", "static_assert"}


def _merges_with_ids(fn: Any) -> bool:
    """Whether the function is a library's bitonic merge of values with indices, as :func:`bitonic_merge` is."""
    if fn.arg_names != _MERGE:
        return False
    tree = fn.parse()
    text = ast.unparse(tree)
    calls = {_name(call): call for call in _all(tree, ast.Call)}
    others = set(calls) - _MERGE_CALLS
    if len(others) != 1 or any(part not in text for part in ("if order == 2:", "n_dims - 1 - stage", "flip = order\n")):
        return False
    swap = calls[others.pop()]
    callee = fn.fn.__globals__.get(_name(swap))
    arguments = ", ".join(map(ast.unparse, swap.args))
    return arguments == "x, ids, flip, i + (n_dims - stage), n_dims" and _swaps_with_ids(callee)


def _swaps_with_ids(fn: Any) -> bool:
    """Whether it exchanges pairs by ``left > right`` and ``flip`` alone: one that also asks for NaNs is another."""
    if getattr(fn, "arg_names", None) != _SWAP:
        return False
    tree = fn.parse()
    calls = list(_all(tree, ast.Call))
    if {_name(call) for call in calls} - _SWAP_CALLS - {"ValueError"} or "n_dims - i - 1" not in ast.unparse(tree):
        return False
    first: dict[str, str] = {}
    for node in _all(tree, ast.Assign):
        first.setdefault(ast.unparse(node.targets[0]), ast.unparse(node.value))
    sides = all(
        "* (1 - mask)" in first.get(f"left{kind}", "") and "* mask" in first.get(f"right{kind}", "")
        for kind in ("", "_idx")
    )
    chosen = [call for call in calls if _name(call) == "where"]
    by_cond = len(chosen) == 2 and all(ast.unparse(call.args[0]) == "cond" for call in chosen)
    compared = {ast.unparse(node) for node in _all(tree, ast.Compare)}
    asked = {text for text in compared if "primitive_bitwidth" not in text}
    right = asked in ({"left > right"}, {"left > right", "(left > right) != flip"})
    return sides and by_cond and right and first.get("cond") in ("(left > right) != flip", "(left > right) ^ flip")


def _all(tree: ast.AST, kind: type[Any]) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _in_loops(fn: Any, args: Sequence[Any]) -> Any:
    """Our function in the place of ``fn``; ``fn`` itself where it is another or what it sorts is too large."""
    ours = _LOOPS.get((fn.fn.__module__, fn.fn.__name__))
    if ours is None and _LOOPS and _merges_with_ids(fn):
        ours = bitonic_merge
    if ours is None or ours.arg_names != fn.arg_names or not _is_block(args[0]):
        return fn
    widest = max(a.dtype.primitive_bitwidth // 8 for a in args if _is_block(a))
    return ours if args[0].numel.value * max(widest, 4) <= _MOST_BYTES else fn


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.type.is_block()


def by_loops(module: ModuleType) -> None:
    """Change ``triton.compiler.code_generator``: kernels for xpu call the sorts of this module."""
    generator: Any = module.CodeGenerator  # type: ignore[attr-defined]
    call = generator.call_JitFunction

    def call_function(self: Any, fn: Any, args: Any, kwargs: Any, *context: Any, **more: Any) -> Any:
        if self.builder.options.backend_name == "intel" and args:
            fn = _in_loops(fn, [*args, *kwargs.values()])
        return call(self, fn, args, kwargs, *context, **more)

    generator.call_JitFunction = call_function
