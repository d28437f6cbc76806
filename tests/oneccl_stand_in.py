"""A stand-in for oneCCL's library on the CPU device, whose memory the host reads: gloo moves what lies there.

It lets the values of :mod:`anyxpu.runtime.oneccl` be checked where no GPU is. It reads the numbers of data types and
reductions as ``oneapi/ccl/v2/types.h`` defines them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.distributed as dist

from anyxpu.runtime import oneccl

KINDS = {
    0: torch.int8,
    1: torch.uint8,
    2: torch.int32,
    4: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.bfloat16,
}
OPERATIONS = {0: dist.ReduceOp.SUM, 1: dist.ReduceOp.PRODUCT, 2: dist.ReduceOp.MAX, 3: dist.ReduceOp.MIN}


def at(address: int, count: int, kind: int) -> torch.Tensor:
    """The elements at an address, as a CPU tensor of their own memory."""
    kept = (ctypes.c_char * (count * KINDS[kind].itemsize)).from_address(address)
    return torch.frombuffer(kept, dtype=KINDS[kind], count=count)


class StandIn:
    """Two ranks of one machine."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo")
        self.calls: list[str] = []

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append(name)
        if name == "CommInitRank":
            assert arguments[1] == 2
        elif name not in ("GetUniqueId", "SetDevice", "CommDestroy"):
            torch.xpu.synchronize()
            *own, _communicator, queue = arguments
            assert queue.value == torch.xpu.current_stream().sycl_queue
            getattr(self, name)(*own)

    def AllReduce(self, source: int, target: int, count: int, kind: int, operation: int) -> None:
        out = at(source, count, kind).clone()
        dist.all_reduce(out, OPERATIONS[operation], self.group)
        at(target, count, kind).copy_(out)

    def Reduce(self, source: int, target: int, count: int, kind: int, operation: int, root: int) -> None:
        out = at(source, count, kind).clone()
        dist.reduce(out, root, OPERATIONS[operation], self.group)
        if dist.get_rank() == root:
            at(target, count, kind).copy_(out)

    def Broadcast(self, source: int, target: int, count: int, kind: int, root: int) -> None:
        out = at(source, count, kind).clone()
        dist.broadcast(out, root, self.group)
        at(target, count, kind).copy_(out)

    def AllGather(self, source: int, target: int, count: int, kind: int) -> None:
        parts = list(at(target, 2 * count, kind).split(count))
        dist.all_gather(parts, at(source, count, kind), self.group)

    def ReduceScatter(self, source: int, target: int, count: int, kind: int, operation: int) -> None:
        out = at(source, 2 * count, kind).clone()
        dist.all_reduce(out, OPERATIONS[operation], self.group)
        at(target, count, kind).copy_(out[dist.get_rank() * count :][:count])

    def AllToAllV(self, source: int, sent: Any, target: int, received: Any, kind: int) -> None:
        dist.all_to_all_single(
            at(target, sum(received), kind), at(source, sum(sent), kind), list(received), list(sent), self.group
        )


def install() -> StandIn:
    """Take oneCCL's place in this process, whose ranks have to call it together."""
    made = StandIn()
    oneccl.library = lambda: made  # type: ignore[assignment]
    oneccl.between_gpus = lambda index: True  # type: ignore[assignment]
    return made
