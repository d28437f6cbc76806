"""The host path: every operator without a kernel of its own runs as ATen's CPU kernel, exactly."""

from __future__ import annotations

import inspect
import json
import math
import random
import re
import warnings

import pytest
import torch

import anyxpu.ops
from anyxpu import simulate
from anyxpu.ops import notice, registry
from anyxpu.shim import lib
from tests.strided import assert_same_bits

DEVICE = "xpu"


@pytest.fixture(params=("shared", "copied"), autouse=True)
def memory(request):
    """Twice: over the device's own memory, and through copies as on a device whose memory the host cannot reach."""
    before = lib().eager()
    lib().set_eager("host")
    lib().set_host_copies(request.param == "copied")
    yield request.param
    lib().set_host_copies(False)
    lib().set_eager(before)


def to(device: str, value):
    """Move every tensor in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value.to(device) if device != "cpu" else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(to(device, v) for v in value)
    if isinstance(value, dict):
        return {k: to(device, v) for k, v in value.items()}
    return value


def assert_same(actual, expected):
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "xpu"
        assert actual.stride() == expected.stride()
        assert_same_bits(actual, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    else:
        assert actual == expected


def check(function, *args, **kwargs):
    """Same results, and the same arguments afterwards, as on the CPU."""
    host, device = to("cpu", (args, kwargs)), to(DEVICE, (args, kwargs))
    expected = function(*host[0], **host[1])
    actual = function(*device[0], **device[1])
    assert_same(actual, expected)
    assert_same(list(device[0]), list(host[0]))
    return actual


A, B, C = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4, 5)
INTS = torch.randint(0, 3, (3, 4))

CASES = {
    "binary": lambda: check(torch.add, A, B, alpha=2),
    "number in a CPU tensor": lambda: assert_same(A.to(DEVICE) * torch.tensor(3.0), A * 3),
    "type promotion": lambda: check(torch.add, A, INTS),
    "matmul in f64": lambda: check(torch.mm, A.double(), C.double()),
    "transposed matmul in f64": lambda: check(torch.mm, C.t().double(), A.t().double()),
    "several results": lambda: check(torch.max, A, 1),
    "reduction": lambda: check(torch.var_mean, A, 0, keepdim=True),
    "list argument": lambda: check(torch.cat, [A, B, A], 1),
    "list result": lambda: check(torch.meshgrid, A[0], B[0], indexing="ij"),
    "in place": lambda: check(torch.Tensor.add_, A, B),
    "in place on a strided view": lambda: check(lambda a, b: a[:, ::2].mul_(b[:, 1::2]), A, B),
    "transposed result": lambda: check(torch.relu, A.t()),
    "channels last": lambda: check(torch.sigmoid, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "optional tensor absent": lambda: check(torch.ops.aten.multi_margin_loss, A, torch.tensor([0, 2, 1]), 1, 1, None),
    "optional tensor given": lambda: check(torch.ops.aten.multi_margin_loss, A, torch.tensor([0, 2, 1]), 1, 1, B[0]),
    "optional tensor list": lambda: check(lambda a, i: a[:, i], A, INTS[0]),
    "boolean mask": lambda: check(lambda a, b: a[b > 0], A, B),
    "index_put_": lambda: check(lambda a, i, b: a.index_put_((i[:, 0],), b[0], accumulate=True), A, INTS, B),
    "size depends on data": lambda: check(torch.nonzero, INTS),
    "several of data's size": lambda: check(torch.unique, INTS, return_inverse=True, return_counts=True),
    "values and indices": lambda: check(torch.kthvalue, A, 2, 1),
    "scalar result": lambda: check(torch.equal, A, A),
    "factory": lambda: assert_same(torch.arange(2, 20, 3, device=DEVICE), torch.arange(2, 20, 3)),
    "factory of floats": lambda: assert_same(torch.linspace(0, 1, 7, device=DEVICE), torch.linspace(0, 1, 7)),
    "indices": lambda: assert_same(torch.tril_indices(3, 3, device=DEVICE), torch.tril_indices(3, 3)),
    "pooling": lambda: check(torch.nn.functional.max_pool2d, torch.randn(2, 3, 8, 8), 3, 2, 1, return_indices=True),
    "fft": lambda: check(torch.fft.rfft, A),
    "complex": lambda: check(torch.exp, torch.randn(4, dtype=torch.complex64)),
    "conjugate argument": lambda: check(lambda a: a.conj() + 1, torch.randn(4, dtype=torch.complex64)),
    "linear algebra": lambda: check(torch.linalg.qr, A),
    "foreach": lambda: check(torch._foreach_add_, [A, B], [B, A]),
    "foreach results": lambda: check(torch._foreach_mul, [A, B], 2.0),
    "empty": lambda: check(torch.add, torch.empty(0, 3), torch.empty(0, 3)),
    "zero dimensions": lambda: check(torch.add, torch.tensor(1.5), torch.tensor(2.5)),
    "expanded": lambda: check(torch.add, A[:1].expand(3, 4), B),
    "scatter": lambda: check(lambda a, i, b: a.scatter_add_(1, i, b), A, INTS, B),
    "batch norm statistics": lambda: check(
        lambda x, m, v: torch.nn.functional.batch_norm(x, m, v, training=True), A, torch.zeros(4), torch.ones(4)
    ),
    "bfloat16": lambda: check(torch.nn.functional.gelu, A.bfloat16()),
    "clone keeps the layout": lambda: check(torch.clone, A.t()),
    "tensor list of results": lambda: check(lambda a: torch.ops.aten.split_copy.Tensor(a, 2), A),
    "searchsorted": lambda: check(torch.searchsorted, torch.tensor([1.0, 2.0, 3.0]), A),
    "histc": lambda: check(torch.histc, A, 5),
}


@pytest.mark.parametrize("name", CASES)
def test_host_operator_equals_the_cpus(name):
    torch.manual_seed(5)
    CASES[name]()


def test_out_is_written_resized_and_returned():
    a, b = A.to(DEVICE), B.to(DEVICE)
    for out in (torch.empty(0, device=DEVICE), torch.empty(3, 4, device=DEVICE), torch.empty(4, 3, device=DEVICE).t()):
        stride, empty = out.stride(), out.numel() == 0
        returned = torch.add(a, b, out=out)
        assert returned is out
        assert_same_bits(out, A + B)
        assert empty or out.stride() == stride
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)
    got = torch.cummax(a, 1, out=(values, indices))
    assert got[0] is values and got[1] is indices
    assert_same([values, indices], list(torch.cummax(A, 1)))


FILLED = {
    "linspace": (torch.int32, lambda out: torch.linspace(0, 3, 4, out=out)),
    "linspace of complex": (torch.complex64, lambda out: torch.linspace(0, 3j, 4, out=out)),
    "logspace": (torch.int64, lambda out: torch.logspace(0, 3, 4, base=2, out=out)),
    "range": (torch.float32, lambda out: torch.range(1, 4, out=out)),
}


@pytest.mark.parametrize(("dtype", "fill"), FILLED.values(), ids=FILLED)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_an_out_of_as_many_elements_keeps_its_shape_and_strides(dtype, fill):
    """torch resizes it only where the number differs."""
    wholes = []
    for device in ("cpu", DEVICE):
        whole = torch.zeros(2, 3, dtype=dtype, device=device)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="An output with one or more elements was resized")
            fill(whole[:, 1:])
        wholes.append(whole)
    assert_same_bits(wholes[1], wholes[0])


def test_an_out_of_other_elements_is_resized_and_warned_of_once():
    symmetric, outs = A @ A.t(), []
    for device in ("cpu", DEVICE):
        out = torch.zeros(2, 4, device=device)[:, ::2]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.linalg.eigvalsh(symmetric.to(device), out=out)
        assert len([w for w in said if "was resized" in str(w.message)]) == 1
        outs.append(out.cpu())
    torch.testing.assert_close(outs[1], outs[0])


def test_a_grown_out_keeps_its_storage_shared():
    out = torch.empty(0, device=DEVICE)
    alias = out.untyped_storage()
    torch.mm(A.to(DEVICE), C.to(DEVICE), out=out)
    assert out.untyped_storage().data_ptr() == alias.data_ptr() and alias.nbytes() == 60


def test_in_place_returns_the_very_tensor_and_bumps_its_version():
    a = A.to(DEVICE)
    version = a._version
    assert a.add_(1) is a and a._version > version


def test_in_place_into_a_piece_leaves_the_rest_alone():
    base = torch.arange(40.0)
    there = base.to(DEVICE)
    for t in (base, there):
        t[10:20:3].exp_()
    assert_same_bits(there, base)


def test_two_arguments_over_one_storage():
    base = torch.arange(20.0)
    there = base.to(DEVICE)
    for t in (base, there):
        t[:8].mul_(t[10:18])
        torch.add(t[:4], t[4:8], out=t[12:16])
    assert_same_bits(there, base)
    with pytest.raises(RuntimeError, match="single memory location"):
        there[1:].add_(there[:-1])


def test_autograd_through_host_operators():
    def step(device):
        torch.manual_seed(3)
        layers = (torch.nn.BatchNorm2d(3), torch.nn.AvgPool2d(3, 1), torch.nn.GELU(), torch.nn.Flatten())
        model = torch.nn.Sequential(*layers, torch.nn.Linear(108, 5)).to(device)
        x = torch.randn(2, 3, 8, 8).to(device).requires_grad_()
        loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1, 3]).to(device))
        loss.backward()
        torch.optim.AdamW(model.parameters()).step()
        return [loss.detach(), x.grad, *(p.grad for p in model.parameters()), *(p.detach() for p in model.parameters())]

    for actual, expected in zip(step(DEVICE), step("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-6)


def test_double_backward_and_forward_mode():
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    (grad,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    grad.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 6 * x.detach().cpu())
    tangent = torch.func.jvp(lambda t: t.sin(), (x.detach(),), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent.cpu(), x.detach().cpu().cos())


def test_errors_of_the_cpu_pass_unchanged():
    for function in (
        lambda d: torch.zeros(3, 4, device=d) @ torch.zeros(3, 4, device=d),
        lambda d: torch.zeros(3, device=d).index_select(0, torch.tensor([7], device=d)),
        lambda d: torch.linalg.cholesky(-torch.eye(3).to(d)),
        lambda d: torch.zeros(3, dtype=torch.int32, device=d).bernoulli_(3.0),
        lambda d: torch.ones(5, device=d).unique_consecutive(dim=7),
        lambda d: torch.zeros(5, device=d).normal_(0.0, math.nan),
        lambda d: torch.normal(torch.zeros(5, device=d), math.nan),
        lambda d: torch.normal(0.0, torch.tensor([1.0, math.nan], device=d)),
        lambda d: torch.zeros(5, device=d).cauchy_(0.0, math.nan),
        lambda d: torch.zeros(5, device=d).log_normal_(0.0, math.nan),
        lambda d: torch.zeros(5, device=d).exponential_(math.nan),
        lambda d: torch.ones(2, 3, device=d).renorm(2, 0, math.nan),
    ):
        with pytest.raises((RuntimeError, IndexError)) as expected:
            function("cpu")
        with pytest.raises((RuntimeError, IndexError)) as actual:
            function(DEVICE)
        assert type(actual.value) is type(expected.value)
        assert str(actual.value) == str(expected.value)
    assert torch.ones(2, device=DEVICE).add(1).tolist() == [2, 2], "the device goes on"


def test_mixed_devices_are_refused():
    a = torch.zeros(3, 3, device=DEVICE)
    for function in (
        lambda: a + torch.zeros(3, 3),
        lambda: a @ torch.zeros(3, 3),
        lambda: torch.zeros(3, 3) @ a,
        lambda: torch.nn.functional.linear(a, torch.zeros(3, 3)),
        lambda: torch.cat([a, torch.zeros(3, 3)]),
        lambda: torch.add(a, a, out=torch.zeros(3, 3)),
        lambda: a.gather(0, torch.zeros(3, 3, dtype=torch.long)),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            function()


def test_indices_may_stay_on_the_cpu():
    a = A.to(DEVICE)
    index = torch.tensor([2, 0])
    assert_same_bits(a[index], A[index])
    a[index] = 7.0
    assert a[index].eq(7).all()


def test_packed_sequences_keep_their_lengths_on_the_cpu():
    x = torch.randn(2, 5, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(DEVICE), [5, 3], batch_first=True)
    assert packed.data.device.type == "xpu" and packed.batch_sizes.device.type == "cpu"
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, batch_first=True)
    expected, _ = lstm(torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3], batch_first=True))
    actual, _ = lstm.to(DEVICE)(packed)
    torch.testing.assert_close(actual.data.cpu(), expected.data)


@pytest.mark.parametrize("cell", ("LSTM", "GRU"))
@pytest.mark.parametrize("bias", (True, False))
def test_recurrent_layers_and_their_gradients(cell, bias):
    def run(device):
        torch.manual_seed(0)
        layer = getattr(torch.nn, cell)(3, 4, num_layers=2, bias=bias, dtype=torch.float64).to(device)
        x = torch.randn(5, 2, 3, dtype=torch.float64).to(device).requires_grad_()
        y, state = layer(x)
        (y.sin().sum() + sum(s.cos().sum() for s in (state if cell == "LSTM" else (state,)))).backward()
        return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]

    for actual, expected in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


def test_host_call_runs_on_the_host_whatever_is_registered():
    anyxpu.ops.reset_counters()
    out = torch.empty(0, device=DEVICE)
    returned = anyxpu.ops.host_call(torch.ops.aten.mm.out, A.to(DEVICE), C.to(DEVICE), out=out)
    assert returned is out and anyxpu.ops.counters()["aten::mm.out"] == {"host": 1}
    assert_same_bits(out, A @ C)
    with pytest.raises(RuntimeError) as expected:
        A @ A
    with pytest.raises(RuntimeError) as actual:
        anyxpu.ops.host_call(torch.ops.aten.mm.default, A.to(DEVICE), A.to(DEVICE))
    assert str(actual.value) == str(expected.value)


def test_an_operator_without_any_kernel_is_named():
    library = torch.library.Library("anyxpu_test", "FRAGMENT")
    try:
        library.define("nothing(Tensor x) -> Tensor")
        with pytest.raises(NotImplementedError, match="anyxpu_test::nothing"):
            torch.ops.anyxpu_test.nothing(torch.ones(1, device=DEVICE))
    finally:
        library._destroy()


def test_custom_operators_with_a_cpu_kernel_run_and_may_return_views():
    library = torch.library.Library("anyxpu_test2", "FRAGMENT")
    try:
        library.define("first(Tensor(a) x) -> Tensor(a)")
        library.define("both(Tensor x, Tensor[] y, Tensor?[] z, int[] s, Device? device=None) -> (Tensor, Tensor[])")
        library.impl("first", lambda x: x[0], "CPU")
        library.impl("both", lambda x, y, z, s, device=None: (x + 1, [t * 2 for t in y if t is not None]), "CPU")
        a = A.to(DEVICE)
        piece = torch.ops.anyxpu_test2.first(a)
        assert piece.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
        piece.zero_()
        assert a[0].eq(0).all()
        one, many = torch.ops.anyxpu_test2.both(a, [a, a], [None, a], [1, 2], device=torch.device(DEVICE))
        assert one.device.type == many[1].device.type == "xpu"
        assert_same_bits(one, a.cpu() + 1)
    finally:
        library._destroy()


# --- random numbers --------------------------------------------------------------------------------------------

# Those that are made of others, or drawn by the host with a seed of the device's (tests/test_random.py has the others).
RANDOM = {
    "randperm": lambda: torch.randperm(100, device=DEVICE),
    "exponential_": lambda: torch.empty(100, device=DEVICE).exponential_(),
    "geometric_": lambda: torch.empty(100, device=DEVICE).geometric_(0.01),
    "cauchy_": lambda: torch.empty(100, device=DEVICE).cauchy_(),
    "log_normal_": lambda: torch.empty(100, device=DEVICE).log_normal_(),
    "normal of tensors": lambda: torch.normal(torch.zeros(100, device=DEVICE), torch.ones(100, device=DEVICE)),
    "multinomial": lambda: torch.multinomial(torch.ones(100, device=DEVICE), 50),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(100, device=DEVICE)),
    "poisson": lambda: torch.poisson(torch.full((100,), 9.0, device=DEVICE)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_differ_from_call_to_call_and_come_again_with_the_seed(name):
    torch.manual_seed(11)
    first, second = RANDOM[name](), RANDOM[name]()
    assert not first.equal(second)
    torch.manual_seed(11)
    assert RANDOM[name]().equal(first) and RANDOM[name]().equal(second)
    torch.manual_seed(12)
    assert not RANDOM[name]().equal(first)


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_of_the_device_leave_the_cpus_alone(name):
    torch.manual_seed(11)
    expected = torch.rand(5)
    torch.manual_seed(11)
    RANDOM[name]()
    assert torch.rand(5).equal(expected)


def test_generators():
    def draw() -> torch.Tensor:
        return torch.empty(50, device=DEVICE).exponential_(generator=generator)

    generator = torch.Generator(DEVICE).manual_seed(4)
    first = draw()
    state = generator.get_state()
    second = draw()
    generator.set_state(state)
    assert draw().equal(second)
    generator.manual_seed(4)
    assert draw().equal(first)
    generator = torch.Generator()
    with pytest.raises(RuntimeError, match="Expected a 'xpu' device type for generator but found 'cpu'"):
        draw()


def test_random_numbers_have_the_right_moments():
    x = torch.empty(200_000, device=DEVICE).exponential_().double()
    assert abs(x.mean().item() - 1) < 0.02 and abs(x.var().item() - 1) < 0.05
    pieces = torch.stack([torch.empty(4, device=DEVICE).exponential_() for _ in range(500)])
    assert pieces.unique().numel() > 1990, "calls do not repeat each other"


# --- counting --------------------------------------------------------------------------------------------------


def test_host_operators_are_counted_by_name():
    a = A.to(DEVICE)
    anyxpu.ops.reset_counters()
    torch.geqrf(a)
    torch.geqrf(a)
    a.view(4, 3)
    counts = anyxpu.ops.counters()
    assert counts["aten::geqrf"] == {"host": 2}
    assert counts["aten::view"] == {"structural": 1}
    anyxpu.ops.reset_counters()
    assert anyxpu.ops.counters() == {}


@pytest.mark.parametrize(
    ("op", "way"),
    {
        "aten::view": "structural",
        "copy_": "structural",
        "aten::geqrf": "host",
        "aten::geqrf.a": "host",
        "aten::cholesky_inverse": "host",
        "aten::reshape": "composite",
        "aten::empty_like": "composite",
        "aten::cudnn_convolution": "none",
    }.items(),
)
def test_resolve_says_what_the_dispatcher_does(op, way):
    assert anyxpu.ops.resolve(op) == way


def test_resolve_of_an_unknown_operator_is_an_error():
    with pytest.raises(ValueError, match="no operator"):
        anyxpu.ops.resolve("aten::no_such_thing")
    with pytest.raises(ValueError, match="host"):
        registry.declare("aten::geqrf.a", "host")


def test_operators_counted_as_host_are_resolved_as_host():
    lib().set_eager("compile")
    a = A.to(DEVICE)
    anyxpu.ops.reset_counters()
    square = torch.eye(3).to(DEVICE)
    a.geqrf(), torch.cholesky_inverse(square), torch.linalg.inv(square), torch.linalg.qr(a), torch.fft.fft(a)
    torch.linalg.eigvalsh(square)
    hosted = [op for op, ways in anyxpu.ops.counters().items() if "host" in ways]
    assert len(hosted) >= 6
    assert {op: anyxpu.ops.resolve(op) for op in hosted} == dict.fromkeys(hosted, "host")


def test_each_host_operator_warns_once_at_the_line_that_called_it(run_python):
    done = run_python(
        """
        import json, torch, warnings
        a = torch.ones(3, 3, device="xpu")
        def call():
            try:
                torch.cholesky_inverse(a[0])  # fails, and so says nothing
            except RuntimeError:
                pass
            for _ in range(2):
                a.geqrf(), torch.cholesky_inverse(a)
            torch.fft.rfft(a)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        print(json.dumps([[str(w.message), w.filename, w.lineno] for w in caught]))
        """
    )
    said = json.loads(done.stdout)
    names = [re.findall(r"aten::\w+", text) for text, _, _ in said]
    assert names == [["aten::geqrf"], ["aten::cholesky_inverse"], ["aten::_fft_r2c"]]
    assert all("once an operator" in text and "anyxpu ops" in text for text, _, _ in said)
    assert [(file, line) for _, file, line in said] == [("<string>", 10), ("<string>", 10), ("<string>", 11)]


@pytest.mark.parametrize(
    ("mode", "why"), [("host", "ran on the host .* as ANYXPU_EAGER=host asks"), ("auto", "has no kernel")]
)
def test_a_warning_that_is_an_error_is_raised_and_the_device_stays_usable(mode, why):
    lib().set_eager(mode)  # the fixture sets it back
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=f"aten::nonexistent {why}"):
            notice.ran_on_the_host("aten::nonexistent")
    assert torch.ones(2, device=DEVICE).cumsum(0).tolist() == [1, 2]


# --- against torch's own operator database ---------------------------------------------------------------------

_ELSEWHERE = re.compile("mkldnn|jagged|nested|sampled_addmm", re.IGNORECASE)  # the last in test_sparse.py


def _op_db():
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes and not _ELSEWHERE.search(op.name)]


def check_op(op, most: int) -> int:
    """Compare up to ``most`` samples of an operator with the CPU's; how many were compared."""
    checked = 0
    place = "cpu" if op.name == "tensor_split" else DEVICE  # of indices, which it wants on the CPU on every device
    for sample in op.sample_inputs("cpu", torch.float32):
        if checked == most:
            break
        there = sample.transform(lambda t: to(place, t.detach()) if isinstance(t, torch.Tensor) else _device(t))
        there.input = to(DEVICE, there.input) if isinstance(there.input, torch.Tensor) else there.input
        here = sample.transform(lambda t: to("cpu", t.detach()) if isinstance(t, torch.Tensor) else t)
        torch.manual_seed(0)
        try:
            expected = op(here.input, *here.args, **here.kwargs)
        except Exception:  # a sample that this CPU build cannot run says nothing
            continue
        torch.manual_seed(0)
        actual = op(there.input, *there.args, **there.kwargs)
        _compare(op, actual, expected, values=not _drops(op, here))
        checked += 1
    return checked


def _device(value):
    return torch.device(DEVICE) if isinstance(value, torch.device) or value == "cpu" else value


_VALUES_DIFFER = re.compile(
    r"rand|dropout|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|empty|poisson|rrelu|"
    r"fractional_max_pool|linalg\.(eig|svd|qr)|svd|lowrank|geqrf|householder"
)


def _drops(op, sample) -> bool:
    """Does this call of attention draw what it drops?"""
    if "dropout_p" in sample.kwargs:
        return sample.kwargs["dropout_p"] > 0
    names = {"nn.functional.multi_head_attention_forward": torch.nn.functional.multi_head_attention_forward}
    if op.name not in names:
        return False
    return inspect.signature(names[op.name]).bind(sample.input, *sample.args).arguments["dropout_p"] > 0


def _compare(op, actual, expected, values: bool = True) -> None:
    flat_actual, flat_expected = (torch.utils._pytree.tree_leaves(x) for x in (actual, expected))
    assert len(flat_actual) == len(flat_expected)
    for a, e in zip(flat_actual, flat_expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e)
            continue
        assert a.shape == e.shape and a.dtype == e.dtype, op.name
        assert a.stride() == e.stride() or not e.numel(), op.name  # fused and composed norms differ where nothing lies
        if values and not _VALUES_DIFFER.search(op.name):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_sample_of_torchs_operator_database(memory):
    ops = random.Random(f"{memory}{torch.initial_seed()}").sample(_op_db(), 40)
    failed = _sweep(ops, most=2)
    assert not failed, "\n".join(failed)


@pytest.mark.full
def test_all_of_torchs_operator_database():
    failed = _sweep(_op_db(), most=6)
    assert not failed, "\n".join(failed)


# What ATen's CPU kernels say of elements that no kernel has computed; means nothing on a simulated GPU.
_SAID_OF_VALUES = re.compile(r"index -?\d+ is out of bounds|singular|positive-definite|converge|ill-conditioned|NaNs")


def _sweep(ops, most: int) -> list[str]:
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            try:
                check_op(op, most)
            except Exception as error:
                if simulate.active() and _SAID_OF_VALUES.search(str(error)):
                    continue
                failed.append(f"{op.name} {op.variant_test_name}: {type(error).__name__}: {str(error)[:300]}")
    return failed
