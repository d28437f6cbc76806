"""``torch.distributed``'s backend for xpu, "xccl", which torch takes for it where none is asked for.

In wheels with XPU it is Intel's oneCCL, which serves the collectives between GPUs here too where it is installed
(``oneccl.py``). All others go through gloo: on the device's own memory where the host reaches it, as on a CPU device,
and by way of the host's otherwise (``shim/xccl.cpp``).
"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

from anyxpu.runtime.oneccl import Communicator
from anyxpu.shim import lib


class Options:
    """What torch sets before it makes the backend."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = timedelta(minutes=30)


def serve_xccl(module: ModuleType) -> None:
    """Put ``ProcessGroupXCCL`` into ``torch.distributed.distributed_c10d``, which then says that xccl is available."""

    class ProcessGroupXCCL:
        """Makes the backend xccl; what it gives is the shim's."""

        def __new__(cls, store: Any, rank: int, size: int, options: Options | None = None) -> Any:
            own = module.PrefixStore("xccl", store)
            host = module.ProcessGroup(own, rank, size)
            gloo = module.ProcessGroupGloo(own, rank, size, timeout=(options or Options())._timeout)
            gloo._set_sequence_number_for_group()
            if module.get_debug_level() == module.DebugLevel.DETAIL:
                gloo = wrap(wrapped_pg=gloo, store_prefix="xccl", store=own, rank=rank, world_size=size)
            host._register_backend(module.torch.device("cpu"), module.ProcessGroup.BackendType.GLOO, gloo)
            host._set_default_backend(module.ProcessGroup.BackendType.GLOO)
            return lib().xccl(rank, size, host, Communicator(own, rank, size))

    wrap = module._create_process_group_wrapper

    def create_process_group_wrapper(wrapped_pg: Any, *args: Any, **kwargs: Any) -> Any:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL: what checks the collectives goes around the backend that does them.
        return wrapped_pg if wrapped_pg.name() == "xccl" else wrap(wrapped_pg, *args, **kwargs)

    module.__dict__["_create_process_group_wrapper"] = create_process_group_wrapper
    make_group = module._new_process_group_helper

    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        made = make_group(*args, **kwargs)
        group = made[0] if isinstance(made, tuple) else made
        # Where no backend was named torch calls the group gloo, and DDP then looks for a gloo that is not in it.
        kinds = {device.type for device in getattr(group, "_device_types", ())}
        if kinds == {"xpu"} and group.name() == "gloo":
            group._set_default_backend(module.ProcessGroup.BackendType.XCCL)
        return made

    module.__dict__["_new_process_group_helper"] = new_process_group_helper
    ProcessGroupXCCL.Options = Options  # type: ignore[attr-defined]
    module.__dict__.update(ProcessGroupXCCL=ProcessGroupXCCL, _XCCL_AVAILABLE=True)
