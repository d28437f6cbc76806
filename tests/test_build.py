"""Which C++ compiler builds the shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyxpu import build


def make_compiler(folder: Path, answer: str) -> str:
    """A g++ that answers where its libstdc++.so lies, and nothing else."""
    folder.mkdir()
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\necho {answer}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def search(monkeypatch):
    """Looks for a compiler along the folders given, as in a fresh process."""
    monkeypatch.delenv("CXX", raising=False)

    def look(*folders: Path) -> str:
        monkeypatch.setenv("PATH", ":".join(map(str, folders)))
        return build.compiler.__wrapped__()

    return look


def test_a_compiler_without_a_shared_cpp_library_is_passed_over(tmp_path, search):
    make_compiler(tmp_path / "a", "libstdc++.so")
    good = make_compiler(tmp_path / "b", "/usr/lib/libstdc++.so")
    assert search(tmp_path / "a", tmp_path / "b") == good


def test_where_no_compiler_serves_the_error_says_why_and_the_way_out(tmp_path, search, monkeypatch):
    poor = make_compiler(tmp_path / "a", "libstdc++.so")
    with pytest.raises(build.BuildError, match=r"libstdc.*CXX.*apt-get install g"):
        search(tmp_path / "a")
    monkeypatch.setenv("CXX", poor)
    with pytest.raises(build.BuildError, match="exceptions to torch"):
        search()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="not on the PATH"):
        search(tmp_path / "a")


def test_a_compiler_named_by_path_is_used(tmp_path, search, monkeypatch):
    good = make_compiler(tmp_path / "b", "/usr/lib/libstdc++.so")
    monkeypatch.setenv("CXX", good)
    assert search() == good
