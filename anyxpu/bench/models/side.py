"""One side of a comparison: a model on a device, eager or compiled, in inference or training."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyxpu.bench.models.accuracy import on_cpu
from anyxpu.bench.models.entry import Entry, Inputs, cast, scalar, tensors_of

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "amp": torch.float32}
"""What weights are of; ``amp`` runs them under autocast to bfloat16."""

_LEARNING_RATE = 0.01  # upstream's


class Side:
    """Calling it runs the model once; training, a whole step."""

    def __init__(
        self,
        entry: Entry,
        module: nn.Module,
        inputs: Inputs,
        *,
        device: str,
        dtype: str,
        training: bool,
        compiled: bool,
    ):
        kind = torch.float64 if dtype == "f64" else DTYPES[dtype]
        self._entry, self._training = entry, training
        self.module = copy.deepcopy(module).train(training).to(device, kind)
        self._inputs = cast(inputs, kind, device)
        self._autocast: Callable[[], Any] = (
            (lambda: torch.autocast(device, torch.bfloat16)) if dtype == "amp" else contextlib.nullcontext
        )
        self._optimizer = torch.optim.SGD(self.module.parameters(), lr=_LEARNING_RATE) if training else None
        forward = self._loss if training else self._forward
        self._run = torch.compile(forward, dynamic=False) if compiled else forward

    def _forward(self) -> Any:
        return self.module(**self._inputs)

    def _loss(self) -> tuple[Tensor, Any]:
        output = self.module(**self._inputs)
        if self._entry.loss is not None:
            return self._entry.loss(output, self._inputs), output
        loss = getattr(output, "loss", None)
        return (loss if loss is not None else scalar(output)), output

    def __call__(self) -> Any:
        if self._optimizer is None:
            with torch.no_grad(), self._autocast():
                return self._run()
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss, output = self._run()
        loss.backward()
        self._optimizer.step()
        return loss, output

    def results(self, double: bool = False) -> Any:
        """Of one run, on the CPU: what ``forward`` returned; training, the loss, gradients and updated weights too."""
        if not self._training:
            return on_cpu(tensors_of(self()), double)
        loss, output = self()
        return on_cpu(
            {
                "output": [t for t in tensors_of(output) if t.is_floating_point()],
                "loss": loss,
                "gradients": {n: p.grad for n, p in self.module.named_parameters() if p.grad is not None},
                "weights": dict(self.module.named_parameters()),
            },
            double,
        )
