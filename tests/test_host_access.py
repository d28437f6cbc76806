"""Memory that the host cannot reach (ANYXPU_HOST_ACCESS=0): operators by kernels, and by the host on copies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device")

# Files whose tests lean on nothing but operators.
FILES = ("test_indexing.py", "test_database_slice.py", "test_foreach.py", "test_host_results.py", "test_scatter.py")


@pytest.mark.not_simulated("starts processes of its own")
def test_a_step_of_training_and_operators_of_the_host():
    script = """
import torch
from anyxpu.shim import lib
assert not lib().properties(0).host_accessible
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                          torch.nn.Flatten(), torch.nn.Linear(8 * 49, 5))
other = torch.nn.Sequential(*(type(m)(*a) for m, a in zip(net, ((3, 8, 3), (8,), (), (2,), (), (8 * 49, 5)))))
other.load_state_dict(net.state_dict())
net.to("xpu")
x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
for model, device in ((net, "xpu"), (other, "cpu")):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
for one, two in zip(net.parameters(), other.parameters()):
    torch.testing.assert_close(one.cpu(), two, rtol=1e-3, atol=1e-3)
a = torch.randn(6, 6)
functions = [torch.linalg.inv, torch.linalg.det, lambda t: torch.geqrf(t)[0]]
functions += [lambda t: torch.fft.fft(t).real, lambda t: t.sort(1)[0]]
for of in functions:
    torch.testing.assert_close(of(a.to("xpu")).cpu(), of(a), rtol=1e-3, atol=1e-3)
b = a.to("xpu").t()
b.erfinv_()
torch.testing.assert_close(b.cpu(), a.t().erfinv(), equal_nan=True)
print("done")
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ANYXPU_HOST_ACCESS": "0", "ANYXPU_EAGER": "compile"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.stdout.endswith("done\n"), found.stderr


@pytest.mark.full
@pytest.mark.not_simulated("starts processes of its own")
@pytest.mark.parametrize("file", FILES)
def test_whole_files(file):
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", os.path.join(os.path.dirname(__file__), file)],
        env={**os.environ, "ANYXPU_HOST_ACCESS": "0"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert found.returncode == 0, found.stdout[-3000:]
