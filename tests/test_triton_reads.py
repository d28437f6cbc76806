"""The compiler says which pointers a kernel only reads through; copies of the weights they point to are kept."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from anyxpu import simulate
from anyxpu.shim import lib

N = 64


@triton.jit
def _copy(x, y, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def _in_place(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * tl.load(y + i))


@triton.jit
def _gather(table, index, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(table + tl.load(index + i)))


@triton.jit
def _scatter(x, index, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + tl.load(index + i), tl.load(x + i))


@triton.jit
def _walk(x, out, rounds, N: tl.constexpr):
    i, total = tl.arange(0, N), tl.zeros([N], tl.float32)
    place = x + i
    for _ in range(rounds):
        total += tl.load(place)
        place += 0
    tl.store(out + i, total)


@triton.jit
def _walk_both(x, out, rounds, N: tl.constexpr):
    i = tl.arange(0, N)
    source, target = x + i, out + i
    for _ in range(rounds):
        tl.store(target, tl.load(source))
        source += 0
        target += 0


@triton.jit
def _swap_in_a_loop(x, y, rounds, N: tl.constexpr):
    i = tl.arange(0, N)
    one, other = x + i, y + i
    for _ in range(rounds):
        tl.store(one, tl.load(other))
        one, other = other, one


@triton.jit
def _choose(x, y, z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    if n > 3:  # noqa: SIM108 (a branch of its own)
        place = x
    else:
        place = y
    tl.store(place + i, tl.load(z + i))


@triton.jit
def _select(x, y, z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(tl.where(i < n, x + i, y + i), tl.load(z + i))


@triton.jit
def _count(x, out, N: tl.constexpr):
    tl.atomic_add(out, tl.sum(tl.load(x + tl.arange(0, N))))


@triton.jit
def _while(x, out, rounds, N: tl.constexpr):
    i, total, k = tl.arange(0, N), tl.zeros([N], tl.float32), 0
    while k < rounds:
        total += tl.load(x + i)
        k += 1
    tl.store(out + i, total)


@triton.jit(noinline=True)
def _put(there, value):
    tl.store(there, value)


@triton.jit
def _called(x, out, N: tl.constexpr):
    _put(out, tl.sum(tl.load(x + tl.arange(0, N))))


@triton.jit
def _descriptors(x, out, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [N], [1], [N])
    target = tl.make_tensor_descriptor(out, [N], [1], [N])
    target.store([0], source.load([0]))


# The kernel, what each of its arguments is (a tensor of floats or indices, or a number), and which it only reads.
CASES = {
    "a sum": (_copy, "fffn", (0, 1)),
    "in place": (_in_place, "ff", (1,)),
    "gathered": (_gather, "fif", (0, 1)),
    "scattered": (_scatter, "fif", (0, 1)),
    "a loop": (_walk, "ffn", (0,)),
    "a loop that carries both": (_walk_both, "ffn", (0,)),
    "a loop that swaps them": (_swap_in_a_loop, "ffn", ()),
    "a branch": (_choose, "fffn", (2,)),
    "a choice for each element": (_select, "fffn", (2,)),
    "an atomic": (_count, "ff", (0,)),
    "a while loop": (_while, "ffn", (0,)),
    "a function that is called": (_called, "ff", (0,)),
    "descriptors": (_descriptors, "ff", (0,)),
}


def operand(kind: str) -> torch.Tensor | int:
    if kind == "n":
        return 5
    return torch.randperm(N, device="xpu") if kind == "i" else torch.randn(N, device="xpu")


@pytest.mark.parametrize("case", CASES)
def test_what_is_only_read(case):
    kernel, kinds, expected = CASES[case]
    given = [operand(kind) for kind in kinds]
    before = [t.clone() if isinstance(t, torch.Tensor) else t for t in given]
    made = kernel[(1,)](*given, N=N)
    assert tuple(made.metadata.reads) == expected
    if not simulate.active():  # and what is said to be only read is what it was
        changed = {i for i, kind in enumerate(kinds) if kind != "n" and not torch.equal(given[i], before[i])}
        assert changed and not changed & set(expected)


@pytest.fixture
def weight():
    lib().drop_copies()
    gc.collect()
    yield torch.randn(96, N, device="xpu")
    lib().drop_copies()


def kept() -> bool:
    """Is there a copy of any weight?"""
    return bool(lib().drop_copies())


def multiplied(weight: torch.Tensor) -> None:
    """A copy of the weight is kept from the second time on."""
    for _ in range(2):
        F.linear(torch.randn(32, N, device="xpu"), weight)


READ = {
    "a kernel": lambda w: _walk[(1,)](w, torch.empty(N, device="xpu"), 3, N=N),
    "an embedding": lambda w: F.embedding(torch.tensor([3, 5, 3], device="xpu"), w),
    "a compiled embedding": lambda w: torch.compile(lambda i, t: F.embedding(i, t).relu())(
        torch.tensor([3, 5, 3], device="xpu"), w
    ),
    "its norm": lambda w: w.norm(),
    "a sum": lambda w: w + 1,
}
WRITTEN = {
    "a kernel": lambda w: _walk[(1,)](torch.empty(N, device="xpu"), w, 3, N=N),
    "a compiled function": lambda w: torch.compile(lambda t: t.mul_(3))(w),
    "a row of it": lambda w: _in_place[(1,)](w[7], torch.empty(N, device="xpu"), N=N),
}


@pytest.mark.not_simulated("on a GPU no copies of matrices are kept")
@pytest.mark.parametrize("by", READ)
def test_a_weights_copy_outlives_who_reads_it(weight, by):
    multiplied(weight)
    READ[by](weight)
    assert kept()


@pytest.mark.parametrize("by", WRITTEN)
def test_a_weights_copy_does_not_outlive_who_writes_it(weight, by):
    multiplied(weight)
    WRITTEN[by](weight)
    x = torch.randn(32, N, device="xpu")
    torch.testing.assert_close(F.linear(x, weight).cpu(), F.linear(x.cpu(), weight.cpu()))


@pytest.mark.not_simulated("on a GPU no copies of matrices are kept")
def test_a_tied_head_is_packed_once():
    """Compiled, the kernel that looks its rows up runs before each product with it."""
    table = torch.nn.Embedding(200, N).to("xpu")
    model = torch.compile(lambda tokens: F.linear(table(tokens), table.weight))
    tokens = torch.randint(200, (2, 16)).to("xpu")
    lib().drop_copies()
    with torch.no_grad():
        for _ in range(3):
            model(tokens)
        found = torch.xpu.memory_allocated()
        again = model(tokens)
        del again
    assert kept() and torch.xpu.memory_allocated() <= found - table.weight.nbytes
