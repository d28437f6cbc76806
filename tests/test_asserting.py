"""Conditions in tensors that are asserted on the device: heard of at the next wait, with the caller's words."""

from __future__ import annotations

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled", "no_host"),
]
DTYPES = (torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16, torch.complex64)


def said(what: str) -> None:
    """Waiting raises that, unless the device computes nothing; and then the device is as it was."""
    if simulate.active():
        return
    with pytest.raises(RuntimeError, match=f"device-side assert triggered: Assertion `.*{what}"):
        torch.xpu.synchronize()
    assert torch.ones(3, device="xpu").sum().item() == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_is_told_at_the_next_wait_and_nothing_else_is(dtype):
    if dtype is torch.complex64:
        torch._assert_async(torch.tensor([1j], device="xpu"))
    for shape in ((), (1,), (1, 1)):
        torch._assert_async(torch.ones(shape, dtype=dtype, device="xpu"))
        torch._assert_async(torch.full(shape, 0.5 if dtype.is_floating_point else 2, dtype=dtype, device="xpu"))
    torch.xpu.synchronize()
    torch._assert_async(torch.zeros(1, dtype=dtype, device="xpu"))
    said("Expected Tensor with single nonzero value, but got zero")
    torch._assert_async(torch.zeros((), dtype=dtype, device="xpu"), "more rows than columns")
    said("more rows than columns")


def test_a_view_is_looked_at_where_it_begins():
    x = torch.tensor([True, False, True], device="xpu")
    torch._assert_async(x[2])
    torch.xpu.synchronize()
    torch._assert_async(x[1])
    said("Expected Tensor")


def test_a_compiled_graph_asserts_too():
    @torch.compile(fullgraph=True)
    def positive(x):
        torch._assert_async((x > 0).all(), "all have to be positive")
        return x.sqrt()

    x = torch.rand(40, device="xpu") + 1
    torch.testing.assert_close(positive(x).cpu(), x.cpu().sqrt()) if not simulate.active() else positive(x)
    positive(x - 100)
    said("all have to be positive")


def test_what_is_no_single_element_is_refused():
    for device in ("cpu", "xpu"):
        for count in (0, 2):
            with pytest.raises(RuntimeError, match="Boolean value of Tensor with"):
                torch._assert_async(torch.ones(count, device=device))
    anyxpu.ops.reset_counters()  # the host's words are the host's
