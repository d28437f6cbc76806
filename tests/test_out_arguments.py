"""``out=`` as the CPU has it: resized with torch's warning or without, its strides kept, its type taken or refused.

Operators of torch's database; a few of them every day, all with ``./run test --full``.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.not_simulated("it compares with the CPU"),
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
]

EVERYDAY = ("abs", "add", "ceil", "cumsum", "linspace", "neg", "nn.functional.gelu", "round", "sum", "trunc", "where")
NOT_HERE = re.compile("empty|sparse|jagged")
# Given a larger `out`, these warn on xpu that it is resized and not on the CPU, or take one that they do not write.
LARGER = {"addbmm", "nn.functional.logsigmoid", "narrow_copy", "multinomial", "native_batch_norm",
         "_native_batch_norm_legit"}  # fmt: skip
CASES = [op for op in op_db if op.supports_out and torch.float32 in op.dtypes and not NOT_HERE.search(op.name)]
if not os.environ.get("ANYXPU_FULL"):
    CASES = [op for op in CASES if op.name in EVERYDAY]


def on(device: str, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(device)
    if isinstance(x, (list, tuple)):
        return type(x)(on(device, each) for each in x)
    if isinstance(x, dict):
        return {key: on(device, value) for key, value in x.items()}
    return device if x == "cpu" else x


def outs(kind: str, results: tuple[torch.Tensor, ...], device: str) -> list[torch.Tensor]:
    def one(t: torch.Tensor) -> torch.Tensor:
        shape, dtype = tuple(t.shape), t.dtype
        if kind == "larger":
            shape = (*shape, 2)
        elif kind == "empty":
            shape = (0,)
        elif kind == "strided":
            turned = torch.ones((*shape[::-1], 2), dtype=dtype, device=device)[..., 0]
            return turned.permute(*range(len(shape) - 1, -1, -1))
        elif kind == "wrong type":
            dtype = torch.int64 if dtype.is_floating_point or dtype.is_complex else torch.bool
        else:
            dtype = torch.complex128 if dtype.is_complex else torch.float64
        return torch.ones(shape, dtype=dtype, device=device)

    return [one(t) for t in results]


def outcome(op: Any, sample: Any, device: str, kind: str) -> tuple[Any, ...] | None:
    """Which error, whether resizing was said, the shapes and, of strided ones, the strides afterwards."""
    args, kwargs = (on(device, sample.input), *on(device, tuple(sample.args))), on(device, sample.kwargs)
    made = op(*args, **kwargs)
    results = made if isinstance(made, tuple) else (made,)
    if not all(isinstance(t, torch.Tensor) for t in results):
        return None
    out = outs(kind, results, device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            op(*args, **kwargs, out=tuple(out) if isinstance(made, tuple) else out[0])
        except Exception as error:
            return (type(error).__name__,)
    said = any("resized" in str(w.message) or "Resizing" in str(w.message) for w in caught)
    shapes = [tuple(t.shape) for t in out]
    return said, shapes, [t.stride() for t in out] if kind == "strided" else None


@pytest.mark.parametrize("op", CASES, ids=lambda op: f"{op.name}-{op.variant_test_name}".rstrip("-"))
def test_out_is_treated_as_the_cpu_does(op):
    try:
        samples = list(op.sample_inputs("cpu", torch.float32))[:2]
    except (RuntimeError, ImportError) as error:
        pytest.skip(f"no samples here: {error}")
    different = {}
    for i, sample in enumerate(samples):
        for kind in ("larger", "empty", "strided", "wrong type", "wide type"):
            if kind == "larger" and op.name in LARGER:
                continue
            try:
                want = outcome(op, sample, "cpu", kind)
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                continue  # a sample that the CPU refuses
            got = outcome(op, sample, "xpu", kind)
            if got != want:
                different[i, kind] = want, got
    assert not different
