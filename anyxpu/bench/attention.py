"""``anyxpu bench attention``: attention of common models, eager and compiled, forward and with its gradients.

Each side is checked against attention in f64 before it is timed, and the sides alternate. What a score costs is counted
as two multiplications and two additions for each element of a head, backward as five halves of that; masked scores are
not counted.

Of flex_attention the compiled sides are timed, forward, as the CPU has no gradients of it. Eager ones are given the
same as a mask; so is the CPU's compiled one where Inductor refuses flex_attention, as it does on CPUs without AVX-512.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor.exc import InductorError
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from anyxpu.bench import Request, beside_cpu
from anyxpu.bench.report import Column, Report


@dataclass(frozen=True)
class Case:
    """Attention as one model has it: batches, heads of queries and of keys, queries, keys, elements of a head.

    Attributes:
        flex: what of flex_attention is timed: "plain", "alibi" or "window"; "" is none of it.
    """

    batches: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    trained: bool = True
    flex: str = ""

    def operations(self) -> float:
        """Of a forward."""
        scores = self.batches * self.heads * self.queries * self.keys
        seen = 0.5 if self.causal else 1.0
        if self.flex == "window":
            seen = float(_window(self, "cpu").double().mean())
        return 4.0 * scores * self.size * seen


_WINDOW = 128


def _sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
    """The mask of a sliding window, as flex_attention asks for it."""
    return (query >= key) & (query - key < _WINDOW)


def _window(case: Case, device: str) -> Tensor:
    """The same as (queries, keys) bits."""
    q, k = (torch.arange(n, device=device) for n in (case.queries, case.keys))
    return _sees(None, None, q[:, None], k)


def _sloped(score: Tensor, batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
    """ALiBi's scores (O. Press and others, 2022), of slopes that are no power."""
    return score + (key - query) * (0.01 * (head + 1))


CASES: dict[str, Case] = {
    "bert-base 128": Case(8, 12, 12, 128, 128, 64),
    "gpt2 512": Case(4, 12, 12, 512, 512, 64, causal=True),
    "vit-small 197": Case(8, 6, 6, 197, 197, 64),
    "llama3-8b prefill 1024": Case(1, 32, 8, 1024, 1024, 128, causal=True, trained=False),
    "llama3-8b decode 1024": Case(1, 32, 8, 1, 1024, 128, trained=False),
    "sd-unet 1024": Case(2, 8, 8, 1024, 1024, 80),
    "sd-unet 4096": Case(1, 8, 8, 4096, 4096, 40, trained=False),
    "flex 512": Case(2, 8, 8, 512, 512, 64, trained=False, flex="plain"),
    "flex alibi 1024": Case(1, 12, 12, 1024, 1024, 64, trained=False, flex="alibi"),
    "flex window 2048": Case(1, 8, 8, 2048, 2048, 64, trained=False, flex="window"),
    "flex decode 2048": Case(1, 32, 8, 1, 2048, 128, trained=False, flex="plain"),
}
_QUICK = ("bert-base 128", "gpt2 512")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def run(request: Request) -> Report:
    """Time every case in f32, bf16 and f16. Wrong is a side whose result is not attention in f64."""
    report = Report("Attention, milliseconds", _COLUMNS)
    names = request.only or (_QUICK if request.quick else tuple(CASES))
    rounds = request.rounds or (5 if request.quick else 9)
    report.settings = {"rounds": rounds, "peak_flop_per_second": beside_cpu.peak()}
    for name in names:
        for dtype in _dtypes(CASES[name], request.quick):
            for trained in (False, True) if CASES[name].trained else (False,):
                beside_cpu.progress(f"{name} {beside_cpu.short(dtype)} {'training' if trained else 'forward'}")
                torch._dynamo.reset()
                _measure(report, name, dtype, trained, rounds)
    report.goals += beside_cpu.goals(report, 1.0, 1.05)
    return report


def _dtypes(case: Case, quick: bool) -> Sequence[torch.dtype]:
    """What a case is timed in: slopes in f32 alone, which a mask of 16 bits would round."""
    return DTYPES[: 1 if case.flex == "alibi" else 2 if quick else 3]


def _measure(report: Report, name: str, dtype: torch.dtype, trained: bool, rounds: int) -> None:
    case = CASES[name]
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (case.heads, case.queries),
        (case.groups, case.keys),
        (case.groups, case.keys),
        (case.heads, case.queries),
    ]
    made = [torch.randn(case.batches, h, n, case.size, generator=generator).to(dtype) for h, n in shapes]

    def side(device: str, compiled: bool) -> Callable[[], list[Tensor]]:
        *leaves, gradient = (t.to(device) for t in made)
        call = _by_masks(case, leaves[0])
        if compiled:
            flexible = _flexible(case, leaves) if case.flex else None
            row["cpu_by_mask"] |= bool(case.flex) and flexible is None
            call = flexible or torch.compile(call, dynamic=False)
        if not trained:
            return torch.no_grad()(lambda: [call(*leaves)])
        leaves = [t.requires_grad_() for t in leaves]
        return lambda: [*torch.autograd.grad(call(*leaves), leaves, gradient)]

    row: dict[str, Any] = {"case": name, "dtype": beside_cpu.short(dtype), "training": trained, "ratio": {}}
    row["cpu_by_mask"] = False
    report.rows.append(row)
    sides = {beside_cpu.CPU: side("cpu", False), beside_cpu.XPU: side("xpu", False)}
    sides |= {beside_cpu.CPU_COMPILED: side("cpu", True), beside_cpu.XPU_COMPILED: side("xpu", True)}
    *exact, gradient = (t.double() for t in made)
    attention = _by_masks(case, exact[0])
    if trained:
        exact = [t.requires_grad_() for t in exact]
        expected = list(torch.autograd.grad(attention(*exact), exact, gradient))
    else:
        expected = [attention(*exact)]
    if wrong := beside_cpu.first_wrong(sides, expected, dtype):
        report.wrong.append(f"{name} {beside_cpu.short(dtype)} on {wrong}")
        return
    operations = case.operations() * (3.5 if trained else 1.0)
    beside_cpu.time_sides(row, sides, rounds, operations, report.settings["peak_flop_per_second"])


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def _by_masks(case: Case, like: Tensor) -> Attention:
    """scaled_dot_product_attention; what flex_attention changes is a mask of ``like``'s device and dtype."""
    mask = None
    if case.flex == "window":
        mask = _window(case, str(like.device))
    elif case.flex == "alibi":
        head, q, k = (torch.arange(n, device=like.device) for n in (case.heads, case.queries, case.keys))
        mask = _sloped(torch.zeros((), device=like.device), None, head[:, None, None], q[:, None], k)[None].to(
            like.dtype
        )
    shared = case.heads != case.groups
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, is_causal=case.causal, enable_gqa=shared)


def _flexible(case: Case, operands: list[Tensor]) -> Attention | None:
    """flex_attention, compiled; None where Inductor has none for the operands' device, if that is the CPU."""
    device = str(operands[0].device)
    seen = create_block_mask(_sees, None, None, case.queries, case.keys, device) if case.flex == "window" else None
    score, shared = _sloped if case.flex == "alibi" else None, case.heads != case.groups

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = flex_attention(q, k, v, score_mod=score, block_mask=seen, enable_gqa=shared)
        assert isinstance(made, Tensor)
        return made

    flexible = torch.compile(call, dynamic=False)
    try:
        with torch.no_grad():
            flexible(*operands)
    except InductorError as error:
        if device != "cpu" or "NotImplementedError" not in str(error):
            raise
        return None
    return flexible


_COLUMNS = (
    Column("attention", lambda row: row["case"] + " (CPU by a mask)" * row["cpu_by_mask"], left=True),
    Column("dtype", lambda row: row["dtype"], left=True),
    Column("", lambda row: "training" if row["training"] else "forward", left=True),
    *beside_cpu.MEASURED,
)
