"""Collectives by oneCCL: values by a stand-in on the CPU device, and oneCCL itself on simulated GPUs, launch-only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyxpu.runtime import oneccl
from tests import test_xccl
from tests.conftest import RunPython
from tests.gpu_support import needs_driver, run_on

needs_oneccl = pytest.mark.skipif(oneccl.installed_in() is None, reason=f"needs oneCCL: {oneccl.INSTALL}")

# What test_xccl's program does not reach, after it; the collectives of both are then oneCCL's.
MORE = """
from anyxpu import ops

uneven = [torch.empty(2, device=d), torch.empty(3, device=d)]
dist.all_gather(uneven, mine[: rank + 2])
check("uneven all_gather", torch.cat(uneven), torch.cat([both[0, :2], both[1, :3]]))
even = [torch.empty(3, 2, device=d) for _ in range(2)]
dist.all_gather(even, mine.view(3, 2))
check("all_gather", torch.stack(even), both.view(2, 3, 2))
t = torch.empty(2, 3, device=d).t()
t.copy_(mine.view(3, 2))
dist.all_reduce(t)
check("strided all_reduce", t, both.sum(0).view(3, 2))
flags = (mine > 0) if rank == 0 else torch.zeros(6, dtype=torch.bool, device=d)
dist.broadcast(flags, 0)
check("broadcast of bool", flags.float(), (both[0] > 0).float())
t = torch.empty(4 if rank else 2, device=d)
dist.reduce_scatter(t, list(mine.split([2, 4])))
check("uneven reduce_scatter", t, both.sum(0)[2:] if rank else both.sum(0)[:2])
t = torch.empty(4, device=d) if rank == 0 else torch.empty(2, 4, device=d).view(-1)
dist.all_to_all_single(t, mine, [2, 2] if rank == 0 else [4, 4], [2, 4])
check("all_to_all_single", t, both[:, :2].flatten() if rank == 0 else both[:, 2:].flatten())
outs = [torch.empty(12, device=d), torch.empty(6, device=d)]
with dist._coalescing_manager(device=d):
    for out, source in zip(outs, (mine, mine[:3])):
        dist.all_gather_into_tensor(out, source)
check("coalesced all_gather", outs[1], both[:, :3].flatten())
b = mine.bfloat16()
dist.all_reduce(b, op=dist.ReduceOp.AVG)
check("bf16 mean", b.float(), both.bfloat16().div(2).sum(0).float())
work = dist.all_reduce(f := mine.clone(), async_op=True)
check("a work's future", work.get_future().wait()[0], both.sum(0))
assert work.is_completed()
dist.all_reduce(torch.empty(0, device=d))
wrong_size = ""
try:
    dist.all_gather_into_tensor(torch.empty(7, device=d), mine)
except Exception as error:
    wrong_size = str(error)
assert wrong_size, wrong_size
served = {name: ways for name, ways in ops.counters().items() if name.startswith("c10d::")}
assert not any(served[f"c10d::{n}"].get("host") for n in ("_allgather_base_", "alltoall_base_", "reduce_")), served
assert {'AllReduce', 'AllToAllV', 'Broadcast', 'Reduce', 'ReduceScatter', 'AllGather'} <= set(stood_in.calls)
"""

# On GPUs that run nothing: the driver takes what oneCCL gives it, and works and streams are in their order.
LAUNCHED = """
import json, os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def main(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.xpu.set_device(rank)
    dist.init_process_group()
    d = torch.device("xpu", rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        x = torch.ones(1024, dtype=dtype, device=d)
        for op in ("SUM", "MAX", "MIN", "PRODUCT") + (("AVG",) if dtype.is_floating_point else ()):
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        dist.reduce(x, 1)
        dist.reduce_scatter_tensor(torch.empty(512, dtype=dtype, device=d), x)
    dist.broadcast(x, 0)
    dist.broadcast(x > 0, 1)
    dist.all_gather_into_tensor(torch.empty(2048, dtype=x.dtype, device=d), x)
    dist.all_gather([torch.empty_like(x), torch.empty_like(x)], x)
    dist.all_to_all_single(torch.empty_like(x), x)
    dist.all_to_all([x.new_empty(rank + 1), x.new_empty(rank + 1)], [x[:1], x[1:3]])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.xpu.synchronize()
    assert work.is_completed()
    half = dist.new_group([0, 1])
    dist.all_reduce(x, group=half)
    refused = ""
    try:
        dist.all_gather_into_tensor(torch.empty(7, device=d), torch.ones(2, device=d))
    except Exception as error:
        refused = str(error)
    assert "2 ranks" in refused, refused
    dist.barrier()
    from anyxpu import ops
    served = {k: v for k, v in ops.counters().items() if k.startswith("c10d::") and k != "c10d::barrier"}
    assert served and not any(v.get("host") for v in served.values()), served
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    mp.spawn(main, (port,), nprocs=2)
    print(json.dumps("done"))
"""


@pytest.mark.not_simulated("compares results")
@pytest.mark.rotates(2)
def test_collectives_by_oneccl_give_what_they_are_defined_to(run_python: RunPython, tmp_path: Path) -> None:
    started = "dist.init_process_group(backend)\n"
    ended = "dist.barrier()\nopen("
    assert started in test_xccl.PROGRAM and ended in test_xccl.PROGRAM
    source = test_xccl.PROGRAM.replace(
        started, started + "from tests import oneccl_stand_in\nstood_in = oneccl_stand_in.install()\n"
    ).replace(ended, MORE + ended)
    program, answers = tmp_path / "oneccl_program.py", tmp_path / "answer"
    program.write_text(source)
    arguments = ["--nproc-per-node=2", "--standalone", str(program), "xccl", "shared", str(answers)]
    run_python(
        f"from torch.distributed.run import main; main({arguments!r})",
        ANYXPU_DEVICES="2",
        PYTHONPATH=str(Path(__file__).parents[1]),
    )
    for rank in (0, 1):
        done, wrong, _, _ = json.loads(Path(f"{answers}.{rank}").read_text())
        assert wrong == []
        assert len(done) >= 30


@needs_oneccl
@needs_driver
@pytest.mark.parametrize("device", ["bmg", "pvc"])
@pytest.mark.rotates(2)
def test_intels_driver_takes_what_oneccl_enqueues(tmp_path: Path, device: str) -> None:
    outcome = run_on(device, LAUNCHED, tmp_path, count=2, ANYXPU_XCCL="oneccl")
    assert outcome.stdout.splitlines()[-1] == '"done"'
    assert outcome.refused() == {} and outcome.accepted("alloc") > 0


def test_a_missing_oneccl_is_said_once_and_gloo_serves(run_python: RunPython, tmp_path: Path) -> None:
    run_python(
        """
        import warnings, torch, torch.distributed as dist
        from anyxpu.runtime import oneccl

        def missing():
            raise oneccl.Missing("oneCCL does not load (no such file)")

        oneccl.library, oneccl.between_gpus = missing, lambda index: True
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        x = torch.arange(4., device="xpu")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                dist.all_reduce(x)
        said = [str(w.message) for w in seen if "oneCCL" in str(w.message)]
        assert len(said) == 1 and "no such file" in said[0] and "pip install" in said[0] and "gloo" in said[0], said
        assert x.tolist() == [0, 1, 2, 3]
        """,
        ANYXPU_XCCL="oneccl",
    )


def test_the_packages_that_are_named_are_those_that_were_tested() -> None:
    lines = (Path(__file__).parents[1] / "requirements" / "oneccl.txt").read_text().splitlines()
    assert oneccl.INSTALL.split("--no-deps ")[1].split() == [line for line in lines if "==" in line]
