"""``.ttgir`` files as source: the number of warps is the file's, and buffers in local memory are served."""

from __future__ import annotations

from pathlib import Path
from string import Template

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import ASTSource

from anyxpu.errors import UnsupportedOperation

# ruff: noqa: E501
FILE = Template("""
#blocked = #ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [2, $lanes], warpsPerCTA = [$warps, 1], order = [1, 0]}>
#turned = #ttg.blocked<{sizePerThread = [2, 1], threadsPerWarp = [$lanes, 2], warpsPerCTA = [1, $warps], order = [0, 1]}>
#shared = #ttg.swizzled_shared<{vec = 2, perPhase = 1, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = $warps : i32, "ttg.threads-per-warp" = $threads : i32} {
  tt.func public @through_buffers(%x: !tt.ptr<$type>, %o: !tt.ptr<$type>) {
    %c32 = arith.constant dense<32> : tensor<16x1xi32, #blocked>
    %two = arith.constant dense<2.0> : tensor<16x32x$type, #turned>
    %r = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32, #ttg.slice<{dim = 1, parent = #blocked}>>
    %c = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32, #ttg.slice<{dim = 0, parent = #blocked}>>
    %r1 = tt.expand_dims %r {axis = 1 : i32} : tensor<16xi32, #ttg.slice<{dim = 1, parent = #blocked}>> -> tensor<16x1xi32, #blocked>
    %c1 = tt.expand_dims %c {axis = 0 : i32} : tensor<32xi32, #ttg.slice<{dim = 0, parent = #blocked}>> -> tensor<1x32xi32, #blocked>
    %r2 = arith.muli %r1, %c32 : tensor<16x1xi32, #blocked>
    %r3 = tt.broadcast %r2 : tensor<16x1xi32, #blocked> -> tensor<16x32xi32, #blocked>
    %c3 = tt.broadcast %c1 : tensor<1x32xi32, #blocked> -> tensor<16x32xi32, #blocked>
    %at = arith.addi %r3, %c3 : tensor<16x32xi32, #blocked>
    %xs = tt.splat %x : !tt.ptr<$type> -> tensor<16x32x!tt.ptr<$type>, #blocked>
    %xp = tt.addptr %xs, %at : tensor<16x32x!tt.ptr<$type>, #blocked>, tensor<16x32xi32, #blocked>
    %os = tt.splat %o : !tt.ptr<$type> -> tensor<16x32x!tt.ptr<$type>, #blocked>
    %op = tt.addptr %os, %at : tensor<16x32x!tt.ptr<$type>, #blocked>, tensor<16x32xi32, #blocked>
    %v = tt.load %xp : tensor<16x32x!tt.ptr<$type>, #blocked>
    %a = ttg.local_alloc %v : (tensor<16x32x$type, #blocked>) -> !ttg.memdesc<16x32x$type, #shared, #smem>
    %b = ttg.local_alloc : () -> !ttg.memdesc<16x32x$type, #shared, #smem, mutable>
    %w = ttg.local_load %a : !ttg.memdesc<16x32x$type, #shared, #smem> -> tensor<16x32x$type, #turned>
    %d = arith.mulf %w, %two : tensor<16x32x$type, #turned>
    ttg.local_store %d, %b : tensor<16x32x$type, #turned> -> !ttg.memdesc<16x32x$type, #shared, #smem, mutable>
    %y = ttg.local_load %b : !ttg.memdesc<16x32x$type, #shared, #smem, mutable> -> tensor<16x32x$type, #blocked>
    ttg.local_store %w, %b : tensor<16x32x$type, #turned> -> !ttg.memdesc<16x32x$type, #shared, #smem, mutable>
    %z = ttg.local_load %b : !ttg.memdesc<16x32x$type, #shared, #smem, mutable> -> tensor<16x32x$type, #blocked>
    ttg.local_dealloc %b : !ttg.memdesc<16x32x$type, #shared, #smem, mutable>
    %s = arith.addf %y, %z : tensor<16x32x$type, #blocked>
    tt.store %op, %s : tensor<16x32x!tt.ptr<$type>, #blocked>
    tt.return
  }
}
""")


def _compiled(path: Path):
    return triton.compile(str(path), target=triton.runtime.driver.active.get_current_target())


@pytest.mark.not_simulated("compares results")
@pytest.mark.parametrize("type", ["f32", "f16"])
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_buffers_of_a_file_hold_what_is_stored(tmp_path: Path, warps: int, type: str) -> None:
    path = tmp_path / "file.ttgir"
    path.write_text(FILE.substitute(warps=warps, lanes=8, threads=16, type=type))
    kernel = _compiled(path)
    assert (kernel.metadata.num_warps, kernel.metadata.warp_size) == (warps, 16)
    x = torch.randn(16, 32, dtype={"f32": torch.float32, "f16": torch.float16}[type])
    o = torch.zeros(16, 32, dtype=x.dtype, device="xpu")
    kernel[(1, 1, 1)](x.to("xpu"), o)
    torch.testing.assert_close(o.cpu(), x * 3)


@triton.jit
def rows_kernel(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n, other=0.0)
    tl.store(o + i, v - tl.max(v, 0), i < n)


@pytest.mark.not_simulated("compares results")
def test_a_kernel_of_ours_goes_round_by_its_file(tmp_path: Path) -> None:
    signature = {"x": "*fp32", "o": "*fp32", "n": "i32", "B": "constexpr"}
    target = triton.runtime.driver.active.get_current_target()
    first = triton.compile(ASTSource(rows_kernel, signature, {"B": 128}, {}), target=target, options={"num_warps": 2})
    x, mine, theirs = torch.randn(300, device="xpu"), torch.zeros(300, device="xpu"), torch.zeros(300, device="xpu")
    first[(3, 1, 1)](x, theirs, 300, 128)
    for extension in ("ttir", "ttgir"):
        path = tmp_path / f"kernel.{extension}"
        path.write_text(first.asm[extension])
        _compiled(path)[(3, 1, 1)](x, mine, 300)
        assert torch.equal(mine.cpu(), theirs.cpu())


def test_a_part_of_a_buffer_is_refused_by_name(tmp_path: Path) -> None:
    text = FILE.substitute(warps=1, lanes=8, threads=16, type="f32")
    part = "    %p = ttg.memdesc_trans %a {order = array<i32: 1, 0>} : !ttg.memdesc<16x32xf32, #shared, #smem> -> "
    part += "!ttg.memdesc<32x16xf32, #shared_t, #smem>\n    %b = ttg.local_alloc"
    turned = "#shared_t = #ttg.swizzled_shared<{vec = 2, perPhase = 1, maxPhase = 4, order = [0, 1]}>\n#smem ="
    path = tmp_path / "file.ttgir"
    path.write_text(text.replace("    %b = ttg.local_alloc", part, 1).replace("#smem =", turned, 1))
    with pytest.raises(UnsupportedOperation, match=r"ttg\.memdesc_trans"):
        _compiled(path)


# A lane gets pointers of another one, from this or that register: what chooses must not leave lanes out of the shuffle.
MOVED = """
#a = #ttg.blocked<{sizePerThread = [1, 1, 1], threadsPerWarp = [1, 8, 2], warpsPerCTA = [1, 1, 1], order = [2, 1, 0]}>
#b = #ttg.blocked<{sizePerThread = [2, 1, 1], threadsPerWarp = [1, 8, 2], warpsPerCTA = [1, 1, 1], order = [0, 2, 1]}>
#line = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [16], warpsPerCTA = [1], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 1 : i32, "ttg.threads-per-warp" = 16 : i32} {
  tt.func public @pointers_moved(%x: !tt.ptr<f32>, %i: !tt.ptr<i32>, %o: !tt.ptr<f32>) {
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #line>
    %at = tt.reshape %r : tensor<64xi32, #line> -> tensor<2x16x2xi32, #a>
    %is = tt.splat %i : !tt.ptr<i32> -> tensor<2x16x2x!tt.ptr<i32>, #a>
    %ip = tt.addptr %is, %at : tensor<2x16x2x!tt.ptr<i32>, #a>, tensor<2x16x2xi32, #a>
    %from = tt.load %ip : tensor<2x16x2x!tt.ptr<i32>, #a>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<2x16x2x!tt.ptr<f32>, #a>
    %xp = tt.addptr %xs, %from : tensor<2x16x2x!tt.ptr<f32>, #a>, tensor<2x16x2xi32, #a>
    %xq = ttg.convert_layout %xp : tensor<2x16x2x!tt.ptr<f32>, #a> -> tensor<2x16x2x!tt.ptr<f32>, #b>
    %v = tt.load %xq : tensor<2x16x2x!tt.ptr<f32>, #b>
    %w = ttg.convert_layout %v : tensor<2x16x2xf32, #b> -> tensor<2x16x2xf32, #a>
    %os = tt.splat %o : !tt.ptr<f32> -> tensor<2x16x2x!tt.ptr<f32>, #a>
    %op = tt.addptr %os, %at : tensor<2x16x2x!tt.ptr<f32>, #a>, tensor<2x16x2xi32, #a>
    tt.store %op, %w : tensor<2x16x2x!tt.ptr<f32>, #a>
    tt.return
  }
}
"""


@pytest.mark.not_simulated("compares results")
def test_pointers_move_to_other_lanes(tmp_path: Path) -> None:
    path = tmp_path / "moved.ttgir"
    path.write_text(MOVED)
    x, places = torch.randn(64), torch.randperm(64)
    o = torch.zeros(64, device="xpu")
    _compiled(path)[(1, 1, 1)](x.to("xpu"), places.int().to("xpu"), o)
    assert torch.equal(o.cpu(), x[places])
