"""Kernels of eager operators built by another process, while the host serves them (``ANYXPU_EAGER=auto``).

The builder writes what it makes to the disk cache (:mod:`anyxpu.ops.prepared`); whoever asked for it finds it there. It
is started when first wanted, ends with its parent or after some idle seconds, and yields the cores to everybody else.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections import deque
from typing import Any

IDLE_SECONDS = 30
WARM = "ANYXPU_WARM"  # a file that gets the words of what is asked for and not there: set by `anyxpu warm`
_NICE = 10

_lock = threading.Lock()
_asked: dict[str, int] = {}  # a class's words -> how often it was asked for and not there
_failed: set[str] = set()
_urgent: set[str] = set()  # what somebody will wait for
_answered = threading.Condition(_lock)
_process: subprocess.Popen[bytes] | None = None
_owner = 0  # the process that started it: the child of a fork starts its own


def wanted(words: tuple[Any, ...], now: bool = False) -> bool:
    """Note that a kernel is asked for and not there; from the second time on it is being built.

    Args:
        words: the arguments of :func:`anyxpu.ops.classes.build`, or device, ``"ahead"`` and those of
            :func:`anyxpu.ops.ahead.build`.
        now: from the first time on, before others; :func:`settle` waits for it.

    Returns:
        False where the builder could not make it: the caller then does, and sees why.
    """
    line = json.dumps(words)
    with _lock:
        if line in _failed:
            return False
        _asked[line] = _asked.get(line, 0) + 1
        if noted := os.environ.get(WARM):
            if _asked[line] == 1:
                _note(noted, line)
        elif now:
            if line not in _urgent:
                _urgent.add(line)
                _send("!" + line)
        elif _asked[line] == 2:
            _send(line)
    return True


def settle() -> None:
    """Wait until the builder has answered for all that is wanted now, or has ended."""
    if not _urgent:
        return
    with _lock:
        while _urgent and _process is not None and _process.poll() is None and _owner == os.getpid():
            _answered.wait(1)
        _urgent.clear()


def _note(file: str, line: str) -> None:
    """Add a line to a file that other processes write too."""
    with open(file, "ab", buffering=0) as noted:
        noted.write(line.encode() + b"\n")


def _send(line: str) -> None:
    """Hand a line to the builder, which is started where it does not run; "!" is before what comes first. With the lock
    held.
    """
    global _process, _owner
    if _process is None or _process.poll() is not None or _owner != os.getpid():
        _process, _owner = _start(), os.getpid()
    assert _process.stdin is not None
    try:
        _process.stdin.write(line.encode() + b"\n")
        _process.stdin.flush()
    except OSError:  # it has ended just now: asked for again, it is sent to the next one
        _asked[line.removeprefix("!")] = 0


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "ANYXPU_EAGER": "compile"}
    process = subprocess.Popen(
        [sys.executable, "-m", "anyxpu.ops.builder"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    listener = threading.Thread(target=_listen, args=(process,), daemon=True)
    listener.start()
    atexit.register(_end, process, listener, os.getpid())
    return process


def _end(process: subprocess.Popen[bytes], listener: threading.Thread, owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
        listener.join(1)
        with contextlib.suppress(OSError):  # what it was about to be sent
            assert process.stdin is not None
            process.stdin.close()


def _listen(process: subprocess.Popen[bytes]) -> None:
    """Note what the builder says of each line: made, or not."""
    assert process.stdout is not None
    for answer in process.stdout:
        how, _, line = answer.decode().rstrip("\n").partition(" ")
        with _lock:
            if how == "failed":
                _failed.add(line)
            if line in _urgent:
                _urgent.discard(line)
                _answered.notify_all()
    process.stdout.close()
    with _lock:  # what it did not come to is asked for anew
        _answered.notify_all()
        for line, times in _asked.items():
            if times >= 2:
                _asked[line] = 1


def main() -> None:
    """Build what is named on standard input, a line each; say "made" or "failed" and the line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    import torch  # noqa: F401 - loads anyxpu

    from anyxpu.ops import ahead, classes

    lines = os.fdopen(0, "rb", buffering=0)
    rest = b""
    waiting: deque[str] = deque()
    while select.select([lines], [], [], 0 if waiting else IDLE_SECONDS)[0] or waiting:
        while select.select([lines], [], [], 0)[0]:
            read = lines.read(1 << 16)
            if not read:
                if not waiting:
                    return
                break
            *whole, rest = (rest + read).split(b"\n")
            urgent = [line.decode()[1:] for line in whole if line.startswith(b"!")]
            waiting.extendleft(reversed(urgent))
            waiting.extend(line.decode() for line in whole if not line.startswith(b"!"))
        if not waiting:
            continue
        line = waiting.popleft()
        try:
            device, family, words = json.loads(line)
            if family == ahead.FAMILY:
                ahead.build(device, words)
            else:
                classes.build(device, family, words)
            how = "made"
        except Exception:  # whoever asked makes it again, and sees what is wrong
            how = "failed"
        print(how, line, file=answers, flush=True)


if __name__ == "__main__":
    main()
