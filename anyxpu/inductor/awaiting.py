"""What a compiled graph calls of operators has its kernels at the first call, too."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from anyxpu.shim import lib


def kernels(module: ModuleType) -> None:
    """Make graphs of ``torch._inductor.output_code`` wait for kernels that are not built yet, as for their own.

    Graphs call operators that Inductor has no lowering for, and ours. By themselves these may be the host's while their
    kernels are built (``ANYXPU_EAGER=auto``); who compiles waits for kernels anyhow, and wants no host in a graph.
    """
    original = module.CompiledFxGraph.post_compile

    @functools.wraps(original)
    def post_compile(graph: Any, example_inputs: Sequence[Any], *others: Any, **named: Any) -> None:
        original(graph, example_inputs, *others, **named)
        if "xpu" in graph.device_types and graph.current_callable is not None:
            graph.current_callable = functools.partial(lib().call_with_kernels_awaited, graph.current_callable)

    module.CompiledFxGraph.post_compile = post_compile
