"""The Triton kernels that Inductor makes of ``anyxpu bench kernels``' functions, taken before they are compiled."""

from __future__ import annotations

from typing import Any

import torch

from anyxpu.bench.kernel_cases import CASES, SIZES


def inductors_kernels(name: str) -> list[Any]:
    """The kernels of one case as Triton's ``ASTSource`` objects."""
    import triton
    from torch._inductor.utils import fresh_cache

    found: list[Any] = []

    def listen(src: Any, **_: Any) -> None:
        found.append(src)

    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = listen
    try:
        # A compile worker's kernels would not be heard of, nor those that are in a cache.
        with torch._inductor.config.patch(compile_threads=1), fresh_cache():
            run_case(name)
    finally:
        triton.knobs.compilation.listener = before
    return found


def run_case(name: str) -> None:
    """Compile one case for xpu and run it once."""
    case = CASES[name]
    arguments = [a.to("xpu") if isinstance(a, torch.Tensor) else a for a in case.arguments(*SIZES["L2"])]
    torch._dynamo.reset()
    torch.compile(case.function, dynamic=False)(*arguments)
