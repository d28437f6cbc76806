"""A program: every operator that oneDNN serves, by dtype, layout and what is done on the way out, created and run.

``python onednn_sweep.py [--all]`` prints one line of JSON: a row for each case with its ways (``library``; ``float32``,
``composed`` or ``host`` with their reasons) and what was wrong with it. Results are compared in shape, strides and
dtype with what torch predicts for xpu; their values are not looked at, so it can run on a simulated GPU.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import anyxpu.ops
from anyxpu.ops import library

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# No GPU computes these in oneDNN as asked here: integers are to fall back by name, complex numbers to be products of
# their parts.
OTHERS = (torch.int64, torch.int8, torch.complex64)
# Of an attention, the products are oneDNN's and its softmax is not.
OURS = {f"aten::{name}" for name in (*library.TABLE, *library.FEW_ROWS, "convolution", "convolution_backward")}
OURS |= {f"mkldnn::{name}" for name in (*library.FUSED, *library.FUSED_FEW_ROWS)}
Case = tuple[str, torch.dtype, Callable[..., Any], tuple[Tensor, ...]]


def operand(shape: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous") -> Tensor:
    """An xpu tensor with unspecified values, its strides as ``layout`` says."""

    def empty(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="xpu")

    *batch, rows, columns = shape
    if layout == "transposed":
        return empty(*batch, columns, rows).transpose(-1, -2)
    if layout == "padded":
        return empty(*batch, rows, columns + 3)[..., 1 : columns + 1]
    if layout == "stepped":
        return empty(*batch, rows, 2 * columns)[..., ::2]
    if layout == "expanded":
        return empty(1, *shape[1:]).expand(shape)
    if layout == "interleaved" and len(shape) == 3:
        return empty(rows, *batch, columns).transpose(0, 1)
    return empty(*shape)


LAYOUTS = ("contiguous", "transposed", "padded", "stepped", "expanded", "interleaved")
SIZES = ((33, 64, 40), (1, 64, 48), (64, 512, 1), (5, 1, 7), (17, 19, 23), (256, 256, 256), (1, 1, 1), (8, 4096, 1000))


def products(dtype: torch.dtype, everything: bool) -> Iterator[Case]:
    def case(name: str, function: Callable[..., Any], *tensors: Tensor) -> Case:
        return name, dtype, function, tensors

    for m, k, n in SIZES if everything else SIZES[::3]:
        yield case(f"mm {m}x{k}x{n}", torch.mm, operand((m, k), dtype), operand((k, n), dtype))
    pairs = list(itertools.product(LAYOUTS, LAYOUTS))
    for left, right in pairs if everything else pairs[::7]:
        a, b = operand((5, 24, 40), dtype, left), operand((5, 40, 16), dtype, right)
        yield case(f"bmm {left} {right}", torch.bmm, a, b)
        a, b = operand((24, 40), dtype, left), operand((40, 16), dtype, right)
        yield case(f"mm {left} {right}", torch.mm, a, b)
    a, b = operand((24, 40), dtype), operand((40, 16), dtype)
    for layout in LAYOUTS[:4]:
        yield case(
            f"mm.out {layout}", lambda a, b, out: torch.mm(a, b, out=out), a, b, operand((24, 16), dtype, layout)
        )
    factors = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (2.0, -3.0), (0.3, 0.0))
    for shape, (alpha, beta) in itertools.product(((16,), (1, 16), (24, 16), (24, 1), ()), factors):
        if everything or (alpha, beta) == (1.0, 1.0) or shape == (24, 16):
            c = torch.empty(shape, dtype=dtype, device="xpu")

            def added(c: Tensor, a: Tensor, b: Tensor, alpha: float = alpha, beta: float = beta) -> Tensor:
                return torch.addmm(c, a, b, alpha=alpha, beta=beta)

            yield case(f"addmm {shape} alpha={alpha} beta={beta}", added, c, a, b)
    c = operand((24, 16), dtype)
    yield case("addmm_", lambda c, a, b: c.addmm_(a, b, alpha=2, beta=0.5), c, a, b)
    yield case("addmm_ transposed", lambda c, a, b: c.addmm_(a, b), operand((24, 16), dtype, "transposed"), a, b)
    left, right, sum_ = (operand(shape, dtype) for shape in ((5, 24, 40), (5, 40, 16), (5, 24, 16)))
    yield case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.125, beta=2), sum_, left, right)
    yield case("baddbmm row", torch.baddbmm, c[0], left, right)
    yield case("baddbmm_", lambda c, a, b: c.baddbmm_(a, b), sum_, left, right)
    yield case("mv", torch.mv, a, a[0])
    yield case("addmv", lambda c, a, b: torch.addmv(c, a, b, alpha=3, beta=2), b[0], b.t(), a[0])
    weight, bias = operand((16, 40), dtype), c[0]
    yield case("linear", torch.nn.functional.linear, operand((3, 5, 40), dtype), weight, bias)
    yield case("linear without bias", torch.nn.functional.linear, operand((3, 5, 40), dtype), weight)
    heads = tuple(operand((2, 4, 32, 16), dtype) for _ in range(3))
    yield case("composed attention", composed_attention, *heads)


def composed_attention(*operands: Tensor) -> Tensor:
    """Without the kernels that take its place where they can."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*operands)


def convolutions(dtype: torch.dtype, everything: bool) -> Iterator[Case]:
    def tensor(*shape: int, channels_last: bool = False) -> Tensor:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        memory_format = formats[len(shape)] if channels_last and len(shape) in formats else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device="xpu", memory_format=memory_format)

    def cases(
        name: str,
        source: tuple[int, ...],
        weight: tuple[int, ...],
        *,
        last: bool = False,
        bias: bool = True,
        **given: Any,
    ) -> Iterator[Case]:
        spatial = len(source) - 2
        transposed, groups = bool(given.get("transposed")), int(given.get("groups", 1))
        each = [given.get(key, default) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
        extra = [given.get("output_padding", 0)] * spatial
        geometry = (*([value] * spatial for value in each), transposed, extra, groups)
        x, w = tensor(*source, channels_last=last), tensor(*weight)
        channels = weight[1] * groups if transposed else weight[0]
        b = tensor(channels) if bias else None
        name = f"{name}{' channels-last' if last else ''}"
        operands = (x, w) if b is None else (x, w, b)
        yield (
            f"{name} forward",
            dtype,
            lambda x, w, b=None: aten.convolution(x, w, b, *geometry),
            operands,
        )
        with FakeTensorMode() as mode:
            predicted = aten.convolution(*(mode.from_tensor(t) for t in (x, w)), None, *geometry)
        gradient = torch.empty_strided(predicted.shape, predicted.stride(), dtype=dtype, device="xpu")
        for mask in (
            ((True, True, bias), (False, True, False), (True, False, bias)) if everything else ((True, True, bias),)
        ):
            wanted = "".join("ny"[m] for m in mask)
            yield (
                f"{name} backward {wanted}",
                dtype,
                lambda g, x, w, mask=mask: aten.convolution_backward(g, x, w, [channels], *geometry, list(mask)),
                (gradient, x, w),
            )

    yield from cases("stem", (2, 3, 32, 32), (16, 3, 7, 7), stride=2, padding=3)
    yield from cases("3x3", (2, 16, 14, 14), (32, 16, 3, 3), padding=1, bias=False)
    yield from cases("3x3", (2, 16, 14, 14), (32, 16, 3, 3), padding=1, last=True)
    yield from cases("depthwise", (2, 16, 14, 14), (16, 1, 3, 3), groups=16, padding=1)
    yield from cases("transposed", (2, 16, 7, 7), (16, 8, 4, 4), transposed=True, stride=2, padding=1)
    yield from cases("1-D", (2, 8, 50), (12, 8, 5), padding=2)
    yield from cases("3-D", (1, 3, 8, 9, 10), (8, 3, 3, 3, 3))
    if not everything:
        return
    yield from cases("1x1", (2, 64, 7, 7), (128, 64, 1, 1), bias=False)
    yield from cases("grouped", (2, 16, 14, 14), (32, 4, 3, 3), groups=4)
    yield from cases("dilated", (2, 16, 20, 20), (16, 16, 3, 3), dilation=2, padding=2)
    yield from cases("dilated", (2, 16, 20, 20), (16, 16, 3, 3), dilation=2, padding=2, last=True)
    yield from cases("odd", (3, 5, 13, 11), (7, 5, 3, 3), stride=2)
    yield from cases("one pixel", (4, 8, 1, 1), (8, 8, 1, 1))
    yield from cases("depthwise", (1, 24, 9, 9), (24, 1, 5, 5), groups=24, padding=2, stride=2, last=True)
    yield from cases("transposed", (2, 8, 7, 7), (8, 4, 3, 3), transposed=True, stride=2, output_padding=1, groups=2)
    yield from cases("transposed", (2, 8, 7, 7), (8, 4, 3, 3), transposed=True, last=True, dilation=2)
    yield from cases("depthwise transposed", (2, 8, 7, 7), (8, 1, 3, 3), transposed=True, groups=8)
    yield from cases("untouched rows", (1, 4, 5, 5), (4, 4, 1, 1), transposed=True, dilation=3, output_padding=2)
    yield from cases("1-D depthwise", (2, 8, 50), (8, 1, 4), groups=8, padding=3)
    yield from cases("1-D transposed", (2, 8, 20), (8, 4, 4), transposed=True, stride=2, dilation=2)
    yield from cases("1-D audio", (1, 1, 4000), (16, 1, 10), stride=5)
    yield from cases("3-D", (1, 4, 8, 9, 10), (8, 2, 3, 3, 3), groups=2, stride=2, padding=1, last=True)
    yield from cases("3-D depthwise", (1, 8, 6, 6, 6), (8, 1, 3, 3, 3), groups=8)
    yield from cases("3-D transposed", (1, 8, 4, 4, 4), (8, 4, 2, 2, 2), transposed=True, stride=2)
    draw = random.Random(9)  # the same draws for every device, so that their tables can be compared
    for i in range(25):
        spatial, transposed = draw.choice((1, 2, 2, 3)), draw.random() < 0.4
        groups = draw.choice((1, 1, 2, 4))
        into, out, kernel = draw.choice((4, 8, 12, 16, 32)), draw.choice((4, 8, 24, 64)), draw.choice((1, 2, 3, 5))
        weight = (into, out // groups) if transposed else (out, into // groups)
        yield from cases(
            f"draw {i}",
            (draw.choice((1, 3, 16)), into, *[draw.choice((12, 15, 17))] * spatial),
            (*weight, *[kernel] * spatial),
            last=draw.random() < 0.4,
            bias=draw.random() < 0.5,
            transposed=transposed,
            groups=groups,
            stride=draw.choice((1, 1, 2, 3)),
            padding=draw.choice((0, 1, 2)),
            dilation=draw.choice((1, 1, 2)),
        )


FUNCTIONS: tuple[tuple[str, list[float], str | None], ...] = (
    *[(name, [], None) for name in ("none", "relu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "swish")],
    *[("leaky_relu", [0.3], None), ("hardtanh", [-0.2, 0.7], None), ("gelu", [], "none"), ("gelu", [], "tanh")],
)


def fused(dtype: torch.dtype, everything: bool) -> Iterator[Case]:
    """Convolutions with what Inductor lets follow them in one operator; without it, torch has no such operators."""
    if not torch.backends.mkldnn.is_available():
        return
    for groups, spatial in ((1, 2), (4, 2), (1, 3)) if everything else ((1, 2),):
        layout = torch.channels_last if spatial == 2 else torch.channels_last_3d
        x = torch.empty(2, 8, *[9] * spatial, dtype=dtype, device="xpu", memory_format=layout)
        w = torch.empty(16, 8 // groups, *[3] * spatial, dtype=dtype, device="xpu")
        other = torch.empty(2, 16, *[9] * spatial, dtype=dtype, device="xpu", memory_format=layout)
        about = f"{spatial}-D groups={groups}"
        steps = ([1] * spatial, [1] * spatial, [1] * spatial, groups)
        for function in FUNCTIONS if everything else FUNCTIONS[1::3]:
            name = " ".join(map(str, (function[0], *function[1], function[2] or "")))

            def unary(x: Tensor, w: Tensor, b: Tensor, rest: tuple[Any, ...] = (*steps, *function)) -> Tensor:
                return torch.ops.mkldnn._convolution_pointwise(x, w, b, *rest)

            yield f"fused {about} {name}", dtype, unary, (x, w, w.view(-1)[:16])
        for after in (None, "relu"):

            def added(other: Tensor, x: Tensor, w: Tensor, rest: tuple[Any, ...] = (*steps, "add", 0.5, after)) -> Any:
                if isinstance(x, FakeTensor):  # torch predicts nothing for these two
                    return other, other
                operators = torch.ops.mkldnn._convolution_pointwise, torch.ops.mkldnn._convolution_pointwise_
                fresh = operators[0].binary(x, other, w, None, *rest, [], None)
                return fresh, operators[1].binary(other, x, w, None, *rest, [], None)

            yield f"fused {about} add {after}", dtype, added, (other, x, w)


def layouts(results: Any) -> list[Any]:
    """Shape, strides (those that say something), dtype and device of each result."""

    def layout(t: Tensor) -> Any:
        strides = [step if size > 1 else "any" for size, step in zip(t.shape, t.stride(), strict=True)]
        return list(t.shape), strides, str(t.dtype), t.device.type

    return [t if t is None else layout(t) for t in (results if isinstance(results, (tuple, list)) else (results,))]


def predicted(function: Callable[..., Any], operands: tuple[Tensor, ...]) -> list[Any]:
    with FakeTensorMode() as mode, torch.no_grad():
        return layouts(function(*(mode.from_tensor(t) for t in operands)))


def run(case: Case) -> dict[str, Any]:
    """Its row."""
    name, dtype, function, operands = case
    row: dict[str, Any] = {"case": name, "dtype": str(dtype).removeprefix("torch."), "wrong": []}
    anyxpu.ops.reset_counters()
    start = time.perf_counter()
    try:
        with torch.no_grad():
            found = layouts(function(*operands))
        torch.xpu.synchronize()
        row["seconds"] = round(time.perf_counter() - start, 4)
        served, fallbacks = anyxpu.ops.counters(), anyxpu.ops.fallbacks()
        if found != (want := predicted(function, operands)):
            row["wrong"].append(f"results {found}, predicted {want}")
    except Exception as error:
        row["wrong"].append(f"{type(error).__name__}: {error}")
        return {**row, "ways": ["failed"]}
    on_host = sorted(op for op, ways in served.items() if "host" in ways and op in OURS)
    reasons = {f.instead: f.reason for f in fallbacks}
    if on_host and "host" not in reasons:
        row["wrong"].append(f"the host served {on_host} and nobody says why")
    if not on_host and not any("library" in ways for ways in served.values()):
        row["wrong"].append(f"the library served nothing: {served}")
    return {**row, "ways": sorted(reasons) or ["library"], "reasons": reasons}


def modes() -> Iterator[dict[str, Any]]:
    """float32 in fewer bits, and the same bits every time."""
    a, x, w = (
        operand((64, 64), torch.float32),
        torch.empty(2, 8, 9, 9, device="xpu"),
        torch.empty(8, 8, 3, 3, device="xpu"),
    )
    convolve = lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # noqa: E731
    for precision in ("high", "medium"):
        torch.set_float32_matmul_precision(precision)
        yield run((f"mm precision {precision}", torch.float32, torch.mm, (a, a)))
        yield run((f"conv precision {precision}", torch.float32, convolve, (x, w)))
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True)
    yield run(("mm deterministic", torch.float32, torch.mm, (a, a)))
    yield run(("conv deterministic", torch.float32, convolve, (x, w)))
    torch.use_deterministic_algorithms(False)


def main() -> None:
    everything = "--all" in sys.argv
    rows = [run(case) for dtype in DTYPES for case in products(dtype, everything)]
    rows += [run(case) for dtype in DTYPES for case in convolutions(dtype, everything)]
    rows += [run(case) for dtype in DTYPES for case in fused(dtype, everything)]
    for dtype in OTHERS:
        rows.append(run(("mm", dtype, torch.mm, (operand((4, 5), dtype), operand((5, 6), dtype)))))
    rows += modes()
    print(json.dumps({"device": torch.xpu.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
