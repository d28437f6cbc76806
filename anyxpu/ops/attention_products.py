"""Attention on a CPU device by oneDNN's products, with kernels of ours between them.

oneDNN's products of 16 bits multiply those, which a kernel for a CPU cannot, and its tiles waste nothing at the ends of
short sequences. Scores are in memory, but a few at a time: as many heads, or queries of one, as have MOST of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import batched
from anyxpu.runtime.vectors import has_short_vectors, has_tiles, multiplies

MOST = 1 << 22
"""Scores at once: 16 MiB of them, which the last caches of CPUs hold."""

FEWER = 1 << 20
"""The same of one head that has more: its queries come in parts anyway (bfloat16, AVX-512: 0.9 of the time)."""

MANY_QUERIES = 512
"""As many come together although their scores are more than FEWER, as each product brings the keys and the values into
its own layout (bfloat16, AMX: 0.8 of the time with 4,096 keys, 0.75 with 8,192)."""

LONGEST = 16384
"""Keys: of twice as many so few queries come together that the kernels take less time."""

LONGEST_BACKWARD = 8192
"""Keys: a row of scores, one of gradients and what both become stay in the first two caches."""

FEW = 16
"""Queries, below which the kernels take less time."""

NARROW = 128
"""Elements of a head, up to which kernels are the faster way where a CPU's registers are short, forward and backward
(measured with AVX2: 1.4 to 2.2 times; of 256 elements 0.75), and of f32 where they are long (AVX-512: 1.0 to 1.25
times, 1.1 to 1.7 with gradients). Its products of 16 bits are no faster than f32's without instructions for them."""

FEW_KEYS = 200
"""Up to which products of float16 without a causal mask are the faster way on CPUs that multiply it in registers alone
(the kernels take 1.1 to 1.35 times as long). Of more keys, and with one, the kernels take 0.65 to 0.95 of the time."""

LEAST = 1 << 24
"""Operations of the two products together: below, launching two products and a kernel takes longer than one kernel."""


SHORT_ROW = 256
"""Scores of a row that stay in registers."""

AT_A_TIME = 64
"""Of a longer row: what four registers hold where they are long."""

SCORES_A_PROGRAM = 1 << 14
"""Of whole rows, one at least."""


@dataclass(frozen=True)
class Operands:
    """What :func:`forward` and :func:`backward` read.

    Attributes:
        query: (batches, heads, L, E). key, value: (batches, heads of keys, S, E) and (…, S, F). Their last dimension is
            dense; as many heads of queries as there are to one of keys look at it, one after the other.
        mask: (batches, heads, L, S), uint8 or a float, or None.
        scale: what products are multiplied by.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batches, heads, queries, keys."""
        return (*self.query.shape[:3], self.key.shape[2])  # type: ignore[return-value]

    @property
    def heads_a_key(self) -> int:
        """Heads of queries for one of keys."""
        return int(self.query.shape[1] // self.key.shape[1])

    def part(self, batches: slice, heads: slice) -> Operands:
        """Some heads: all that look at some of the keys', or some that look at one."""
        each = self.heads_a_key
        first, last, _ = heads.indices(self.query.shape[1])
        seen = slice(first // each, -(-last // each))
        mask = None if self.mask is None else self.mask[batches, heads]
        query, key, value = self.query[batches, heads], self.key[batches, seen], self.value[batches, seen]
        return Operands(query, key, value, mask, self.causal, self.scale)


def serves(operands: Operands) -> bool:
    """Whether products are the better way, on a CPU device, for operands that the kernels take as well."""
    batches, heads, queries, keys = operands.shape
    if queries < FEW or keys > LONGEST:
        return False
    work = 2 * batches * heads * queries * keys * (operands.query.shape[3] + operands.value.shape[3])
    if work < LEAST:
        return False
    device = operands.query.device
    if torch.xpu.get_device_properties(device).type != "cpu":
        return False
    if max(operands.query.shape[3], operands.value.shape[3]) > NARROW:
        return True
    dtype = operands.query.dtype
    if dtype == torch.float32 or has_short_vectors(device) or not multiplies(device, dtype):
        return False
    return dtype == torch.bfloat16 or has_tiles(device, dtype) or (keys <= FEW_KEYS and not operands.causal)


def _groups(operands: Operands, scores: int) -> Iterator[tuple[slice, slice]]:
    """Heads in groups of no more than MOST scores, whole batches where they fit; one by one where one has FEWER."""
    batches, heads, each = *operands.shape[:2], operands.heads_a_key
    together = max(1, (MOST if scores < FEWER else FEWER) // scores)
    if together >= heads:
        step = together // heads
        yield from ((slice(b, b + step), slice(0, heads)) for b in range(0, batches, step))
        return
    # Whole keys' heads, or equal parts of one's.
    together = together // each * each or next(n for n in range(together, 0, -1) if each % n == 0)
    for b in range(batches):
        yield from ((slice(b, b + 1), slice(h, min(h + together, heads))) for h in range(0, heads, together))


def _shared(t: Tensor, keys: int) -> Tensor:
    """(batches, heads, …) with the heads of each of ``keys`` heads of keys in a dimension of their own."""
    return t.unflatten(1, (keys, -1))


def _product(a: Tensor, b: Tensor, out: Tensor) -> bool:
    """``out = a @ b``, where several heads of the one may share a head of the other."""
    most, least = max(a.shape[1], b.shape[1]), min(a.shape[1], b.shape[1])
    if most != least:
        a, b, out = (_shared(t, least) for t in (a, b, out))
    return batched.product(a, b, out)


def forward(operands: Operands, out: Tensor, logs: Tensor) -> bool:
    """Attention into ``out`` (batches, heads, L, F), and the logarithms of the sums into ``logs`` (batches, heads, L).

    Returns:
        False where oneDNN lacks a product; what was written does not count then.
    """
    queries, keys = operands.shape[2:]
    # A causal mask leaves out what lies beyond a block's last query, and several blocks leave out more of it.
    rows = queries if queries * keys <= FEWER else max(16, FEWER // keys, min(MANY_QUERIES, MOST // keys))
    if operands.causal and queries >= 512:
        rows = min(rows, -(-queries // 4))
    for b, h in _groups(operands, rows * keys):
        part = operands.part(b, h)
        for first in range(0, queries, rows):
            block = slice(first, first + rows)
            end = min(keys, first + rows) if operands.causal else keys
            mask = None if part.mask is None else part.mask[:, :, block, :end]
            query, key, value = part.query[:, :, block], part.key[:, :, :end], part.value[:, :, :end]
            scores = torch.empty((*query.shape[:3], end), dtype=torch.float32, device=query.device)
            if not _product(query, key.transpose(-1, -2), scores):
                return False
            weights = scores if query.dtype == torch.float32 else torch.empty_like(scores, dtype=query.dtype)
            _to_weights(operands, scores, mask, weights, logs[b, h, block], first)
            if not _product(weights, value, out[b, h, block]):
                return False
    return True


def backward(
    operands: Operands, out: Tensor, logs: Tensor, grad_out: Tensor, q_grad: Tensor, k_grad: Tensor, v_grad: Tensor
) -> bool:
    """The gradients into ``q_grad``, ``k_grad`` and ``v_grad``, of the operands' shapes.

    Returns:
        False where oneDNN lacks a product, or one head has more than MOST scores or a row more than LONGEST_BACKWARD;
        what was written does not count then.
    """
    batches, heads, queries, keys = operands.shape
    if queries * keys > MOST or keys > LONGEST_BACKWARD:
        return False
    each = operands.heads_a_key
    # What each head of queries adds to the gradients of keys and values, where several share one.
    by_head = [
        t if each == 1 else torch.empty((batches, heads, *t.shape[2:]), dtype=torch.float32, device=t.device)
        for t in (k_grad, v_grad)
    ]
    for b, h in _groups(operands, 2 * queries * keys):
        part = operands.part(b, h)
        grad = grad_out[b, h]
        scores, by_weight = (
            torch.empty((*part.query.shape[:3], keys), dtype=torch.float32, device=grad.device) for _ in range(2)
        )
        if not _product(part.query, part.key.transpose(-1, -2), scores):
            return False
        if not _product(grad, part.value.transpose(-1, -2), by_weight):
            return False
        same = part.query.dtype == torch.float32
        weights = scores if same else torch.empty_like(scores, dtype=part.query.dtype)
        by_score = by_weight if same else torch.empty_like(weights)
        _to_gradients(part, scores, by_weight, out[b, h], grad, logs[b, h], weights, by_score)
        turned = by_score.transpose(-1, -2)
        products = (
            (weights.transpose(-1, -2), grad, by_head[1]),
            (by_score, part.key, q_grad),
            (turned, part.query, by_head[0]),
        )
        if not all(_product(left, right, into[b, h]) for left, right, into in products):
            return False
    if each > 1:
        for parts, whole in zip(by_head, (k_grad, v_grad), strict=True):
            whole.copy_(_shared(parts, whole.shape[1]).sum(2))
    return True


def _bias(mask: Tensor | None, otherwise: Tensor) -> tuple[Tensor, tuple[int, ...], str]:
    if mask is None:
        return otherwise, (0, 0, 0, 0), "none"
    return mask, mask.stride(), "bool" if mask.dtype == torch.uint8 else "float"


def _rows(keys: int) -> tuple[int, dict[str, Any]]:
    """Rows of a program, and the kernels' constants that say how a row is gone over."""
    short = keys <= SHORT_ROW
    return max(1, SCORES_A_PROGRAM // keys), {
        "C": max(16, 1 << (keys - 1).bit_length()) if short else AT_A_TIME,
        "SHORT": short,
    }


def _to_weights(
    operands: Operands, scores: Tensor, mask: Tensor | None, weights: Tensor, logs: Tensor, first: int
) -> None:
    from anyxpu.ops import attention_rows as kernels  # Triton, which `import torch` does without
    from anyxpu.ops.flash import LOG2E

    batches, heads, queries, keys = scores.shape
    bias, strides, kind = _bias(mask, scores)
    down, sizes = _rows(keys)
    with torch.xpu.device(scores.device):
        kernels.to_weights[(-(-queries // down), heads, batches)](
            scores, bias, weights, logs, *strides, *logs.stride()[:2], operands.scale * LOG2E, first, queries, keys,
            down, **sizes, BIAS=kind, CAUSAL=operands.causal, num_warps=1,
        )  # fmt: skip


def _to_gradients(part: Operands, scores: Tensor, by_weight: Tensor, out: Tensor, grad: Tensor, *rest: Tensor) -> None:
    from anyxpu.ops import attention_rows as kernels  # Triton, which `import torch` does without
    from anyxpu.ops.flash import LOG2E

    logs, weights, by_score = rest
    batches, heads, queries, keys = scores.shape
    bias, strides, kind = _bias(part.mask, scores)
    down, sizes = _rows(keys)
    size = out.shape[-1]
    with torch.xpu.device(scores.device):
        kernels.to_gradients[(-(-queries // down), heads, batches)](
            scores, by_weight, bias, out, grad, logs, weights, by_score, *strides, *_three(out), *_three(grad),
            *logs.stride()[:2], part.scale * LOG2E, part.scale, queries, keys, size, down,
            **sizes, FP=max(16, 1 << (size - 1).bit_length()), BIAS=kind, CAUSAL=part.causal, num_warps=1,
        )  # fmt: skip


def _three(t: Tensor) -> tuple[Any, ...]:
    return t.stride()[:3]
