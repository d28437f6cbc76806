"""tl.device_print: the lines that Triton's own GPU backends print, once a program and element."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.not_simulated("kernels print nothing there")

PROGRAM = """
import torch, triton, triton.language as tl

@triton.jit
def numbers(x, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    tl.device_print("i32", v)
    tl.device_print("hex: ", v, hex=True)
    tl.device_print("i64 hex", v.to(tl.int64), hex=True)
    tl.device_print("u8 hex", v.to(tl.uint8), hex=True)
    tl.device_print("u8", v.to(tl.uint8))
    tl.device_print("u32", v.to(tl.uint32))
    tl.device_print("u64", v.to(tl.uint64))
    tl.device_print("i1", v > 0)
    tl.device_print("f16", v.to(tl.float16))
    tl.device_print("f16 hex", v.to(tl.float16), hex=True)
    tl.device_print("bf16", v.to(tl.bfloat16))
    tl.device_print("f32 hex", v.to(tl.float32), hex=True)
    tl.device_print("f64", v.to(tl.float64))

@triton.jit
def shapes(x):
    tl.device_print("2d", tl.arange(0, 4)[:, None] * 100 + tl.arange(0, 16)[None, :])
    tl.device_print("ones", tl.full((1, 2, 1), 7, tl.int32))
    tl.device_print("few", tl.arange(0, 2))

@triton.jit
def scalars(x, n):
    tl.device_print("scalar", n)
    tl.device_print("scalar f32", tl.load(x).to(tl.float32))
    tl.device_print("two", n, tl.program_id(0))
    tl.device_print("both", tl.arange(0, 2), n)
    tl.device_print('100% of "nothing" \\\\ at all')
    print("by print:", n)

x = torch.arange(-3, 29, dtype=torch.int32, device="xpu")
numbers[(1,)](x, 32)
shapes[(1,)](x)
scalars[(2,)](x, 42)
torch.xpu.synchronize()
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    program = tmp_path_factory.mktemp("printing") / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return Counter(line for line in done.stdout.splitlines() if line)


def _with(printed: Counter[str], label: str) -> dict[str, int]:
    return {line: count for line, count in printed.items() if f") {label}: " in line}


@pytest.mark.parametrize(
    ("label", "form"),
    [
        ("i32", lambda v: f"{v}"),
        ("hex", lambda v: f"0x{v % 2**32:08x}"),
        ("i64 hex", lambda v: f"0x{v % 2**64:016x}"),
        ("u8 hex", lambda v: f"0x{v % 2**8:02x}"),
        ("u8", lambda v: f"{v % 2**8}"),
        ("u32", lambda v: f"{v % 2**32}"),
        ("u64", lambda v: f"{v % 2**64}"),
        ("i1", lambda v: f"{int(v > 0)}"),
        ("f16", lambda v: f"{float(v):f}"),
        ("f16 hex", lambda v: f"0x{_bits(v, 'float16', 'int16'):04x}"),
        ("bf16", lambda v: f"{float(v):f}"),
        ("f32 hex", lambda v: f"0x{_bits(v, 'float32', 'int32'):08x}"),
        ("f64", lambda v: f"{float(v):f}"),
    ],
)
def test_every_type_is_printed_once_an_element(printed: Counter[str], label: str, form) -> None:
    want = {f"pid (0, 0, 0) idx ({i:2}) {label}: {form(i - 3)}": 1 for i in range(32)}
    assert _with(printed, label) == want


def _bits(value: int, float_type: str, integer_type: str) -> int:
    import torch

    bits = torch.tensor(float(value), dtype=getattr(torch, float_type)).view(getattr(torch, integer_type))
    return int(bits) % 2 ** (bits.element_size() * 8)


def test_indices_are_those_of_each_dimension(printed: Counter[str]) -> None:
    two = {f"pid (0, 0, 0) idx ({i}, {j:2}) 2d: {i * 100 + j}": 1 for i in range(4) for j in range(16)}
    assert _with(printed, "2d") == two
    assert _with(printed, "ones") == {f"pid (0, 0, 0) idx (0, {j}, 0) ones: 7": 1 for j in range(2)}
    assert _with(printed, "few") == {f"pid (0, 0, 0) idx ({j}) few: {j}": 1 for j in range(2)}


def test_scalars_have_no_index_and_several_operands_a_number(printed: Counter[str]) -> None:
    for p in range(2):
        assert printed[f"pid ({p}, 0, 0) idx () scalar: 42"] == 1
        assert printed[f"pid ({p}, 0, 0) idx () scalar f32: -3.000000"] == 1
        assert printed[f"pid ({p}, 0, 0) idx () two: (operand 0) 42"] == 1
        assert printed[f"pid ({p}, 0, 0) idx () two: (operand 1) {p}"] == 1
        assert printed[f"pid ({p}, 0, 0) idx (1) both: (operand 0) 1"] == 1
        assert printed[f"pid ({p}, 0, 0) idx () both: (operand 1) 42"] == 1
        assert printed[f"pid ({p}, 0, 0) idx () by print: 42"] == 1


def test_text_alone_is_printed_as_it_is(printed: Counter[str]) -> None:
    assert printed['pid (0, 0, 0) 100% of "nothing" \\ at all'] == 1
