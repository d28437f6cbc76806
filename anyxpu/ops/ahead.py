"""Kernels that a later call will want, built by the builder's process while this one goes on.

Attention's first forward call knows which kernels its gradients will take; their compiling is longer than all that
comes between. The builder leaves them in Triton's cache on disk, where Triton finds them when they are launched. What
was foreseen wrongly is compiled at its launch, as without this.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from anyxpu.cache import VARIABLE, cache_dir, check_owner, digest, load, store
from anyxpu.errors import CacheError
from anyxpu.ops import builder, prepared
from anyxpu.shim import lib

FAMILY = "ahead"
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A kernel of Triton, its arguments, and its constants and options."""

_asked: set[tuple[int, str]] = set()


def ask(device: int, launches: Iterable[Launch]) -> None:
    """Have kernels built, where the host may serve meanwhile (``ANYXPU_EAGER=auto``, a CPU device).

    Args:
        device: ordinal.
        launches: their tensors stand for any of the same dtype whose memory begins at a multiple of 16 bytes.
    """
    if lib().eager() != "auto" or lib().driver_name() == "null" or lib().properties(device).type != "cpu":
        return
    for kernel, arguments, options in launches:
        given = [_word(a, p.do_not_specialize) for a, p in zip(arguments, kernel.params, strict=False)]
        words = (kernel.fn.__module__, kernel.fn.__name__, given, options)
        line = json.dumps(words)
        if (device, line) in _asked:
            continue
        _asked.add((device, line))
        path = _mark(device, line)
        check_owner(path, VARIABLE)
        if load(path) is None:
            builder.wanted((device, FAMILY, words), now=True)


def settle() -> None:
    """Wait until what was asked for is there, or will not be."""
    builder.settle()


def build(device: int, words: Sequence[Any]) -> None:
    """Compile what :func:`ask` put into words, into Triton's cache; in the builder's process."""
    import torch

    module, name, arguments, options = words
    kernel = getattr(importlib.import_module(module), name)
    with torch.xpu.device(device):
        kernel.warmup(*[getattr(torch, a[0]) if isinstance(a, list) else a for a in arguments], grid=(1,), **options)
    try:
        store(_mark(device, json.dumps(words)), b"made\n")
    except CacheError:  # without the mark it is looked for in Triton's cache by each process's builder
        return


def _word(argument: Any, any_number: bool) -> Any:
    """An argument as Triton tells kernels apart: a tensor's dtype, an integer's width and whether it is 1 or some 16s.

    All floats are alike to it.

    Args:
        any_number: the kernel does not ask (``do_not_specialize``).
    """
    if isinstance(argument, Tensor):
        return [str(argument.dtype).removeprefix("torch.")]
    if not isinstance(argument, int):
        return argument if argument is None else 0.5
    narrow = -(2**31) <= argument < 2**31
    if argument == 1 and not any_number:
        return 1
    return (16 if narrow else 2**40) + (0 if any_number or argument % 16 == 0 else 3)


def _mark(device: int, line: str) -> Any:
    return cache_dir("kernels", "ahead") / f"{digest(line, *prepared.for_device(device))[:32]}.txt"
