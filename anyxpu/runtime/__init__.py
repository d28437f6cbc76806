"""The Python face of the device: what makes the in-tree ``torch.xpu`` module run unmodified.

:func:`install` is called once, at the end of ``import torch``. It starts no driver.
"""

from __future__ import annotations

from anyxpu.runtime.install import Status, install, status

__all__ = ["Status", "install", "status"]
