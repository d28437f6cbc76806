"""Operators served by oneDNN: their registration on dispatch key XPU, and what becomes of calls it declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import serve

# Operator -> the function under anyxpu.onednn that serves it, imported at the first call. linear, matmul, mv, conv2d
# and the like are torch's compositions of these.
TABLE: dict[str, str] = {
    "addmm_": "matmul.addmm_",
    "_addmm_activation": "matmul.addmm_activation",
    "bmm": "matmul.bmm",
    "bmm.out": "matmul.bmm_out",
    "baddbmm": "matmul.baddbmm",
    "baddbmm.out": "matmul.baddbmm_out",
    "baddbmm_": "matmul.baddbmm_",
    **{
        f"{name}.{overload}": f"matmul.{name}_{overload}"
        for name in ("mm", "addmm", "bmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    },
    "addmv": "matmul.addmv",
    "addmv.out": "matmul.addmv_out",
    "addmv_": "matmul.addmv_",
    "_int_mm": "integer.int_mm",
    "_int_mm.out": "integer.int_mm_out",
    "convolution_overrideable": "convolution.forward",
    "convolution_backward_overrideable": "convolution.backward",
    "mkldnn_rnn_layer": "recurrent.forward",
    "mkldnn_rnn_layer_backward": "recurrent.backward",
}

# The same for those that Inductor makes of products and convolutions with what follows them, under ``mkldnn::``.
FUSED: dict[str, str] = {
    "_convolution_pointwise": "fused.convolution_pointwise",
    "_convolution_pointwise.binary": "fused.convolution_pointwise_binary",
    "_convolution_pointwise_.binary": "fused.convolution_pointwise_binary_",
    "_convolution_transpose_pointwise": "fused.convolution_transpose_pointwise",
}

# Of those two kinds the products that few rows have, in which a kernel of ours may be faster than oneDNN.
FEW_ROWS = {
    "mm": "few_rows.mm",
    "mm.out": "few_rows.mm_out",
    "addmm": "few_rows.addmm",
    "addmm.out": "few_rows.addmm_out",
}
# A kernel of ours sums the products of two vectors.
SUMS = {"dot": "algebra.dot", "vdot": "algebra.dot"}
FUSED_FEW_ROWS = {
    "_linear_pointwise": "few_rows.linear_pointwise",
    "_linear_pointwise.binary": "few_rows.linear_pointwise_binary",
}

# Ours, which compiled graphs call (anyxpu.inductor): torch has no such form of a linear layer, nor of a convolution.
CHAINS = {
    "_linear_pointwise": "anyxpu.ops.few_rows.linear_pointwise_chain",
    "_convolution_pointwise": "anyxpu.onednn.fused.convolution_chain",
}
_ARGUMENTS = {
    "_linear_pointwise": (
        "(Tensor source, Tensor other, Tensor weight, Tensor? bias, str binary_attr, str? unary_attr,"
        " Scalar?[] unary_scalars, str? unary_algorithm) -> Tensor"
    ),
    "_convolution_pointwise": (
        "(Tensor source, Tensor weight, Tensor? bias, Tensor? mean, Tensor? variance, Tensor? scale, Tensor? shift,"
        " float eps, Tensor? other, int[] stride, int[] padding, int[] dilation, int groups, str? attr,"
        " Scalar?[] scalars, str? algorithm, Tensor? slopes=None) -> Tensor"
    ),
}

# Those of 8-bit numbers, which Inductor makes of quantized models, under ``onednn::``.
QUANTIZED: dict[str, str] = {
    "qlinear_prepack": "quantized.qlinear_prepack",
    **dict.fromkeys(("qlinear_pointwise", "qlinear_pointwise.tensor"), "quantized.qlinear_pointwise"),
    **dict.fromkeys(
        ("qlinear_pointwise.binary", "qlinear_pointwise.binary_tensor"), "quantized.qlinear_pointwise_binary"
    ),
    "qconv_prepack": "quantized.qconv_prepack",
    **dict.fromkeys(
        ("qconv_pointwise", "qconv_pointwise.tensor", "qconv2d_pointwise", "qconv2d_pointwise.tensor"),
        "quantized.qconv_pointwise",
    ),
    **dict.fromkeys(("qconv1d_pointwise", "qconv3d_pointwise"), "quantized.qconv_pointwise"),
    **dict.fromkeys(
        ("qconv2d_pointwise.binary", "qconv2d_pointwise.binary_tensor"), "quantized.qconv2d_pointwise_binary"
    ),
}


def register() -> None:
    """Put every operator of the tables on dispatch key XPU. Loads neither oneDNN nor a driver."""
    products = {name: f"anyxpu.onednn.{function}" for name, function in TABLE.items()}
    products |= {name: f"anyxpu.ops.{function}" for name, function in FEW_ROWS.items()}
    serve.register(products, "library", _decline)
    serve.register({name: f"anyxpu.ops.{function}" for name, function in SUMS.items()}, "compiled", _decline)
    if torch.backends.mkldnn.is_available():  # a torch without it has no such operators
        fused = {name: f"anyxpu.onednn.{function}" for name, function in FUSED.items()}
        fused |= {name: f"anyxpu.ops.{function}" for name, function in FUSED_FEW_ROWS.items()}
        serve.register(fused, "library", namespace="mkldnn")
        quantized = {name: f"anyxpu.onednn.{function}" for name, function in QUANTIZED.items()}
        serve.register(quantized, "library", namespace="onednn")
        _give_shapes()
    _define()
    serve.register(CHAINS, "library", namespace="anyxpu")


_shapes: list[torch.library.Library] = []  # registrations end with their Library
_defined: list[torch.library.Library] = []


def _give_shapes() -> None:
    """Say what shape ``mkldnn::_linear_pointwise.binary`` makes, which torch says of its sibling alone.

    In-tree it appears after the graph's shapes are known; here it is in the graph (anyxpu.inductor.epilogues).
    """
    name = "_linear_pointwise.binary"
    if not _shapes and not torch._C._dispatch_has_kernel_for_dispatch_key(f"mkldnn::{name}", "Meta"):
        _shapes.append(torch.library.Library("mkldnn", "IMPL", "Meta"))
        _shapes[0].impl(name, _linear_shape)


def _define() -> None:
    if not _defined:
        _defined.append(torch.library.Library("anyxpu", "FRAGMENT"))
        shapes = {"_linear_pointwise": _linear_shape, "_convolution_pointwise": _convolution_shape}
        for name, arguments in _ARGUMENTS.items():
            _defined[0].define(name + arguments)
            torch.library.register_fake(f"anyxpu::{name}", shapes[name], lib=_defined[0])


def _linear_shape(source: Tensor, other: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return source.new_empty((*source.shape[:-1], weight.shape[0]))


def _convolution_shape(source: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    stride, padding, dilation, groups = rest[6:10]
    steps = (stride, padding, dilation, False, [0] * len(stride), groups)
    return torch.ops.aten.convolution.default(source, weight, bias, *steps)


def _decline(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Complex products are made of real ones; else a call goes to the host."""
    if any(isinstance(t, Tensor) and t.is_complex() for t in args):
        from anyxpu.ops import complex_products

        if name in complex_products.TABLE:
            return complex_products.TABLE[name](*args, **kwargs)
    host = _ON_HOST.get(name)
    return host(*args) if host else serve.to_host(name, args, kwargs)


# The operators a backend overrides have no CPU kernel: the CPU is reached by those that choose a backend themselves.
# Its layouts are not always those that torch predicts for xpu (of channels-last volumes, for one), which compiled
# graphs rely on.
def _convolution(source: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    from anyxpu.onednn.convolution import result_format
    from anyxpu.ops import host_call

    result = host_call(torch.ops.aten.convolution.default, source, weight, *rest)
    return result.contiguous(memory_format=result_format(source, weight))


def _convolution_backward(gradient: Tensor, source: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    from anyxpu.onednn.convolution import gradient_format, result_format
    from anyxpu.ops import host_call

    operator, bias_sizes = torch.ops.aten.convolution_backward.default, [gradient.shape[1]]
    *two, by_bias = host_call(operator, gradient, source, weight, bias_sizes, *rest)
    layouts = result_format(source, weight), gradient_format(source, weight)
    pairs = zip(two, layouts, strict=True)
    return *(None if t is None else t.contiguous(memory_format=layout) for t, layout in pairs), by_bias


_ON_HOST: dict[str, Callable[..., Any]] = {
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}
