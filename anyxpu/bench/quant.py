"""``anyxpu bench quant``: torchao's workflows on Llama-3-8B's layers, beside bfloat16 on xpu and torchao on the CPU.

Each layer is compiled, once a number of rows: 1 and 8 are decoding, 128 and 1024 a prompt. The sides alternate in one
process, and results are compared first, with the signal-to-noise ratio that the workflow's format allows. Layers whose
weights would stay in the CPU's caches from call to call are called in turn with others of their kind, as a model does.
The limit is the weights' bytes over the bandwidth that is measured at the start; it means something for few rows.
``generate`` is a decoder of two layers that makes tokens one by one, its keys and values kept.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyxpu.bench import Request, beside_cpu
from anyxpu.bench.kernels import stream_bandwidth
from anyxpu.bench.quant_workflows import WORKFLOWS
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import SETTLE_SECONDS, alternate
from anyxpu.errors import UnsupportedOperation

LAYERS: dict[str, tuple[int, int]] = {
    "qkv": (4096, 6144),
    "o": (4096, 4096),
    "up": (4096, 14336),
    "down": (14336, 4096),
}
"""Name -> columns of activations, columns of results."""

ROWS = (1, 8, 128, 1024)
GENERATE = "generate"
CASES: dict[str, str] = {name: name for name in (*LAYERS, GENERATE, *WORKFLOWS)}
"""What :attr:`Request.only` may hold: layers, and workflows; of those that it does not name, all are taken."""

_BF16, _CPU = "xpu bfloat16", "cpu, the same"
_QUICK = ("int4", "int8 dynamic")
_BEYOND_CACHES = 192 << 20  # bytes of bfloat16 weights that one side goes through before it comes back to the first
_TOKENS, _PROMPT = 64, 16
_ENOUGH = 60.0  # seconds of a layer's timed calls, after which three rounds do: torchao's int8 of a CPU without VNNI


def run(request: Request) -> Report:
    """Time every workflow. Wrong is one whose result is farther from bfloat16's than its format explains."""
    if importlib.util.find_spec("torchao") is None:
        raise UnsupportedOperation(
            "anyxpu bench quant needs torchao, which is not installed: pip install anyxpu[quant]"
        )
    report = Report("torchao's workflows, milliseconds", _COLUMNS)
    rounds = request.rounds or (3 if request.quick else 7)
    bandwidth = stream_bandwidth()
    report.settings = {"rounds": rounds, "stream_bytes_per_second": bandwidth}
    every = (("o",), _QUICK) if request.quick else ((*LAYERS, GENERATE), tuple(WORKFLOWS))
    cases = [name for name in request.only if name not in WORKFLOWS] or every[0]
    workflows = [name for name in request.only if name in WORKFLOWS] or every[1]
    for case in cases:
        for workflow in workflows:
            if case == GENERATE:
                beside_cpu.progress(f"{case}, {workflow}")
                _measure_generation(report, workflow, rounds)
                continue
            for rows in (1, 128) if request.quick else ROWS:
                beside_cpu.progress(f"{case} x {rows}, {workflow}")
                _measure(report, case, workflow, rows, rounds, bandwidth)
    report.goals += _goals(report)
    return report


@torch.no_grad()
def _measure(report: Report, case: str, workflow: str, rows: int, rounds: int, bandwidth: float) -> None:
    from torchao.quantization import quantize_

    depth, columns = LAYERS[case]
    count = max(1, -(-_BEYOND_CACHES // (2 * depth * columns)))
    chosen, row = WORKFLOWS[workflow], {"case": case, "workflow": workflow, "rows": rows, "ratio": {}}
    report.rows.append(row)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(columns, depth, generator=generator).mul_(depth**-0.5).bfloat16()
    x = torch.randn(rows, depth, generator=generator).bfloat16()

    def side(device: str, narrow: bool) -> Callable[[], Tensor]:
        layers = [nn.Linear(depth, columns, bias=False, device="meta") for _ in range(count)]
        for layer in layers:
            layer.weight = nn.Parameter(weight.to(device, copy=True), requires_grad=False)
            if narrow:
                quantize_(layer, chosen.config())
        torch._dynamo.reset()
        calls = [torch.compile(layer, dynamic=False) for layer in layers]
        given, turn = x.to(device), itertools.cycle(calls)
        for call in calls:
            call(given)
        return torch.no_grad()(lambda: next(turn)(given))

    sides = {_BF16: side("xpu", False), f"xpu {workflow}": side("xpu", True)}
    if chosen.on_cpu:
        sides[_CPU] = side("cpu", True)
    exact = F.linear(x.float(), weight.float())
    noises = {name: _noise(exact, call()) for name, call in sides.items()}
    row["noise_db"] = noises[f"xpu {workflow}"]
    wrong = {name: noise for name, noise in noises.items() if not noise >= (40 if name == _BF16 else chosen.least - 1)}
    if wrong:
        said = ", ".join(f"{name} {noise:.1f} dB" for name, noise in wrong.items())
        report.wrong.append(f"{case} x {rows}, {workflow}: {said}, where {chosen.least:g} are its format's")
        return
    hosted = _hosted(sides[f"xpu {workflow}"])
    if hosted:
        report.wrong.append(f"{case} x {rows}, {workflow}: on the host: {', '.join(hosted)}")
    calls = max(count, 8) if rows <= 8 else count
    samples = alternate(
        sides, rounds=rounds, calls=calls, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS, enough=_ENOUGH
    )
    _put(row, samples, workflow)
    limit = depth * columns * chosen.bits / 8 / bandwidth
    row["of_limit"] = limit / samples[f"xpu {workflow}"].median


def _put(row: dict[str, Any], samples: dict[str, Any], workflow: str) -> None:
    narrow = samples[f"xpu {workflow}"]
    for name, label in ((_BF16, "bf16"), (f"xpu {workflow}", "xpu"), (_CPU, "cpu")):
        if name in samples:
            row[label] = {**samples[name].as_dict("ms"), "spread": samples[name].spread}
    row["ratio"] = {"bf16": samples[_BF16].median / narrow.median}
    if _CPU in samples:
        row["ratio"]["cpu"] = samples[_CPU].median / narrow.median


def _noise(exact: Tensor, got: Tensor) -> float:
    exact, got = exact.double().cpu(), got.double().cpu()
    return float(20 * torch.log10(exact.norm() / (exact - got).norm()))


def _hosted(call: Callable[[], object]) -> list[str]:
    from anyxpu import ops

    ops.reset_counters()
    call()
    return sorted(name for name, ways in ops.counters().items() if "host" in ways)


class Decoder(nn.Module):
    """Two layers of a Llama of width 1024, with a cache of keys and values for one sequence."""

    def __init__(
        self, width: int = 1024, heads: int = 16, layers: int = 2, words: int = 512, length: int = 128
    ) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        names = {"qkv": 3 * width, "o": width, "up": 8 * width, "down": width}
        depths = {"qkv": width, "o": width, "up": width, "down": 4 * width}
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(depths[name], size, bias=False) for name, size in names.items()})
            for _ in range(layers)
        )
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(2, layers, heads, length, width // heads, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Logits ``(1, words)`` after ``tokens`` ``(t,)`` that stand at ``places``."""
        x = self.words(tokens)
        seen = places[:, None] >= torch.arange(self.length, device=places.device)
        layer: Any
        for index, layer in enumerate(self.layers):
            q, k, v = layer["qkv"](F.rms_norm(x, x.shape[-1:])).unflatten(-1, (3, self.heads, -1)).unbind(1)
            keys, values = self.cache[0, index], self.cache[1, index]
            keys.index_copy_(1, places, k.transpose(0, 1))
            values.index_copy_(1, places, v.transpose(0, 1))
            seen_by = F.scaled_dot_product_attention(q.transpose(0, 1), keys, values, attn_mask=seen)
            x = x + layer["o"](seen_by.transpose(0, 1).flatten(1))
            gate, up = layer["up"](F.rms_norm(x, x.shape[-1:])).chunk(2, -1)
            x = x + layer["down"](F.silu(gate) * up)
        logits: Tensor = self.head(F.rms_norm(x[-1:], x.shape[-1:]))
        return logits


def generate(model: Callable[[Tensor, Tensor], Tensor], prompt: Tensor, count: int) -> Tensor:
    """The ``count`` likeliest tokens after ``prompt``, one by one."""
    places = torch.arange(len(prompt), device=prompt.device)
    tokens, made = prompt, []
    for _ in range(count):
        tokens = model(tokens, places).argmax(-1)
        made.append(tokens)
        places = places[-1:] + 1
    return torch.cat(made)


@torch.no_grad()
def _measure_generation(report: Report, workflow: str, rounds: int) -> None:
    from torchao.quantization import quantize_

    chosen = WORKFLOWS[workflow]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = Decoder().bfloat16().state_dict()
    prompt = torch.arange(_PROMPT)

    def side(device: str, narrow: bool, compiled: bool) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """What generates, and one more token by the same model."""
        decoder = Decoder().bfloat16()
        decoder.load_state_dict(state)
        decoder = decoder.to(device)
        if narrow:
            quantize_(decoder, chosen.config(), filter_fn=lambda module, name: isinstance(module, nn.Linear))
        torch._dynamo.reset()
        call = torch.compile(decoder) if compiled else decoder
        given, place = prompt.to(device), torch.tensor([_PROMPT], device=device)
        return (lambda: generate(call, given, _TOKENS)), (lambda: call(given[-1:], place))

    for compiled in (False, True):
        form = "compiled" if compiled else "eager"
        row = {"case": f"{GENERATE}, {form}", "workflow": workflow, "rows": 1, "ratio": {}}
        report.rows.append(row)
        narrow, once_more = side("xpu", True, compiled)
        sides = {_BF16: side("xpu", False, compiled)[0], f"xpu {workflow}": narrow}
        if chosen.on_cpu:
            sides[_CPU] = side("cpu", True, compiled)[0]
        made = {name: call() for name, call in sides.items()}
        if any(tokens.shape != (_TOKENS,) for tokens in made.values()):
            report.wrong.append(f"{GENERATE}, {workflow}: not {_TOKENS} tokens")
            continue
        if compiled and (hosted := _hosted(once_more)):
            report.wrong.append(f"{GENERATE}, {workflow}: on the host: {', '.join(hosted)}")
        samples = alternate(sides, rounds=rounds, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS)
        _put(row, samples, workflow)


def _goals(report: Report) -> list[Goal]:
    made = []
    layers = [row for row in report.rows if row["ratio"] and row["case"] in LAYERS]

    def mean(workflow: str, rows: int, key: str) -> float | None:
        found = [row["ratio"][key] for row in layers if row["workflow"] == workflow and row["rows"] == rows]
        return statistics.geometric_mean(found) if found else None

    for workflow, least in (("int8", 1.7), ("int4", 2.8), ("float8", 1.6)):
        made.append(Goal(f"{workflow} over bfloat16, 1 row", mean(workflow, 1, "bf16"), least, "higher"))
        shares = [row["of_limit"] for row in layers if row["workflow"] == workflow and row["rows"] == 1]
        found = statistics.geometric_mean(shares) if shares else None
        made.append(Goal(f"{workflow}, share of the bandwidth's limit, 1 row", found, 0.7, "higher"))
    made.append(Goal("int8 dynamic over bfloat16, 1024 rows", mean("int8 dynamic", 1024, "bf16"), 1.3, "higher"))
    beside = [row["ratio"]["cpu"] for row in layers if "cpu" in row["ratio"]]
    made.append(Goal("lowest over torchao on the CPU", min(beside, default=None), 1.0, "higher"))
    return made


def _time(side: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side]['median_ms']:.2f} ±{row[side]['spread']:.0%}" if side in row else "-"


def _ratio(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['ratio'][key]:.2f}x" if key in row["ratio"] else "-"


_COLUMNS = (
    Column("layer", lambda row: row["case"], left=True),
    Column("rows", lambda row: str(row["rows"])),
    Column("workflow", lambda row: row["workflow"], left=True),
    Column(_BF16, _time("bf16")),
    Column("xpu", _time("xpu")),
    Column(_CPU, _time("cpu")),
    Column("over bfloat16", _ratio("bf16")),
    Column("over the CPU's", _ratio("cpu")),
    Column("of limit", lambda row: f"{row['of_limit']:.0%}" if "of_limit" in row else "-"),
    Column("dB", lambda row: f"{row['noise_db']:.1f}" if "noise_db" in row else "-"),
)
