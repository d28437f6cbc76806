"""Lowerings that Inductor withholds from xpu although they serve, one that does not, and layouts it asks for."""

from __future__ import annotations

from collections.abc import Callable
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


def weights_as_they_are(module: ModuleType) -> None:
    """Have ``torch._inductor.kernel.conv`` leave a convolution's weights in the layout they have.

    It asks for channels-last ones, for which every call of a graph permutes its parameters by a kernel. oneDNN brings
    a weight of any layout into its own, and keeps what it made of a parameter that is not written in between.
    """
    import torch
    from torch._inductor.lowering import lowerings

    ir = module.ir
    weights: list[Any] = []

    class ExternKernel(ir.ExternKernel):  # type: ignore[misc, name-defined]
        """The same, but weights are only made to be there."""

        @classmethod
        def require_stride_order(cls, x: Any, *args: Any, **kwargs: Any) -> Any:
            if any(x is weight for weight in weights):
                return ir.ExternKernel.realize_input(x)
            return ir.ExternKernel.require_stride_order(x, *args, **kwargs)

    class Names(ModuleType):
        """torch._inductor.ir with that class."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ir, name)

    names = Names(ir.__name__)
    names.ExternKernel = ExternKernel  # type: ignore[attr-defined]
    module.ir = names  # type: ignore[attr-defined]

    def with_weight(original: Callable[..., Any], place: int) -> Callable[..., Any]:
        def lowering(*args: Any, **kwargs: Any) -> Any:
            weight = args[place]
            if weight.get_device().type != "xpu":
                return original(*args, **kwargs)
            weights.append(weight)
            try:
                return original(*args, **kwargs)
            finally:
                weights.pop()

        return lowering

    # Of more dimensions, or with a bias, the first calls itself by its name in the module.
    module.convolution = with_weight(module.convolution, 1)  # type: ignore[attr-defined]
    for operator, place in ((torch.ops.aten.convolution, 1), (torch.ops.aten.convolution_backward, 2)):
        for overload in (operator, operator.default):
            if overload in lowerings:
                lowerings[overload] = with_weight(lowerings[overload], place)


def saved_weights_as_they_are(module: ModuleType) -> None:
    """Have ``torch._inductor.graph`` hand a convolution's weights on to the backward graph in the layout they have.

    It counts them among the nodes that had better be channels-last, as if they were activations.
    """
    import torch

    ours, convolution = torch.ops.anyxpu._convolution_pointwise.default, torch.ops.aten.convolution.default
    original = module.GraphLowering.find_nodes_prefer_channels_last

    def find_nodes_prefer_channels_last(self: Any) -> Any:
        found = original(self)
        for node in self.module.graph.nodes:
            if node.target in (convolution, ours):
                weight = node.args[1]
                if weight.op == "placeholder" and weight.meta["val"].device.type == "xpu":
                    found.discard(weight)
        return found

    module.GraphLowering.find_nodes_prefer_channels_last = find_nodes_prefer_channels_last


def scaled_products_as_named(module: ModuleType) -> None:
    """Have ``torch._inductor.kernel.mm`` leave scaled_mm of blocks on xpu to the operator that it names.

    The lowering calls ``_scaled_mm`` in its place, which takes other shapes for the same scales, and refuses swizzles.
    """
    import torch
    from torch._inductor.lowering import fallback_handler, lowerings

    operator = torch.ops.aten._scaled_mm_v2.default
    original, as_it_is = lowerings[operator], fallback_handler(operator, add_to_fallback_set=False)

    def lowering(mat_a: Any, mat_b: Any, scale_a: Any, recipe_a: Any, *args: Any, **kwargs: Any) -> Any:
        of_blocks = any(int(recipe) > 1 for recipe in recipe_a)  # behind TensorWise and RowWise
        chosen = as_it_is if of_blocks and mat_a.get_device().type == "xpu" else original
        return chosen(mat_a, mat_b, scale_a, recipe_a, *args, **kwargs)

    lowerings[operator] = lowering
