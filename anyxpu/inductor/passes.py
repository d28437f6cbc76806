"""The graph passes of ours, as Inductor takes passes from a device's backend."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch

from anyxpu.onednn import functions, primitive


@cache
def _backend_pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files

    from anyxpu.inductor import convolutions, epilogues, expressions, following, narrow_weights

    class Passes(CustomGraphModulePass):
        def __call__(self, gm: torch.fx.GraphModule) -> None:
            narrow_weights.fuse(gm.graph)
            epilogues.fuse(gm.graph)
            convolutions.fuse(gm.graph)
            gm.graph.eliminate_dead_code()

        def uuid(self) -> Any:
            # A graph may be kept for a machine with other registers. No device of ours, no graph of ours.
            short = torch.xpu.is_initialized() and functions.is_costly("gelu", torch.device("xpu", 0))
            rooms = convolutions, epilogues, expressions, following, narrow_weights, functions
            files = (__file__, *(room.__file__ for room in rooms))
            return get_hash_for_files(files, f"short vectors: {short}, kept: {primitive.keeps_copies()}")

    return Passes()


def offer(module: ModuleType) -> None:
    """Have ``torch._inductor.codegen.common`` take them for a pass of xpu's backend."""
    original = module.register_backend_for_device

    def register_backend_for_device(device: str, *args: Any, **options: Any) -> None:
        original(device, *args, **options)
        if device == "xpu" and module.custom_backend_passes.get(device) is None:
            module.custom_backend_passes[device] = _backend_pass()

    module.register_backend_for_device = register_backend_for_device  # type: ignore[attr-defined]
