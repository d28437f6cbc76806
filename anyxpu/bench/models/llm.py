"""Today's language models, small: their layers' shapes, and what only they have (grouped heads, experts, scans)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from anyxpu.bench.models.entry import Entry, Inputs, Size

_SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "head_dim": 64,
}
_MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _SMALL,
    "Qwen2ForCausalLM": _SMALL,
    "Qwen3ForCausalLM": _SMALL,
    "MistralForCausalLM": {**_SMALL, "sliding_window": 64},
    "GemmaForCausalLM": _SMALL,
    "Gemma2ForCausalLM": {**_SMALL, "sliding_window": 64, "query_pre_attn_scalar": 64},
    "PhiForCausalLM": {key: value for key, value in _SMALL.items() if key != "head_dim"},
    "MixtralForCausalLM": {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "MambaForCausalLM": {"hidden_size": 384, "num_hidden_layers": 4, "vocab_size": 32000, "state_size": 16},
}


def _build(name: str) -> nn.Module:
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**_MODELS[name])
    config.use_cache = False
    return kind(config)


def _inputs(name: str, g: torch.Generator, size: Size) -> Inputs:
    shape = (size.batch, size.length)
    return {key: torch.randint(5, 32000, shape, generator=g) for key in ("input_ids", "labels")}


def entries() -> list[Entry]:
    """All of the suite: whole sequences, as in training and before a first token is generated."""
    return [
        Entry(
            name=name,
            build=functools.partial(_build, name),
            inputs=functools.partial(_inputs, name),
            small=Size(2, 128),
            upstream=Size(4, 1024),
        )
        for name in _MODELS
    ]
