"""Samples of torch's operator database on xpu and on the CPU, and what their comparison is."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import anyxpu.ops
from anyxpu import simulate

BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-9}
OTHERS = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def operators(names: Collection[str]) -> list[Any]:
    return [op for op in op_db if op.name in names]


def name(op: Any) -> str:
    return f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}"


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for each in value for t in tensors(each)] if isinstance(value, (list, tuple)) else []


def steps(t: torch.Tensor) -> list[int]:
    """Strides of dimensions that have more than one element."""
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]


def near(got: Any, want: Any, what: object, bound: float | None = None) -> None:
    """Of one type and shape, and of equal values but for rounding, unless nothing is computed."""
    for one, other in zip(tensors(got), tensors(want), strict=True):
        assert (one.device.type, one.dtype, one.shape) == ("xpu", other.dtype, other.shape), what
        most = BOUNDS.get(other.dtype, 0) if bound is None else bound
        if not simulate.active():
            torch.testing.assert_close(
                one.detach().cpu(), other.detach(), rtol=most, atol=most, equal_nan=True,
                msg=lambda m: f"{what}: {m}",
            )  # fmt: skip


def types(op: Any, full: bool) -> list[torch.dtype]:
    there = [d for d in OTHERS if d in op.supported_dtypes("cpu")]
    if not torch.xpu.get_device_properties().has_fp64:
        there = [d for d in there if d is not torch.float64]
    first = [torch.float32] if torch.float32 in op.supported_dtypes("cpu") else []
    return first + (there if full else random.sample(there, min(1, len(there))))


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("xpu").requires_grad_(value.requires_grad)
    return torch.device("xpu") if value == "cpu" or value == torch.device("cpu") else value


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.double() if narrow else value


def _gradients(results: Any, leaves: list[torch.Tensor], grads: Iterator[torch.Tensor]) -> list[Any]:
    made = [(t, next(grads)) for t in tensors(results) if t.requires_grad]
    return list(torch.autograd.grad([t for t, _ in made], leaves, [g for _, g in made], allow_unused=True))


def check(
    op: Any, full: bool, allowed: Collection[str] = (), most: int = 60, of_bytes: Collection[str] = ()
) -> None:  # fmt: skip
    """An operator's samples: results, and gradients of float32; nothing with elements on the host but ``allowed``.

    most: samples of a type, but in full runs. of_bytes: allowed too, of uint8 alone.
    """
    compared = 0
    for dtype in types(op, full):
        graded = dtype is torch.float32 and op.supports_autograd
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=graded))
        for sample in samples if full else random.sample(samples, min(most, len(samples))):
            here, exact = sample.transform(_moved), sample.transform(_wide)
            anyxpu.ops.reset_counters()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = op(exact.input, *exact.args, **exact.kwargs)
                got = op(here.input, *here.args, **here.kwargs)
            if exact.input is not sample.input:
                want = tuple(t.to(dtype) if t.dtype is torch.float64 else t for t in tensors(want))
                got = tuple(tensors(got))
            near(got, want, (op.name, dtype, sample))
            compared += 1
            leaves = [t for t in tensors([sample.input, *sample.args]) if t.requires_grad]
            ours = [t for t in tensors([here.input, *here.args]) if t.requires_grad]
            if graded and leaves and all(math.isfinite(t.detach().abs().sum()) for t in tensors(want)):
                grads = [torch.randn_like(t) for t in tensors(want) if t.requires_grad]
                should = _gradients(want, leaves, iter(grads))
                found = _gradients(got, ours, iter([g.to("xpu") for g in grads]))
                near(
                    [t for t in found if t is not None],
                    [t for t in should if t is not None],
                    (op.name, "gradient", sample),
                )
            hosted = {n for n, ways in anyxpu.ops.counters().items() if "host" in ways} - set(allowed)
            if dtype is torch.uint8:
                hosted -= set(of_bytes)
            whole = all(t.numel() for t in tensors([here.input, *here.args, got]))
            assert not hosted or not whole or dtype is torch.bool, (hosted, sample)
    assert compared
