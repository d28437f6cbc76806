"""``anyxpu bench gpu-code``: native code for Intel GPUs, for every target, counted: nothing is run.

The kernels are those that Inductor makes of ``anyxpu bench kernels``' functions, and a few written by hand.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyxpu import ocloc
from anyxpu.bench import Request
from anyxpu.bench.gpu_kernels import KERNELS
from anyxpu.bench.inductors import inductors_kernels
from anyxpu.bench.kernel_cases import CASES as FUNCTIONS
from anyxpu.bench.report import Column, Goal, Report

CASES: dict[str, Any] = {**FUNCTIONS, **KERNELS}
_QUICK_CASES = ("gelu", "softmax", "sum outer", "embedding backward")
_QUICK_TARGETS = ("bmg",)

# The first word of an instruction, behind its execution mask and predicate.
_INSTRUCTION = re.compile(r"^\s*(?:\([^)]*\)\s*)*([a-z][a-z0-9]*)(?:\.\w+)*\s*\(", re.MULTILINE)


@dataclass
class Source:
    """One kernel before it is compiled for a target; ``dots`` says whether it has a product for the matrix engine."""

    case: str
    source: Any
    options: dict[str, Any]
    dots: bool


def run(request: Request) -> Report:
    """Compile every kernel for every target.

    Wrong is: a kernel that does not compile.
    """
    if ocloc.find() is None:
        raise ocloc.OclocError("anyxpu bench gpu-code needs Intel's offline compiler. Get it: anyxpu get-ocloc")
    report = Report("Native code for Intel GPUs", _COLUMNS)
    targets = _QUICK_TARGETS if request.quick else ocloc.TARGETS
    report.settings = {"targets": list(targets), "ocloc": ocloc.version()}
    for source in _sources(request):
        for target in targets:
            try:
                report.rows.append(_compile(source, target))
            except Exception as error:  # the others are still wanted
                first = str(error).strip().splitlines()[0]
                report.wrong.append(f"{source.case} for {target}: {type(error).__name__}: {first[:300]}")
    compiled = len(report.rows) / (len(report.rows) + len(report.wrong)) if report.rows else 0.0
    products = [row for row in report.rows if row["dots"]]
    report.goals = [
        Goal("part of the kernels that compile", compiled, 1.0, "higher"),
        Goal("most spilled bytes a thread", max((r["spill_bytes"] for r in report.rows), default=None), 0, "lower"),
        Goal(
            "part of the kernels with products that use the matrix engine",
            sum(row["dpas"] > 0 for row in products) / len(products) if products else None,
            1.0,
            "higher",
        ),
    ]
    return report


def _sources(request: Request) -> Iterator[Source]:
    from triton.compiler import ASTSource

    names = request.only or ((*_QUICK_CASES, *KERNELS) if request.quick else tuple(CASES))
    for name in names:
        if name in KERNELS:
            function, signature, constants, warps = KERNELS[name]
            types = {**signature, **dict.fromkeys(constants, "constexpr")}
            # Pointers of torch's tensors are aligned, which Triton finds out when it launches.
            attributes = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types.values()) if t[0] == "*"}
            yield Source(name, ASTSource(function, types, constants, attributes), {"num_warps": warps}, dots=True)
        else:
            for source in inductors_kernels(name):
                yield Source(name, source, {"num_warps": 4}, dots=False)


def _compile(source: Source, target: str) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget

    from anyxpu.triton.lower import c_name

    start = time.perf_counter()
    made = triton.compile(source.source, target=GPUTarget("xpu", {"device": target}, 16), options=source.options)
    seconds = time.perf_counter() - start
    binary, name = made.asm["zebin"], c_name(made.metadata.name)
    about = ocloc.inspect(binary, name)
    assembly = ocloc.disassemble(binary, target, name)
    counts = Counter(_INSTRUCTION.findall(assembly))
    return {
        "case": source.case,
        "kernel": made.metadata.name,
        "target": target,
        "seconds": seconds,
        "grf": about.grf_count if about else 0,
        "spill_bytes": about.spill_bytes if about else 0,
        "simd": about.simd_size if about else 0,
        "shared_bytes": about.shared_bytes if about else 0,
        "barriers": about.barriers if about else 0,
        "dots": source.dots,
        "dpas": counts["dpas"] + counts["dpasw"],
        "prefetches": ocloc.prefetches(assembly),
        "block_loads": assembly.count("load_block2d"),
        "send": sum(n for name, n in counts.items() if name.startswith("send")),
        "instructions": sum(counts.values()),
    }


def _plain(key: str, heading: str) -> Column:
    return Column(heading, lambda row: str(row[key]))


_COLUMNS = (
    Column("case", lambda row: row["case"], left=True),
    Column("target", lambda row: row["target"], left=True),
    Column("s", lambda row: f"{row['seconds']:.2f}"),
    _plain("grf", "GRF"),
    _plain("spill_bytes", "spilled"),
    _plain("simd", "SIMD"),
    _plain("dpas", "dpas"),
    _plain("prefetches", "prefetch"),
    _plain("block_loads", "2-D"),
    _plain("send", "send"),
    _plain("instructions", "all"),
    _plain("shared_bytes", "SLM"),
    _plain("barriers", "barriers"),
)
