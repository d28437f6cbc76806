"""``anyxpu bench onednn``: products, convolutions and recurrent layers of common models, beside the CPU.

The eager sides run the operators one by one; the compiled ones are frozen (``torch._inductor.config.freezing``), so
that the CPU packs its weights and fuses; on xpu convolutions fuse, and products with what follows them but for relu,
which is a kernel of its own, as gelu, silu and tanh are where registers are short (AVX2).
Each side is checked against f64 before it is timed, and the sides alternate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyxpu.bench import Request, beside_cpu
from anyxpu.bench.report import Column, Goal, Report

_AFTER: dict[str, Callable[[Tensor], Tensor]] = {"": lambda x: x, "gelu": F.gelu, "relu": F.relu, "silu": F.silu}


@dataclass(frozen=True)
class Linear:
    """``after(x @ weight.T + bias)`` of ``rows`` x ``depth`` by ``depth`` x ``columns``."""

    rows: int
    depth: int
    columns: int
    after: str = ""

    def operations(self) -> float:
        return 2.0 * self.rows * self.depth * self.columns

    def module(self) -> nn.Module:
        return nn.Linear(self.depth, self.columns)

    def source(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.rows, self.depth, generator=generator)


@dataclass(frozen=True)
class Convolution:
    """``after(convolution(x) + bias)`` of square images; ``groups`` is the number of channels where depthwise."""

    batch: int
    channels: int
    size: int
    made: int
    kernel: int
    after: str = ""
    stride: int = 1
    groups: int = 1
    channels_last: bool = True

    def operations(self) -> float:
        side = -(-self.size // self.stride)
        return 2.0 * self.batch * side**2 * self.made * self.channels // self.groups * self.kernel**2

    def module(self) -> nn.Module:
        padding = self.kernel // 2
        module = nn.Conv2d(self.channels, self.made, self.kernel, self.stride, padding, groups=self.groups)
        if self.channels_last:
            module.weight.data = module.weight.data.to(memory_format=torch.channels_last)
        return module

    def source(self, generator: torch.Generator) -> Tensor:
        images = torch.randn(self.batch, self.channels, self.size, self.size, generator=generator)
        return images.to(memory_format=torch.channels_last) if self.channels_last else images


@dataclass(frozen=True)
class Recurrent:
    """The states of ``layers`` of nn.LSTM or nn.GRU, ``hidden`` wide, over ``steps`` of ``batch`` x ``inputs``."""

    kind: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    after: str = ""

    def operations(self) -> float:
        gates = {"LSTM": 4, "GRU": 3}[self.kind]
        widths = self.inputs + self.hidden + (self.layers - 1) * 2 * self.hidden
        return 2.0 * self.steps * self.batch * gates * self.hidden * widths

    def module(self) -> nn.Module:
        return _States(getattr(nn, self.kind)(self.inputs, self.hidden, self.layers))

    def source(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.steps, self.batch, self.inputs, generator=generator)


class _States(nn.Module):
    """A recurrent network without its last state."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.network(x)[0]
        return states


Case = Linear | Convolution | Recurrent

CASES: dict[str, Case] = {
    "bert-base qkv": Linear(256, 768, 2304),
    "bert-base ffn": Linear(256, 768, 3072, "gelu"),
    "gpt2 head": Linear(64, 768, 50257),
    "vit-small ffn": Linear(394, 384, 1536, "gelu"),
    "llama3-8b prefill up": Linear(256, 4096, 14336, "silu"),
    "llama3-8b decode up": Linear(1, 4096, 14336, "silu"),
    "llama3-8b decode batch": Linear(8, 4096, 4096),
    "resnet50 stem": Convolution(2, 3, 224, 64, 7, "relu", stride=2),
    "resnet50 3x3 64": Convolution(2, 64, 56, 64, 3, "relu"),
    "resnet50 1x1 256": Convolution(2, 64, 56, 256, 1, "relu"),
    "resnet50 3x3 512": Convolution(2, 512, 7, 512, 3, "relu"),
    "resnet50 3x3 512 contiguous": Convolution(2, 512, 7, 512, 3, "relu", channels_last=False),
    "convnext 7x7 depthwise": Convolution(2, 96, 56, 96, 7, groups=96),
    "mobilenet 3x3 depthwise": Convolution(2, 144, 56, 144, 3, "relu", groups=144),
    "mobilenet 1x1": Convolution(2, 144, 56, 24, 1),
    "sd-unet 3x3 320": Convolution(1, 320, 64, 320, 3, "silu"),
    "lstm 2 x 512": Recurrent("LSTM", 64, 16, 256, 512, layers=2),
    "gru 256": Recurrent("GRU", 100, 8, 128, 256),
}
_QUICK = ("bert-base ffn", "resnet50 3x3 64")
DTYPES = (torch.float32, torch.bfloat16)


def run(request: Request) -> Report:
    """Time every case in f32 and bf16. Wrong is a side whose result is not f64's."""
    report = Report("Products, convolutions and recurrent layers, milliseconds", _COLUMNS)
    rounds = request.rounds or (5 if request.quick else 9)
    report.settings = {"rounds": rounds, "peak_flop_per_second": beside_cpu.peak()}
    for name in request.only or (_QUICK if request.quick else tuple(CASES)):
        for dtype in DTYPES:
            beside_cpu.progress(f"{name} {beside_cpu.short(dtype)}")
            torch._dynamo.reset()
            _measure(report, name, dtype, rounds)
    report.goals += beside_cpu.goals(report, 0.97, 1.05)
    fused = [row["ratio"]["fused"] for row in report.rows if row["ratio"] and row["after"]]
    report.goals.append(
        Goal("lowest ratio, frozen over eager, with something after it", min(fused, default=None), 1.1, "higher")
    )
    return report


class _Layer(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = case.module()
        self.after = _AFTER[case.after]

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(x))


def _measure(report: Report, name: str, dtype: torch.dtype, rounds: int) -> None:
    case = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = _Layer(case).to(dtype).eval()
    source = case.source(torch.Generator().manual_seed(0)).to(dtype)

    def side(device: str, compiled: bool) -> Callable[[], list[Tensor]]:
        module = _Layer(case).to(dtype).eval()
        module.load_state_dict(layer.state_dict())
        module, x = module.to(device), source.to(device)
        call = torch.compile(module, dynamic=False) if compiled else module
        return torch.no_grad()(lambda: [call(x)])

    sides = {beside_cpu.CPU: side("cpu", False), beside_cpu.XPU: side("xpu", False)}
    sides |= {beside_cpu.CPU_COMPILED: side("cpu", True), beside_cpu.XPU_COMPILED: side("xpu", True)}
    row: dict[str, Any] = {"case": name, "dtype": beside_cpu.short(dtype), "after": case.after, "ratio": {}}
    report.rows.append(row)
    with torch.no_grad():
        expected = [layer.double()(source.double())]
    with torch._inductor.config.patch(freezing=True):
        if wrong := beside_cpu.first_wrong(sides, expected, dtype):
            report.wrong.append(f"{name} {beside_cpu.short(dtype)} on {wrong}")
            return
        beside_cpu.time_sides(row, sides, rounds, case.operations(), report.settings["peak_flop_per_second"])
    row["ratio"]["fused"] = row[beside_cpu.XPU]["median_ms"] / row[beside_cpu.XPU_COMPILED]["median_ms"]


_COLUMNS = (
    Column("operator", lambda row: row["case"], left=True),
    Column("dtype", lambda row: row["dtype"], left=True),
    Column("and", lambda row: row["after"] or "-", left=True),
    *beside_cpu.MEASURED,
    Column("frozen / eager", beside_cpu.ratio("fused")),
)
