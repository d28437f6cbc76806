"""Operators of torch's database with one tensor of another shape: xpu answers, or refuses, as the CPU does.

A tensor loses or gains a dimension, grows along its first or last one, or becomes empty. Mostly that is an error, and
then it must be one that says so: not one of Python's own out of the middle of an operator of ours, nor an answer.
"""

from __future__ import annotations

import random
import re
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = [
    pytest.mark.not_simulated("compares results"),
    pytest.mark.rotates(9),
]

_DRAWN = "bernoulli cauchy dropout empty exponential fractional geometric multinomial normal rand resize_ rrelu uniform"
# The CPU's own code on both sides.
_HOSTS = "cholesky fft geqrf istft linalg lobpcg logdet lu ormqr pca pinverse qr sparse stft svd svd_lowrank"
NOT_COMPARED = {
    "_segment_reduce": "the CPU's reads beyond what it was given, and dies",
    "batch_norm": "the CPU's reads weights beyond their end; here they are refused",
    "tensor_split": "wants its sections on the CPU, as on CUDA",
    "addr": "composed, as upstream: one more dimension broadcasts",
    "nn.functional.scaled_dot_product_attention": "some samples drop weights, and the CPU's takes values of no batch",
    "nn.functional.multi_head_attention_forward": "drops weights",
    "nn.functional.pixel_unshuffle": "the CPU's leaves what is empty in its shape",
    "kthvalue": "of equal elements either may be named",
    "histogram": "bins that are not sorted count as they like",
    "max_pool2d": "a window of padding alone has no index: here -1",
    "_scaled_mm": "8 bits are rounded in another order; test_scaled.py",
    "addmv": "the CPU's gives one element for a matrix of no rows",
}
PYTHONS_OWN = (
    "out of range",
    "unpack",
    "NoneType",
    "list index",
    "unsupported operand",
    "has no attribute",
    "argument",
)
OPERATORS = {
    f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op
    for op in op_db
    if op.dtypes
    and not any(w in op.name for w in (*_DRAWN.split(), *NOT_COMPARED))
    and not set(re.split(r"[._]", op.name)) & set(_HOSTS.split())
}


def other_shapes(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if t.dim() and t.numel():
        yield "a dimension less", t.select(0, 0)
        yield "one element of a dimension less", t.reshape(-1)[:1].reshape([1] * (t.dim() - 1))
        yield "longer", torch.cat([t, t[:1]])
        yield "wider", torch.cat([t, t.narrow(-1, 0, 1)], -1)
    if t.dim():
        yield "empty", t[:0]
    if t.numel():
        yield "a number", t.reshape(-1)[0]
    yield "a dimension more", t[None]


def places(given: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    if isinstance(given, torch.Tensor):
        yield at, given
    elif isinstance(given, (list, tuple)):
        for i, each in enumerate(given):
            yield from places(each, (*at, i))


def replaced(given: Any, at: tuple[int, ...], by: torch.Tensor) -> Any:
    if not at:
        return by
    return type(given)(replaced(each, at[1:], by) if i == at[0] else each for i, each in enumerate(given))


def on(device: str, given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given.detach().clone().to(device)
    if type(given) in (list, tuple):
        return type(given)(on(device, each) for each in given)
    return {k: on(device, v) for k, v in given.items()} if isinstance(given, dict) else given


def outcome(op: Any, given: Any, keywords: Any, device: str) -> Any:
    """What the operator returns, or the exception it raises."""
    try:
        found = op(*on(device, given), **on(device, keywords))
        return [t.cpu() for _, t in places(found)]
    except Exception as error:
        return error


def difference(ours: Any, theirs: Any) -> str | None:
    if isinstance(ours, Exception) != isinstance(theirs, Exception):
        return f"the CPU: {theirs!r}; here: {ours!r}"[:400]
    if isinstance(ours, Exception):
        plain = type(ours).__module__ == "builtins" and not isinstance(ours, RuntimeError)
        if plain and type(ours) is not type(theirs) and any(w in str(ours) for w in PYTHONS_OWN):
            return f"Python's own error: {ours!r}; the CPU's: {theirs!r}"[:400]
        return None
    for mine, other in zip(ours, theirs, strict=True):
        if (mine.shape, mine.dtype) != (other.shape, other.dtype):
            return f"{other.dtype} {tuple(other.shape)} became {mine.dtype} {tuple(mine.shape)}"
        wide = torch.float32 if mine.dtype.itemsize == 1 and mine.is_floating_point() else mine.dtype
        close = torch.allclose(mine.to(wide), other.to(wide), rtol=1e-3, atol=1e-4, equal_nan=True)
        if not close:
            return "other numbers"
    return None


@pytest.mark.rotates(5)
@pytest.mark.parametrize("name", OPERATORS)
def test_another_shape_is_answered_or_refused_as_the_cpu_does(xpu, name):
    op = OPERATORS[name]
    dtype = torch.float32 if torch.float32 in op.dtypes else sorted(op.dtypes, key=str)[0]
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    wrong, tried = [], 0
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"{name} did not return"))
    signal.alarm(300)
    try:
        for sample in random.Random(0).sample(samples, min(3, len(samples))):
            given = (sample.input, *sample.args)
            for at, t in list(places(given))[:3]:
                for what, other in other_shapes(t) if t.layout is torch.strided else ():
                    changed = replaced(given, at, other)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        theirs = outcome(op.op, changed, sample.kwargs, "cpu")
                        ours = outcome(op.op, changed, sample.kwargs, "xpu")
                    tried += 1
                    if (found := difference(ours, theirs)) is not None:
                        wrong.append(f"argument {at} {what}, {tuple(t.shape)} to {tuple(other.shape)}: {found}")
    finally:
        signal.alarm(0)
    assert not wrong, "\n".join([f"{len(wrong)} of {tried}", *wrong])


def test_batch_norm_refuses_weights_of_another_length(xpu):
    x, mean, var = (torch.rand(n, device="xpu") for n in ((2, 3, 4), (3,), (3,)))
    for training in (False, True):
        with pytest.raises(ValueError, match=r"weight of 3 elements, not of shape \(2,\)"):
            torch.native_batch_norm(x, torch.rand(2, device="xpu"), None, mean, var, training, 0.1, 1e-5)
    assert torch.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5)[0].shape == x.shape


def test_unfolds_gradient_of_another_rank_is_refused_in_torchs_words(xpu):
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\]"):
        torch.ops.aten.unfold_backward(torch.rand(2, 2, device="xpu"), [4, 3, 3], 2, 2, 1)
