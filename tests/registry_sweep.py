"""Calls every composite operator of torch's registry on xpu, with random arguments that the CPU takes.

    python -m tests.registry_sweep START FILE

Begins at the START-th operator. FILE says, as JSON, which is being called and on which device, for the one who sees
this process die; a line of JSON a call says how it went.
"""

from __future__ import annotations

import json
import random
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from anyxpu.errors import ArgumentError

KEYS = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
# Of layouts and devices that are not here, of what has no value (names, storages, pinning), and what other tests call.
NOT_CALLED = re.compile(
    r"sparse|quant|mkldnn|nested|jagged|cudnn|miopen|cuda|mps|vulkan|fbgemm|xnnpack|nnpack|_test|record_stream|_print|"
    r"from_file|set_data|_fw_|_assert|rename|names|[dD]imname|sym_|_fake|_to_cpu|_coalesce|_wrapped|_debug|"
    r"_flash|_efficient|_cufft|pin|_scaled|requires_grad|retain|_version|backward$|set_|sleep|_use_|_lazy|crow|ccol|"
    r"(col|row)_ind|_indices|_values|to_dense|to_padded|_weight|_dyn_|_mixed|_grouped|_amp_|_spdiags|lstm|gru|rnn|"
    r"_packed_sequence|_sobol|randint_like|_transform_bias|batch_dim|is_nonzero|_autocast_to|_stack"
)
WITHOUT_VALUE = re.compile(
    r"rand|empty|bernoulli|dropout|multinomial|poisson|normal|uniform|exponential|cauchy|geometric|"
    r"new_|resize|gamma|binomial|dirichlet|kthvalue|median|mode"  # the last name any place of equal numbers
)
SHAPES = ((4,), (3, 4), (4, 4), (2, 3, 4), (2, 3, 4, 4), (1, 3, 8, 8), (), (2, 3, 4, 4, 4))
DTYPES = (torch.float32,) * 3 + (torch.int64, torch.complex64, torch.bool, torch.float64)
TRIES = 60


def composites() -> list[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    return [n for n in names if not NOT_CALLED.search(n) and any(has(n, key) for key in KEYS)]


def tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, dtype=dtype) + 0.1
    return torch.ones(shape, dtype=dtype) if dtype == torch.bool else torch.randint(0, 2, shape, dtype=dtype)


def argument(kind: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A random value for an argument of a schema.

    Raises:
        LookupError: none is known for this type.
    """
    text = str(kind)
    if text.startswith("Optional["):
        return None if random.random() < 0.5 else argument(kind.getElementType(), name, shape, dtype)
    if text == "Tensor":
        if re.search("ind(ex|ices)|idx|target|bucket|pivots|offsets|lengths", name):
            return tensor(random.choice((shape, (2,))), torch.long)
        if re.search("mask|cond", name):
            return tensor(shape, torch.bool)
        return tensor(shape if random.random() < 0.8 else random.choice(SHAPES), dtype)
    makers: dict[str, Callable[[], Any]] = {
        "List[Tensor]": lambda: [tensor(shape, dtype) for _ in range(2)],
        "List[Optional[Tensor]]": lambda: [tensor((2,), torch.long)],
        "int": lambda: random.choice((0, -1, 1) if "dim" in name else (0, 1, 1, 2, 3)),
        "float": lambda: random.choice((0.5, 1.0, 2.0)),
        "bool": lambda: random.random() < 0.5,
        "number": lambda: random.choice((1, 2, 0.5, 1.5)),
        "str": lambda: random.choice(("mean", "ij", "sum", "none", "linear")),
        "Device": lambda: torch.device("cpu"),
        "List[int]": lambda: [random.choice((0, 1, 1, 2)) for _ in range(random.choice((1, 2, len(shape) or 1)))],
        "List[float]": lambda: [1.0, 2.0],
        "List[bool]": lambda: [True] * random.choice((1, 2, 3)),
        "ScalarType": lambda: torch.float32,
    }
    return makers[text.replace("SymInt", "int").replace("Scalar]", "number]")]()


def arguments(schema: Any) -> tuple[list[Any], dict[str, Any]]:
    shape, dtype = random.choice(SHAPES), random.choice(DTYPES)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in schema.arguments:
        if a.name in ("layout", "memory_format", "generator", "pin_memory") or "Generator" in str(a.type):
            continue
        if a.has_default_value() and random.random() < 0.7 and a.name != "device":
            continue
        value = argument(a.type, a.name, shape, dtype)
        if a.name == "dtype":
            value = torch.float32
        if a.is_out and isinstance(value, torch.Tensor):
            value = value.new_empty(0)
        if a.kwarg_only or kwargs or len(args) < schema.arguments.index(a):
            kwargs[a.name] = value
        else:
            args.append(value)
    return args, kwargs


def on(device: str, values: Any) -> Any:
    """Copies of the tensors on a device, and it in place of every other."""

    def there(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return v.clone().to(device)
        return torch.device(device) if isinstance(v, torch.device) else v

    return tree_map(there, values)


def as_cuda(name: str, expected: Any) -> Any:
    """The CPU's results, but for what xpu has as CUDA: an empty bag's largest elements have no place, -1 and not 0."""
    if "embedding_bag" not in name or expected[3].dim() != 2:
        return expected
    out, bags, sizes, places = expected
    return out, bags, sizes, places.masked_fill(sizes[: len(places), None] == 0, -1)


def outcome(name: str, operator: Any, args: Any, kwargs: Any, expected: Any) -> dict[str, Any]:
    try:
        actual = operator(*on("xpu", args), **on("xpu", kwargs))
    except NotImplementedError as error:
        return {"refused": str(error)[:200]}
    except ArgumentError as error:
        # Of these the CPU's kernel reads beyond the end.
        refused = re.match(r"batch norm wants a|embedding_bag wants indices of one dimension", str(error))
        return {"refused" if refused else "wrong": str(error)[:200]}
    except Exception as error:
        return {"wrong": f"{type(error).__name__}: {str(error)[:200]}"}
    for a, e in zip(tree_leaves(actual), tree_leaves(as_cuda(name, expected)), strict=True):
        if not isinstance(e, torch.Tensor):
            continue
        if (a.shape, a.dtype) != (e.shape, e.dtype):
            return {"wrong": f"{tuple(a.shape)} {a.dtype}, not {tuple(e.shape)} {e.dtype}"}
        try:
            if not WITHOUT_VALUE.search(name):
                torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            return {"wrong": str(error).replace("\n", " ")[:200]}
    return {"right": True}


def call(at: int, name: str, now: Path) -> None:
    base, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    for attempt in range(TRIES):
        random.seed(f"{name} {attempt}")
        torch.manual_seed(attempt)
        try:
            args, kwargs = arguments(operator._schema)
        except LookupError:
            continue
        if not any(isinstance(v, (torch.Tensor, torch.device)) for v in tree_leaves((args, kwargs))):
            continue
        now.write_text(json.dumps({"at": at, "op": name, "device": "cpu"}))
        try:
            expected = operator(*on("cpu", args), **on("cpu", kwargs))
        except Exception:  # the CPU does not take these
            continue
        now.write_text(json.dumps({"at": at, "op": name, "device": "xpu"}))
        print(json.dumps({"op": name, "called": True, **outcome(name, operator, args, kwargs, expected)}), flush=True)
        return


def main() -> None:
    warnings.simplefilter("ignore")
    start, now = int(sys.argv[1]), Path(sys.argv[2])
    for at, name in list(enumerate(composites()))[start:]:
        call(at, name, now)


if __name__ == "__main__":
    main()
