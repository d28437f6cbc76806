"""Operators by torch's own database, with arguments, gradients and results that lie in memory in every way.

The same call on the CPU, with the same layouts, is the reference for values; of a form of ``out=`` it is the operator's
own result, because some of ATen's CPU kernels write an ``out`` of unusual strides wrongly, or past its end.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils._pytree import tree_leaves

from anyxpu.shim import lib
from tests.layouts import LAYOUTS, there

pytestmark = pytest.mark.not_simulated("it compares values")

DEVICE = "xpu"
NOT_HERE = re.compile("mkldnn|jagged|nested|sparse", re.IGNORECASE)
RANDOM = re.compile(
    r"rand|dropout|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|empty|poisson|rrelu|"
    r"fractional_max_pool|multi_head_attention"
)
NOT_UNIQUE = re.compile(r"linalg\.(eig|svd|qr)|svd|lowrank|geqrf|householder")
# Of storages and devices, not of elements; `tensor_split` wants its indices on the CPU, as on every device.
OF_PLACES = {"as_strided", "as_strided_copy", "as_strided_scatter", "to", "tensor_split"}


@pytest.fixture(params=("shared", "copied"), autouse=True)
def memory(request):
    """Twice: over the device's own memory, and through copies as on a device whose memory the host cannot reach."""
    lib().set_host_copies(request.param == "copied")
    yield request.param
    lib().set_host_copies(False)


def operators(dtype: torch.dtype) -> list:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    found = (op for op in op_db if dtype in op.dtypes and op.name not in OF_PLACES)
    return [op for op in found if not any(p.search(op.name) for p in (NOT_HERE, RANDOM, NOT_UNIQUE))]


def samples(op, dtype: torch.dtype, most: int, grad: bool) -> Iterator:
    found = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    random.shuffle(found)
    for sample in found[:most]:
        if not any("dropout" in name and value for name, value in sample.kwargs.items()):
            sample.kwargs.pop("device", None)
            yield sample


def resolved(t: torch.Tensor) -> torch.Tensor:
    return t.detach().resolve_conj().resolve_neg()


def meaning(t: torch.Tensor) -> tuple[int, ...]:
    """The strides, as far as they lead anywhere."""
    return tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) if t.numel() else ()


def differs(actual: object, expected: object) -> str:
    """What is wrong with a result; "" if nothing is."""
    if not isinstance(expected, torch.Tensor):
        return "" if type(actual) is type(expected) else f"a {type(actual).__name__}"
    assert isinstance(actual, torch.Tensor)
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return f"{tuple(actual.shape)} {actual.dtype}, not {tuple(expected.shape)} {expected.dtype}"
    try:
        torch.testing.assert_close(
            resolved(actual.cpu()), resolved(expected), rtol=1e-5, atol=1e-5, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return str(error).replace("\n", " ")[:200]
    return ""


def tensors(*values: object) -> list[torch.Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def moved(sample, layout: Callable[[torch.Tensor], torch.Tensor], grad: bool) -> tuple:
    """The sample with another layout on the CPU, and the very same on the device."""

    def here(t):
        return layout(t.detach()).detach().requires_grad_(grad and t.requires_grad) if torch.is_tensor(t) else t

    host = sample.transform(here)
    return host, host.transform(
        lambda t: there(t.detach(), DEVICE).requires_grad_(t.requires_grad) if torch.is_tensor(t) else t
    )


def gradients_differ(host, device, results: list, expected: list, layout) -> str:
    """What is wrong with the gradients, for incoming ones of that layout and for expanded ones."""
    pairs = [(a, e) for a, e in zip(results, expected, strict=True) if torch.is_tensor(e) and e.requires_grad]
    leaves = [[t for t in tensors(s.input, s.args, s.kwargs) if t.requires_grad] for s in (host, device)]
    if not pairs or not leaves[0]:
        return ""
    for lay in (layout, lambda t: t.new_full((), 0.75).expand(t.shape)):
        incoming = [lay(torch.randn(e.shape, dtype=e.dtype)) for _, e in pairs]
        try:
            wanted = torch.autograd.grad(
                [e for _, e in pairs], leaves[0], incoming, allow_unused=True, retain_graph=True
            )
        except RuntimeError:  # the CPU has no such gradient
            return ""
        found = torch.autograd.grad(
            [a for a, _ in pairs], leaves[1], [there(t, DEVICE) for t in incoming], allow_unused=True, retain_graph=True
        )
        for i, (a, e) in enumerate(zip(found, wanted, strict=True)):
            if wrong := differs(a, e):
                return f"gradient {i}: {wrong}"
    return ""


def sweep_layouts(ops: list, dtype: torch.dtype, most: int) -> tuple[int, list[str]]:
    """How many calls were compared, and what was wrong."""
    compared, wrong = 0, []
    for op in ops:
        grad = op.supports_autograd and dtype.is_floating_point | dtype.is_complex
        for sample in samples(op, dtype, most, grad):
            for name, layout in LAYOUTS.items():
                host, device = moved(sample, layout, grad)
                try:
                    expected = tree_leaves(op(host.input, *host.args, **host.kwargs))
                except Exception:  # nothing to compare with
                    continue
                compared += 1
                try:
                    actual = tree_leaves(op(device.input, *device.args, **device.kwargs))
                    said = [d for a, e in zip(actual, expected, strict=True) if (d := differs(a, e))]
                    if grad and not said:
                        said = [d for d in [gradients_differ(host, device, actual, expected, layout)] if d]
                except Exception as error:
                    said = [f"{type(error).__name__}: {str(error)[:200]}"]
                wrong += [f"{op.name} {op.variant_test_name} {name}: {d}" for d in said[:1]]
    return compared, wrong


# Composites of torch itself that are wrong alike on every device: `out` has another number of dimensions than they take
# it to have, or is not written; and those whose `out` the database names otherwise.
OUT_WRONG_EVERYWHERE = {"nn.functional.linear", "matmul", "fft.ihfftn", "histogramdd", "_batch_norm_with_update"}


def sweep_out(ops: list, dtype: torch.dtype, most: int) -> tuple[int, list[str]]:
    """Every operator into an ``out`` of each layout, and an empty one: the result's elements, at the strides given."""
    forms = {"empty": lambda t: t.new_empty(0), "dense": torch.zeros_like, **LAYOUTS}
    compared, wrong = 0, []
    for op in ops:
        if not op.supports_out or op.name in OUT_WRONG_EVERYWHERE:
            continue
        for sample in samples(op, dtype, most, False):
            _, device = moved(sample, lambda t: t, False)
            try:
                expected = tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
            except Exception:  # a sample that this CPU build cannot run says nothing
                continue
            if not expected or not all(map(torch.is_tensor, expected)) or sample.kwargs.get("as_tuple"):
                continue
            for name, form in forms.items():
                if len(expected) > 1 and name in ("conjugated", "negated"):
                    continue  # torch's own fallback for these takes one such tensor
                given = [there(form(torch.full_like(e, 7).resolve_conj()), DEVICE) for e in expected]
                strides = [meaning(t) for t in given]
                out = given[0] if len(given) == 1 else tuple(given)
                compared += 1
                try:
                    op(device.input, *device.args, **device.kwargs, out=out)
                    said = [d for a, e in zip(given, expected, strict=True) if (d := differs(a, e))]
                    if name != "empty":
                        said += [
                            f"strides {meaning(t)}" for t, s in zip(given, strides, strict=True) if meaning(t) != s
                        ]
                except Exception as error:
                    said = [f"{type(error).__name__}: {str(error)[:200]}"]
                wrong += [f"{op.name} {op.variant_test_name} out {name}: {d}" for d in said[:1]]
    return compared, wrong


def some(ops: list, count: int) -> list:
    return random.sample(ops, count)


SWEEPS = pytest.mark.parametrize("sweep", [sweep_layouts, sweep_out])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["f64", "c128"])


@SWEEPS
@DTYPES
@pytest.mark.rotates(3)
def test_a_sample_of_operators_in_every_layout(sweep, dtype):
    seed = torch.initial_seed()
    random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared, wrong = sweep(some(operators(dtype), 25), dtype, most=1)
    assert compared > 25 and not wrong, f"seed {seed}:\n" + "\n".join(wrong)


PARTS = 24  # so that workers share the sweep, and what was found is said while it goes on


@pytest.mark.full
@SWEEPS
@DTYPES
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators_in_every_layout(part, sweep, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared, wrong = sweep(operators(dtype)[part::PARTS], dtype, most=3)
    print(f"{compared} calls compared, {len(wrong)} wrong")
    assert compared and not wrong, "\n".join(wrong)
