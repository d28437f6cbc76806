"""tl.device_assert: the program ends where a condition does not hold, the host is told, and the device goes on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def take_kernel(x, i, o, n, B: tl.constexpr):
    offset = tl.program_id(0) * B + tl.arange(0, B)
    index = tl.load(i + offset)
    tl.device_assert((index >= 0) & (index < n), "index out of bounds")
    tl.store(o + offset, tl.load(x + index))


@triton.jit
def positive_kernel(x, o):
    value = tl.load(x + tl.program_id(0))
    tl.device_assert(value > 0, "not positive")
    tl.store(o + tl.program_id(0), value)


@triton.jit
def loop_kernel(x, o, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for start in range(0, n, B):
        part = tl.load(x + start + tl.arange(0, B))
        tl.device_assert(part == part, "a NaN")
        total += tl.cumsum(part, 0)
    tl.store(o + tl.arange(0, B), total)


ERROR = "device-side assert triggered: Assertion `"


@pytest.mark.not_simulated("a kernel that does not execute fails no assertion")
@pytest.mark.parametrize("warps", [1, 4])
def test_what_comes_after_a_failed_assertion_does_not_happen(warps, xpu):
    """An index this far off would end the process, were it used."""
    size, block = 512, 128
    x, i = torch.randn(size), torch.randperm(size)
    o = torch.zeros(size, device="xpu")

    def run(indices: torch.Tensor) -> torch.Tensor:
        o.zero_()
        options = {"debug": True, "num_warps": warps, "keep_warps": True}
        take_kernel[(size // block,)](x.to("xpu"), indices.to("xpu"), o, size, B=block, **options)
        torch.xpu.synchronize()
        return o.cpu()

    assert torch.equal(run(i), x[i])
    bad = i.clone()
    bad[block + 77] = 1 << 50
    with pytest.raises(
        torch.AcceleratorError, match=rf"{ERROR}take_kernel: index out of bounds` failed \(program 1, 0, 0\)"
    ):
        run(bad)
    others = torch.arange(size) // block != 1
    assert torch.equal(o.cpu()[others], x[i][others]), "the other programs ran to their ends"
    assert o[block + 77] == 0
    assert torch.equal(run(i), x[i]), "the failure is forgotten once told"


@pytest.mark.not_simulated("a kernel that does not execute fails no assertion")
@pytest.mark.parametrize("wait", ["device", "stream", "event", "item", "cpu", "host operator"])
def test_every_wait_for_the_device_tells(wait, xpu):
    x, o = torch.tensor([1.0, -1.0], device="xpu"), torch.zeros(2, device="xpu")
    event = torch.xpu.Event()
    positive_kernel[(2,)](x, o, debug=True)
    event.record()
    waits = {
        "device": torch.xpu.synchronize,
        "stream": torch.xpu.current_stream().synchronize,
        "event": event.synchronize,
        "item": o[0].item,
        "cpu": o.cpu,
        "host operator": lambda: torch.geqrf(o[:, None]),
    }
    with pytest.raises(torch.AcceleratorError, match=f"{ERROR}positive_kernel: not positive"):
        waits[wait]()
    torch.xpu.synchronize()
    assert o.tolist() == [1, 0]


@pytest.mark.not_simulated("a kernel that does not execute fails no assertion")
def test_only_the_first_failure_is_told_and_only_once(xpu):
    x, o = -torch.ones(64, device="xpu"), torch.zeros(64, device="xpu")
    for _ in range(3):
        positive_kernel[(64,)](x, o, debug=True)
    with pytest.raises(torch.AcceleratorError, match="positive_kernel"):
        torch.xpu.synchronize()
    torch.xpu.synchronize()
    assert not any(o.tolist())


@pytest.mark.not_simulated("a kernel that does not execute fails no assertion")
@pytest.mark.parametrize("at", [None, 0, 700])
def test_a_loop_ends_where_its_assertion_fails(at, xpu):
    x, o = torch.randn(1024), torch.zeros(128, device="xpu")
    if at is not None:
        x[at] = float("nan")
    loop_kernel[(1,)](x.to("xpu"), o, 1024, B=128, debug=True)
    if at is None:
        torch.testing.assert_close(o.cpu().double(), x.double().view(8, 128).cumsum(1).sum(0), atol=1e-4, rtol=1e-4)
    else:
        with pytest.raises(torch.AcceleratorError, match="loop_kernel: a NaN"):
            torch.xpu.synchronize()
        assert not any(o.tolist())


def test_without_debug_nothing_is_asserted(xpu):
    x, o = -torch.ones(4, device="xpu"), torch.zeros(4, device="xpu")
    positive_kernel[(4,)](x, o)
    assert o.tolist() == [-1] * 4


@pytest.mark.not_simulated("a kernel that does not execute fails no assertion")
def test_a_compiled_embedding_refuses_an_index_that_is_not_there(xpu):
    torch._dynamo.reset()
    table, i = torch.randn(50, 16), torch.randint(0, 50, (20,))
    f = torch.compile(lambda t, i: F.embedding(i, t) * 2)
    torch.testing.assert_close(f(table.to("xpu"), i.to("xpu")).cpu(), table[i] * 2)
    bad = i.clone()
    bad[7] = 1 << 40
    with pytest.raises(torch.AcceleratorError, match=r"index out of bounds: 0 <= .* < 50"):
        f(table.to("xpu"), bad.to("xpu")).cpu()
    torch.testing.assert_close(f(table.to("xpu"), i.to("xpu")).cpu(), table[i] * 2)
