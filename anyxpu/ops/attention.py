"""``scaled_dot_product_attention`` on xpu: kernels of ours, or the composition of products and a softmax.

ATen's own composite asks a table of C++ kernels which fused form a device has; a stock wheel's table has no row for
xpu and fails an assertion. What is here takes its place for xpu alone. Operands that the kernels do not take go to the
composed form, which oneDNN, Triton and autograd serve like any other operators.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn.matmul import SIXTEEN_BITS
from anyxpu.ops import flash
from anyxpu.ops.attention_products import FEW
from anyxpu.runtime.vectors import has_short_vectors
from anyxpu.shim import lib

_BACKENDS = torch._C._SDPBackend
_NAME = "scaled_dot_product_attention"
_registered: list[torch.library.Library] = []


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + attn_mask) @ value.

    Args:
        query: (..., heads, L, E).
        key, value: (..., heads, S, E) and (..., heads, S, Ev); fewer heads with ``enable_gqa``.
        attn_mask: broadcastable to (..., L, S); bool (True takes part) or of query's dtype. With ``is_causal`` both
            hold, unless ``sdpa_kernel`` allows the composed form alone, which torch then refuses.

    Returns:
        (..., heads, L, Ev), of query's dtype.

    Raises:
        RuntimeError: dtypes, devices or ranks that CPU torch refuses as well.
    """
    _check(query, key, value, attn_mask)
    if chosen(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) == _BACKENDS.OVERRIDEABLE:
        return _fused(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if attn_mask is not None and is_causal and _some_fused_form():
        # The composed form takes one of them; on CUDA the memory-efficient one takes both.
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        boolean = attn_mask.dtype == torch.bool
        attn_mask = attn_mask & seen if boolean else attn_mask.masked_fill(~seen, float("-inf"))
        is_causal = False
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The composed form adds its mask: what takes no part gets -inf.
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    out, _ = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out


def chosen(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, enable_gqa: bool
) -> torch._C._SDPBackend:
    """The kernels of :mod:`anyxpu.ops.flash` where they take the operands, else the composition.

    ``torch.nn.attention.sdpa_kernel`` has its way: the kernels are wherever a fused form is allowed. In a graph of
    float32 that is compiled for a CPU device with AVX-512, and has a backward, the composition is taken before them
    where queries are less than SHORT, causal ones less than half of it: its products are oneDNN's, what is between them
    is fused, and the weights are made but once. Over the kernels it takes 0.7 to 0.97 of the time there (causal 0.7 to
    1.4: less with few heads), 0.96 to 1.14 of more queries, and 1.2 to 1.7 of more causal ones. Of 16 bits it would
    make products of 32; and with AVX2 the kernels take 0.96 of its time (eight shapes, 0.84 to 1.05).

    Raises:
        RuntimeError: the composition is not allowed, and nothing else serves the call.
    """
    fused = _some_fused_form()
    composed = torch._C._get_math_sdp_enabled()
    if (
        fused
        and not (composed and _better_composed(query, key, value, is_causal))
        and _fusable(query, key, value, mask, dropout_p, is_causal, enable_gqa)
    ):
        return _BACKENDS.OVERRIDEABLE
    # The memory-efficient form gives a mask its gradient, which is the composition's here.
    learned = mask is not None and mask.requires_grad and torch._C._get_mem_efficient_sdp_enabled()
    if not composed and not learned:
        raise RuntimeError(
            "No available kernel. Aborting execution."
            if fused
            else f"No viable backend for {_NAME} was found. This is likely due to turning off both the math kernel and "
            "the fused kernels."
        )
    return _BACKENDS.MATH


def _some_fused_form() -> bool:
    """Does ``sdpa_kernel`` allow any?"""
    return (
        torch._C._get_flash_sdp_enabled()
        or torch._C._get_mem_efficient_sdp_enabled()
        or torch._C._get_overrideable_sdp_enabled()
    )


SHORT = 192
"""Queries, from which on the kernels take no longer than a composition in a compiled graph on a CPU device."""
MOST_SCORES = 1 << 26
"""Of a composition in a compiled graph on a CPU device: 256 MiB of them in f32."""


def _better_composed(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if not trained or query.dtype in SIXTEEN_BITS:
        return False
    if not torch.compiler.is_compiling() or torch.xpu.get_device_properties(query.device).type != "cpu":
        return False
    if has_short_vectors(query.device):
        return False
    if not FEW <= query.shape[-2] < (SHORT // 2 if causal else SHORT):
        return False
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return isinstance(scores, int) and scores <= MOST_SCORES


def _fusable(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, enable_gqa: bool
) -> bool:
    if any(t.is_nested or t.layout != torch.strided for t in (query, key, value)):
        return False
    if mask is not None and mask.requires_grad:
        return False
    wrapped = any(torch._C._functorch.maybe_get_level(t) != -1 for t in (query, key, value, mask) if t is not None)
    if wrapped or torch.autograd.forward_ad._current_level >= 0:
        return False  # only the composition can be batched, or differentiated forward
    if not 3 <= query.dim() <= 4 or not key.dim() == value.dim() == query.dim():
        return False
    q, k, v = (_four(t) for t in (query, key, value))
    if not enable_gqa and q.shape[1] != k.shape[1]:
        return False  # or broadcast, which the composition does
    return flash.takes(q, k, v, mask, dropout_p)


def _four(t: Tensor) -> Tensor:
    return t if t.dim() == 4 else t.unsqueeze(0)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    operands = (_four(t) for t in (query, key, value))
    out: Tensor = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
        *operands, mask, dropout_p, is_causal, scale=scale
    )[0]
    return out if query.dim() == 4 else out.squeeze(0)


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"query.dtype: {query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got "
            f"query.device: {query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got "
            f"query.dim: {query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, query.dtype, torch.float32):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {query.dtype} instead."
        )


def register() -> None:
    """Put it above and below autograd; with tensor modes (fake tensors), under the composite's own name as well."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    lib().serve_python("aten", _NAME, attention, composition=True)
    _registered.append(library)
    _serve_batches(library)
    operator = torch.ops.aten.scaled_dot_product_attention.default
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    in_tree = operator.py_kernels.pop(composite, None) or functools.partial(operator._op_dk, composite)

    @operator.py_impl(composite)
    def decompose(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (attention if query.device.type == "xpu" else in_tree)(query, *args, **kwargs)


def _serve_batches(library: torch.library.Library) -> None:
    """Under vmap, torch's own rules ask the table as well: xpu tensors are composed there, others go on as they did."""
    if not hasattr(torch.library, "get_kernel"):  # before torch 2.9
        return
    for key in ("FuncTorchVmapMode", "FuncTorchBatched"):
        rule = torch.library.get_kernel(f"aten::{_NAME}", key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there was another
            library.impl(_NAME, _batched(rule), key, with_keyset=True, allow_override=True)


def _batched(rule: Any) -> Callable[..., Any]:
    def attend(keys: torch._C.DispatchKeySet, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.device.type == "xpu":
            return attention(query, *args, **kwargs)
        return rule.call_boxed(keys, query, *args, **kwargs)

    return attend
