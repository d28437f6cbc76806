"""One row of the demo: build the sides, check that they agree with the reference, then time them alternating."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor.codecache import PyCodeCache

from anyxpu.bench import fusions
from anyxpu.bench.served import counters, served_since
from anyxpu.bench.timing import SETTLE_SECONDS, alternate
from anyxpu.demo.compare import BOUNDS, relative_error, triton_kernels
from anyxpu.demo.models import Model
from anyxpu.demo.progress import Narrator
from anyxpu.demo.sides import Inference, Training

XPU, INDUCTOR, EAGER = "xpu compiled", "cpu inductor", "cpu eager"
TRAINING_STEPS = 3
_ENOUGH_SECONDS = 60.0  # of timing a row: a CPU without instructions of 16 bits takes minutes a call


@dataclass(frozen=True)
class Plan:
    """What one row is about.

    Attributes:
        mode: "inference" or "training".
        dtype: what all three timed sides compute in.
        device: the device under test, "xpu" unless the demo itself is being developed.
        rounds: timed rounds.
    """

    model: Model
    mode: str
    dtype: torch.dtype
    device: str
    rounds: int

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def title(self) -> str:
        return f"{self.model.name} {self.mode} {self.dtype_name}"

    @property
    def reference_dtype(self) -> torch.dtype:
        """float64 judges float32; float32 is far enough above bfloat16."""
        return torch.float64 if self.dtype == torch.float32 else torch.float32

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.accelerator.synchronize()


class Recorder:
    """Runs compiled calls while keeping what they cost to compile and what served them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.fields: dict[str, Any] = {}

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Around the first calls of a compiled side: adds up the seconds, and for xpu its kernels and fusions."""
        known, fused = len(PyCodeCache.modules), fusions.fired()
        start = time.perf_counter()
        yield
        self._plan.synchronize()
        seconds = f"first_calls_s_{name.replace(' ', '_')}"
        self.fields[seconds] = round(self.fields.get(seconds, 0.0) + time.perf_counter() - start, 2)
        if name == XPU:
            kernels = triton_kernels(PyCodeCache.modules[known:])
            self.fields["triton_kernels"] = self.fields.get("triton_kernels", 0) + kernels
            self.fields["fusions"] = dict(Counter(self.fields.get("fusions")) + Counter(fusions.fired_since(fused)))

    @contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """Around one warm call: for xpu, which operators left the compiled kernels, and for where."""
        before = counters()
        yield
        if name != XPU:
            return
        self._plan.synchronize()
        host = served_since(before, "host")
        self.fields["host_operators"] = sum(host.values())
        self.fields["host_operator_names"] = host
        self.fields["library_calls"] = sum(served_since(before, "library").values())


def run_row(plan: Plan, narrator: Narrator) -> dict[str, Any]:
    """Everything the table and the JSON say about one (model, mode, dtype)."""
    torch._dynamo.reset()
    row: dict[str, Any] = {
        "model": plan.model.name,
        "mode": plan.mode,
        "dtype": plan.dtype_name,
        "sizes": plan.model.sizes,
        "reference": str(plan.reference_dtype).removeprefix("torch."),
        "bound": BOUNDS[plan.dtype],
    }
    recorder = Recorder(plan)
    measure = _training if plan.mode == "training" else _inference
    sides, errors = measure(plan, recorder, narrator)
    row.update(errors)
    row.update(recorder.fields)
    with narrator.stage("timing, alternating"):
        samples = alternate(
            sides,
            rounds=plan.rounds,
            warmup=1,
            synchronize=plan.synchronize,
            settle=SETTLE_SECONDS,
            enough=_ENOUGH_SECONDS,
        )
    row["times"] = {name: {**sample.as_dict("ms"), "spread": sample.spread} for name, sample in samples.items()}
    for name in (INDUCTOR, EAGER):
        # Of each round's own pair, so that a machine whose speed drifts does not tilt it.
        pairs = zip(samples[name].seconds, samples[XPU].seconds, strict=True)
        row[f"speedup_over_{name.replace(' ', '_')}"] = statistics.median(other / ours for other, ours in pairs)
    del sides
    gc.collect()
    return row


def _inference(
    plan: Plan, recorder: Recorder, narrator: Narrator
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, float]]:
    model = plan.model
    with narrator.stage("building"):
        # Rounded first: the reference is the same model, weights and all, computed in more digits.
        module, batch = model.make().to(plan.dtype), model.make_batch()
        batch = {k: v.to(plan.dtype) if v.is_floating_point() else v for k, v in batch.items()}
    with narrator.stage(f"reference in {plan.reference_dtype} on the CPU"):
        reference = Inference(model, module, batch, plan.reference_dtype, "cpu", compiled=False)()
    errors: dict[str, float] = {}
    sides: dict[str, Callable[[], Tensor]] = {}
    for name, device, compiled in ((XPU, plan.device, True), (INDUCTOR, "cpu", True), (EAGER, "cpu", False)):
        sides[name] = side = Inference(model, module, batch, plan.dtype, device, compiled)
        with narrator.stage(f"compiling for {name}" if compiled else f"running {name}"), recorder.compiling(name):
            result = side()
        errors[_error_key(name)] = relative_error([result], [reference])
        if name == XPU:
            with recorder.serving(name):
                result = side()
            errors[_error_key(name)] = max(errors[_error_key(name)], relative_error([result], [reference]))
    return sides, errors


def _training(
    plan: Plan, recorder: Recorder, narrator: Narrator
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, float]]:
    """Steps the sides beside a reference; the error is the worst over every step's loss and gradients."""
    model = plan.model
    module, batch = model.make().to(plan.dtype), model.make_batch()
    reference = Training(model, module, batch, plan.reference_dtype, "cpu", compiled=False)
    trainers = {
        XPU: Training(model, module, batch, plan.dtype, plan.device, compiled=True),
        INDUCTOR: Training(model, module, batch, plan.dtype, "cpu", compiled=True),
    }
    errors = {_error_key(name): 0.0 for name in trainers} | {"loss_error": 0.0, "gradient_error": 0.0}
    for step in range(TRAINING_STEPS):
        with narrator.stage(f"step {step + 1} of the reference in {plan.reference_dtype} on the CPU"):
            expected = reference.backward()
        for name, trainer in trainers.items():
            # The second step compiles too: only then does the optimizer have a state.
            compiling = step < 2
            with (
                narrator.stage(f"step {step + 1} of {name}" + (", compiling" if compiling else "")),
                recorder.compiling(name) if compiling else recorder.serving(name),
            ):
                loss = trainer.backward()
                gradients = list(trainer.gradients())
                trainer.update()
            found = {
                "loss_error": relative_error([loss], [expected]),
                "gradient_error": relative_error(gradients, reference.gradients()),
            }
            errors[_error_key(name)] = max(errors[_error_key(name)], *found.values())
            if name == XPU:
                errors.update({key: max(errors[key], value) for key, value in found.items()})
        reference.update()
    errors["weight_error"] = relative_error(trainers[XPU].parameters(), reference.parameters())
    sides: dict[str, Callable[[], Tensor]] = {**trainers}
    sides[EAGER] = Training(model, module, batch, plan.dtype, "cpu", compiled=False)
    return sides, errors


def _error_key(side: str) -> str:
    return "error" if side == XPU else f"error_{side.replace(' ', '_')}"
