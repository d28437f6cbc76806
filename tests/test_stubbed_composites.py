"""Operators that torch makes of others, and that end in a table of kernels without one for xpu: the host runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anyxpu.ops import compiled, registry
from anyxpu.shim import lib

DEVICE = "xpu"
ROOT = Path(__file__).parents[1]


def exponents(device):
    return torch.tensor([1, -2, 3, 0], device=device)


CASES = {
    "ldexp.Tensor": lambda d, x: torch.ldexp(x, exponents(d)),
    "ldexp.out": lambda d, x: torch.ldexp(x, exponents(d), out=torch.empty(0, device=d)),
    "ldexp_": lambda d, x: x.clone().ldexp_(exponents(d)),
    "conj_physical_": lambda d, x: torch.complex(x, x + 1).conj_physical_(),
    "kaiser_window": lambda d, x: torch.kaiser_window(9, device=d),
    "kaiser_window.periodic": lambda d, x: torch.kaiser_window(9, False, device=d),
    "kaiser_window.beta": lambda d, x: torch.kaiser_window(9, True, 5.0, device=d),
    "kaiser_window.beta_out": lambda d, x: torch.ops.aten.kaiser_window.beta_out(
        9, True, 5.0, out=torch.empty(2, device=d)
    ),
    "mode.values": lambda d, x: torch.mode(
        (x > 0).long(), out=(torch.empty(0, dtype=torch.long, device=d), torch.empty(0, dtype=torch.long, device=d))
    ),
    "_batch_norm_no_update": lambda d, x: torch.ops.aten._batch_norm_no_update(
        x.reshape(2, 2), None, None, torch.zeros(2, device=d), torch.ones(2, device=d), 0.1, 1e-5
    )[0],
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_served_and_equals_the_cpus(name):
    """By the host, or by a function of ours over that."""
    served = compiled.TABLE.get(name) is not None
    assert name in lib().stubbed_composites() and registry.resolve(name) == ("compiled" if served else "host")
    x = torch.randn(4)
    expected, actual = CASES[name]("cpu", x), CASES[name](DEVICE, x.to(DEVICE))
    for a, e in zip(actual, expected, strict=True) if isinstance(expected, tuple) else ((actual, expected),):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.cpu(), e)


def test_its_gradient_is_the_cpus():
    x = torch.randn(4, requires_grad=True)
    y = x.detach().to(DEVICE).requires_grad_()
    torch.ldexp(x, exponents("cpu")).square().sum().backward()
    torch.ldexp(y, exponents(DEVICE)).square().sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


@pytest.mark.full
@pytest.mark.not_simulated("it compares values")
def test_every_composite_of_the_registry_is_called_once(tmp_path):
    """In processes of their own: of random arguments some end ATen's CPU kernels, and those say nothing."""
    at, found, totals = 0, [], {"called": 0, "right": 0, "refused": 0}
    while at is not None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.registry_sweep", str(at), str(tmp_path / "now")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found += [s for s in said if "wrong" in s]
        totals = {name: totals[name] + sum(name in s for s in said) for name in totals}
        where = json.loads((tmp_path / "now").read_text())
        if done.returncode < 0 and where["device"] == DEVICE:
            found.append({"op": where["op"], "wrong": f"ended by signal {-done.returncode}"})
        at = where["at"] + 1 if done.returncode < 0 else None
    print(totals)
    assert totals["called"] > 800 and not found, "\n".join(map(str, found))
