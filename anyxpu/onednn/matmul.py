"""Matrix products: ``out = alpha * (a @ b) + beta * c`` for matrices and batches of them.

Operands are read by their strides where oneDNN's fast kernels can (row- or column-major, with any leading dimension,
batches anywhere) and are made contiguous otherwise. Every function here returns ``NotImplemented`` for a call that
oneDNN does not serve (its dtypes, a bad shape, a driver without SYCL queues): the caller passes it to the host, where
CPU torch computes it or raises its own error. Why is kept in :mod:`anyxpu.onednn.fallbacks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Algorithm, Arg
from anyxpu.onednn.fallbacks import COMPOSED, FLOAT32, HOST, Declined, Fallback, count, named
from anyxpu.onednn.functions import RELU, Eltwise
from anyxpu.onednn.packing import PackedProduct
from anyxpu.onednn.primitive import (
    Attributes,
    Executable,
    MemoryDesc,
    PrimitiveDesc,
    SignatureCache,
    describable,
    run,
)
from anyxpu.shim import lib

CACHE: SignatureCache[Any] = SignatureCache(capacity=2048)

SIXTEEN_BITS = (torch.bfloat16, torch.float16)
# float64 is for GPUs alone, and there for those that compute in it.
FLOATS = (torch.float32, *SIXTEEN_BITS, torch.float64)

_fp32_precision = torch._C._get_fp32_precision_getter
_deterministic = torch._C._get_deterministic_algorithms

Operand = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides."""


@dataclass(frozen=True)
class Then:
    """What follows a product before it is stored.

    Attributes:
        binary: an operator between it and another operand of its shape and dtype, or None.
        eltwise: a function of the result.
    """

    binary: Algorithm | None = None
    eltwise: Eltwise = ()


NOTHING = Then()


@dataclass(frozen=True)
class _Problem:
    """The facts of one call that decide how it is served.

    Attributes:
        dtype: of the factors.
        a, b: shape and strides; both of rank 2, or both of rank 3.
        c, out: the same, or None where the call has none.
        beta: 0 where there is no ``c``.
        result: the dtype of the result and of ``c``.
    """

    dtype: torch.dtype
    device: torch.device
    a: Operand
    b: Operand
    c: Operand | None
    out: Operand | None
    attributes: Attributes
    then: Then
    result: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.a[0][:-1], self.b[0][-1])

    @property
    def depth(self) -> int:
        """Length of the sums."""
        return self.a[0][-1]

    @property
    def operands(self) -> str:
        """For the record of fallbacks."""
        return f"{str(self.dtype).removeprefix('torch.')} on {self.device}"

    def __str__(self) -> str:
        return f"matmul {tuple(self.a[0])} x {tuple(self.b[0])} {str(self.dtype).removeprefix('torch.')}"


def matrix_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which oneDNN reads this operand in place, or None if it must be made contiguous.

    Sizes of 1 leave their stride free, so those are set to what a contiguous tensor has. A batch of one, or one that
    repeats a single matrix, gets the batch stride 0.
    """
    rows, columns = shape[-2:]
    row, column = strides[-2:]
    if columns == 1:
        column = 1
    if rows == 1:
        row = columns if column == 1 else 1
    row_major = column == 1 and row >= columns
    column_major = row == 1 and column >= rows
    if not (row_major or column_major):
        return None
    if len(shape) == 2:
        return (row, column)
    batch = strides[0]
    if shape[0] == 1 or batch == 0:
        return (0, row, column)
    found = (batch, row, column)
    return found if describable(shape, found) else None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a fresh row-major tensor, as torch has them (sizes of 0 count as 1)."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _compact(operand: Operand) -> tuple[Operand, bool]:
    """The operand as oneDNN is to read it, and whether it must be made contiguous for that."""
    shape, strides = operand
    readable = matrix_strides(shape, strides)
    return (shape, readable or matrix_strides(shape, contiguous_strides(shape)) or ()), readable is None


def _layout(tensor: Tensor) -> Operand:
    return tuple(tensor.shape), tensor.stride()


def _transposed(operand: Operand) -> Operand:
    shape, strides = operand
    return (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])


def _descriptor(operand: Operand, dtype: torch.dtype) -> MemoryDesc:
    """A batch stride of 0 becomes a batch of one, which oneDNN broadcasts."""
    shape, strides = operand
    if len(shape) == 3 and strides[0] == 0:
        shape = (1, *shape[1:])
        strides = (max(shape[1] * strides[1], shape[2] * strides[2]), *strides[1:])
    return MemoryDesc.plain(shape, dtype, strides)


class _Empty:
    """The result has no elements."""

    def __init__(self, problem: _Problem) -> None:
        self.shape, self.dtype = problem.shape, problem.result

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        return a.new_empty(self.shape, dtype=self.dtype) if out is None else out


class _Zero:
    """The sums have no terms, and nothing is added to them."""

    def __init__(self, problem: _Problem) -> None:
        self.shape, self.dtype = problem.shape, problem.result

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        return (a.new_empty(self.shape, dtype=self.dtype) if out is None else out).zero_()


class _Resize:
    """The out= tensor has another shape than the result."""

    def __init__(self, problem: _Problem) -> None:
        self.shape, self.attributes, self.dtype = problem.shape, problem.attributes, problem.result

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        from torch._prims_common.wrappers import _maybe_resize_out

        assert out is not None
        out = _maybe_resize_out(out, self.shape)  # with torch's own warning where it holds elements
        return product(c, a, b, out, self.attributes.alpha, self.attributes.beta, result=self.dtype)


class _Copied:
    """Computed into a temporary, because oneDNN cannot write the result where it belongs."""

    def __init__(self, problem: _Problem) -> None:
        self.attributes, self.dtype = problem.attributes, problem.result

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Any:
        assert out is not None
        result = product(c, a, b, None, self.attributes.alpha, self.attributes.beta, result=self.dtype)
        return result if result is NotImplemented else out.copy_(result)


class _Widened:
    """A 16-bit product on a device whose oneDNN lacks it: computed in float32, rounded once."""

    def __init__(self, problem: _Problem, fallback: Fallback) -> None:
        self.dtype, self.attributes, self.fallback = problem.result, problem.attributes, fallback
        self.then = problem.then

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None, other: Tensor | None = None) -> Any:
        wide, other = (None if t is None else t.float() for t in (c, other))
        factors = self.attributes.alpha, self.attributes.beta
        result = product(wide, a.float(), b.float(), None, *factors, self.then, other)
        if result is NotImplemented:
            return result
        count(self.fallback)
        return result.to(self.dtype) if out is None else out.copy_(result)


class _Composed:
    """A float64 product that oneDNN does not scale or add to as precisely: that is left to other operators."""

    def __init__(self, problem: _Problem, fallback: Fallback) -> None:
        self.attributes, self.fallback = problem.attributes, fallback

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Any:
        result, alpha, beta = product(None, a, b), self.attributes.alpha, self.attributes.beta
        if result is NotImplemented:
            return result
        count(self.fallback)
        if c is None:
            result.mul_(alpha)
        else:
            result = torch.add(c if beta == 1.0 else c * beta, result, alpha=alpha)
        return result if out is None else out.copy_(result)


class _Direct:
    """One oneDNN matmul, written straight into the result."""

    def __init__(self, problem: _Problem) -> None:
        self.device, self.index = problem.device, problem.device.index
        self.dtype, self.result, self.shape = problem.dtype, problem.result, problem.shape
        self.overlapping = _Copied(problem)
        # Bytes that the operands reach over from their first element, to see whether the result overlaps them.
        self.span_a, self.span_b = (_span(each) * problem.dtype.itemsize for each in (problem.a, problem.b))
        self.span_c, self.span_out = (_span(each) * problem.result.itemsize for each in (problem.c, problem.out))
        a, self.compact_a = _compact(problem.a)
        b, self.compact_b = _compact(problem.b)
        if len(self.shape) == 3 and self.shape[0] > 1 and a[1][0] == 0 and b[1][0] == 0:
            # One of the two has to say how large the batch is.
            a, self.compact_a = (a[0], contiguous_strides(a[0])), True
        out = _compact(problem.out or (self.shape, contiguous_strides(self.shape)))[0]
        # oneDNN's fast kernels write row-major results only; the transpose of a column-major one is row-major.
        self.swap = out[1][-1] != 1
        if self.swap:
            a, b, out = _transposed(b), _transposed(a), _transposed(out)
        self.bias = problem.c is not None and not self.swap and _is_bias(problem)
        self.accumulate = problem.c is not None and not self.bias
        attributes = problem.attributes if self.accumulate else replace(problem.attributes, beta=0.0)
        home, weights, what = engine.engine(self.index), _descriptor(b, self.dtype), str(problem)

        def build(weights: MemoryDesc) -> Executable:
            return self._build(a, weights, out, attributes, what)

        self.executable = build(weights)
        self.packed: PackedProduct | None = None
        copied = self.compact_a if self.swap else self.compact_b
        if len(b[0]) == 2 and a[0][0] > 1 and not copied and self.dtype != torch.float64:
            self.packed = PackedProduct(home, b[0], self.dtype, weights, attributes.math_mode, build, what)

    def _build(self, a: Operand, weights: MemoryDesc, out: Operand, attributes: Attributes, what: str) -> Executable:
        home = engine.engine(self.index)
        operands = {Arg.SRC: _descriptor(a, self.dtype), Arg.WEIGHTS: weights}
        operands[Arg.DST] = _descriptor(out, self.result)
        others = () if attributes.binary is None else (Arg.FIRST_POST_OP,)
        bias = None
        if self.bias:
            shape = (*(1 for _ in self.shape[:-1]), self.shape[-1])
            bias = operands[Arg.BIAS] = MemoryDesc.plain(shape, self.result, contiguous_strides(shape))
        handle = attributes.create(what)
        try:
            source, result = operands[Arg.SRC].handle, operands[Arg.DST].handle
            args = (home.handle, source, weights.handle, bias.handle if bias else None, result, handle)
            return Executable(home, PrimitiveDesc("matmul", *args, what=what), (*operands, *others))
        finally:
            capi.library().primitive_attr_destroy(handle)

    def run(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None, other: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(self.shape, dtype=self.result, device=self.device)
        else:
            if self._overlap(c, a, b, out):
                return self.overlapping.run(c, a, b, out)
            lib().note_written(out.data_ptr())
        if self.compact_a:
            a = a.contiguous()
        if self.compact_b:
            b = b.contiguous()
        if self.accumulate and c is not out:
            out.copy_(c)  # type: ignore[arg-type]
        source, weights = (b, a) if self.swap else (a, b)
        executable, stream = self.executable, engine.stream(self.index)
        if self.packed is not None and self.packed.worthwhile and (found := self.packed.find(weights, stream)):
            executable, weights = found
        addresses: tuple[int, ...] = (source.data_ptr(), weights.data_ptr(), out.data_ptr())
        if self.bias:
            addresses = (*addresses, c.data_ptr())  # type: ignore[union-attr]
        if other is not None:
            addresses = (*addresses, other.data_ptr())
        run(executable, stream, self.device, *addresses)
        return out

    def _overlap(self, c: Tensor | None, a: Tensor, b: Tensor, out: Tensor) -> bool:
        start = out.data_ptr()
        end = start + self.span_out
        address = a.data_ptr()
        if address < end and start < address + self.span_a:
            return True
        address = b.data_ptr()
        if address < end and start < address + self.span_b:
            return True
        if c is None or c is out:
            return False
        address = c.data_ptr()
        return address < end and start < address + self.span_c


def _span(operand: Operand | None) -> int:
    """Elements from the first to the last, both counted."""
    if operand is None:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(*operand, strict=True))


def _is_bias(problem: _Problem) -> bool:
    """Whether ``c`` is one row added to every row, which oneDNN does on the way out."""
    assert problem.c is not None
    if problem.attributes.alpha != 1.0 or problem.attributes.beta != 1.0 or problem.c == problem.out:
        return False
    if problem.dtype == torch.float64:
        return False  # oneDNN's products of float64 add a bias in a kernel of its own, and a sum as they go
    shape, strides = problem.c
    columns = problem.shape[-1]
    # A vector of the result's row length, whatever dimensions of size 1 stand before it.
    return math.prod(shape) == columns and (columns == 1 or (shape[-1] == columns and strides[-1] == 1))


def _declined(a: Tensor, reason: str, instead: str = HOST) -> Declined:
    operands = f"{str(a.dtype).removeprefix('torch.')} on {a.device}"
    return Declined(Fallback("matmul", operands, reason, instead))


def made_of_real_ones(a: Tensor) -> bool:
    """Is a product of this one a real product of its parts? Of complex128 on GPUs alone: float64 is the host's else."""
    return a.dtype is torch.complex64 or (
        a.dtype is torch.complex128 and torch.xpu.get_device_properties(a.device).type != "cpu"
    )


_DO_NOT_FIT = "the operands do not fit together; CPU torch says how, or computes it"


def _misfit(a: Tensor) -> Any:
    return _declined(a, _DO_NOT_FIT).run()


def _plan(
    c: Tensor | None,
    a: Tensor,
    b: Tensor,
    out: Tensor | None,
    alpha: float,
    beta: float,
    mode: str,
    then: Then,
    other: Tensor | None,
    result: torch.dtype,
) -> Any:
    """How to serve such a call; :class:`Declined` if oneDNN does not."""
    attributes = Attributes(alpha, beta, mode, _deterministic(), eltwise=then.eltwise)
    if then.binary is not None:
        assert other is not None
        attributes = replace(attributes, binary=(then.binary, *_layout(other), other.dtype))
    dtype, device, rank = a.dtype, a.device, a.dim()
    tensors = [(t, kind) for t, kind in ((a, dtype), (b, dtype), (c, result), (out, result)) if t is not None]
    if dtype not in FLOATS:
        instead = COMPOSED if made_of_real_ones(a) else HOST
        return _declined(a, "products of this dtype are not asked of oneDNN", instead)
    if any(t.dtype != kind or t.device != device for t, kind in tensors):
        return _declined(a, _DO_NOT_FIT)
    if rank not in (2, 3) or b.dim() != rank or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return _declined(a, _DO_NOT_FIT)
    problem = _Problem(
        dtype,
        device,
        _layout(a),
        _layout(b),
        None if c is None else _layout(c),
        None if out is None else _layout(out),
        attributes,
        then,
        result,
    )
    if c is not None and not _expands(c.shape, problem.shape):
        return _declined(a, _DO_NOT_FIT)
    if attributes.beta == 0.0:
        problem = replace(problem, c=None)
    if out is not None and tuple(out.shape) != problem.shape:
        return _declined(a, _DO_NOT_FIT) if out is c else _Resize(problem)
    if 0 in problem.shape:
        return _Empty(problem)
    if problem.depth == 0:
        return _Zero(problem) if problem.c is None else _declined(a, "sums without terms, and something added to them")
    if out is not None and torch._debug_has_internal_overlap(out) == 1:
        return _declined(a, "elements of the result share memory")
    if not engine.available():
        return _declined(a, "the driver's queues are not SYCL's")
    return _served(problem)


def _served(problem: _Problem) -> Any:
    """The plan of a product that oneDNN can be asked for."""
    scaled = problem.attributes.alpha != 1.0 or problem.attributes.beta not in (0.0, 1.0)
    if problem.dtype == torch.float64 and scaled:
        return _Composed(problem, Fallback("matmul", problem.operands, "oneDNN's factors are float32", COMPOSED))
    try:
        if problem.out is not None and matrix_strides(*problem.out) is None:
            return _Copied(problem)
        return _Direct(problem)
    except capi.Unavailable as error:
        if problem.dtype in SIXTEEN_BITS:
            return _Widened(problem, named("matmul", problem.operands, problem.device, error, FLOAT32))
        if problem.dtype == torch.float64 and problem.c is not None:  # the product alone may be had
            return _Composed(problem, named("matmul", problem.operands, problem.device, error, COMPOSED))
        return Declined(named("matmul", problem.operands, problem.device, error, HOST))


def _expands(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a tensor of ``shape`` may be expanded to the shape ``to``."""
    missing = len(to) - len(shape)
    return missing >= 0 and all(size in (1, full) for size, full in zip(shape, to[missing:], strict=True))


def product(
    c: Tensor | None,
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    then: Then = NOTHING,
    other: Tensor | None = None,
    result: torch.dtype | None = None,
) -> Any:
    """``alpha * (a @ b) + beta * c``, and what follows.

    Args:
        c: anything that expands to the result's shape; not read where ``beta`` is 0.
        a: ``(m, k)`` or ``(batch, m, k)``, float32, bfloat16 or float16; float64 on a GPU that computes in it.
        b: ``(k, n)`` or ``(batch, k, n)``, like ``a``.
        out: where to put it; resized where its shape is another. It may be ``c``.
        then: what follows, of float32, bfloat16 and float16 that is not empty and goes into a new tensor; with an
            operator, ``c`` is None or a row.
        other: that operator's second operand, row-major.
        result: the dtype of ``out`` and of ``c``, where it is not that of ``a``: float32 of 16 bits.

    Returns:
        ``out``, or a new contiguous tensor; ``NotImplemented`` where oneDNN does not serve the call.
    """
    dtype = a.dtype
    mode = _fp32_precision("mkldnn", "matmul") if dtype is torch.float32 else "none"
    key: tuple[Any, ...] = (
        *(dtype, a.get_device(), a.shape, a.stride()),
        *(b.dtype, b.get_device(), b.shape, b.stride()),
        *(alpha, beta, mode, _deterministic(), result),
    )
    made = result or dtype
    if c is not None:
        key = (*key, "c", c.dtype, c.get_device(), c.shape, c.stride(), c is out)
    if out is not None:
        key = (*key, "out", out.dtype, out.get_device(), out.shape, out.stride())
    if then is NOTHING:
        plan = CACHE.get(key, _plan, c, a, b, out, alpha, beta, mode, then, None, made)
        return plan.run(c if beta else None, a, b, out)
    key = (*key, then, None if other is None else (other.dtype, other.get_device(), other.shape, other.stride()))
    plan = CACHE.get(key, _plan, c, a, b, out, alpha, beta, mode, then, other, made)
    return plan.run(c if beta else None, a, b, out, other)


def mm(a: Tensor, b: Tensor) -> Any:
    """aten::mm."""
    return product(None, a, b) if a.dim() == 2 else _misfit(a)


def mm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Any:
    """aten::mm.out."""
    return product(None, a, b, out) if a.dim() == 2 else _misfit(a)


def bmm(a: Tensor, b: Tensor) -> Any:
    """aten::bmm."""
    return product(None, a, b) if a.dim() == 3 else _misfit(a)


def bmm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Any:
    """aten::bmm.out."""
    return product(None, a, b, out) if a.dim() == 3 else _misfit(a)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmm."""
    return _added(2, c, a, b, None, alpha, beta)


def addmm_out(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Any:
    """aten::addmm.out."""
    return _added(2, c, a, b, out, alpha, beta)


def addmm_(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmm_."""
    return _added(2, c, a, b, c, alpha, beta)


def baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::baddbmm."""
    return _added(3, c, a, b, None, alpha, beta)


def baddbmm_out(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Any:
    """aten::baddbmm.out."""
    return _added(3, c, a, b, out, alpha, beta)


def baddbmm_(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::baddbmm_."""
    return _added(3, c, a, b, c, alpha, beta)


_RELU = Then(eltwise=RELU)
_GELU = Then(eltwise=((Algorithm.ELTWISE_GELU_ERF, 0.0, 0.0),))


def addmm_activation(
    c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Any:  # fmt: skip
    """aten::_addmm_activation: :func:`addmm`, then relu, or gelu of the error function."""
    if a.dim() != 2 or a.dtype not in (torch.float32, *SIXTEEN_BITS) or a.numel() == 0 or b.numel() == 0:
        return _misfit(a)
    return product(c, a, b, None, float(alpha), float(beta), _GELU if use_gelu else _RELU)


def mm_dtype(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Any:
    """aten::mm.dtype: a product whose sums are stored as ``out_dtype``, that of ``a`` or float32 of 16 bits."""
    return _stored(2, None, a, b, out_dtype, None)


def mm_dtype_out(a: Tensor, b: Tensor, out_dtype: torch.dtype, *, out: Tensor) -> Any:
    """aten::mm.dtype_out."""
    return _stored(2, None, a, b, out_dtype, out)


def bmm_dtype(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Any:
    """aten::bmm.dtype: as :func:`mm_dtype`."""
    return _stored(3, None, a, b, out_dtype, None)


def bmm_dtype_out(a: Tensor, b: Tensor, out_dtype: torch.dtype, *, out: Tensor) -> Any:
    """aten::bmm.dtype_out."""
    return _stored(3, None, a, b, out_dtype, out)


def addmm_dtype(
    c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1
) -> Any:  # fmt: skip
    """aten::addmm.dtype: as :func:`mm_dtype`; ``c`` is of ``out_dtype`` or of a's."""
    return _stored(2, c, a, b, out_dtype, None, alpha, beta)


def addmm_dtype_out(
    c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1, out: Tensor
) -> Any:
    """aten::addmm.dtype_out."""
    return _stored(2, c, a, b, out_dtype, out, alpha, beta)


def baddbmm_dtype(
    c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1
) -> Any:  # fmt: skip
    """aten::baddbmm.dtype: as :func:`addmm_dtype`."""
    return _stored(3, c, a, b, out_dtype, None, alpha, beta)


def baddbmm_dtype_out(
    c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1, out: Tensor
) -> Any:
    """aten::baddbmm.dtype_out."""
    return _stored(3, c, a, b, out_dtype, out, alpha, beta)


def _stored(
    rank: int,
    c: Tensor | None,
    a: Tensor,
    b: Tensor,
    dtype: torch.dtype,
    out: Tensor | None,
    alpha: float = 1,
    beta: float = 1,
) -> Any:
    """There is no such product on the CPU: what is not served raises."""
    what = f"a product with out_dtype={dtype}"
    if dtype != a.dtype and not (dtype is torch.float32 and a.dtype in SIXTEEN_BITS):
        raise RuntimeError(f"{what} on xpu wants operands of that dtype, or float32 of 16 bits, not {a.dtype}")
    if a.dim() != rank or b.dim() != rank or (a.dtype, a.device) != (b.dtype, b.device):
        raise RuntimeError(
            f"{what} wants two operands of {rank} dimensions, one dtype and one device, not {tuple(a.shape)} "
            f"{a.dtype} on {a.device} and {tuple(b.shape)} {b.dtype} on {b.device}"
        )
    if out is not None and (out.dtype, out.device) != (dtype, a.device):
        raise RuntimeError(f"{what} wants an out= of that dtype on {a.device}, not {out.dtype} on {out.device}")
    if c is not None and (c.dtype not in (dtype, a.dtype) or c.device != a.device):
        raise RuntimeError(f"{what} adds what is of that dtype or {a.dtype} on {a.device}, not {c.dtype} on {c.device}")
    if c is not None:
        c = c.to(dtype)
    made = product(c, a, b, out, float(alpha), 0.0 if c is None else float(beta), result=dtype)
    if made is not NotImplemented:
        return made
    # What oneDNN has not is said by torch, or computed, of operands in the wider type.
    wide = [t.to(dtype) for t in (a, b)]
    made = torch.bmm(*wide) if rank == 3 else torch.mm(*wide)
    if c is not None:
        made = torch.add(c * beta if beta else torch.zeros_like(c), made, alpha=alpha)
    elif alpha != 1:
        made = made * alpha
    return made if out is None else out.copy_(made)


def addmv(c: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmv (aten::mv comes here)."""
    return _vector(c, matrix, vector, None, alpha, beta)


def addmv_out(c: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Any:
    """aten::addmv.out."""
    return _vector(c, matrix, vector, out, alpha, beta)


def addmv_(c: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmv_."""
    return _vector(c, matrix, vector, c, alpha, beta)


def _added(rank: int, c: Tensor, a: Tensor, b: Tensor, out: Tensor | None, alpha: float, beta: float) -> Any:
    if a.dim() != rank or isinstance(alpha, complex) or isinstance(beta, complex):
        return _misfit(a)
    return product(c, a, b, out, float(alpha), float(beta))


def _vector(c: Tensor, matrix: Tensor, vector: Tensor, out: Tensor | None, alpha: float, beta: float) -> Any:
    """A product with a matrix of one column."""
    if matrix.dim() != 2 or vector.dim() != 1 or c.dim() > 1:
        return _misfit(matrix)
    if out is not None and (out.dim() != 1 or out.shape[0] != matrix.shape[0]):
        # Resizing would act on the column, a view; the host resizes the vector itself.
        return _declined(matrix, "the result has another shape").run()
    column = None if out is None else out.unsqueeze(1)
    added = c.unsqueeze(1) if c.dim() else c
    if column is not None and c is out:
        added = column
    result = _added(2, added, matrix, vector.unsqueeze(1), column, alpha, beta)
    if result is NotImplemented or out is not None:
        return result if result is NotImplemented else out
    return result.squeeze(1)
