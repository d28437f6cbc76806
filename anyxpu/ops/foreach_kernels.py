"""One kernel over all elements of lists of tensors, in Triton.

A program does ``step`` elements of one tensor. Which, it finds in two tables of int64 that the shim writes
(``shim/foreach.cpp``): ``chunks`` has for each program the tensor's number in the upper half and which of its steps in
the lower; ``table`` has for each tensor WIDTH words: how many elements, where they are in each list, and the tensor's
own numbers, as bits. Memory is dense, of one order in all lists.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from anyxpu.ops.reduction_kernels import _combined, _reduced

# What a function's argument is; shim/foreach.cpp has the same numbers.
LIST = tl.constexpr(0)
NUMBER = tl.constexpr(1)  # one for all
OWN = tl.constexpr(2)  # a number for each tensor
SINGLE = tl.constexpr(3)  # one element of memory for all


@triton.jit
def _chunk(table, chunks, step, WIDTH: tl.constexpr):
    """This program's row of the table, its first element, and how many there are from there on."""
    code = tl.load(chunks + tl.program_id(0))
    row = table + (code >> 32) * WIDTH
    first = (code & 0x7FFFFFFF) * step
    return row, first, tl.minimum(tl.load(row) - first, step).to(tl.int32)


@triton.jit
def _memory(row, k: tl.constexpr, first, TYPE: tl.constexpr):
    return tl.load(row + k).to(tl.pointer_type(TYPE)) + first


@triton.jit
def _number(row, k: tl.constexpr, OP: tl.constexpr):
    bits = tl.load(row + k)
    if tl.float64 == OP:
        return bits.to(tl.float64, bitcast=True)
    else:
        return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def mapped(
    table, chunks, singles, params, step,
    F: tl.constexpr, ROLES: tl.constexpr, WHICH: tl.constexpr, TYPE: tl.constexpr, OP: tl.constexpr,
    WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """``out[i] = F(...)``, its arguments being as ROLES says: of that kind the one that WHICH says."""
    row, first, left = _chunk(table, chunks, step, WIDTH)
    out = _memory(row, 1, first, TYPE)
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)
        inside = lanes < left
        values = ()
        for k in tl.static_range(len(ROLES)):
            if ROLES[k] == LIST:
                value = tl.load(_memory(row, WHICH[k], first, TYPE) + lanes, mask=inside).to(OP)
            elif ROLES[k] == NUMBER:
                value = params[WHICH[k]].to(OP)
            elif ROLES[k] == OWN:
                value = _number(row, WHICH[k], OP)
            else:
                value = tl.load(singles[WHICH[k]]).to(OP)
            values = values + (value,)  # noqa: RUF005 - Triton's tuples
        tl.store(out + lanes, F(*values).to(TYPE), mask=inside)


@triton.jit
def replaced(x, y):
    return y


@triton.jit
def zero(x):
    return tl.zeros_like(x)


# --- norms --------------------------------------------------------------------------------------------------------


@triton.jit
def partial_norms(
    table, chunks, partials, step,
    MAP: tl.constexpr, COMBINE: tl.constexpr, TYPE: tl.constexpr, OP: tl.constexpr, WIDTH: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Of each program's elements the sum (COMBINE ``larger``: the largest) of what MAP makes of them."""
    row, first, left = _chunk(table, chunks, step, WIDTH)
    x = _memory(row, 1, first, TYPE)
    acc = tl.zeros((1, C), OP)
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)[None, :]
        inside = lanes < left
        value = MAP(tl.load(x + lanes, mask=inside, other=0.0).to(OP), 2.0)
        acc = _combined(acc, tl.where(inside, value, 0.0), COMBINE)
    tl.store(partials + tl.program_id(0) + tl.arange(0, 1), _reduced(acc, 1, COMBINE))


@triton.jit
def norms(
    partials, places, out,
    COMBINE: tl.constexpr, FINISH: tl.constexpr, TYPE: tl.constexpr, OP: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """A tensor's norm from its programs' results: ``places[t]`` says in halves where they begin, and how many."""
    t = tl.program_id(0)
    code = tl.load(places + t)
    first, left = code >> 32, (code & 0x7FFFFFFF).to(tl.int32)
    acc = tl.zeros((1, C), OP)
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)[None, :]
        acc = _combined(acc, tl.load(partials + first + lanes, mask=lanes < left, other=0.0), COMBINE)
    made = FINISH(_reduced(acc, 1, COMBINE), 2.0, 1.0)
    tl.store(out + t + tl.arange(0, 1), made.to(TYPE))


# --- optimizers ---------------------------------------------------------------------------------------------------


@triton.jit
def _stopped(found, FOUND: tl.constexpr):
    """Whether gradients that are no numbers were found (1, or as often on several devices): nothing is to be done."""
    return tl.load(found) >= 1.0 if FOUND else False


@triton.jit
def _gradient(g, at, inside, scale, TYPE: tl.constexpr, OP: tl.constexpr, SCALE: tl.constexpr, MAXIMIZE: tl.constexpr):
    """The gradient, unscaled (in memory, too), and turned where something is made as large as can be."""
    value = tl.load(g + at, mask=inside).to(OP)
    if SCALE:
        value = value / tl.load(scale).to(OP)
        tl.store(g + at, value.to(TYPE), mask=inside)
    return -value if MAXIMIZE else value


@triton.jit
def adam(
    table, chunks, single_lr, scale, found, step, lr, kept1, kept2, new1, new2, log1, log2, decay, eps,
    TYPE: tl.constexpr, OP: tl.constexpr, WIDTH: tl.constexpr, LARGEST: tl.constexpr, DECOUPLED: tl.constexpr,
    LR: tl.constexpr, SCALE: tl.constexpr, FOUND: tl.constexpr, MAXIMIZE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Adam (Kingma and Ba, 2015), with LARGEST its AMSGrad (Reddi, Kale and Kumar, 2018), with DECOUPLED AdamW
    (Loshchilov and Hutter, 2019).

    The table has parameters, gradients, both averages, with LARGEST the largest second ones, and the steps' number.
    ``kept`` is beta, ``new`` 1 - beta, ``log`` its logarithm: 1 - beta ** n is -expm1(n log(beta)), with all digits.
    """
    row, first, left = _chunk(table, chunks, step, WIDTH)
    if _stopped(found, FOUND):
        left = 0
    p, g = _memory(row, 1, first, TYPE), _memory(row, 2, first, TYPE)
    m, v = _memory(row, 3, first, TYPE), _memory(row, 4, first, TYPE)
    most = _memory(row, 5, first, TYPE) if LARGEST else v
    count = tl.load(_memory(row, WIDTH - 1, 0, tl.float32)).to(OP)
    rate = tl.load(single_lr).to(OP) if LR else lr.to(OP)
    size = rate / -libdevice.expm1(count * log1)
    spread = 1 / tl.sqrt(-libdevice.expm1(count * log2))
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)
        inside = lanes < left
        x = tl.load(p + lanes, mask=inside).to(OP)
        grad = _gradient(g, lanes, inside, scale, TYPE, OP, SCALE, MAXIMIZE)
        if DECOUPLED:
            x -= rate * decay * x
        else:
            grad += decay * x
        average = kept1 * tl.load(m + lanes, mask=inside).to(OP) + new1 * grad
        square = kept2 * tl.load(v + lanes, mask=inside).to(OP) + new2 * grad * grad
        tl.store(m + lanes, average.to(TYPE), mask=inside)
        tl.store(v + lanes, square.to(TYPE), mask=inside)
        if LARGEST:
            square = tl.maximum(tl.load(most + lanes, mask=inside).to(OP), square)
            tl.store(most + lanes, square.to(TYPE), mask=inside)
        x -= size * average / (tl.sqrt(square) * spread + eps)
        tl.store(p + lanes, x.to(TYPE), mask=inside)


@triton.jit
def sgd(
    table, chunks, single_lr, scale, found, step, lr, momentum, new, decay,
    TYPE: tl.constexpr, OP: tl.constexpr, WIDTH: tl.constexpr, MOMENTUM: tl.constexpr, FIRST: tl.constexpr,
    NESTEROV: tl.constexpr, LR: tl.constexpr, SCALE: tl.constexpr, FOUND: tl.constexpr, MAXIMIZE: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Stochastic gradient descent with momentum (Sutskever, Martens, Dahl and Hinton, 2013).

    The table has parameters, gradients and with MOMENTUM the buffers, which FIRST fills. ``new`` is 1 - dampening.
    """
    row, first, left = _chunk(table, chunks, step, WIDTH)
    if _stopped(found, FOUND):
        left = 0
    p, g = _memory(row, 1, first, TYPE), _memory(row, 2, first, TYPE)
    buffer = _memory(row, 3, first, TYPE) if MOMENTUM else p
    rate = tl.load(single_lr).to(OP) if LR else lr.to(OP)
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)
        inside = lanes < left
        x = tl.load(p + lanes, mask=inside).to(OP)
        grad = _gradient(g, lanes, inside, scale, TYPE, OP, SCALE, MAXIMIZE) + decay * x
        if MOMENTUM:
            moved = grad
            if not FIRST:
                moved = momentum * tl.load(buffer + lanes, mask=inside).to(OP) + new * grad
            tl.store(buffer + lanes, moved.to(TYPE), mask=inside)
            grad = grad + momentum * moved if NESTEROV else moved
        tl.store(p + lanes, (x - rate * grad).to(TYPE), mask=inside)


@triton.jit
def unscaled(
    table, chunks, inverse, found, step,
    TYPE: tl.constexpr, OP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Gradients times ``inverse``, and 1 to ``found`` where one is no finite number."""
    row, first, left = _chunk(table, chunks, step, WIDTH)
    x = _memory(row, 1, first, TYPE)
    by = tl.load(inverse).to(OP)
    for start in range(0, left, C):
        lanes = start + tl.arange(0, C)
        inside = lanes < left
        value = tl.load(x + lanes, mask=inside, other=0.0).to(OP)
        lost = tl.max((tl.abs(value) < float("inf")).to(tl.int32) ^ 1, 0)
        if lost != 0:
            tl.store(found, 1.0)
        tl.store(x + lanes, tl.where(inside, value * by, 0.0).to(TYPE), mask=inside)
