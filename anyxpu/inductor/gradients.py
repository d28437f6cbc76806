"""What layout the compiler reckons with for the gradients of convolutions' weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def like_weights(module: ModuleType) -> None:
    """Predict for xpu what its convolutions make: a contiguous weight has a contiguous gradient.

    torch predicts the layout of the activations, which autograd then copies into the parameter's.
    """
    operator = torch.ops.aten.convolution_backward.default
    original = module.op_implementations_dict[operator]

    def predict(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        by_source, by_weight, by_bias = original(fake_mode, func, *args, **kwargs)
        weight = args[2] if len(args) > 2 else kwargs["weight"]
        if by_weight is not None and by_weight.device.type == "xpu" and weight.is_contiguous():
            with fake_mode:
                by_weight = torch.empty_like(by_weight, memory_format=torch.contiguous_format)
        return by_source, by_weight, by_bias

    module.op_implementations_dict[operator] = predict


def as_predicted(module: ModuleType) -> None:
    """Make weights' gradients in the layout that torch predicts, where :func:`like_weights` cannot be made."""
    from anyxpu.onednn import convolution

    convolution.gradients_as_predicted = True


def activations_as_they_are(module: ModuleType) -> None:
    """Have ``torch._inductor.kernel.conv`` leave activations in the layout that they have, whatever the weight's is.

    It brings them into the order of the weight's gradient, and with :func:`like_weights` that is no longer theirs.
    """
    ir, original = module.ir, module.conv_bwd_weight_layout

    def conv_bwd_weight_layout(grad_out: Any, source: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        layout = original(grad_out, source, weight, *args, **kwargs)
        if layout.device.type != "xpu":
            return layout
        like = module.conv_bwd_input_layout(grad_out, source, weight, *args, **kwargs)
        order = ir.get_stride_order(module.V.graph.sizevars.guard_int_seq(like.stride))
        strides = ir.FlexibleLayout.stride_ordered(layout.size, order)
        return ir.FixedLayout(layout.device, layout.dtype, layout.size, strides)

    module.__dict__["conv_bwd_weight_layout"] = conv_bwd_weight_layout
