"""xpu tensors between processes: torch.multiprocessing's queues, pipes and pools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anyxpu import simulate

shared_memory = pytest.mark.skipif(
    os.environ.get("ANYXPU_HOST_ACCESS") == "0", reason="memory that the host cannot reach is not shared by processes"
)

PROGRAM = """
import sys
import torch
import torch.multiprocessing as mp

def consume(inbox, outbox, strategy):
    mp.set_sharing_strategy(strategy)
    same, view, empty, half, parameter, module = inbox.get(timeout=60)
    outbox.put({
        "same": same.tolist(),
        "view": view.tolist(),
        "one storage": view.data_ptr() == same.data_ptr() + 8,
        "device": {str(t.device) for t in (same, view, empty, half, parameter)} == {"xpu:0"},
        "empty": tuple(empty.shape),
        "half": (half.dtype == torch.bfloat16, half.stride(), half.float().sum().item()),
        "parameter": (type(parameter).__name__, parameter.requires_grad),
        "module": module(torch.ones(1, 2, device="xpu")).shape,
        "shared": same.is_shared(),
    })
    outbox.put(same)  # and back
    inbox.get(timeout=60)
    same += 1  # a kernel's writes
    view[0] = 100
    torch.xpu.synchronize()
    outbox.put("written")
    inbox.get(timeout=60)

def main(strategy):
    mp.set_sharing_strategy(strategy)
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=consume, args=(inbox, outbox, strategy), daemon=True)
    child.start()
    same = torch.arange(6, device="xpu", dtype=torch.float32)
    alias = same[2:]
    half = torch.ones(4, 3, device="xpu", dtype=torch.bfloat16).t()
    module = torch.nn.Linear(2, 3, device="xpu")
    print("before", same.is_shared())
    same *= 2  # still in flight when it is sent
    inbox.put((same, alias, torch.empty(0, 3, device="xpu"), half, torch.nn.Parameter(same), module))
    for key, value in outbox.get(timeout=120).items():
        print(key, value)
    back = outbox.get(timeout=60)
    print("back", back.tolist(), back.data_ptr() == same.data_ptr())
    inbox.put("write")
    outbox.get(timeout=60)
    print("seen", same.tolist(), alias.tolist(), same.is_shared())
    same.record_stream(torch.xpu.Stream())
    print("kernels", (same * 2).sum().item())
    inbox.put("end")
    child.join(60)
    print("ended", child.exitcode)

if __name__ == "__main__":
    main(sys.argv[1])
"""


@shared_memory
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.rotates(2)
def test_two_processes_see_one_tensor(tmp_path: Path, strategy: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program), strategy], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "before False",
        "same [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]",
        "view [4.0, 6.0, 8.0, 10.0]",
        "one storage True",
        "device True",
        "empty (0, 3)",
        "half (True, (1, 3), 12.0)",
        "parameter ('Parameter', True)",
        "module torch.Size([1, 3])",
        "shared True",
        "back [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] True",
        "seen [1.0, 3.0, 100.0, 7.0, 9.0, 11.0] [100.0, 7.0, 9.0, 11.0] True",
        "kernels 262.0",
        "ended 0",
    ]


@shared_memory
def test_shared_memory_is_what_is_said_to_be_shared() -> None:
    x = torch.ones(5, device="xpu")
    view = x[1:]
    assert not x.is_shared()
    assert x.share_memory_() is x
    assert x.is_shared() == view.is_shared() == (not simulate.active())
    assert x.share_memory_().is_shared() == view.is_shared()
    module = torch.nn.Linear(2, 2, device="xpu").share_memory()
    assert all(p.is_shared() == view.is_shared() for p in module.parameters())
    host = torch.ones(3)
    assert not host.is_shared() and host.share_memory_().is_shared()


@shared_memory
@pytest.mark.not_simulated("compares results")
def test_a_tensor_in_shared_memory_computes_and_cannot_be_resized() -> None:
    x = torch.randn(64, 64, device="xpu")
    want = (x.cpu() @ x.cpu(), torch.relu(x.cpu()).sum(0), x.cpu().sort(0).values)
    x.share_memory_()
    before = torch.xpu.memory_allocated()
    got = (x @ x, torch.compile(lambda t: torch.relu(t).sum(0))(x), x.sort(0).values)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=1e-4, rtol=1e-4)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(128, 128)
    del x, got, mine
    assert torch.xpu.memory_allocated() <= before


MIXED = """
import torch
import torch.multiprocessing as mp

COUNT = 30

def echo(inbox, outbox):
    for _ in range(COUNT):
        received = inbox.get(timeout=60)
        outbox.put(received)  # by the queue's thread, in the way that it came, which is not this process's own
        for _ in range(3):
            received += 1  # meanwhile
        outbox.put((received.sum().item(), received.is_shared()))
    inbox.get(timeout=60)

if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=echo, args=(inbox, outbox), daemon=True)
    child.start()
    for _ in range(COUNT):
        inbox.put(torch.zeros(200_000, device="xpu"))
        back = outbox.get(timeout=60)
        print(*outbox.get(timeout=60), back.sum().item())
    inbox.put("end")
"""


@shared_memory
@pytest.mark.not_simulated("compares results")
def test_a_process_that_shares_in_another_way_sends_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MIXED)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["600000.0 True 600000.0"] * 30, done.stderr
