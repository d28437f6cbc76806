"""Devices share Inductor's cache folder and nothing in it: graphs, binaries and choices are those of the device."""

from __future__ import annotations

import pytest

from tests.gpu_support import needs_driver, run_on

# Graphs with and without inputs, with a gradient, and one whose kernel is chosen among several.
_PROGRAM = """
    import json, torch, torch._inductor.config

    def made_inside(n):
        return torch.arange(n, device="xpu") * 2.0

    def loss(x):
        return torch.softmax(x * 2, -1).square().sum()

    inside = torch.compile(made_inside)(300)
    x = torch.linspace(-1, 1, 64 * 300).reshape(64, 300)
    a = x.to("xpu").requires_grad_()
    torch.compile(loss)(a).backward()
    # Two candidates are enough to choose among.
    with torch.no_grad(), torch._inductor.config.patch({"test_configs.max_mm_configs": 2}):
        product = torch.compile(lambda t: (t @ t.t()).relu(), mode="max-autotune-no-cudagraphs")(a.detach())
    b = x.double().requires_grad_()
    loss(b).backward()
    error = (a.grad.cpu() - b.grad).abs().max().item()
    right = error < 1e-6 and torch.equal(inside.cpu(), torch.arange(300) * 2.0)
    print(json.dumps({"name": torch.xpu.get_device_name(), "right": right, "shape": list(product.shape)}))
"""


@needs_driver
@pytest.mark.parametrize(
    "devices", [("cpu", "bmg"), pytest.param(("cpu", "bmg", "pvc", "dg2"), marks=pytest.mark.full)], ids="-".join
)
@pytest.mark.rotates(6)
def test_one_cache_folder_serves_several_devices(devices, tmp_path):
    compiled = tmp_path / "compiled.txt"
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "ANYXPU_LOG_COMPILES": str(compiled)}
    names = set()
    for again in (False, True):
        for device in devices:
            compiled.unlink(missing_ok=True)
            outcome = run_on(device, _PROGRAM, tmp_path, **variables)
            found = outcome.last()
            names.add(found["name"])
            assert found["right"] or device != "cpu"
            assert found["shape"] == [64, 64]
            assert outcome.refused() == {}
            if again:
                assert not compiled.exists(), f"{device} compiled again: {compiled.read_text()}"
            else:
                assert compiled.exists(), f"{device} took another device's kernels"
    assert len(names) == len(devices)
