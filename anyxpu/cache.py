"""The per-user cache directory, and files in it that survive crashes.

Every entry is written to a temporary name, flushed to disk and renamed into place, with a checksum in front of
its payload; a damaged or truncated entry reads as absent and is made again by whoever asked for it.

Native code is loaded from here, so a folder or file that another user owns or may write is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anyxpu.errors import CacheError

VARIABLE = "ANYXPU_CACHE_DIR"

_MAGIC = b"anyxpu1\n"
_DIGEST_BYTES = 32


def cache_dir(*parts: str) -> Path:
    """The directory ``parts`` under the user's cache, made with mode 0700 where it is missing.

    ``ANYXPU_CACHE_DIR`` names the root; otherwise ``$XDG_CACHE_HOME/anyxpu`` or ``~/.cache/anyxpu``.

    Raises:
        CacheError: it cannot be made, or others own it or may write into it or into a folder between it and the root.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(base, "anyxpu")
    path = Path(root, *parts)
    with writing(path, VARIABLE):
        make_folder(path)
    for folder in (Path(root), *(Path(root, *parts[: i + 1]) for i in range(len(parts)))):
        check_owner(folder, VARIABLE)
    return path


def make_folder(path: Path) -> None:
    """Make the folder and those above it that are missing, all with mode 0700."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def check_owner(path: Path, variable: str) -> None:
    """Refuse what somebody else may have put there.

    Args:
        path: a file or folder from which native code is loaded. One that is not there passes.
        variable: names another place for it.

    Raises:
        CacheError: it is neither this user's nor root's, or others may write it.
    """
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid not in (0, os.geteuid()):
        raise CacheError(
            f"{path} belongs to another user (uid {found.st_uid}), and what is there would be run as code: remove it, "
            f"or set {variable} to a folder of your own"
        )
    # A file's group is what the umask of whoever wrote it left, Triton say; its folder is what counts.
    if found.st_mode & (0o022 if path.is_dir() and not _is_private(found.st_gid) else 0o002):
        raise CacheError(
            f"{path} can be written by others (mode {found.st_mode & 0o7777:04o}), and what is there would be run as "
            f"code: chmod go-w {path}, or set {variable} to a folder of your own"
        )


@contextlib.contextmanager
def writing(path: Path | str, variable: str) -> Iterator[None]:
    """Raise :class:`CacheError` for what goes wrong inside, naming ``path`` and the variable that moves its cache."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise CacheError(
            f"cannot write the cache at {path}: {reason}. Make room or set {variable} to another folder"
        ) from error


def _is_private(group: int) -> bool:
    """Is it this user's own group, as Debian and Fedora make one for each user?"""
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group == os.geteuid()
    return found.gr_name == user and set(found.gr_mem) <= {user}


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
    with writing(path, VARIABLE):
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


def seal(path: Path) -> None:
    """Append a checksum of the file to it. Readers of ELF files do not look behind the sections."""
    with path.open("r+b") as f:
        raw = f.read()
        f.write(_MAGIC + hashlib.sha256(raw).digest())
        f.flush()
        os.fsync(f.fileno())


def is_sealed(path: Path) -> bool:
    """Is the file there and what :func:`seal` saw?"""
    try:
        raw = path.read_bytes()
    except OSError:
        return False
    end = len(raw) - len(_MAGIC) - _DIGEST_BYTES
    return end >= 0 and raw[end:] == _MAGIC + hashlib.sha256(memoryview(raw)[:end]).digest()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on ``path`` (made if missing); another process that asks for it waits."""
    with open(path, "a+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
