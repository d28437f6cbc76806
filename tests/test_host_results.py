"""What a host operator takes and leaves on a CPU device: blocks of the device's own memory."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from anyxpu.shim import lib


@pytest.fixture(autouse=True)
def by_the_host():
    before = lib().eager()
    lib().set_eager("host")
    gc.collect()
    yield
    lib().set_eager(before)


@pytest.mark.not_simulated("its memory is not the host's")
def test_a_host_operators_result_is_written_where_it_stays():
    x = torch.randn(1 << 20, device="xpu")
    torch.erfinv(x)
    torch.xpu.synchronize()
    before = torch.xpu.memory_allocated()
    torch.xpu.reset_peak_memory_stats()
    y = torch.erfinv(x)
    assert torch.xpu.max_memory_allocated() - before == torch.xpu.memory_allocated() - before == 4 << 20
    assert y.device.type == "xpu" and torch.equal(y.cpu().nan_to_num(), torch.erfinv(x.cpu()).nan_to_num())
    y.resize_(1 << 21)[: 1 << 20].fill_(3)
    assert int((y[: 1 << 20] == 3).sum()) == 1 << 20
    del y
    assert torch.xpu.memory_allocated() == before


@pytest.mark.not_simulated("compares results")
def test_results_that_stay_on_the_host_and_views_outlive_the_operator():
    x = torch.randn(300, 300, device="xpu")
    kept = [torch.histogram(x.cpu(), 5)[0], *torch.linalg.qr(x), x.T.cumsum(0)[3:7, ::2]]
    for _ in range(20):
        torch.erfinv(torch.randn(300, 300, device="xpu"))
    q, r, part = kept[1:]
    torch.testing.assert_close((q @ r).cpu(), x.cpu(), atol=1e-4, rtol=1e-4)
    assert torch.equal(part.cpu(), x.cpu().T.cumsum(0)[3:7, ::2])


@pytest.mark.not_simulated("compares results")
def test_memory_that_another_thread_frees_is_not_written_before_its_kernels_are_done():
    stop, wrong = threading.Event(), []

    def kernels():
        source = torch.arange(1 << 20, dtype=torch.float32, device="xpu")
        expected = source.clone()
        while not stop.is_set():
            for _ in range(8):
                between = source.clone()  # freed while its kernels wait in the stream
                got = between.clone()
                del between
            if not torch.equal(got.cpu(), expected.cpu()):
                wrong.append("kernels")

    def host():
        x = torch.rand(1 << 20, device="xpu")
        expected = torch.erfinv(x.cpu())
        for _ in range(150):
            if not torch.equal(torch.erfinv(x).cpu(), expected):
                wrong.append("host")
        stop.set()

    running = [threading.Thread(target=f) for f in (kernels, host)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.not_simulated("compares results")
def test_what_was_kept_of_a_weight_is_not_taken_for_a_host_operators_result_at_its_place():
    x, places = torch.randn(64, 512, device="xpu"), set()
    for seed in range(12):
        noise = torch.rand(512, 512, generator=torch.Generator().manual_seed(seed)) - 0.5
        weight = torch.erfinv(noise.xpu())
        again = weight.data_ptr() in places
        places.add(weight.data_ptr())
        for _ in range(4):  # enough for a copy in oneDNN's own layout to be kept
            got = torch.nn.functional.linear(x, weight)
        want = x.cpu().double() @ torch.erfinv(noise).double().T
        assert (got.cpu() - want).norm() / want.norm() < 1e-5, again
        del weight
    assert len(places) < 12


@pytest.mark.not_simulated("its memory is not the host's")
def test_a_large_temporary_is_given_back_to_the_system(run_python):
    if not lib().properties(0).host_accessible:
        pytest.skip("copies are made by other means")
    run_python(  # where nothing else has left memory that it could take
        """
        import torch
        from anyxpu.shim import lib
        lib().set_eager("host")
        x = torch.zeros(3 << 27, dtype=torch.int8, device="xpu")
        torch.xpu.empty_cache()
        torch.xpu.reset_peak_memory_stats()
        before = torch.xpu.memory_reserved()
        assert x.sum(dtype=torch.int32).item() == 0  # the host's kernel converts all of it first, in 1.5 GiB
        assert torch.xpu.max_memory_reserved() - before >= 3 << 29
        assert torch.xpu.memory_reserved() - before < 1 << 28
        """
    )


def test_what_is_only_read_stays_shared_with_its_lazy_clone():
    x = torch.randn(5, device="xpu")
    clone = x._lazy_clone()
    _ = torch.erfinv(x), x + clone
    assert torch._C._is_cow_tensor(x) and torch._C._is_cow_tensor(clone)
    torch.erfinv(x, out=x)
    assert not torch._C._is_cow_tensor(x) and x.data_ptr() != clone.data_ptr()
