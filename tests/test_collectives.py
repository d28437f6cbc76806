"""torch.distributed over gloo on device memory that the host cannot reach: every collective gives what the CPU's does.

The CPU device's memory is the host's; `set_host_copies` has host operators treat it as a discrete GPU's.
"""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunPython

PROGRAM = """
import json, os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
from anyxpu.shim import lib

def collectives(rank, device):
    g = torch.Generator().manual_seed(7 + rank)
    new = lambda *shape: torch.randn(*shape, generator=g).to(device)
    empty = lambda *shape: torch.full(shape, -1.0).to(device)
    done = {}
    for mode in ("waited", "async"):
        def call(name, collective, *arguments, then=None, **options):
            work = collective(*arguments, **options, async_op=mode == "async")
            if work is not None:
                work.wait()
            done[mode, name] = then

        a, b, c, d = new(5, 3), new(6, 4), new(7), new(7)
        call("all_reduce", dist.all_reduce, a, then=[a])
        call("all_reduce max", dist.all_reduce, b, op=dist.ReduceOp.MAX, then=[b])
        call("broadcast", dist.broadcast, c, 1, then=[c])
        call("reduce", dist.reduce, d, 0, then=[d] if rank == 0 else [])
        parts, whole, views = [empty(3), empty(3)], empty(6), empty(4, 4)
        call("all_gather", dist.all_gather, parts, new(3), then=parts)
        call("all_gather_into", dist.all_gather_into_tensor, whole, new(3), then=[whole])
        call("all_gather into views", dist.all_gather, [views[0], views[2]], new(4), then=[views])
        one, other = empty(3), empty(3)
        call("reduce_scatter_tensor", dist.reduce_scatter_tensor, one, new(6), then=[one])
        call("reduce_scatter", dist.reduce_scatter, other, [new(3), new(3)], then=[other])
        gathered, scattered, swapped = [empty(3), empty(3)], empty(3), empty(4)
        call("gather", dist.gather, new(3), gathered if rank == 0 else None, dst=0, then=gathered)
        parts = [new(3), new(3)]
        call("scatter", dist.scatter, scattered, parts if rank == 1 else None, src=1, then=[scattered])
        call("all_to_all_single", dist.all_to_all_single, swapped, new(4), then=[swapped])
    a, b = new(5), empty(5)
    if rank == 0: dist.send(a, 1); dist.recv(b, 1)
    else: dist.recv(b, 0); dist.send(a, 0)
    done["waited", "send, recv"] = [b]
    b = empty(5)
    works = [dist.isend(a, 1 - rank), dist.irecv(b, 1 - rank)]
    for work in works: work.wait()
    done["async", "isend, irecv"] = [b]
    dist.barrier()
    return done

def training(rank, device):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(8, 16, generator=data).to(device)).square().mean().backward()
        optimizer.step()
    return {("training", name): [p.detach()] for name, p in model.named_parameters()}

def run(rank, store, answers):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    if DEVICE == "xpu":
        lib().set_host_copies(True)
        torch.xpu.set_device(rank % torch.xpu.device_count())
    sides = {}
    for device in ("cpu", DEVICE):
        sides[device] = {**collectives(rank, device), **training(rank, device)}
    wrong = []
    for key, expected in sides["cpu"].items():
        actual = sides[DEVICE][key]
        assert all(t.device.type == DEVICE for t in actual), key
        if len(actual) != len(expected) or not all(
            torch.allclose(a.cpu(), e, rtol=1e-4, atol=1e-5) for a, e in zip(actual, expected)
        ):
            wrong.append(" ".join(key))
    open(f"{answers}.{rank}", "w").write(json.dumps([len(sides["cpu"]), wrong]))
    dist.destroy_process_group()

DEVICE = "xpu"
if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    mp.spawn(run, (folder + "/store", folder + "/answer"), nprocs=2)
    print(json.dumps([json.loads(open(f"{folder}/answer.{rank}").read()) for rank in (0, 1)]))
"""


@pytest.mark.not_simulated("compares what the collectives moved with what kernels computed")
@pytest.mark.rotates(2)
def test_every_collective_on_memory_that_the_host_does_not_reach(run_python: RunPython, tmp_path) -> None:
    path = tmp_path / "collectives_program.py"
    path.write_text(PROGRAM)
    done = run_python(f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {str(path)!r}]).returncode)")
    for count, wrong in json.loads(done.stdout.splitlines()[-1]):
        assert count >= 26
        assert wrong == []
