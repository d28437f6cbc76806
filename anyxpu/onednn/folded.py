"""Batch norms in inference that are part of the convolution before them: of its weights and its bias.

Frozen graphs have them folded by Inductor. Here they are folded while a graph runs, and what comes of it is kept in the
layout that the primitive wants, in the place of the weights alone, until somebody writes to anything that it was made
of. Folding at every call, or oneDNN's own operators with a number for each channel, would cost more than the norm does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.onednn import engine
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.convolution import FORWARD, Builder, Problem
from anyxpu.onednn.primitive import form, run
from anyxpu.shim import lib

# A bias after weights of any size: as far from their end as vectors are long.
_ALIGNED = 64


@dataclass(frozen=True)
class Norm:
    """``(x - mean) / sqrt(variance + eps) * scale + shift`` along the channels of ``(batch, channels, *spatial)``.

    Attributes:
        mean, variance, scale, shift: one number a channel, floating.
    """

    mean: Tensor
    variance: Tensor
    scale: Tensor | None
    shift: Tensor | None
    eps: float

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for t in (self.mean, self.variance, self.scale, self.shift) if t is not None)

    def key(self) -> tuple[Any, ...]:
        """What two norms of the same kind have in common."""
        four = (self.mean, self.variance, self.scale, self.shift)
        return (self.eps, *(None if t is None else (t.dtype, t.shape, t.stride()) for t in four))

    def apply(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.scale, self.shift, False, 0.0, self.eps)

    def factors(self) -> tuple[Tensor, Tensor]:
        """What a channel is multiplied with, and what is added to it after that; float32."""
        factor = torch.rsqrt(self.variance.float() + self.eps)
        if self.scale is not None:
            factor = factor * self.scale.float()
        added = -self.mean.float() * factor
        return factor, added if self.shift is None else added + self.shift.float()


class Folded:
    """A convolution's step whose weights and bias a norm is folded into.

    Args:
        problem: the convolution, with a bias, and what follows it.
        strides: of the operands, the weight as it is before the norm among them.
        norm: one of those that it is to serve.

    Attributes:
        step: takes the source, then what :meth:`find` gives, then what follows.
    """

    def __init__(self, problem: Problem, strides: dict[Arg, tuple[int, ...]], norm: Norm) -> None:
        given = {**strides, Arg.BIAS: (1,)}
        self.step = Builder(problem).step(FORWARD, given)
        inputs = [arg for arg in (Arg.SRC, Arg.WEIGHTS, Arg.BIAS, Arg.FIRST_POST_OP) if arg in given]
        place = inputs.index(Arg.WEIGHTS)
        self.change, self.step.before[place] = self.step.before[place], None
        wanted = self.step.executable.layout(Arg.WEIGHTS)
        self.dtype, self.shape, self.strides = problem.dtype, problem.weight, strides[Arg.WEIGHTS]
        self.weight_bytes, self.channels = wanted.nbytes, problem.result[1]
        facts = repr((norm.key(), self.shape, self.strides, self.dtype)).encode()
        self.form = form(b"folded", facts, wanted.blob())

    def find(self, weight: Tensor, bias: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor] | None:
        """Weights, as bytes, and bias with the norm in them; to be kept until their reader is enqueued.

        Returns:
            None where the norm is to follow the convolution, as nothing is kept of something that they are made of.
        """
        if self.form is None:
            return None
        parts = (weight, *norm.tensors, *(() if bias is None else (bias,)))
        answers = [lib().find_copy(part, self.form) for part in parts]
        copies = [copy for _, copy, _ in answers if copy is not None]
        # One of these may have been folded with other ones in the meantime, as models share weights and norms.
        if len(copies) == len(parts) and len({copy.data_ptr() for copy in copies}) == 1:
            return self._parts(copies[0])
        if not all(token for token, *_ in answers):
            return None
        try:
            made = self._fold(weight, bias, norm)
        except torch.OutOfMemoryError:
            return None
        if all(wanted for *_, wanted in answers):  # as they were when they were seen last
            for part, (token, *_) in zip(parts, answers, strict=True):
                lib().keep_copy(part, self.form, token, made)
        return self._parts(made)

    def _parts(self, made: Tensor) -> tuple[Tensor, Tensor]:
        return made, made[self._behind :].view(self.dtype)

    @property
    def _behind(self) -> int:
        """Where the bias begins."""
        return -(-self.weight_bytes // _ALIGNED) * _ALIGNED

    def _fold(self, weight: Tensor, bias: Tensor | None, norm: Norm) -> Tensor:
        factor, added = norm.factors()
        if bias is not None:
            added = added + bias.float() * factor
        made = torch.empty(self._behind + self.channels * self.dtype.itemsize, dtype=torch.uint8, device=weight.device)
        self._parts(made)[1].copy_(added)
        whole = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=weight.device)
        whole.copy_(weight.float() * factor.view(-1, *(1 for _ in self.shape[1:])))
        if self.change is None:
            made[: self.weight_bytes].view(self.dtype).copy_(whole.as_strided((whole.numel(),), (1,)))
        else:
            device = weight.device
            stream = engine.stream(device.index)
            run(self.change.primitive, stream, device, whole.data_ptr(), made.data_ptr())
        return made
