"""LSTM, GRU and plain recurrent layers: oneDNN's, with every form and gradient that torch's own have."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyxpu import ops

DEVICE = "xpu"
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 6e-3}
KINDS = ("LSTM", "GRU", "RNN-tanh", "RNN-relu")


def networks(kind, dtype=torch.float32, inputs=7, hidden=12, **options):
    """One on xpu, and the same in f64 on the CPU."""
    name, _, function = kind.partition("-")
    options |= {"nonlinearity": function} if function else {}
    ours = getattr(nn, name)(inputs, hidden, **options).to(dtype)
    exact = getattr(nn, name)(inputs, hidden, **options).double()
    exact.load_state_dict(ours.state_dict())
    return ours.to(DEVICE), exact


def states(kind, network, batch, dtype):
    layers = network.num_layers * (2 if network.bidirectional else 1)
    made = [torch.randn(layers, batch, network.hidden_size).to(dtype) for _ in range(2)]
    return made if kind == "LSTM" else made[:1]


def call(kind, network, source, initial):
    output, last = network(source, tuple(initial) if kind == "LSTM" else initial[0])
    return [output, *(last if kind == "LSTM" else (last,))]


def close(actual, expected, dtype):
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == DEVICE and a.dtype == dtype
        scale = max(1.0, e.abs().max().item())
        torch.testing.assert_close(a.detach().cpu().double() / scale, e.detach() / scale, rtol=0, atol=BOUNDS[dtype])


FORMS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "bias": False, "batch_first": True},
]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_layers_and_their_gradients_are_those_of_f64(kind, form, dtype):
    ours, exact = networks(kind, dtype, **form)
    source, initial = torch.randn(5, 3, 7).to(dtype), states(kind, ours, 5 if "batch_first" in form else 3, dtype)
    leaves = [t.detach().to(DEVICE).requires_grad_() for t in (source, *initial)]
    expected_leaves = [t.double().requires_grad_() for t in (source, *initial)]
    ops.reset_counters()
    actual = call(kind, ours, leaves[0], leaves[1:])
    expected = call(kind, exact, expected_leaves[0], expected_leaves[1:])
    gradients = [torch.randn(e.shape).to(dtype) for e in expected]
    by = torch.autograd.grad(actual, [*leaves, *ours.parameters()], [g.to(DEVICE) for g in gradients])
    wanted = torch.autograd.grad(expected, [*expected_leaves, *exact.parameters()], [g.double() for g in gradients])
    counts = ops.counters()
    layers = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    assert counts["aten::mkldnn_rnn_layer"]["library"] == counts["aten::mkldnn_rnn_layer_backward"]["library"] == layers
    assert "aten::mm" not in counts and "aten::tanh.out" not in counts
    close(actual, expected, dtype)
    if kind != "RNN-relu" or dtype == torch.float32:  # where it has a kink, narrow numbers fall on either side
        close(by, wanted, dtype)
    assert actual[0].stride() == call(kind, exact, expected_leaves[0], expected_leaves[1:])[0].stride()


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode], ids=lambda g: g.__name__)
@pytest.mark.parametrize("dtype", [*BOUNDS, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients(kind, dtype, guard):
    ours, exact = networks(kind, dtype, num_layers=2)
    source = torch.randn(4, 2, 7).to(dtype)
    with guard():
        for _ in range(3):  # the first call makes the primitive, the second one keeps the weights, the third finds them
            actual = ours(source.to(DEVICE))[0]
        single = ours(source[:, 0].to(DEVICE))[0]
    expected = exact(source.double())[0]
    assert not actual.requires_grad
    bound = BOUNDS.get(dtype, 1e-12)
    torch.testing.assert_close(actual.cpu().double(), expected.detach(), rtol=0, atol=bound)
    torch.testing.assert_close(single.cpu().double(), expected[:, 0].detach(), rtol=0, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_change_are_seen(kind):
    ours, exact = networks(kind)
    source = torch.randn(4, 2, 7)
    with torch.no_grad():
        for _ in range(3):
            ours(source.to(DEVICE))
        for p, q in zip(ours.parameters(), exact.parameters(), strict=True):
            p.mul_(-0.5)
            q.mul_(-0.5)
        torch.testing.assert_close(
            ours(source.to(DEVICE))[0].cpu(), exact(source.double())[0].float(), rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 3, 1)], ids=["equal", "several"])
@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind, trained, lengths):
    ours, exact = networks(kind, num_layers=2, bidirectional=True)
    source = torch.randn(5, 3, 7)
    with torch.set_grad_enabled(trained):
        packed = pack_padded_sequence(source.to(DEVICE), lengths)
        (actual, sizes), last = pad_packed_sequence(ours(packed)[0]), ours(packed)[1]
    expected, _ = pad_packed_sequence(exact(pack_padded_sequence(source.double(), lengths))[0])
    assert sizes.tolist() == list(lengths) and last is not None
    close([actual], [expected], torch.float32)
    if trained:
        actual.square().sum().backward()
        expected.square().sum().backward()
        close([p.grad for p in ours.parameters()], [p.grad for p in exact.parameters()], torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind):
    ours, exact = networks(kind, num_layers=2, bidirectional=True)
    found = []
    for network, source in ((ours, torch.randn(4, 2, 7, device=DEVICE)), (exact, None)):
        source = (found[0][1].cpu().double() if source is None else source).detach().requires_grad_()
        (by,) = torch.autograd.grad(network(source)[0].square().sum(), source, create_graph=True)
        wanted = [source, *(p for n, p in network.named_parameters() if n.startswith("weight"))]
        found.append((torch.autograd.grad(by.square().sum(), wanted), source))
    close(found[0][0], found[1][0], torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_computes_in_its_dtype(kind):
    ours, exact = networks(kind)
    source = torch.randn(4, 2, 7)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        actual = ours(source.to(DEVICE))[0]
    actual.float().sum().backward()
    close([actual], [exact(source.double())[0]], torch.bfloat16)
    assert all(p.grad.dtype == torch.float32 for p in ours.parameters())


@pytest.mark.not_simulated("what is dropped is a value")
def test_dropout_is_between_layers_alone():
    ours, exact = networks("GRU", hidden=512, num_layers=2, dropout=0.5)
    source = torch.randn(2, 3, 7)
    one, two = (ours(source.to(DEVICE))[0] for _ in range(2))
    assert not torch.equal(one, two) and 0 not in one
    ours.eval()
    close([ours(source.to(DEVICE))[0]], [exact.eval()(source.double())[0]], torch.float32)


def test_what_is_not_oned_nns_goes_to_the_composite():
    projected, exact = (nn.LSTM(7, 12, proj_size=5) for _ in range(2))
    exact.load_state_dict(projected.state_dict())
    projected.to(DEVICE)
    source = torch.randn(4, 2, 7)
    for guard in (torch.no_grad, torch.enable_grad):
        with guard():
            actual = projected(source.to(DEVICE))[0]
        torch.testing.assert_close(actual.cpu(), exact(source)[0], rtol=0, atol=2e-5)
    ours, exact = networks("GRU")
    assert ours(source[:, :0].to(DEVICE))[0].shape == (4, 0, 12)
    by = torch.func.grad(lambda t: ours(t)[0].square().sum())(source.to(DEVICE))
    wanted = torch.func.grad(lambda t: exact(t)[0].square().sum())(source.double())
    close([by], [wanted], torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_operands_say_what_torch_says(kind):
    ours, _ = networks(kind)
    function = torch.lstm if kind == "LSTM" else torch.gru if kind == "GRU" else torch.rnn_tanh
    hx = torch.zeros(1, 2, 12, device=DEVICE)
    hx = (hx, hx) if kind == "LSTM" else hx
    source, weights = torch.zeros(4, 2, 7, device=DEVICE), list(ours.parameters())
    for guard in (torch.no_grad, torch.enable_grad):
        with guard(), pytest.raises(RuntimeError, match="incorrect number of RNN parameters"):
            function(source, hx, weights[:3], True, 1, 0.0, False, False, False)
        with guard(), pytest.raises(RuntimeError, match=r"same device|on cpu"):
            function(source, hx, [w.cpu() for w in weights], True, 1, 0.0, False, False, False)
    with pytest.raises(RuntimeError, match="two hidden states"):
        torch.lstm(source, (torch.zeros(1, 2, 12, device=DEVICE),), weights, True, 1, 0.0, False, False, False)


@pytest.mark.parametrize("cell", range(4))
@pytest.mark.parametrize("told", [False, True])
def test_the_layer_itself_has_gradients(cell, told):
    # In-tree code calls it for LSTM; `train` says whether what gradients need is kept, or made when they come.
    gates = {2: 4, 3: 3}.get(cell, 1)
    shapes = ((4, 2, 7), (gates * 12, 7), (gates * 12, 12), (gates * 12,), (gates * 12,), (2, 12), (2, 12))
    leaves = [torch.randn(s).mul(0.3).to(DEVICE).requires_grad_() for s in shapes]
    exact = [t.detach().cpu().double().requires_grad_() for t in leaves]
    tail = (True, [], cell, 12, 1, True, False, False, told)
    output, *_ = torch.ops.aten.mkldnn_rnn_layer(*leaves, *tail)
    function = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)[cell]
    hx = tuple(t.unsqueeze(0) for t in exact[5:]) if cell == 2 else exact[5].unsqueeze(0)
    expected = function(exact[0].flip(0), hx, exact[1:5], True, 1, 0.0, False, False, False)[0].flip(0)
    close([output], [expected], torch.float32)
    count = 7 if cell == 2 else 6
    gradient = torch.randn(output.shape)
    by = torch.autograd.grad(output, leaves[:count], gradient.to(DEVICE))
    close(by, torch.autograd.grad(expected, exact[:count], gradient.double()), torch.float32)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_whole(kind):
    ours, exact = networks(kind, num_layers=2)
    source = torch.randn(3, 2, 7)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(ours, fullgraph=True)
        with torch.no_grad():
            ops.reset_counters()
            actual = compiled(source.to(DEVICE))[0]
            counts = ops.counters()
        ops.reset_counters()
        trained = compiled(source.to(DEVICE))[0]
        trained.square().sum().backward()
        assert "aten::_thnn_fused_gru_cell" not in ops.counters()
    expected = exact(source.double())[0]
    expected.square().sum().backward()
    assert counts["aten::mkldnn_rnn_layer"]["library"] == 2
    assert not [name for name, ways in counts.items() if "host" in ways]
    close([actual, trained], [expected, expected], torch.float32)
    close([p.grad for p in ours.parameters()], [p.grad for p in exact.parameters()], torch.float32)


def test_dynamo_leaves_the_frames_of_operators_alone():
    # Below a graph break it looks at every Python frame, and these are called by the dispatcher.
    program = """
        import torch
        network = torch.nn.LSTM(4, 6).to("xpu")
        model = torch.compile(torch.nn.Sequential(network), backend="eager")
        with torch.no_grad():
            model(torch.randn(5, 3, 4, device="xpu"))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TORCH_LOGS": "+dynamo"},
    )
    traced = [line for line in done.stderr.splitlines() if "start tracing" in line]
    ours = str(Path(ops.__file__).parents[1])  # a checkout may be named anyxpu as well, with torch below it
    assert traced and not [line for line in traced if f" {ours}{os.sep}" in line], traced


@pytest.mark.parametrize("cell", [2, 3])
def test_the_layer_reads_nothing_beyond_its_operands(cell):
    gates = 4 if cell == 2 else 3
    shapes = [(4, 2, 7), (gates * 12, 7), (gates * 12, 12), (gates * 12,), (gates * 12,), (2, 12), (2, 12)]
    fits = [torch.zeros(s, device=DEVICE) for s in shapes]
    tail = (False, [], cell, 12, 1, True, False, False, True)
    layer, back = torch.ops.aten.mkldnn_rnn_layer, torch.ops.aten.mkldnn_rnn_layer_backward
    made = layer(*fits, *tail)
    for i in range(7 if cell == 2 else 6):
        for wrong in (fits[i][..., :-1], fits[i].half(), fits[i].cpu()):
            with pytest.raises(RuntimeError, match=r"must be|Expected all tensors|same device"):
                layer(*fits[:i], wrong, *fits[i + 1 :], *tail)
    with pytest.raises(RuntimeError, match="of one length"):
        layer(*fits, False, [2, 2, 1, 1], *tail[2:])
    rest = (False, cell, 12, 1, True, True, False, [], False)
    none = [None] * 3
    back(*fits, *made[:3], *none, *rest, made[3])
    for output, gradient, workspace, words in (
        (made[0][:3], None, made[3], "output is"),
        (made[0], made[0][:3], made[3], "its gradient is"),
        (made[0], None, made[3][1:], "workspace has"),
    ):
        with pytest.raises(RuntimeError, match=words):
            back(*fits, output, *made[1:3], gradient, None, None, *rest, workspace)


def test_states_and_weights_of_other_sizes_are_refused():
    # Of as many rows as there are steps, and of inputs that the weights do not have.
    ours, _ = networks("GRU", num_layers=2)
    weights = list(ours.parameters())
    for source, hx in (((3, 5, 7), (2, 3, 12)), ((3, 5, 6), (2, 5, 12)), ((3, 5, 7), (2, 5, 11))):
        with pytest.raises(RuntimeError), torch.no_grad():
            torch.gru(
                torch.zeros(source, device=DEVICE), torch.zeros(hx, device=DEVICE), weights, True, 2, 0.0, False, False,
                False,
            )  # fmt: skip


def test_second_derivatives_of_one_tensor_that_is_two_operands():
    found = []
    source, weight = torch.randn(4, 2, 12), torch.randn(36, 12).mul(0.2)
    for device, dtype in ((DEVICE, torch.float32), ("cpu", torch.float64)):
        x, w = (t.detach().to(device, dtype).requires_grad_() for t in (source, weight))
        hx = torch.zeros(1, 2, 12, device=device, dtype=dtype)
        out = torch.gru(x, hx, [w, w], False, 1, 0.0, False, False, False)[0]
        (by,) = torch.autograd.grad(out.square().sum(), w, create_graph=True)
        found.append((by, *torch.autograd.grad(by.square().sum(), (x, w))))
    close(found[0], found[1], torch.float32)


def test_the_layer_of_other_dtypes_says_what_computes_it():
    leaves = [torch.zeros(s, dtype=torch.float64, device=DEVICE) for s in ((4, 2, 7), (36, 7), (36, 12), (36,), (36,))]
    states = [torch.zeros(2, 12, dtype=torch.float64, device=DEVICE)] * 2
    with pytest.raises(RuntimeError, match=r"GRU of float64.*torch\.gru"):
        torch.ops.aten.mkldnn_rnn_layer(*leaves, *states, False, [], 3, 12, 1, True, False, False, False)


def test_many_shapes():
    for steps, batch, inputs, hidden in itertools.chain(
        ((1, 1, 1, 1), (1, 64, 13, 17), (37, 1, 5, 31), (3, 2, 128, 3))
    ):
        for kind in KINDS:
            ours, exact = networks(kind, inputs=inputs, hidden=hidden)
            source = torch.randn(steps, batch, inputs)
            with torch.no_grad():
                close([ours(source.to(DEVICE))[0]], [exact(source.double())[0]], torch.float32)
