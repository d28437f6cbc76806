"""``lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu`` on xpu: layer by layer, each one oneDNN primitive.

ATen's composites make products and a cell of every step; and since torch 2.13 LSTM without gradients asks a table of
C++ kernels first, in which a stock wheel has no row for xpu. What is here takes their place for xpu. What oneDNN does
not take goes to the composites: other dtypes, sequences of several lengths, torch.func, forward gradients, second
derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import engine
from anyxpu.onednn.fallbacks import Declined
from anyxpu.onednn.recurrent import DTYPES, Cell, plan

_registered: list[torch.library.Library] = []
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OPERATORS = {
    Cell.LSTM: torch.ops.aten.lstm,
    Cell.GRU: torch.ops.aten.gru,
    Cell.TANH: torch.ops.aten.rnn_tanh,
    Cell.RELU: torch.ops.aten.rnn_relu,
}

States = Sequence[Tensor]
"""Of LSTM hx and cx, of the others hx alone: (layers * directions, batch, hidden)."""


def _layered(
    cell: Cell,
    source: Tensor,
    states: States,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers, over (steps, batch, inputs), or (batch, steps, inputs) with ``batch_first``.

    Returns:
        The last layer's states of all steps, then the last states of all layers, of ``states``' shapes.
    """
    rest = has_biases, num_layers, dropout, train, bidirectional
    if torch.is_autocast_enabled("xpu"):
        narrow = torch.get_autocast_dtype("xpu")
        with torch.autocast("xpu", enabled=False):
            operands = ([_cast(t, narrow) for t in tensors] for tensors in ((source,), states, params))
            (source,), states, params = operands
            return _layered(cell, source, states, params, *rest, batch_first)
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    rows = source.transpose(0, 1) if batch_first and source.dim() == 3 else source
    if not _takes(cell, rows, states, params, num_layers, directions, each):
        return _composed(cell, source, states, params, *rest, batch_first)
    last: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        made = []
        for direction in range(directions):
            i = len(last)
            weights = params[i * each : (i + 1) * each]
            output, *ends = _layer(cell, rows, [state[i] for state in states], weights, direction == 1)
            made.append(output)
            last.append(tuple(ends))
        rows = made[0] if directions == 1 else torch.cat(made, 2)
        if dropout and train and layer < num_layers - 1:
            rows = torch.dropout(rows, dropout, True)
    stacked = (ends[0].unsqueeze(0) if len(ends) == 1 else torch.stack(ends) for ends in zip(*last, strict=True))
    return rows.transpose(0, 1) if batch_first else rows, *stacked


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """As autocast does: float64 and integers stay."""
    return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t


def _takes(
    cell: Cell, rows: Tensor, states: States, params: Sequence[Tensor], layers: int, directions: int, each: int
) -> bool:
    """Whether oneDNN's layers may be asked; composites say what is wrong with what does not fit.

    Args:
        rows: (steps, batch, inputs).
        each: weights and biases of a layer in one direction.
    """
    hx, count = states[0], layers * directions
    if rows.dtype not in DTYPES or rows.dim() != 3 or hx.dim() != 3 or len(params) != count * each:
        return False
    everything = (rows, *states, *params)
    if any(t.dtype != rows.dtype or t.device != rows.device or t.layout != torch.strided for t in everything):
        return False
    if any(torch._C._functorch.maybe_get_level(t) != -1 for t in everything):
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return False
    hidden = hx.shape[2]
    gates = cell.gates * hidden
    if any(state.shape != (count, rows.shape[1], hidden) for state in states) or not rows.numel() or not hidden:
        return False
    for i in range(count):
        width = rows.shape[2] if i < directions else hidden * directions
        shapes = ((gates, width), (gates, hidden), (gates,), (gates,))[:each]
        if any(t.shape != shape for t, shape in zip(params[i * each : (i + 1) * each], shapes, strict=True)):
            return False
    # A graph with gradients takes them of what it sees.
    return not _traced(rows) or (not torch.is_grad_enabled() and engine.available())


def _traced(t: Tensor) -> bool:
    """Whether it is a stand-in: a compiler looks at what is done with it."""
    return torch._C._len_torch_dispatch_stack() > 0 or type(t) not in (Tensor, torch.nn.Parameter)


def _layer(cell: Cell, rows: Tensor, states: States, weights: Sequence[Tensor], backwards: bool) -> tuple[Tensor, ...]:
    """One layer in one direction: the states of all steps, then the last ones, (batch, hidden) each."""
    hx, cx = states[0], states[-1]
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (rows, *states, *weights))
    if not _traced(rows) and isinstance(declined := plan(rows, hx, cell, backwards, trained), Declined):
        declined.run()
        return _composed_layer(cell, rows, states, weights, backwards)
    if trained:
        return _Layer.apply(cell, backwards, rows, hx, cx, *weights)[: 1 + len(states)]  # type: ignore[no-any-return, no-untyped-call]
    return _call(cell, backwards, rows, hx, cx, weights, False)[: 1 + len(states)]


def _call(
    cell: Cell, backwards: bool, rows: Tensor, hx: Tensor, cx: Tensor, weights: Sequence[Tensor], trained: bool
) -> tuple[Tensor, ...]:
    biased = len(weights) == 4
    four = weights if biased else (*weights, *weights)
    return torch.ops.aten.mkldnn_rnn_layer(  # type: ignore[no-any-return]
        rows, *four, hx, cx, backwards, [], int(cell), hx.shape[-1], 1, biased, False, False, trained
    )


class _Layer(torch.autograd.Function):
    """One layer and its gradients. Second derivatives are those of the composite."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, cell: Cell, backwards: bool, rows: Tensor, hx: Tensor, cx: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        output, hy, cy, workspace = _call(cell, backwards, rows, hx, cx, weights, True)
        ctx.cell, ctx.backwards = cell, backwards
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, hx, cx, *weights, output, hy, cy, workspace)
        if cell != Cell.LSTM:
            ctx.mark_non_differentiable(cy)
        return output, hy, cy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, by_output: Tensor | None, by_hy: Tensor | None, by_cy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *read, output, hy, cy, workspace = ctx.saved_tensors
        rows, hx, cx, *weights = read
        states = (hx, cx) if ctx.cell == Cell.LSTM else (hx,)
        if torch.is_grad_enabled():
            return None, None, *_again(ctx, rows, states, weights, (by_output, by_hy, by_cy))
        biased = len(weights) == 4
        four = weights if biased else (*weights, *weights)
        by_rows, *by_weights, by_hx, by_cx = torch.ops.aten.mkldnn_rnn_layer_backward(
            rows, *four, hx, cx, output, hy, cy, by_output, by_hy, by_cy, ctx.backwards, int(ctx.cell), hx.shape[-1],
            1, biased, True, False, [], False, workspace,
        )  # fmt: skip
        return None, None, by_rows, by_hx, by_cx if ctx.cell == Cell.LSTM else None, *by_weights[: len(weights)]


def _again(
    ctx: Any, rows: Tensor, states: States, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients as something that has gradients: through the composite, computed once more."""
    # Of each operand an alias: one tensor may be two of them, and each has a gradient of its own.
    rows, *read = (t.view_as(t) for t in (rows, *states, *weights))
    states, weights = read[: len(states)], read[len(states) :]
    made = _composed_layer(ctx.cell, rows, states, weights, ctx.backwards)
    pairs = [(t, g) for t, g in zip(made, gradients, strict=False) if g is not None]
    wanted = [t for t in (rows, *read) if t.requires_grad]
    found = iter(
        torch.autograd.grad([t for t, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    by_rows, *by = (next(found) if t.requires_grad else None for t in (rows, *read))
    return [by_rows, by[0], by[1] if len(states) == 2 else None, *by[len(states) :]]


def _composed_layer(
    cell: Cell, rows: Tensor, states: States, weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, ...]:
    ends = [state.unsqueeze(0) for state in states]
    rows = rows.flip(0) if backwards else rows
    output, *last = _composed(cell, rows, ends, weights, len(weights) == 4, 1, 0.0, False, False, False)
    return output.flip(0) if backwards else output, *(t.squeeze(0) for t in last)


def _composed(cell: Cell, source: Tensor, states: States, params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    """ATen's composite, of products and cells."""
    operator = _OPERATORS[cell].input
    given = states if cell == Cell.LSTM else states[0]
    in_python = operator.py_kernels.get(_COMPOSITE)
    if _traced(source) and in_python:  # it keeps no cell whole, so that a compiler sees into it
        return in_python(source, given, params, *rest)  # type: ignore[no-any-return]
    if cell != Cell.LSTM or torch.is_grad_enabled():
        return operator._op_dk(_COMPOSITE, source, given, params, *rest)  # type: ignore[no-any-return]
    with torch.enable_grad():  # it asks that table where gradients are off; of what is detached there are none
        detached = (source.detach(), [t.detach() for t in states], [t.detach() for t in params])
        return operator._op_dk(_COMPOSITE, *detached, *rest)  # type: ignore[no-any-return]


def _padded(cell: Cell, source: Tensor, states: Any, params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    """The overloads ``input``."""
    return _layered(cell, source, _states(cell, states), params, *rest)


def _packed(
    cell: Cell, data: Tensor, batch_sizes: Tensor, states: Any, params: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, ...]:
    """The overloads ``data``, of sequences packed step by step: where all are as long, (steps, batch, inputs)."""
    steps = batch_sizes.numel()
    if steps and data.dim() == 2 and not _traced(data) and bool((batch_sizes == batch_sizes[0]).all()):
        whole = data.reshape(steps, -1, data.shape[-1])
        output, *last = _layered(cell, whole, _states(cell, states), params, *(*rest, False))
        return output.reshape(-1, output.shape[-1]), *last
    return _OPERATORS[cell].data._op_dk(_COMPOSITE, data, batch_sizes, states, params, *rest)  # type: ignore[no-any-return]


def _states(cell: Cell, given: Any) -> States:
    if cell != Cell.LSTM:
        return (given,)
    if len(given) != 2:
        raise RuntimeError("lstm expects two hidden states")
    return tuple(given)


def register() -> None:
    """Put them above and below autograd (in inference mode there is none above)."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    for cell, operator in _OPERATORS.items():
        for overload, function in (("input", _padded), ("data", _packed)):
            for key in ("XPU", "AutogradXPU"):
                library.impl(f"{operator.__name__}.{overload}", functools.partial(function, cell), key)
    _registered.append(library)
