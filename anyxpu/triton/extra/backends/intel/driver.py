"""``triton.backends.intel.driver``: the driver, its launcher and what it asks of a device, by Intel's names."""

from __future__ import annotations

from anyxpu.triton.driver import Launcher as XPULauncher
from anyxpu.triton.driver import Utils as XPUUtils
from anyxpu.triton.driver import XpuDriver as XPUDriver

__all__ = ["XPUDriver", "XPULauncher", "XPUUtils"]
