# The minimum of a byte and a constant was a call that the compiler found ambiguous.
import triton
import triton.language as tl

from tests.fuzz_functions import add, bit_and, compose, keep_last, larger_first, multiply
from tests.fuzz_programs import unpacked


@triton.jit
def kernel(x1, x5, x13):
    v2 = tl.arange(0, 4) * 1
    v3 = tl.load(x1 + v2)
    v4 = v3 + v3
    v6 = tl.load(x5 + tl.program_id(0))
    v7 = v6.to(tl.float32)
    v8 = v6 - v6
    v9 = v8 + v6
    v10 = v9 + v9
    v11 = v10 + v10
    v12 = tl.minimum(v11, v8).to(tl.int8)
    tl.store(x13 + tl.program_id(0), v12)


ARGUMENTS = [
    ("x1", "f32", unpacked("float32", ("c-muNIN-p*zyQKP&~N|%5zqpG")), 0, False, False),
    ("x5", "i8", unpacked("int8", ("c-s2|008{}{Q")), 0, False, False),
    ("x13", "i8", unpacked("int8", ("c-mtJ000O82m")), 0, True, False),
]
GRID = 1
OPTIONS = {"enable_fp_fusion": False}
EXPECTED = {
    "x13": unpacked("int8", ("c-s2_008j-@c")),
}
