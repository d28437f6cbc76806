"""Kernels whose machine code is called without the runtime that made it are told what that runtime tells them."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
import torch

from anyxpu import build
from anyxpu.drivers.abi import Driver, Format
from tests.driver_support import from_device, load, to_device

pytestmark = [
    pytest.mark.not_simulated("it is about the runtime of CPU devices"),
    pytest.mark.skipif(
        not torch.xpu.is_available() or torch.xpu.get_device_properties().type != "cpu",
        reason="the first device is no CPU, whose kernels alone are called",
    ),
]

LOCAL = 32
SOURCE = b"""
#define GROUP __attribute__((reqd_work_group_size(32, 1, 1)))
#define LANES __attribute__((intel_reqd_sub_group_size(16)))
#define TOLD 24

/* All that a work-item may ask for, and each kind of argument, in an order that leaves gaps. */
GROUP LANES __kernel void told(char c, __global long* out, short s, double d, uchar uc, uint ui, half h, ulong ul,
                               char e) {
  size_t at = 0;
  for (int i = 2; i >= 0; --i) at = at * get_global_size(i) + get_global_id(i);
  __global long* mine = out + at * TOLD;
  for (int i = 0; i < 3; ++i) {
    mine[i] = get_group_id(i) * 1000 + get_local_id(i);
    mine[3 + i] = get_num_groups(i) * 1000 + get_local_size(i);
    mine[6 + i] = get_global_size(i) * 1000 + get_global_offset(i);
    mine[9 + i] = get_enqueued_local_size(i);
  }
  mine[12] = get_sub_group_local_id() * 1000 + get_sub_group_size();
  mine[13] = get_sub_group_id() * 1000 + get_num_sub_groups();
  mine[14] = get_work_dim();
  mine[15] = c; mine[16] = s; mine[17] = as_long(d); mine[18] = uc; mine[19] = ui; mine[20] = as_short(h);
  mine[21] = ul; mine[22] = e; mine[23] = get_local_linear_id() * 1000 + get_global_linear_id();
}

/* What is exchanged by way of a work-group's memory and among lanes. */
GROUP LANES __kernel void exchanged(__global float* x) {
  __local float all[32];
  const int i = get_local_id(0);
  all[i] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] = all[31 - i] + sub_group_reduce_add(all[i]) + sub_group_broadcast(all[i], 3);
}

/* Numbers below the least normal one, and products that are rounded. */
GROUP __kernel void subnormal(__global float* x) { x[get_global_id(0)] = x[get_global_id(0)] * 0.3f; }

/* A structure among the arguments, as descriptions of strided memory are. */
typedef struct { uint a, b, c; } three;
GROUP __kernel void structured(__global ulong* x, ulong more, three s, uchar last) {
  x[get_global_id(0)] = s.a + s.b * 3ul + s.c * 7ul + more + last;
}

GROUP __kernel void prints(__global float* x) { printf("%f\\n", x[get_global_id(0)]); }

GROUP __kernel void lends(__global float* x, __local float* l) { l[get_local_id(0)] = x[0]; x[1] = l[0]; }

__kernel void any_shape(__global float* x) { x[get_global_id(1)] = get_global_id(0); }

GROUP __kernel void large(__global int* x, int at) {
  int mine[4096];
  for (int i = 0; i < 4096; ++i) mine[i] = x[i & 31] + i;
  for (int i = 0; i < 4096; ++i) mine[(i * at) & 4095] += mine[(i + at) & 4095];
  x[get_global_id(0)] = mine[at & 4095];
}
"""


@pytest.fixture(scope="module")
def sycl(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if build.sycl_prefix() is None:
        pytest.skip("intel-sycl-rt is not installed")
    return load("sycl", tmp_path_factory, devices=2)


def kernel(sycl: Driver, name: str, called: bool = True) -> int:
    """One kernel, in a program of its own: whether something prints is a matter of the whole program."""
    head, *kernels = SOURCE.split(b"\n\n")
    (source,) = (k for k in kernels if f" {name}(".encode() in k)
    made = sycl.kernel(sycl.module(0, Format.OPENCL_C, b"\n".join((head, source)), "-cl-std=CL3.0"), name)
    assert bool(sycl.kernel_info(made).called) == called, name
    return made


def both_ways(sycl: Driver, made: int, groups: tuple[int, int, int], array: np.ndarray, *before, after=()) -> None:
    """The same numbers, bit for bit, from a launch by the runtime and from a call."""
    queue, results = sycl.queue(0), []
    for work in (0, 1):
        pointer = to_device(sycl, queue, array)
        sycl.launch(queue, made, groups, (LOCAL, 1, 1), *before, pointer, *after, work=work)
        results.append(from_device(sycl, queue, pointer, array))
    assert results[0].tobytes() == results[1].tobytes()
    assert results[0].tobytes() != array.tobytes()


@pytest.mark.parametrize("groups", [(1, 1, 1), (5, 1, 1), (1, 3, 2), (3, 2, 4)])
def test_a_kernel_is_told_the_same(sycl: Driver, groups: tuple[int, int, int]) -> None:
    rng = np.random.default_rng()
    after = (
        ctypes.c_int16(int(rng.integers(-(1 << 15), 1 << 15))),
        ctypes.c_double(rng.standard_normal()),
        ctypes.c_uint8(int(rng.integers(0, 256))),
        ctypes.c_uint32(int(rng.integers(0, 1 << 32))),
        ctypes.c_uint16(int(rng.integers(0, 0x7C00))),
        ctypes.c_uint64(int(rng.integers(0, 1 << 63))),
        ctypes.c_int8(int(rng.integers(-128, 128))),
    )
    before = ctypes.c_int8(int(rng.integers(-128, 128)))
    array = np.full(int(np.prod(groups)) * LOCAL * 24, -1, np.int64)
    both_ways(sycl, kernel(sycl, "told"), groups, array, before, after=after)


class Three(ctypes.Structure):
    _fields_ = (("a", ctypes.c_uint32), ("b", ctypes.c_uint32), ("c", ctypes.c_uint32))


def test_structures_arrive(sycl: Driver) -> None:
    a, b, c, more, last = (int(n) for n in np.random.default_rng().integers(0, 200, 5))
    array, after = np.zeros(LOCAL, np.uint64), (ctypes.c_uint64(more), Three(a, b, c), ctypes.c_uint8(last))
    both_ways(sycl, kernel(sycl, "structured"), (1, 1, 1), array, after=after)


def test_lanes_and_work_groups_exchange_numbers(sycl: Driver) -> None:
    both_ways(sycl, kernel(sycl, "exchanged"), (4, 1, 1), np.random.default_rng().random(4 * LOCAL, np.float32))


@pytest.mark.parametrize("flushed", [False, True])
def test_subnormal_numbers_stay_whatever_the_thread_does_with_them(sycl: Driver, flushed: bool) -> None:
    """`torch.set_flush_denormal` is of the thread that calls; a kernel has its own."""
    x = np.random.default_rng().random(LOCAL, np.float32) * np.float32(1e-38)
    made = kernel(sycl, "subnormal")
    try:
        torch.set_flush_denormal(flushed)
        both_ways(sycl, made, (1, 1, 1), x)
        assert (np.array([1e-40], np.float32) * np.float32(0.5) == 0) == flushed  # the thread's own way is there again
    finally:
        torch.set_flush_denormal(False)
    queue = sycl.queue(0)
    pointer = to_device(sycl, queue, x)
    sycl.launch(queue, made, (1, 1, 1), (LOCAL, 1, 1), pointer, work=1)
    assert np.array_equal(from_device(sycl, queue, pointer, x), x * np.float32(0.3)) and (x * np.float32(0.3)).any()


def test_what_asks_the_runtime_is_left_to_it(sycl: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    queue = sycl.queue(0)
    x = np.full(LOCAL, 2.5, np.float32)
    pointer = to_device(sycl, queue, x)
    sycl.launch(queue, kernel(sycl, "prints", called=False), (1, 1, 1), (LOCAL, 1, 1), pointer, work=1)
    sycl.synchronize(queue)
    assert capfd.readouterr().out.count("2.500000\n") == LOCAL
    # Of a work-group's memory the runtime is asked at the launch, with its size.
    lends = kernel(sycl, "lends")
    sycl.launch(queue, lends, (1, 1, 1), (LOCAL, 1, 1), pointer, ("local", 4 * LOCAL), work=1)
    assert from_device(sycl, queue, pointer, x)[1] == 2.5
    kernel(sycl, "any_shape", called=False)
    numbers = np.arange(LOCAL, dtype=np.int32)
    large = kernel(sycl, "large", called=False)
    both_ways(sycl, large, (1, 1, 1), numbers, after=(ctypes.c_int32(7),))


def test_threads_call_it_at_the_same_time(sycl: Driver) -> None:
    made, wrong = kernel(sycl, "exchanged"), []

    def run(seed: int) -> None:
        queue, x = sycl.queue(0), np.random.default_rng(seed).random(LOCAL, np.float32)
        lanes = x.reshape(2, 16)
        want = x[::-1] + np.repeat(lanes.sum(1, dtype=np.float64) + lanes[:, 3], 16)
        for _ in range(200):
            pointer = to_device(sycl, queue, x)
            sycl.launch(queue, made, (1, 1, 1), (LOCAL, 1, 1), pointer, work=1)
            got = from_device(sycl, queue, pointer, x)
            if not np.allclose(got, want, rtol=1e-5):
                wrong.append((got, want))
            sycl.deallocate(0, pointer)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in np.random.default_rng().integers(0, 1 << 30, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.rotates(2)
def test_operators_are_the_same_without_it(run_python) -> None:
    """Every digit of a small step of training, with the kernels called and with the runtime asked for each."""
    source = """
        import torch
        torch.manual_seed(3)
        layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        model = torch.nn.Sequential(*layers)
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        model, x, y = model.to("xpu"), x.to("xpu"), y.to("xpu")
        steps = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(4):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            steps.step()
            steps.zero_grad()
        print([p.flatten().tolist() for p in model.parameters()])
        """
    printed = [run_python(source, ANYXPU_ENTRIES=on, ANYXPU_EAGER="compile").stdout for on in ("0", "1")]
    assert printed[0] == printed[1] and len(printed[0]) > 500
