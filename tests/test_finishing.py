"""A program may end right after backward()."""

from __future__ import annotations

import concurrent.futures

import pytest

from tests.conftest import RunPython

# Autograd's thread lets go of these graphs after backward() has returned, and takes the GIL for what Python knows.
PROGRAM = """
import torch
def step():
    p = [torch.randn(3, device="xpu", requires_grad=True) for _ in range(400)]
    torch.stack([q * 2 for q in p]).sum().backward()
step()
"""


@pytest.mark.not_simulated("about the process, not the device")
@pytest.mark.rotates(2)
def test_a_process_may_end_right_after_backward(run_python: RunPython) -> None:
    # Without the wait at exit a third of them ended by SIGABRT.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run_python, PROGRAM) for _ in range(8)]:
            assert done.result().stdout == ""
