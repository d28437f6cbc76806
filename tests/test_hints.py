"""A line may be asked for anywhere, which changes nothing of what a kernel computes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anyxpu.triton.hints import fetch_line


@triton.jit
def asking(x, out, AHEAD: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    fetch_line((x + AHEAD).to(tl.int64))
    tl.store(out + lanes, tl.load(x + lanes) + 1)


@pytest.mark.parametrize("ahead", [0, 1 << 40, -(1 << 40)])
def test_a_line_is_asked_for_wherever_it_is(ahead):
    x, out = torch.randn(64, device="xpu"), torch.empty(64, device="xpu")
    kernel = asking[(1,)](x, out, AHEAD=ahead, N=64)
    torch.testing.assert_close(out.cpu(), x.cpu() + 1, rtol=0, atol=0)
    assert kernel.asm["cl"].count("ax_fetch_line(") == 2  # as it is defined, and called


def test_a_gpu_is_not_asked(ocloc_program):
    signature = {"x": "*fp32", "out": "*fp32", "AHEAD": "constexpr", "N": "constexpr"}
    source = ASTSource(asking, signature, {"AHEAD": 1 << 40, "N": 64})
    made = triton.compile(source, target=GPUTarget("xpu", {"device": "bmg"}, 16))
    assert "ax_fetch_line" in made.asm["cl"] and "prefetch" not in made.asm["cl"]
    assert made.asm["zebin"]
