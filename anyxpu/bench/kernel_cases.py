"""The kernels of ``anyxpu bench kernels``: what each computes, on what, and the least memory traffic it needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows and columns of f32: 16 KiB, 512 KiB, 8 MiB and 64 MiB an operand.
SIZES: dict[str, tuple[int, int]] = {"L1": (16, 256), "L2": (128, 1024), "L3": (2048, 1024), "DRAM": (8192, 2048)}

Function = Callable[..., Any]
Maker = Callable[[int, int], "list[Any]"]


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        function: what is compiled; pure, of tensors, giving a tensor or several.
        arguments: makes its arguments, on the CPU, for a number of rows and columns.
        draws: its result is random: only how much is zero and what is not can be checked.
    """

    name: str
    function: Function
    arguments: Maker
    draws: bool = False


CASES: dict[str, Case] = {}


def _case(name: str, arguments: Maker, draws: bool = False) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        CASES[name] = Case(name, function, arguments, draws)
        return function

    return add


def floats(*shapes: Any, dtype: torch.dtype = torch.float32) -> Maker:
    """Normal random tensors; a shape is made of "r", "c" and numbers."""

    def make(rows: int, columns: int) -> list[Any]:
        names = {"r": rows, "c": columns}
        return [torch.randn([names.get(s, s) for s in shape]).to(dtype) for shape in shapes]

    return make


def _and(first: Maker, *more: Callable[[int, int], Any]) -> Maker:
    return lambda rows, columns: [*first(rows, columns), *(m(rows, columns) for m in more)]


# --- pointwise


@_case("relu", floats("rc"))
def _relu(x: Tensor) -> Tensor:
    return torch.relu(x)


@_case("add broadcast", floats("rc", "c"))
def _add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@_case("sum of 8", floats(*["rc"] * 8))
def _eight(*x: Tensor) -> Tensor:
    return functools.reduce(torch.add, x)


@_case(
    "mixed types", _and(floats("rc"), lambda r, c: torch.randn(r, c).bfloat16(), lambda r, c: torch.randn(r, c).half())
)
def _mixed(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


@_case("gelu", floats("rc"))
def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@_case("gelu bf16", floats("rc", dtype=torch.bfloat16))
def _gelu_bf16(x: Tensor) -> Tensor:
    return F.gelu(x)


@_case("multiply-add f16", floats("rc", "rc", "rc", dtype=torch.float16))
def _fma_f16(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


@_case("swiglu", floats("rc", "rc"))
def _swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


@_case("rotary", floats("rc", "rc", "rc"))
def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


@_case("dropout", floats("rc"), draws=True)
def _dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.25)


@_case("adam step", floats("rc", "rc", "rc", "rc"))
def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m = m * 0.9 + g * 0.1
    v = v.abs() * 0.999 + g * g * 0.001
    return p - 1e-3 * (m / 0.5) / ((v / 0.3).sqrt() + 1e-8), m, v


# --- reductions


@_case("sum inner", floats("rc"))
def _sum_inner(x: Tensor) -> Tensor:
    return x.sum(1)


@_case("sum outer", floats("rc"))
def _sum_outer(x: Tensor) -> Tensor:
    return x.sum(0)


@_case("sum all", floats("rc"))
def _sum_all(x: Tensor) -> Tensor:
    return x.sum()


@_case("max inner", floats("rc"))
def _max_inner(x: Tensor) -> Tensor:
    return x.amax(1)


@_case("max outer", floats("rc"))
def _max_outer(x: Tensor) -> Tensor:
    return x.amax(0)


@_case("argmax inner", floats("rc"))
def _argmax_inner(x: Tensor) -> Tensor:
    return x.argmax(1)


@_case("argmax outer", floats("rc"))
def _argmax_outer(x: Tensor) -> Tensor:
    return x.argmax(0)


@_case("softmax", floats("rc"))
def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@_case("softmax backward", floats("rc", "rc"))
def _softmax_backward(g: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32)


@_case("log-softmax", floats("rc"))
def _log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


@_case("cross-entropy", _and(floats("rc"), lambda r, c: torch.randint(c, (r,))))
def _cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x, t)


@_case("cross-entropy backward", _and(floats("rc"), lambda r, c: torch.randint(c, (r,))))
def _cross_entropy_backward(x: Tensor, t: Tensor) -> Tensor:
    return torch.func.grad(F.cross_entropy)(x, t)


@_case("layernorm", floats("rc", "c", "c"))
def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


@_case("layernorm backward", floats("rc", "rc", "c", "c"))
def _layer_norm_backward(g: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, x.shape[-1:], w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, b, [True] * 3)


@_case("rmsnorm", floats("rc", "c"))
def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def _images(count: int, *channels: str) -> Maker:
    """``count`` batches of 8 images of "channels" c/8 and r pixels, then vectors of c/8."""

    def make(rows: int, columns: int) -> list[Any]:
        c = columns // 8
        return [torch.randn(8, c, rows) for _ in range(count)] + [torch.randn(c) for _ in channels]

    return make


@_case("groupnorm", _images(1, "weight", "bias"))
def _group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 8, w, b)


@_case("batchnorm", _images(1, "weight", "bias"))
def _batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


@_case("batchnorm backward", _images(2, "weight", "mean", "deviation"))
def _batch_norm_backward(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
    rstd = rstd.abs() + 0.5
    return torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3)


# --- moving data


def _indices(rows: int, columns: int) -> Tensor:
    return torch.randint(rows, (rows,))


@_case("embedding", _and(floats("rc"), _indices))
def _embedding(w: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, w)


@_case("embedding backward", _and(floats("rc"), _indices))
def _embedding_backward(g: Tensor, i: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(g, i, g.shape[0], -1, False)


@_case("index_select", _and(floats("rc"), lambda r, c: torch.randint(c, (c,))))
def _index_select(x: Tensor, i: Tensor) -> Tensor:
    return x.index_select(1, i)


@_case("scatter_add", _and(floats("rc"), lambda r, c: torch.randint(r, (r, c))))
def _scatter_add(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add(0, i, x)


@_case("transpose copy", floats("rc"))
def _transpose(x: Tensor) -> Tensor:
    return x.t().contiguous()


@_case("cat", floats("rc", "rc"))
def _cat(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x, y), 1)


@_case("cumsum", floats("rc"))
def _cumsum(x: Tensor) -> Tensor:
    return x.cumsum(1)


@_case("sort", floats("rc"))
def _sort(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.sort(stable=True, dim=1))


@_case("topk", floats("rc"))
def _topk(x: Tensor) -> Tensor:
    return x.topk(8, 1).values


def least_traffic(arguments: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Bytes that must move at least: every argument read once, every result written once."""
    return sum(t.numel() * t.element_size() for t in (*arguments, *results))


def many(result: Any) -> list[Tensor]:
    """A function's results as a list."""
    return [result] if isinstance(result, Tensor) else list(result)
