"""Calls of operators written in Python that are repeated without it (shim/replay.cpp): the same results, and no more.

Every claim is shown beside the same calls with ``set_replay(False)``. The operators of torch's database; a few of them
every day, all with ``./run test --full``.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db

import anyxpu.ops
from anyxpu.onednn import fallbacks
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.not_simulated("it compares results"),
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
]

NOT_HERE = re.compile("empty|sparse|jagged|linalg|fft|to_sparse")
EVERYDAY = re.compile("norm|pool|sort|cum|scatter|conv|addmm|bmm|interpolate|embedding|attention|topk|index_put")
ROUNDS = 5


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    lib().forget_programs()
    yield
    lib().set_replay(True)


def repeated(call: Callable[..., Any], *operands: Callable[[], Any], rounds: int = ROUNDS) -> int:
    """Call it with new operands and compare with the same call in Python; how many calls ran without Python."""
    before = lib().replay_runs()
    for _ in range(rounds):
        given = [make() for make in operands]
        lib().set_replay(False)
        wanted = call(*(t.clone() for t in given))
        lib().set_replay(True)
        got = call(*given)
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-6, atol=1e-6)
    return lib().replay_runs() - before


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape).to("xpu", dtype)


# --- what is repeated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "call, shapes",
    [
        (lambda x: F.layer_norm(x, (48,)), [(5, 48)]),
        (lambda x: F.rms_norm(x, (48,)), [(5, 48)]),
        (torch.mm, [(5, 7), (7, 6)]),
        (lambda c, a, b: torch.addmm(c, a, b), [(6,), (5, 7), (7, 6)]),
        (lambda x, w: F.conv2d(x, w, padding=1), [(2, 3, 9, 9), (4, 3, 3, 3)]),
        (lambda x: F.max_pool2d(x, 2), [(2, 3, 8, 8)]),
        (lambda x: x.sort(dim=0), [(9, 5)]),
        (lambda x: x.topk(3), [(4, 30)]),
        (lambda x: x.cumsum(1), [(4, 30)]),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [(1, 2, 9, 16)] * 3),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(2, 2, 40, 16)] * 3),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [(1, 2, 1, 16), (1, 2, 50, 16), (1, 2, 50, 16)]),
    ],
    ids=lambda x: None if callable(x) else "-".join("x".join(map(str, shape)) for shape in x),
)
def test_results_are_pythons(call: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    assert repeated(call, *(normal(*shape, dtype=dtype) for shape in shapes)) >= 2


def test_gradients_are_pythons() -> None:
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 5),
    ).xpu()

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        layer.zero_grad()
        loss = F.cross_entropy(layer(x), torch.arange(2, device="xpu"))
        loss.backward()
        return [loss.detach(), *(p.grad for p in layer.parameters())]

    assert repeated(step, normal(2, 3, 8, 8)) > 10


def test_operands_of_one_storage_keep_their_places() -> None:
    def attend(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in qkv.chunk(3, dim=-2))
        return F.scaled_dot_product_attention(q, k, v)

    assert repeated(attend, normal(1, 20, 6, 16)) >= 2
    # The same shapes and strides, and the parts the other way round.
    assert repeated(lambda qkv: attend(qkv.flip(-2)[:, :, [3, 2, 1, 0, 5, 4]]), normal(1, 20, 6, 16)) >= 1

    def parts(base: torch.Tensor, first: int, second: int) -> torch.Tensor:
        return torch.mm(base[first : first + 4, :4], base[second : second + 4, :4])

    for first, second in [(0, 4)] * 4 + [(4, 0)] * 4 + [(0, 0)] * 4 + [(2, 4)] * 4:
        base = torch.randn(8, 8)
        torch.testing.assert_close(parts(base.xpu(), first, second).cpu(), parts(base, first, second))


def test_results_are_new_tensors() -> None:
    x = torch.randn(4, 6, device="xpu")
    made = [F.layer_norm(x, (6,)) for _ in range(6)]
    assert len({t.data_ptr() for t in made}) == 6
    made[5].zero_()
    torch.testing.assert_close(made[4], made[0])
    values, indices = [torch.sort(x) for _ in range(6)][-1]
    assert values.is_contiguous() and indices.dtype == torch.int64 and not values.requires_grad


def test_results_go_where_they_are_asked_for() -> None:
    a, b = torch.randn(4, 5, device="xpu"), torch.randn(5, 3, device="xpu")
    for _ in range(6):
        out = torch.full((4, 3), 9.0, device="xpu")
        assert torch.mm(a, b, out=out) is out
        torch.testing.assert_close(out.cpu(), a.cpu() @ b.cpu())
        c = torch.randn(4, 3, device="xpu")
        wanted = c.cpu() + a.cpu() @ b.cpu()
        assert c.addmm_(a, b) is c
        torch.testing.assert_close(c.cpu(), wanted)
    for n in (7, 7, 7, 7, 7, 9):
        assert torch.arange(n, device="xpu").tolist() == list(range(n))
    assert lib().replay_runs() > 0


def test_the_current_stream_is_the_calls_own() -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    a, b = x.xpu(), w.xpu()
    for _ in range(5):
        torch.mm(a, b)
    for _ in range(3):
        stream = torch.xpu.Stream()
        stream.wait_stream(torch.xpu.current_stream())
        with torch.xpu.stream(stream):
            lib().sleep(10_000_000)  # what runs on another stream would be done before
            made = torch.mm(F.layer_norm(a, (64,)), b)
        assert made.device == a.device
        stream.synchronize()
        torch.testing.assert_close(made.cpu(), F.layer_norm(x, (64,)) @ w, rtol=1e-4, atol=1e-4)


# --- what is not ----------------------------------------------------------------------------------------------------


def test_random_numbers_are_new_each_time() -> None:
    x = torch.ones(500, device="xpu")
    made = [F.dropout(x, 0.5, True) for _ in range(8)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(made))
    q = torch.randn(1, 2, 40, 16, device="xpu")
    made = [F.scaled_dot_product_attention(q, q, q, dropout_p=0.5) for _ in range(8)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(made))
    before = lib().replay_runs()
    for seed in (3, 4, 3, 5):
        made = []
        for repeat in (False, True):  # the generator goes on as it does in Python
            lib().set_replay(repeat)
            torch.manual_seed(seed)
            made.append([F.dropout(x, 0.5, True), torch.rand(9, device="xpu"), torch.randn(9, device="xpu")])
        assert all(map(torch.equal, *made))
    assert lib().replay_runs() - before >= 4


def test_weights_that_were_packed_are_packed_again_when_they_change() -> None:
    x, w = torch.randn(16, 32), torch.randn(32, 24)
    a, b = x.xpu(), w.xpu()
    for change in range(4):
        for _ in range(7):
            torch.testing.assert_close(torch.mm(a, b).cpu(), x @ w, rtol=1e-4, atol=1e-4)
        w = torch.randn(32, 24) if change % 2 else w * 2
        b.copy_(w) if change % 2 else b.mul_(2)


def test_a_weight_that_changes_at_each_step_is_read_anew() -> None:
    x, w = torch.randn(16, 32), torch.randn(32, 24)
    a, b = x.xpu(), w.xpu()
    for _ in range(12):
        torch.testing.assert_close((a @ b).cpu(), x @ w, rtol=1e-4, atol=1e-4)
        w = w + 1
        b += 1


def test_settings_make_another_kind() -> None:
    index, source = torch.tensor([0, 1, 0, 1], device="xpu"), torch.randn(4, 3, device="xpu")
    base = torch.zeros(2, 3, device="xpu")
    wanted = torch.zeros(2, 3).index_add(0, index.cpu(), source.cpu())
    for exact in (False,) * 5 + (True,) * 5 + (False,) * 2:
        torch.use_deterministic_algorithms(exact)
        try:
            torch.testing.assert_close(base.index_add(0, index, source).cpu(), wanted)
        finally:
            torch.use_deterministic_algorithms(False)
    assert not torch.arange(3, device="xpu").dtype.is_floating_point
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert [torch.arange(0.0, 3.0, device="xpu").dtype for _ in range(5)] == [dtype] * 5
        finally:
            torch.set_default_dtype(torch.float32)


def test_errors_come_as_often_as_calls() -> None:
    a = torch.randn(4, 5, device="xpu")
    for _ in range(6):
        torch.mm(a, a.t())
        with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|do not fit"):
            torch.mm(a, a)
    index = torch.tensor([0, 9], device="xpu")
    for _ in range(6):
        with pytest.raises(Exception, match=r"index|out of range|out of bounds"):
            torch.take_along_dim(torch.randn(3, device="xpu"), index).cpu()


def test_every_call_is_counted() -> None:
    x = torch.randn(4, 6, device="xpu")
    anyxpu.ops.reset_counters()
    for _ in range(9):
        F.layer_norm(x, (6,))
        torch.mm(x, x.t())
    counters = anyxpu.ops.counters()
    assert counters["aten::native_layer_norm"] == {"compiled": 9} and counters["aten::mm"] == {"library": 9}
    fallbacks.reset()
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8, device="xpu") for shape in ((32, 16), (16, 8)))
    for _ in range(7):
        torch._int_mm(a, b)
    assert all(count == 7 for count in fallbacks.seen().values())  # none where the CPU has such products


def test_memory_is_what_python_takes() -> None:
    x = torch.randn(64, 256, device="xpu")

    def peak() -> int:
        torch.xpu.reset_peak_memory_stats()
        before = torch.xpu.memory_allocated()
        F.scaled_dot_product_attention(*(x.view(1, 4, 64, 64) for _ in range(3)))
        return torch.xpu.max_memory_allocated() - before

    lib().set_replay(False)
    wanted = [peak() for _ in range(3)][-1]
    lib().set_replay(True)
    before = torch.xpu.memory_allocated()
    assert [peak() for _ in range(8)][-1] == wanted
    assert torch.xpu.memory_allocated() == before


def test_kinds_are_bounded() -> None:
    for n in range(1, 1200):
        F.layer_norm(torch.empty(1, n, device="xpu"), (n,))
    assert lib().replays()["aten::native_layer_norm"]["kinds"] <= 1024


def test_threads_share_programs() -> None:
    weights = torch.randn(24, 24)
    w, failures = weights.xpu(), []

    def work(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        try:
            for i in range(60):
                x = torch.randn(4 + i % 3, 24, generator=draw)
                got = F.layer_norm(x.xpu(), (24,)) @ w
                torch.testing.assert_close(got.cpu(), F.layer_norm(x, (24,)) @ weights, rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_vmap_and_forward_derivatives_of_attention_are_as_before() -> None:
    q = torch.randn(3, 2, 8, 16)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]

    for _ in range(4):
        torch.testing.assert_close(torch.vmap(attend)(q.xpu()).cpu(), torch.vmap(attend)(q), rtol=1e-4, atol=1e-4)
        got = torch.func.jvp(attend, (q[0].xpu(),), (q[1].xpu(),))[1].cpu()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the CPU's other has none
            wanted = torch.func.jvp(attend, (q[0],), (q[1],))[1]
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        grads = [torch.func.grad(lambda x: attend(x).sum())(q[0].to(device)).cpu() for device in ("cpu", "xpu")]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


# --- the sweep ------------------------------------------------------------------------------------------------------

CASES = [op for op in op_db if torch.float32 in op.dtypes and not NOT_HERE.search(op.name)]
if not os.environ.get("ANYXPU_FULL"):
    CASES = [op for op in CASES if EVERYDAY.search(op.name)]


def moved(x: Any, turn: int) -> Any:
    """On xpu, in new memory, with the same numbers at other places."""
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided or x.is_conj():
            return x.detach().to("xpu")
        there = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="xpu")
        there.copy_(x.detach().roll(turn) if x.dim() else x.detach())
        return there.requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)):
        return type(x)(moved(each, turn) for each in x)
    return {key: moved(value, turn) for key, value in x.items()} if isinstance(x, dict) else x


def outcome(op: Any, sample: Any, turn: int) -> Any:
    """Results and gradients, or the error's type."""
    torch.manual_seed(turn)
    args, kwargs = (moved(sample.input, turn), *moved(tuple(sample.args), turn)), moved(sample.kwargs, turn)
    try:
        made = op(*args, **kwargs)
        results = [t for t in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(t, torch.Tensor)]
        sums = [t.sum() for t in results if t.requires_grad and not t.is_complex()]
        if sums:
            torch.stack([s.float() for s in sums]).sum().backward()
        leaves = [*args, *(args[0] if isinstance(args[0], (list, tuple)) else ())]
        grads = [t.grad for t in leaves if isinstance(t, torch.Tensor) and t.grad is not None]
        return [t.detach().cpu() for t in results + grads]
    except Exception as error:
        return type(error).__name__


@pytest.mark.rotates(18)
@pytest.mark.parametrize(
    "op", CASES, ids=lambda op: f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"
)
def test_operators_of_the_database(op: Any) -> None:
    for index, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
        if index == 6:
            break
        wanted = None
        for turn in (1, 2, 3, 1, 2, 3):
            lib().set_replay(False)
            wanted = outcome(op, sample, turn)
            lib().set_replay(True)
            got = outcome(op, sample, turn)
            if isinstance(wanted, str):
                assert got == wanted
                continue
            assert not isinstance(got, str), got
            for a, b in zip(got, wanted, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)
