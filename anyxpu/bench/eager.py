"""``anyxpu bench eager``: operators at three sizes, and eager training steps, beside the CPU's in the same run.

Kernels are waited for (``ANYXPU_EAGER=compile``), results are compared before anything is timed, and the sides
alternate. An operator is timed as one call among many, and alone until the device is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyxpu.bench import Request, beside_cpu
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import SETTLE_SECONDS, alternate

SIZES = {"16": 16, "64 KiB": 1 << 14, "8 MiB": 1 << 21}
Call = Callable[[Tensor], Tensor]


def _operators(rows: int, columns: int) -> dict[str, Call]:
    """name -> what is done to a tensor ``(rows, columns)``; more operands are made of it."""
    return {
        "add": lambda x: x + x,
        "mul, broadcast": lambda x: x * x[:1],
        "relu_": lambda x: x.relu_(),
        "gelu": lambda x: F.gelu(x),
        "sum over rows": lambda x: x.sum(0),
        "layer_norm": lambda x: F.layer_norm(x, (columns,)),
        "softmax": lambda x: x.softmax(-1),
        "cat of 8": lambda x: torch.cat(x.split(max(rows // 8, 1))),
        "index_select": lambda x: x.index_select(0, _some(rows, x.device)),
        "copy_ with cast": lambda x: x.to(torch.bfloat16),
    }


_INDICES: dict[tuple[int, torch.device], Tensor] = {}


def _some(rows: int, device: torch.device) -> Tensor:
    """Rows to take, the same at every call."""
    key = rows, device
    if key not in _INDICES:
        _INDICES[key] = torch.arange(rows - 1, -1, -1).to(device)
    return _INDICES[key]


class _NanoGpt(nn.Module):
    """A decoder of width 64: two layers, four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        layers = (nn.TransformerEncoderLayer(64, 4, 256, 0.0, F.gelu, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(64, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        made = self.head(x[:, :-1])
        return F.cross_entropy(made.flatten(0, 1), tokens[:, 1:].flatten())


def _language_model(name: str) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

        class Loss(nn.Module):
            def __init__(self, model: nn.Module) -> None:
                super().__init__()
                self.model = model

            def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
                return self.model(input_ids=tokens, labels=labels).loss

        quiet: dict[str, Any] = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        calm: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        tokens = torch.randint(0, 30000, (1, 64))
        if name == "gpt2":
            return Loss(GPT2LMHeadModel(GPT2Config(**quiet))), (tokens, tokens)
        return Loss(BertForSequenceClassification(BertConfig(**calm))), (tokens, torch.tensor([1]))

    return make


def _nano() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _NanoGpt(), (torch.randint(0, 128, (8, 64)),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "nanoGPT of width 64": _nano,
    "GPT-2 small": _language_model("gpt2"),
    "BERT-base": _language_model("bert"),
}
CASES = (*_operators(1, 1), *MODELS)


def run(request: Request) -> Report:
    """Time every case. Wrong is a side whose result differs from the CPU's, or a loss that does."""
    from anyxpu.shim import lib

    report = Report("Eager operators and training steps, microseconds", _COLUMNS)
    rounds = request.rounds or (7 if request.quick else 21)
    report.settings = {"rounds": rounds, "eager": "compile"}
    before = lib().eager()
    lib().set_eager("compile")
    try:
        for label, count in SIZES.items():
            rows, columns = (4, count // 4) if count < 64 else (count // 256, 256)
            for name, call in _operators(rows, columns).items():
                if not request.only or name in request.only:
                    _operator(report, name, label, call, torch.randn(rows, columns), rounds)
        for name in () if request.quick and not request.only else MODELS:
            if not request.only or name in request.only:
                _step(report, name, max(3, rounds // 4))
    finally:
        lib().set_eager(before)
    report.goals += _goals(report)
    return report


def _operator(report: Report, name: str, size: str, call: Call, x: Tensor, rounds: int) -> None:
    beside_cpu.progress(f"{name} {size}")
    there = x.to("xpu")
    row: dict[str, Any] = {"case": name, "size": size}
    report.rows.append(row)
    want, got = call(x.clone()), call(there.clone()).cpu()
    if want.dtype != got.dtype or not torch.allclose(got.float(), want.float(), rtol=1e-4, atol=1e-4):
        report.wrong.append(f"{name} {size}: the result differs from the CPU's")
        return

    def alone() -> None:
        call(there)
        torch.xpu.synchronize()

    calls = 200 if x.numel() < 1 << 18 else 10
    many = alternate(
        {"cpu": lambda: call(x), "xpu": lambda: call(there)}, rounds=rounds, calls=calls, settle=SETTLE_SECONDS,
        synchronize=torch.xpu.synchronize,
    )  # fmt: skip
    done = alternate({"cpu": lambda: call(x), "xpu": alone}, rounds=rounds, calls=calls, settle=SETTLE_SECONDS)
    for key, samples in (("many", many), ("done", done)):
        for side, sample in samples.items():
            row[f"{side} {key}"] = {**sample.as_dict("us"), "spread": sample.spread}
        row[f"ratio {key}"] = samples["cpu"].median / samples["xpu"].median


def _step(report: Report, name: str, rounds: int) -> None:
    """One training step with AdamW and clipping."""
    import anyxpu.ops

    beside_cpu.progress(f"step of {name}")
    row: dict[str, Any] = {"case": f"step of {name}", "size": ""}
    report.rows.append(row)
    torch.manual_seed(0)
    model, given = MODELS[name]()
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def side(device: str) -> Callable[[], float]:
        mine, _ = MODELS[name]()
        mine.load_state_dict(state)
        mine = mine.to(device).train()
        operands = [t.to(device) for t in given]
        optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-4)

        def step() -> float:
            optimizer.zero_grad()
            loss = mine(*operands)
            loss.backward()
            nn.utils.clip_grad_norm_(mine.parameters(), 1.0)
            optimizer.step()
            return float(loss.detach())

        return step

    sides = {device: side(device) for device in ("cpu", "xpu")}
    losses = {device: [step() for _ in range(2)] for device, step in sides.items()}
    if not torch.allclose(torch.tensor(losses["cpu"]), torch.tensor(losses["xpu"]), rtol=1e-3):
        report.wrong.append(f"{name}: losses {losses}")
        return
    anyxpu.ops.reset_counters()
    sides["xpu"]()
    ways = anyxpu.ops.counters().values()
    row["host"] = sum(how.get("host", 0) for how in ways)
    row["calls"] = sum(sum(how.values()) for how in ways)
    samples = alternate(sides, rounds=rounds, settle=SETTLE_SECONDS, synchronize=torch.xpu.synchronize)
    for device, sample in samples.items():
        row[f"{device} done"] = {**sample.as_dict("us"), "spread": sample.spread}
    row["ratio done"] = samples["cpu"].median / samples["xpu"].median


def _goals(report: Report) -> list[Goal]:
    """Issue 13's: of small calls how often the CPU's time, of larger ones and of steps the ratio of the two."""
    small = [row for row in report.rows if row["size"] == "16" and "ratio done" in row]
    large = [row["ratio done"] for row in report.rows if row["size"] in ("64 KiB", "8 MiB") and "ratio done" in row]
    steps = [row for row in report.rows if row["case"].startswith("step") and "ratio done" in row]
    most = [max((1 / row[f"ratio {key}"] for row in small), default=None) for key in ("many", "done")]
    made = [
        Goal("16 elements, a call among many, times the CPU's, largest", most[0], 2.0, "lower"),
        Goal("16 elements, until done, times the CPU's, largest", most[1], 4.0, "lower"),
        Goal("64 KiB and 8 MiB, CPU over xpu, geometric mean", statistics.geometric_mean(large) if large else None,
             1.0, "higher"),
    ]  # fmt: skip
    if steps:
        host = max(row["host"] / row["calls"] for row in steps)
        made.append(Goal("training steps, CPU over xpu, lowest", min(r["ratio done"] for r in steps), 1.0, "higher"))
        made.append(Goal("training steps, calls on the host, largest share", host, 0.005, "lower"))
    return made


def _time(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[key]['median_us']:.1f} ±{50 * row[key]['spread']:.0f}%" if key in row else ""


def _ratio(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[key]:.2f}" if key in row else ""


_COLUMNS = (
    Column("what", lambda row: row["case"], left=True),
    Column("size", lambda row: row["size"], left=True),
    Column("cpu, among many", _time("cpu many")),
    Column("xpu, among many", _time("xpu many")),
    Column("cpu / xpu", _ratio("ratio many")),
    Column("cpu, until done", _time("cpu done")),
    Column("xpu, until done", _time("xpu done")),
    Column("cpu / xpu", _ratio("ratio done")),
)
