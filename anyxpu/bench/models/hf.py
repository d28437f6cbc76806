"""HuggingFace's models of PyTorch's dynamo benchmark, from their configurations with random weights.

Names are those of ``benchmarks/dynamo/huggingface.py``, sizes near its own. A configuration's defaults are the
published model's; where one is too deep to be held four times and once in float64, it has fewer layers here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from anyxpu.bench.models.entry import Entry, Inputs, Size

# Of upstream's sizes a share: a step of two cores in seconds.
_SMALL = Size(1, 128)

# Its configuration's defaults are those of its largest.
_ALBERT_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

# Name -> (class where it is another, configuration, upstream's batch and length).
_MODELS: dict[str, tuple[str, dict[str, Any], Size]] = {
    "AlbertForMaskedLM": ("", _ALBERT_BASE, Size(8, 512)),
    "AlbertForQuestionAnswering": ("", _ALBERT_BASE, Size(8, 512)),
    "AllenaiLongformerBase": ("LongformerForMaskedLM", {"attention_window": 64}, Size(8, 1024)),
    "BartForCausalLM": ("", {}, Size(8, 512)),
    "BartForConditionalGeneration": ("", {}, Size(4, 512)),
    "BertForMaskedLM": ("", {}, Size(32, 512)),
    "BertForQuestionAnswering": ("", {}, Size(32, 512)),
    "BlenderbotForCausalLM": ("", {"d_model": 1024, "decoder_layers": 8, "encoder_layers": 2}, Size(32, 128)),
    "BlenderbotSmallForCausalLM": ("", {}, Size(256, 128)),
    "BlenderbotSmallForConditionalGeneration": ("", {}, Size(128, 128)),
    "CamemBert": ("CamembertForMaskedLM", {}, Size(32, 512)),
    "DebertaForMaskedLM": ("", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, Size(32, 512)),
    "DebertaForQuestionAnswering": ("", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, Size(32, 512)),
    "DebertaV2ForMaskedLM": ("", {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                                  "intermediate_size": 3072}, Size(8, 512)),
    "DebertaV2ForQuestionAnswering": ("", {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                                           "intermediate_size": 3072}, Size(8, 512)),
    "DistilBertForMaskedLM": ("", {}, Size(256, 128)),
    "DistilBertForQuestionAnswering": ("", {}, Size(512, 128)),
    "DistillGPT2": ("GPT2LMHeadModel", {"n_layer": 6}, Size(32, 512)),
    "ElectraForCausalLM": ("", {"is_decoder": True}, Size(64, 512)),
    "ElectraForQuestionAnswering": ("", {}, Size(128, 512)),
    "GPT2ForSequenceClassification": ("", {"pad_token_id": 50256}, Size(8, 1024)),
    "GPTNeoForCausalLM": ("", {"num_layers": 12, "hidden_size": 768, "num_heads": 12,
                               "attention_types": [[["global", "local"], 6]]}, Size(32, 128)),
    "GoogleFnet": ("FNetForMaskedLM", {}, Size(32, 512)),
    "LayoutLMForMaskedLM": ("", {}, Size(32, 512)),
    "LayoutLMForSequenceClassification": ("", {}, Size(32, 512)),
    "M2M100ForConditionalGeneration": ("", {"encoder_layers": 6, "decoder_layers": 6, "vocab_size": 32000},
                                       Size(64, 128)),
    "MBartForCausalLM": ("", {"vocab_size": 50265}, Size(8, 512)),
    "MBartForConditionalGeneration": ("", {"vocab_size": 50265, "encoder_layers": 6, "decoder_layers": 6},
                                      Size(4, 512)),
    "MT5ForConditionalGeneration": ("", {"vocab_size": 32128}, Size(32, 128)),
    "MegatronBertForCausalLM": ("", {"num_hidden_layers": 12, "is_decoder": True}, Size(16, 512)),
    "MegatronBertForQuestionAnswering": ("", {"num_hidden_layers": 12}, Size(16, 512)),
    "MobileBertForMaskedLM": ("", {}, Size(256, 128)),
    "MobileBertForQuestionAnswering": ("", {}, Size(256, 128)),
    "MPNetForMaskedLM": ("", {}, Size(32, 512)),
    "NystromformerForMaskedLM": ("", {}, Size(8, 512)),
    "OPTForCausalLM": ("", {}, Size(4, 2048)),
    "PLBartForCausalLM": ("", {}, Size(16, 512)),
    "PLBartForConditionalGeneration": ("", {}, Size(8, 512)),
    "PegasusForCausalLM": ("", {}, Size(128, 128)),
    "PegasusForConditionalGeneration": ("", {"encoder_layers": 6, "decoder_layers": 6}, Size(64, 128)),
    "RobertaForCausalLM": ("", {"is_decoder": True}, Size(16, 512)),
    "RobertaForQuestionAnswering": ("", {}, Size(16, 512)),
    "RoFormerForMaskedLM": ("", {}, Size(8, 512)),
    "SqueezeBertForMaskedLM": ("", {}, Size(32, 512)),
    "T5ForConditionalGeneration": ("", {"num_layers": 6, "d_model": 512}, Size(4, 1024)),
    "T5Small": ("T5ForConditionalGeneration", {"num_layers": 6, "d_model": 512, "num_heads": 8}, Size(4, 1024)),
    "TrOCRForCausalLM": ("", {}, Size(32, 256)),
    "XGLMForCausalLM": ("", {"num_layers": 6, "vocab_size": 50265}, Size(16, 128)),
    "XLNetLMHeadModel": ("", {"n_layer": 12, "d_model": 768, "n_head": 12, "d_inner": 3072}, Size(8, 512)),
    "YituTechConvBert": ("ConvBertForMaskedLM", {}, Size(16, 512)),
}  # fmt: skip

# What upstream grants: models whose rounding errors grow (REQUIRE_HIGHER_TOLERANCE), and those judged by their cosine.
_TOLERANT = ("MT5ForConditionalGeneration",)
_COSINE = ("DebertaV2ForQuestionAnswering",)
# Too large to be trained on four sides at once.
_INFERENCE_ALONE = ("M2M100ForConditionalGeneration", "XGLMForCausalLM", "MBartForConditionalGeneration")


def _build(name: str) -> nn.Module:
    import transformers

    named, options, _ = _MODELS[name]
    kind = getattr(transformers, named or name)
    config = kind.config_class(**options)
    # A model that drops at random differs from every other side; a cache is no part of a forward call's result.
    for each in (config, *(getattr(config, part) for part in ("encoder", "decoder") if hasattr(config, part))):
        for key, value in vars(each).items():
            if "dropout" in key or key.endswith(("pdrop", "layerdrop")):
                setattr(each, key, 0.0 if isinstance(value, float) else value)
        if hasattr(each, "use_cache"):
            each.use_cache = False
    # transformers takes a loss by the class's name, and warns where that says nothing, which breaks a graph.
    if named.endswith("LMHeadModel") or name.endswith("LMHeadModel"):
        config.loss_type = "ForCausalLM"
    return kind(config)


def _inputs(name: str, g: torch.Generator, size: Size) -> Inputs:
    import transformers

    named, options, _ = _MODELS[name]
    kind = getattr(transformers, named or name)
    vocabulary = options.get("vocab_size") or kind.config_class(**options).vocab_size
    shape = (size.batch, size.length)

    def tokens() -> torch.Tensor:
        return torch.randint(5, vocabulary, shape, generator=g)

    made: Inputs = {"input_ids": tokens()}
    if kind.__name__.endswith("ForConditionalGeneration"):
        made["decoder_input_ids"] = tokens()
    if kind.__name__.startswith("LayoutLM"):
        made["bbox"] = torch.zeros((*shape, 4), dtype=torch.long)
    if kind.__name__.endswith("QuestionAnswering"):
        made["start_positions"] = torch.randint(0, size.length, (size.batch,), generator=g)
        made["end_positions"] = torch.randint(0, size.length, (size.batch,), generator=g)
    elif kind.__name__.endswith("SequenceClassification"):
        made["labels"] = torch.randint(0, 2, (size.batch,), generator=g)
    else:
        made["labels"] = tokens()
    return made


def entries() -> list[Entry]:
    """All of the suite."""
    return [
        Entry(
            name=name,
            build=functools.partial(_build, name),
            inputs=functools.partial(_inputs, name),
            small=_SMALL,
            upstream=size,
            tolerance=(1e-3, 2e-2) if name in _TOLERANT else None,
            cosine=name in _COSINE,
            training=name not in _INFERENCE_ALONE,
        )
        for name, (_, _, size) in _MODELS.items()
    ]
