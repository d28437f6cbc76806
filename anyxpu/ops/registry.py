"""Which way serves an operator: structural, library, compiled or host, tried in this order.

The dispatcher is the truth: a kernel under key XPU serves the operator, and the backend fallback (the host path)
serves what has none. This registry only remembers who registered a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from anyxpu.shim import lib

WAYS = ("structural", "library", "compiled", "host")
"""The resolution order. An operator made of other operators alone is ``composite``: it needs none of these."""

_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
_COMPOSITES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")

_declared: dict[str, tuple[str, Callable[[], bool] | None]] = {}


def declare(op: str, way: str, where: Callable[[], bool] | None = None) -> None:
    """Say that a kernel registered for ``op`` (``"aten::mm"``, ``"aten::add.out"``) serves it in the way ``way``.

    Args:
        op, way: the operator's name, and ``library`` or ``compiled``.
        where: whether it does on the current device; on others it leaves all calls to the host.

    Raises:
        ValueError: ``way`` is neither ``library`` nor ``compiled``.
    """
    if way not in ("library", "compiled"):
        raise ValueError(f"operator {op} cannot be declared {way!r}: only library and compiled kernels are registered")
    _declared[op] = way, where


def resolve(op: str) -> str:
    """How ``op`` (``"aten::add.Tensor"``, or without the namespace) is served on xpu now.

    Returns:
        One of :data:`WAYS`; ``composite`` where it is made of other operators, by torch or here; ``none`` where
        nothing serves it.

    Raises:
        ValueError: there is no such operator.
    """
    name = op if "::" in op else f"aten::{op}"
    try:
        torch._C._get_schema(*_split(name))
    except RuntimeError as error:
        raise ValueError(f"torch has no operator {name!r}; give its overload too, as in aten::add.Tensor") from error
    return _resolve(name)


def operators() -> dict[str, str]:
    """Every aten operator that can be called, by name, and how it is served."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name: _resolve(name) for name in sorted(names) if _has_schema(name)}


def _resolve(name: str) -> str:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "XPU"):
        if name in _declared:
            way, where = _declared[name]
            return way if where is None or where() else "host"
        if name.removeprefix("aten::") in lib().stubbed_composites():
            return "host"
        return "structural" if name in _structural() else "composite"
    if has(name, _NON_FUNCTIONAL):
        # torch makes the result by empty_strided and hands it to the out= or in-place form.
        out = next((v for v in _out_variants(name) if not has(v, _NON_FUNCTIONAL)), None)
        return _resolve(out) if out else "composite"
    if any(has(name, key) for key in _COMPOSITES):
        return "composite"
    return "host" if has(name, "CPU") else "none"


def _structural() -> frozenset[str]:
    return frozenset(lib().structural_operators())


def _split(name: str) -> tuple[str, str]:
    base, _, overload = name.partition(".")
    return base, overload


def _has_schema(name: str) -> bool:
    try:
        torch._C._get_schema(*_split(name))
    except RuntimeError:
        return False
    return True


def _out_variants(name: str) -> Iterator[str]:
    """Overloads of the same operator that take the same arguments and write them into ``out`` arguments."""
    base, overload = _split(name)
    functional = base.removesuffix("_")
    inputs = _inputs(torch._C._get_schema(base, overload))
    for other in torch._C._jit_get_operation(functional)[1] if functional else ():
        schema = torch._C._get_schema(functional, other)
        if any(argument.is_out for argument in schema.arguments) and _inputs(schema) == inputs:
            yield f"{functional}.{other}"


def _inputs(schema: torch._C.FunctionSchema) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
