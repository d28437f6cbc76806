"""Triton's cache of compiled kernels, with checksums: a damaged entry is compiled again, never loaded.

An entry is a folder of files and one more, ``__grp__<kernel>.json``, that lists them. This class adds the files'
checksums to that list; Triton's own manager reads it all the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

from anyxpu.cache import check_owner, writing

VARIABLE = "TRITON_CACHE_DIR"
_CHECKSUMS = "anyxpu_sha256"


class KernelCache(FileCacheManager):
    """What Triton asks for an entry's files, and gives them to."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        with writing(knobs.cache.dir, VARIABLE):
            super().__init__(key, override=override, dump=dump)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        with writing(self.cache_dir, VARIABLE):
            return super().put(data, filename, binary=binary)

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        checksums = {name: _checksum(Path(path)) for name, path in group.items()}
        listing = json.dumps({"child_paths": group, _CHECKSUMS: checksums})
        return self.put(listing, _listing_name(filename), binary=False)

    def get_group(self, filename: str) -> dict[str, str] | None:
        group = super().get_group(filename)
        if group is None:
            return None
        for path in group.values():
            check_owner(Path(path), VARIABLE)
        checksums = _checksums(Path(self._make_path(_listing_name(filename))))
        if checksums is None:  # Triton's own manager wrote it
            return group
        whole = checksums.keys() == group.keys() and all(_checksum(Path(p)) == checksums[n] for n, p in group.items())
        return group if whole else None


def install() -> None:
    """Have Triton use :class:`KernelCache` in this process, unless its user chose another manager."""
    if knobs.cache.manager_class is None:
        knobs.cache.manager_class = KernelCache


def is_damaged(file: Path, patience: float = 3.0) -> bool:
    """Is a kernel's file known to differ from what was compiled? Without a list of checksums nothing is known.

    Two processes that compile one kernel at once may make different binaries of it, and each replaces the file before
    the list: a file that differs is looked at again for ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while True:
        checksums = _checksums(file.with_name(_listing_name(f"{file.stem}.json"))) or {}
        if file.name not in checksums or _checksum(file) == checksums[file.name]:
            return False
        if time.monotonic() > end:
            return True
        time.sleep(0.02)


def _listing_name(filename: str) -> str:
    return f"__grp__{filename}"


def _checksums(listing: Path) -> dict[str, str] | None:
    try:
        found = json.loads(listing.read_bytes())
    except (OSError, ValueError):
        return None
    return found.get(_CHECKSUMS) if isinstance(found, dict) else None


def _checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
