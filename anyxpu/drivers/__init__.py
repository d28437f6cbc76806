"""Device drivers behind one C header, ``driver.h``: ``sycl`` for real devices, ``null`` for tests.

Python needs little of them: where the built library lies. :mod:`anyxpu.drivers.abi` calls a driver directly, without
torch, for tests and for looking at a driver by itself.
"""

from __future__ import annotations

from pathlib import Path

from anyxpu import build

NAMES = build.DRIVERS


def library_path(name: str) -> Path:
    """The built library of driver ``name`` (one of :data:`NAMES`), compiled first where it is not in the cache.

    Raises:
        anyxpu.build.BuildError: there is no such driver, or it cannot be built here; the message says what to install.
    """
    if name not in NAMES:
        raise build.BuildError(f"anyxpu has no driver named {name!r}; ANYXPU_DRIVER may be one of {', '.join(NAMES)}.")
    return build.build(build.driver(name))
