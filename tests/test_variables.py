"""Environment variables: what means nothing is named, and a cache that others may write is not used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from anyxpu import cache, variables
from anyxpu.errors import CacheError
from tests.conftest import RunPython

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"\bANYXPU_[A-Z_0-9]*[A-Z0-9]\b")


def test_the_table_has_every_variable_that_is_read_and_the_readme_tells_of_each() -> None:
    sources = [p for p in (ROOT / "anyxpu").rglob("*") if p.suffix in (".py", ".cpp", ".h")]
    read = set()
    for source in sources:
        read |= set(re.findall(r"""["'](ANYXPU_[A-Z_]+)["']""", source.read_text()))
    assert read - {"ANYXPU_NO_LAYOUT", "ANYXPU_TEST_"} <= variables.TABLE.keys()
    told = set(NAME.findall((ROOT / "README.md").read_text()))
    assert told <= variables.TABLE.keys() and variables.TABLE.keys() <= told


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ANYXPU_CACHEDIR", "/somewhere", "no variable of anyxpu and has no effect (is ANYXPU_CACHE_DIR meant?)"),
        ("ANYXPU_XYZZY", "1", "no variable of anyxpu and has no effect"),
        ("ANYXPU_DEVICES", "two", "expected a number from 0 to 64"),
        ("ANYXPU_DEVICES", "65", "expected a number from 0 to 64"),
        ("ANYXPU_DISABLE", "false", "expected 0 or 1"),
        ("ANYXPU_DRIVER", "cuda", "expected one of sycl, null"),
        ("ANYXPU_ACCELERATOR", "tpu", "expected one of xpu, cuda"),
        ("ANYXPU_GPU_COMPILER", "gcc", "expected one of driver, ocloc"),
        ("ANYXPU_OCLOC", "/not/there", "expected a path that is there"),
        ("ANYXPU_OCLOC_TIMEOUT", "soon", "expected seconds above 0"),
        ("PYTORCH_ALLOC_CONF", "max_split_size:3", "'max_split_size', which torch does not know"),
        ("PYTORCH_ALLOC_CONF", "junk:1,max_split_size_mb:64", "'junk', which torch does not know"),
    ],
)
def test_junk_is_named(name: str, value: str, said: str) -> None:
    (complaint,) = variables.complaints({name: value, "PATH": "/bin", "ANYXPU_FULL": "1"})
    assert name in complaint and said in complaint


def test_what_makes_sense_is_taken_in_silence() -> None:
    sensible = {
        "ANYXPU_DEVICES": "2",
        "ANYXPU_DISABLE": "",
        "ANYXPU_OCLOC_TIMEOUT": "1.5",
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:4],backend:native",
    }
    assert variables.complaints(sensible) == []


def test_a_process_says_it_once(run_python: RunPython) -> None:
    done = run_python("import torch; torch.ones(1, device='xpu')", ANYXPU_DEVICE="2")
    assert done.stderr.count("ANYXPU_DEVICE is no variable") == 1 and "ANYXPU_DEVICES" in done.stderr


@pytest.mark.parametrize("value", ["max_split_size_mb:abc", "max_split_size_mb", ",", "garbage_collection_threshold:7"])
def test_settings_of_the_allocator_that_mean_nothing_are_one_error(run_python: RunPython, value: str) -> None:
    if torch.version.cuda and ":" not in value:
        pytest.skip("a torch built for CUDA reads the setting in its own start, which such a value ends")
    program = "import torch\ntry:\n    torch.ones(1, device='xpu')\nexcept ValueError as error:\n    print(error)"
    done = run_python(program, PYTORCH_ALLOC_CONF=value)
    assert f"PYTORCH_ALLOC_CONF='{value}' is no setting of the allocator" in done.stdout
    assert "report a bug" not in done.stdout


def test_folders_that_are_made_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYXPU_CACHE_DIR", str(tmp_path / "a" / "b"))
    made = cache.cache_dir("kernels", "ops")
    while made != tmp_path:
        assert made.stat().st_mode & 0o777 == 0o700
        made = made.parent


@pytest.mark.parametrize("below", [(), ("kernels",), ("kernels", "ops")])
def test_a_folder_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ANYXPU_CACHE_DIR", str(tmp_path / "cache"))
    cache.cache_dir("kernels", "ops")
    folder = tmp_path.joinpath("cache", *below)
    folder.chmod(0o777)
    said = rf"{folder} can be written by others \(mode 0777\).*chmod go-w .*ANYXPU_CACHE_DIR"
    with pytest.raises(CacheError, match=said):
        cache.cache_dir("kernels", "ops")
    folder.chmod(0o755)
    assert cache.cache_dir("kernels", "ops").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_another_user_owns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYXPU_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache.cache_dir("kernels")
    os.chown(folder, 12345, 12345)
    with pytest.raises(CacheError, match="belongs to another user \\(uid 12345\\)"):
        cache.cache_dir("kernels", "ops")


PROGRAM = """
import sys, torch, triton, triton.language as tl
@triton.jit
def add_one(x):
    tl.store(x, tl.load(x) + 1)
x = torch.ones(1, device="xpu")
if sys.argv[1] == "triton":
    add_one[(1,)](x)
else:
    torch.compile(lambda t: t * 3)(x)
"""


@pytest.mark.rotates(3)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("whose", ["triton", "inductor"])
def test_kernels_that_another_user_owns_are_not_loaded(tmp_path: Path, whose: str) -> None:
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "ANYXPU_DEVICES": "0",
    }
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), whose]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    assert run().returncode == 0
    kernels = [p for p in (tmp_path / "triton").rglob("*") if p.suffix in (".zebin", ".spv") and p.is_file()]
    assert kernels
    for kernel in kernels:
        os.chown(kernel, 12345, 12345)
    done = run()
    assert done.returncode != 0 and "belongs to another user (uid 12345)" in done.stderr


def test_no_warning_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert variables.complaints({"ANYXPU_CACHE_DIR": "/x"}) == []
