"""Attention's kernels as Intel's own compiler leaves them: nothing spilled, products on the matrix engine."""

from __future__ import annotations

import pytest

from anyxpu.simulate import DEVICES
from tests.gpu_support import needs_driver, run_on

KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": "torch.rand(2, 1, 256, 256, device='xpu') > 0.3"},
    "float": {"attn_mask": "torch.randn(2, 4, 256, 256, device='xpu', dtype=dtype)"},
    "dropout": {"dropout_p": 0.1},
}
PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch.nn.functional import scaled_dot_product_attention
from anyxpu import ocloc
from anyxpu.triton.lower import c_name

dtype = getattr(torch, sys.argv[1])
for size in (64, 128):
    leaves = [torch.randn(2, 4, 256, size, device="xpu", dtype=dtype, requires_grad=True) for _ in range(3)]
    scaled_dot_product_attention(*leaves, {options}).sum().backward()
torch.xpu.synchronize()
found = {}
for path in Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.zebin"):
    if path.stem in ("attend", "by_queries", "by_keys"):
        about = ocloc.inspect(path.read_bytes(), c_name(path.stem))
        found[f"{path.stem} {path.parent.name}"] = about.spill_bytes, about.dpas
print(json.dumps(found))
"""


@needs_driver
@pytest.mark.rotates(90)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("device", DEVICES)
def test_attention_and_its_gradients_spill_nothing(device, dtype, kind, tmp_path):
    options = ", ".join(f"{name}={value}" for name, value in KINDS[kind].items())
    program = PROGRAM.replace("{options}", options)
    done = run_on(device, program, tmp_path, dtype, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    found = done.last()
    assert not done.refused() and len(found) == 6
    assert {name: about for name, about in found.items() if about != [0, dtype == "bfloat16"]} == {}
