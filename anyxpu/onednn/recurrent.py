"""One recurrent layer in one direction, forward and backward: ``mkldnn_rnn_layer`` and its gradients.

torch's wheels have these operators for the CPU, and for LSTM alone; here they take every cell, by its number there.
Weights and biases come as torch has them: all gates in one matrix, a bias of the input and one of the state. oneDNN
wants them in an order and a layout of its own, and one bias.

What oneDNN does not serve is refused here, and why is kept; :mod:`anyxpu.ops.recurrent` asks :func:`plan` first, and
computes it otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Algorithm, Arg, Direction, Prop
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, Declined, Fallback, count, named
from anyxpu.onednn.matmul import SIXTEEN_BITS, contiguous_strides
from anyxpu.onednn.primitive import (
    Attributes,
    Change,
    Executable,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    form,
    reorder,
    run,
)
from anyxpu.shim import lib

CACHE: SignatureCache[Any] = SignatureCache(capacity=512)
DTYPES = (torch.float32, *SIXTEEN_BITS)

_fp32_precision = torch._C._get_fp32_precision_getter
_deterministic = torch._C._get_deterministic_algorithms


class Cell(IntEnum):
    """What a layer computes at each step; the numbers are those of ``mkldnn_rnn_layer``'s argument ``mode``."""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3

    @property
    def gates(self) -> int:
        return {Cell.LSTM: 4, Cell.GRU: 3}.get(self, 1)

    @property
    def biases(self) -> int:
        """Rows of oneDNN's bias: torch's GRU multiplies the state's part of the new gate, its bias included."""
        return 4 if self == Cell.GRU else self.gates

    @property
    def order(self) -> tuple[int, ...]:
        """Of torch's gates, in oneDNN: its GRU updates before it resets."""
        return (1, 0, 2) if self == Cell.GRU else tuple(range(self.gates))


@dataclass(frozen=True)
class Problem:
    """Everything but the addresses.

    Attributes:
        backwards: the last step comes first.
        trained: what the gradients need is kept.
    """

    cell: Cell
    dtype: torch.dtype
    device: torch.device
    steps: int
    batch: int
    inputs: int
    hidden: int
    backwards: bool
    trained: bool
    attributes: Attributes

    def __str__(self) -> str:
        name, dtype = self.cell.name, str(self.dtype).removeprefix("torch.")
        return f"{name} of {self.steps} steps, batch {self.batch}, {self.inputs} to {self.hidden}, {dtype}"

    def dtype_of(self, arg: Arg, wide: bool = False) -> torch.dtype:
        """Of an operand, or of its gradient; ``wide`` gradients are float32 whatever the operands are.

        Biases are float32, and LSTM's cells beside bfloat16: oneDNN's OpenCL kernels do not build for others.
        """
        if wide or arg == Arg.BIAS or (self.dtype == torch.bfloat16 and arg in (Arg.SRC_ITER_C, Arg.DST_ITER_C)):
            return torch.float32
        return self.dtype

    def shapes(self) -> dict[Arg, tuple[int, ...]]:
        """oneDNN's shape of every operand of forward, in the order of its calls."""
        state = (1, 1, self.batch, self.hidden)
        gates = (self.cell.gates, self.hidden)
        shapes = {
            Arg.SRC: (self.steps, self.batch, self.inputs),
            Arg.SRC_ITER: state,
            Arg.SRC_ITER_C: state,
            Arg.WEIGHTS: (1, 1, self.inputs, *gates),
            Arg.WEIGHTS_ITER: (1, 1, self.hidden, *gates),
            Arg.BIAS: (1, 1, self.cell.biases, self.hidden),
            Arg.DST: (self.steps, self.batch, self.hidden),
            Arg.DST_ITER: state,
            Arg.DST_ITER_C: state,
        }
        absent = () if self.cell == Cell.LSTM else (Arg.SRC_ITER_C, Arg.DST_ITER_C)
        return {arg: shape for arg, shape in shapes.items() if arg not in absent}


_WEIGHTS = (Arg.WEIGHTS, Arg.WEIGHTS_ITER)
_GRADIENT = {
    Arg.SRC: Arg.DIFF_SRC,
    Arg.SRC_ITER: Arg.DIFF_SRC_ITER,
    Arg.SRC_ITER_C: Arg.DIFF_SRC_ITER_C,
    Arg.WEIGHTS: Arg.DIFF_WEIGHTS,
    Arg.WEIGHTS_ITER: Arg.DIFF_WEIGHTS_ITER,
    Arg.BIAS: Arg.DIFF_BIAS,
    Arg.DST: Arg.DIFF_DST,
    Arg.DST_ITER: Arg.DIFF_DST_ITER,
    Arg.DST_ITER_C: Arg.DIFF_DST_ITER_C,
}
_RESULTS = (Arg.DST, Arg.DST_ITER, Arg.DST_ITER_C)
_NAMES = {Cell.LSTM: "lstm", Cell.GRU: "lbr_gru"}


def _torchs(shape: tuple[int, ...], dtype: torch.dtype) -> MemoryDesc:
    """A dense weight of torch, (gates * hidden, inputs), as oneDNN reads it: (1, 1, inputs, gates, hidden)."""
    inputs, gates, hidden = shape[2:]
    whole = inputs * gates * hidden
    return MemoryDesc.plain(shape, dtype, (whole, whole, 1, hidden * inputs, inputs))


class _Weight:
    """A weight in the gates' order and the layout that a primitive wants; kept, where it stays as it is."""

    def __init__(self, problem: Problem, shape: tuple[int, ...], wanted: MemoryDesc) -> None:
        home, given, cell = engine.engine(problem.device.index), _torchs(shape, problem.dtype), problem.cell
        number = form(b"recurrent", cell.name.encode(), given.blob(), wanted.blob())
        self.change, self.form, self.order = Change(home, given, wanted, str(problem)), number, cell.order

    def run(self, weight: Tensor, stream: engine.Stream) -> Tensor:
        """The weight as bytes, to be kept until its reader is enqueued."""
        token, copy, wanted = (0, None, False) if self.form is None else lib().find_copy(weight, self.form)
        if copy is None:
            copy = self.change.make(_in_order(weight, self.order), stream)
            if wanted:
                lib().keep_copy(weight, self.form, token, copy)
        return copy


def _in_order(weight: Tensor, order: tuple[int, ...]) -> Tensor:
    """Gates, which are the first dimension's parts, in another order."""
    weight = weight.contiguous()
    if order == tuple(range(len(order))):
        return weight
    parts, made = weight.chunk(len(order)), torch.empty_like(weight)
    for part, place in zip(order, made.chunk(len(order)), strict=True):
        place.copy_(parts[part])
    return made


class _Forward:
    def __init__(self, problem: Problem, description: PrimitiveDesc) -> None:
        self.problem, self.shapes = problem, problem.shapes()
        home, made = engine.engine(problem.device.index), [Arg.WORKSPACE] if problem.trained else []
        self.primitive = Executable(home, description, (*self.shapes, *made))
        self.weights = [_Weight(problem, self.shapes[arg], self.primitive.layout(arg)) for arg in _WEIGHTS]
        self.bias = _Bias(problem)

    def run(self, source: Tensor, hx: Tensor, cx: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """The states of all steps, the last one, LSTM's last cell, and the workspace of a trained one."""
        p, device = self.problem, self.problem.device
        stream = engine.stream(device.index)
        operands = {Arg.SRC: source, Arg.SRC_ITER: hx, Arg.SRC_ITER_C: cx.to(p.dtype_of(Arg.SRC_ITER_C))}
        for arg, weight, given in zip(_WEIGHTS, self.weights, weights[:2], strict=True):
            operands[arg] = weight.run(given, stream)
        operands[Arg.BIAS] = self.bias.run(stream, *weights[2:])
        present = [arg for arg in _RESULTS if arg in self.shapes]
        results = {arg: torch.empty(self.shapes[arg], dtype=p.dtype_of(arg), device=device) for arg in present}
        addresses = [(operands | results)[arg].data_ptr() for arg in self.shapes]
        made = list(results.values())
        if p.trained:
            size = self.primitive.layout(Arg.WORKSPACE).nbytes
            made.append(torch.empty(size, dtype=torch.uint8, device=device))
            addresses.append(made[-1].data_ptr())
        run(self.primitive, stream, device, *addresses)
        return made


class _Backward:
    def __init__(self, problem: Problem, description: PrimitiveDesc, wide: bool) -> None:
        self.problem, self.shapes, self.wide = problem, problem.shapes(), wide
        home = engine.engine(problem.device.index)
        gradients = [_GRADIENT[arg] for arg in self.shapes]
        self.primitive = Executable(home, description, (*self.shapes, Arg.WORKSPACE, *gradients))
        self.workspace_bytes = self.primitive.layout(Arg.WORKSPACE).nbytes
        self.weights = [_Weight(problem, self.shapes[arg], self.primitive.layout(arg)) for arg in _WEIGHTS]
        self.bias = _Bias(problem)
        self.after = {}
        for arg in _WEIGHTS:
            made, wanted = self.primitive.layout(_GRADIENT[arg]), _torchs(self.shapes[arg], problem.dtype)
            self.after[arg] = made.nbytes, None if made == wanted else reorder(home, made, wanted, str(problem))

    def run(
        self, given: dict[Arg, Tensor], weights: Sequence[Tensor], gradients: dict[Arg, Tensor], workspace: Tensor
    ) -> dict[Arg, Tensor]:
        """The gradients of whatever forward read, by what it is."""
        p, device = self.problem, self.problem.device
        stream = engine.stream(device.index)
        for arg, weight, tensor in zip(_WEIGHTS, self.weights, weights[:2], strict=True):
            given[arg] = weight.run(tensor, stream)
        given[Arg.BIAS] = self.bias.run(stream, *weights[2:])
        made = {}
        for arg, shape in self.shapes.items():
            if arg in self.after:
                made[arg] = torch.empty(self.after[arg][0], dtype=torch.uint8, device=device)
            elif arg not in _RESULTS:
                made[arg] = torch.empty(shape, dtype=p.dtype_of(arg, self.wide), device=device)
        given |= {arg: t.to(p.dtype_of(arg)) for arg, t in given.items() if arg not in _WEIGHTS}
        gradients = {arg: t.to(p.dtype_of(arg, self.wide)) for arg, t in gradients.items()}
        addresses = [given[arg].data_ptr() for arg in self.shapes]
        addresses += [workspace.data_ptr(), *((gradients | made)[arg].data_ptr() for arg in self.shapes)]
        run(self.primitive, stream, device, *addresses)
        for arg in _WEIGHTS:
            _, back = self.after[arg]
            inputs, gates, hidden = self.shapes[arg][2:]
            plain = made[arg].view(p.dtype)
            if back is not None:
                plain = torch.empty(inputs * gates * hidden, dtype=p.dtype, device=device)
                run(back, stream, device, made[arg].data_ptr(), plain.data_ptr())
            made[arg] = _in_order(plain.view(gates * hidden, inputs), p.cell.order)  # each order here undoes itself
        return made


class _Bias:
    """oneDNN's one bias of torch's two, float32."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        size = problem.hidden * (1 if problem.cell == Cell.GRU else problem.cell.gates)
        given, made = (MemoryDesc.plain((size,), dtype, (1,)) for dtype in (problem.dtype, torch.float32))
        self.add = reorder(engine.engine(problem.device.index), given, made, str(problem), added=True)

    def run(self, stream: engine.Stream, of_input: Tensor, of_state: Tensor) -> Tensor:
        p = self.problem
        made = torch.empty(p.cell.biases, p.hidden, dtype=torch.float32, device=p.device)
        sums: tuple[tuple[Tensor, Tensor, Tensor], ...]
        if p.cell == Cell.GRU:
            (reset, update, new), (reset_too, update_too, new_too) = of_input.chunk(3), of_state.chunk(3)
            sums = ((made[0], update, update_too), (made[1], reset, reset_too))
            made[2].copy_(new)
            made[3].copy_(new_too)
        else:
            sums = ((made.view(-1), of_input, of_state),)
        for row, first, second in sums:
            row.copy_(first)
            run(self.add, stream, p.device, second.data_ptr(), row.data_ptr())
        return made


def _bias_gradients(cell: Cell, gradient: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """torch's two of oneDNN's one."""
    rows = gradient.view(cell.biases, -1).to(dtype)
    if cell != Cell.GRU:
        return rows.reshape(-1), rows.reshape(-1).clone()
    two = torch.empty(2, 3, rows.shape[1], dtype=dtype, device=rows.device)
    for made, last in zip(two, (2, 3), strict=True):
        for row, part in zip(made, (1, 0, last), strict=True):
            row.copy_(rows[part])
    return two[0].reshape(-1), two[1].reshape(-1)


def _describe(p: Problem, wide: bool = False) -> tuple[PrimitiveDesc, PrimitiveDesc | None]:
    """Forward, and backward where it is trained."""
    home, what = engine.engine(p.device.index), str(p)
    shapes = p.shapes()

    def descriptor(arg: Arg, gradient: bool) -> MemoryDesc:
        dtype = p.dtype_of(arg, gradient and wide)
        if arg in _WEIGHTS:
            return MemoryDesc.any(shapes[arg], dtype)
        return MemoryDesc.plain(shapes[arg], dtype, contiguous_strides(shapes[arg]))

    def handles(made: dict[Arg, MemoryDesc]) -> list[int | None]:
        order = [*_GRADIENT]
        if p.cell == Cell.LSTM:
            order[5:5] = [Arg.SCRATCHPAD, Arg.SCRATCHPAD]  # neither peepholes nor a projection
        else:
            order = [a for a in order if a not in (Arg.SRC_ITER_C, Arg.DST_ITER_C)]
        return [made[a].handle if a in made else None for a in order]

    operands = {arg: descriptor(arg, False) for arg in shapes}
    direction = int(Direction.RIGHT_TO_LEFT if p.backwards else Direction.LEFT_TO_RIGHT)
    kind, first = _NAMES.get(p.cell, "vanilla_rnn"), []
    if p.cell in (Cell.RELU, Cell.TANH):
        first = [int(Algorithm.ELTWISE_RELU if p.cell == Cell.RELU else Algorithm.ELTWISE_TANH)]
    attributes = p.attributes.create(what)
    try:
        prop = int(Prop.FORWARD_TRAINING if p.trained else Prop.FORWARD_INFERENCE)
        forward = PrimitiveDesc(
            f"{kind}_forward", home.handle, prop, *first, direction, *handles(operands), 0, attributes, None, what=what
        )
        if not p.trained:
            return forward, None
        gradients = {arg: descriptor(arg, True) for arg in shapes}
        both = (*handles(operands), *handles(gradients), capi.DIFF_WEIGHTS_OVERWRITE)
        backward = PrimitiveDesc(
            f"{kind}_backward", home.handle, int(Prop.BACKWARD), *first, direction, *both, forward.handle, attributes,
            what=what,
        )  # fmt: skip
        return forward, backward
    finally:
        capi.library().primitive_attr_destroy(attributes)


@dataclass(frozen=True)
class _Plan:
    forward: _Forward
    backward: _Backward | None


class _Widened:
    """Float16 where oneDNN's primitives lack it: computed in float32, rounded once."""

    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback


def _plan(problem: Problem) -> Any:
    operands = f"{problem.cell.name} of {str(problem.dtype).removeprefix('torch.')} on {problem.device}"
    narrow = problem.dtype in SIXTEEN_BITS
    # Gradients of 16 bits are of 32 where oneDNN has no others.
    for wide in (False, True) if problem.trained and narrow else (False,):
        try:
            forward, backward = _describe(problem, wide)
            return _Plan(_Forward(problem, forward), None if backward is None else _Backward(problem, backward, wide))
        except capi.Unavailable as error:
            why = error
    fallback = named("rnn", operands, problem.device, why, FLOAT32 if narrow else COMPOSED)
    return _Widened(fallback) if narrow else Declined(fallback)


def plan(source: Tensor, hx: Tensor, cell: Cell, backwards: bool, trained: bool) -> Any:
    """What serves a layer of such operands; :class:`Declined` where oneDNN has nothing.

    Args:
        source: (steps, batch, inputs).
        hx: of (…, hidden).
        backwards: the last step comes first.
        trained: gradients will be asked for.
    """
    operands = f"{cell.name} of {str(source.dtype).removeprefix('torch.')} on {source.device}"
    if source.dtype not in DTYPES:
        return Declined(Fallback("rnn", operands, "recurrent layers of this dtype are not asked of oneDNN", COMPOSED))
    if not engine.available():
        return Declined(Fallback("rnn", operands, "the driver's queues are not SYCL's", COMPOSED))
    if 0 in source.shape or not hx.numel():
        return Declined(Fallback("rnn", operands, "an operand has no elements", COMPOSED))
    steps, batch, inputs = source.shape
    attributes = Attributes(math_mode=_math_mode(source.dtype), deterministic=_deterministic())
    sizes = steps, batch, inputs, hx.shape[-1]
    problem = Problem(cell, source.dtype, source.device, *sizes, backwards, trained, attributes)
    return CACHE.get(problem, _plan, problem)


def _math_mode(dtype: torch.dtype) -> str:
    return _fp32_precision("mkldnn", "rnn") if dtype is torch.float32 else "none"


def forward(
    source: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    bias: Tensor,
    bias_too: Tensor,
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """aten::mkldnn_rnn_layer: one layer in one direction.

    Args:
        source: (steps, batch, inputs), float32, bfloat16 or float16, whatever ``batch_first`` says.
        of_input, of_state: (gates * hidden, inputs) and (gates * hidden, hidden); the order of gates is torch's.
        bias, bias_too: (gates * hidden,) each, looked at where ``has_biases``.
        hx, cx: (batch, hidden); of LSTM alone is ``cx`` read.
        reverse: the last step comes first.
        mode: one of :class:`Cell`.
        train: gradients will be asked for.
        batch_sizes, num_layers, bidirectional: not looked at; of the operators that are made of this one.

    Returns:
        The states of all steps, (steps, batch, hidden); the last ones, of hx's and cx's shapes (without meaning, but
        for LSTM); what :func:`backward` needs besides.

    Raises:
        RuntimeError: the operands do not fit together, or oneDNN has no such layer on this device.
    """
    cell = Cell(mode)
    weights = _weights(of_input, of_state, bias, bias_too, has_biases)
    _check(cell, source, weights, {"hx": hx, "cx": cx}, batch_sizes)
    found = plan(source, hx, cell, reverse, train)
    if isinstance(found, Declined):
        raise _refused(found)
    if isinstance(found, _Widened):
        count(found.fallback)
        tail = (hidden_size, num_layers, True, bidirectional, batch_first, train)
        wide: Any = [t.float() for t in (source, *weights, hx, cx)]
        arguments = *wide, reverse, batch_sizes, mode, *tail
        *results, workspace = forward(*arguments)
        return *(t.to(source.dtype) for t in results), workspace
    made = found.forward.run(source.contiguous(), hx.contiguous(), cx.contiguous(), weights)
    workspace = made.pop() if train else torch.empty(0, dtype=torch.uint8, device=source.device)
    output, hy, cy = made if cell == Cell.LSTM else (*made, torch.empty_like(cx))
    return output, hy.view(hx.shape), cy.view(cx.shape).to(cx.dtype), workspace


def backward(
    source: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    bias: Tensor,
    bias_too: Tensor,
    hx: Tensor,
    cx: Tensor,
    output: Tensor,
    hy: Tensor,
    cy: Tensor,
    by_output: Tensor | None,
    by_hy: Tensor | None,
    by_cy: Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: Tensor,
) -> Any:
    """aten::mkldnn_rnn_layer_backward: the gradients by source, the four weights, hx and cx.

    Args:
        by_output, by_hy, by_cy: the gradients of what :func:`forward` returned, None where there is none; the other
            arguments as it had and returned them.

    Returns:
        Seven tensors; None for the biases of a layer without, and for cx but of LSTM.
    """
    cell = Cell(mode)
    weights = _weights(of_input, of_state, bias, bias_too, has_biases)
    states = {"hx": hx, "cx": cx, "hy": hy, "cy": cy, "the gradient of hy": by_hy, "the gradient of cy": by_cy}
    _check(cell, source, weights, states, batch_sizes, {"output": output, "its gradient": by_output})
    found = plan(source, hx, cell, reverse, True)
    if isinstance(found, Declined):
        raise _refused(found)
    if isinstance(found, _Widened):
        wide: Any = [t.float() for t in (source, *weights, hx, cx, output, hy, cy)]
        grads = (None if t is None else t.float() for t in (by_output, by_hy, by_cy))
        tail = (hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first, workspace)
        arguments = *wide, *grads, reverse, mode, *tail
        results = backward(*arguments)
        return tuple(None if t is None else t.to(source.dtype) for t in results)
    source, hx, cx = source.contiguous(), hx.contiguous(), cx.contiguous()
    if not workspace.numel():  # forward was told that nothing would be asked of it
        *made, workspace = found.forward.run(source, hx, cx, weights)
        output, hy, cy = made if cell == Cell.LSTM else (*made, cy)
    if workspace.numel() != (room := found.backward.workspace_bytes) or workspace.device != source.device:
        raise RuntimeError(f"mkldnn_rnn_layer: the workspace has {workspace.numel()} bytes, forward makes {room}")
    given = {Arg.SRC: source, Arg.SRC_ITER: hx, Arg.SRC_ITER_C: cx}
    given |= {Arg.DST: output.contiguous(), Arg.DST_ITER: hy.contiguous(), Arg.DST_ITER_C: cy.contiguous()}
    pairs = ((Arg.DST, by_output, output), (Arg.DST_ITER, by_hy, hy), (Arg.DST_ITER_C, by_cy, cy))
    gradients = {arg: torch.zeros_like(like) if t is None else t.contiguous() for arg, t, like in pairs}
    made = found.backward.run(given, weights, gradients, workspace)
    biases = _bias_gradients(cell, made[Arg.BIAS], bias.dtype) if has_biases else (None, None)
    by_source, by_hx = made[Arg.SRC].to(source.dtype), made[Arg.SRC_ITER].view(hx.shape).to(hx.dtype)
    by_cx = made[Arg.SRC_ITER_C].view(cx.shape).to(cx.dtype) if cell == Cell.LSTM else None
    return by_source, made[Arg.WEIGHTS], made[Arg.WEIGHTS_ITER], *biases, by_hx, by_cx


def _refused(found: Declined) -> RuntimeError:
    count(found.fallback)
    why = f"{found.fallback.operands}: {found.fallback.reason}"
    return RuntimeError(
        f"mkldnn_rnn_layer has no kernel for {why}; torch.lstm, torch.gru and torch.rnn_tanh compute it"
    )


def _weights(of_input: Tensor, of_state: Tensor, bias: Tensor, bias_too: Tensor, biased: bool) -> list[Tensor]:
    """Dense, and with biases: oneDNN has no layer without."""
    if not biased:
        bias = bias_too = torch.zeros(of_input.shape[0], dtype=of_input.dtype, device=of_input.device)
    return [t.contiguous() for t in (of_input, of_state, bias, bias_too)]


def _check(
    cell: Cell,
    source: Tensor,
    weights: Sequence[Tensor],
    states: Mapping[str, Tensor | None],
    batch_sizes: Sequence[int],
    outputs: Mapping[str, Tensor | None] | None = None,
) -> None:
    """That a primitive reads and writes nothing beyond the operands.

    Raises:
        RuntimeError: one of them does not fit, which is named.
    """
    if len(batch_sizes) or source.dim() != 3:
        raise RuntimeError("mkldnn_rnn_layer on xpu takes sequences of one length, (steps, batch, inputs)")
    hidden, (steps, batch, inputs) = weights[1].shape[-1], source.shape
    rows = cell.gates * hidden
    names = ("the weight of the input", "the weight of the state", "the first bias", "the second bias")
    wanted: list[tuple[str, Tensor | None, tuple[int, ...]]]
    wanted = list(zip(names, weights, ((rows, inputs), (rows, hidden), (rows,), (rows,)), strict=True))
    # But for LSTM there are no cells, and what is given for them is not read.
    lstm = cell == Cell.LSTM
    wanted += [(name, t, (batch, hidden)) for name, t in states.items() if lstm or name in _OF_ALL_CELLS]
    wanted += [(name, t, (steps, batch, hidden)) for name, t in (outputs or {}).items()]
    for name, t, shape in wanted:
        if t is None:
            continue
        fits = t.shape == shape or (name in states and t.shape == (1, *shape))
        if not fits or t.dtype != source.dtype or t.device != source.device:
            raise RuntimeError(
                f"mkldnn_rnn_layer: {name} is {tuple(t.shape)} of {t.dtype} on {t.device}; for this {cell.name} of "
                f"{tuple(source.shape)} it must be {shape} of {source.dtype} on {source.device}"
            )


_OF_ALL_CELLS = ("hx", "hy", "the gradient of hy")
