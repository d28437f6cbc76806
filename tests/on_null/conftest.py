"""Every case starts with nothing allocated, nothing cached, and all figures at zero."""

from __future__ import annotations

import gc
import sys

import pytest


@pytest.fixture(scope="session")
def driver():
    """The very driver torch runs on, for work that needs no operator."""
    import torch

    from anyxpu.drivers.abi import Driver

    torch.xpu.init()
    return Driver("null")


@pytest.fixture(autouse=True)
def fresh() -> None:
    import torch

    from anyxpu.drivers.null import reset_counts

    # A failed case's traceback holds its memory.
    sys.last_value = sys.last_traceback = sys.last_exc = None
    gc.collect()
    devices = range(torch.xpu.device_count())
    for device in devices:
        torch.xpu.set_per_process_memory_fraction(1.0, device)
    torch.xpu.empty_cache()
    if hasattr(torch.accelerator, "empty_host_cache"):  # from torch 2.12 or 2.13 on
        torch.accelerator.empty_host_cache()
    for device in devices:
        assert torch.xpu.memory_reserved(device) == 0, torch.xpu.memory_snapshot()
        torch.xpu.reset_peak_memory_stats(device)
        torch.xpu.reset_accumulated_memory_stats(device)
    reset_counts()
