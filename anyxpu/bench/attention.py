"""``anyxpu bench attention``: attention of common models, eager and compiled, forward and with its gradients.

Each side is checked against attention in f64 before it is timed, and the sides alternate. What a score costs is counted
as two multiplications and two additions for each element of a head, backward as five halves of that; masked scores are
not counted.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anyxpu.bench import Request
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import Sample, alternate

CPU, XPU, CPU_COMPILED, XPU_COMPILED = "cpu eager", "xpu eager", "cpu inductor", "xpu compiled"
SIDES = (CPU, XPU, CPU_COMPILED, XPU_COMPILED)
_TARGET_SECONDS = 0.03  # of one timing
_SETTLE_SECONDS = 0.02  # before each: the other sides' threads have gone to sleep
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}  # of the largest element


@dataclass(frozen=True)
class Case:
    """Attention as one model has it: batches, heads of queries and of keys, queries, keys, elements of a head."""

    batches: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    trained: bool = True

    def operations(self) -> float:
        """Of a forward."""
        scores = self.batches * self.heads * self.queries * self.keys
        return 4.0 * scores * self.size * (0.5 if self.causal else 1.0)


CASES: dict[str, Case] = {
    "bert-base 128": Case(8, 12, 12, 128, 128, 64),
    "gpt2 512": Case(4, 12, 12, 512, 512, 64, causal=True),
    "vit-small 197": Case(8, 6, 6, 197, 197, 64),
    "llama3-8b prefill 1024": Case(1, 32, 8, 1024, 1024, 128, causal=True, trained=False),
    "llama3-8b decode 1024": Case(1, 32, 8, 1, 1024, 128, trained=False),
    "sd-unet 1024": Case(2, 8, 8, 1024, 1024, 80),
    "sd-unet 4096": Case(1, 8, 8, 4096, 4096, 40, trained=False),
}
_QUICK = ("bert-base 128", "gpt2 512")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def run(request: Request) -> Report:
    """Time every case in f32, bf16 and f16. Wrong is a side whose result is not attention in f64."""
    report = Report("Attention, milliseconds", _COLUMNS)
    names = request.only or (_QUICK if request.quick else tuple(CASES))
    rounds = request.rounds or (5 if request.quick else 9)
    report.settings = {"rounds": rounds, "peak_flop_per_second": _peak()}
    for name in names:
        for dtype in DTYPES[:2] if request.quick else DTYPES:
            for trained in (False, True) if CASES[name].trained else (False,):
                _progress(f"{name} {_short(dtype)} {'training' if trained else 'forward'}")
                torch._dynamo.reset()
                _measure(report, name, dtype, trained, rounds)
    for key, what, goal in (("eager", "eager over CPU eager", 1.0), ("compiled", "compiled over CPU Inductor", 1.0)):
        ratios = [row["ratio"][key] for row in report.rows if row["ratio"]]
        mean = statistics.geometric_mean(ratios) if ratios else None
        report.goals += [
            Goal(f"lowest ratio, {what}", min(ratios, default=None), goal, "higher"),
            Goal(f"geometric mean, {what}", mean, 1.05, "higher"),
        ]
    return report


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

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.groups)

    def side(device: str, compiled: bool) -> Callable[[], list[Tensor]]:
        *leaves, gradient = (t.to(device) for t in made)
        call = torch.compile(attention, dynamic=False) if compiled else attention
        if not trained:
            return torch.no_grad()(lambda: [call(*leaves)])
        leaves = [t.requires_grad_() for t in leaves]
        return lambda: [*torch.autograd.grad(call(*leaves), leaves, gradient)]

    sides = {CPU: side("cpu", False), XPU: side("xpu", False)}
    sides |= {CPU_COMPILED: side("cpu", True), XPU_COMPILED: side("xpu", True)}
    row: dict[str, Any] = {"case": name, "dtype": _short(dtype), "training": trained, "ratio": {}}
    report.rows.append(row)
    *exact, gradient = (t.double() for t in made)
    if trained:
        exact = [t.requires_grad_() for t in exact]
        expected = list(torch.autograd.grad(attention(*exact), exact, gradient))
    else:
        expected = [attention(*exact)]
    for label, call in sides.items():
        for mine, theirs in zip(call(), expected, strict=True):
            error = float((mine.detach().cpu().double() - theirs).abs().max() / theirs.abs().max())
            if not error <= _TOLERANCE[dtype]:
                report.wrong.append(f"{name} {_short(dtype)} on {label}: wrong by {error:.2g} of the largest element")
                return
    samples = _timed(sides, rounds)
    operations = case.operations() * (3.5 if trained else 1.0)
    for label, sample in samples.items():
        row[label] = {**sample.as_dict("ms"), "spread": sample.spread, "flop_per_second": operations / sample.median}
    row["of_peak"] = operations / samples[XPU].median / report.settings["peak_flop_per_second"]
    row["ratio"] = {
        "eager": samples[CPU].median / samples[XPU].median,
        "compiled": samples[CPU_COMPILED].median / samples[XPU_COMPILED].median,
    }


def _timed(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Sample]:
    once = alternate(sides, rounds=1, warmup=1, synchronize=torch.xpu.synchronize)
    count = max(1, math.ceil(_TARGET_SECONDS / max(sample.median for sample in once.values())))
    return alternate(sides, rounds=rounds, calls=count, synchronize=torch.xpu.synchronize, settle=_SETTLE_SECONDS)


def _peak() -> float:
    """Operations a second of an f32 product on this machine's CPU, the best of several."""
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2.0 * 1024**3 / min(times)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _time(side: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side]['median_ms']:.2f} ±{row[side]['spread']:.0%}" if side in row else "-"


def _ratio(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['ratio'][key]:.2f}x" if row["ratio"] else "-"


_COLUMNS = (
    Column("attention", lambda row: row["case"], left=True),
    Column("dtype", lambda row: row["dtype"], left=True),
    Column("", lambda row: "training" if row["training"] else "forward", left=True),
    *(Column(side, _time(side)) for side in SIDES),
    Column("eager", _ratio("eager")),
    Column("compiled", _ratio("compiled")),
    Column("f32 peak", lambda row: f"{row['of_peak']:.0%}" if "of_peak" in row else "-"),
)
