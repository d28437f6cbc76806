"""Sparse tensors on xpu, COO and compressed: operators of torch's database and their gradients, against the CPU."""

from __future__ import annotations

import contextlib
import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import anyxpu.ops
from anyxpu import simulate
from anyxpu.cache import cache_dir
from anyxpu.shim import lib

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.skipif(not torch.xpu.is_available(), reason="no xpu device"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]

VALUES = pytest.mark.not_simulated("its sizes are what a kernel computes")
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
EVERYDAY = (
    "abs", "add", "addmm", "asin", "bmm", "cat", "clone", "div", "mm", "mul", "mv", "neg", "relu", "sgn", "sqrt", "sub",
    "sum", "transpose", "unsqueeze", "index_select", "to_sparse", "matmul", "nn.functional.linear", "zeros_like",
    "masked.sum", "masked.amax", "sparse.mm", "sparse.sampled_addmm",
)  # fmt: skip
# Random, or unique up to signs; torch.add's CPU kernel alone makes ordered places of ordered ones.
# Of these the result has the type that they name, whatever the samples have.
NAMING = (
    "to",
    "double",
    "float",
    "half",
    "bfloat16",
    "cfloat",
    "cdouble",
    "chalf",
    "int",
    "long",
    "short",
    "char",
    "byte",
    "bool",
)
RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal", "lowrank", "uniform", "exponential")
UNINITIALIZED = ("empty", "empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_")


def tensors(value):
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def on_xpu(value):
    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("xpu").requires_grad_(leaf.requires_grad)
        return torch.device("xpu") if leaf == "cpu" or leaf == torch.device("cpu") else leaf

    return tree_map(move, value)


def sparse(t, layout):
    if (
        not isinstance(t, torch.Tensor)
        or t.layout is not torch.strided
        or t.numel() == 0
        or t.dim() < (1 if layout is torch.sparse_coo else 2)
    ):
        return t
    some = torch.where(torch.rand(t.shape) < 0.4, torch.zeros_like(t), t.detach())
    blocks = [2 if n % 2 == 0 else 1 for n in t.shape[-2:]] if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return some.to_sparse(layout=layout, blocksize=blocks).requires_grad_(t.requires_grad)


def near(got, want, what, bound):
    for one, other in zip(tensors(got), tensors(want), strict=True):
        assert one.device.type == "xpu", what
        assert (one.layout, one.dtype, one.shape) == (other.layout, other.dtype, other.shape), what
        if not simulate.active():
            one, other = (t.detach().cpu().to_dense() for t in (one, other))
            torch.testing.assert_close(one, other, rtol=bound, atol=bound, equal_nan=True, msg=lambda m: f"{what}: {m}")


def converted(leaf, before, after):
    return leaf.to(after) if isinstance(leaf, torch.Tensor) and leaf.dtype is before else leaf


def samples(op, layout, dtype):
    """Arguments of the database's own sparse samples, and of its dense ones with the first or all tensors sparse."""
    grad = dtype is torch.float32 and op.supports_autograd
    own = getattr(op, f"sample_inputs_{str(layout).removeprefix('torch.')}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for sample in itertools.islice(own("cpu", dtype, requires_grad=grad), 40):
                yield sample.input, sample.args, sample.kwargs
        except Exception:
            pass  # it has none
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), 12):
            arguments = (sample.input, sample.args, sample.kwargs)
            for some in (arguments[:1], arguments):
                with contextlib.suppress(RuntimeError):  # torch makes no such sparse tensor
                    yield *tree_map(lambda t: sparse(t, layout), some), *arguments[len(some) :]


def swept(op, layout, dtype):
    bound = 0.1 if dtype is torch.bfloat16 else 2e-5
    count = 0
    for given in samples(op, layout, dtype):
        if all(t.layout is torch.strided for t in tensors(given)):
            continue
        what = f"{op.name} of {[(t.layout, t.dtype, tuple(t.shape)) for t in tensors(given)]}"
        try:
            want = op(given[0], *given[1], **given[2])
            if dtype is torch.bfloat16:  # in which the CPU adds up
                wide = tree_map(lambda leaf: converted(leaf, torch.bfloat16, torch.float64), given)
                exact = op(wide[0], *wide[1], **wide[2])
                want = tree_map(lambda e, w: e.to(w.dtype) if isinstance(e, torch.Tensor) else e, exact, want)
            [t.to_dense() for t in tensors(want)]
        except Exception:
            continue  # what the CPU has not either
        count += 1
        here = on_xpu(given)
        got = op(here[0], *here[1], **here[2])
        near(got, want, what, bound)
        if not isinstance(want, torch.Tensor) or not want.requires_grad:
            continue
        try:
            grads = torch.autograd.grad(
                want, [t for t in tensors(given) if t.requires_grad], torch.ones_like(want), allow_unused=True
            )
        except Exception:
            continue
        ours = torch.autograd.grad(
            got, [t for t in tensors(here) if t.requires_grad], torch.ones_like(got), allow_unused=True
        )
        near([g for g in ours if g is not None], [g for g in grads if g is not None], f"gradients of {what}", bound)
    return count


@VALUES
@pytest.mark.rotates(3)
def test_operators_of_the_database(full):
    chosen = [
        op
        for op in op_db
        if op.name not in (*UNINITIALIZED, *NAMING)
        and not any(word in op.name for word in RANDOM)
        and (full or op.name in EVERYDAY)
    ]
    counts: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in chosen:
            for layout in LAYOUTS:
                wide = (torch.float32, torch.int64, torch.complex64, torch.bfloat16)
                for dtype in wide if full and layout in LAYOUTS[:2] else wide[:1]:
                    if dtype in op.dtypes:
                        torch.manual_seed(7)
                        counts[op.name] = counts.get(op.name, 0) + swept(op, layout, dtype)
    assert sum(1 for n in counts.values() if n) >= (100 if full else 24), counts


# --- what kernels serve, and the host does not -----------------------------------------------------------------------


@pytest.fixture
def matrix():
    """A COO matrix with places named twice."""
    indices = torch.stack([torch.randint(0, 50, (400,)), torch.randint(0, 60, (400,))])
    return torch.sparse_coo_tensor(indices, torch.randn(400), (50, 60))


CALLS = {
    "coalesce": lambda s, d: s.coalesce(),
    "to_dense": lambda s, d: s.to_dense(),
    "mm": lambda s, d: s @ d,
    "mm of csr": lambda s, d: s.to_sparse_csr() @ d,
    "mm of csc": lambda s, d: s.to_sparse_csc() @ d,
    "mv": lambda s, d: s @ d[:, 0],
    "mv of csr": lambda s, d: s.to_sparse_csr() @ d[:, 0],
    "transposed": lambda s, d: s.t() @ d[:50],
    "addmm": lambda s, d: torch.sparse.addmm(d[:50] * 2, s, d, beta=0.5, alpha=2),
    "bmm": lambda s, d: torch.bmm(torch.stack([s, s * 2]), torch.stack([d, d + 1])),
    "sparse + sparse": lambda s, d: s + s.t().t(),
    "dense + sparse": lambda s, d: d[:50, :1] * torch.ones_like(d[:1, :1]).expand(50, 60) + s,
    "sparse - sparse": lambda s, d: s - s.coalesce(),
    "sparse * number": lambda s, d: s * 3,
    "sparse * dense": lambda s, d: s * d[:50, :1],
    "sum": lambda s, d: torch.sparse.sum(s, 0),
    "cat": lambda s, d: torch.cat([s, s], 1),
    "mask": lambda s, d: (d[:50, :1] * d.t()[:1]).sparse_mask(s.coalesce()),
    "mask of csr": lambda s, d: (d[:50, :1] * d.t()[:1]).sparse_mask(s.to_sparse_csr()),
    "pointwise": lambda s, d: torch.relu(s.coalesce()).sqrt(),
    "csr to csc": lambda s, d: s.to_sparse_csr().to_sparse_csc(),
    "of a dense one": lambda s, d: torch.relu(d).to_sparse(),
}


@VALUES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_no_call_of_the_host(matrix, name, dtype):
    if dtype is torch.float64 and not torch.xpu.get_device_properties().has_fp64:
        pytest.skip("the device has no float64")
    s, d = matrix.to(dtype), torch.randn(60, 33).to(dtype)
    want = CALLS[name](s.double(), d.double()).to(dtype)
    anyxpu.ops.reset_counters()
    got = CALLS[name](s.to("xpu"), d.to("xpu"))
    hosts = {op for op, ways in anyxpu.ops.counters().items() if ways.get("host")}
    assert not hosts, hosts
    near(got, want, name, {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float64: 1e-10}[dtype])


@VALUES
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_number_alone_may_be_sparse(dtype, count):
    number = torch.sparse_coo_tensor(torch.zeros(0, count, dtype=torch.long), torch.ones(count).to(dtype), ()).to("xpu")
    dense = torch.tensor(count).to(dtype)
    assert number.to_dense().dtype == dtype and torch.equal(number.to_dense().cpu(), dense)
    product = torch.eye(3).to_sparse().to("xpu") * number
    assert torch.equal(product.to_dense().cpu(), torch.eye(3) * dense)


COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    by_rows = t.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (t.crow_indices(), t.col_indices()) if by_rows else (t.ccol_indices(), t.row_indices())
    return [x.cpu() for x in (*indices, t.values())]


@VALUES
@pytest.mark.parametrize("shape", [(8, 12), (2, 3, 8, 12), (0, 6), (6, 0)], ids=str)
@pytest.mark.parametrize("source", COMPRESSED, ids=str)
def test_matrices_are_compressed_along_the_other_dimension(source, shape):
    """Or in blocks; alone, in batches, of dense rests; by every operator that says so."""
    target = COMPRESSED[COMPRESSED.index(source) ^ 1]
    blocks = {"blocksize": (2, 3)} if COMPRESSED.index(source) > 1 else {}
    dense = torch.zeros(*shape, 2) if len(shape) == 2 else torch.zeros(shape)
    for matrix in dense.view(-1, *dense.shape[len(shape) - 2 :]) if dense.numel() else ():
        rows, columns = (torch.randperm(n)[:4] for n in shape[-2:])
        matrix[rows, columns] = torch.randn(4, *matrix.shape[2:])
        matrix[rows, columns.roll(1)] = 1.0
    if blocks and len(shape) > 2:  # as many blocks in each
        dense = torch.randn(shape) * (torch.arange(12) % 6 < 3)
    rest = dense.dim() - len(shape) or None
    name = f"to_{str(target).removeprefix('torch.')}"
    for convert in (
        lambda t: t.to_sparse(layout=target, **blocks),
        lambda t: getattr(t, name)(*blocks.values()),
    ):
        compressed = dense.to_sparse(layout=source, **blocks, dense_dim=rest)
        want, got = convert(compressed), convert(compressed.to("xpu"))
        assert got.layout == target and got.device.type == "xpu"
        for a, b in zip(parts(got), parts(want), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)


@VALUES
@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_of_an_embedding_train_it(optimizer):
    tokens = torch.randint(0, 20, (3, 4, 5))
    weights = []
    for device in ("cpu", "xpu"):
        torch.manual_seed(3)
        table = torch.nn.Embedding(20, 8, sparse=True, _weight=torch.randn(20, 8)).to(device)
        steps = optimizer(table.parameters(), lr=0.05)
        anyxpu.ops.reset_counters()
        for batch in tokens.to(device):
            table(batch).square().sum().backward()
            assert table.weight.grad.layout is torch.sparse_coo
            steps.step()
            steps.zero_grad()
        weights.append(table.weight.detach())
    assert not {op for op, ways in anyxpu.ops.counters().items() if ways.get("host")}
    near(weights[1], weights[0], optimizer.__name__, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [1, 9, 64, 300])
def test_products_with_dense_matrices(dtype, columns):
    """With nothing that has to be counted first, as a simulated GPU takes it."""
    dense = torch.randn(60, columns).to(dtype)
    bias = torch.randn(50, columns).to(dtype)
    matrix = torch.where(torch.rand(50, 60) < 0.1, torch.randn(50, 60), 0.0).to(dtype)
    rows = matrix.to_sparse_csr().to("xpu")
    anyxpu.ops.reset_counters()
    got = torch.addmm(bias.to("xpu"), rows, dense.to("xpu"), beta=0.5, alpha=-2)
    assert not {op for op, ways in anyxpu.ops.counters().items() if ways.get("host")}
    want = torch.addmm(bias.double(), matrix.double(), dense.double(), beta=0.5, alpha=-2).to(dtype)
    near(got, want, "addmm", {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype])


@VALUES
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.parametrize("mode", ["compile", "auto", "host"])
def test_a_matrix_made_sparse_on_the_device_is_multiplied_there(layout, mode):
    """Whose indices come of nonzero()."""
    lib().set_eager(mode)
    matrix = torch.where(torch.rand(20, 30) < 0.3, torch.randn(20, 30), 0.0)
    dense = torch.randn(30, 7)
    made = matrix.to("xpu").to_sparse(layout=layout)
    plain = made.row_indices() if layout is torch.sparse_csc else made.col_indices()
    assert plain.is_contiguous()
    near(made @ dense.to("xpu"), matrix @ dense, mode, 1e-5)


@VALUES
def test_a_type_that_the_host_has_not_is_waited_for(run_python, tmp_path):
    """In `auto` the host serves while a kernel is built; where it cannot, the first call waits instead of failing."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "build").symlink_to(cache_dir() / "build")
    run_python(
        """
        import torch
        matrix = torch.eye(6).to(torch.bfloat16).to_sparse_csr().to("xpu")
        dense = torch.arange(12.0).view(6, 2).to(torch.bfloat16)
        assert torch.equal((matrix @ dense.to("xpu")).cpu(), dense)
        """,
        ANYXPU_EAGER="auto",
        ANYXPU_CACHE_DIR=str(cache),
    )


def test_a_tensor_moves_there_and_back(matrix):
    for layout in LAYOUTS:
        blocks = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        there = matrix.to_sparse(layout=layout, blocksize=blocks) if layout is not torch.sparse_coo else matrix
        back = there.to("xpu").cpu()
        assert (back.layout is layout and torch.equal(back.to_dense(), there.to_dense())) or simulate.active()


@VALUES
def test_diagonals_and_files(tmp_path, matrix):
    diagonals, offsets = torch.randn(2, 4), torch.tensor([0, 1])
    made = torch.sparse.spdiags(diagonals.to("xpu"), offsets.to("xpu"), (4, 4))
    near(made, torch.sparse.spdiags(diagonals, offsets, (4, 4)), "spdiags", 0)
    for there in (matrix, matrix.to_sparse_csr()):
        torch.save(there.to("xpu"), tmp_path / "sparse.pt")
        near(torch.load(tmp_path / "sparse.pt"), there, "loaded", 0)


@VALUES
def test_gradients_are_those_of_differences():
    if not torch.xpu.get_device_properties().has_fp64:
        pytest.skip("the device has no float64")
    s = torch.randn(3, 4, dtype=torch.float64).relu().to("xpu")
    d = torch.randn(4, 2, dtype=torch.float64).to("xpu").requires_grad_()
    for one in (s.to_sparse(), s.to_sparse_csr()):
        assert torch.autograd.gradcheck(torch.sparse.mm, (one.requires_grad_(), d), masked=True)


@VALUES
def test_duplicate_places_are_added_in_order_and_the_same_each_time():
    indices = torch.zeros(2, 10_000, dtype=torch.long)
    values = torch.randn(10_000)
    sums = {torch.sparse_coo_tensor(indices, values, (3, 3)).to("xpu").coalesce().values().item() for _ in range(5)}
    assert len(sums) == 1
    if not simulate.active():
        assert abs(sums.pop() - values.double().sum().item()) < 1e-2


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_reduced_products(matrix, reduce):
    grads = []
    for device in ("cpu", "xpu"):
        s = matrix.to_sparse_csr().to(device).requires_grad_()
        d = torch.linspace(-1, 1, 60 * 9, device=device).view(60, 9).requires_grad_()
        grads.append(torch.autograd.grad(torch.sparse.mm(s, d, reduce).sum(), [s, d]))
    near(grads[1], grads[0], reduce, 1e-5)


@VALUES
def test_a_sparse_zero_makes_zeros(matrix):
    s = matrix.to("xpu")
    zero = torch.zeros((), layout=torch.sparse_coo, device="xpu")
    assert (s * zero).to_dense().abs().sum().item() == 0 or simulate.active()


@VALUES
def test_what_the_cpu_has_not_is_refused_by_name(matrix):
    with pytest.raises(NotImplementedError, match=r"aten::\w+.* has no kernel for tensors of kind SparseXPU"):
        torch.cumsum(matrix.to("xpu"), 0)
    with pytest.raises(RuntimeError, match=r"shape|size|dim"):
        torch.sparse.mm(matrix.to("xpu"), torch.randn(7, 3, device="xpu"))
    assert (torch.ones(3, device="xpu") * 2).tolist() == [2.0] * 3 or simulate.active()


def test_strict_refuses_what_the_host_would_compute(matrix):
    lib().set_eager("strict")
    with pytest.raises(NotImplementedError, match=r"_sparse_softmax at .*test_sparse\.py:\d+ .*ANYXPU_EAGER=strict"):
        torch.sparse.softmax(matrix.to("xpu"), 1)
