"""Lowerings that Inductor withholds from xpu although they serve, and one that it gives although it does not."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def pool_backward(module: ModuleType) -> None:
    """Have ``torch._inductor.lowering`` make the kernel of max_pool2d's gradient that other devices get.

    From torch 2.14 on it asks first whether the input is on xpu, and then leaves the operator to an eager kernel,
    because Intel's own is faster. Here that would be the host's.
    """
    import torch

    class Anywhere(module.TensorBox):  # type: ignore[misc, name-defined]
        """The same tensor; asked for its device for the first time, it does not say."""

        _asked = False

        def get_device(self) -> torch.device | None:
            if self._asked:
                return self.data.get_device()  # type: ignore[no-any-return]
            object.__setattr__(self, "_asked", True)
            return torch.device("meta")

    operator = torch.ops.aten.max_pool2d_with_indices_backward
    for overload in (operator, operator.default):
        original = module.lowerings[overload]

        def lowering(grad_output: Any, x: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if x.get_device().type == "xpu":
                x = Anywhere(x.data)
            return _original(grad_output, x, *args, **kwargs)

        module.lowerings[overload] = lowering


def no_small_atomics(module: ModuleType) -> None:
    """Have ``torch._inductor.lowering`` leave sums of 8- and 16-bit integers by index to the eager kernel.

    Triton has no atomics of them on any backend: ``index_add`` and an accumulating ``index_put`` fail to compile.
    """
    import torch
    from torch._inductor.virtualized import V

    original = module.needs_fallback_due_to_atomic_add_limitations
    small = {torch.int8, torch.uint8, torch.int16, torch.uint16}

    def needs_fallback_due_to_atomic_add_limitations(dtype: torch.dtype) -> bool:
        return bool(original(dtype)) or (dtype in small and "xpu" in V.graph.device_types)

    module.__dict__["needs_fallback_due_to_atomic_add_limitations"] = needs_fallback_due_to_atomic_add_limitations
