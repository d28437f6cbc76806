"""A convolution's weight is brought into oneDNN's layout once, and again after whatever writes it."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from anyxpu.shim import lib

CHANNELS = 48
BYTES = CHANNELS * CHANNELS * 9 * 4


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    lib().drop_copies()
    gc.collect()
    yield
    lib().drop_copies()


def _kept() -> int:
    """Bytes of kept copies."""
    before = torch.xpu.memory_allocated()
    lib().drop_copies()
    return before - torch.xpu.memory_allocated()


def _right(x: Tensor, weight: Tensor, calls: int = 3) -> None:
    expected = F.conv2d(x.cpu().double(), weight.detach().cpu().double(), padding=1)
    for _ in range(calls):  # the first sees the weight, the second keeps what it makes, the third uses it
        found = F.conv2d(x, weight.detach(), padding=1)
        torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-4, atol=1e-3)


def _operands() -> tuple[Tensor, Tensor]:
    return torch.randn(2, CHANNELS, 9, 9, device="xpu"), torch.randn(CHANNELS, CHANNELS, 3, 3, device="xpu")


@triton.jit
def _triple_at(address, N: tl.constexpr):  # type: ignore[no-untyped-def]
    there = tl.load(address).to(tl.pointer_type(tl.float32)) + tl.arange(0, N)
    tl.store(there, tl.load(there) * 3)


@triton.jit
def _negate(x, N: tl.constexpr):  # type: ignore[no-untyped-def]
    there = x + tl.arange(0, N)
    tl.store(there, -tl.load(there))


def _fused_sgd(weight: Tensor) -> None:
    parameter = torch.nn.Parameter(weight)
    parameter.grad = torch.randn_like(weight)
    torch.optim.SGD([parameter], lr=0.5, foreach=True).step()


def _compiled_sgd(weight: Tensor) -> None:
    parameter = torch.nn.Parameter(weight)
    parameter.grad = torch.randn_like(weight)
    torch.compile(torch.optim.SGD([parameter], lr=0.5).step)()


def _gather(weight: Tensor) -> None:
    torch.distributed.init_process_group("xccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.all_gather_into_tensor(weight, torch.randn_like(weight))
    finally:
        torch.distributed.destroy_process_group()


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda w: w.mul_(2),
    "its data": lambda w: w.data.add_(1),
    "a slice": lambda w: w[1:3].zero_(),
    "a scalar": lambda w: w[5, 4, 1].fill_(30.0),
    "from the host": lambda w: w.copy_(torch.randn(w.shape)),
    "from the device": lambda w: w.copy_(torch.randn_like(w)),
    "from another dtype": lambda w: w.copy_(torch.randn_like(w).half()),
    "random": lambda w: w.normal_(),
    "by the host path": lambda w: torch.nn.init.orthogonal_(w),
    "out= of a product": lambda w: torch.mm(
        torch.randn(CHANNELS * 9, 7, device="xpu"), torch.randn(7, CHANNELS, device="xpu"), out=w.view(-1, CHANNELS)
    ),
    "out= of an operator": lambda w: torch.cumsum(torch.randn_like(w), 0, out=w),
    "out= of a host operator": lambda w: torch.linalg.cross(w[:, :3, :3], w[:, :3, :3] + 1, dim=2, out=w[:, :3, :3]),
    "foreach": lambda w: torch._foreach_add_([w], 1.0),
    "by index": lambda w: w.index_copy_(0, torch.tensor([3], device="xpu"), torch.randn_like(w[:1])),
    "scattered": lambda w: w.view(-1).scatter_(0, torch.arange(50, device="xpu"), 7.0),
    "an optimizer": _fused_sgd,
    "a compiled optimizer": _compiled_sgd,
    "a compiled function": lambda w: torch.compile(lambda t: t.mul_(3))(w),
    "a kernel": lambda w: _negate[(1,)](w, 1024),
    "a kernel that makes addresses": lambda w: _triple_at[(1,)](
        torch.tensor([w.data_ptr()], dtype=torch.uint64, device="xpu"), 1024
    ),
    "a collective": _gather,
    "set_": lambda w: w.set_(torch.randn_like(w)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.rotates(3)
def test_what_is_written_is_seen(write: str) -> None:
    x, weight = _operands()
    _right(x, weight)
    WRITES[write](weight)
    _right(x, weight)


def _has_amx() -> bool:
    return "amx_bf16" in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_by_a_packed_weight_are_bit_for_bit_the_same(dtype: torch.dtype, transposed: bool) -> None:
    for rows, depth, columns in torch.randint(2, 400, (12, 3)).tolist():
        weight = torch.randn(columns, depth) if transposed else torch.randn(depth, columns)
        weight = weight.to("xpu", dtype)
        matrix = weight.t() if transposed else weight
        bias = torch.randn(columns).to("xpu", dtype)
        for count in (rows, rows + 1, 2):  # all by one packing
            x = torch.randn(count, depth).to("xpu", dtype)
            first = torch.addmm(bias, x, matrix)
            expected = torch.addmm(bias.double().cpu(), x.double().cpu(), matrix.double().cpu())
            torch.testing.assert_close(first.double().cpu(), expected, rtol=0.02, atol=0.3)
            calls = [torch.addmm(bias, x, matrix).cpu() for _ in range(4)]
            assert torch.equal(calls[-1], calls[-2])  # both by the packed weight
            if dtype is torch.bfloat16 and _has_amx():
                # There oneDNN sums packed weights of some shapes in another order: a rounding apart, and no more.
                torch.testing.assert_close(calls[-1], first.cpu(), rtol=2**-7, atol=2**-7)
            else:
                assert all(torch.equal(again, first.cpu()) for again in calls)


@pytest.mark.not_simulated("a GPU's oneDNN reads weights as they are")
@pytest.mark.parametrize("write", ["in place", "its data", "an optimizer", "a kernel"])
def test_a_product_sees_what_is_written(write: str) -> None:
    x, weight = torch.randn(9, 64, device="xpu"), torch.randn(80, 64, device="xpu")
    for _ in range(2):
        for _ in range(3):
            expected = x.cpu().double() @ weight.cpu().double().t()
            torch.testing.assert_close(F.linear(x, weight).cpu().double(), expected, rtol=1e-4, atol=1e-3)
        WRITES[write](weight)
    for _ in range(3):
        F.linear(x, weight)
    assert _kept() >= weight.nbytes


def test_a_view_sees_what_is_written_to_its_base() -> None:
    base = torch.randn(2 * CHANNELS * CHANNELS * 9, device="xpu")
    x, weight = _operands()[0], base[CHANNELS * CHANNELS * 9 :].view(CHANNELS, CHANNELS, 3, 3)
    _right(x, weight)
    base.neg_()
    _right(x, weight)
    _negate[(1,)](base, base.numel() & -base.numel())  # by the base's address, far before the view's
    _right(x, weight)
    _negate[(1,)](weight, 256)
    _right(x, weight)


@pytest.mark.not_simulated("a GPU's oneDNN may like the layout as it is")
def test_a_copy_is_kept_from_the_second_call_and_freed_with_the_weight() -> None:
    x, weight = _operands()
    F.conv2d(x, weight, padding=1)
    assert _kept() == 0
    _right(x, weight, calls=2)
    assert _kept() >= BYTES
    _right(x, weight)
    before = torch.xpu.memory_allocated()
    weight.add_(1)
    assert before - torch.xpu.memory_allocated() >= BYTES
    _right(x, weight)
    before = torch.xpu.memory_allocated()
    del weight
    assert before - torch.xpu.memory_allocated() >= 2 * BYTES


@pytest.mark.not_simulated("a GPU's oneDNN may like the layout as it is")
def test_training_keeps_nothing_and_gradients_accumulate_by_a_kept_weight() -> None:
    layer = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, device="xpu")
    twin = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
    twin.load_state_dict(layer.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9) for m in (layer, twin)]
    for _ in range(3):
        x = torch.randn(2, CHANNELS, 9, 9)
        for module, its in ((layer, x.to("xpu")), (twin, x)):
            module(its.requires_grad_()).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        assert _kept() == 0
    torch.testing.assert_close(layer.weight.cpu(), twin.weight)
    torch.testing.assert_close(layer.weight.grad.cpu(), twin.weight.grad)  # type: ignore[union-attr]
    for _ in range(3):
        layer(torch.randn(2, CHANNELS, 9, 9, device="xpu", requires_grad=True)).sum().backward()
    assert _kept() >= 2 * BYTES  # forward's and backward's


@pytest.mark.not_simulated("a GPU's oneDNN may like the layout as it is")
def test_a_stream_has_its_own_copy() -> None:
    x, weight = _operands()
    _right(x, weight)
    torch.xpu.synchronize()
    side = torch.xpu.Stream()
    with torch.xpu.stream(side):
        _right(x, weight)
    torch.xpu.synchronize()
    assert _kept() >= 2 * BYTES


@pytest.mark.not_simulated("a GPU's oneDNN may like the layout as it is")
def test_copies_make_room_where_memory_is_out() -> None:
    x, weight = _operands()
    _right(x, weight)
    torch.xpu.empty_cache()
    total = torch.xpu.get_device_properties().total_memory
    room = 64 << 20
    free = room - torch.xpu.memory_reserved()
    torch.xpu.set_per_process_memory_fraction(room / total)
    try:
        blocks = []
        with pytest.raises(torch.OutOfMemoryError):
            while True:
                blocks.append(torch.empty(1 << 20, dtype=torch.uint8, device="xpu"))
        assert len(blocks) > (free >> 20) // 2
        assert _kept() == 0
    finally:
        torch.xpu.set_per_process_memory_fraction(1.0)
    del blocks
    _right(x, weight)


@pytest.mark.not_simulated("a GPU's oneDNN reads weights as they are")
def test_a_product_goes_on_where_there_is_no_room_for_a_copy() -> None:
    x, weight = torch.randn(64, 4096, device="xpu"), torch.randn(4096, 4096, device="xpu")
    out = F.linear(x, weight)
    torch.xpu.empty_cache()
    total = torch.xpu.get_device_properties().total_memory
    torch.xpu.set_per_process_memory_fraction((torch.xpu.memory_reserved() + (8 << 20)) / total)
    try:
        for _ in range(3):
            assert torch.equal(F.linear(x, weight).cpu(), out.cpu())
        assert _kept() == 0
    finally:
        torch.xpu.set_per_process_memory_fraction(1.0)


def test_slices_of_one_block_are_not_watched_without_end() -> None:
    block = torch.zeros(5000, 8, 8, device="xpu")
    x = torch.ones(2, 8, device="xpu")

    def kept(matrices: Tensor) -> int:
        for matrix in (*matrices, *matrices):
            torch.mm(x, matrix)
        return _kept()

    assert kept(block) == 4096 * kept(block[:1])


@pytest.mark.not_simulated("values")
def test_threads_write_and_use_their_weights_at_once() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.xpu.stream(torch.xpu.Stream()):
                x, weight = _operands()
                for i in range(12):
                    _right(x, weight, calls=i % 4)
                    weight.mul_(-0.9)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_compiled_convolution_takes_its_weight_as_it_is() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
            self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            # No kink, at which two sides' gradients would part.
            return torch.tanh(self.second(torch.tanh(self.first(x))))

    module = Twice().double()
    x = torch.randn(4, CHANNELS, 32, 32)
    expected = module(x.double()).float()
    expected.sum().backward()
    gradients = {name: p.grad.float() for name, p in module.named_parameters()}
    module.zero_grad()
    module.to("xpu", torch.float32)
    found, codes = run_and_get_code(torch.compile(module), x.to("xpu"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    found.sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), gradients[name], rtol=1e-3, atol=1e-3)
    lines = [line for code in codes for line in code.splitlines()]
    # Where registers are long, what follows goes into the convolution, which has another name then.
    calls = [line for line in lines if re.search(r"= (extern_kernels\.|torch\.ops\.)\S*convolution\S*\(", line)]
    assert calls and all("primals" in call for call in calls), calls
