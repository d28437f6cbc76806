"""HuggingFace's models of PyTorch's dynamo benchmark, from their configurations with random weights.

Names are those of ``benchmarks/dynamo/huggingface.py``, sizes near its own. A configuration's defaults are the
published model's; where one is too deep to be held four times and once in float64, it has fewer layers here.
"""

from __future__ import annotations

import functools
from typing import Any

from anyxpu.bench.models.entry import Entry, Size
from anyxpu.bench.models.packages import tokens, transformer

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


def _entry(name: str) -> Entry:
    named, options, size = _MODELS[name]
    kind = named or name
    return Entry(
        name=name,
        build=functools.partial(transformer, kind, options),
        inputs=functools.partial(tokens, kind, options),
        small=_SMALL,
        upstream=size,
        tolerance=(1e-3, 2e-2) if name in _TOLERANT else None,
        cosine=name in _COSINE,
        training=name not in _INFERENCE_ALONE,
    )


def entries() -> list[Entry]:
    """All of the suite."""
    return [_entry(name) for name in _MODELS]
