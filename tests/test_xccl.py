"""torch.distributed on xpu as it comes: no backend named, or "xccl", two devices, launched by torchrun.

Each rank's answer is compared with what the collective is defined to give, computed here from both ranks' data.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython

PROGRAM = """
import json, os, sys, tempfile, torch, torch.distributed as dist
from anyxpu.shim import lib

backend, copies, folder = sys.argv[1] or None, sys.argv[2] == "copies", sys.argv[3]
rank = int(os.environ["RANK"])
torch.xpu.set_device(rank)
dist.init_process_group(backend)
lib().set_host_copies(copies)
d = torch.device("xpu", rank)
data = lambda r, *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(10 + r))
mine, both = data(rank, 6).to(d), torch.stack([data(0, 6), data(1, 6)])
wrong, done = [], []

def check(name, actual, expected, scale=1.0):
    done.append(name)
    if actual.device != d or not torch.allclose(actual.cpu(), expected, rtol=1e-5, atol=1e-6 * scale):
        wrong.append([name, actual.tolist(), expected.tolist()])

for op, expected in (("SUM", both.sum(0)), ("AVG", both.mean(0)), ("MAX", both.amax(0)), ("PRODUCT", both.prod(0))):
    t = mine.clone()
    dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
    check(f"all_reduce {op}", t, expected)
for op, expected in (("SUM", both.sum(0)), ("AVG", both.mean(0))):
    t = torch.empty(3, device=d)
    dist.reduce_scatter_tensor(t, mine, op=getattr(dist.ReduceOp, op))
    check(f"reduce_scatter_tensor {op}", t, expected[3 * rank : 3 * rank + 3])
    t = mine.clone()
    dist.reduce(t, 1, op=getattr(dist.ReduceOp, op))
    if rank == 1: check(f"reduce {op}", t, expected)
check("the input of a reduce_scatter", mine, both[rank])
out = torch.empty(12, device=d)
dist.all_gather_into_tensor(out, mine)
check("all_gather_into_tensor", out, both.flatten())
out = torch.empty(1, 12, device=d)
dist.all_gather_into_tensor(out, mine)
check("all_gather_into_tensor of another shape", out, both.view(1, 12))
t = torch.empty(1, 3, device=d)
dist.reduce_scatter_tensor(t, mine.view(1, 2, 3))
check("reduce_scatter_tensor of another shape", t, both.sum(0)[3 * rank : 3 * rank + 3].view(1, 3))
parts = [torch.empty(rank + 1, device=d), torch.empty(rank + 1, device=d)]
dist.all_to_all(parts, [mine[:1], mine[1:3]])
expected = both[:, :1] if rank == 0 else both[:, 1:3]
check("all_to_all", torch.stack(parts), expected)
work = dist.all_reduce(kept := mine * 2, async_op=True)
for _ in range(50): torch.full((6,), 7.0, device=d)  # memory that was freed too early would be taken here
work.wait()
check("async all_reduce", kept, 2 * both.sum(0))
work = dist.all_reduce(kept := mine * 3, async_op=True)
check("the future of an all_reduce", work.get_future().wait()[0], 3 * both.sum(0))
assert work.get_future().value()[0].data_ptr() == kept.data_ptr()
t = torch.empty(6, device=d)
requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, t, 1 - rank)])
for r in requests: r.wait()
check("batch_isend_irecv", t, both[1 - rank])
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
words = [f"from {rank}"]
dist.broadcast_object_list(words, 1)
assert objects == [{"rank": 0}, {"rank": 1}] and words == ["from 1"]

# one step of training with each, against the same on one device with both ranks' rows
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
import torch.distributed.checkpoint as dcp

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

rows = [data(r, 5, 8) for r in (0, 1)]
reference = model()
reference(torch.cat(rows)).square().mean().backward()
for kind in ("ddp", "fsdp"):
    made = model().to(d)
    made = torch.nn.parallel.DistributedDataParallel(made, device_ids=[rank]) if kind == "ddp" else fully_shard(made)
    made(rows[rank].to(d)).square().mean().backward()
    for (name, p), q in zip(made.named_parameters(), reference.parameters()):
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        check(f"{kind} {name}", grad, q.grad)
def normed():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.Conv2d(6, 4, 3))
images = [torch.randn(3 + r, 6, 5, 5, generator=torch.Generator().manual_seed(20 + r)) for r in (0, 1)]
reference = normed()
reference(torch.cat(images)).square().sum().backward()
made = torch.nn.SyncBatchNorm.convert_sync_batchnorm(normed()).to(d)
made = torch.nn.parallel.DistributedDataParallel(made, device_ids=[rank])
made(images[rank].to(d)).square().sum().backward()
for (name, p), q in zip(made.module.named_parameters(), reference.parameters()):
    # Sums of many terms that cancel, in another order: to float32's digits of the largest.
    check(f"SyncBatchNorm {name}", p.grad * 2, q.grad, max(1.0, 2 * float(q.grad.abs().max())))
for (name, p), q in zip(made.module.named_buffers(), reference.buffers()):
    check(f"SyncBatchNorm {name}", p, q)

mesh = init_device_mesh("xpu", (2,))
whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
sharded = distribute_tensor(whole.to(d), mesh, [Shard(0)])
check("DTensor product", (sharded @ sharded.t()).full_tensor(), whole @ whole.t())
dcp.save({"t": sharded}, checkpoint_id=folder)
loaded = {"t": distribute_tensor(torch.zeros(8, 6, device=d), mesh, [Shard(1)])}
dcp.load(loaded, checkpoint_id=folder)
check("checkpoint, sharded the other way", loaded["t"].full_tensor(), whole)

refused = ""
try:
    dist.all_reduce(torch.ones(2, dtype=torch.int32, device=d), op=dist.ReduceOp.AVG)
except Exception as error:
    refused = str(error)
assert "ReduceOp.SUM" in refused, refused
try:
    dist.all_reduce(torch.ones(2))
    cpu = "served"
except RuntimeError:
    cpu = "refused"
dist.barrier()
open(f"{folder}.{rank}", "w").write(json.dumps([sorted(done), wrong, cpu, dist.is_xccl_available()]))
dist.destroy_process_group()
"""


@pytest.mark.rotates(5)
@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize(
    ("backend", "memory", "level"),
    [("", "shared", "DETAIL"), ("xccl", "copies", "OFF"), ("cpu:gloo,xpu:xccl", "shared", "OFF")],
)
def test_collectives_and_what_stands_on_them(
    run_python: RunPython, tmp_path: Path, backend: str, memory: str, level: str
) -> None:
    program, answers = tmp_path / "xccl_program.py", tmp_path / "answer"
    program.write_text(PROGRAM)
    arguments = ["--nproc-per-node=2", "--standalone", str(program), backend, memory, str(answers)]
    run_python(
        f"from torch.distributed.run import main; main({arguments!r})",
        ANYXPU_DEVICES="2",
        TORCH_DISTRIBUTED_DEBUG=level,
    )
    for rank in (0, 1):
        done, wrong, cpu, available = json.loads(Path(f"{answers}.{rank}").read_text())
        assert wrong == [] and available
        assert len(done) >= 31
        assert cpu == ("served" if "gloo" in backend else "refused")
