"""Registering operators that are written in Python, and handing on the calls that they decline."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from anyxpu.shim import lib

Kernel = Callable[..., Any]
Decline = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]

# Of these, ANYXPU_EAGER decides: their kernels are of signature classes, or they are made of operators with such.
_BY_CLASS = {
    f"anyxpu.ops.{module}"
    for module in (
        "adagrad",
        "algebra",
        "bags",
        "channels",
        "composed",
        "ctc",
        "deformable",
        "distances",
        "drawing",
        "encoder",
        "extremes",
        "fake_quantizing",
        "filling",
        "fourier",
        "interpolating",
        "jagged",
        "margins",
        "maxima",
        "nested",
        "nested_elementwise",
        "padding",
        "pooling",
        "putting",
        "regions",
        "resizing",
        "sampling",
        "scans",
        "searching",
        "segments",
        "sparse",
        "taking",
        "unfolding",
        "variances",
    )
}

_registered: dict[tuple[str, str, str], str] = {}  # namespace, dispatch key, operator -> the function that serves it
_libraries: list[torch.library.Library] = []  # registrations end with their Library


def register(
    table: dict[str, str], way: str, decline: Decline | None = None, namespace: str = "aten", key: str = "XPU"
) -> None:
    """Put every operator of a table on a dispatch key. Imports none of the modules that the table names.

    Idempotent; an operator has one function on a key, whichever table names it.

    Args:
        table: operator (without its namespace) -> the function that serves it, as ``"anyxpu.ops.sorting.topk"``. It
            returns ``NotImplemented`` for a call that it declines. ``"into anyxpu.ops.pooling.avg_pool2d"``: of an
            ``out=`` form, the function of the functional one, whose results are written into ``out``.
        way: how they are counted: ``library`` or ``compiled``.
        decline: what becomes of a declined call; :func:`to_host` where None.
        namespace: of the operators; there may be none of them yet.
        key: XPU for dense tensors, SparseXPU and SparseCsrXPU for sparse ones.

    Raises:
        ValueError: another function serves an operator of the table.
    """
    for name, function in table.items():
        before = _registered.get((namespace, key, name), function)
        if before != function:
            raise ValueError(f"{namespace}::{name} is served by {before} on {key}: not by {function} too")
    new = {name: function for name, function in table.items() if (namespace, key, name) not in _registered}
    # The shim repeats calls of dense tensors without Python (shim/replay.cpp).
    library = None if key == "XPU" or not new else torch.library.Library(namespace, "IMPL", key)
    if library is not None:
        _libraries.append(library)
    for name, function in new.items():
        _registered[namespace, key, name] = function
        declined = decline or functools.partial(to_host, namespace=namespace)
        served = _served(name, function, way, declined, namespace)
        if library is None:
            lib().serve_python(namespace, name, served)
        else:
            library.impl(name, served)


def _served(name: str, path: str, way: str, decline: Decline, namespace: str) -> Kernel:
    """The operator's kernel, imported at its first call, counted, and the host for what it declines."""
    by_class = path.removeprefix("into ").rpartition(".")[0] in _BY_CLASS
    kernel: Kernel | None = None
    count: Callable[[], None] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel, count
        if kernel is None or count is None:
            module, _, function = path.removeprefix("into ").rpartition(".")
            count = lib().OpCount(f"{namespace}::{name}", way)
            kernel = getattr(importlib.import_module(module), function)
            base, _, overload = name.partition(".")
            outs = [a.name for a in torch._C._get_schema(f"{namespace}::{base}", overload).arguments if a.is_out]
            if path.startswith("into "):
                kernel = _into(kernel, outs)
            if outs:
                kernel = _apart(kernel, f"{namespace}::{name}", outs)
        result = NotImplemented if by_class and lib().eager() == "host" else kernel(*args, **kwargs)
        if result is NotImplemented:
            return decline(name, args, kwargs)
        count()
        return result

    return call


def counted(name: str, function: Kernel) -> Kernel:
    """A compiled function of an operator of aten, counted, and the host for what it declines."""
    count: Callable[[], None] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        result = NotImplemented if lib().eager() == "host" else function(*args, **kwargs)
        if result is NotImplemented:
            return to_host(name, args, kwargs)
        count = count or lib().OpCount(f"aten::{name}", "compiled")
        count()
        return result

    return call


def _apart(function: Kernel, name: str, outs: list[str]) -> Kernel:
    """The function, but for what torch refuses because it would write what it reads."""

    def apart(*args: Any, **kwargs: Any) -> Any:
        read = [value for key, value in kwargs.items() if key not in outs]
        tensors = [t for value in (*args, *read) for t in (value if isinstance(value, (list, tuple)) else [value])]
        read = [t for t in tensors if isinstance(t, torch.Tensor)]
        lib().refuse_overlap(name, [kwargs[key] for key in outs if key in kwargs], read)
        return function(*args, **kwargs)

    return apart


def _into(function: Kernel, names: list[str]) -> Kernel:
    """The ``out=`` form of a functional operator's function: ``names`` are its outs, which are resized."""

    def written(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        made = function(*args, **kwargs)
        if made is NotImplemented:
            return made
        results = made if isinstance(made, tuple) else (made,)
        if any((out.dtype, out.device) != (r.dtype, r.device) for out, r in zip(outs, results, strict=True)):
            return NotImplemented  # which torch refuses
        for out, result in zip(outs, results, strict=True):
            if out.shape != result.shape:
                lib().resize_output(out, result.shape, _format(result))
            out.copy_(result)
        return tuple(outs) if isinstance(made, tuple) else outs[0]

    return written


def _format(t: torch.Tensor) -> torch.memory_format:
    for format, dims in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if t.dim() == dims and not t.is_contiguous() and t.is_contiguous(memory_format=format):
            return format
    return torch.contiguous_format


def to_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], namespace: str = "aten") -> Any:
    """Hand a call to the host, which computes it or raises what CPU torch raises for such operands."""
    from anyxpu.ops import host_call

    packet, _, overload = name.partition(".")
    operators = getattr(torch.ops, namespace)
    return host_call(getattr(getattr(operators, packet), overload or "default"), *args, **kwargs)
