"""TTGIR text to IR, layouts, and what of an index is left to the C compiler to overflow."""

from __future__ import annotations

import itertools
import math

import pytest

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import layout as layouts
from anyxpu.triton.elements import bit_expression
from anyxpu.triton.ir import Encoding, Pointer, Scalar, Tensor, walk
from anyxpu.triton.layout import BitMap, Layout
from anyxpu.triton.lower import INTEL_CPU, render
from anyxpu.triton.parse import ParseError, parse

BLOCKED = (
    "#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 8], warpsPerCTA = [2, 1], order = [1, 0]}>\n"
)
HEAD = (
    'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 2 : i32, ttg.target = "xpu", '
    '"ttg.threads-per-warp" = 16 : i32} {\n'
)


def module(body: str, arguments: str = "", aliases: str = BLOCKED) -> str:
    return (
        f"{aliases}{HEAD}  tt.func public @k({arguments}) attributes {{noinline = false}} {{\n{body}\n"
        "    tt.return\n  }\n}\n"
    )


def ops(body: str, arguments: str = "") -> list:
    function = parse(module(body, arguments)).kernel
    return list(walk(function.body))


def test_types_of_arguments_with_attributes():
    f = parse(module("", "%a: !tt.ptr<bf16> {tt.divisibility = 16 : i32}, %n: i64, %e: f32")).kernel
    assert [a.type for a in f.args] == [Pointer(Scalar("bf16")), Scalar("i64"), Scalar("f32")]
    assert f.name == "k" and f.public


def test_a_tensor_type_has_shape_element_and_layout():
    layout = "#ttg.slice<{dim = 1, parent = #blocked}>"
    (op, _) = ops(f"    %0 = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32, {layout}>")
    t = op.result.type
    assert isinstance(t, Tensor) and t.shape == (8,) and t.element == Scalar("i32")
    assert t.encoding.kind == "slice" and t.encoding["parent"]["warpsPerCTA"] == (2, 1)
    assert op.attrs == {"end": 8, "start": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dense<-3> : tensor<4x8xi32, #blocked>", -3),
        ("true", 1),
        ("false", 0),
        ("-7 : i64", -7),
        ("1.500000e+00 : f32", 1.5),
        ("0x7F800000 : f32", math.inf),
        ("dense<0xFF80> : tensor<4x8xbf16, #blocked>", -math.inf),
        ("dense<true> : tensor<4x8xi1, #blocked>", 1),
        ("0x7FF0000000000000 : f64", math.inf),
        ("4294967295 : i64", 4294967295),
    ],
)
def test_constants(text, value):
    op = ops(f"    %c = arith.constant {text}")[0]
    assert op.attrs["value"] == value


def test_nan_constant():
    assert math.isnan(ops("    %c = arith.constant 0x7FC00000 : f32")[0].attrs["value"])


def test_loads_keep_operands_and_hints_and_give_the_pointee():
    body = """
    %m = arith.constant dense<true> : tensor<4x8xi1, #blocked>
    %z = arith.constant dense<0.000000e+00> : tensor<4x8xf16, #blocked>
    %p = tt.splat %a : !tt.ptr<f16> -> tensor<4x8x!tt.ptr<f16>, #blocked>
    %v = tt.load %p, %m, %z evictionPolicy = evict_last {isVolatile = true} : tensor<4x8x!tt.ptr<f16>, #blocked>
    """
    load = ops(body, "%a: !tt.ptr<f16>")[3]
    assert [o.name for o in load.operands] == ["p", "m", "z"]
    assert load.attrs == {"evictionPolicy": "evict_last", "isVolatile": True}
    assert load.result.type.element == Scalar("f16")


def test_loops_branches_and_several_results():
    body = """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %c0, %y = %c1) -> (i32, i32)  : i32 {
      %q = arith.cmpi slt, %x, %y : i32
      %s:2 = scf.if %q -> (i32, i32) {
        scf.yield %y, %x : i32, i32
      } else {
        scf.yield %x, %i : i32, i32
      }
      scf.yield %s#1, %s#0 : i32, i32
    } {tt.num_stages = 2 : i32}
    scf.for %i = %c0 to %n step %c1  : i32 {
    }
    %t = arith.addi %r#0, %r#1 : i32
    """
    found = ops(body, "%n: i32")
    loop = next(o for o in found if o.name == "scf.for")
    assert len(loop.results) == 2 and len(loop.operands) == 5 and loop.attrs == {"tt.num_stages": 2}
    total = next(o for o in found if o.name == "arith.addi")
    assert total.operands == loop.results


def test_blocks_and_branches():
    body = """
    %c = arith.constant true
    cf.cond_br %c, ^bb1(%n : i32), ^bb2
  ^bb1(%k: i32):  // pred: ^bb0
    cf.br ^bb2
  ^bb2:  // 2 preds: ^bb0, ^bb1"""
    blocks = parse(module(body, "%n: i32")).kernel.body.blocks
    assert [b.label for b in blocks] == ["entry", "^bb1", "^bb2"]
    assert blocks[0].ops[-1].successors[0][0] == "^bb1" and len(blocks[1].args) == 1


def test_an_unknown_form_is_an_error_that_quotes_its_line():
    with pytest.raises(ParseError, match=r"line 4.*not defined.*arith.addi"):
        parse(module("    %0 = arith.addi %missing, %missing : i32"))


def test_an_unknown_operation_is_named_with_its_kernel():
    with pytest.raises(UnsupportedOperation, match=r"kernel k: .*tt\.no_such_op"):
        render(module("    %0 = tt.no_such_op %n : i32", "%n: i32"), INTEL_CPU)


# --- layouts


def encoding(size, threads, warps, order) -> Encoding:
    keys = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
    return Encoding("blocked", tuple(zip(keys, map(tuple, (size, threads, warps, order)), strict=True)))


def elements(layout: Layout) -> dict[int, int]:
    """How many (register, lane, warp) triples hold each offset."""
    count: dict[int, int] = {}
    bases = (*layout.reg, *layout.lane, *layout.warp)
    for bits in itertools.product((0, 1), repeat=len(bases)):
        offset = 0
        for bit, base in zip(bits, bases, strict=True):
            offset ^= base * bit
        count[offset] = count.get(offset, 0) + 1
    return count


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (64, 2), (128, 128), (2, 1024)])
def test_a_blocked_layout_holds_every_element_equally_often(shape, order):
    layout = layouts.encoded(shape, encoding((2, 4), (4, 4), (2, 2), order))
    count = elements(layout)
    assert set(count) == set(range(shape[0] * shape[1])) and len(set(count.values())) == 1
    assert len(layout.lane) == 4 and len(layout.warp) == 2


def test_neighbours_lie_in_neighbouring_lanes():
    layout = layouts.encoded((1, 1024), encoding((1, 4), (1, 16), (1, 1), (1, 0)))
    assert layout.lane == (1, 2, 4, 8) and layout.reg == (16, 32, 64, 128, 256, 512)


def test_a_slice_is_its_parent_without_a_dimension():
    parent = encoding((1, 1), (4, 4), (2, 1), (1, 0))
    sliced = layouts.encoded((64,), Encoding("slice", (("dim", 0), ("parent", parent))))
    whole = layouts.encoded((1, 64), parent)
    assert sliced == whole and elements(sliced).keys() == set(range(64))


def test_register_maps_exist_exactly_where_no_lane_needs_another():
    source = Layout((16, 32), (1, 2, 4, 8), ())
    assert layouts.register_map(source, source).is_identity
    assert layouts.register_map(source, Layout((32, 16), (1, 2, 4, 8), ())) == BitMap((2, 1))
    assert layouts.register_map(source, Layout((16, 48), (1, 2, 4, 8), ())) == BitMap((1, 3))
    assert layouts.register_map(source, Layout((16, 32), (2, 1, 4, 8), ())) is None
    assert layouts.register_map(source, Layout((16,), (1, 2, 4, 8), ()), const=32) == BitMap((1,), 2)
    assert layouts.register_map(source, Layout((64,), (1, 2, 4, 8), ())) is None


@pytest.mark.parametrize("bases", [(1, 2, 4), (4, 8, 1), (0, 16, 32), (3, 5), (2, 4, 0, 1), (8,), ()])
@pytest.mark.parametrize("const", [0, 64])
def test_bit_expressions_compute_their_map(bases, const):
    expression = bit_expression("x", bases, const)
    for x in range(1 << len(bases)):
        assert eval(expression, {"x": x}) == BitMap(bases, const).linear(x) ^ const


# --- address arithmetic


def test_only_arithmetic_that_makes_addresses_may_overflow():
    body = """
    %c3 = arith.constant dense<3> : tensor<4x8xi32, #blocked>
    %0 = tt.splat %n : i32 -> tensor<4x8xi32, #blocked>
    %1 = arith.muli %0, %c3 : tensor<4x8xi32, #blocked>
    %2 = arith.xori %0, %c3 : tensor<4x8xi32, #blocked>
    %3 = arith.muli %2, %c3 : tensor<4x8xi32, #blocked>
    %p = tt.splat %a : !tt.ptr<i32> -> tensor<4x8x!tt.ptr<i32>, #blocked>
    %q = tt.addptr %p, %1 : tensor<4x8x!tt.ptr<i32>, #blocked>, tensor<4x8xi32, #blocked>
    tt.store %q, %3 : tensor<4x8x!tt.ptr<i32>, #blocked>
    """
    text = render(module(body, "%a: !tt.ptr<i32>, %n: i32"), INTEL_CPU).text
    assert "(arg1 * 3)" in text, "an address"
    assert "(uint)3)" in text, "a value that is stored wraps"
