"""The models of the demo: built from their public configurations with seeded random weights, for no hub is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SEED = 20_26
_CLASSES = 1000


@dataclass(frozen=True)
class Model:
    """One model and what the demo does with it.

    Attributes:
        name: as the table and ``--models`` spell it.
        build: makes the module on the CPU in float32; reads torch's global generator, which the caller seeds.
        batch: makes a batch from a generator: keyword arguments of ``forward``; a label is under "labels".
        output: picks the tensor to compare out of what ``forward`` returns.
        inference: is it run in inference?
        optimizer: makes the optimizer for the training steps; None if it is not trained.
        loss: from what ``forward`` returned and the batch to a scalar.
        sizes: the batch in words, for the report.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], dict[str, Tensor]]
    output: Callable[[Any], Tensor]
    sizes: str
    inference: bool = True
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    loss: Callable[[Any, dict[str, Tensor]], Tensor] | None = None

    def make(self) -> nn.Module:
        """The module with its seeded weights, float32, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.build()

    def make_batch(self) -> dict[str, Tensor]:
        """The seeded batch, on the CPU; floating tensors are float32."""
        return self.batch(torch.Generator().manual_seed(SEED))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    # Dropout off: a step that draws random numbers cannot be compared with another device's.
    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))


def _resnet(depths: tuple[int, ...], layer_type: str, *, still: bool = False, widths: tuple[int, ...]) -> nn.Module:
    """A ResNet; ``still`` starts every residual branch at zero, as training usually does."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = ResNetConfig(depths=list(depths), hidden_sizes=list(widths), layer_type=layer_type)
    sizes.num_labels = _CLASSES
    module: nn.Module = ResNetForImageClassification(sizes)
    for block in module.modules():
        if still and type(block).__name__ == "ResNetBasicLayer":
            nn.init.zeros_(block.layer[-1].normalization.weight)  # type: ignore[union-attr, index]
    return module


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    sizes.num_labels = _CLASSES
    return ViTForImageClassification(sizes)


def _tokens(
    g: torch.Generator, *, vocabulary: int, batch: int, length: int, name: str = "input_ids"
) -> dict[str, Tensor]:
    return {name: torch.randint(vocabulary, (batch, length), generator=g)}


def _images(g: torch.Generator, *, batch: int, size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size, generator=g)}


def _labelled_tokens(g: torch.Generator, **sizes: Any) -> dict[str, Tensor]:
    tokens = _tokens(g, **sizes)
    return {**tokens, "labels": tokens["input_ids"]}


def _labelled_images(g: torch.Generator, *, batch: int, size: int) -> dict[str, Tensor]:
    return {**_images(g, batch=batch, size=size), "labels": torch.randint(_CLASSES, (batch,), generator=g)}


def _cross_entropy(output: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output.logits, batch["labels"])


def _next_token(output: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = output.logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            name="bert-base",
            build=_bert,
            batch=functools.partial(_tokens, vocabulary=30522, batch=2, length=128),
            output=lambda out: out.last_hidden_state,
            sizes="2 x 128 tokens",
        ),
        Model(
            name="gpt2-small",
            build=_gpt2,
            batch=functools.partial(_labelled_tokens, vocabulary=50257, batch=2, length=64),
            output=lambda out: out.logits,
            sizes="2 x 64 tokens",
            optimizer=functools.partial(torch.optim.AdamW, lr=1e-4),
            loss=_next_token,
        ),
        Model(
            name="resnet50",
            build=functools.partial(_resnet, (3, 4, 6, 3), "bottleneck", widths=(256, 512, 1024, 2048)),
            batch=functools.partial(_images, batch=2, size=224),
            output=lambda out: out.logits,
            sizes="2 x 3 x 224 x 224",
        ),
        Model(
            name="vit-small",
            build=_vit,
            batch=functools.partial(_images, batch=2, size=224),
            output=lambda out: out.logits,
            sizes="2 x 3 x 224 x 224",
        ),
        # Residual branches that start at zero, small images and a small step, all
        # on purpose. A ReLU whose input lies within rounding of zero may switch sides between two correct float32
        # computations, and one switched unit moves the whole gradient by 1e-3 (seen between the CPU's own float32
        # and float64 with most seeds, without these three). With them no seed of several showed more than 2e-6.
        Model(
            name="resnet18",
            build=functools.partial(_resnet, (2, 2, 2, 2), "basic", still=True, widths=(64, 128, 256, 512)),
            batch=functools.partial(_labelled_images, batch=8, size=64),
            output=lambda out: out.logits,
            sizes="8 x 3 x 64 x 64",
            inference=False,
            optimizer=functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
            loss=_cross_entropy,
        ),
    )
}
