"""What torch says that an operator makes on xpu (its fake tensors) is what it makes: shape, type, device, strides.

Compiled graphs assert it of every operator that they call as it is. Operators of torch's database, forward and
backward, dense and transposed. Where torch says of xpu what even the CPU does not do, ours may do as the CPU does.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from anyxpu import simulate
from tests.database import steps

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.usefixtures("compiled"),
]
PARTS = 60
_LEFT = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view}
_ALLOWED = {
    # The seed and the offset of its dropout lie on the CPU where there is none.
    "aten._scaled_dot_product_fused_attention_overrideable.default",
    # Ambiguous layouts: one channel, or images of one row, are channels-last and contiguous at once.
    *("aten.avg_pool2d.default", "aten.avg_pool2d_backward.default", "aten.max_pool2d_with_indices_backward.default"),
    "aten.max_unpool2d.default",
    # Said by what torch makes them of, which is what compiled graphs call.
    *("aten._fused_rms_norm_backward.default", "aten.native_group_norm.default"),
}


def _on_cpu(value: Any) -> Any:
    def move(t: torch.Tensor) -> torch.Tensor:
        one = t.detach()
        for d, step in enumerate(t.stride()):
            if step == 0 and t.shape[d]:
                one = one.narrow(d, 0, 1)
        return torch.empty_strided(one.shape, one.stride(), dtype=t.dtype).copy_(one).expand(t.shape)

    return tree_map_only(torch.Tensor, move, value)


def _said(t: torch.Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.dtype, t.device.type, steps(t) if t.numel() else []


class Compared(TorchDispatchMode):
    """Notes every operator whose result is none that torch said."""

    def __init__(self, namespaces: tuple[str, ...] = ("aten", "prims")) -> None:
        super().__init__()
        self.namespaces = namespaces
        self.compared, self.wrong = 0, []  # type: tuple[int, list[str]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        plain = func.namespace in self.namespaces and not func._schema.is_mutable and not _LEFT & set(func.tags)
        fake = self.fake(func, args, kwargs) if plain and all(self.dense(t) for t in flat) else None
        real = func(*args, **kwargs)
        if fake is None:
            return real
        made, said = (tree_flatten(value)[0] for value in (real, fake))
        for i, (one, other) in enumerate(zip(made, said, strict=True)):
            if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
                continue
            self.compared += 1
            if _said(one) != _said(other) and str(func) not in _ALLOWED and not self.as_cpu(func, args, kwargs, i, one):
                self.wrong.append(f"{func} result {i}: {_said(one)}, said to be {_said(other)}")
        return real

    @staticmethod
    def dense(t: torch.Tensor) -> bool:
        return t.layout == torch.strided and not t.is_nested and not t.is_quantized

    @staticmethod
    def fake(func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                args, kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
                return func(*args, **kwargs)
        except Exception:  # it says nothing of this call
            return None

    @staticmethod
    def as_cpu(func: Any, args: Any, kwargs: Any, i: int, one: torch.Tensor) -> bool:
        try:
            made = tree_flatten(func(*_on_cpu(args), **_on_cpu(kwargs)))[0][i]
        except Exception:  # the CPU has no such operator, or not of this: it says nothing for ours
            return False
        return bool(made.dtype == one.dtype and made.shape == one.shape and steps(made) == steps(one))


def _turned(t: torch.Tensor) -> torch.Tensor:
    if t.layout != torch.strided:
        return t
    turned = t.detach().transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t.detach()
    return turned.requires_grad_(t.requires_grad)


@pytest.mark.rotates(90)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator(part: int) -> None:
    compared = 0
    wrong: list[str] = []
    for op in op_db[part::PARTS]:
        if torch.float32 not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):
            continue
        samples = list(op.sample_inputs("xpu", torch.float32, requires_grad=op.supports_autograd))[:6]
        turned = [sample.transform(lambda t: _turned(t) if isinstance(t, torch.Tensor) else t) for sample in samples]
        for sample in (*samples, *turned[:3]):
            with warnings.catch_warnings(), Compared() as mode:
                warnings.simplefilter("ignore")
                try:
                    made = op(sample.input, *sample.args, **sample.kwargs)
                    out = [t for t in tree_flatten(made)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
                    leaves = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
                    if out and leaves:
                        torch.autograd.grad([t.sum() for t in out], leaves, allow_unused=True)
                except (RuntimeError, IndexError, ValueError, NotImplementedError):
                    pass  # of a layout that it refuses, as other tests have it
            compared += mode.compared
            wrong += [f"{op.name}: {what}" for what in mode.wrong]
    assert not wrong, "\n".join(sorted(set(wrong)))
    assert compared or simulate.active()


def test_it_finds_what_is_not_as_said() -> None:
    library = torch.library.Library("aten_of_a_test", "DEF")
    library.define("turned(Tensor x) -> Tensor")
    library.impl("turned", lambda x: torch.empty_like(x), "CPU")
    library.impl("turned", lambda x: torch.empty_like(x), "Meta")
    library.impl("turned", lambda x: torch.empty(x.shape, device=x.device), "XPU")
    with Compared(("aten_of_a_test",)) as mode:
        torch.ops.aten_of_a_test.turned(torch.empty(3, 4, device="xpu"))
        assert (mode.compared, mode.wrong) == (1, [])
        torch.ops.aten_of_a_test.turned(torch.empty(3, 4, device="xpu").t())
    assert len(mode.wrong) == 1 and "turned" in mode.wrong[0]
