"""anyxpu's modules may be imported before torch, which imports some of them itself."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "anyxpu"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)
EVERYDAY = {"anyxpu.ops", "anyxpu.ops.kernels", "anyxpu.runtime.streams", "anyxpu.triton.compiler", "anyxpu.onednn"}

PROGRAM = """
    import importlib, sys, warnings
    warnings.simplefilter("error", UserWarning)
    first = importlib.import_module({name!r})
    import torch
    assert torch.xpu.is_available()
    assert sys.modules[{name!r}] is first is importlib.import_module({name!r})
    assert type(first.__spec__.loader).__name__ == "SourceFileLoader" and "torch" in sys.modules
"""


@pytest.mark.not_simulated("it is about imports")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.full) for name in MODULES]
)
def test_a_module_imported_before_torch_leaves_xpu_whole(name, run_python):
    run_python(PROGRAM.format(name=name))
