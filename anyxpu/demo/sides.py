"""The sides of one row of the demo: the same model on xpu through torch.compile, on the CPU through it, and eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyxpu.demo.models import Model

Batch = dict[str, Tensor]


def cast(batch: Batch, dtype: torch.dtype, device: str) -> Batch:
    """The batch on ``device``; its floating tensors in ``dtype``, its indices as they are."""
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in batch.items()}


def inputs_of(batch: Batch) -> Batch:
    """What ``forward`` takes: the batch without its labels."""
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


class Inference:
    """One side that runs ``forward`` without gradients.

    Calling it returns the tensor that the model's row compares. ``module`` is copied; the original stays.
    """

    def __init__(self, model: Model, module: nn.Module, batch: Batch, dtype: torch.dtype, device: str, compiled: bool):
        self._module = copy.deepcopy(module).eval().to(device=device, dtype=dtype)
        self._batch = inputs_of(cast(batch, dtype, device))
        self._output = model.output
        self._forward: Callable[..., Any] = torch.compile(self._module, dynamic=False) if compiled else self._module

    @torch.no_grad()
    def __call__(self) -> Tensor:
        return self._output(self._forward(**self._batch))


class Training:
    """One side that trains: calling it does one whole step (forward, backward, optimizer) and returns the loss.

    Compiled, the loss and its backward are one graph each and the optimizer's step another, so that nothing of a
    step runs operator by operator.
    """

    def __init__(self, model: Model, module: nn.Module, batch: Batch, dtype: torch.dtype, device: str, compiled: bool):
        assert model.optimizer is not None and model.loss is not None
        self.module = copy.deepcopy(module).train().to(device=device, dtype=dtype)
        self._batch = cast(batch, dtype, device)
        self._optimizer = model.optimizer(self.module.parameters())
        self._loss = model.loss
        self._forward: Callable[[], Tensor] = self._forward_loss
        self._update: Callable[[], Any] = self._optimizer.step
        if compiled:
            self._forward = torch.compile(self._forward_loss, dynamic=False)
            self._update = torch.compile(self._optimizer.step, dynamic=False)

    def _forward_loss(self) -> Tensor:
        return self._loss(self.module(**inputs_of(self._batch)), self._batch)

    def backward(self) -> Tensor:
        """Forward and backward; leaves the gradients on the parameters and returns the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._forward()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """The optimizer's step with the gradients that :meth:`backward` left."""
        self._update()

    def __call__(self) -> Tensor:
        loss = self.backward()
        self.update()
        return loss

    def gradients(self) -> Iterator[Tensor]:
        """The gradient of every parameter that has one, in the module's order."""
        return (p.grad for p in self.module.parameters() if p.grad is not None)

    def parameters(self) -> Iterator[Tensor]:
        """Every parameter, in the module's order."""
        return iter(self.module.parameters())
