"""Types that torch declares for xpu and not for the CPU, and unsigned integers beyond 8 bits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from anyxpu import simulate
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.skipif(
        not torch.xpu.is_available() or bool(simulate.active()), reason="needs an xpu device that computes"
    ),
    pytest.mark.usefixtures("compiled"),
]

WIDER = {torch.complex32: torch.complex64, torch.float16: torch.float32, torch.bfloat16: torch.float32}
BOUNDS = {torch.complex32: 4e-3, torch.float16: 2e-3, torch.bfloat16: 2e-2}
INTEGERS = (torch.int8, torch.uint8)
# What torch from 2.14 on declares too: an error here (docs/unsupported.md), or convolutions as the CPU has them.
UNSERVED = {
    *((f"nn.functional.conv{turn}{n}d", d) for turn in ("", "_transpose") for n in (1, 2, 3) for d in INTEGERS),
    *(("nn.functional.scaled_dot_product_attention", d) for d in INTEGERS),
    *(("sparse.sampled_addmm", d) for d in (torch.float16, torch.bfloat16)),
}
PAIRS = [
    (op, dtype)
    for op in op_db
    for dtype in sorted(op.supported_dtypes("xpu") - op.supported_dtypes("cpu"), key=str)
    if not op.name.startswith("torch.ops.aten.")  # attention, of which the CPU has no such operators
    and (op.name, dtype) not in UNSERVED
]
# Their result is drawn, or is a matter of the memory that they get.
UNCOMPARED = {"scatter", "rand_like", "randn_like", "randint_like", "empty", "empty_like", "empty_strided", "new_empty",
              "new_empty_strided", "nn.functional.rrelu", "empty_permuted"}  # fmt: skip


def moved(value, device, dtype=None):
    if isinstance(value, torch.Tensor):
        wide = dtype if dtype is not None and value.dtype in WIDER else None
        return value.detach().to(device, wide)
    if isinstance(value, torch.dtype) and dtype is not None:
        return WIDER.get(value, value)
    return device if isinstance(value, str) and value == "cpu" else value


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for each in value for t in tensors(each)] if isinstance(value, (list, tuple)) else []


def pair_id(pair):
    op, dtype = pair
    return f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}-{str(dtype).partition('.')[2]}"


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
@pytest.mark.rotates(6)
def test_types_that_the_cpu_lacks(pair):
    """Equal to the CPU's result in the next wider type, rounded; of integers, to NumPy's or the CPU's in int64."""
    op, dtype = pair
    wide = WIDER.get(dtype)
    compared = 0
    for sample in list(op.sample_inputs("cpu", dtype))[:30]:
        here = sample.transform(lambda t: moved(t, "xpu"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = op(here.input, *here.args, **here.kwargs)
        torch.xpu.synchronize()
        if op.name in UNCOMPARED:
            continue
        compared += 1
        if wide is None:
            want = reference_of_integers(op, sample)
        else:
            there = sample.transform(lambda t: moved(t, "cpu", wide))
            try:
                want = op(there.input, *there.args, **there.kwargs)
            except RuntimeError:  # nansum of complex numbers: the CPU has it in no type
                clean = torch.where(there.input.isnan(), 0, there.input)
                named = {k: v for k, v in there.kwargs.items() if k in ("dim", "keepdim")}
                if op.name == "nanmean":
                    want = clean.sum(**named) / (~there.input.isnan()).sum(**named)
                else:
                    want = clean.sum(*there.args, **named)
        for one, other in zip(tensors(got), tensors(want), strict=True):
            assert one.shape == other.shape
            # Of bfloat16 torch from 2.14 on makes float32 before it transforms it.
            kept = wide if dtype is torch.bfloat16 and ("fft" in op.name or op.name == "stft") else dtype
            assert one.dtype == (kept if other.dtype == wide else one.dtype)
            close(one, other, dtype, BOUNDS.get(dtype, 1e-5))
    assert compared or op.name in UNCOMPARED


def close(one, other, dtype, bound):
    """To so many digits of the largest number: sums of products lose what cancels."""
    kind = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.cpu().to(kind), narrowed(other, dtype).to(kind)
    sizes = other.abs()[other.isfinite()]
    most = max(1.0, sizes.max().item()) if sizes.numel() else 1.0
    torch.testing.assert_close(one, other, rtol=bound, atol=bound * most, equal_nan=True)


def narrowed(t, dtype):
    """As the narrow type holds it: what is beyond its largest is infinite."""
    if dtype is torch.complex32 and t.is_complex():
        return torch.complex(t.real.half().float(), t.imag.half().float())
    return t.to(dtype) if t.is_floating_point() and dtype in (torch.float16, torch.bfloat16) else t


def reference_of_integers(op, sample):
    if op.name != "histc":
        if sample.input.dtype.is_complex:  # nansum, nanmean
            x = torch.where(sample.input.isnan(), 0, sample.input)
            named = {k: v for k, v in sample.kwargs.items() if k in ("dim", "keepdim")}
            total = x.sum(*sample.args, **named)
            return total / (~sample.input.isnan()).sum(*sample.args, **named) if op.name == "nanmean" else total
        exact = sample.input if sample.input.dtype.is_floating_point else sample.input.long()
        return op(exact, *sample.args, **sample.kwargs)
    values = sample.input.numpy().astype(object).ravel()
    names = ("bins", "min", "max")
    given = {"bins": 100, "min": 0, "max": 0, **dict(zip(names, sample.args, strict=False)), **sample.kwargs}
    low, high = int(given["min"]), int(given["max"])
    counts = np.zeros(given["bins"], dtype=np.int64)
    if len(values):
        if low == high:
            low, high = min(values), max(values)
        if low == high:
            low, high = low - 1, high + 1
        for value in values:
            if low <= value <= high:
                counts[min((value - low) * given["bins"] // (high - low), given["bins"] - 1)] += 1
    return torch.from_numpy(counts)


BACKWARD = [
    (op, dtype)
    for op, dtype in PAIRS
    if dtype in WIDER
    and op.name not in (*UNCOMPARED, "nn.functional.batch_norm")  # there it is of the type that the CPU has
    and (op.name, dtype) != ("logaddexp", torch.complex32)  # whose formula has quotients of exponentials in 16 bits
    and op.supports_autograd
    and dtype in op.supported_backward_dtypes("cuda")  # the database says no more of xpu
]


@pytest.mark.parametrize("pair", BACKWARD, ids=pair_id)
@pytest.mark.rotates(6)
def test_gradients_of_types_that_the_cpu_lacks(pair):
    op, dtype = pair
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=True))[:8]:
        gradients = []
        for device, wide in (("xpu", None), ("cpu", WIDER[dtype])):
            made = sample.transform(lambda t: moved(t, device, wide))  # noqa: B023
            inputs = [t for t in tensors([made.input, *made.args]) if t.is_floating_point() or t.is_complex()]
            for t in inputs:
                t.requires_grad_()
            try:
                out = [t for t in tensors(op(made.input, *made.args, **made.kwargs)) if t.requires_grad]
            except RuntimeError:
                if device == "xpu":
                    raise
                pytest.skip("the CPU has it in no type")
            if not out or not out[0].numel():
                break
            total = sum((torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).float().sum() for t in out)
            total.backward()
            gradients.append([t.grad for t in inputs])
        # What overflows on the way to a gradient of 16 bits is infinite or no number, as it comes.
        if len(gradients) < 2 or any(t.abs().max() > 1e3 for t in gradients[1] if t is not None and t.numel()):
            continue
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                close(one, other, dtype, 4 * BOUNDS[dtype])


UNSIGNED = {torch.uint16: np.uint16, torch.uint32: np.uint32, torch.uint64: np.uint64}
TWO = {
    "add": (torch.add, np.add),
    "sub": (torch.sub, np.subtract),
    "mul": (torch.mul, np.multiply),
    "floor_divide": (torch.floor_divide, np.floor_divide),
    "remainder": (torch.remainder, np.remainder),
    "fmod": (torch.fmod, np.fmod),
    "lt": (torch.lt, np.less),
    "ge": (torch.ge, np.greater_equal),
    "ne": (torch.ne, np.not_equal),
    "maximum": (torch.maximum, np.maximum),
    "minimum": (torch.minimum, np.minimum),
    "and": (torch.bitwise_and, np.bitwise_and),
    "or": (torch.bitwise_or, np.bitwise_or),
    "xor": (torch.bitwise_xor, np.bitwise_xor),
    "where": (lambda a, b: torch.where(a > b, a, b), np.maximum),
}
ONE = {
    "not": (torch.bitwise_not, np.invert),
    "neg": (torch.neg, np.negative),
    "abs": (torch.abs, np.abs),
    "sign": (torch.sign, np.sign),
    "square": (torch.square, np.square),
    "shift": (lambda a: a >> 3, lambda a: a >> np.uint8(3)),
    "clamp": (lambda a: a.clamp(7, 40000), lambda a: np.clip(a, 7, 40000)),
    "number": (lambda a: a * 3 + 1, lambda a: a * a.dtype.type(3) + a.dtype.type(1)),
    "amax": (torch.amax, np.amax),
    "amin": (torch.amin, np.amin),
    "max": (torch.max, np.amax),
    "any": (torch.any, np.any),
    "flip": (lambda a: a.flip(0), np.flip),
    "roll": (lambda a: a.roll(2), lambda a: np.roll(a, 2)),
    "mask": (lambda a: a[a > 9], lambda a: a[a > 9]),
    "nonzero": (lambda a: a.nonzero()[:, 0], lambda a: a.nonzero()[0]),
    "float": (lambda a: a.float(), lambda a: a.astype(np.float32)),
}


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.rotates(2)
def test_unsigned_integers_are_counted_with(dtype):
    """Against NumPy, the largest numbers among them."""
    kind = UNSIGNED[dtype]
    most = int(np.iinfo(kind).max)
    rng = np.random.default_rng()
    a = rng.integers(0, most, 300, dtype=kind, endpoint=True)
    b = rng.integers(1, most, 300, dtype=kind, endpoint=True)
    a[:4], b[:4] = (0, most, 1, most - 1), (most, most, 3, 1)
    x, y = (torch.from_numpy(n).to("xpu") for n in (a, b))
    with np.errstate(over="ignore"):
        for name, (ours, theirs) in TWO.items():
            np.testing.assert_array_equal(ours(x, y).cpu().numpy(), theirs(a, b), err_msg=name)
        for name, (ours, theirs) in ONE.items():
            np.testing.assert_array_equal(ours(x).cpu().numpy(), theirs(a), err_msg=name)
        z = x.clone()
        z += y
        z <<= 1
        np.testing.assert_array_equal(z.cpu().numpy(), (a + b) << kind(1))


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_unsigned_integers_do_not_wait_for_the_host(dtype):
    """Which has none: in `auto` mode, the first call too is a kernel's."""
    lib().set_eager("auto")
    x = torch.tensor([1, 2, 3]).to("xpu").to(dtype)
    assert (x + x * 2).tolist() == [3, 6, 9]
    assert x.amax().item() == 3
