"""What Inductor's caches on disk depend on: the devices that a graph was made for, and this package."""

from __future__ import annotations

from types import ModuleType

from anyxpu.cache import digest
from anyxpu.triton import identity


def depend_on_devices(module: ModuleType) -> None:
    """Make the caches of ``torch._inductor.codecache`` (graphs with their kernels' binaries, choices of templates), and
    AOTAutograd's over them, depend on the xpu devices, their driver and this package.

    In-tree they depend on what CUDA answers, and on nothing where there is no CUDA. Dynamo starts the device before
    it compiles anything, also for the CPU, so that it costs nothing to ask.
    """
    original = module.CacheBase.get_system

    def get_system() -> dict[str, object]:
        system = dict(original())
        system["hash"] = digest(str(system["hash"]), identity.graphs(), identity.host(), identity.devices())
        return system

    module.CacheBase.get_system = staticmethod(get_system)
