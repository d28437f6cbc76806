"""``anyxpu bench kernels``: common kernels through torch.compile on xpu, beside Inductor's C++ on the CPU and eager.

Each is timed twice: giving new tensors, and writing into tensors that are there. The device is waited for at the end of
each timed run of calls, as one would with any asynchronous device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyxpu.bench import Request
from anyxpu.bench.kernel_cases import CASES, SIZES, Case, least_traffic, many
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import SETTLE_SECONDS, Sample, alternate

XPU, INDUCTOR, EAGER = "xpu", "cpu inductor", "cpu eager"
VARIANTS = ("new", "into")
_TARGET_SECONDS = 0.01  # of one timing
_QUICK = ("gelu", "sum outer", "softmax", "layernorm", "embedding backward", "transpose copy")

# A result is right where it is as near to f64 as its own type allows after sums over the larger dimension.
_TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass
class Side:
    """One way to run a case.

    Attributes:
        new: call it for new tensors.
        into: the same, written into :attr:`outputs`.
    """

    new: Callable[[], Any]
    into: Callable[[], Any]
    outputs: list[Tensor]


def run(request: Request) -> Report:
    """Time every case at every size.

    Wrong is: a side whose result is not the CPU's in f64, or an operator that the host served on the xpu side.
    """
    report = Report("Kernels, microseconds a call", _COLUMNS)
    names = request.only or (_QUICK if request.quick else tuple(CASES))
    sizes = ("L2",) if request.quick else tuple(SIZES)
    rounds = request.rounds or (5 if request.quick else 11)
    bandwidth = stream_bandwidth()
    report.settings = {"rounds": rounds, "sizes": {s: SIZES[s] for s in sizes}, "stream_bytes_per_second": bandwidth}
    for name in names:
        torch._dynamo.reset()
        for size in sizes:
            _progress(f"{name} {size}")
            try:
                _measure(report, CASES[name], size, rounds, bandwidth)
            except Exception as error:  # the other kernels' times are still wanted
                report.wrong.append(f"{name} {size}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    ratios = [row["ratio"][v] for row in report.rows for v in VARIANTS if row["ratio"]]
    report.goals = [
        Goal("lowest ratio over Inductor C++", min(ratios, default=None), 1.0, "higher"),
        Goal("geometric mean over Inductor C++", statistics.geometric_mean(ratios) if ratios else None, 1.5, "higher"),
    ]
    return report


def _measure(report: Report, case: Case, size: str, rounds: int, bandwidth: float) -> None:
    torch.manual_seed(0)
    arguments = case.arguments(*SIZES[size])
    before = _host_calls()
    sides = {
        XPU: _compiled(case, [_moved(a, "xpu") for a in arguments]),
        INDUCTOR: _compiled(case, arguments),
        EAGER: _side(case.function, _into(case.function), arguments),
    }
    torch.xpu.synchronize()
    host = _host_calls() - before
    row: dict[str, Any] = {"kernel": case.name, "size": size, "host_operators": host, "ratio": {}}
    report.rows.append(row)
    label = f"{case.name} {size}"
    if host:
        report.wrong.append(f"{label}: {host} operators ran on the host")
    wrong = [w for name, side in sides.items() for w in _wrong(case, arguments, side, f"{label} on {name}")]
    report.wrong += wrong
    if wrong:
        return
    traffic = least_traffic(arguments, sides[EAGER].outputs)
    row["bytes"] = traffic
    for variant in VARIANTS:
        samples = _timed({name: getattr(side, variant) for name, side in sides.items()}, rounds)
        for name, sample in samples.items():
            row.setdefault(name, {})[variant] = {**sample.as_dict("us"), "spread": sample.spread}
        row["ratio"][variant] = samples[INDUCTOR].median / samples[XPU].median
        row.setdefault("of_stream", {})[variant] = traffic / samples[XPU].median / bandwidth


def _timed(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Sample]:
    """Seconds a call of each; as many calls a timing as the fastest side needs to fill it."""
    once = alternate(calls, rounds=3, warmup=2, synchronize=torch.xpu.synchronize)
    fastest = min(sample.median for sample in once.values())
    count = max(1, min(1000, int(_TARGET_SECONDS / fastest)))
    return alternate(calls, rounds=rounds, calls=count, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS)


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _into(function: Callable[..., Any]) -> Callable[..., None]:
    def into(outputs: Sequence[Tensor], *arguments: Any) -> None:
        for out, result in zip(outputs, many(function(*arguments)), strict=True):
            out.copy_(result)

    return into


def _compiled(case: Case, arguments: Sequence[Any]) -> Side:
    compiled = torch.compile(case.function, dynamic=False, fullgraph=True)
    return _side(compiled, torch.compile(_into(case.function), dynamic=False, fullgraph=True), arguments)


def _side(new: Callable[..., Any], into: Callable[..., Any], arguments: Sequence[Any]) -> Side:
    outputs = [torch.empty_like(t) for t in many(new(*arguments))]
    into(outputs, *arguments)
    return Side(lambda: new(*arguments), lambda: into(outputs, *arguments), outputs)


def _wrong(case: Case, arguments: Sequence[Any], side: Side, label: str) -> list[str]:
    """What is wrong with a side's results, in words."""
    if case.draws:
        return _wrong_draw(arguments[0], side, label)
    expected = many(case.function(*(_double(a) for a in arguments)))
    found = []
    for variant, results in (("new", many(side.new())), ("into", side.outputs)):
        for i, (got, want) in enumerate(zip(results, expected, strict=True)):
            tolerance = _TOLERANCE.get(got.dtype, 0.0)
            scale = max(1.0, float(want.double().abs().max()))
            error = float((got.cpu().double() - want.double()).abs().max()) / scale
            if not error <= tolerance:
                found.append(f"{label}, {variant}, result {i}: error {error:.2e} (bound {tolerance:.0e})")
    return found


def _wrong_draw(x: Tensor, side: Side, label: str) -> list[str]:
    """Dropout with p = 1/4: a quarter is zero, the rest is scaled."""
    got = side.new().cpu()
    kept = got != 0
    part = 1 - float(kept.float().mean())
    bound = 0.25 / x.numel() ** 0.5 * 8
    right = abs(part - 0.25) < bound and torch.allclose(got[kept], x[kept] / 0.75)
    return [] if right else [f"{label}: {part:.3f} dropped, or the rest is not the input over 0.75"]


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _host_calls() -> int:
    from anyxpu import ops

    return sum(counts.get("host", 0) for counts in ops.counters().values())


def stream_bandwidth() -> float:
    """Bytes a second of ``a = b + s * c`` over 64 MiB arrays on all cores, counting what is read and written."""
    b, c, a = torch.ones(1 << 24), torch.ones(1 << 24), torch.ones(1 << 24)
    sample = alternate({"triad": lambda: torch.add(b, c, alpha=3.0, out=a)}, rounds=15, warmup=2)["triad"]
    return 3 * a.numel() * a.element_size() / min(sample.seconds)


def _progress(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"  {text}", style="dim", highlight=False)


def _time(side: str, variant: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side][variant]['median_us']:.1f}" if side in row else "-"


def _ratio(variant: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['ratio'][variant]:.2f}x" if row["ratio"] else "-"


_COLUMNS = (
    Column("kernel", lambda row: row["kernel"], left=True),
    Column("size", lambda row: row["size"], left=True),
    Column("xpu new", _time(XPU, "new")),
    Column("into", _time(XPU, "into")),
    Column("Inductor new", _time(INDUCTOR, "new")),
    Column("into", _time(INDUCTOR, "into")),
    Column("eager new", _time(EAGER, "new")),
    Column("into", _time(EAGER, "into")),
    Column("ratio new", _ratio("new")),
    Column("into", _ratio("into")),
    Column("of STREAM", lambda row: f"{row['of_stream']['into']:.0%}" if "of_stream" in row else "-"),
)
