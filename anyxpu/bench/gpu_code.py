"""``anyxpu bench gpu-code``: native code for Intel GPUs, for every target, counted: nothing is run.

The kernels are those that Inductor makes of ``anyxpu bench kernels``' functions, and a few written by hand. Where
Intel's GPU driver is (``anyxpu get-driver``), it loads each binary on the simulated device and says what it knows of
the kernel, which is laid beside what the binary says; and it compiles the same OpenCL C that ocloc does, by turns.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyxpu import ocloc
from anyxpu.bench import Request
from anyxpu.bench.gpu_driver import DriverProcess
from anyxpu.bench.gpu_kernels import KERNELS
from anyxpu.bench.inductors import inductors_kernels
from anyxpu.bench.kernel_cases import CASES as FUNCTIONS
from anyxpu.bench.report import Column, Goal, Report
from anyxpu.bench.timing import alternate
from anyxpu.simulate import driver

CASES: dict[str, Any] = {**FUNCTIONS, **KERNELS}
_QUICK_CASES = ("gelu", "softmax", "sum outer", "embedding backward")
_QUICK_TARGETS = ("bmg",)
# Of compiling a kernel by either side; a median needs three.
_ROUNDS = 3

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
    simulated = driver.is_installed()
    report.settings = {"targets": list(targets), "ocloc": ocloc.version(), "driver": simulated}
    rounds = request.rounds or _ROUNDS
    with contextlib.ExitStack() as stack:
        drivers = {t: stack.enter_context(DriverProcess(t)) for t in targets} if simulated else {}
        for source in _sources(request):
            for target in targets:
                try:
                    report.rows.append(_compile(source, target, drivers.get(target), rounds))
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
        *_driver_goals(report.rows),
    ]
    return report


def _driver_goals(rows: list[dict[str, Any]]) -> list[Goal]:
    """Goals about the driver; not measured where there is none."""
    loaded = [row for row in rows if "driver" in row]
    ratios = [row["driver_compile_s"] / row["ocloc_compile_s"] for row in loaded if "driver_compile_s" in row]
    agreeing = sum(not row["differences"] for row in loaded) / len(loaded) if loaded else None
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    return [
        Goal("part of the kernels of which the driver says what the binary says", agreeing, 1.0, "higher"),
        Goal("compile seconds of the driver over ocloc's, geometric mean", mean, 1.0, "lower"),
    ]


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


def _compile(source: Source, target: str, process: DriverProcess | None, rounds: int) -> dict[str, Any]:
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
    row = {
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
        "work_items": made.metadata.num_warps * made.metadata.warp_size,
    }
    if process is not None:
        said = process.properties(binary, name)
        row["driver"] = said
        row["differences"] = differences(row, said)
        if process.compiles:
            row.update(_compile_seconds(made.asm["cl"], target, made.metadata.build_flags, process, rounds))
    return row


def differences(row: dict[str, Any], said: dict[str, int]) -> list[str]:
    """Where the driver's properties of a kernel and the binary's own record are not the same, in words."""
    pairs = {
        "spilled bytes": (said["spill_size"], row["spill_bytes"]),
        "sub-group size": (said["sub_group_size"], row["simd"]),
        "local memory": (said["local_mem_size"], row["shared_bytes"]),
    }
    found = [f"{what}: {driver}, the binary says {own}" for what, (driver, own) in pairs.items() if driver != own]
    if said["max_work_group_size"] < row["work_items"]:
        found.append(f"work-group limit: {said['max_work_group_size']}, the kernel has {row['work_items']}")
    return found


def _compile_seconds(
    source: str, target: str, flags: str, process: DriverProcess, rounds: int
) -> dict[str, float | int]:
    """Median seconds from OpenCL C to native code by the driver in its process and by ocloc, taken by turns."""
    from anyxpu.triton.lower import INTEL_GPU

    taken: list[float] = []  # the driver's process holds its own clock: what travels between the two is not compiling

    def by_driver() -> None:
        taken.append(process.compile_seconds(source, f"{INTEL_GPU.options} {flags}".rstrip()))

    def by_ocloc() -> None:
        ocloc.zebin(ocloc.spirv(source, target, INTEL_GPU.options), target, flags)

    samples = alternate({"driver": by_driver, "ocloc": by_ocloc}, rounds=rounds, warmup=0)
    return {
        "driver_compile_s": statistics.median(taken),
        "ocloc_compile_s": samples["ocloc"].median,
        "compile_rounds": rounds,
    }


def _plain(key: str, heading: str) -> Column:
    return Column(heading, lambda row: str(row[key]))


def _said(key: str, heading: str) -> Column:
    """A property that the driver gives; empty where there is no driver."""
    return Column(heading, lambda row: str(row["driver"][key]) if "driver" in row else "")


def _seconds(key: str, heading: str) -> Column:
    return Column(heading, lambda row: f"{row[key]:.2f}" if key in row else "")


_COLUMNS = (
    Column("case", lambda row: row["case"], left=True),
    Column("target", lambda row: row["target"], left=True),
    Column("s", lambda row: f"{row['seconds']:.2f}"),
    _plain("grf", "GRF"),
    _plain("spill_bytes", "spilled"),
    _plain("simd", "SIMD"),
    _plain("dpas", "dpas"),
    _plain("prefetches", "pre-\nfetch"),
    _plain("block_loads", "2-D"),
    _plain("send", "send"),
    _plain("instructions", "all"),
    _plain("shared_bytes", "SLM"),
    _plain("barriers", "barriers"),
    # Of the driver's own figures those that the binary has too show only where they differ; the JSON has all.
    _said("max_work_group_size", "group"),
    _said("private_mem_size", "private"),
    Column("differs", lambda row: "; ".join(row["differences"]) or "no" if "driver" in row else ""),
    _seconds("driver_compile_s", "driver s"),
    _seconds("ocloc_compile_s", "ocloc s"),
)
