"""Attention by the kernels of :mod:`anyxpu.ops.attention_kernels`: which calls they take, and in which blocks.

On a CPU device what is large enough goes to :mod:`anyxpu.ops.attention_products`, where that is the faster way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyxpu.onednn.matmul import SIXTEEN_BITS
from anyxpu.ops import ahead
from anyxpu.ops.attention_products import Operands, serves
from anyxpu.ops.attention_products import backward as gradients_by_products
from anyxpu.ops.attention_products import forward as by_products
from anyxpu.ops.current_device import current
from anyxpu.processor import tiles
from anyxpu.runtime.vectors import has_short_vectors
from anyxpu.shim import lib

LOG2E = math.log2(math.e)
FEW = 8
"""Queries that a CPU takes without padding them to a tile."""
LARGEST = 256
"""Elements of a head, of keys and of values."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Blocks:
    """Queries and keys of a block, sub-groups of a work-group, and how products are made.

    Attributes:
        wide: of f32 whatever is read.
        few: not padded to a tile; forward alone.
        rest: keys of a block where not all are seen; 0 is as many as elsewhere. Forward alone.
    """

    queries: int
    keys: int
    warps: int
    wide: bool
    few: bool = False
    rest: int = 0

    def constants(self) -> dict[str, Any]:
        """Of :func:`attention_kernels.attend`."""
        sizes = {"BM": self.queries, "BN": self.keys, "BT": self.rest or self.keys}
        return {**sizes, "WIDE": self.wide, "FEW": self.few, "num_warps": self.warps}


@dataclass(frozen=True)
class Window:
    """Which keys a query may see.

    Attributes:
        left, right: how many places before and after its own; None is no bound.
        aligned: places are counted from the ends of queries and keys, as in flash-attn, and not from their beginnings.
    """

    left: int | None = None
    right: int | None = None
    aligned: bool = False

    def constants(self) -> dict[str, bool]:
        """Of the kernels."""
        causal, left = self.right is not None, self.left is not None
        return {"CAUSAL": causal, "LEFT": left, "ALIGNED": self.aligned and (causal or left)}

    def bounds(self) -> tuple[int, int]:
        """Arguments of the kernels."""
        return self.left or 0, self.right or 0


ALL, CAUSAL = Window(), Window(right=0)


@dataclass(frozen=True)
class Packing:
    """Sequences that lie one after the other, in operands of one batch.

    Attributes:
        queries, keys: int32, where each sequence begins and, last, where the last one ends. ``keys`` is None where
            each batch has its own, or its pages.
        most_queries, most_keys: at least the length of the longest.
        used: int32, how many keys each sequence has, where those are fewer than have room.
        pages: int32, (sequences, pages of a sequence): which page of keys and of values is which. The operands are
            (pages, heads, rows of a page, E) then.
    """

    queries: Tensor
    keys: Tensor | None
    most_queries: int
    most_keys: int
    used: Tensor | None = None
    pages: Tensor | None = None


def takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether the kernels serve such operands: 4-D, one dtype, heads of keys that divide those of queries.

    Where all weights are dropped the composition says what is left of them.
    """
    if not (query.dim() == key.dim() == value.dim() == 4 and query.dtype in DTYPES and 0.0 <= dropout < 1.0):
        return False
    if not (query.dtype == key.dtype == value.dtype and query.device == key.device == value.device):
        return False
    if mask is not None and not (mask.device == query.device and (mask.dtype in DTYPES or mask.dtype == torch.bool)):
        return False
    if 0 in (*query.shape, *key.shape, *value.shape) or max(query.shape[-1], value.shape[-1]) > LARGEST:
        return False
    fits = (
        query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
        and key.shape[1] == value.shape[1]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[0] == key.shape[0] == value.shape[0]
    )
    if not fits or mask is None:
        return fits
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    return mask.dim() <= 4 and all(m in (1, n) for m, n in pairs)


def _power(size: int) -> int:
    """The least power of 2 that a size fits in."""
    return 1 << (size - 1).bit_length()


class _Form(NamedTuple):
    """What blocks are chosen by.

    Attributes:
        queries: how many.
        keys: how many, or as few as have as many behind the last whole 128.
        size: elements of a head, of keys or of values.
    """

    queries: int
    keys: int
    size: int
    packed: bool
    windowed: bool
    masked: bool


@functools.lru_cache(maxsize=1024)
def _blocks(device: torch.device, dtype: torch.dtype, form: _Form, backward: bool) -> Blocks:
    most = max(16, _power(form.queries))
    size = form.size
    properties = torch.xpu.get_device_properties(device)
    if properties.type == "cpu":
        if by_tiles(device, dtype, form.queries, size):
            return _of_tiles(form, most, backward)
        return _of_cpu(device, form, backward, most)
    # Operands of f32 and of long heads take 64 KiB of local memory, which the smallest of Intel's GPUs have.
    rows = 32 if backward or (size > 128 and dtype == torch.float32) else 64
    rows = 16 if backward and dtype == torch.float32 else rows  # more of them spill on the oldest
    rows = min(rows, most)
    narrow = dtype in SIXTEEN_BITS
    short = size > 128 and not backward and (rows > 16 or not narrow)
    # Eight sub-groups spill in gradients of packed sequences (on Xe2), and forward where few rows are wide or, of 8
    # lanes each, where rows are few or masked (on Xe-HPG).
    warps = 8
    if narrow and backward:
        warps = 4 if form.packed and size <= 64 else 8
    elif narrow and 8 in properties.sub_group_sizes and 16 < size <= 128 and (form.masked or rows <= 32):
        warps = 2
    elif narrow and rows <= 16 and 64 < size <= 128:
        warps = 4
    return Blocks(rows, 16 if short else 32, warps, False)


def by_tiles(device: torch.device, dtype: torch.dtype, queries: int, size: int) -> bool:
    """Whether a CPU's tile registers multiply (AMX): all but few queries, whose heads fill a tile's depth."""
    if dtype != torch.bfloat16 or queries <= FEW or size <= 16 or not tiles():
        return False
    return torch.xpu.get_device_properties(device).type == "cpu"


# Queries or keys of a block, and the time that each takes with it: for each block of queries all keys and values are
# brought into tiles' layout.
_QUERIES_OF_TILES = {64: 1.05, 128: 1.0, 256: 0.97}
_KEYS_OF_TILES = {64: 1.07, 128: 1.0}


def _of_tiles(form: _Form, most: int, backward: bool) -> Blocks:
    """Measured, of 128 to 4,096 keys."""
    keys, causal = form.keys, form.windowed
    columns = min(_KEYS_OF_TILES, key=lambda c: _KEYS_OF_TILES[c] * _padded(keys, c))
    rows = min(_QUERIES_OF_TILES, key=lambda r: _QUERIES_OF_TILES[r] * (-(-form.queries // r) + causal / 2) * r)
    if form.size > 128:
        rows, columns = 64, 64
    if backward:
        columns = min(_KEYS_OF_TILES, key=lambda c: _KEYS_OF_TILES[c] * (-(-keys // c) * c))
        return Blocks(min(rows, 128, most), 64 if form.size > 128 else columns, 1, False)
    some = keys % columns
    return Blocks(min(rows, most), columns, 1, False, rest=columns if form.windowed else min(columns, _rest(some)))


def _padded(keys: int, columns: int) -> int:
    some = keys % columns
    return keys - some + (_rest(some) if some else 0)


def _rest(keys: int) -> int:
    """Keys of a block behind the last whole one: at least the depth of a tile."""
    return max(32, _power(keys)) if keys else 32


# Queries and keys of a block, and the time that an element of a matrix of scores takes with them, on AVX2 with heads of
# 64: smaller ones take longer, and compute fewer that are not there.
_FORWARD = {(16, 16): 1.115, (32, 64): 1.02, (64, 64): 1.0}
_BACKWARD = {(16, 32): 1.05, (32, 32): 1.04, (32, 64): 1.02, (64, 64): 1.0}
# Forward with AVX-512, heads of 40 to 128.
_FORWARD_LONG = {(16, 32): 1.13, (32, 64): 1.07, (64, 64): 1.0}
_MOST_REST, _REST = 24, 1.25
"""Keys behind the last whole block that are taken by 8, and how much longer each of those takes."""


def _of_cpu(device: torch.device, form: _Form, backward: bool, most: int) -> Blocks:
    """``most``: queries of a block."""
    queries, keys, size = form.queries, form.keys, form.size
    # Measured, of 4 and 8: few rows by themselves are 1.1 to 2 times as fast as in a tile of 16.
    if queries <= FEW and not backward:
        rows = 1 << (queries - 1).bit_length()
        return Blocks(rows, 16 if rows == 1 else 32, 1, True, few=True)

    short = has_short_vectors(device)
    costs = _BACKWARD if backward else _FORWARD if short else _FORWARD_LONG

    def cost(block: tuple[int, int]) -> float:
        rows, columns = block
        whole, some = -(-queries // rows) * rows * costs[block], keys % columns
        if not backward and some <= _MOST_REST:  # the last keys are taken by fewer
            counted = keys - some + -(-some // 8) * 8 * _REST
        else:
            counted = -(-keys // columns) * columns
        # AVX2's forward costs stand for all keys, whatever is left behind whole blocks, and were not measured again.
        return whole * (counted if backward or not short else 1)

    rows, columns = min(costs, key=cost)
    if size > 128:
        rows, columns = max(rows, 32), 32
    rest = 32 if form.windowed else 8 if keys % columns <= _MOST_REST else columns
    return Blocks(min(rows, most), columns, 1, True, rest=min(rest, columns))


@functools.lru_cache(maxsize=1024)
def _pieces(device: torch.device, size: int) -> tuple[int, int]:
    """The powers of 2 that kernels take a head's elements in: 80 as 64 and 16 on a CPU device. The second may be 0.

    On a GPU there is one: products of two shapes are spread over sub-groups in two ways, and what both read is in
    registers twice. Simulated, gradients by queries of bf16 with heads of 80 spilled 14 KB on Xe2.
    """
    whole = max(16, _power(size))
    if torch.xpu.get_device_properties(device).type != "cpu" or size <= whole // 2:
        return whole, 0
    rest = max(8 if has_short_vectors(device) else 16, _power(size - whole // 2))  # a vector of f32 at least
    return (whole // 2, rest) if rest < whole // 2 else (whole, 0)


class Problem:
    """Operands as the kernels take them."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        window: Window,
        packing: Packing | None = None,
    ):
        self.given = query, key, value
        self.query, self.key, self.value = (_unit(t) for t in self.given)
        self.batches, self.heads, self.queries, self.size = query.shape
        self.groups, self.keys, self.width = key.shape[1], key.shape[2], value.shape[3]
        self.window, self.packing = window, packing
        if packing is not None:
            self.batches = packing.queries.shape[0] - 1
            self.queries, self.keys = packing.most_queries, packing.most_keys
        shape = (self.batches, self.heads, self.queries, self.keys)
        self.mask = None if mask is None else (mask.view(torch.uint8) if mask.dtype == torch.bool else mask)
        if self.mask is not None:
            self.mask = self.mask.expand(shape)
        kind = "none" if mask is None else "bool" if mask.dtype == torch.bool else "float"
        if self.mask_in_rows():
            kind += " rows"
        self.masks = {"BIAS": kind, "DROPOUT": dropout > 0, "PACKED": packing is not None, **window.constants()}

    def constants(self) -> dict[str, Any]:
        """Of the kernels."""
        sizes = {"GROUP": self.heads // self.groups, "E": self.size, "F": self.width}
        for size, names in ((self.size, ("EP", "ER")), (self.width, ("FP", "FR"))):
            sizes |= dict(zip(names, self._pieces(size), strict=True))
        return {**sizes, **self.masks}

    def _pieces(self, size: int) -> tuple[int, int]:
        """Tiles take a whole power of 2: a second product has columns of its own to bring into their layout."""
        if by_tiles(self.query.device, self.query.dtype, self.queries, size):
            return _power(size), 0
        return _pieces(self.query.device, size)

    def offsets(self) -> tuple[Tensor, Tensor]:
        """Where sequences begin; any pointers where none are packed."""
        found = () if self.packing is None else (self.packing.queries, self.packing.keys)
        queries, keys = found or (None, None)
        return self.query if queries is None else queries, self.query if keys is None else keys

    def keys_elsewhere(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and constants of :func:`attention_kernels.attend` alone: what has no gradients."""
        packing = self.packing
        used, pages = (None, None) if packing is None else (packing.used, packing.pages)
        constants = {
            "PACKED_KEYS": packing is not None and packing.keys is not None,
            "USED": used is not None,
            "PAGE": 0 if pages is None else self.key.shape[2],
            "PARTS": False,
        }
        arguments = (
            self.query if used is None else used,
            self.query if pages is None else pages,
            0 if pages is None else pages.stride(0),
            0,
        )
        return arguments, constants

    def bias(self) -> Tensor:
        return self.query if self.mask is None else self.mask

    def bias_strides(self) -> tuple[int, ...]:
        return (0, 0, 0, 0) if self.mask is None else self.mask.stride()

    def bias_arguments(self) -> tuple[int | None, ...]:
        """These strides as kernels take them: the last is None where they are told that it is 1."""
        *others, last = self.bias_strides()
        told = last == 1 and torch.xpu.get_device_properties(self.query.device).type == "cpu"
        return (*others, None if told else last)

    def operands(self, scale: float | None) -> Operands | None:
        """For :mod:`anyxpu.ops.attention_products`, which know neither windows nor packing."""
        if self.packing is not None or self.window not in (ALL, CAUSAL):
            return None
        return Operands(self.query, self.key, self.value, self.mask, self.window == CAUSAL, _scale(self, scale))

    def mask_in_rows(self) -> bool:
        """Whether there is a mask that a CPU device had better read by rows, and turn."""
        return self.mask is not None and self.bias_arguments()[-1] is None and not has_short_vectors(self.query.device)

    def blocks(self, backward: bool) -> Blocks:
        keys = min(self.keys, 1024 + self.keys % 128)  # of many, what is behind the last whole block matters alone
        size, packed = max(self.size, self.width), self.packing is not None
        form = _Form(self.queries, keys, size, packed, self.window != ALL, self.mask is not None)
        return _blocks(self.query.device, self.query.dtype, form, backward)


def _fills_tiles(p: Problem, blocks: Blocks, backward: bool) -> bool:
    """Whether a CPU's kernels by tiles are faster than products for a call that both take, as measured.

    They are where little of their blocks lies outside of the matrix of scores, which products take as it is. A mask
    that does not lie in rows is gathered, and of few keys or long heads a block brings more into tiles' layout than it
    computes; for gradients, which come of five products, scores have to be many.
    """
    if blocks.wide or not by_tiles(p.query.device, p.query.dtype, p.queries, max(p.size, p.width)):
        return False
    if not (p.mask is None or p.mask_in_rows()) or p.keys < 128 or max(p.size, p.width) > 128:
        return False
    rows, area = -(-p.queries // blocks.queries), float(p.queries * p.keys)
    computed = float(rows * blocks.queries) * _padded(p.keys, blocks.keys)
    if p.window == CAUSAL:
        area /= 2
        computed *= (1 + 1 / rows) / 2
    if backward:
        return area >= _MANY and computed <= _WASTE * area
    return computed <= (_WASTE_OF_FEW if area <= _SMALL else _WASTE) * area


_WASTE, _WASTE_OF_FEW, _SMALL = 1.3, 1.5, 40_000
"""What kernels by tiles may compute more than there is of a head's scores; of so few of these products are slower."""
_MANY = 100_000
"""A head's scores, from which on kernels make gradients: 0.6 to 0.7 times as fast of 16,000 and of 197 by 197, 1.0 to
2.3 times of 131,000 and more."""


def _unit(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _writable(t: Tensor) -> Tensor:
    """The tensor, or one of its shape whose last dimension is dense."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else torch.empty(t.shape, dtype=t.dtype, device=t.device)


def _three(t: Tensor) -> tuple[int, ...]:
    batch, head, row = t.stride()[:3]
    return (0 if t.shape[0] == 1 else batch), head, row


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor, int]:
    """Attention of operands that :func:`takes` takes.

    Args:
        query: (batches, heads, L, E). key, value: (batches, heads of keys, S, E) and (…, S, F).
        mask: bool or a float, broadcastable to (batches, heads, L, S).
        dropout: the probability of a weight to be dropped; drawn from the device's generator where it is above 0.
        into: what attention is written into, of its shape.

    Returns:
        (batches, heads, L, F) in query's order of dimensions, or ``into``; the logarithms of the sums, (batches,
        heads, L) of f32 (-inf where no key is allowed, whose results are 0); the seed.
    """
    heads, groups = query.shape[1], key.shape[1]
    same = mask is None or mask.dim() < 3 or mask.shape[-3] == 1  # for all heads
    if query.shape[2] == 1 and heads > groups and same and dropout == 0 and not causal:
        # One query of each head, as in decoding: heads that share keys are one block of queries and read them once.
        packed = query.reshape(query.shape[0], groups, heads // groups, query.shape[3])
        rows, logs, seed = forward(packed, key, value, mask, 0.0, False, scale)
        out = laid_out_like(query, value.shape[3]) if into is None else into
        return out.copy_(rows.reshape(*query.shape[:3], -1)), logs.view(query.shape[:3]), seed
    p = Problem(query, key, value, mask, dropout, CAUSAL if causal else ALL)
    out = laid_out_like(query, p.width) if into is None else into
    logs = torch.empty((p.batches, p.heads, p.queries), dtype=torch.float32, device=query.device)
    return out, logs, attend(p, out, logs, _apart(logs), dropout, scale)


Places = tuple[int, int, int]
"""Where the logarithms of the sums are: strides by sequence and by head; 1 where sequences lie one after the other."""


def _apart(logs: Tensor) -> Places:
    """Of (batches, heads, L)."""
    return logs.stride(0), logs.stride(1), 0


def attend(p: Problem, out: Tensor, logs: Tensor, places: Places, dropout: float, scale: float | None) -> int:
    """Write attention into ``out``, of query's shape but for its last dimension, and the logarithms of the sums.

    Returns:
        The seed of dropout, 0 where there is none.
    """
    from anyxpu.ops import attention_kernels as kernels  # Triton, which `import torch` does without

    into = _writable(out)
    operands = p.operands(scale) if dropout == 0 and logs.shape[-1] == p.queries else None
    seed = 0
    blocks = p.blocks(backward=False)
    if (
        operands is None
        or _fills_tiles(p, blocks, backward=False)
        or not (serves(operands) and by_products(operands, into, logs))
    ):
        seed = _seed(out.device) if dropout > 0 else 0
        grid = (-(-p.queries // blocks.queries), p.heads, p.batches)
        if operands is not None and (parts := _parts(p, blocks, math.prod(grid))) > 1:
            _attend_by_parts(p, into, logs, scale, blocks, parts)
            if into is not out:
                out.copy_(into)
            return 0
        if torch.is_grad_enabled() and any(t.requires_grad for t in p.given):
            # Their gradients' kernels are built while this one is, by another process: out stands for its gradient.
            like = [torch.empty_like(t, device="meta") for t in p.given]
            ahead.ask(
                out.device.index,
                _gradient_launches(p, into, into, logs, logs, places, dropout, seed, scale, like),
            )
        arguments, constants = p.keys_elsewhere()
        with current(out.device):
            kernels.attend[grid](
                p.query, p.key, p.value, p.bias(), into, logs,
                *_three(p.query), *_three(p.key), *_three(p.value), *_three(into), *p.bias_arguments(),
                _scale(p, scale) * LOG2E, dropout, seed, p.queries, p.keys, *p.offsets(), *arguments, *places,
                *p.window.bounds(), **p.constants(), **constants,
                **blocks.constants(),
            )  # fmt: skip
    if into is not out:
        out.copy_(into)
    return seed


@functools.lru_cache(maxsize=64)
def _room(device: torch.device) -> int:
    """How many work-groups of attention a device had better be given, at least.

    Two a sub-slice is a guess that keeps some of its threads busy: no GPU has timed it.
    """
    properties = torch.xpu.get_device_properties(device)
    return properties.max_compute_units if properties.type == "cpu" else 2 * properties.gpu_subslice_count


MOST_PARTS = 64


def _parts(p: Problem, blocks: Blocks, groups: int) -> int:
    """Into how many parts to cut the keys of so few queries that they leave most of the device idle.

    As flash-decoding does (Dao et al., 2023). Each part has two blocks of keys or more.
    """
    if p.batches != 1 or p.window != ALL or p.keys < 4 * blocks.keys:
        return 1
    return min(_room(p.query.device) // groups, p.keys // (2 * blocks.keys), MOST_PARTS)


def _attend_by_parts(p: Problem, out: Tensor, logs: Tensor, scale: float | None, blocks: Blocks, parts: int) -> None:
    from anyxpu.ops import attention_kernels as kernels  # Triton, which `import torch` does without

    part = -(-p.keys // (parts * blocks.keys)) * blocks.keys
    parts = -(-p.keys // part)
    whole = torch.empty(parts, p.heads, p.queries, p.width, dtype=torch.float32, device=out.device)
    sums = torch.empty(parts, p.heads, p.queries, dtype=torch.float32, device=out.device)
    _, k_head, k_row = _three(p.key)
    _, v_head, v_row = _three(p.value)
    _, bias_head, bias_query, bias_key = p.bias_arguments()
    (used, pages, page_row, _), constants = p.keys_elsewhere()
    with current(out.device):
        kernels.attend[(-(-p.queries // blocks.queries), p.heads, parts)](
            p.query, p.key, p.value, p.bias(), whole, sums,
            0, *_three(p.query)[1:], part * k_row, k_head, k_row, part * v_row, v_head, v_row, *_three(whole),
            part * p.bias_strides()[-1], bias_head, bias_query, bias_key,
            _scale(p, scale) * LOG2E, 0.0, 0, p.queries, p.keys, *p.offsets(), used, pages, page_row, part,
            *_apart(sums), *p.window.bounds(), **p.constants(),
            **constants | {"PARTS": True},
            **blocks.constants(),
        )  # fmt: skip
        kernels.join[(p.queries, p.heads)](
            whole, sums, out, logs, *_three(out)[1:], parts, F=p.width, FP=_power(p.width),
            PP=1 << (parts - 1).bit_length(), num_warps=1,
        )  # fmt: skip


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logs: Tensor,
    dropout: float,
    causal: bool,
    seed: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value, of their shapes and orders of dimensions."""
    p = Problem(query, key, value, mask, dropout, CAUSAL if causal else ALL)
    return gradients(p, grad, out, logs, _apart(logs), dropout, seed, scale)


def gradients(
    p: Problem,
    grad: Tensor,
    out: Tensor,
    logs: Tensor,
    places: Places,
    dropout: float,
    seed: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value of what :func:`attend` wrote; ``places`` are as there."""
    grad, out = _unit(grad), _unit(out)
    # Between packed sequences there may be rows that are nobody's.
    made = torch.empty_like if p.packing is None else torch.zeros_like
    q_grad, k_grad, v_grad = (made(t) for t in p.given)
    into = [_writable(t) for t in (q_grad, k_grad, v_grad)]
    operands = p.operands(scale) if dropout == 0 and logs.shape[-1] == p.queries else None
    if (
        operands is None
        or _fills_tiles(p, p.blocks(backward=True), backward=True)
        or not (serves(operands) and gradients_by_products(operands, out, logs, grad, *into))
    ):
        _backward_kernels(p, grad, out, logs, places, dropout, seed, scale, into)
    for written, wanted in zip(into, (q_grad, k_grad, v_grad), strict=True):
        if written is not wanted:
            wanted.copy_(written)
    return q_grad, k_grad, v_grad


def _backward_kernels(
    p: Problem,
    grad: Tensor,
    out: Tensor,
    logs: Tensor,
    places: Places,
    dropout: float,
    seed: int,
    scale: float | None,
    into: list[Tensor],
) -> None:
    deltas = torch.empty_like(logs)
    blocks = p.blocks(backward=True)
    grids: tuple[tuple[int, ...], ...] = (
        (-(-p.queries // blocks.queries), p.heads, p.batches),
        (-(-p.keys // blocks.keys), p.groups, p.batches),
    )
    sums = None
    if _at_once(p):
        grids = ((p.groups, p.batches),)
        sums = torch.zeros(into[0].shape, dtype=torch.float32, device=grad.device)
    launches = _gradient_launches(p, grad, out, logs, deltas, places, dropout, seed, scale, into, sums)
    ahead.settle()
    with current(grad.device):
        for (kernel, arguments, options), grid in zip(launches, grids, strict=True):
            kernel[grid](*arguments, **options)


def _at_once(p: Problem) -> bool:
    """Whether one kernel makes all gradients: on a CPU device whose cores each have a head of keys at least."""
    properties = torch.xpu.get_device_properties(p.query.device)
    return properties.type == "cpu" and p.groups * p.batches >= properties.max_compute_units


def _gradient_launches(
    p: Problem,
    grad: Tensor,
    out: Tensor,
    logs: Tensor,
    deltas: Tensor,
    places: Places,
    dropout: float,
    seed: int,
    scale: float | None,
    into: list[Tensor],
    sums: Tensor | None = None,
) -> list[ahead.Launch]:
    """By queries and by keys, in the order that they are launched in, or by both. ``sums``: zeros, for the latter."""
    from anyxpu.ops import attention_gradient_kernels as kernels  # Triton, which `import torch` does without

    blocks = p.blocks(backward=True)
    last = (_scale(p, scale) * LOG2E, dropout, seed, p.queries, p.keys, *p.offsets(), *places, *p.window.bounds())
    options = {"BM": blocks.queries, "BN": blocks.keys, "WIDE": blocks.wide, "num_warps": blocks.warps}
    options |= p.constants()
    if _at_once(p):
        if sums is None:
            sums = torch.empty(into[0].shape, dtype=torch.float32, device=into[0].device)
        by_both = (
            p.query, p.key, p.value, p.bias(), out, grad, logs, deltas, sums, *into,
            *_three(p.query), *_three(p.key), *_three(p.value), *_three(out), *_three(grad), *_three(sums),
            *_three(into[0]), *_three(into[1]), *_three(into[2]), *p.bias_arguments(), *last,
        )  # fmt: skip
        return [(kernels.by_both, by_both, options)]
    by_queries = (
        p.query, p.key, p.value, p.bias(), out, grad, logs, deltas, into[0],
        *_three(p.query), *_three(p.key), *_three(p.value), *_three(out), *_three(grad), *_three(into[0]),
        *p.bias_arguments(), *last,
    )  # fmt: skip
    by_keys = (
        p.query, p.key, p.value, p.bias(), grad, logs, deltas, into[1], into[2],
        *_three(p.query), *_three(p.key), *_three(p.value), *_three(grad), *_three(into[1]), *_three(into[2]),
        *p.bias_arguments(), *last,
    )  # fmt: skip
    return [(kernels.by_queries, by_queries, options), (kernels.by_keys, by_keys, options)]


def _scale(p: Problem, scale: float | None) -> float:
    return 1.0 / math.sqrt(p.size) if scale is None else float(scale)


def laid_out_like(query: Tensor, width: int) -> Tensor:
    """An empty tensor of query's shape but for the last dimension, laid out as torch's meta function predicts."""
    if width == query.shape[-1]:
        return torch.empty_like(query)
    shape = (*query.shape[:-1], width)
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=query.stride, reverse=True)[::-1]:
        strides[d] = step
        step *= shape[d]
    return torch.empty_strided(shape, strides, dtype=query.dtype, device=query.device)


def _seed(device: torch.device) -> int:
    """A number that no other call draws, from the device's own generator; always of 64 bits, as kernels are told."""
    seed, offset = lib().philox_state(None, 1, torch.empty(0, device=device).get_device())
    return 2**62 + (seed * 0x9E3779B97F4A7C15 + offset) % 2**62
