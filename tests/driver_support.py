"""What the tests of the drivers share: instances of their own, a gate in a queue, moving arrays."""

from __future__ import annotations

import shutil
import threading
from typing import ClassVar

import numpy as np
import pytest

from anyxpu import build, simulate
from anyxpu.drivers import library_path
from anyxpu.drivers.abi import Driver, DriverError, HostFunction, Status

needs_intel = pytest.mark.skipif(build.sycl_prefix() is None, reason="intel-sycl-rt is not installed")
MIB = 1 << 20

AXPY_AND_REVERSE = b"""
__kernel void axpy(__global float* y, __global const float* x, float a, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
__kernel void reverse_group(__global int* y, __local int* scratch) {
  int l = get_local_id(0), n = get_local_size(0);
  scratch[l] = y[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = scratch[n - 1 - l];
}
"""


def load(name: str, tmp_path_factory: pytest.TempPathFactory, devices: int) -> Driver:
    """An instance of the driver for these tests alone, whatever else this process does with it."""
    copy = tmp_path_factory.mktemp("driver") / f"{name}.so"
    shutil.copy(library_path(name), copy)
    return Driver(copy, devices)


class Gate:
    """Holds a queue at one point until it is opened, or the test ends."""

    closed: ClassVar[list[Gate]] = []

    def __init__(self, driver: Driver, queue: int) -> None:
        if simulate.active() and b"V2" in driver.properties(0).platform_name:
            pytest.skip(
                "the newer adapter of Level Zero leaves host functions to the GPU, and nothing holds a simulated one; "
                "SYCL_UR_USE_LEVEL_ZERO_V2=0 runs this"
            )
        self.closed.append(self)
        self._open, self._reached = threading.Event(), threading.Event()
        self._function = HostFunction(self._hold)
        driver.host_call(queue, self._function)
        # A thread that waits for any queue may be the one that runs the function, and would then never open the gate.
        # It is another one's once it has begun; a queue that is held elsewhere does not begin it, which is as good.
        self._reached.wait(1)

    def _hold(self, _: int | None) -> None:
        self._reached.set()
        self._open.wait(60)

    @classmethod
    def open_all(cls) -> None:
        while cls.closed:
            cls.closed.pop().open()

    def open(self) -> None:
        self._open.set()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def to_device(driver: Driver, queue: int, array: np.ndarray, device: int = 0) -> int:
    pointer = driver.allocate(device, array.nbytes)
    driver.copy(queue, pointer, address(array), array.nbytes)
    driver.synchronize(queue)
    return pointer


def from_device(driver: Driver, queue: int, pointer: int, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    driver.copy(queue, address(out), pointer, out.nbytes)
    driver.synchronize(queue)
    return out


def random_floats(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def refuses(status: Status, match: str = ""):
    """The ``with`` block raises a DriverError of that status whose message matches."""
    return pytest.raises(DriverError, match=f"{status.name}: .*{match}")
