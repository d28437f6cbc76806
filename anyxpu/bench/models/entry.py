"""One model of the yardstick: how it is built, what it is given, and how its results are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SEED = 1337
"""Of weights and inputs, on every side."""

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Of the input: examples, and what one of them has (tokens, or pixels a side)."""

    batch: int
    length: int


@dataclass(frozen=True)
class Entry:
    """A model as PyTorch's dynamo benchmark names it.

    Attributes:
        name: PyTorch's.
        build: makes the module on the CPU, float32, from a configuration; reads torch's global generator.
        inputs: keyword arguments of ``forward`` from a generator and a size; labels are among them where ``forward``
            makes a loss of them.
        small: the size that two cores and 24 GiB do in seconds.
        upstream: PyTorch's own, asked for by ``--full``.
        loss: a scalar of what ``forward`` returned; None: its ``loss``, or the mean of its first tensor.
        tolerance: that upstream grants this model in float32, where that is not the suite's: (inference, training).
        cosine: is it one of upstream's noisy models, judged by cosine similarity?
        training: is it trained upstream?
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator, Size], Inputs]
    small: Size
    upstream: Size
    loss: Callable[[Any, Inputs], Tensor] | None = None
    tolerance: tuple[float, float] | None = None
    cosine: bool = False
    training: bool = True

    def make(self) -> nn.Module:
        """The module with seeded weights, float32, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.build()

    def make_inputs(self, full: bool) -> Inputs:
        """The seeded inputs, on the CPU; floating tensors are float32."""
        return self.inputs(torch.Generator().manual_seed(SEED), self.upstream if full else self.small)


def cast(inputs: Any, dtype: torch.dtype, device: str) -> Any:
    """The inputs on ``device``; floating tensors in ``dtype``, all else as it is."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else inputs.dtype)
    if isinstance(inputs, dict):
        return {key: cast(value, dtype, device) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(cast(value, dtype, device) for value in inputs)
    return inputs


def scalar(output: Any) -> Tensor:
    """What is minimized where a model has no loss of its own: the mean of all that it returns in floating point."""
    tensors = [t for t in tensors_of(output) if t.is_floating_point()]
    total: Tensor = sum((t.float().mean() for t in tensors), torch.zeros((), device=tensors[0].device))
    return total / len(tensors)


def tensors_of(output: Any) -> list[Tensor]:
    """Every tensor in what ``forward`` returned, in order; caches of keys and values are left out."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        return [t for key, value in output.items() if key not in _CACHES for t in tensors_of(value)]
    if isinstance(output, (list, tuple)):
        return [t for value in output for t in tensors_of(value)]
    return []


_CACHES = ("past_key_values", "cache_params", "encoder_last_hidden_state")
