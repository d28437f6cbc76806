"""oneDNN's place in the order of streams, its memory, its threads, and what its presence costs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import anyxpu.ops
from anyxpu.shim import lib

pytestmark = pytest.mark.skipif(
    not torch.xpu.is_available() or lib().driver_name() != "sycl", reason="oneDNN needs the sycl driver"
)


def busy(size: int = 700) -> torch.Tensor:
    """Some milliseconds of work on the current stream, enqueued."""
    a = torch.ones(size, size, device="xpu")
    return a @ a


def by_threads(work: Callable[[torch.Generator], None]) -> None:
    """Four threads do it at once, each on a stream of its own and with a generator of its own."""
    failures: list[BaseException] = []

    def one(seed: int) -> None:
        try:
            with torch.xpu.stream(torch.xpu.Stream()):
                work(torch.Generator().manual_seed(seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_product_reads_what_the_work_before_it_wrote_and_nothing_later():
    weight = torch.randn(48, 48)
    sources = [torch.randn(48, 48).pin_memory() for _ in range(40)]
    x, w = torch.zeros(48, 48, device="xpu"), weight.xpu()
    busy()
    results = []
    for source in sources:
        x.copy_(source, non_blocking=True)
        results.append(x @ w)
    for source, result in zip(sources, results, strict=True):
        torch.testing.assert_close(result.cpu(), source @ weight)


def test_products_on_a_side_stream_keep_that_streams_order():
    weight = torch.randn(32, 32)
    w = weight.xpu()
    torch.xpu.synchronize()
    streams = [torch.xpu.Stream() for _ in range(2)]
    outcome = {}
    for stream in streams:
        with torch.xpu.stream(stream):
            value = torch.eye(32, device="xpu")
            busy()
            for _ in range(10):
                value = value @ w
            outcome[stream] = value
    want = torch.linalg.matrix_power(weight.double(), 10)
    for stream, value in outcome.items():
        stream.synchronize()
        with torch.xpu.stream(stream):
            error = (value.cpu().double() - want).norm() / want.norm()
        assert error < 1e-5


def test_an_event_orders_a_product_after_work_of_another_stream():
    for _ in range(5):
        side = torch.xpu.Stream()
        with torch.xpu.stream(side):
            busy()
            late = torch.full((16, 16), 3.0, device="xpu")
            late += 0
            ready = side.record_event()
        torch.xpu.current_stream().wait_event(ready)
        late.record_stream(torch.xpu.current_stream())
        assert torch.equal((late @ torch.eye(16).xpu()).cpu(), torch.full((16, 16), 3.0))


def test_queued_work_outlives_the_tensors_it_was_given():
    x, w, k = torch.randn(24, 24), torch.randn(24, 24), torch.randn(4, 4, 3, 3)
    image = torch.randn(1, 4, 12, 12)
    want, wanted = x @ w + 1, F.conv2d(image, k)
    for _ in range(10):
        busy(400)
        got = torch.addmm(torch.ones(24).xpu(), x.xpu(), w.xpu())
        found = F.conv2d(image.xpu(), k.xpu())
        for _ in range(20):  # whoever gets the freed memory now overwrites it, behind the queued work
            torch.full((24, 24), float("nan"), device="xpu")
            torch.full((1, 4, 12, 12), float("nan"), device="xpu")
        torch.testing.assert_close(got.cpu(), want)
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_primitives_given_up_by_the_cache_may_still_be_queued(monkeypatch):
    from anyxpu.onednn import matmul

    monkeypatch.setattr(matmul.CACHE, "capacity", 2)
    w = torch.randn(64, 64)
    busy()
    results = [(n, torch.ones(n, 64, device="xpu") @ w.xpu()) for n in range(1, 30)]
    assert len(matmul.CACHE) <= 2
    for n, result in results:
        torch.testing.assert_close(result.cpu(), torch.ones(n, 64) @ w)


def test_threads_share_the_cache_and_each_keeps_its_own_stream():
    weight = torch.randn(40, 40)
    w = weight.xpu()
    torch.xpu.synchronize()

    def work(draw: torch.Generator) -> None:
        for n in range(1, 25):
            x = torch.randn(n, 40, generator=draw)
            torch.testing.assert_close((x.xpu() @ w).cpu(), x @ weight)

    by_threads(work)


def test_calls_are_counted_as_the_librarys():
    a = torch.ones(3, 3, device="xpu")
    anyxpu.ops.reset_counters()
    for _ in range(3):
        torch.mm(a, a)
    torch.bmm(a[None], a[None])
    served = anyxpu.ops.counters()
    assert served["aten::mm"] == {"library": 3} and served["aten::bmm"] == {"library": 1}


def test_errors_name_the_call_the_status_and_the_operands():
    from anyxpu.onednn import capi

    with pytest.raises(capi.OneDnnError, match=r"invalid_arguments.*for a test"):
        capi.create("memory_desc_create_with_strides", -1, capi.Dims(), 3, capi.Dims(), what="a test")


def test_autocast_reaches_the_library_in_sixteen_bits():
    layer, x = torch.nn.Linear(16, 8, device="xpu"), torch.randn(4, 16, device="xpu")
    anyxpu.ops.reset_counters()
    with torch.autocast("xpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert anyxpu.ops.counters()["aten::addmm"] == {"library": 1}


def test_importing_torch_loads_no_onednn(run_python):
    done = run_python("""
        import torch
        print(any("libdnnl" in line for line in open("/proc/self/maps")), torch.xpu.device_count())
    """)
    assert done.stdout.split() == ["False", str(torch.xpu.device_count())]


def test_each_device_runs_its_own_work(run_python):
    done = run_python(
        """
        import torch
        a, b = torch.randn(30, 20), torch.randn(20, 10)
        x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
        for index in (1, 0, 1):
            product = torch.mm(a.xpu(index), b.xpu(index))
            image = torch.conv2d(x.xpu(index), w.xpu(index))
            torch.testing.assert_close(product.cpu(), a @ b)
            torch.testing.assert_close(image.cpu(), torch.conv2d(x, w), rtol=1e-4, atol=1e-5)
            print(product.device, image.device, torch.xpu.current_device())
        try:
            torch.mm(a.to("xpu:0"), b.to("xpu:1"))
        except RuntimeError as error:
            print("got mat2 is on xpu:1" in str(error))
        """,
        ANYXPU_DEVICES="2",
    )
    assert done.stdout.split("\n")[:4] == ["xpu:1 xpu:1 0", "xpu:0 xpu:0 0", "xpu:1 xpu:1 0", "True"]


def test_without_sycl_queues_the_host_serves_instead(run_python):
    done = run_python(
        """
        import torch, anyxpu.ops
        a = torch.ones(4, 5, device="xpu")
        print(tuple((a @ a.t()).shape), tuple(torch.conv2d(a[None, None], a[None, None]).shape))
        print(sorted(name for name, ways in anyxpu.ops.counters().items() if "host" in ways))
        """,
        ANYXPU_DRIVER="null",
    )
    assert done.stdout.splitlines() == ["(4, 4) (1, 1, 1, 1)", "['aten::convolution', 'aten::mm']"]


on_the_cpu = pytest.mark.skipif(
    torch.xpu.is_available() and torch.xpu.get_device_properties(0).type != "cpu",
    reason="primitives of a GPU are no host tasks",
)


@on_the_cpu
def test_on_a_cpu_device_sycl_gets_no_host_task_of_a_primitive(run_python):
    done = run_python("""
        import os, torch
        a = torch.randn(500, 500, device="xpu")
        for _ in range(10):
            a + 0, torch.mm(a, a), torch.conv2d(a[None, None], a[None, None, :3, :3])
        torch.xpu.synchronize()
        from anyxpu.onednn import capi, engine
        print(engine.stream(0).taken)
        before = len(os.listdir("/proc/self/task"))
        from anyxpu.shim import lib
        lib().set_replay(False)
        capi.library().takes_host_tasks = False
        engine._streams_beside.clear()
        torch.mm(a, a)
        torch.xpu.synchronize()
        print(len(os.listdir("/proc/self/task")) > before)  # SYCL starts a thread for its first host task
    """)
    assert done.stdout.split() == ["True", "True"]


@on_the_cpu
def test_a_small_product_on_an_idle_stream_is_done_when_the_call_returns():
    a = torch.randn(16, 16, device="xpu")
    torch.mm(a, a)
    torch.xpu.synchronize()
    for _ in range(20):
        product = torch.mm(a, a)
        assert torch.xpu.current_stream().query()
    torch.testing.assert_close(product.cpu(), a.cpu() @ a.cpu())


@on_the_cpu
def test_a_larger_product_is_done_at_once_by_who_waits_for_each_and_else_while_its_launcher_goes_on():
    a, stream, went_on = torch.randn(1000, 1000, device="xpu"), torch.xpu.current_stream(), 0
    for _ in range(10):
        torch.xpu.synchronize()
        first = a @ a
        assert stream.query(), "who waited for the last one waits for this"
        second = a @ a
        went_on += not stream.query()  # unless something kept this thread until others had done it
        torch.testing.assert_close(second.cpu(), first.cpu())
    assert went_on, "nobody waits, and yet the launcher did each"
    expected = a.cpu().double() @ a.cpu().double()
    torch.testing.assert_close(first.cpu().double(), expected, atol=2e-4, rtol=1e-4)


@on_the_cpu
def test_what_hands_over_no_host_task_is_an_error():
    import ctypes

    from anyxpu import build
    from anyxpu.onednn import capi

    torch.mm(torch.ones(2, 2, device="xpu"), torch.ones(2, 2, device="xpu"))
    words = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 6)
    driver = ctypes.CDLL(str(build.driver(capi.SYCL_DRIVER).path()))
    queue = ctypes.c_void_p(lib().current_raw_stream(0))
    for returned, status in ((0, capi.NOTHING_TAKEN), (3, 3)):
        function = words(lambda *_, returned=returned: returned)
        assert driver.anyxpu_sycl_take_6(queue, ctypes.c_uint64(1), function, *[ctypes.c_uint64(0)] * 6) == status
    assert "no host task" in str(capi.error("sycl_interop_primitive_execute", capi.NOTHING_TAKEN, "a test"))
    other = ctypes.c_void_p(ctypes.CDLL("libm.so.6")._handle)
    assert driver.anyxpu_sycl_take_host_tasks(other) == 0  # it calls no such function


@on_the_cpu
def test_onednns_own_account_times_what_ran(run_python):
    done = run_python(
        """
        import torch
        a, b = torch.randn(600, 500), torch.randn(500, 400)
        torch.testing.assert_close((a.xpu() @ b.xpu()).cpu(), a @ b, rtol=1e-4, atol=1e-4)
        from anyxpu.onednn import capi, engine
        print(engine.stream(0).taken)
        """,
        ONEDNN_VERBOSE="1",
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "False"
    times = [float(line.rsplit(",", 1)[1]) for line in lines if ",exec,cpu,matmul," in line]
    assert times and all(milliseconds > 0 for milliseconds in times)


def test_threads_hammer_caches_that_hold_little(monkeypatch):
    from anyxpu.onednn import convolution, matmul

    monkeypatch.setattr(matmul, "CACHE", type(matmul.CACHE)(capacity=3))
    monkeypatch.setattr(convolution.CACHE, "capacity", 2)

    def work(draw: torch.Generator) -> None:
        for _ in range(25):
            m, k, n, c = (int(torch.randint(1, 40, (), generator=draw)) for _ in range(4))
            a, b = torch.randn(m, k, generator=draw), torch.randn(k, n, generator=draw)
            image, weight = torch.randn(1, c, 9, m + 2, generator=draw), torch.randn(n, c, 3, 3, generator=draw)
            product, answer = a.xpu() @ b.xpu(), F.conv2d(image.xpu(), weight.xpu())
            torch.testing.assert_close(product.cpu(), a @ b, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(answer.cpu(), F.conv2d(image, weight), rtol=1e-3, atol=1e-3)

    by_threads(work)
    assert len(matmul.CACHE) <= 3 and len(convolution.CACHE) <= 2
