"""Controls of the null driver: injected faults and counts of calls, for tests of what stands above a driver.

They act on the null driver of this process, whoever loaded it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache

from anyxpu.drivers import library_path

FAULTS = ("alloc", "build", "launch", "run", "copy_ms", "launch_ms")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path("null")))


def set_faults(**faults: int) -> None:
    """Set faults by name; 0 takes one back.

    - ``alloc=n``: the n-th next allocation answers out of memory (1: the next);
    - ``build=n``: the n-th next module does not build;
    - ``launch=n``: the n-th next launch is refused;
    - ``run=n``: the n-th next launch is accepted and fails while it runs; the queue says so when it is synchronised;
    - ``copy_ms=t``, ``launch_ms=t``: every copy or kernel takes t milliseconds longer.

    Raises:
        ValueError: no fault has that name.
    """
    for name, value in faults.items():
        if name not in FAULTS:
            raise ValueError(f"the null driver has no fault named {name!r}; it has {', '.join(FAULTS)}")
        _library().anyxpu_null_set_fault(name.encode(), ctypes.c_int64(value))


@contextlib.contextmanager
def faults(**values: int) -> Iterator[None]:
    """Faults as in :func:`set_faults`, taken back at the end of the ``with`` block."""
    set_faults(**values)
    try:
        yield
    finally:
        set_faults(**dict.fromkeys(values, 0))


def counts() -> dict[str, int]:
    """How often each of the driver's functions was called since the last :func:`reset_counts`."""
    library, found, index = _library(), {}, 0
    name, calls = ctypes.c_char_p(), ctypes.c_uint64()
    while library.anyxpu_null_count(index, ctypes.byref(name), ctypes.byref(calls)) == 0:
        found[(name.value or b"").decode()] = calls.value
        index += 1
    return found


def reset_counts() -> None:
    """Set every count to 0."""
    _library().anyxpu_null_reset_counts()
