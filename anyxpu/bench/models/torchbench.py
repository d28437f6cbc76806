"""Models of TorchBench (github.com/pytorch/benchmark) by its names, with random weights and seeded inputs.

Their code is that of packages (torchvision, timm, transformers, diffusers, torch_geometric), or written anew where the
model is small and no package has it (:mod:`anyxpu.bench.models.small_models`). What is left out: models whose code is
neither, or that need a download.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyxpu.bench.models import small_models as small
from anyxpu.bench.models.entry import Entry, Inputs, Size
from anyxpu.bench.models.packages import Images, detectors_work, images, load, tokens, transformer

# Name -> upstream's batch for inference; images of 224 pixels.
_TORCHVISION = {
    "alexnet": 128,
    "densenet121": 64,
    "mnasnet1_0": 32,
    "mobilenet_v2": 16,
    "mobilenet_v3_large": 32,
    "resnet18": 8,
    "resnet50": 32,
    "resnet152": 32,
    "resnext50_32x4d": 8,
    "shufflenet_v2_x1_0": 64,
    "squeezenet1_1": 16,
    "vgg16": 4,
}
# Name -> timm's name, upstream's batch, pixels a side.
_TIMM = {
    "timm_efficientnet": ("mixnet_m", 64, 224),
    "timm_nfnet": ("dm_nfnet_f0", 128, 192),
    "timm_regnet": ("regnety_120", 32, 224),
    "timm_resnest": ("resnest14d", 32, 224),
    "timm_vision_transformer": ("vit_small_patch16_224", 32, 224),
    "timm_vovnet": ("vovnet39a", 32, 224),
}
_T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 12}
# Name -> class of transformers, configuration, upstream's batch and length. Large ones have fewer layers here.
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Size]] = {
    "hf_Albert": ("AlbertForMaskedLM", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
                  Size(8, 512)),
    "hf_Bart": ("BartForConditionalGeneration", {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6},
                Size(4, 512)),
    "hf_Bert": ("BertForMaskedLM", {}, Size(4, 512)),
    "hf_Bert_large": ("BertForMaskedLM", {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
                                          "num_hidden_layers": 12}, Size(4, 512)),
    "hf_BigBird": ("BigBirdForMaskedLM", {"attention_type": "block_sparse"}, Size(2, 1024)),
    "hf_DistilBert": ("DistilBertForMaskedLM", {}, Size(8, 512)),
    "hf_GPT2": ("GPT2LMHeadModel", {}, Size(4, 512)),
    "hf_GPT2_large": ("GPT2LMHeadModel", {"n_embd": 1280, "n_head": 20, "n_layer": 6}, Size(4, 512)),
    "hf_Longformer": ("LongformerForMaskedLM", {"attention_window": 64}, Size(2, 1024)),
    "hf_Roberta_base": ("RobertaForMaskedLM", {}, Size(4, 512)),
    "hf_T5": ("T5ForConditionalGeneration", {}, Size(8, 1024)),
    "hf_T5_base": ("T5ForConditionalGeneration", _T5_BASE, Size(8, 1024)),
    "hf_T5_large": ("T5ForConditionalGeneration", {**_T5_BASE, "d_model": 1024, "d_ff": 4096, "num_heads": 16},
                    Size(2, 512)),
}  # fmt: skip
# Of two cores: lengths that the block-sparse ones need, and what the rest takes.
_LENGTHS = {"hf_BigBird": 1024, "hf_Longformer": 256}
# Upstream's REQUIRE_EVEN_HIGHER_TOLERANCE; the suite's other tolerances are in accuracy.py.
_NOISY = ("soft_actor_critic", "squeezenet1_1", "shufflenet_v2_x1_0")


def _randn(**shapes: tuple[int, ...]) -> Callable[[torch.Generator, Size], Inputs]:
    """Inputs of these shapes, each behind the batch."""
    return lambda g, size: {name: torch.randn(size.batch, *shape, generator=g) for name, shape in shapes.items()}


def _of_torchvision(name: str) -> nn.Module:
    import torchvision

    build = getattr(torchvision.models, name)
    module = build(weights=None)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return Images(module)


def _of_timm(name: str) -> nn.Module:
    import timm

    return Images(timm.create_model(_TIMM[name][0], pretrained=False, drop_rate=0.0))


def _group_normed_resnet18() -> nn.Module:
    import torchvision

    return Images(torchvision.models.resnet18(norm_layer=lambda channels: nn.GroupNorm(min(channels, 32), channels)))


class _Detector(nn.Module):
    """Mask R-CNN; of what it finds, the scores and boxes."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import maskrcnn_resnet50_fpn

        self.model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=224, max_size=224)

    def forward(self, images: Tensor) -> Any:
        return [(found["scores"], found["boxes"]) for found in self.model(list(images))]


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel

        self.model = UNet2DConditionModel(
            block_out_channels=(160, 320, 640, 640), layers_per_block=1, cross_attention_dim=768
        )

    def forward(self, latents: Tensor, times: Tensor, words: Tensor) -> Tensor:
        return self.model(latents, times, encoder_hidden_states=words, return_dict=False)[0]  # type: ignore[no-any-return]


def _noise(g: torch.Generator, size: Size) -> Inputs:
    return {
        "latents": torch.randn(size.batch, 4, size.length, size.length, generator=g),
        "times": torch.full((size.batch,), 1),
        "words": torch.randn(size.batch, 77, 768, generator=g),
    }


class _Graph(nn.Module):
    """A graph network of torch_geometric: features of nodes and pairs of nodes that are joined."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        from torch_geometric import nn as layers

        self.model = getattr(layers, kind)(in_channels=602, hidden_channels=64, num_layers=2, out_channels=41)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        return self.model(nodes, edges)  # type: ignore[no-any-return]


def _graph(g: torch.Generator, size: Size) -> Inputs:
    nodes = size.batch * size.length
    return {
        "nodes": torch.randn(nodes, 602, generator=g),
        "edges": torch.randint(0, nodes, (2, 8 * nodes), generator=g),
    }


def _sounds(g: torch.Generator, size: Size) -> Inputs:
    return {"input_features": torch.randn(size.batch, 80, size.length, generator=g)}


_WHISPER = {"d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}  # fmt: skip
_CLIP_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
              "vocab_size": 32000}  # fmt: skip


def _clip(g: torch.Generator, size: Size) -> Inputs:
    return {
        "input_ids": torch.randint(5, 32000, (size.batch, 77), generator=g),
        "pixel_values": torch.randn(size.batch, 3, 224, 224, generator=g),
        "attention_mask": torch.ones(size.batch, 77, dtype=torch.long),
    }


def _segments(g: torch.Generator, size: Size) -> Inputs:
    points = torch.rand(size.batch, 1, 2, 2, generator=g) * size.length
    return {"pixel_values": images(g, size)["images"], "input_points": points}


_SAM = {
    "vision_config": {"image_size": 256, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6,
                      "global_attn_indexes": [2, 5]},
    "prompt_encoder_config": {"image_size": 256, "patch_size": 16, "image_embedding_size": 16},
}  # fmt: skip
_LLAVA = {
    "text_config": {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4,
                    "num_attention_heads": 8, "vocab_size": 32000},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 384, "intermediate_size": 1536,
                      "num_hidden_layers": 4, "num_attention_heads": 6, "image_size": 224, "patch_size": 32},
    "image_token_id": 31999,
}  # fmt: skip
_LLAVA_PATCHES = (224 // 32) ** 2


def _talk(g: torch.Generator, size: Size) -> Inputs:
    words = torch.randint(5, 31000, (size.batch, size.length), generator=g)
    words[:, 4 : 4 + _LLAVA_PATCHES] = 31999
    return {
        "input_ids": words,
        "pixel_values": torch.randn(size.batch, 3, 224, 224, generator=g),
        "labels": torch.randint(5, 31000, (size.batch, size.length), generator=g),
    }


def _text(g: torch.Generator, size: Size) -> Inputs:
    return {"input_ids": torch.randint(5, 32000, (size.batch, size.length), generator=g)}


def _clicks(g: torch.Generator, size: Size) -> Inputs:
    return {
        "dense": torch.randn(size.batch, 512, generator=g),
        "bags": torch.randint(0, 20_000, (8, size.batch, size.length), generator=g),
    }


def _next_words(g: torch.Generator, size: Size) -> Inputs:
    return {key: torch.randint(0, 50257, (size.batch, size.length), generator=g) for key in ("input_ids", "labels")}


def _others() -> list[Entry]:
    """Models that are alike in nothing."""
    transform = functools.partial(functools.partial, transformer)

    def entry(name: str, build: Callable[[], nn.Module], inputs: Any, here: Size, there: Size, **words: Any) -> Entry:
        return Entry(name=name, build=build, inputs=inputs, small=here, upstream=there, **words)

    return [
        *(
            entry(f"basic_gnn_{name}", functools.partial(_Graph, kind), _graph, Size(1, 500), Size(1, 10_000))
            for name, kind in (("edgecnn", "EdgeCNN"), ("gcn", "GCN"), ("gin", "GIN"), ("sage", "GraphSAGE"))
        ),
        entry("dcgan", small.Discriminator, images, Size(16, 64), Size(256, 64)),
        entry("dlrm", small.Dlrm, _clicks, Size(256, 20), Size(2048, 100)),
        entry("functorch_dp_cifar10", _group_normed_resnet18, images, Size(16, 32), Size(64, 32)),
        entry("hf_Reformer", transform("ReformerForMaskedLM", {
            "is_decoder": False, "attn_layers": ["local"] * 4, "axial_pos_shape": (16, 16), "vocab_size": 32000,
        }), functools.partial(tokens, "ReformerForMaskedLM", {"vocab_size": 32000}), Size(1, 256), Size(8, 4096)),
        entry("hf_Whisper", transform("WhisperForAudioClassification", _WHISPER), _sounds, Size(1, 3000),
              Size(8, 3000)),
        entry("hf_distil_whisper", transform("WhisperForAudioClassification", {**_WHISPER, "encoder_layers": 2}),
              _sounds, Size(2, 3000), Size(8, 3000)),
        entry("hf_clip", transform("CLIPModel", {"text_config": _CLIP_TEXT, "vision_config": {
            "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}}),
              _clip, Size(2, 77), Size(32, 77)),
        entry("lennard_jones", small.LennardJones, _randn(offsets=(3,)), Size(1000, 1), Size(1000, 1)),
        entry("llava", transform("LlavaForConditionalGeneration", _LLAVA), _talk, Size(1, 128), Size(1, 1024)),
        entry("nanogpt", small.NanoGpt, _next_words, Size(1, 128), Size(1, 1024)),
        entry("nvidia_deeprecommender", small.Recommender, _randn(ratings=(20_000,)), Size(64, 1), Size(256, 1)),
        entry("pytorch_unet", small.UNet, images, Size(1, 160), Size(1, 640)),
        entry("sam", transform("SamModel", _SAM), _segments, Size(1, 256), Size(1, 256), training=False),
        entry("soft_actor_critic", small.Actor, _randn(states=(3,)), Size(256, 1), Size(256, 1),
              tolerance=(1e-4, 8e-2)),
        entry("stable_diffusion_text_encoder", transform("CLIPTextModel", _CLIP_TEXT), _text, Size(1, 77),
              Size(1, 77)),
        entry("stable_diffusion_unet", _Denoiser, _noise, Size(1, 32), Size(1, 128)),
        entry("tts_angular", small.SpeakerEncoder, _randn(frames=(50, 40)), Size(16, 1), Size(64, 1)),
    ]  # fmt: skip


def entries() -> list[Entry]:
    """All of the suite that this machine can run; detectors only where torchvision's own operators are.

    Raises:
        ImportError: a package is not there; it says which, and what installs it.
    """
    for package in ("torchvision", "timm", "diffusers", "torch_geometric"):
        load(package, "torchbench")
    made = _others()
    for name, batch in _TORCHVISION.items():
        tolerance = (1e-4, 8e-2) if name in _NOISY else None
        build = functools.partial(_of_torchvision, name)
        made.append(Entry(name, build, images, Size(2, 224), Size(batch, 224), tolerance=tolerance))
    for name, (_, batch, pixels) in _TIMM.items():
        made.append(Entry(name, functools.partial(_of_timm, name), images, Size(2, pixels), Size(batch, pixels)))
    for name, (kind, options, size) in _TRANSFORMERS.items():
        inputs = functools.partial(tokens, kind, options)
        module = functools.partial(transformer, kind, options)
        made.append(Entry(name, module, inputs, Size(1, _LENGTHS.get(name, 128)), size))
    if detectors_work():
        made.append(Entry("vision_maskrcnn", _Detector, images, Size(1, 224), Size(1, 800), training=False))
    return sorted(made, key=lambda entry: entry.name.lower())
