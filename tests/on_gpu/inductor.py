"""What only GPUs reach of Inductor, a case each: compiled, launched, and looked at without looking at values.

``python -m tests.on_gpu.inductor [CASE ...]`` prints a line of JSON for each case.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.config as config
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from anyxpu import ops

# Two of the twenty configurations of a template, so that a case takes seconds.
_FEW = {"test_configs.max_mm_configs": 2}
TEMPLATES = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", **_FEW}
CONVOLUTIONS = {"max_autotune": True, "max_autotune_conv_backends": "TRITON", **_FEW}


@dataclass(frozen=True)
class Case:
    """``function`` of the tensors that ``arguments`` makes on the device that it is given.

    Attributes:
        contains: what the generated code has to hold.
        options: Inductor's settings.
        dynamic: as torch.compile takes it; ``other`` then makes arguments of another size, which compile nothing.
        gradient: are the arguments' gradients taken too?
    """

    function: Callable[..., Any]
    arguments: Callable[[str], tuple]
    contains: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False
    other: Callable[[str], tuple] | None = None
    gradient: bool = False


def floats(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, gradient: bool = False) -> Callable:
    """Makes a tensor of each shape."""

    def make(device: str) -> tuple:
        return tuple(torch.empty(s, dtype=dtype, device=device, requires_grad=gradient) for s in shapes)

    return make


def rows_and_indices(device: str) -> tuple:
    return torch.empty(5000, 64, device=device), torch.zeros(3000, dtype=torch.int64, device=device)


def _causal(batch, head, query, key):
    return query >= key


def causal_attention(q, k, v):
    mask = create_block_mask(_causal, None, None, q.shape[2], k.shape[2], device=q.device)
    return flex_attention(q, k, v, block_mask=mask)


def relative_attention(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.5)


def sort_and_pick(x):
    values, places = torch.sort(x, -1)
    return values[:, :3], places[:, 0].sum()


def steps(a, b, c):
    return torch._foreach_add(torch._foreach_mul([a, b, c], 2.0), 1.0)


def noisy(x):
    return F.dropout(x, 0.3) + torch.rand_like(x) * torch.randn(x.shape, device=x.device)


half, bf16 = torch.float16, torch.bfloat16
QKV = ((2, 4, 256, 64),) * 3

CASES: dict[str, Case] = {
    "pointwise": Case(lambda x, y: (x * y + 1).sin(), floats((3000, 700), (700,)), ("triton_poi",)),
    "tiles": Case(lambda x, y: x + y.t(), floats((1000, 1500), (1500, 1000)), ("YBLOCK",)),
    "persistent reduction": Case(lambda x: x.softmax(-1), floats((4000, 1000)), ("triton_per",)),
    "looped reduction": Case(lambda x: x.softmax(-1), floats((200, 20000)), ("triton_red",)),
    "split reduction": Case(lambda x: x.sum(), floats((1 << 22,)), ("triton_red", "triton_")),
    "outer reduction": Case(lambda x: x.sum(0), floats((50000, 64)), ("triton_red",)),
    "variance": Case(lambda x: torch.var_mean(x, -1), floats((2000, 3000)), ("triton_",)),
    "cooperative reduction": Case(
        lambda x: x.sum(-1), floats((4, 1 << 18)), ("cooperative",), {"triton.force_cooperative_reductions": True}
    ),
    "mm": Case(torch.mm, floats((512, 256), (256, 384), dtype=half), ("triton_tem",), TEMPLATES),
    "mm bf16": Case(torch.mm, floats((512, 256), (256, 384), dtype=bf16), ("triton_tem",), TEMPLATES),
    "mm f32": Case(torch.mm, floats((512, 256), (256, 384)), ("triton_tem",), TEMPLATES),
    "addmm relu": Case(
        lambda b, x, y: torch.addmm(b, x, y).relu(),
        floats((384,), (500, 256), (256, 384), dtype=half),
        ("triton_tem", "relu"),
        TEMPLATES,
    ),
    "mm without epilogue benchmark": Case(
        lambda x, y: (x @ y).relu() * 2,
        floats((512, 256), (256, 384), dtype=half),
        ("triton_tem",),
        {**TEMPLATES, "benchmark_epilogue_fusion": False},
    ),
    "bmm": Case(torch.bmm, floats((6, 128, 64), (6, 64, 96), dtype=half), ("triton_tem",), TEMPLATES),
    "baddbmm": Case(
        torch.baddbmm, floats((6, 128, 96), (6, 128, 64), (6, 64, 96), dtype=bf16), ("triton_tem",), TEMPLATES
    ),
    "mm plus mm": Case(
        lambda a, b, c, d: a @ b + c @ d,
        floats((256, 128), (128, 192), (256, 128), (128, 192), dtype=half),
        ("triton_tem",),
        TEMPLATES,
    ),
    "int mm": Case(torch._int_mm, floats((256, 128), (128, 192), dtype=torch.int8), ("triton_tem",), TEMPLATES),
    "conv": Case(
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        floats((4, 32, 28, 28), (64, 32, 3, 3), dtype=half),
        ("triton_tem",),
        CONVOLUTIONS,
    ),
    "conv 1x1": Case(
        F.conv2d, floats((4, 32, 28, 28), (64, 32, 1, 1), dtype=half), ("triton_tem",), {**CONVOLUTIONS, **TEMPLATES}
    ),
    "flex attention": Case(causal_attention, floats(*QKV, dtype=half), ("triton_tem",)),
    "flex attention backward": Case(
        relative_attention, floats(*QKV, dtype=half, gradient=True), ("triton_tem",), gradient=True
    ),
    "flex decoding": Case(
        relative_attention, floats((2, 4, 1, 64), (2, 4, 512, 64), (2, 4, 512, 64), dtype=half), ("triton_tem",)
    ),
    "attention": Case(F.scaled_dot_product_attention, floats(*QKV, dtype=half)),
    "attention backward": Case(F.scaled_dot_product_attention, floats(*QKV, dtype=bf16, gradient=True), gradient=True),
    "coordinate descent": Case(
        lambda x: F.gelu(F.layer_norm(x, (1000,))),
        floats((300, 1000)),
        ("triton_",),
        {"coordinate_descent_tuning": True},
    ),
    "max-autotune pointwise": Case(
        lambda x: F.gelu(x) * x.sigmoid(), floats((2000, 1000)), ("triton_poi",), {"max_autotune_pointwise": True}
    ),
    "static launcher off": Case(
        lambda x: x.softmax(-1), floats((400, 500)), ("triton_per",), {"use_static_triton_launcher": False}
    ),
    "dynamic": Case(
        lambda x, y: (x @ y).relu().sum(-1),
        floats((37, 64), (64, 48)),
        dynamic=True,
        other=floats((91, 64), (64, 48)),
    ),
    "dynamic templates": Case(
        lambda x, y: (x @ y).relu(),
        floats((370, 64), (64, 48), dtype=half),
        ("triton_tem",),
        TEMPLATES,
        dynamic=True,
        other=floats((91, 64), (64, 48), dtype=half),
    ),
    "foreach": Case(steps, floats((100, 20), (7,), (3000,)), ("triton_for",)),
    "combo kernels": Case(lambda a, b: (a.sum(-1), b.sin()), floats((300, 200), (5000,)), (), {"combo_kernels": True}),
    "scatter add": Case(
        lambda x, i: torch.zeros(700, 64, device=x.device).index_add(0, i, x[:3000]), rows_and_indices, ("atomic_add",)
    ),
    "gather": Case(lambda x, i: x[i].exp(), rows_and_indices, ("triton_poi",)),
    "embedding backward": Case(
        lambda w, i: F.embedding(i, w).sin(),
        lambda d: (torch.empty(700, 64, device=d, requires_grad=True), torch.zeros(300, dtype=torch.int64, device=d)),
        gradient=True,
    ),
    "sort": Case(sort_and_pick, floats((500, 100)), ("sort",)),
    "scan": Case(lambda x: x.cumsum(-1), floats((300, 2000)), ("associative_scan",)),
    "split scan": Case(lambda x: x.cumsum(0), floats((1 << 20,)), ("split_scan",)),
    "argmax": Case(lambda x: (x.argmax(-1), x.amin(0)), floats((300, 2000)), ("triton_",)),
    "random": Case(noisy, floats((300, 2000)), ("tl.rand",)),
    "half precision": Case(lambda x: F.gelu(F.rms_norm(x, (1024,))), floats((300, 1024), dtype=bf16), ("bf16",)),
    "low bits": Case(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32), floats((300, 128)), ("float8e4nv",)),
}
# The cases of the everyday suite: one of each kind, and what a change would break first.
EVERYDAY = ("looped reduction", "addmm relu", "dynamic", "foreach", "scatter add", "sort")


def described(result: Any) -> list:
    """Shape and dtype of every tensor of a result."""
    return [[list(t.shape), str(t.dtype)] for t in torch.utils._pytree.tree_leaves(result)]


def run_case(case: Case) -> dict[str, Any]:
    torch._dynamo.reset()
    arguments = case.arguments("xpu")
    compiled = torch.compile(case.function, dynamic=case.dynamic)

    def call(*arguments: Any) -> Any:
        result = compiled(*arguments)
        if not case.gradient:
            return result
        wanted = [a for a in arguments if a.requires_grad]
        return result, torch.autograd.grad(result, wanted, torch.ones_like(result))

    with config.patch({"compile_threads": 1, **case.options}):
        result, code = run_and_get_code(call, *arguments)
        before = {name: dict(ways) for name, ways in ops.counters().items()}
        result = call(*arguments)
        host = {
            name: ways["host"] - before.get(name, {}).get("host", 0)
            for name, ways in ops.counters().items()
            if ways.get("host", 0) > before.get(name, {}).get("host", 0)
        }
        if case.other is not None:
            result = call(*case.other("xpu"))
    torch.xpu.synchronize()
    with torch.no_grad():
        expected = case.function(*(a.detach() for a in (case.other or case.arguments)("cpu")))
    text = "\n".join(code)
    return {
        "found": described(result[0] if case.gradient else result),
        "expected": described(expected),
        "gradients": described(result[1]) if case.gradient else [],
        "missing": [word for word in case.contains if word not in text],
        "host": host,
    }


def main(names: list[str]) -> None:
    for name in names or CASES:
        with fresh_cache():
            try:
                found = run_case(CASES[name])
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"[:2000]}
        sys.stdout.write(json.dumps({"case": name, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
