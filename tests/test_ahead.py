"""Kernels of attention's gradients are built by another process while the forward call's is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu.cache import cache_dir

pytestmark = pytest.mark.not_simulated("there nothing is built by another process")

PROGRAM = """
import os, sys, torch
torch.manual_seed(0)
def gradients(device, turned, dropout=0.0):
    q, k, v = (t.detach().to(device).requires_grad_() for t in operands)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    weight = factor.to(device)
    out.backward(weight.transpose(1, 2).contiguous().transpose(1, 2) if turned else weight)
    return [t.grad.cpu() for t in (q, k, v)]
heads = 64 if "heads" in sys.argv else 1  # which are more than there are cores, or fewer
operands = [torch.randn(1, heads, 37, 24) for _ in range(3)]
factor = torch.randn(1, heads, 37, 24)
for got, wanted in zip(gradients("xpu", "turned" in sys.argv), gradients("cpu", False)):
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=2e-5)
for _ in range(4 if "dropout" in sys.argv else 0):
    gradients("xpu", False, 0.25)  # each with a seed of its own
print(os.getpid())
"""


@pytest.fixture
def run(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "build").symlink_to(cache_dir() / "build")
    environment = {k: v for k, v in os.environ.items() if k != "ANYXPU_EAGER"}
    environment |= {"ANYXPU_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}

    def run(*arguments: str) -> tuple[list[str], list[str]]:
        """The kernels of attention that the program's process compiled, and that others did."""
        log = tmp_path / "compiled.txt"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment | {"ANYXPU_LOG_COMPILES": str(log)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        lines = [line for line in lines if line[1] in ("attend", "by_queries", "by_keys", "by_both")]
        own = done.stdout.split()[-1]
        return sorted(n for p, n in lines if p == own), sorted(n for p, n in lines if p != own)

    return run


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("arguments", "kernels"), [((), ["by_keys", "by_queries"]), (("heads",), ["by_both"])], ids=["one head", "64 heads"]
)
def test_gradients_kernels_are_built_elsewhere_and_kept(run, arguments, kernels) -> None:
    assert run(*arguments) == (["attend"], kernels)
    assert run(*arguments) == ([], [])


@pytest.mark.rotates(3)
def test_what_was_foreseen_wrongly_is_built_where_it_is_launched(run) -> None:
    own, others = run("turned")  # the gradient of another order of dimensions than attention's result
    assert others == ["by_keys", "by_queries"] and own[0] == "attend"


@pytest.mark.rotates(3)
def test_a_new_seed_of_dropout_is_no_new_kernel(run) -> None:
    own, others = run("dropout")
    assert own == ["attend"] * 2 and others == ["by_keys"] * 2 + ["by_queries"] * 2
