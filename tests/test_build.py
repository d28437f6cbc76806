"""Which C++ compiler builds the shim."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu import build

pytestmark = pytest.mark.not_simulated("it is about the C++ compiler")


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


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """A library of one function, and what that function gives in a process of its own."""
    monkeypatch.setenv("ANYXPU_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    return build.Library("answer", (source,), (), ("-fPIC",), (), (), ())


def call(path: Path) -> str:
    program = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("size", [0, 100, 5000, -1])
def test_a_damaged_library_is_made_again(size, answer):
    path = build.build(answer)
    assert answer.is_built() and call(path) == "42"
    objects = list(path.parents[1].glob("objects/*.o"))
    assert len(objects) == 1
    for file in (path, *objects):
        file.write_bytes(file.read_bytes()[:size])
    assert not answer.is_built()
    assert call(build.build(answer)) == "42" and answer.is_built()
    assert sorted(p.suffix for p in path.parents[1].rglob("*") if p.is_file()) == ["", ".o", ".so"]  # "" is the lock


def test_a_whole_library_is_not_built_twice(answer, monkeypatch):
    path = build.build(answer)
    monkeypatch.setattr(build, "compiler", lambda: pytest.fail("it was built again"))
    assert build.build(answer) == path


def test_a_build_that_fails_says_what_the_compiler_said_and_where_it_wrote(answer, tmp_path):
    answer.sources[0].write_text("this is no C++\n")
    with pytest.raises(build.BuildError, match=rf"(?s)answer\.cpp.*this.*{tmp_path}/cache/build.*ANYXPU_CACHE_DIR"):
        build.build(answer)


def pair(folder: Path, first: str, second: str) -> build.Library:
    """A library of two files, for one batch."""
    sources = (folder / "answer.cpp", folder / "other.cpp")
    for source, text in zip(sources, (first, second), strict=True):
        source.write_text(text)
    return build.Library("pair", sources, (), ("-fPIC",), (), (), ())


ANSWER = 'namespace {{ int own() {{ return {}; }} }}\nextern "C" int {}() {{ return own(); }}\n'


def test_neighbours_are_compiled_as_one_file(answer, tmp_path):
    said = []
    path = build.build(pair(tmp_path, 'extern "C" int answer() { return 42; }', 'extern "C" int other();'), said.append)
    assert said == ["answer.cpp, other.cpp"] and call(path) == "42"
    assert len(list(path.parents[1].glob("objects/*.o"))) == 1


def test_files_that_use_one_name_are_compiled_apart_and_once(answer, tmp_path):
    said = []
    library = pair(tmp_path, ANSWER.format(42, "answer"), ANSWER.format(7, "other"))
    path = build.build(library, said.append)
    assert said == ["answer.cpp", "other.cpp"] and call(path) == "42"
    path.unlink()
    assert call(build.build(library, said.append)) == "42"
    assert len(said) == 2


def test_what_is_wrong_in_a_batch_is_said_of_its_file(answer, tmp_path):
    with pytest.raises(build.BuildError, match=r"(?s)could not compile other\.cpp:"):
        build.build(pair(tmp_path, ANSWER.format(42, "answer"), "this is no C++\n"))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 54])
def test_batches_hold_every_source_once_and_in_order(count):
    sources = [Path(f"{i}.cpp") for i in range(count)]
    batches = build._batches(sources)
    assert [source for batch in batches for source in batch] == sources
    assert all(0 < len(batch) <= build.BATCH for batch in batches)
