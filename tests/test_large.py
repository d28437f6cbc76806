"""2**31 elements and their neighbours: where indices, loop bounds and sizes of 32 bits end.

Tensors of int8 that are zero but for a few places, so that each result is known without computing it: eager operators
(host, library and our own kernels) and compiled ones. Long, and in need of memory: ``./run test --full`` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

EDGE = 2**31
SIZES = [EDGE - 2, EDGE - 1, EDGE, EDGE + 1, EDGE + 2]


def _available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


pytestmark = [
    pytest.mark.skipif(not os.environ.get("ANYXPU_FULL"), reason="long: ./run test --full"),
    pytest.mark.skipif(_available_gib() < 14, reason="needs 14 GiB of memory"),
]


class Marked:
    """``n`` int8 zeros with marks of distinct values at both ends, in the middle and beside 2**30 and 2**31."""

    def __init__(self, n: int) -> None:
        self.n = n
        places = [7, n // 2 - 1, 2**30 + 1, min(n, EDGE) - 3, n - 2, n - 1]
        values = [-9, 11, 12, 13, 21, 14]
        self.at = dict(zip(places, values, strict=True))
        self.x = torch.zeros(n, dtype=torch.int8, device="xpu")
        for place, value in self.at.items():
            self.x[place] = value

    def equals(self, got: torch.Tensor, change: Callable[[int], int] = lambda v: v, rest: int = 0) -> None:
        """``got`` is ``change`` of every mark at its place, and ``rest`` everywhere else."""
        assert got.numel() == self.n
        flat = got.view(-1)
        for place, value in self.at.items():
            assert int(flat[place]) == change(value), place
        # What is not `rest` was counted by the host, in pieces: a mark that went elsewhere shows.
        odd = sum(int((part != rest).sum()) for part in flat.cpu().split(2**28))
        assert odd == sum(change(v) != rest for v in self.at.values())


@pytest.fixture(scope="module", params=SIZES, ids=lambda n: f"2**31{n - EDGE:+d}")
def marked(request: pytest.FixtureRequest) -> Any:
    made = Marked(request.param)
    yield made
    del made
    torch.xpu.empty_cache()


def _total(m: Marked) -> int:
    return sum(m.at.values())


def _where(m: Marked, value: int) -> int:
    return next(place for place, v in m.at.items() if v == value)


REDUCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Marked], Any]]] = {
    "sum": (lambda x: x.sum(), _total),
    "sum of a sum with float": (lambda x: x.sum(dtype=torch.float32), _total),
    "max": (lambda x: x.max(), lambda m: 21),
    "min": (lambda x: x.min(), lambda m: -9),
    "argmax": (lambda x: x.argmax(), lambda m: _where(m, 21)),
    "argmin": (lambda x: x.argmin(), lambda m: 7),
    "max with index": (lambda x: x.max(0).indices, lambda m: _where(m, 21)),
    "any": (lambda x: (x == 14).any(), lambda m: True),
    "all": (lambda x: (x < 21).all(), lambda m: False),
    "count_nonzero": (lambda x: x.count_nonzero(), lambda m: len(m.at)),
    "sum of a mask": (lambda x: (x > 0).sum(), lambda m: len(m.at) - 1),
    "dot by sums": (lambda x: (x * x).sum(dtype=torch.int32), lambda m: sum(v * v for v in m.at.values()) % 2**32),
    "aminmax": (lambda x: torch.stack(torch.aminmax(x)).sum(), lambda m: 12),
    "equal to itself": (lambda x: (x == x).all(), lambda m: True),
}

# GiB that the host's kernels take beside the tensor itself: they convert all of it first.
TEMPORARIES = {"sum": 17, "sum of a mask": 19, "sum of a sum with float": 9, "dot by sums": 11}

# What each does to a mark; what is not a mark becomes what zero becomes.
POINTWISE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[int], int]]] = {
    "add": (lambda x: x + 3, lambda v: v + 3),
    "mul by itself": (lambda x: torch.clamp(x, -10, 11) * 2, lambda v: 2 * min(v, 11)),
    "where": (lambda x: torch.where(x > 11, x, -x), lambda v: v if v > 11 else -v),
    "masked_fill": (lambda x: x.masked_fill(x == 0, 5), lambda v: v or 5),
    "not": (lambda x: x == 0, lambda v: v == 0),
    "clone": (lambda x: x.clone(), lambda v: v),
    "to uint8": (lambda x: x.to(torch.uint8), lambda v: v % 256),
    "flipped twice": (lambda x: x.flip(0).flip(0), lambda v: v),
    "rolled there and back": (lambda x: x.roll(12345).roll(-12345), lambda v: v),
    "cat of halves": (lambda x: torch.cat([x[: 2**30], x[2**30 :]]), lambda v: v),
    "broadcast": (lambda x: x + torch.ones(1, dtype=torch.int8, device=x.device), lambda v: v + 1),
    "padded and cut": (lambda x: torch.nn.functional.pad(x, (1, 1))[1:-1].clone(), lambda v: v),
}


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(marked: Marked, name: str, mode: str) -> None:
    function, expected = REDUCTIONS[name]
    if mode == "eager" and _available_gib() < TEMPORARIES.get(name, 0) + 1:
        pytest.skip(f"the host's kernel takes {TEMPORARIES[name]} GiB beside the tensor")
    if mode == "compiled":
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)
    got = function(marked.x)
    if name == "dot by sums":  # int8 wraps before it is summed
        want = sum(torch.tensor(v * v).to(torch.int8).item() for v in marked.at.values())
        assert got.item() == want
    else:
        assert got.item() == expected(marked)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(marked: Marked, name: str, mode: str) -> None:
    function, change = POINTWISE[name]
    if mode == "compiled":
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)
    marked.equals(function(marked.x), change, int(change(0)))


@pytest.mark.parametrize("mode", ["eager", "compiled", "dynamic"])
def test_scans(marked: Marked, mode: str) -> None:
    def scan(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0, dtype=torch.int8)

    if mode != "eager":
        torch._dynamo.reset()
        scan = torch.compile(scan, dynamic=mode == "dynamic")
    got, total, before = scan(marked.x), 0, 0
    for place, value in sorted(marked.at.items()):
        assert int(got[place - 1]) == total
        assert bool((got[before:place].cpu() == total).all())  # constant between two marks
        total += value
        assert int(got[place]) == total
        before = place
    assert int(got[-1]) == total


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_reading_by_index(marked: Marked, mode: str) -> None:
    places = torch.tensor([*marked.at, 0, marked.n - 3], device="xpu")
    want = [*marked.at.values(), int(marked.x[0]), int(marked.x[marked.n - 3])]
    readers: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i),
        lambda x, i: x.take(i),
        lambda x, i: x[i - x.numel()],
    ]
    for reader in readers:
        if mode == "compiled":
            torch._dynamo.reset()
            reader = torch.compile(reader, dynamic=False)
        assert reader(marked.x, places).tolist() == want


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_writing_by_index(marked: Marked, mode: str) -> None:
    places = torch.tensor(list(marked.at), device="xpu")
    ones = torch.ones(len(marked.at), dtype=torch.int8, device="xpu")
    writers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "index_put": lambda x: x.index_put((places,), ones, accumulate=True),
        "index_add": lambda x: x.index_add(0, places, ones),
        "scatter_add": lambda x: x.scatter_add(0, places, ones),
        "scatter": lambda x: x.scatter(0, places, x[places] + 1),
        "index_copy": lambda x: x.index_copy(0, places, x[places] + 1),
    }
    for writer in writers.values():
        if mode == "compiled":
            torch._dynamo.reset()
            writer = torch.compile(writer, dynamic=False)
        marked.equals(writer(marked.x), lambda v: v + 1)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_rows_and_columns(marked: Marked, mode: str) -> None:
    """Two dimensions: few long rows, many short ones, and their transposes."""
    n = marked.n - marked.n % 4
    for shape in ((2, n // 2), (n // 2, 2), (n // 4, 4)):
        x = marked.x[:n].view(shape)
        results: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda x: x.amax(0),
            lambda x: x.amax(1),
            lambda x: x.t().contiguous(),
        ]
        for i, function in enumerate(results):
            if mode == "compiled":
                torch._dynamo.reset()
                function = torch.compile(function, dynamic=False)
            got = function(x).cpu()
            want = results[i](marked.x[:n].cpu().view(shape))
            assert torch.equal(got, want), (shape, i)


def test_random_numbers_fill_it_all(marked: Marked) -> None:
    x = torch.randint(1, 5, (marked.n,), dtype=torch.int8, device="xpu")
    smallest, largest = torch.aminmax(x.cpu())
    assert (int(smallest), int(largest)) == (1, 4)
    assert len(set(x[-4096:].tolist())) == 4
    assert not torch.equal(x[:4096], x[EDGE - 8192 : EDGE - 4096])


def test_copies_between_host_and_device(marked: Marked) -> None:
    there = marked.x.cpu()
    marked.equals(there.to("xpu"))
    wide = there[: EDGE // 4].to("xpu", torch.int32)  # 2**31 bytes
    assert int(wide[7]) == -9 and wide.count_nonzero().item() == int((there[: EDGE // 4] != 0).sum())
