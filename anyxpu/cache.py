"""The per-user cache directory, and files in it that survive crashes.

Every entry is written to a temporary name, flushed to disk and renamed into place, with a checksum in front of
its payload; a damaged or truncated entry reads as absent and is made again by whoever asked for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"anyxpu1\n"
_DIGEST_BYTES = 32


def cache_dir(*parts: str) -> Path:
    """The directory ``parts`` under the user's cache, made with mode 0700 where it is missing.

    ``ANYXPU_CACHE_DIR`` names the root; otherwise ``$XDG_CACHE_HOME/anyxpu`` or ``~/.cache/anyxpu``.
    """
    root = os.environ.get("ANYXPU_CACHE_DIR")
    if not root:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(base, "anyxpu")
    path = Path(root, *parts)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def digest(*parts: bytes | str) -> str:
    """A hex key over ``parts``; each part's length is hashed too, so that boundaries count."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` whole or not at all, whatever happens in between."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def store(path: Path, payload: bytes) -> None:
    """Write a checksummed entry that :func:`load` reads back."""
    write_file(path, _MAGIC + hashlib.sha256(payload).digest() + payload)


def load(path: Path) -> bytes | None:
    """The payload of an entry, or None where there is none or it is damaged."""
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    payload = raw[head:]
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != raw[len(_MAGIC) : head]:
        return None
    return payload


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on ``path`` (made if missing); another process that asks for it waits."""
    with open(path, "a+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
