"""What processes that crash, race, or find a damaged, full or read-only cache do to others: nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anyxpu import build
from anyxpu.cache import cache_dir

# Kernels that differ in SALT are compiled apart. `check` runs one and compares.
KERNELS = """
import os, torch, triton, triton.language as tl

@triton.jit
def salted_kernel(x, o, n, B: tl.constexpr, SALT: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, i < n, other=0)
    tl.store(o + i, v * SALT + tl.sum(v, 0), i < n)

def check(salt):
    x = torch.arange(100.0).to("xpu")
    o = torch.empty_like(x)
    kernel = salted_kernel[(1,)](x, o, 100, B=128, SALT=salt)
    expected = torch.arange(100.0) * salt + 4950
    computed = not os.environ.get("ANYXPU_SIMULATE")
    assert not computed or torch.equal(o.cpu(), expected), (salt, o.cpu(), expected)
    return kernel
"""
# Salts from the command line; prints how many were compiled and where the kernels' files are.
CHECK = """
import sys
import anyxpu.triton
from salted import check
for salt in sys.argv[1:]:
    print("folder", next(iter(check(int(salt)).metadata_group.values())))
print("compiled", anyxpu.triton.compile_count())
"""
GRAPH = """
import torch
def f(x, w):
    return torch.softmax(x * w, -1).sum(0)
x, w = torch.randn(64, 100, generator=torch.manual_seed(0)), torch.ones(100)
for _ in range(2):
    torch.testing.assert_close(torch.compile(f)(x.to("xpu"), w.to("xpu")).cpu(), f(x, w))
print("right")
"""
SALTS = range(3, 11)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "salted.py").write_text(textwrap.dedent(KERNELS))
    return tmp_path


def start(work: Path, program: str, *arguments: object, prefix: tuple[str, ...] = (), **variables: object):
    """A process that runs ``program`` with every cache but that of the C++ half below ``work``."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(work / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # starting workers takes longer than the kernels
        **{name: str(value) for name, value in variables.items()},
    }
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", program, *map(str, arguments)],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, f"status {process.returncode}\n{out}\n{err[-4000:]}"
    return out, err


def compiled(out: str) -> int:
    return int(out.split("compiled ")[1])


# --- many processes


@pytest.mark.parametrize("more", ["", pytest.param(GRAPH, marks=pytest.mark.full)])
@pytest.mark.rotates(2)
def test_two_processes_that_compile_the_same_at_once_are_both_right(more, work):
    ready = "import pathlib, time, torch\npathlib.Path(f'ready{sys.argv[1]}').touch()\n"
    wait = "while not pathlib.Path('go').exists(): time.sleep(0.001)\ndel sys.argv[1]\n"
    both = [start(work, f"import sys\n{ready}{wait}{CHECK}{more}", number, *SALTS) for number in range(2)]
    while not all((work / f"ready{number}").exists() or both[number].poll() is not None for number in range(2)):
        time.sleep(0.01)
    (work / "go").touch()
    outputs = [finish(process)[0] for process in both]
    assert all(compiled(out.replace("right", "")) > 0 for out in outputs), "one came too late to race"
    assert compiled(finish(start(work, CHECK, *SALTS))[0]) == 0


ENDLESS = """
import itertools, sys
from salted import check
check(1)
print("ready", flush=True)
for salt in itertools.count(2):
    check(salt)
"""


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.rotates(3)
def test_processes_killed_while_they_compile_leave_a_cache_that_serves(kills, work):
    moments = random.Random(kills)
    for _ in range(kills):
        process = start(work, ENDLESS)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(moments.uniform(0, 1))  # a GPU's kernel compiles in half a second
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    entries = len(list((work / "triton").glob("*/*.zebin")))
    assert entries > 1, "no process was killed while it compiled"
    # Those that were finished are used, and one more than there are is not.
    out, _ = finish(start(work, CHECK, *range(1, entries + 2)))
    assert 1 <= compiled(out) <= 1 + kills


# --- damage


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": cut,
    "emptied": lambda data: b"",
    "one bit changed": flip,
    "overwritten": lambda data: b"\xff\x00" * (len(data) // 2),
}
FILES = (
    *(f"salted_kernel.{extension}" for extension in ("source", "ttir", "ttgir", "cl", "zebin", "json")),
    "__grp__salted_kernel.json",
)


@pytest.mark.rotates(2)
def test_a_damaged_kernel_is_compiled_again(work, full):
    out, _ = finish(start(work, CHECK, *SALTS))
    folders = [Path(line.removeprefix("folder ")).parent for line in out.splitlines() if line.startswith("folder ")]
    assert len(set(folders)) == len(SALTS) == len(FILES) + 1  # one stays whole
    for damage in DAMAGE.values() if full else (cut, flip):
        for name, folder in zip(FILES, folders, strict=False):
            (folder / name).write_bytes(damage((folder / name).read_bytes()))
        assert compiled(finish(start(work, CHECK, *SALTS))[0]) == len(FILES)
    assert compiled(finish(start(work, CHECK, *SALTS))[0]) == 0


def damaged(name: str) -> object:
    return pytest.param(name, marks=() if name == "one bit changed" else pytest.mark.full)


@pytest.mark.parametrize("damage", [damaged(name) for name in DAMAGE])
@pytest.mark.rotates(5)
def test_a_damaged_kernel_of_a_graph_is_named_and_then_made_again(damage, work):
    finish(start(work, GRAPH))
    files = list(work.glob("**/*.zebin"))
    assert files
    for file in files:
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    for _ in files:
        process = start(work, GRAPH)
        _, err = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        (said,) = (line for line in err.splitlines() if line.startswith("KernelError: "))
        assert process.returncode == 1 and "run the program again" in said and any(str(file) in said for file in files)
    assert "right" in finish(start(work, GRAPH))[0]


def copied_cache(work: Path) -> Path:
    """A cache of anyxpu's own with the C++ half in it."""
    folder = work / "own"
    shutil.copytree(cache_dir("build"), folder / "build")
    return folder


@pytest.mark.rotates(2)
def test_a_damaged_library_is_linked_again_and_a_damaged_copy_kernel_compiled_again(work):
    folder = copied_cache(work)
    program = (
        f"{CHECK}\nimport torch\nt = torch.arange(6).reshape(2, 3).to('xpu').t().to(torch.float16)\nprint(t.cpu())"
    )
    expected, _ = finish(start(work, program, 3, ANYXPU_CACHE_DIR=folder))
    kernels = list((folder / "kernels").glob("**/*.bin"))
    libraries = [build.shim().path(), build.driver("sycl").path()]
    copies = [folder / path.relative_to(cache_dir()) for path in libraries]
    assert kernels and all(copy.exists() for copy in copies)
    for file in (*kernels, *copies):
        file.write_bytes(cut(file.read_bytes()))
    again, _ = finish(start(work, program, 3, ANYXPU_CACHE_DIR=folder))
    assert again.split("compiled")[1].split("\n", 1)[1] == expected.split("compiled")[1].split("\n", 1)[1]
    assert all(copy.stat().st_size == path.stat().st_size for copy, path in zip(copies, libraries, strict=True))


# --- full and read-only folders


def mounted(*commands: str) -> tuple[str, ...]:
    """A prefix that runs a command where only it sees what ``commands`` mount; skips where that is not allowed."""
    prefix = ("unshare", "--mount", "--map-root-user") if os.getuid() else ("unshare", "--mount")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare --mount")
    return (*prefix, "sh", "-ec", "\n".join((*commands, 'exec "$@"')), "sh")


def no_room(folder: Path) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    return mounted(f"mount -t tmpfs -o mode=700,size=16k none '{folder}'")


def read_only(folder: Path) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    return mounted(f"mount --bind '{folder}' '{folder}'", f"mount -o remount,ro,bind '{folder}'")


@pytest.mark.parametrize(
    ("limit", "reason"), [(no_room, "No space left on device"), (read_only, "Read-only file system")]
)
def test_a_kernel_cache_that_cannot_be_written_is_one_clear_error(limit, reason, work):
    _, err = finish(start(work, CHECK, 3, prefix=limit(work / "triton")), status=1)
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"anyxpu.errors.CacheError: cannot write the cache at {work}/triton")
    assert reason in last and "set TRITON_CACHE_DIR to another folder" in last


@pytest.mark.rotates(2)
def test_a_read_only_cache_that_has_everything_serves(work):
    folder = copied_cache(work)
    finish(start(work, CHECK, *SALTS, ANYXPU_CACHE_DIR=folder))
    prefix = (*read_only(work / "triton"), *read_only(folder))
    assert compiled(finish(start(work, CHECK, *SALTS, prefix=prefix, ANYXPU_CACHE_DIR=folder))[0]) == 0


def test_a_copy_kernel_that_cannot_be_kept_is_used_and_said(work):
    folder = copied_cache(work)
    program = "import torch\nprint(torch.ones(2, 3).to('xpu').to(torch.float16).cpu().sum().item())"
    prefix = no_room(folder / "kernels")
    filled = (*prefix, "sh", "-c", f"head -c 16k /dev/zero > '{folder}/kernels/full' || true; exec \"$@\"", "sh")
    (folder / "kernels" / "ops").mkdir()
    out, err = finish(start(work, program, prefix=filled, ANYXPU_CACHE_DIR=folder))
    assert out.strip() == "6.0"
    assert "every process compiles this anew" in err and "set ANYXPU_CACHE_DIR to another folder" in err


def test_a_cache_folder_that_cannot_be_made_is_named_with_the_variable(work):
    (work / "file").touch()
    program = "import torch\nprint(torch.xpu.is_available())"
    out, err = finish(start(work, program, ANYXPU_CACHE_DIR=work / "file" / "cache"))
    assert out.strip() == "False"
    assert f"cannot write the cache at {work}/file/cache" in err and "set ANYXPU_CACHE_DIR to another folder" in err
