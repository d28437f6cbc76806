"""Operators on complex numbers, made of kernels on their parts (views of the same memory, two numbers apart).

Where all operands are complex and an integer holds both parts, one kernel reads and writes those; else each part has
one.

Called where a row of ``pointwise.py`` or ``reductions.py`` meets complex operands. Each function here is the functional
operator's; in-place and ``out=`` forms write its result. It returns ``NotImplemented`` for what it does not serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyxpu.ops import pointwise, serve
from anyxpu.shim import lib

_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
# Integers that hold both parts.
_PAIRS = {torch.complex32: torch.int32, torch.complex64: torch.int64}
_UNARY = ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "reciprocal", "sgn")
_BINARY = ("mul", "div")

Function = Callable[..., Any]

_library: list[torch.library.Library] = []  # definitions end with their Library


def _define() -> None:
    """Operators of our own for the parts of each function: they write into ``out``, a view of the result."""
    _library.append(torch.library.Library("anyxpu", "FRAGMENT"))
    for names, operands in ((_UNARY, "ab"), (_BINARY, "abcd")):
        for name in names:
            for part, given, kind in (("re", operands, "f"), ("im", operands, "f"), ("pair", operands[::2], "i")):
                taken = ", ".join(f"Tensor {operand}" for operand in given)
                _library[0].define(f"complex_{name}_{part}({taken}, *, Tensor(a!) out) -> Tensor(a!)")
                full = f"anyxpu::complex_{name}_{part}"
                if not lib().serve_pointwise(full, f"complex_{name}_{part}", "same", "T" * len(given), kind, False):
                    raise AssertionError(full)


def _parts(x: Any, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Real and imaginary part as tensors of the parts' type on the device."""
    part = _PARTS[dtype]
    if not isinstance(x, Tensor) or x.device != device:
        number = complex(x.item() if isinstance(x, Tensor) else x)
        return tuple(torch.full((), p, dtype=part, device=device) for p in (number.real, number.imag))  # type: ignore[return-value]
    if not x.is_complex():
        real = x.to(part)
        return real, torch.zeros((), dtype=part, device=device).expand(real.shape)
    x = x.to(dtype)
    return x.real, x.imag


def _as_pairs(operands: Sequence[Any], dtype: torch.dtype, device: torch.device) -> list[Tensor] | None:
    """The operands as integers that hold both parts; None where one is real, or no integer is so wide."""
    if dtype not in _PAIRS:
        return None
    made = []
    for operand in operands:
        number = not isinstance(operand, Tensor) or operand.device != device
        if not number and not operand.is_complex():
            return None
        # A number's bits are one too: the host's tensor of no dimension, which the kernel gets by value.
        given = torch.tensor(complex(operand), dtype=dtype) if number else operand.to(dtype)
        made.append(given.view(_PAIRS[dtype]))
    return made


def _device(*operands: Any) -> torch.device | None:
    """The one that they are on, where host tensors are numbers; None where torch refuses them, or they are others'."""
    tensors = [t for t in operands if isinstance(t, Tensor)]
    devices = {t.device for t in tensors if t.device.type == "xpu"}
    numbers = all(t.dim() == 0 for t in tensors if t.device.type == "cpu")
    plain = not any(t.is_conj() or t.is_neg() or t.layout != torch.strided for t in tensors)
    return devices.pop() if len(devices) == 1 and numbers and plain else None


def _result(dtype: torch.dtype, *operands: Any) -> Tensor | None:
    """A new tensor laid out as TensorIterator lays it; None where shapes do not fit together."""
    from torch._prims_common import compute_elementwise_output_strides

    there = [t for t in operands if isinstance(t, Tensor) and t.device.type == "xpu"]
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in there))
    except RuntimeError:
        return None
    strides = compute_elementwise_output_strides(*(t.expand(shape) for t in there))
    return torch.empty_strided(shape, strides, dtype=dtype, device=there[0].device)


def _served(dtype: torch.dtype, device: torch.device) -> bool:
    return dtype in _PARTS and (dtype is not torch.complex128 or bool(lib().properties(device.index).has_fp64))


def _by_parts(name: str, *operands: Any) -> Any:
    """The function of each part of the operands, which have complex numbers among them."""
    device = _device(*operands)
    dtype = operands[0].dtype if len(operands) == 1 else torch.result_type(*operands)
    if device is None or not _served(dtype, device):
        return NotImplemented
    out = _result(dtype, *operands)
    if out is None:
        return NotImplemented
    pairs = _as_pairs(operands, dtype, device)
    if pairs is not None:
        getattr(torch.ops.anyxpu, f"complex_{name}_pair")(*pairs, out=out.view(_PAIRS[dtype]))
        return out
    parts = [part for operand in operands for part in _parts(operand, dtype, device)]
    for into, part in ((out.real, "re"), (out.imag, "im")):
        getattr(torch.ops.anyxpu, f"complex_{name}_{part}")(*parts, out=into)
    return out


def _of_pairs(function: Function, dtype: torch.dtype, *operands: Tensor) -> Any:
    """A function that is the same for both parts."""
    return torch.view_as_complex(function(*(torch.view_as_real(t.to(dtype)) for t in operands)))


def _alike(*operands: Any) -> bool:
    """Whether all are complex tensors of one type and shape on one device, so that they are pairs of numbers."""
    first = operands[0]
    return isinstance(first, Tensor) and _device(*operands) is not None and all(
        isinstance(t, Tensor) and t.dtype == first.dtype and t.shape == first.shape and t.device == first.device
        for t in operands
    ) and _served(first.dtype, first.device)  # fmt: skip


def mul(x: Any, other: Any) -> Any:
    """aten::mul.Tensor."""
    return _by_parts("mul", x, other)


def div(x: Any, other: Any) -> Any:
    """aten::div.Tensor."""
    return _by_parts("div", x, other)


def add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """aten::add.Tensor: ``x + alpha * other``."""
    device, dtype = _device(x, other), torch.result_type(x, other)
    if device is None or isinstance(alpha, complex) or not _served(dtype, device):
        return NotImplemented
    if _alike(x, other):
        return _of_pairs(lambda a, b: torch.add(a, b, alpha=alpha), dtype, x, other)
    out = _result(dtype, x, other)
    if out is None:
        return NotImplemented
    for into, a, b in zip((out.real, out.imag), _parts(x, dtype, device), _parts(other, dtype, device), strict=True):
        torch.add(a, b, alpha=alpha, out=into)
    return out


def sub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """aten::sub.Tensor: ``x - alpha * other``."""
    return NotImplemented if isinstance(alpha, complex) else add(x, other, alpha=-alpha)


def rsub(x: Any, other: Any, alpha: Any = 1) -> Any:
    """aten::rsub.Tensor: ``other - alpha * x``."""
    return sub(other, x, alpha=alpha)


def neg(x: Tensor) -> Any:
    """aten::neg."""
    return _of_pairs(torch.neg, x.dtype, x) if _alike(x) else NotImplemented


def absolute(x: Tensor) -> Any:
    """aten::abs: the length, in the parts' type."""
    return torch.hypot(x.real, x.imag) if _alike(x) else NotImplemented


def angle(x: Tensor) -> Any:
    """aten::angle: in radians, in the parts' type."""
    return torch.atan2(x.imag, x.real) if _alike(x) else NotImplemented


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Any:
    """aten::addcmul: ``x + value * a * b``."""
    product = mul(a, b)
    return NotImplemented if product is NotImplemented else torch.add(x, product, alpha=value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Any:
    """aten::addcdiv: ``x + value * a / b``."""
    quotient = div(a, b)
    return NotImplemented if quotient is NotImplemented else torch.add(x, quotient, alpha=value)


def power(x: Tensor, exponent: Any) -> Any:
    """aten::pow.Tensor_Scalar, for the exponents that are a product, a root or a quotient."""
    functions: dict[Any, Function] = {
        2: lambda: mul(x, x),
        0.5: lambda: _by_parts("sqrt", x),
        -1: lambda: _by_parts("reciprocal", x),
    }
    chosen = None if isinstance(exponent, (bool, complex)) else functions.get(exponent)
    return NotImplemented if chosen is None or not x.is_complex() else chosen()


def rsqrt(x: Tensor) -> Any:
    """aten::rsqrt."""
    root = _by_parts("sqrt", x)
    return root if root is NotImplemented else _by_parts("reciprocal", root)


def tanh_backward(grad: Tensor, out: Tensor) -> Any:
    """aten::tanh_backward."""
    if not _alike(grad, out):
        return NotImplemented
    return grad * (1 - out * out).conj_physical()


def sigmoid_backward(grad: Tensor, out: Tensor) -> Any:
    """aten::sigmoid_backward."""
    if not _alike(grad, out):
        return NotImplemented
    return grad * ((1 - out) * out).conj_physical()


def _compared(join: Function, compare: Function) -> Function:
    def call(x: Tensor, other: Any) -> Any:
        device, dtype = _device(x, other), torch.result_type(x, other)
        if device is None or not _served(dtype, device):
            return NotImplemented
        try:
            parts = zip(_parts(x, dtype, device), _parts(other, dtype, device), strict=True)
            return join(*(compare(a, b) for a, b in parts))
        except RuntimeError:  # of shapes that do not fit: in torch's words
            return NotImplemented

    return call


equal = _compared(torch.logical_and, torch.eq)
unequal = _compared(torch.logical_or, torch.ne)


def where(condition: Tensor, x: Tensor, other: Tensor) -> Any:
    """aten::where.self."""
    if condition.device.type != "xpu" or condition.dtype is not torch.bool:
        return NotImplemented
    device, dtype = _device(x, other), torch.result_type(x, other)
    if device != condition.device or not _served(dtype, condition.device):
        return NotImplemented
    if not _alike(x, other) or condition.shape != x.shape:
        out = _result(dtype, condition, x, other)
        if out is None:
            return NotImplemented
        for into, a, b in zip(
            (out.real, out.imag), _parts(x, dtype, device), _parts(other, dtype, device), strict=True
        ):
            into.copy_(torch.where(condition, a, b))
        return out
    return _of_pairs(lambda a, b: torch.where(condition.unsqueeze(-1), a, b), x.dtype, x, other)


def masked_fill_(x: Tensor, mask: Tensor, value: Any) -> Any:
    """aten::masked_fill_: in place."""
    if not _alike(x) or mask.device != x.device or mask.dtype is not torch.bool:
        return NotImplemented
    if isinstance(value, Tensor) and value.dim():
        return NotImplemented
    for part, number in zip((x.real, x.imag), _parts(value, x.dtype, x.device), strict=True):
        part.copy_(torch.where(mask, number, part))  # a strided part is not filled in place
    return x


def _dims(x: Tensor, dim: Any) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % x.dim() for d in given] if given and x.dim() else list(range(x.dim()))


def _reduced(function: Function) -> Function:
    def call(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        if not _alike(x) or dtype not in (None, x.dtype) or x.numel() == 0:
            return NotImplemented
        if x.dim() == 0 and all(d in (0, -1) for d in ([dim] if isinstance(dim, int) else dim or ())):
            return x.clone()
        if any(not -x.dim() <= d < x.dim() for d in ([dim] if isinstance(dim, int) else dim or ())):
            return NotImplemented
        return torch.view_as_complex(function(torch.view_as_real(x), _dims(x, dim), keepdim).contiguous())

    return call


def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """aten::linalg_vector_norm: of the lengths, as ``abs`` has them (its gradient looks for them among these)."""
    if not _alike(x) or dtype not in (None, x.dtype) or isinstance(ord, complex):
        return NotImplemented
    return torch.linalg.vector_norm(absolute(x), ord, dim, keepdim)


total = _reduced(torch.sum)
mean = _reduced(torch.mean)

# Overload -> the function that serves it; a function's name for those of each part.
TABLE: dict[str, Function] = {
    **{name: (lambda x, name=name: _by_parts(name, x)) for name in _UNARY},
    "rsqrt": rsqrt,
    "mul.Tensor": mul,
    "div.Tensor": div,
    "add.Tensor": add,
    "sub.Tensor": sub,
    "rsub.Tensor": rsub,
    "neg": neg,
    "abs": absolute,
    "angle": angle,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "pow.Tensor_Scalar": power,
    "tanh_backward": tanh_backward,
    "sigmoid_backward": sigmoid_backward,
    "eq.Tensor": equal,
    "eq.Scalar": equal,
    "ne.Tensor": unequal,
    "ne.Scalar": unequal,
    "where.self": where,
    "masked_fill_.Scalar": masked_fill_,
    "masked_fill_.Tensor": masked_fill_,
}
# Of reductions, whose forms are no pointwise rows.
REDUCED: dict[str, Function] = {"sum.dim_IntList": total, "sum": total, "mean.dim": mean, "mean": mean}
REDUCED["linalg_vector_norm"] = vector_norm


def register() -> None:
    """Give the shim what serves complex operands of the operators that it serves itself. Starts no driver."""
    _define()
    for overload, function in TABLE.items():
        for form in pointwise.forms(overload):
            lib().serve_complex(f"aten::{form}", serve.counted(form, into_form(form, function)))
    for name, function in REDUCED.items():
        lib().serve_complex(f"aten::{name}", serve.counted(name, function))


def into_form(form: str, function: Function) -> Function:
    """The functional operator's function as its in-place or ``out=`` form."""
    base, _, overload = form.partition(".")
    schema = torch._C._get_schema(f"aten::{base}", overload)
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written or function is masked_fill_:
        return function

    def into(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out") if written[0].is_out else args[0]
        made = function(*args, **kwargs)
        if made is NotImplemented or not torch.can_cast(made.dtype, out.dtype):
            return NotImplemented
        if out.shape != made.shape:
            if not written[0].is_out:
                return NotImplemented
            lib().resize_output(out, made.shape, torch.contiguous_format)
        return out.copy_(made)

    return into
