"""Native code for Intel GPUs, compiled here for devices that are not."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anyxpu import get_ocloc, ocloc
from anyxpu.errors import AnyxpuError, KernelError
from anyxpu.triton import native
from anyxpu.triton.compiler import IntelBackend


@triton.jit
def softmax_kernel(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + i, i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + tl.program_id(0) * n + i, e / tl.sum(e, 0), i < n)


@triton.jit
def product_kernel(a, b, o, K, B: tl.constexpr, PRECISION: tl.constexpr):
    m, n = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    total = tl.zeros((B, B), tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        x, y = tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * B + n)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=total.dtype)
    tl.store(o + m * B + n, total)


@triton.jit
def quotient_kernel(x, y, o, B: tl.constexpr, EXACT: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, tl.sqrt_rn(tl.div_rn(a, b)) if EXACT else tl.sqrt(a / b))


@triton.jit
def atomic_kernel(x, B: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, B), 1.0)


SOURCES = {
    "atomic_kernel": (atomic_kernel, {"x": "*fp32", "B": "constexpr"}, {"B": 64}),
    **{
        name: (
            quotient_kernel,
            {"x": "*fp32", "y": "*fp32", "o": "*fp32", "B": "constexpr", "EXACT": "constexpr"},
            {"B": 64, "EXACT": name == "exact_quotient_kernel"},
        )
        for name in ("exact_quotient_kernel", "quick_quotient_kernel")
    },
    "softmax_kernel": (softmax_kernel, {"x": "*fp32", "o": "*fp32", "n": "i32", "B": "constexpr"}, {"B": 1024}),
    "product_kernel": (
        product_kernel,
        {"a": "*fp16", "b": "*fp16", "o": "*fp32", "K": "i32", "B": "constexpr", "PRECISION": "constexpr"},
        {"B": 32, "PRECISION": "ieee"},
    ),
    "int8_product_kernel": (
        product_kernel,
        {"a": "*i8", "b": "*i8", "o": "*i32", "K": "i32", "B": "constexpr", "PRECISION": "constexpr"},
        {"B": 64, "PRECISION": "ieee"},
    ),
    "tf32_product_kernel": (
        product_kernel,
        {"a": "*fp32", "b": "*fp32", "o": "*fp32", "K": "i32", "B": "constexpr", "PRECISION": "constexpr"},
        {"B": 32, "PRECISION": "tf32"},
    ),
}


def compile_for(arch: dict[str, str], name: str = "softmax_kernel", **options):
    function, signature, constants = SOURCES[name]
    source = ASTSource(function, signature, constants, {})
    return triton.compile(source, target=GPUTarget("xpu", arch, 16), options=options)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A Triton cache of its own, so that everything is compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def fake_ocloc(folder: Path, script: str) -> str:
    path = folder / "ocloc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("device", ocloc.TARGETS)
def test_every_target_gets_native_code_through_every_stage(device, name, ocloc_program, fresh):
    compiled = compile_for({"device": device}, name)
    assert {"ttir", "ttgir", "cl", "spv", "zebin"} <= set(compiled.asm)
    assert compiled.asm["spv"].startswith(ocloc.SPIRV_MAGIC)
    about = ocloc.inspect(compiled.asm["zebin"], f"kernel_{SOURCES[name][0].__name__}")
    lanes = (
        8 if device == "dg2" and name in ("product_kernel", "int8_product_kernel") else 16
    )  # dg2's matrix engine takes sub-groups of 8
    assert about.simd_size == lanes and about.grf_count % 32 == 0 and about.spill_bytes == 0
    assert compiled.metadata.n_spills == 0


PRODUCTS = [(d, n) for d in ocloc.TARGETS for n in SOURCES if n.endswith("product_kernel")]


@pytest.mark.parametrize(("device", "name"), [p for p in PRODUCTS if p != ("dg2", "tf32_product_kernel")])
def test_products_use_the_matrix_engine(device, name, ocloc_program, fresh):
    compiled = compile_for({"device": device}, name)
    assert ocloc.inspect(compiled.asm["zebin"], "kernel_product_kernel").dpas
    assert "dpas" in ocloc.disassemble(compiled.asm["zebin"], device, "kernel_product_kernel")


@pytest.mark.rotates(5)
@pytest.mark.parametrize(("device", "name"), [p for p in PRODUCTS if p != ("dg2", "tf32_product_kernel")])
def test_operands_of_the_matrix_engine_are_prefetched(device, name, ocloc_program, fresh):
    kernel = "kernel_product_kernel"
    for stages, wanted in ((1, False), (2, True)):
        compiled = compile_for({"device": device}, name, num_stages=stages)
        assembly = ocloc.disassemble(compiled.asm["zebin"], device, kernel)
        assert (ocloc.prefetches(assembly) >= 2) == (ocloc.prefetches(assembly) > 0) == wanted
        assert (OPENCL_PREFETCH in extended_instructions(compiled.asm["spv"])) == wanted
        assert ocloc.inspect(compiled.asm["zebin"], kernel).spill_bytes == 0


@pytest.mark.parametrize("device", ocloc.TARGETS)
@pytest.mark.parametrize("name", ["product_kernel", "int8_product_kernel"])
def test_operands_come_by_block_loads_where_the_device_has_them(device, name, ocloc_program, fresh):
    compiled = compile_for({"device": device}, name)
    assembly = ocloc.disassemble(compiled.asm["zebin"], device, "kernel_product_kernel")
    assert ("load_block2d" in assembly) == (device != "dg2")


# Its number among OpenCL's instructions for SPIR-V, which every driver knows.
OPENCL_PREFETCH = 185


def extended_instructions(module: bytes) -> set[int]:
    """The numbers of the instructions that a SPIR-V module takes from OpenCL's set."""
    words, found, at = struct.unpack(f"<{len(module) // 4}I", module), set(), 5
    while at < len(words):
        if words[at] & 0xFFFF == 12:  # OpExtInst
            found.add(words[at + 4])
        at += words[at] >> 16
    return found


@pytest.mark.parametrize("device", ocloc.TARGETS)
def test_quotients_and_roots_to_the_nearest_are_asked_of_the_compiler(device, ocloc_program, fresh):
    """By default it allows itself errors, and 6 / 3 may be below 2."""
    exact, quick = (compile_for({"device": device}, f"{kind}_quotient_kernel") for kind in ("exact", "quick"))
    flags = [ocloc.build_flags(made.asm["zebin"]) for made in (exact, quick)]
    assert flags == [native.ROUNDING, ""] == [exact.metadata.build_flags, quick.metadata.build_flags]
    lines = [
        len(ocloc.disassemble(made.asm["zebin"], device, "kernel_quotient_kernel").splitlines())
        for made in (exact, quick)
    ]
    assert lines[0] > lines[1] + 10


@pytest.mark.parametrize(("mode", "registers"), [("128", 128), ("256", 256), ("auto", 128)])
def test_a_grf_mode_reaches_the_compiler(mode, registers, ocloc_program, fresh):
    compiled = compile_for({"device": "pvc"}, grf_mode=mode)
    assert compiled.metadata.n_regs == registers
    assert compiled.metadata.build_flags == ocloc.build_flags(compiled.asm["zebin"]) == native.GRF_OPTIONS[mode]
    assert ocloc.inspect(compiled.asm["zebin"], "kernel_softmax_kernel").grf_count == registers


@pytest.mark.parametrize("switch", [None, "option", "variable", "compiler"])
def test_the_driver_of_a_gpu_that_is_here_makes_its_code_unless_ocloc_is_asked_to(
    switch, ocloc_program, fresh, monkeypatch
):
    from anyxpu.triton import driver

    finished = []

    def finish(module, flags, name, work_items):
        finished.append(native.module_format(module))
        return ocloc.zebin(module, "bmg", flags)

    monkeypatch.setattr(driver, "finish", finish)
    monkeypatch.setenv("TRITON_XPU_GEN_NATIVE_CODE", "1" if switch == "variable" else "0")
    monkeypatch.setenv("ANYXPU_GPU_COMPILER", "ocloc" if switch == "compiler" else "driver")
    options = {"generate_native_code": True} if switch == "option" else {}
    binary = compile_for({"type": "gpu", "target": "bmg"}, **options).asm["zebin"]
    assert native.module_format(binary) == "native"
    assert set(finished) == (set() if switch else {"spirv"})


def test_a_compiler_that_there_is_not_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("ANYXPU_GPU_COMPILER", "icx")
    with pytest.raises(AnyxpuError, match=r"ANYXPU_GPU_COMPILER='icx'.*driver, ocloc"):
        IntelBackend(GPUTarget("xpu", {"type": "gpu", "target": "bmg"}, 16)).hash()


def test_a_wrong_mode_is_refused_by_name():
    backend = IntelBackend(GPUTarget("xpu", {"device": "bmg"}, 16))
    with pytest.raises(ValueError, match=r"grf_mode='512'.*default, 128, 256, auto"):
        backend.parse_options({"grf_mode": "512"})


# --- the choice of registers, with a compiler that answers as it is told


@pytest.fixture
def spills(monkeypatch):
    """Sets the spilled bytes by build flags; a missing entry is a binary without code. Gives what was compiled."""
    answers: dict[str, int] = {}
    built: list[str] = []

    def build(module, device, options):
        built.append(options)
        return options.encode()

    def inspect(binary, kernel):
        if binary.decode() not in answers:
            raise ocloc.DegenerateBinary("no code")
        return ocloc.KernelInfo(128, 16, answers[binary.decode()], 8, 0, 0, False)

    monkeypatch.setattr(native.ocloc, "zebin", build)
    monkeypatch.setattr(native.ocloc, "inspect", inspect)
    return answers, built


LARGE = native.GRF_OPTIONS["256"]


@pytest.mark.parametrize(
    ("default", "large", "warps", "mode", "chosen", "compiles"),
    [
        (0, 0, 4, "default", "", 1),
        (native.SPILL_LIMIT, 0, 4, "default", "", 1),
        (5000, 100, 4, "default", LARGE, 2),
        (5000, 6000, 4, "default", "", 2),
        (5000, 0, 64, "default", "", 1),
        (None, 0, 4, "default", LARGE, 2),
        (5000, 100, 4, "256", LARGE, 1),
    ],
)
def test_a_kernel_that_spills_is_compiled_again_with_more_registers(
    default, large, warps, mode, chosen, compiles, spills
):
    answers, built = spills
    answers.update({flags: n for flags, n in (("", default), (LARGE, large)) if n is not None})
    made = native.build(b"spirv", "k", "pvc", mode, warps)
    assert made.flags == chosen and len(built) == compiles
    assert made.spills == answers[chosen]


def test_no_code_at_all_is_an_error(spills):
    with pytest.raises(ocloc.DegenerateBinary):
        native.build(b"spirv", "k", "pvc", "default", 4)


def test_a_binary_that_does_not_describe_itself_is_warned_of(spills, monkeypatch):
    monkeypatch.setattr(native.ocloc, "inspect", lambda binary, kernel: None)
    with pytest.warns(UserWarning, match="ze_info"):
        assert native.build(b"spirv", "k", "pvc", "default", 4).spills == 0


def test_a_damaged_binary_is_told_from_code():
    with pytest.raises(AnyxpuError, match="damaged"):
        native.module_format(b"\0\0\0\0")


# --- a compiler that is missing, fails or hangs


def test_a_missing_compiler_is_named_with_the_way_out(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("ANYXPU_OCLOC", str(tmp_path / "none"))
    with pytest.raises(KernelError, match=r"softmax_kernel.*ANYXPU_OCLOC=.*none is not a program.*anyxpu get-ocloc"):
        compile_for({"device": "bmg"})


def test_a_failing_compiler_is_quoted_and_the_source_kept(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("ANYXPU_OCLOC", fake_ocloc(tmp_path, "echo 'no such device'; exit 3"))
    with pytest.raises(KernelError, match=r"(?s)status 3.*no such device") as caught:
        compile_for({"device": "bmg"})
    assert "kernel_softmax_kernel" in Path(caught.value.source).read_text()


def test_a_hanging_compiler_is_stopped(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("ANYXPU_OCLOC", fake_ocloc(tmp_path, "exec sleep 600"))
    monkeypatch.setenv("ANYXPU_OCLOC_TIMEOUT", "0.3")
    with pytest.raises(KernelError, match=r"longer than 0\.3 s.*ANYXPU_OCLOC_TIMEOUT"):
        compile_for({"device": "bmg"})


def test_an_unknown_device_is_refused_by_name(ocloc_program, fresh):
    with pytest.raises(KernelError, match=r"'gen99'; known are dg2, pvc, bmg"):
        compile_for({"device": "gen99"})


# --- anyxpu get-ocloc


def test_get_ocloc_says_what_it_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ocloc.OclocError, match=r"needs apt-get.*ANYXPU_OCLOC"):
        get_ocloc.install(tmp_path / "made")
    for tool in ("apt-get", "dpkg-deb"):
        (tmp_path / tool).write_text("#!/bin/sh\necho http://archive.example/ubuntu\n")
        (tmp_path / tool).chmod(0o755)
    with pytest.raises(ocloc.OclocError, match=r"Debian archive.*ANYXPU_OCLOC"):
        get_ocloc.install(tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(not os.environ.get("ANYXPU_FULL"), reason="ANYXPU_FULL=1 downloads the compiler")
def test_get_ocloc_installs_a_compiler_that_runs(tmp_path):
    program = get_ocloc.install(tmp_path / "made")
    assert program == tmp_path / "made/bin/ocloc"
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_a_damaged_binary_is_one_error_whatever_is_wrong_with_it(ocloc_program, fresh):
    whole = compile_for({"device": "bmg"}, "softmax_kernel").asm["zebin"]
    kernel = "kernel_softmax_kernel"
    assert ocloc.inspect(whole, kernel) is not None
    random = np.random.default_rng()
    damaged = [b"", b"\x7fELF", whole[:100], b"not an ELF file at all" * 100]
    damaged += [whole[: random.integers(len(whole))] for _ in range(100)]
    for _ in range(300):
        bytes_of = bytearray(whole)
        for at in random.integers(len(whole), size=random.integers(1, 50)):
            bytes_of[at] = random.integers(256)
        damaged.append(bytes(bytes_of))
    damaged += [whole.replace(b"grf_count", name) for name in (b"grf_cxunt", b"- : - [ { ")]
    refused = 0
    for binary in damaged:
        try:
            ocloc.inspect(binary, kernel)
            ocloc.build_flags(binary)
        except ocloc.DegenerateBinary:
            refused += 1
    assert refused >= 50
