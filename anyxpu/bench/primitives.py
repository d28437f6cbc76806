"""``anyxpu bench primitives``: what oneDNN has beside products, and the kernels that Inductor makes for the same.

oneDNN's softmax, norms, pooling and resampling are not bound: compiled graphs fuse these operators with their
neighbours, which a primitive stands between, and some lose what torch keeps. This suite keeps the measurements that
the choice rests on. *Speed*: each primitive called by itself into a result that is there, and ``torch.compile`` of the
operator alone, with the call of the graph and a new result: what an operator without neighbours costs. *Values that
are no numbers*: how many results are NaN or infinite where f64 torch's are not, or the reverse, with one NaN, one
infinity, one slice of -infinity in the source: a softmax that hides a NaN would hide that training has diverged.
Both are checked against f64 before they are timed, alternating.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyxpu.bench import Request, beside_cpu
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import SETTLE_SECONDS, alternate
from anyxpu.onednn import capi, engine
from anyxpu.onednn.capi import Arg, Prop
from anyxpu.onednn.primitive import Attributes, Executable, MemoryDesc, PrimitiveDesc, dims
from anyxpu.onednn.primitive import run as enqueue

ONEDNN, COMPILED = "oneDNN", "xpu compiled"
DTYPES = (torch.float32, torch.bfloat16)

# dnnl_alg_kind_t, dnnl_normalization_flags_t and DNNL_ARG_* of the primitives that only this file makes.
_SOFTMAX, _POOL_MAX, _POOL_AVERAGE, _NEAREST, _LINEAR = 0x30000, 0x1FF, 0x2FF, 0x2FFF0, 0x2FFF1
_GLOBAL_STATISTICS, _SCALE, _SHIFT = 1, 2, 4
_MEAN, _VARIANCE, _SCALES, _SHIFTS = 49, 50, 51, 52


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        shape: of the source; channels-last where ``last``.
        function: the operator, of the source and float32 vectors of its ``vectors``' lengths.
        describe: makes oneDNN's, of its source and result; the arguments are C's from the engine on.
        arguments: which of the primitive's operands the vectors are.
    """

    shape: tuple[int, ...]
    function: Callable[..., Tensor]
    describe: Callable[[Any, Any, Any, Any], tuple[str, tuple[Any, ...]]]
    last: bool = False
    vectors: tuple[int, ...] = ()
    arguments: tuple[int, ...] = field(default=())

    def operands(self, dtype: torch.dtype) -> list[Tensor]:
        """The source in ``dtype``, and the vectors; between 0.5 and 1.5, as variances are positive."""
        generator = torch.Generator().manual_seed(0)
        source = torch.randn(self.shape, generator=generator).to(dtype)
        if self.last:
            source = source.to(memory_format=torch.channels_last)
        return [source, *(torch.rand(n, generator=generator) + 0.5 for n in self.vectors)]


def _softmax(home: Any, source: Any, result: Any, attributes: Any) -> tuple[str, tuple[Any, ...]]:
    return "softmax_forward", (home, int(Prop.FORWARD_INFERENCE), _SOFTMAX, source, result, 1, attributes)


def _layer_norm(home: Any, source: Any, result: Any, attributes: Any) -> tuple[str, tuple[Any, ...]]:
    flags = ctypes.c_uint(_SCALE | _SHIFT)
    args = (home, int(Prop.FORWARD_INFERENCE), source, result, None, ctypes.c_float(1e-5), flags, attributes)
    return "layer_normalization_forward", args


def _batch_norm(home: Any, source: Any, result: Any, attributes: Any) -> tuple[str, tuple[Any, ...]]:
    flags = ctypes.c_uint(_GLOBAL_STATISTICS | _SCALE | _SHIFT)
    args = (home, int(Prop.FORWARD_INFERENCE), source, result, ctypes.c_float(1e-5), flags, attributes)
    return "batch_normalization_forward", args


def _pooling(algorithm: int, kernel: int, padding: int, after: int) -> Callable[..., tuple[str, tuple[Any, ...]]]:
    def describe(home: Any, source: Any, result: Any, attributes: Any) -> tuple[str, tuple[Any, ...]]:
        window = (dims([n] * 2) for n in (2, kernel, 0, padding, after))
        args = (home, int(Prop.FORWARD_INFERENCE), algorithm, source, result, *window, attributes)
        return "pooling_forward", args

    return describe


def _resampling(algorithm: int) -> Callable[..., tuple[str, tuple[Any, ...]]]:
    def describe(home: Any, source: Any, result: Any, attributes: Any) -> tuple[str, tuple[Any, ...]]:
        factors = (ctypes.c_float * 2)(2.0, 2.0)
        args = (home, int(Prop.FORWARD_INFERENCE), algorithm, factors, source, result, attributes)
        return "resampling_forward", args

    return describe


def _twice(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode)


def _normalized(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x.to(scale.dtype), scale.shape, scale, shift).to(x.dtype)


def _standardized(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x.to(scale.dtype), mean, variance, scale, shift).to(x.dtype)


CASES: dict[str, Case] = {
    "softmax 1536 x 512": Case((1536, 512), lambda x: F.softmax(x, -1), _softmax),
    "softmax 64 x 50257": Case((64, 50257), lambda x: F.softmax(x, -1), _softmax),
    "layer norm 512 x 768": Case((512, 768), _normalized, _layer_norm, False, (768, 768), (_SCALES, _SHIFTS)),
    "batch norm 2 x 256 x 56": Case(
        *((2, 256, 56, 56), _standardized, _batch_norm, True, (256,) * 4, (_MEAN, _VARIANCE, _SCALES, _SHIFTS))
    ),
    "max pool 3/2, 2 x 64 x 112": Case(
        (2, 64, 112, 112), lambda x: F.max_pool2d(x, 3, 2, 1), _pooling(_POOL_MAX, 3, 1, 0), True
    ),
    "max pool 3/2, contiguous": Case(
        (2, 64, 112, 112), lambda x: F.max_pool2d(x, 3, 2, 1), _pooling(_POOL_MAX, 3, 1, 0)
    ),
    "average pool 2/2, 2 x 256 x 56": Case(
        (2, 256, 56, 56), lambda x: F.avg_pool2d(x, 2), _pooling(_POOL_AVERAGE, 2, 0, 0), True
    ),
    "nearest x 2, 320 x 32": Case((1, 320, 32, 32), _twice("nearest"), _resampling(_NEAREST), True),
    "bilinear x 2, 320 x 32": Case((1, 320, 32, 32), _twice("bilinear"), _resampling(_LINEAR), True),
    "bilinear x 2, contiguous": Case((1, 64, 64, 64), _twice("bilinear"), _resampling(_LINEAR)),
}
_QUICK = ("layer norm 512 x 768", "average pool 2/2, 2 x 256 x 56")


def run(request: Request) -> Report:
    """Time every case in f32 and bf16. Wrong is a side whose result is not f64's."""
    report = Report("oneDNN's primitives beside compiled kernels, milliseconds", _COLUMNS)
    rounds = request.rounds or (5 if request.quick else 9)
    report.settings = {"rounds": rounds}
    for name in request.only or (_QUICK if request.quick else tuple(CASES)):
        for dtype in DTYPES:
            beside_cpu.progress(f"{name} {beside_cpu.short(dtype)}")
            torch._dynamo.reset()
            _measure(report, name, dtype, rounds)
    ratios = [row["ratio"] for row in report.rows if row["ratio"]]
    report.goals.append(Goal("lowest speed of a compiled kernel over oneDNN's", min(ratios, default=None), 1, "higher"))
    return report


def _measure(report: Report, name: str, dtype: torch.dtype, rounds: int) -> None:
    case = CASES[name]
    given = case.operands(dtype)
    with torch.no_grad():
        expected = case.function(*(t.double() for t in given))
        operands = [t.to("xpu") for t in given]
        compiled = torch.compile(case.function, dynamic=False)
        result = torch.empty_like(compiled(*operands))
        call, implementation = _primitive(case, operands, result)
        sides = {ONEDNN: call, COMPILED: torch.no_grad()(lambda: [compiled(*operands)])}
        not_kept = {label: _not_kept(case, given[0], operands, side) for label, side in sides.items()}
        row: dict[str, Any] = {"case": name, "dtype": beside_cpu.short(dtype), "by": implementation, "ratio": None}
        row["not kept"] = not_kept
        report.rows.append(row)
        if wrong := beside_cpu.first_wrong(sides, [expected], dtype):
            report.wrong.append(f"{name} {beside_cpu.short(dtype)} on {wrong}")
            return
        samples = alternate(
            sides, rounds=rounds, calls=20, synchronize=torch.xpu.synchronize, settle=SETTLE_SECONDS, warmup=1
        )
    for label, sample in samples.items():
        row[label] = {**sample.as_dict("ms"), "spread": sample.spread}
    row["ratio"] = samples[ONEDNN].median / samples[COMPILED].median


def _not_kept(case: Case, given: Tensor, operands: Sequence[Tensor], side: Callable[[], list[Tensor]]) -> int:
    """How many results of ``side`` are NaN or infinite where f64 torch's are not, or the reverse, over three sources.

    ``operands[0]``, which ``side`` reads, is ``given`` again on return.
    """
    found = 0
    first, rest = (0,) * given.dim(), [t.cpu().double() for t in operands[1:]]
    for place, value in ((first, math.nan), (first, math.inf), (first[:1], -math.inf)):
        source = given.clone()
        source[place] = value
        operands[0].copy_(source)
        expected, (got,) = case.function(source.double(), *rest), side()
        found += int((_kinds(got.cpu()) != _kinds(expected)).sum())
    operands[0].copy_(given)
    return found


def _kinds(x: Tensor) -> Tensor:
    """Of each element: NaN 2, infinite ±1, else 0."""
    return torch.where(x.isnan(), 2, x.isinf() * x.sign().nan_to_num()).to(torch.int8)


def _primitive(case: Case, operands: Sequence[Tensor], result: Tensor) -> tuple[Callable[[], list[Tensor]], str]:
    """What runs oneDNN's primitive, and oneDNN's name of its implementation."""
    index = result.device.index
    home, what = engine.engine(index), "a primitive"
    source, made = (MemoryDesc.plain(t.shape, t.dtype, t.stride()) for t in (operands[0], result))
    attributes = Attributes().create(what)
    try:
        handles = (ctypes.c_void_p(h) for h in (home.handle, source.handle, made.handle, attributes))
        kind, args = case.describe(*handles)
        description = _Described(kind, args)
    finally:
        capi.library().primitive_attr_destroy(attributes)
    order = (Arg.SRC, Arg.DST, *case.arguments)
    executable = Executable(home, description, order)  # type: ignore[arg-type]
    tensors = (operands[0], result, *operands[1:])

    def call() -> list[Tensor]:
        enqueue(executable, engine.stream(index), result.device, *(t.data_ptr() for t in tensors))
        return [result]

    return call, executable.implementation


class _Described(PrimitiveDesc):
    """Of a primitive that the product does not bind."""

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.what = kind
        handle = ctypes.c_void_p()
        status = getattr(_functions(), f"dnnl_{kind}_primitive_desc_create")(ctypes.byref(handle), *args)
        if status:
            raise capi.error("primitive_desc_create", status, kind)
        assert handle.value is not None
        self.handle = handle.value


@cache
def _functions() -> ctypes.CDLL:
    capi.library()  # which finds what oneDNN needs to be loaded
    return ctypes.CDLL(str(capi.library_path()))


def _time(side: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[side]['median_ms']:.3f} ±{row[side]['spread']:.0%}" if side in row else "-"


_COLUMNS = (
    Column("operator", lambda row: row["case"], left=True),
    Column("dtype", lambda row: row["dtype"], left=True),
    Column("by", lambda row: row["by"], left=True),
    Column("NaN, inf not kept", lambda row: f"{row['not kept'][ONEDNN]} / {row['not kept'][COMPILED]}"),
    Column(ONEDNN, _time(ONEDNN)),
    Column(COMPILED, _time(COMPILED)),
    Column("compiled over oneDNN", lambda row: f"{row['ratio']:.2f}x" if row["ratio"] else "-"),
)
