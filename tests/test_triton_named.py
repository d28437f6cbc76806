"""What programs written for Intel's build of Triton import from ``triton.backends.intel``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import triton.language as tl

DPAS = {  # operands -> (M, N, K) of one instruction of a sub-group of 16, from the widths that dpas takes
    (tl.float16, tl.float16): (1, 16, 16),
    (tl.bfloat16, tl.bfloat16): (1, 16, 16),
    (tl.int8, tl.int8): (1, 16, 32),
    (tl.float8e5, tl.float16): (1, 16, 16),
    (tl.float32, tl.float32): (1, 16, 8),
    (tl.float64, tl.float64): (1, 16, 8),
}


@pytest.mark.parametrize(("lhs", "rhs"), DPAS)
def test_the_least_product_is_what_the_matrix_engine_does_at_once(lhs, rhs):
    from triton.backends.intel.compiler import min_dot_size  # type: ignore[import-not-found]

    least = min_dot_size({"sub_group_sizes": [16, 32]})
    assert least(lhs, rhs) == DPAS[lhs, rhs]
    assert least(tl.block_type(lhs, [32, 32]), rhs) == DPAS[lhs, rhs]  # of blocks it is that of their elements


def test_it_takes_the_properties_of_this_device():
    from triton.backends.intel.compiler import min_dot_size

    properties = torch.xpu.get_device_properties()
    named = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
    assert min_dot_size(named)(tl.float16, tl.float16)[1] == min(properties.sub_group_sizes)


@pytest.mark.parametrize("first", ["import torch", "import triton", "import triton.backends.intel"])
def test_its_driver_and_compiler_are_those_that_triton_uses(first):
    """In whatever order they are imported, and with one backend still."""
    program = f"""\
{first}
import triton, triton.backends
from triton.backends.intel.compiler import XPUBackend, XPUOptions
from triton.backends.intel.driver import XPUDriver, XPULauncher, XPUUtils
known = triton.backends.backends["intel"]
assert (known.compiler, known.driver) == (XPUBackend, XPUDriver), known
import torch
active = triton.runtime.driver.active
assert type(active.utils) is XPUUtils and active.launcher_cls is XPULauncher
assert isinstance(XPUBackend(active.get_current_target()).parse_options({{}}), XPUOptions)
assert triton.backends.intel.driver.XPUDriver is XPUDriver
try:
    triton.backends.nobody
except AttributeError as error:
    assert "nobody" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
