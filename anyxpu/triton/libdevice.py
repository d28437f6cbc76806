"""What kernels reach as ``tl.extra.libdevice`` on xpu: one function an entry of :mod:`.libdevice_table`.

Kernels that name CUDA's, HIP's or Intel's (``tl.extra.cuda.libdevice``) get these as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language import core

from anyxpu.triton.libdevice_table import FUNCTIONS, symbol


def _make(name: str, signatures: dict[tuple[str, ...], tuple[str, str]]) -> Callable[..., Any]:
    table = {
        tuple(core.dtype(t) for t in types): (symbol(name, types), core.dtype(result))
        for types, (_, result) in signatures.items()
    }

    def function(*args: Any, _semantic: Any = None) -> Any:
        return core.extern_elementwise("", "", list(args), table, is_pure=True, _semantic=_semantic)

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    return core.extern(function)


globals().update({name: _make(name, signatures) for name, signatures in FUNCTIONS.items()})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    way_out = " (OpenCL rounds to nearest only; use the function without the suffix)" if name[-3:-1] == "_r" else ""
    raise AttributeError(f"libdevice.{name} is not supported on xpu{way_out}")
