"""Where the suites' models come from: packages that are imported when a suite is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyxpu.bench.models.entry import Inputs, Size

# With the torch that is there: torchvision wants one exactly, and pip would bring another for its newest.
INSTALL = f'pip install "anyxpu[models]" torch=={torch.__version__.partition("+")[0]}'
_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept: list[torch.library.Library] = []  # definitions end with their Library


def load(package: str, suite: str) -> Any:
    """The package, imported.

    Raises:
        ImportError: it is not there or fails; it names the suite and what installs it.
    """
    try:
        _prepare_torchvision()  # which the others import where it is installed
        return importlib.import_module(package)
    except (ImportError, RuntimeError, OSError) as error:
        raise ImportError(f"the suite {suite} needs {package} ({error}). To have it: {INSTALL}") from error


def _prepare_torchvision() -> None:
    """Let torchvision be imported where its C++ operators cannot be loaded: PyPI's wheel beside a CPU build of torch.

    Its import describes shapes of two operators, which then have to be there. Nothing that calls them works there.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _kept or detectors_work():
        return
    kept = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        kept.define(f"{name}{_NMS}")
    _kept.append(kept)


def detectors_work() -> bool:
    """Whether torchvision's C++ operators are there, which its detectors call."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    for library in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
    return hasattr(torch.ops.torchvision, "roi_align")


class Images(nn.Module):
    """A model whose first argument is named ``images``, whatever its author named it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(images)


def images(g: torch.Generator, size: Size, channels: int = 3) -> Inputs:
    """Square images of ``size.length`` pixels a side."""
    return {"images": torch.randn(size.batch, channels, size.length, size.length, generator=g)}


def transformer(kind: str, options: dict[str, Any]) -> nn.Module:
    """A model of transformers from its configuration, which drops nothing at random and returns no cache.

    A model that drops at random differs from every other side; a cache is no part of a forward call's result.

    Args:
        kind: its class.
        options: of its configuration.
    """
    found = getattr(load("transformers", "hf"), kind)
    config = found.config_class(**options)
    parts = ("encoder", "decoder", "text_config", "vision_config")
    for each in (config, *(getattr(config, part) for part in parts if hasattr(config, part))):
        for key, value in vars(each).items():
            if "dropout" in key or key.endswith(("pdrop", "layerdrop")):
                setattr(each, key, 0.0 if isinstance(value, float) else value)
        if hasattr(each, "use_cache"):
            each.use_cache = False
    model = found(config)
    # transformers takes a loss by the class's name, and warns where that says nothing, which breaks a graph.
    if kind.endswith("LMHeadModel"):
        model.loss_type = "ForCausalLM"
    return model  # type: ignore[no-any-return]


def tokens(kind: str, options: dict[str, Any], g: torch.Generator, size: Size) -> Inputs:
    """What a language model of transformers is given: tokens, and the labels that its head wants."""
    config = getattr(load("transformers", "hf"), kind).config_class(**options)
    vocabulary = options.get("vocab_size") or config.vocab_size
    shape = (size.batch, size.length)

    def some() -> Tensor:
        return torch.randint(5, vocabulary, shape, generator=g)

    made: Inputs = {"input_ids": some()}
    if kind.endswith("ForConditionalGeneration"):
        made["decoder_input_ids"] = some()
    if kind.startswith("LayoutLM"):
        made["bbox"] = torch.zeros((*shape, 4), dtype=torch.long)
    if kind.endswith("QuestionAnswering"):
        made["start_positions"] = torch.randint(0, size.length, (size.batch,), generator=g)
        made["end_positions"] = torch.randint(0, size.length, (size.batch,), generator=g)
    elif kind.endswith("SequenceClassification"):
        made["labels"] = torch.randint(0, 2, (size.batch,), generator=g)
    else:
        made["labels"] = some()
    return made
