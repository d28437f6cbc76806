"""Weights of products in the layout that oneDNN's kernels like.

They pack a weight at every product, into blocks that a few registers hold. What does not change between products (a
parameter in inference) is packed once: at the second product that finds it as it was. Bit for bit the results are the
same.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anyxpu.onednn import capi
from anyxpu.onednn.capi import Arg
from anyxpu.onednn.engine import Engine, Stream
from anyxpu.onednn.primitive import Change, Executable, MemoryDesc, SignatureCache, keeps_copies
from anyxpu.shim import lib

Build = Callable[[MemoryDesc], Executable]
"""Makes the product whose weights have such a layout."""


class _Packing:
    """How weights of one layout are packed: alike for all products, so that a weight is packed once.

    Attributes:
        form: under which the copies are kept; no other packing's, not even of the same layout.
        change: the packing; None until a product decides.
    """

    _forms = itertools.count(1)

    def __init__(self) -> None:
        self.form = next(self._forms)
        self.change: Change | None = None
        self.lock = threading.Lock()


_PACKINGS: SignatureCache[_Packing] = SignatureCache(capacity=1024)


class PackedProduct:
    """A product of several rows, for when its weight does not change.

    Args:
        engine: where it runs.
        shape, dtype: of the weights.
        given: their layout.
        mode: how the product may be computed, one of capi.MATH_MODES; each may want another packing.
        build: makes the product for weights of another layout.
        what: for messages.
    """

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        dtype: torch.dtype,
        given: MemoryDesc,
        mode: str,
        build: Build,
        what: str,
    ) -> None:
        self.engine, self.shape, self.dtype, self.given = engine, shape, dtype, given
        self.build, self.what = build, what
        self.packing = _PACKINGS.get((engine.device, given.blob(), mode), _Packing)
        self.executable: Executable | None = None
        # Measured on the CPU device: 1.05 to 1.3 times as fast from 100 rows on, twice from 4 to 16. On a GPU, where
        # nothing was measured, a second copy of each weight costs more.
        self.worthwhile = keeps_copies() and torch.xpu.get_device_properties(engine.device).type == "cpu"

    def find(self, weight: Tensor, stream: Stream) -> tuple[Executable, Tensor] | None:
        """The product and its packed weight, which the caller keeps until it is enqueued.

        Args:
            weight: of the given layout.
            stream: stands for the device's current stream.

        Returns:
            None where the weight is to be read as it is: it may be changing, or oneDNN does not pack it.
        """
        token, copy, wanted = lib().find_copy(weight, self.packing.form)
        if copy is None and not wanted:
            return None
        executable = self.executable or self._decide()
        if executable is None:
            return None
        if copy is None:
            assert self.packing.change is not None
            try:
                copy = self.packing.change.make(weight, stream, token)
            except torch.OutOfMemoryError:
                return None
        return executable, copy

    def _decide(self) -> Executable | None:
        packing = self.packing
        with packing.lock:
            wanted = packing.change.wanted if packing.change else MemoryDesc.any(self.shape, self.dtype)
            try:
                executable = self.build(wanted)
            except capi.Unavailable:
                self.worthwhile = False
                return None
            chosen = executable.layout(Arg.WEIGHTS)
            if chosen == self.given or executable.is_reference:
                self.worthwhile = False
                return None
            if packing.change is None:
                packing.change = Change(self.engine, self.given, chosen, self.what, packing.form)
        self.executable = executable
        return executable
