"""torch.compile on xpu against the CPU's eager result in f64: every kind of kernel Inductor emits for the models."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

CASES: dict[str, tuple[Callable[..., object], list[object]]] = {}


def case(*shapes: object) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """A function to compile; a tuple is the shape of a random f32 argument, anything else the argument itself."""

    def add(f: Callable[..., object]) -> Callable[..., object]:
        CASES[f.__name__] = (f, list(shapes))
        return f

    return add


@case((100, 37), (37,))
def pointwise_broadcast(x, y):
    return torch.relu(x * 2 + y) - torch.sigmoid(y) * torch.tanh(x)


@case((40, 300), (40,))
def reductions(x, y):
    return x.sum(0), x.mean(1), x.amax(1), x.argmin(1), x.var(1), x.prod(1), (x > 0).all(0), y.std()


@case((1 << 18,))
def split_reduction(x):
    return (x + 1).sum(), x.amax(), x.var()  # a sum that does not cancel


@case((33, 1000))
def softmax_and_log_softmax(x):
    return torch.softmax(x, -1), torch.log_softmax(x, 0)


@case((16, 5000), (5000,), (5000,))
def looped_layer_norm(x, w, b):
    return F.layer_norm(x, (5000,), w, b)


@case((4, 8, 17, 17), (8,), (8,))
def batch_norm_training(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


@case((2, 12, 9, 9), (12,), (12,))
def group_norm(x, w, b):
    return F.group_norm(x, 3, w, b)


@case((50, 24), torch.randint(0, 50, (7, 5)))
def embedding(w, i):
    return F.embedding(i, w) + 1


@case((30, 16), torch.randint(0, 30, (100,)), (100, 16))
def index_add_by_atomics(x, i, y):
    return x.index_add(0, i, y)


@case((20, 30), torch.randint(0, 30, (20, 4)))
def gather_and_scatter(x, i):
    g = x.gather(1, i)
    return g, torch.zeros_like(x).scatter_add(1, i, g)


@case((2, 3, 20, 20))
def pooling_and_resize(x):
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, (1, 1)),
        F.interpolate(x, scale_factor=2),
    )


@case((15, 40), (15, 8))
def cat_cumsum_transpose(x, y):
    z = torch.cat([x, y], 1)
    return z.cumsum(1), z.t().contiguous() * 2, z.flip(0)


@case((64,), (64,))
def half_precision_pointwise(x, y):
    a, b = x.half(), y.bfloat16()
    return (a * a + 1).float(), F.gelu(b).float(), (a.float() + b.float()).bfloat16().float()


@case(torch.randint(-50, 50, (200,)), torch.randint(1, 9, (200,)))
def integer_arithmetic(a, b):
    return a // b, a % b, a * b, a << 1, (a & b) | 3, torch.where(a > 0, a, b), a.float() / b


@case((300,), (300,))
def many_math_functions(x, y):
    p = x.abs() + 0.1
    smooth = torch.erf(x) + torch.expm1(x) + torch.log1p(p) + torch.atan2(x, y) + torch.sinh(x) + torch.rsqrt(p)
    return smooth, torch.pow(p, y), torch.fmod(x, p), torch.floor(x), torch.round(x), torch.sign(x), torch.isnan(x)


@case((8, 20), torch.randint(0, 20, (8,)))
def cross_entropy(x, t):
    return F.cross_entropy(x, t)


@case((6, 20))
def attention_mask(x):
    mask = torch.ones(20, 20, dtype=torch.bool, device=x.device).tril()
    return torch.where(mask, x[:, None, :], -torch.inf).softmax(-1)


def materialise(shapes: list[object]) -> list[torch.Tensor]:
    return [torch.randn(s) if isinstance(s, tuple) else s for s in shapes]  # type: ignore[misc]


def as_list(x: object) -> list[torch.Tensor]:
    return list(x) if isinstance(x, (tuple, list)) else [x]  # type: ignore[list-item]


def in_f64(f: Callable[..., object], args: list[torch.Tensor]) -> list[torch.Tensor]:
    return as_list(f(*[a.double() if a.is_floating_point() else a for a in args]))


@pytest.mark.parametrize("name", CASES)
def test_compiled_functions_agree_with_f64(name, xpu):
    f, shapes = CASES[name]
    args = materialise(shapes)
    got = as_list(torch.compile(f, dynamic=False)(*[a.to(xpu) for a in args]))
    # Inductor leaves out the roundings inside a fused chain of 16-bit operations.
    half = "half" in name
    expected = as_list(f(*args)) if half else in_f64(f, args)
    bound = 2**-7 if half else 2e-5
    for g, e in zip(got, expected, strict=True):
        if g.is_floating_point():
            torch.testing.assert_close(g.cpu().double(), e.double(), atol=bound, rtol=bound)
        else:
            assert torch.equal(g.cpu(), e)


def test_one_kernel_serves_dynamic_shapes(xpu):
    @torch.compile(dynamic=True)
    def f(x, y):
        return torch.softmax(x + y, -1).sum(0)

    for rows, columns in [(3, 50), (17, 131), (64, 1000)]:
        x, y = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(f(x.to(xpu), y.to(xpu)).cpu(), torch.softmax(x + y, -1).sum(0))


def test_dropout_drops_the_given_part_and_its_backward_the_same(xpu):
    x = torch.ones(100_000, device=xpu, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.25) * 2)(x)
    y.sum().backward()
    kept = y.cpu() != 0
    assert abs(kept.float().mean() - 0.75) < 0.01
    torch.testing.assert_close(y.cpu()[kept], torch.full((int(kept.sum()),), 2 / 0.75))
    assert torch.equal(x.grad.cpu() != 0, kept)


class Block(torch.nn.Module):
    """A small transformer block with an embedding: what a language model's training step is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)
        self.head = torch.nn.Linear(32, 40)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 32**0.5).masked_fill(
            torch.ones(scores_size := x.shape[1], scores_size, device=x.device).triu(1).bool(), float("-inf")
        )
        x = x + self.out(scores.softmax(-1) @ v)
        return self.head(F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD], ids=lambda o: o.__name__)
@pytest.mark.rotates(2)
def test_training_steps_follow_the_cpu_in_f64(optimizer, xpu):
    torch.manual_seed(0)
    reference = Block().double()
    model = copy.deepcopy(reference).float().to(xpu)
    tokens = torch.randint(0, 40, (4, 10))
    options = {"lr": 1e-2} | ({"momentum": 0.9} if optimizer is torch.optim.SGD else {})

    def steps(m: torch.nn.Module, t: torch.Tensor, wrap: Callable) -> list[float]:
        o = optimizer(m.parameters(), **options)

        @wrap
        def loss_of(t: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(m(t)[:, :-1].flatten(0, 1), t[:, 1:].flatten())

        update = wrap(o.step)
        out = []
        for _ in range(3):
            o.zero_grad()
            loss = loss_of(t)
            loss.backward()
            update()
            out.append(loss.item())
        return out

    got = steps(model, tokens.to(xpu), torch.compile)
    expected = steps(reference, tokens, lambda f: f)
    assert got == pytest.approx(expected, rel=1e-4)
    for p, r in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu().double(), r.detach(), atol=1e-3, rtol=1e-3)


def test_a_convolutional_network_trains(xpu):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    ).double()
    model = copy.deepcopy(reference).float().to(xpu)
    x = torch.randn(4, 3, 16, 16)
    expected = reference(x.double())
    expected.pow(2).sum().backward()
    got = torch.compile(model)(x.to(xpu))
    got.pow(2).sum().backward()
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), atol=1e-5, rtol=1e-4)
    for p, r in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu().double(), r.grad, atol=1e-4, rtol=1e-3)
    for b, r in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(b.cpu().double(), r.double(), atol=1e-5, rtol=1e-4)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_with_every_kind_of_mask_and_its_gradients(mask, xpu):
    shape, length = (2, 3, 10, 8), 10
    args = [torch.randn(shape) for _ in range(3)]
    weight = torch.randn(shape)
    masks = {"bool": torch.rand(length, length) < 0.8, "float": torch.randn(length, length)}
    if mask == "bool":
        masks["bool"].fill_diagonal_(True)

    def run(device: torch.device | str, dtype: torch.dtype, wrap: Callable) -> list[torch.Tensor]:
        m = masks.get(mask)
        m = m if m is None else m.to(device) if m.dtype == torch.bool else m.to(device, dtype)

        @wrap
        def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=mask == "causal")

        leaves = [a.to(device, dtype).requires_grad_() for a in args]
        out = f(*leaves)
        out.backward(weight.to(device, dtype))
        return [out.detach(), *(a.grad for a in leaves)]

    expected = run("cpu", torch.float64, lambda f: f)
    for wrap in (torch.compile, lambda f: f):
        for g, e in zip(run(xpu, torch.float32, wrap), expected, strict=True):
            torch.testing.assert_close(g.cpu().double(), e, atol=1e-5, rtol=1e-5)


def test_gradients_of_three_slices_of_one_tensor(xpu):
    """The kernel that joins them chooses between arrays: Intel's optimiser got that wrong with private ones."""

    def f(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.chunk(3, -1)
        return (q @ k.transpose(1, 2)).softmax(-1) @ v

    a = torch.randn(4, 10, 96, dtype=torch.float64, requires_grad=True)
    b = a.detach().float().to(xpu).requires_grad_()
    w = torch.randn(4, 10, 32)
    f(a).backward(w.double())
    torch.compile(f)(b).backward(w.to(xpu))
    torch.testing.assert_close(b.grad.cpu().double(), a.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_sums_by_index_of_small_integers(dtype, xpu):
    def sums(x, index, values):
        return x.index_add(0, index, values), x.index_put((index,), values, accumulate=True)

    x = torch.randint(0, 100, (50,), dtype=dtype)
    index, values = torch.randint(0, 50, (300,)), torch.randint(0, 100, (300,), dtype=dtype)
    torch._dynamo.reset()
    got = torch.compile(sums)(x.to(xpu), index.to(xpu), values.to(xpu))
    for mine, theirs in zip(got, sums(x, index, values), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_a_view_and_its_base_at_another_length(xpu):
    """AOTAutograd names the length of the view's base, of which Dynamo knows no source: nothing may be guarded by it.

    Dynamo meets closures' variables by their names' order, and has to meet the base first.
    """

    def gradient(base: torch.Tensor, w: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def f(view: torch.Tensor) -> torch.Tensor:
            return torch.func.grad(lambda w: (w / (base != -100).sum() * view.float().sum()).sum())(w)

        return torch.compile(f)

    torch._dynamo.reset()
    for n in (63, 4, 17):
        base = torch.randint(0, 5, (n,))
        there = base.to(xpu)
        (view,) = torch.chunk(there, 1)
        with torch._inductor.config.patch(force_disable_caches=True):  # a graph on disk has its guards already
            got = gradient(there, torch.randn(3, device=xpu))(view)
        torch.testing.assert_close(got.cpu(), torch.full((3,), base.float().mean()))
