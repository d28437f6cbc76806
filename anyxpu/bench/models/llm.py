"""Today's language models, small: their layers' shapes, and what only they have (grouped heads, experts, scans)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from anyxpu.bench.models.entry import Entry, Inputs, Size
from anyxpu.bench.models.packages import tokens, transformer

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


# Whose state is no list of keys and values.
_NOT_CACHED = ("MambaForCausalLM",)


class _Decoding(nn.Module):
    """The next token's scores from one token more and the keys and values of those before it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config

    def forward(self, input_ids: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache: Any = DynamicCache(ddp_cache_data=pairs, config=self.config)
        logits = self.model(input_ids, past_key_values=cache, use_cache=True).logits
        return logits, *(part[:, :, -1:] for layer in cache.layers for part in (layer.keys, layer.values))


def _decoding(name: str) -> nn.Module:
    return _Decoding(transformer(name, _MODELS[name]))


def _cached(name: str, g: torch.Generator, size: Size) -> Inputs:
    options = _MODELS[name]
    heads = options["num_key_value_heads"]
    shape = (size.batch, heads, size.length, options.get("head_dim", 64))
    pairs = [
        (torch.randn(shape, generator=g), torch.randn(shape, generator=g)) for _ in range(options["num_hidden_layers"])
    ]
    return {"input_ids": torch.randint(5, 32000, (size.batch, 1), generator=g), "pairs": pairs}


def entries() -> list[Entry]:
    """All of the suite: whole sequences, as in training and before a first token is made; and ``-decode``, a token."""
    prefill = [
        Entry(
            name=name,
            build=functools.partial(transformer, name, options),
            inputs=functools.partial(tokens, name, options),
            small=Size(2, 128),
            upstream=Size(4, 1024),
        )
        for name, options in _MODELS.items()
    ]
    decode = [
        Entry(
            name=f"{name}-decode",
            build=functools.partial(_decoding, name),
            inputs=functools.partial(_cached, name),
            small=Size(1, 128),
            upstream=Size(4, 1024),
            training=False,
        )
        for name in _MODELS
        if name not in _NOT_CACHED
    ]
    return prefill + decode
