"""torchao's workflows on xpu: right, compiled without the host, saved and loaded, moved, calibrated, trained.

What fills a cell of docs/quantization.md says so by the fixture ``cell``.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

import anyxpu.ops
from anyxpu.bench.quant_workflows import WORKFLOWS
from anyxpu.shim import lib
from tests.quant_table import cell  # noqa: F401 (a fixture)

torchao = pytest.importorskip("torchao", reason="torchao is not installed (requirements/quant.txt)")
from torchao.quantization import quantize_  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
    ),
    pytest.mark.not_simulated("torchao decides by values, which a simulated device does not have"),
    pytest.mark.filterwarnings("ignore"),
]

Cell = Callable[[str, str, str], None]
# Compiling takes seconds each; the others run with --full.
EVERYDAY = ("int4", "int8 dynamic", "float8 rowwise", "mxfp8")
# torchao's own Triton kernels of blockwise float8 are tuned over dozens of forms, which takes a minute.
EAGER = [pytest.param(name, marks=pytest.mark.full if name == "float8 blockwise" else ()) for name in WORKFLOWS]
COMPILED = [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.full) for name in WORKFLOWS]


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(1)
    yield


def noise(exact: Tensor, got: Tensor) -> float:
    """Signal over noise, dB."""
    exact, got = exact.double().cpu(), got.double().cpu()
    return float(20 * torch.log10(exact.norm() / (exact - got).norm()))


def hosted() -> list[str]:
    return sorted(name for name, ways in anyxpu.ops.counters().items() if "host" in ways)


class Block(nn.Module):
    """What a transformer has around its products."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.RMSNorm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def quantized(module: nn.Module, name: str) -> nn.Module:
    module = copy.deepcopy(module)
    quantize_(module, WORKFLOWS[name].config())
    return module


@pytest.mark.rotates(3)
@pytest.mark.parametrize("name", EAGER)
@torch.no_grad()
def test_a_layer_is_as_near_as_its_format_allows(name: str, cell: Cell) -> None:  # noqa: F811
    figures = []
    for m, k, n in ((1, 256, 512), (48, 384, 128 if "block" in name else 144), (130, 128, 256)):
        layer = nn.Linear(k, n).bfloat16().xpu()
        nn.init.normal_(layer.weight)
        made, x = quantized(layer, name), torch.randn(3, m, k).bfloat16().xpu()
        got, want = made(x), layer(x)
        assert got.shape == want.shape and got.dtype == torch.bfloat16
        figures.append(noise(want, got))
        if WORKFLOWS[name].activation != "bfloat16":
            continue
        if hasattr(made.weight, "dequantize") and name != "int4":  # nothing is lost but what the weight lost
            weight = made.weight.dequantize().cpu().double()
            assert noise(x.cpu().double() @ weight.t() + layer.bias.cpu().double(), got) > 46
        empty = torch.zeros(0, k).bfloat16().xpu()
        assert made(empty).shape == (0, n)
    assert min(figures) >= WORKFLOWS[name].least, figures
    cell(name, "eager", f"{min(figures):.1f} dB")


@pytest.mark.parametrize("name", COMPILED)
@torch.no_grad()
def test_compiled_it_equals_eager_and_asks_no_host(name: str, cell: Cell) -> None:  # noqa: F811
    block = Block().bfloat16().xpu()
    made, x = quantized(block, name), torch.randn(4, 16, 256).bfloat16().xpu()
    graph = torch.compile(made, fullgraph=True)
    graph(x)
    anyxpu.ops.reset_counters()
    got = graph(x)
    assert hosted() == []
    noises = noise(block(x) - x, got - x)
    assert noises >= WORKFLOWS[name].least - 2.5  # of two layers, one after the other
    assert noise(made(x), got) > noises - 0.5
    cell(name, "compiled", f"{noises:.1f} dB")


@pytest.mark.parametrize("name", EAGER)
@torch.no_grad()
def test_a_state_dict_gives_the_same_bits(name: str, cell: Cell) -> None:  # noqa: F811
    block, x = Block().bfloat16().xpu(), torch.randn(8, 256).bfloat16().xpu()
    made, kept = quantized(block, name), io.BytesIO()
    torch.save(made.state_dict(), kept)
    kept.seek(0)
    other = Block().bfloat16().xpu()
    other.load_state_dict(torch.load(kept, weights_only=True), assign=True)
    assert torch.equal(made(x).cpu(), other(x).cpu())
    cell(name, "saved and loaded", "equal")


@pytest.mark.parametrize(
    "name", [name for name, workflow in WORKFLOWS.items() if workflow.activation == "bfloat16" or workflow.on_cpu]
)
@torch.no_grad()
def test_quantized_on_the_cpu_and_moved_it_is_the_same(name: str, cell: Cell) -> None:  # noqa: F811
    if name == "int4":
        pytest.skip("torchao makes plain_int32 on xpu alone")
    block, x = Block().bfloat16(), torch.randn(8, 256).bfloat16()
    made = quantized(block, name)
    there = copy.deepcopy(made).to("xpu")
    assert noise(made(x), there(x.xpu())) > 38
    back = copy.deepcopy(there).to("cpu")
    assert torch.equal(back(x), made(x))
    cell(name, "from the CPU", "same")


def losses(
    block: nn.Module,
    device: str,
    compiled: bool,
    optimizer: Callable[..., Any] | None = None,
    graph: bool = False,
) -> list[float]:
    """Of five steps. ``graph``: nothing of the compiled backward may be the host's."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(64, 256, generator=generator).bfloat16().to(device) for _ in range(2))
    step = (optimizer or torch.optim.AdamW)(block.parameters(), lr=3e-3)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return (block(x) - y).float().square().mean()

    call, found = torch.compile(loss_of) if compiled else loss_of, []
    for index in range(5):
        loss = call(x, y)
        if index == 4:
            anyxpu.ops.reset_counters()
        loss.backward()
        if index == 4 and graph and device == "xpu":
            assert hosted() == []
        step.step()
        step.zero_grad()
        found.append(float(loss.detach()))
    return found


def block_for_training(device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Block().bfloat16().to(device)


def float8(recipe: str) -> Callable[[nn.Module], Any]:
    def prepare(block: nn.Module) -> Any:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        return convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name(recipe))

    return prepare


def int8_mixed(block: nn.Module) -> Any:
    from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig

    return quantize_(block, Int8MixedPrecisionTrainingConfig(module_swap=True))


def int8_weights(block: nn.Module) -> Any:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training

    return quantize_(block, int8_weight_only_quantized_training())


def aware(config: Callable[[], Any]) -> Callable[[nn.Module], Any]:
    def prepare(block: nn.Module) -> Any:
        from torchao.quantization.qat import QATConfig

        return quantize_(block, QATConfig(config(), step="prepare"))

    return prepare


def aware_of_int8(block: nn.Module) -> Any:
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    weight = IntxFakeQuantizeConfig(torch.int8, "per_channel")
    return quantize_(block, QATConfig(weight_config=weight, step="prepare"))


TRAINED: dict[str, Callable[[nn.Module], Any]] = {
    "float8 training, tensorwise": float8("tensorwise"),
    "float8 training, rowwise": float8("rowwise"),
    "float8 training, rowwise, weights' gradients wide": float8("rowwise_with_gw_hp"),
    "int8 mixed precision training": int8_mixed,
    "int8 weights in training": int8_weights,
    "intx4": aware(WORKFLOWS["intx4"].config),
    "int8 x int4": aware(WORKFLOWS["int8 x int4"].config),
    "int8": aware_of_int8,
    "float8 rowwise": aware(WORKFLOWS["float8 rowwise"].config),
}


def stochastic(parameters: Any, lr: float) -> Any:
    """torchao's own AdamW, which weights of int8 need."""
    import torchao.optim as optim

    return optim._AdamW(parameters, lr=lr)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", TRAINED)
def test_training_follows_the_cpus(name: str, compiled: bool, cell: Cell) -> None:  # noqa: F811
    if name == "float8 rowwise" and compiled:
        pytest.skip("torch.compile makes NaN of its gradients, on the CPU too (docs/quantization.md)")
    found = []
    devices = (
        ("cpu", "xpu") if name != "int8 mixed precision training" else ("xpu", "xpu")
    )  # torchao has none on the CPU
    for device in devices:
        block = block_for_training(device)
        plain = sum(isinstance(module, nn.Linear) and type(module) is nn.Linear for module in block.modules())
        made = TRAINED[name](block)
        block = made if isinstance(made, nn.Module) else block
        weights = [type(p) is not nn.Parameter or type(p.data) is not Tensor for p in block.parameters()]
        still = sum(type(module) is nn.Linear for module in block.modules())
        assert any(weights) or still < plain  # the workflow took hold
        graph = compiled and "mixed" not in name  # torch 2.13 does not trace its function: it breaks the graph
        found.append(losses(block, device, compiled, stochastic if name == "int8 weights in training" else None, graph))
    exact = losses(block_for_training("cpu"), "cpu", False)
    assert found[1] == pytest.approx(found[0], rel=0.01)
    if name == "float8 rowwise":  # whose gradients do not reach the weights, on any device
        cell(name, "trained", "the CPU's")
        return
    assert found[1] == pytest.approx(exact, rel=0.1) and found[1][-1] < found[1][0]
    off = max(abs(a / b - 1) for a, b in zip(found[1], exact, strict=True))
    cell(name, "trained, compiled" if compiled else "trained", f"loss ±{off:.1%}")


def state_bits(bits: int, kind: str = "") -> Callable[..., Any]:
    def make(parameters: Any, lr: float) -> Any:
        import torchao.optim as optim

        return getattr(optim, kind or f"AdamW{bits}bit")(parameters, lr=lr)

    return make


def offloaded(parameters: Any, lr: float) -> Any:
    from torchao.optim import CPUOffloadOptimizer

    return CPUOffloadOptimizer(list(parameters), torch.optim.AdamW, lr=lr)


OPTIMIZERS = {
    "AdamW, states of 8 bits": state_bits(8),
    "AdamW, states of 4 bits": state_bits(4),
    "AdamW, float8 states": state_bits(8, "AdamWFp8"),
    "AdamW, states on the CPU": offloaded,
}


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_follows_the_cpus(name: str, cell: Cell) -> None:  # noqa: F811
    found = [losses(block_for_training(device), device, False, OPTIMIZERS[name]) for device in ("cpu", "xpu")]
    exact = losses(block_for_training("cpu"), "cpu", False)
    assert found[1] == pytest.approx(found[0], rel=0.01) and found[1] == pytest.approx(exact, rel=0.1)
    off = max(abs(a / b - 1) for a, b in zip(found[1], exact, strict=True))
    cell(name, "trained", f"loss ±{off:.1%}")


def awq(config: Any, step: str) -> Any:
    from torchao.prototype.awq import AWQConfig

    return AWQConfig(config, step=step)


def smooth(config: Any, step: str) -> Any:
    from torchao.prototype.smoothquant import SmoothQuantConfig

    return SmoothQuantConfig(config, step=step)


@pytest.mark.parametrize(("method", "name"), [(awq, "int4"), (smooth, "int8 dynamic")], ids=["AWQ", "SmoothQuant"])
@torch.no_grad()
def test_calibrated_it_is_nearer(method: Callable[..., Any], name: str, cell: Cell) -> None:  # noqa: F811
    block, x = Block().bfloat16().xpu(), torch.randn(8, 32, 256)
    x[..., ::37] *= 12  # some channels are much larger, as in language models
    layer, x = nn.Sequential(block.up, nn.GELU(), block.down), x.bfloat16().xpu()
    want, made = layer(x), copy.deepcopy(layer)
    rounded = noise(want, quantized(layer, name)(x))
    quantize_(made, method(WORKFLOWS[name].config(), "prepare"))
    made(x)
    quantize_(made, method(WORKFLOWS[name].config(), "convert"))
    calibrated = noise(want, made(x))
    assert calibrated > rounded
    cell(name, "calibrated", f"{method.__name__} {calibrated:.1f} dB, without {rounded:.1f}")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.three, self.four = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.one(x))
        y = y + F.relu(self.two(y))
        return self.four(F.relu(self.three(y.mean((2, 3)))))


@torch.no_grad()
def test_pt2e_becomes_fused_library_calls(cell: Cell) -> None:  # noqa: F811
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import xpu_inductor_quantizer as quantizers

    model, x = Convolutions().eval().xpu(), torch.randn(4, 16, 20, 20).xpu()
    quantizer = quantizers.XPUInductorQuantizer()
    quantizer.set_global(quantizers.get_default_xpu_inductor_quantization_config())
    prepared = quantize_pt2e.prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    converted = quantize_pt2e.convert_pt2e(prepared)
    with torch._inductor.config.patch(freezing=True):
        graph = torch.compile(converted)
        graph(x)
        anyxpu.ops.reset_counters()
        got = graph(x)
    assert hosted() == []
    found = anyxpu.ops.counters()
    products = [name for name in found if name.startswith("onednn::q")]
    assert {name.split(".")[0] for name in products} == {"onednn::qconv_pointwise", "onednn::qlinear_pointwise"}
    assert sum(found[name]["library"] for name in products) == 4
    noises = noise(model(x), got)
    assert noises > 30
    cell("pt2e, XPUInductorQuantizer", "compiled", f"{noises:.1f} dB")


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(4, *shape) * 0.1) for shape in ((128, 64), (64, 128)))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        y = F.silu(torch._grouped_mm(x, self.up.transpose(-2, -1), offs=ends))
        return torch._grouped_mm(y, self.down.transpose(-2, -1), offs=ends)


def float8_experts() -> Any:
    from torchao.prototype.moe_training.config import Float8TrainingOpConfig

    return Float8TrainingOpConfig()


def mx_experts() -> Any:
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe

    return MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)


@pytest.mark.parametrize(
    ("name", "config"),
    [("experts, float8", float8_experts), pytest.param("experts, mxfp8 emulated", mx_experts, marks=pytest.mark.full)],
)
@pytest.mark.rotates(5)
def test_experts_in_training(name: str, config: Callable[[], Any], cell: Cell) -> None:  # noqa: F811
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9) and torchao.__version__.startswith("0.18."):
        pytest.skip("torchao 0.18 tunes its kernels by a key that Triton 3.9 refuses")
    ends, found = torch.tensor([32, 64, 64, 128], dtype=torch.int32).xpu(), []
    x = torch.randn(128, 64).bfloat16().xpu()
    state = Experts().state_dict()
    for narrow in (False, True):
        experts = Experts()
        experts.load_state_dict(state)
        experts = experts.bfloat16().xpu()
        if narrow:
            quantize_(experts, config(), filter_fn=lambda module, _: isinstance(module, Experts))
        step = torch.optim.SGD(experts.parameters(), lr=0.5)
        run = []
        for _ in range(4):
            loss = (experts(x, ends).float() - 1).square().mean()
            loss.backward()
            step.step()
            step.zero_grad()
            run.append(float(loss.detach()))
        found.append(run)
    assert found[1] == pytest.approx(found[0], rel=0.02) and found[1] != found[0] and found[1][-1] < found[1][0]
    cell(name, "trained", f"loss ±{max(abs(a / b - 1) for a, b in zip(*found, strict=True)):.1%}")
