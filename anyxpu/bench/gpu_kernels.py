"""Hand-written kernels of ``anyxpu bench gpu-code``: what Inductor's own do not show."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """``c = a @ b``: f16 in, f32 out, one tile a program."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], (m < M)[:, None] & (k < K)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], (k < K)[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def attention(q, k, v, o, L, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Attention with a running softmax over blocks of keys; ``L`` gets each row's log-sum-exp. After Dao et al.,
    "FlashAttention" (2022)."""
    head = tl.program_id(1) * T * D
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + head + m[:, None] * D + d[None, :], (m < T)[:, None], other=0.0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, T, BN):
        n = start + tl.arange(0, BN)
        keys = tl.load(k + head + n[None, :] * D + d[:, None], (n < T)[None, :], other=0.0)
        score = tl.where((n < T)[None, :], tl.dot(query, keys) * scale, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        e = tl.exp(score - higher[:, None])
        keep = tl.exp(top - higher)
        weight = weight * keep + tl.sum(e, 1)
        values = tl.load(v + head + n[:, None] * D + d[None, :], (n < T)[:, None], other=0.0)
        total = total * keep[:, None] + tl.dot(e.to(values.dtype), values)
        top = higher
    tl.store(o + head + m[:, None] * D + d[None, :], total / weight[:, None], (m < T)[:, None])
    tl.store(L + tl.program_id(1) * T + m, top + tl.log(weight), m < T)


@triton.jit
def attention_backward(q, k, v, g, L, delta, gq, gk, gv, scale, T, D: tl.constexpr, BM: tl.constexpr,
                       BN: tl.constexpr):  # fmt: skip
    """Gradients of :func:`attention` for one block of keys; those of the queries are added atomically."""
    head = tl.program_id(1) * T * D
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    keys = tl.load(k + head + n[:, None] * D + d[None, :], (n < T)[:, None], other=0.0)
    values = tl.load(v + head + n[:, None] * D + d[None, :], (n < T)[:, None], other=0.0)
    grad_keys = tl.zeros((BN, D), tl.float32)
    grad_values = tl.zeros((BN, D), tl.float32)
    for start in range(0, T, BM):
        m = start + tl.arange(0, BM)
        query = tl.load(q + head + m[:, None] * D + d[None, :], (m < T)[:, None], other=0.0)
        grad = tl.load(g + head + m[:, None] * D + d[None, :], (m < T)[:, None], other=0.0)
        log_sum = tl.load(L + tl.program_id(1) * T + m, m < T, other=float("inf"))
        p = tl.exp(tl.dot(query, tl.trans(keys)) * scale - log_sum[:, None])
        p = tl.where((n < T)[None, :], p, 0.0)
        grad_values += tl.dot(tl.trans(p).to(grad.dtype), grad)
        row = tl.load(delta + tl.program_id(1) * T + m, m < T, other=0.0)
        s = (p * (tl.dot(grad, tl.trans(values)) - row[:, None]) * scale).to(query.dtype)
        grad_keys += tl.dot(tl.trans(s), query)
        tl.atomic_add(gq + head + m[:, None] * D + d[None, :], tl.dot(s, keys), (m < T)[:, None])
    tl.store(gk + head + n[:, None] * D + d[None, :], grad_keys, (n < T)[:, None])
    tl.store(gv + head + n[:, None] * D + d[None, :], grad_values, (n < T)[:, None])


# name → (kernel, its signature, its constants, warps); each tile is at least what a matrix engine takes.
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int], int]] = {
    "gemm 128x128x32": (
        gemm,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"},
        {"BM": 128, "BN": 128, "BK": 32},
        32,
    ),
    "flash attention": (
        attention,
        {"q": "*fp16", "k": "*fp16", "v": "*fp16", "o": "*fp16", "L": "*fp32", "scale": "fp32", "T": "i32"},
        {"D": 64, "BM": 64, "BN": 32},
        8,
    ),
    "flash attention backward": (
        attention_backward,
        {
            **dict.fromkeys(("q", "k", "v", "g"), "*fp16"),
            **dict.fromkeys(("L", "delta", "gq", "gk", "gv"), "*fp32"),
            "scale": "fp32",
            "T": "i32",
        },
        {"D": 64, "BM": 32, "BN": 32},
        8,
    ),
}
