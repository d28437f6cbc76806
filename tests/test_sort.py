"""sort and topk on xpu give what CPU torch gives, with every kernel that a CPU or a GPU would be given."""

from __future__ import annotations

import random

import pytest
import torch

import anyxpu.ops
from anyxpu.ops import sort_kernels, sorting
from anyxpu.ops.sort_kernels import Tuning
from tests.refusals import assert_refused_alike
from tests.strided import assert_same_bits, random_shape, random_view

DEVICE = "xpu"
SORTABLE = tuple(sort_kernels.ELEMENTS)
SELECTABLE = tuple(dtype for dtype in SORTABLE if dtype not in sorting._NOT_SELECTED)

# Limits so low that short rows reach every kernel; None leaves the device its own shapes.
SHAPES = {
    "own": None,
    "serial": Tuning(
        units=8, row_lanes=1, row_digit_bits=8, row_bytes=32 << 10, insert_limit=0, rank_limit=8, select_limit=24,
        select_piece=128, block_lanes=1, block_digit_bits=8, block=512, whole=600,
    ),
    "parallel": Tuning(
        units=2, row_lanes=64, row_digit_bits=4, row_bytes=32 << 10, insert_limit=200, rank_limit=8, select_limit=24,
        select_piece=128, block_lanes=64, block_digit_bits=4, block=512, whole=600,
    ),
    "uneven digits": Tuning(
        units=2, row_lanes=16, row_digit_bits=5, row_bytes=16 << 10, insert_limit=0, rank_limit=2, select_limit=64,
        select_piece=64, block_lanes=32, block_digit_bits=3, block=100, whole=300,
    ),
}  # fmt: skip


# Every type in the device's own shapes; in the others one of each width and kind, since each is compiled anew.
FEW = (torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64)
CASES = [(shapes, dtype) for shapes in SHAPES for dtype in (SORTABLE if shapes == "own" else FEW)]


@pytest.fixture(params=SHAPES)
def shapes(request, monkeypatch) -> str:
    monkeypatch.setattr(sort_kernels, "_forced", SHAPES[request.param])
    return request.param


def elements(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Bits of all kinds, many equal elements, both zeros, infinities and several NaN."""
    size = torch.empty(0, dtype=dtype).element_size()
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    bits = torch.randint(0, 256, (*shape, size), dtype=torch.uint8).view(dtype)[..., 0]
    signed = dtype.is_floating_point or torch.iinfo(dtype).min < 0
    few = torch.tensor([-3, 0, 2, 7]) if signed else torch.tensor([0, 1, 255, 7])
    some = few.to(dtype)[torch.randint(0, 4, shape)]
    if dtype.is_floating_point:
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan]).to(dtype)
        some = torch.where(torch.rand(shape) < 0.5, some, special[torch.randint(0, 6, shape)])
    else:
        some = torch.where(torch.rand(shape) < 0.9, some, torch.tensor(torch.iinfo(dtype).max, dtype=dtype))
    return torch.where(torch.rand(shape) < 0.5, bits, some)


def assert_sorted(x: torch.Tensor, there: torch.Tensor, dim: int, descending: bool) -> None:
    """Both results are a stable sort's on the CPU, strides included."""
    expected = x.sort(dim=dim, descending=descending, stable=True)
    actual = there.sort(dim=dim, descending=descending, stable=True)
    what = (x.dtype, tuple(x.shape), dim, descending)
    for a, e in zip(actual, expected, strict=True):
        assert a.stride() == e.stride(), what
        assert_same_bits(a, e, what)


# --- sort ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shapes", "dtype"), CASES, indirect=["shapes"], ids=str)
@pytest.mark.rotates(3)
def test_rows_of_every_length_are_sorted_stably(dtype, shapes, no_host):
    for rows, n in (
        (3, 1),
        (5, 2),
        (3, 8),
        (2, 9),
        (40, 24),
        (33, 14),
        (257, 3),
        (3, 65),
        (3, 300),
        (9, 599),
        (1, 700),
        (3, 2100),
    ):
        x = elements((rows, n), dtype)
        there = x.to(DEVICE)
        for descending in (False, True):
            assert_sorted(x, there, 1, descending)


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.bfloat16), ids=str)
def test_a_long_row_is_sorted_stably(dtype, no_host):
    x = elements((2, 150_001), dtype)
    assert_sorted(x, x.to(DEVICE), 1, False)
    assert_sorted(x[0], x[0].to(DEVICE), 0, True)


@pytest.mark.parametrize("n", (7, 100, 1500))
def test_rows_of_equal_elements_keep_their_order(n, shapes, no_host):
    for value in (0.0, torch.nan, -2.5):
        x = torch.full((3, n), value)
        x[1, n // 2] = 1.0
        assert_sorted(x, x.to(DEVICE), 1, False)
    mixed = torch.zeros(2, n)
    mixed[:, ::3] = -0.0
    assert torch.equal(mixed.to(DEVICE).sort(1, descending=True).indices.cpu(), torch.arange(n).expand(2, n))


@pytest.mark.parametrize("round_", range(30))
def test_any_dimension_of_any_strides_is_sorted(round_, no_host):
    rng = random.Random(f"{torch.initial_seed()}{round_}")
    dtype, shape = rng.choice(SORTABLE), random_shape(rng, 4)
    view = random_view(rng, shape, expandable=True)
    base = elements(view.base, dtype) if view.base else elements((1,), dtype)[0]
    dim = rng.randrange(-max(len(shape), 1), max(len(shape), 1))
    assert_sorted(view.of(base), view.of(base.to(DEVICE)), dim, rng.random() < 0.5)


def test_numbers_and_empty_tensors_are_sorted(no_host):
    for x in (torch.tensor(2.5), torch.empty(0), torch.empty(0, 4), torch.empty(4, 0)):
        for dim in range(-x.dim() or -1, x.dim() or 1):
            assert_sorted(x, x.to(DEVICE), dim, False)


def test_more_rows_than_scratch_memory_holds_are_sorted(monkeypatch, no_host):
    monkeypatch.setattr(sort_kernels, "_forced", SHAPES["serial"])
    monkeypatch.setattr(sort_kernels, "_SCRATCH", 100_000)
    x = elements((11, 2100), torch.float32)
    assert_sorted(x, x.to(DEVICE), 1, False)


def test_what_torch_composes_of_sort_stays_on_the_device(no_host):
    x = torch.randn(6, 50)
    there = x.to(DEVICE)
    assert_same_bits(there.argsort(dim=0, stable=True), x.argsort(dim=0, stable=True))
    assert_same_bits(there.msort(), x.msort())
    assert_same_bits(there.sort(0).values, x.sort(0).values)
    assert_same_bits(torch.argsort(there, 1, descending=True), torch.argsort(x, 1, descending=True))


# --- topk ------------------------------------------------------------------------------------------------------


def assert_selected(x: torch.Tensor, there: torch.Tensor, k: int, dim: int, largest: bool) -> None:
    """The k first of a stable sort: torch says which values, we say that of equal ones the first are taken."""
    n = x.shape[dim] if x.dim() else 1
    expected = x.sort(dim=dim, descending=largest, stable=True)
    actual = there.topk(k, dim, largest)
    for a, e in zip(actual, expected, strict=True):
        assert a.is_contiguous()
        assert_same_bits(a, e.narrow(dim, 0, k) if x.dim() else e, (x.dtype, n, k, dim, largest))


@pytest.mark.parametrize(("shapes", "dtype"), [c for c in CASES if c[1] in SELECTABLE], indirect=["shapes"], ids=str)
@pytest.mark.rotates(3)
def test_the_k_first_of_rows_of_every_length_are_selected(dtype, shapes, no_host):
    for rows, n in ((3, 1), (5, 7), (3, 64), (40, 65), (33, 14), (257, 3), (2, 129), (2, 640), (5, 641), (1, 3000)):
        x = elements((rows, n), dtype)
        there = x.to(DEVICE)
        for k in sorted({1, min(n, 5), min(n, 24), min(n, 100), n // 2 or 1, n}):
            for largest in (False, True):
                assert_selected(x, there, k, 1, largest)


def test_selection_is_right_whatever_the_order_of_a_row(shapes, no_host):
    # Rows that come in the worst order, or have all that is wanted in one lane's part, fill the candidates again.
    n = 5000
    ramp = torch.arange(n, dtype=torch.float32)
    lane = torch.where(torch.arange(n) % 64 == 3, ramp + n, torch.rand(n))
    x = torch.stack([ramp, ramp.flip(0), torch.zeros(n), torch.full((n,), torch.nan), lane, lane.flip(0)])
    for rows, columns in ((1, n), (1, 150), (8, n), (8, 150)):
        part = x[:, :columns].repeat(rows, 1).contiguous()
        there = part.to(DEVICE)
        for k in (1, 8, 20, 64):
            for largest in (False, True):
                assert_selected(part, there, k, 1, largest)


def test_topk_of_a_long_row(no_host):
    x = elements((1_000_003,), torch.float32)
    for k in (1, 8, 64, 65, 1000, 60_000):
        assert_selected(x, x.to(DEVICE), k, 0, True)


@pytest.mark.parametrize("round_", range(30))
def test_topk_of_any_dimension_of_any_strides(round_, no_host):
    rng = random.Random(f"{torch.initial_seed()}{round_}")
    dtype, shape = rng.choice(SELECTABLE), random_shape(rng, 4)
    view = random_view(rng, shape, expandable=True)
    base = elements(view.base, dtype) if view.base else elements((1,), dtype)[0]
    dim = rng.randrange(-max(len(shape), 1), max(len(shape), 1))
    k = rng.randint(0, shape[dim]) if shape else 1
    assert_selected(view.of(base), view.of(base.to(DEVICE)), k, dim, rng.random() < 0.5)


@pytest.mark.not_simulated("it gathers by indices that a kernel would have computed")
def test_unsorted_topk_selects_the_same(no_host):
    x = torch.randn(7, 500)
    values, indices = x.to(DEVICE).topk(9, sorted=False)
    assert_same_bits(values.cpu().sort(1).values, x.topk(9).values.sort(1).values)
    assert_same_bits(x.gather(1, indices.cpu()), values.cpu())


# --- the operators' other forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function", (lambda x, **o: torch.sort(x, dim=0, **o), lambda x, **o: torch.topk(x, 3, 0, **o))
)
def test_outputs_are_resized_written_and_returned(function, no_host):
    x = torch.randn(5, 40)
    there = x.to(DEVICE)
    expected = function(x)
    rows = expected[0].shape[0]
    outs = {
        "empty": lambda: (torch.empty(0), torch.empty(0, dtype=torch.int64)),
        "right": lambda: (torch.empty(rows, 40), torch.empty(rows, 40, dtype=torch.int64)),
        "strided": lambda: (torch.empty(40, rows).t(), torch.empty(rows, 80, dtype=torch.int64)[:, ::2]),
    }
    for what, make in outs.items():
        values, indices = (t.to(DEVICE) if t.is_contiguous() else t.t().to(DEVICE).t() for t in make())
        strides = values.stride(), indices.stride()
        got = function(there, out=(values, indices))
        assert got[0] is values and got[1] is indices, what
        assert_same_bits(values, expected[0], what)
        assert_same_bits(indices, expected[1], what)
        assert what == "empty" or strides == (values.stride(), indices.stride())
    with pytest.warns(UserWarning, match="was resized"):
        function(there, out=(torch.empty(2, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)))


@pytest.mark.parametrize("n", (30, 300))
def test_an_output_may_be_the_input(n, no_host):
    x = torch.randn(4, n)
    x[:, ::5] = -0.0
    expected = x.sort(dim=1, stable=True)
    there, indices = x.to(DEVICE), torch.empty(4, n, dtype=torch.int64, device=DEVICE)
    torch.sort(there, dim=1, stable=True, out=(there, indices))
    assert_same_bits(there, expected.values)
    assert_same_bits(indices, expected.indices)


@pytest.mark.not_simulated("it gathers by indices that a kernel would have computed")
def test_gradients_go_back_where_elements_came_from():
    def gradient(device: str) -> torch.Tensor:
        x = X.to(device).requires_grad_()
        (x.sort(1).values[:, :5].cumsum(1).sum() + x.topk(3, 0).values.square().sum()).backward()
        return x.grad.cpu()

    X = torch.randn(6, 30)
    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"))


WRONG = {
    "dimension": lambda x: x.sort(dim=2),
    "topk's dimension": lambda x: x.topk(1, -3),
    "k": lambda x: x.topk(6),
    "negative k": lambda x: x.topk(-1),
    "k of a number": lambda x: x[0, 0].topk(2),
    "complex": lambda x: x.to(torch.complex64).sort(),
    "topk of complex": lambda x: x.to(torch.complex64).topk(1),
    "topk of bool": lambda x: (x > 0).topk(1),
    "topk of an unsigned type": lambda x: x.abs().to(torch.uint16).topk(1),
    "indices' type": lambda x: torch.sort(x, out=(torch.empty_like(x), torch.empty_like(x))),
    "values' type": lambda x: torch.sort(x, out=(torch.empty_like(x).int(), torch.empty_like(x).long())),
    "overlapping output": lambda x: torch.sort(x, out=(x.new_empty(1, 5).expand(3, 5), torch.empty_like(x).long())),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_sorted_is_refused_as_on_the_cpu(name):
    x = torch.randn(3, 5)
    assert_refused_alike(WRONG[name], x, x.to(DEVICE))


def test_compiled_graphs_find_sort_and_topk_on_the_device(no_host):
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *(x * 2).sort(stable=True, dim=1), *x.topk(8, 1), *torch.sort(x, dim=0)

    x = torch.randperm(80_000).view(40, 2000).float()  # no two alike, whose order sort leaves open
    for a, e in zip(torch.compile(both)(x.to(DEVICE)), both(x), strict=True):
        assert_same_bits(a, e)


def test_sorting_is_declared_compiled():
    for op in ("sort", "sort.stable", "sort.values", "sort.values_stable", "topk", "topk.values", "argsort", "msort"):
        assert anyxpu.ops.resolve(f"aten::{op}") in ("compiled", "composite"), op
    assert anyxpu.ops.resolve("aten::topk.values") == "compiled"


@pytest.mark.not_simulated("it counts the kernels that a CPU takes for a row; a GPU takes others")
def test_selection_ends_without_sorting_the_row(monkeypatch):
    launched = []
    launch = sort_kernels.Kernels.launch

    def watched(self, name, *arguments, options=()):
        launched.append(name)
        launch(self, name, *arguments, options=options)

    monkeypatch.setattr(sort_kernels.Kernels, "launch", watched)
    x = torch.randn(300_000)
    for k in (8, 65, 300, 1000, 4000):
        launched.clear()
        assert_selected(x, x.to(DEVICE), k, 0, True)
        assert set(launched) <= {"select_rows", "radix_rows", "rank_rows"} and len(launched) <= 5, (k, launched)


def test_the_sizes_above_reach_every_kernel(monkeypatch):
    reached = set()
    launch = sort_kernels.Kernels.launch

    def watched(self, name, *arguments, options=()):
        reached.add((name, *options))
        launch(self, name, *arguments, options=options)

    monkeypatch.setattr(sort_kernels.Kernels, "launch", watched)
    monkeypatch.setattr(sort_kernels, "_forced", SHAPES["serial"])
    for n, k in ((5, 5), (300, 300), (2100, 2100), (70, 5), (3000, 5), (3000, 100), (200_000, 100)):
        x = torch.randn(1, n, device=DEVICE)
        x.sort() if k == n else x.topk(k)
    monkeypatch.setattr(sort_kernels, "_forced", SHAPES["parallel"])
    torch.randn(32, 5, device=DEVICE).sort()
    blocks = {"differ_blocks", "count_blocks", "scan_blocks", "scatter_blocks"}
    rows = {"insert_rows", "rank_rows", "select_rows", "radix_rows"}
    assert {name for name, *_ in reached} == blocks | rows
    forms = {tuple(options) for name, *options in reached if name in rows}
    assert forms == set(sort_kernels._FORMS.values()), "elements and words, in and out"
