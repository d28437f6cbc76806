"""Which kernels Inductor makes for a CPU device, and with which blocks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from anyxpu.inductor.core import Core
from anyxpu.inductor.heuristics import along_rows, in_registers, nearest, one_row, square

CORE = Core(lanes=16, cache_bytes=32 << 10)


def config(**blocks):
    return SimpleNamespace(kwargs=blocks)


@pytest.mark.parametrize(("part", "kind"), [(2, "per"), (1, "per"), (0.5, "red")])
def test_rows_of_up_to_half_the_cache_are_kept_whole(part, kind, xpu):
    columns = int(Core.of(torch.xpu.get_device_capability()).row / part)
    x = torch.randn(33, columns)
    torch._dynamo.reset()
    got, (code, *_) = run_and_get_code(torch.compile(lambda t: torch.softmax(t, -1)), x.to(xpu))
    assert f"def triton_{kind}_fused" in code
    torch.testing.assert_close(got.cpu().double(), torch.softmax(x.double(), -1), atol=1e-6, rtol=1e-4)


def test_a_block_is_long_in_every_dimension_where_the_memory_order_is_not_known():
    offered = [config(XBLOCK=x, R0_BLOCK=r) for x, r in ((2, 2048), (1, 2048), (64, 64), (8, 512), (64, 4))]
    assert nearest(CORE, offered, {"x": 1024, "r0_": 2048}) is offered[2]
    assert nearest(CORE, offered, {"x": 1, "r0_": 1 << 20}).kwargs["R0_BLOCK"] == 2048
    few = [config(XBLOCK=1, R0_BLOCK=2048), config(XBLOCK=8, R0_BLOCK=512)]
    assert nearest(CORE, few, {"x": 64, "r0_": 4096}).kwargs["XBLOCK"] == 1


def test_a_persistent_kernel_takes_one_long_row_at_a_time():
    assert one_row(CORE, config(XBLOCK=8), {"x": 2048, "r0_": 1024}).kwargs == {"XBLOCK": 1}
    assert one_row(CORE, config(XBLOCK=32), {"x": 2048, "r0_": 64}).kwargs == {"XBLOCK": 32}
    looped = config(XBLOCK=64, R0_BLOCK=4)
    assert one_row(CORE, looped, {"x": 2048, "r0_": 1024}) is looped


def test_a_tile_in_two_dimensions_is_square_and_no_larger_than_the_tensor():
    offered = config(XBLOCK=32, YBLOCK=32)
    assert square(CORE, offered, {"x": 1024, "y": 512}).kwargs == {"XBLOCK": 64, "YBLOCK": 64}
    assert square(CORE, offered, {"x": 1024, "y": 3}).kwargs == {"XBLOCK": 64, "YBLOCK": 4}
    assert offered.kwargs == {"XBLOCK": 32, "YBLOCK": 32}
    three = config(XBLOCK=8, YBLOCK=8, ZBLOCK=8)
    assert square(CORE, three, {"x": 64, "y": 64, "z": 64}) is three


@pytest.mark.parametrize("shape", [(70, 130), (1, 500), (3, 1), (64, 64), (200, 5)])
def test_a_transposed_copy_is_right_in_every_shape(shape, xpu):
    x = torch.randn(shape)
    torch._dynamo.reset()
    got = torch.compile(lambda t: (t.t() * 2).contiguous())(x.to(xpu)).cpu()
    assert torch.equal(got, x.t() * 2) and got.is_contiguous()


@pytest.mark.parametrize(
    ("function", "rows", "apart"),
    [
        (lambda x, r: torch.nn.functional.pad((x - r).exp() * r, (0, 3)), (2, 6), True),
        (lambda x, r: torch.cat([x, r.expand_as(x)], 1).flip(-1), (3, 4), True),
        (lambda x, r: x * r[..., :1, :] + r, (2, 5), True),
        (lambda x, r: x * r.flatten()[0] + 1, (2, 5), False),
    ],
    ids=["padded", "joined", "of another row", "one number"],
)
def test_what_is_read_once_for_each_long_row_has_rows_of_its_own(function, rows, apart, xpu):
    x, r = torch.randn(*rows, 1100), torch.randn(*rows, 1)
    torch._dynamo.reset()
    got, (code, *_) = run_and_get_code(torch.compile(function), x.to(xpu), r.to(xpu))
    assert ("ynumel" in code) == apart
    torch.testing.assert_close(got.cpu().double(), function(x.double(), r.double()), atol=1e-4, rtol=1e-5)


def test_the_gradient_of_a_loss_over_a_large_vocabulary_divides_no_index(xpu):
    x, labels = torch.randn(2, 7, 3001), torch.randint(0, 3001, (2, 7))

    def loss(x, labels):
        return torch.nn.functional.cross_entropy(x[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def gradient(function, x, labels):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x, labels), x)[0]

    torch._dynamo.reset()
    got, codes = run_and_get_code(gradient, torch.compile(loss), x.to(xpu), labels.to(xpu))
    assert "ynumel" in codes[-1] and "// 3001" not in codes[-1]
    torch.testing.assert_close(got.cpu().double(), gradient(loss, x.double(), labels), atol=1e-7, rtol=1e-4)


def test_a_tile_of_rows_is_of_one_and_no_longer_than_it():
    offered = config(XBLOCK=32, YBLOCK=32)
    assert along_rows(CORE, offered, {"x": 50257, "y": 128}).kwargs == {"XBLOCK": 2048, "YBLOCK": 1}
    assert along_rows(CORE, offered, {"x": 1025, "y": 128}).kwargs == {"XBLOCK": 2048, "YBLOCK": 1}
    assert along_rows(CORE, offered, {"x": 1024, "y": 128}).kwargs == {"XBLOCK": 1024, "YBLOCK": 1}


def test_blocks_follow_the_core():
    small, large = Core(lanes=8, cache_bytes=32 << 10), Core(lanes=16, cache_bytes=130 << 10)
    assert (small.tile, small.registers, small.row, small.side) == (2048, 64, 4096, 64)
    assert (large.tile, large.registers, large.row, large.side) == (8192, 256, 16384, 128)
    assert square(large, config(XBLOCK=8, YBLOCK=8), {"x": 999, "y": 999}).kwargs == {"XBLOCK": 128, "YBLOCK": 128}
    looped = config(XBLOCK=1, R0_BLOCK=2048)
    assert in_registers(small, looped, {"x": 99, "r0_": 9999}, None).kwargs == {"XBLOCK": 1, "R0_BLOCK": 64}
    assert in_registers(large, looped, {"x": 99, "r0_": 9999}, None).kwargs == {"XBLOCK": 1, "R0_BLOCK": 256}


def test_a_device_that_says_little_is_taken_for_a_small_one(xpu):
    assert Core.of({}) == Core(16, 32 << 10)
    capability = torch.xpu.get_device_capability()
    assert (
        Core.of(capability).cache_bytes == capability["first_level_cache_size"]
        or not capability["first_level_cache_size"]
    )


@pytest.mark.parametrize("function", [torch.mm, torch._int_mm], ids=["mm", "int mm"])
@pytest.mark.rotates(3)
def test_templates_are_made_on_any_device_where_nothing_else_is_allowed(function, xpu):
    from torch._inductor import config as inductor

    make = torch.randn if function is torch.mm else lambda *s: torch.randint(-9, 9, s, dtype=torch.int8)
    a, b = make(64, 32), make(32, 48)
    torch._dynamo.reset()
    with inductor.patch(max_autotune_gemm=True, max_autotune_gemm_backends="TRITON", compile_threads=1):
        got, (code, *_) = run_and_get_code(torch.compile(function), a.to(xpu), b.to(xpu))
    assert "triton_tem_fused" in code
    torch.testing.assert_close(got.cpu().double(), a.double() @ b.double(), atol=1e-4, rtol=1e-4)
