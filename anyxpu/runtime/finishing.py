"""The end of the process: nothing of it may run while the interpreter is already finishing."""

from __future__ import annotations

import atexit
import contextlib
import threading
from pathlib import Path

from anyxpu.shim import lib

_WAIT_SECONDS = 5.0


def install() -> None:
    """Wait at exit for autograd's threads, which take the GIL for what they let go of (``shim/finishing.cpp``)."""
    atexit.register(_finish)


def _finish() -> None:
    if not lib().started() or lib().in_bad_fork() or not _autograd_has_threads():
        return
    # A device that is lost or never done must not keep the process: it is waited for in a thread, and not for ever.
    waiting = threading.Thread(target=_wait, name="anyxpu-finish", daemon=True)
    waiting.start()
    waiting.join(_WAIT_SECONDS)


def _wait() -> None:
    with contextlib.suppress(Exception):
        lib().finish_backward()


def _autograd_has_threads() -> bool:
    """Has there been a backward on a device? Engine's threads are named ``pt_autograd_<device>``."""
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            if task.read_text().startswith("pt_autograd"):
                return True
    return False
