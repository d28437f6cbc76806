"""Torch's own Triton kernels (torch._native) take the place of none of ours on xpu."""

from __future__ import annotations

import re

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled", "no_host"),
]


def test_no_operator_on_xpu_is_torchs_own_kernel():
    ours = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    found = [name for name in ours if torch._C._dispatch_has_kernel_for_dispatch_key(name, "XPU")]
    assert len(found) > 500
    for name in found:
        way = re.search(r"^XPU: (.*)$", torch._C._dispatch_dump_table(name), re.MULTILINE)
        assert way is None or "torch/_native" not in way.group(1), (name, way.group(1))


@pytest.mark.parametrize("shapes", [((4, 3, 1), (2, 1, 5)), ((2, 3, 1), (4, 1, 5))], ids=str)
def test_products_of_batches_of_two_sizes_are_refused(shapes):
    for device in ("cpu", "xpu"):
        a, b = (torch.randn(shape).to(device) for shape in shapes)
        with pytest.raises(RuntimeError, match="Expected size for first two dimensions of batch2"):
            torch.bmm(a, b)
    a, b = torch.randn(4, 3, 1), torch.randn(4, 1, 5)
    anyxpu.ops.reset_counters()
    got = torch.bmm(a.to("xpu"), b.to("xpu"))
    assert simulate.active() or torch.equal(got.cpu(), a * b)
    assert "aten::bmm" in anyxpu.ops.counters()
