"""``anyxpu warm``: a program's kernels are built before it needs them, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu.cache import cache_dir

pytestmark = pytest.mark.not_simulated("there the host serves nothing while kernels are built")

PROGRAM = """
import sys, warnings
warnings.simplefilter("error")
import torch, anyxpu.ops
x = torch.randn(33, 17, device="xpu", requires_grad=True)
torch.nn.functional.gelu(x * 2).softmax(-1).mean().backward()
assert x.grad.isfinite().all()
print(sum(ways.get("host", 0) for ways in anyxpu.ops.counters().values()), sys.argv[1:])
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture
def run(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "build").symlink_to(cache_dir() / "build")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if k != "ANYXPU_EAGER"}
    environment |= {"ANYXPU_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(str(program) if a == "PROGRAM" else a for a in arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return run


@pytest.mark.rotates(2)
def test_what_a_program_asked_for_is_there_when_it_runs_again(run) -> None:
    first = run("-m", "anyxpu", "warm", "PROGRAM", "one", "--two")
    assert first.returncode == 2, first.stderr  # its own
    hosts, arguments = first.stdout.split(maxsplit=1)
    assert int(hosts) > 3 and arguments.strip() == "['one', '--two']"
    assert "warm: 0 kernels" not in first.stderr and "left with status 2" in first.stderr
    again = run("PROGRAM")
    assert (again.returncode, again.stdout.split()[0]) == (0, "0"), again.stderr
    third = run("-m", "anyxpu", "warm", "PROGRAM")
    assert third.returncode == 0 and "anyxpu warm: 0 kernels" in third.stderr


def test_a_program_that_is_not_there_is_named(run) -> None:
    done = run("-m", "anyxpu", "warm", "nowhere.py")
    assert done.returncode == 2 and "there is no file nowhere.py" in done.stderr
