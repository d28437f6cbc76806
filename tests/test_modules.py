"""Every module of PyTorch's own database runs on xpu as on the CPU, with gradients and without."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "xpu"
RANDOM = ("Dropout", "RReLU", "Transformer", "Lazy")
"""Of these the numbers are drawn on the device: they only have to run."""

BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return type(value)(moved(v, device) for v in value) if isinstance(value, (tuple, list)) else value


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def results(info: Any, given: Any, dtype: torch.dtype, training: bool, gradients: bool, device: str) -> list[Tensor]:
    torch.manual_seed(1)
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    module = module.to(dtype).train(training).to(device)
    forward = given.forward_input
    with torch.set_grad_enabled(gradients):
        return tensors(
            module(*moved(forward.args, device), **{name: moved(v, device) for name, v in forward.kwargs.items()})
        )


@pytest.mark.full
@pytest.mark.not_simulated("it compares values")
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_every_module_runs_as_on_the_cpu(dtype: torch.dtype) -> None:
    from torch.testing._internal.common_modules import module_db

    tried, wrong = 0, []
    for info in module_db:
        for training in (False, True):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training)
            for given in [i for i in inputs if i.forward_input is not None][:12]:
                for gradients in (False, True):
                    case = info, given, dtype, training, gradients
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        try:
                            expected = results(*case, "cpu")
                        except (RuntimeError, NotImplementedError):
                            continue  # nothing to be compared with
                        tried += 1
                        try:
                            actual = results(*case, DEVICE)
                            if not any(word in info.name for word in RANDOM):
                                for a, e in zip(actual, expected, strict=True):
                                    torch.testing.assert_close(
                                        a.cpu(), e, rtol=10 * BOUNDS[dtype], atol=BOUNDS[dtype], equal_nan=True
                                    )
                        except Exception as error:
                            wrong.append(f"{info.name} {training=} {gradients=}: {str(error).splitlines()[0]}")
    print(tried)
    assert tried > 500 and not wrong, "\n".join(wrong)
