"""Inductor's compile workers, which are forked."""

from __future__ import annotations

from types import ModuleType

import torch


def keep_the_driver_out(module: ModuleType) -> None:
    """Keep the driver out of the process that compile workers are forked from (``torch._inductor.async_compile``).

    Before it forks, that process asks every device for its properties, which would start the driver there; a child
    of a fork cannot use a driver that its parent started. The workers get the properties they need with each job.
    """
    original = module.caching_device_properties

    def caching_device_properties() -> None:
        from torch._dynamo.device_interface import CudaInterface

        from anyxpu.shim import lib

        if lib().started():
            original()
        elif torch.cuda.is_available():
            CudaInterface.Worker.get_device_properties()

    module.__dict__["caching_device_properties"] = caching_device_properties
