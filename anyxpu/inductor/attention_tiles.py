"""Blocks of flex_attention's template on Intel GPUs: the largest found that spill nothing and fit in local memory.

In-tree choices were made for another compiler. With ours they spill kilobytes a thread with heads of 128, and of f32
want more local memory than Xe-HPG has, so that nothing compiles there. On a CPU device they are as good as any other:
of nine forward and four backward ones the best took 5 to 15 % less time, and not the same one for every length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Queries, keys and sub-groups of a work-group, by the longest heads that they serve. Compiled for six GPUs in bf16
# and f32 under a causal mask, for two of them (bmg, dg2) with a change of the scores too; no GPU has timed them.
_NARROW = {64: (128, 64, 16), 128: (128, 16, 16), 256: (32, 64, 4)}
_F32 = {64: (128, 32, 16), 128: (64, 16, 16), 256: (32, 32, 16)}
# Keys that one query with heads above 128 is multiplied by at once: of twice as many no operand fits.
_DECODED_KEYS = 32


def for_devices(module: ModuleType) -> None:
    """Wrap two methods of ``torch._inductor.choices.InductorChoices``: which blocks attention and decoding may have."""
    import torch

    from anyxpu.inductor import heuristics

    choices = module.InductorChoices
    attention, decoding = choices.get_flex_attention_fwd_configs, choices.get_flex_decode_configs

    def get_flex_attention_fwd_configs(
        self: Any, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda"
    ) -> list[Any]:
        found = attention(self, head_dim, dtype, device_type)
        table = _F32 if dtype == torch.float32 else _NARROW
        tile = next((table[longest] for longest in table if head_dim <= longest), None)
        if device_type != "xpu" or tile is None or heuristics.only_cpu_devices():
            return list(found)
        queries, keys, warps = tile
        return _instead_of_the_last(found, block_m=queries, block_n=keys, num_warps=warps)

    def get_flex_decode_configs(
        self: Any, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda"
    ) -> list[Any]:
        found = decoding(self, head_dim, dtype, device_type)
        if device_type != "xpu" or head_dim <= 128 or heuristics.only_cpu_devices():
            return list(found)
        return _instead_of_the_last(found, block_n=_DECODED_KEYS)

    choices.get_flex_attention_fwd_configs = get_flex_attention_fwd_configs
    choices.get_flex_decode_configs = get_flex_decode_configs


def _instead_of_the_last(found: Sequence[Any], **changes: int) -> list[Any]:
    """``found`` with another last one, which is what is taken where nothing is tried."""
    ours = dataclasses.replace(found[-1], **changes)
    return [*(c for c in found[:-1] if c != ours), ours]
