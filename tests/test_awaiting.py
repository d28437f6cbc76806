"""What a compiled graph calls of operators never goes to the host while its kernel is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyxpu.cache import cache_dir
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.skipif(lib().driver_name() != "sycl", reason="the null driver runs nothing"),
    pytest.mark.not_simulated("the host serves nothing meanwhile on a GPU"),
]
PROGRAM = """
import json
import torch
import anyxpu.ops
from torch import nn

def hosts():
    return {name: ways["host"] for name, ways in anyxpu.ops.counters().items() if ways.get("host")}

def operators(x, edges):  # of them Inductor lowers none
    median = torch.kthvalue(x * 2, 3, 0)[0]
    return median, torch.searchsorted(edges, x), torch.mode(x, 0)[0], torch.logcumsumexp(x, 1)

# Built before anything is counted, as it is not the graph's.
x = torch.randn(40, 33).xpu().requires_grad_()
edges = torch.arange(-2.0, 2.0, 0.25).xpu()
net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).xpu().eval()
images = torch.randn(2, 3, 9, 9).xpu()
gradient = torch.randn(40, 33).xpu()
torch.xpu.synchronize()
before = hosts()
assert not any(name.startswith(("aten::kthvalue", "aten::searchsorted", "aten::mode")) for name in before)

compiled = torch.compile(operators, fullgraph=True)
got = compiled(x, edges)
(grad,) = torch.autograd.grad(got[3], x, gradient)
with torch.no_grad():
    convolved = torch.compile(net)(images)
torch.xpu.synchronize()
in_graphs = {name: count - before.get(name, 0) for name, count in hosts().items() if count > before.get(name, 0)}

leaf = x.detach().cpu().requires_grad_()
expected = operators(leaf, edges.cpu())
for ours, theirs in zip(got, expected):
    torch.testing.assert_close(ours.cpu(), theirs, atol=2e-6, rtol=2e-6)
torch.testing.assert_close(grad.cpu(), torch.autograd.grad(expected[3], leaf, gradient.cpu())[0])
torch.testing.assert_close(convolved.cpu(), net.cpu()(images.cpu()), atol=2e-6, rtol=2e-6)

torch.searchsorted(edges.int(), x.detach().int())  # no graph's, and of other types
print(json.dumps([in_graphs, hosts().get("aten::searchsorted.Tensor", 0)]))
"""


@pytest.mark.rotates(2)
def test_operators_of_a_graph_wait_for_their_kernels_and_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "build").symlink_to(cache_dir() / "build")  # of which alone anything is there
    variables = {"ANYXPU_EAGER": "auto", "ANYXPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    in_graphs, elsewhere = json.loads(done.stdout.splitlines()[-1])
    assert in_graphs == {} and elsewhere == 1
