"""What in-tree Inductor lacks for these devices, and in wheels without XPU. Nothing of Inductor is imported here.

:func:`register` puts in the C functions that a wheel without XPU lacks; the modules beside this hold the changes that
:mod:`anyxpu.patches` lists, and makes once what they change has been imported.
"""

from __future__ import annotations


def register() -> None:
    """Put in the C functions. Calling it again does nothing more."""
    import torch

    from anyxpu.shim import lib

    torch._C._dynamo.guards.__dict__["_empty_strided_xpu"] = lib()._empty_strided_xpu
