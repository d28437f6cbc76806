"""Ctrl-C gets out of waiting for a kernel that does not end, and the device is usable when it has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.not_simulated("its kernels would have to run")

PROGRAM = """
import ctypes, os, signal, sys, threading, time
import torch, triton, triton.language as tl

@triton.jit
def until(flag, out):
    rounds = 0
    while tl.load(flag, volatile=True) == 0:
        rounds += 1
    tl.store(out, rounds)

flag, out = (torch.zeros(1, dtype=torch.int32, device="xpu") for _ in range(2))
event = torch.xpu.Event()
matrix = torch.eye(2, device="xpu")
torch.linalg.qr(matrix)  # it and what it calls are built
flag.fill_(1)
until[(1,)](flag, out)
torch.xpu.synchronize()
flag.fill_(0)
torch.xpu.synchronize()
if sys.argv[2:] == ["many"]:  # every other stream has worked before
    one = torch.ones_like(flag)
    torch.xpu.synchronize()
    for stream in [torch.xpu.Stream(priority=-1) for _ in range(32)] + [torch.xpu.Stream() for _ in range(31)]:
        with torch.xpu.stream(stream):
            until[(1,)](one, out)
side = torch.xpu.Stream()
with torch.xpu.stream(side):
    until[(1,)](flag, out)
    event.record()

def end_the_kernel():
    ctypes.memset(flag.data_ptr(), 1, 1)

def on_side(function):
    with torch.xpu.stream(side):
        return function()

def after_the_event():
    torch.xpu.current_stream().wait_event(event)
    return torch.zeros(1, device="xpu").item()

waits = {
    "synchronize": torch.xpu.synchronize,
    "stream": side.synchronize,
    "event": event.synchronize,
    "item": lambda: on_side(out.item),
    "cpu": lambda: on_side(out.cpu),
    "host operator": lambda: on_side(lambda: torch.linalg.qr(matrix)),
    "another stream": after_the_event,
}
how = sys.argv[1]
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
if how == "never caught":
    torch.xpu.synchronize()
try:
    waits[how]()
    print("was not interrupted")
except KeyboardInterrupt as interrupt:
    print(*interrupt.__notes__)
if how == "event":  # leave with the kernel still at work
    sys.exit(3)
end_the_kernel()
torch.xpu.synchronize()
print("usable:", out.item() > 0, (torch.ones(3, device="xpu") * 2).tolist())
"""


def _run(tmp_path: Path, *how: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.run([sys.executable, str(program), *how], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("how", ["synchronize", "stream", "item", "cpu", "host operator", "another stream"])
def test_a_wait_is_left_and_the_device_stays_usable(tmp_path: Path, how: str) -> None:
    done = _run(tmp_path, how)
    assert done.returncode == 0, done.stderr
    note, usable = done.stdout.splitlines()
    assert "the wait for the device was left" in note and "cannot be stopped" in note
    assert usable == "usable: True [2.0, 2.0, 2.0]"


def test_a_program_ends_with_its_status_though_the_device_goes_on(tmp_path: Path) -> None:
    done = _run(tmp_path, "event")
    assert done.returncode == 3, done.stderr
    assert "the program ends while the device still works" in done.stderr


@pytest.mark.parametrize("streams", [[], ["many"]], ids=["two", "all"])
def test_an_interrupt_that_nobody_catches_ends_the_program(tmp_path: Path, streams: list[str]) -> None:
    done = _run(tmp_path, "never caught", *streams)
    assert done.returncode == -2, done.stderr  # by the signal, as Python does
    assert "KeyboardInterrupt" in done.stderr and "the wait for the device was left" in done.stderr


FLOOD = """
import sys, threading
import torch, triton
import triton.language as tl

@triton.jit
def bump(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)

x, small = torch.zeros(1 << 16, device="xpu"), torch.zeros(4, device="xpu")
matrix = torch.ones(128, 128, device="xpu")
launch = {"kernels": lambda: bump[(1,)](x, 1 << 16), "products": lambda: matrix @ matrix}[sys.argv[1]]
launch()
torch.xpu.synchronize()
stop = threading.Event()

def flood():
    while not stop.is_set():
        launch()

thread = threading.Thread(target=flood)
thread.start()
for _ in range(3):
    print(small.cpu().tolist())  # after what has been launched by then
stop.set()
thread.join()
torch.xpu.synchronize()
print(bool((x == x[0]).all()))
"""


@pytest.mark.parametrize("what", ["kernels", "products"])
def test_a_wait_ends_while_another_thread_launches_faster_than_the_device_works(tmp_path: Path, what: str) -> None:
    (tmp_path / "flood.py").write_text(FLOOD)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "flood.py"), what], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["[0.0, 0.0, 0.0, 0.0]"] * 3 + ["True"], done.stderr


MEETING = """
import sys, threading, torch, triton, triton.language as tl

@triton.jit
def meet(count, out, ALL: tl.constexpr):
    tl.atomic_add(count, 1)
    while tl.atomic_add(count, 0) < ALL:  # a program that began waits for the ones that have not
        pass
    tl.store(out + tl.program_id(0), tl.program_id(0) + 1)

programs = torch.xpu.get_device_properties(0).max_compute_units
count, out = torch.zeros(1, dtype=torch.int32, device="xpu"), torch.zeros(programs, dtype=torch.int32, device="xpu")
event = torch.xpu.Event()

def launch():
    count.zero_()
    meet[(programs,)](count, out, programs, launch_cooperative_grid=True)
    event.record()

waits = {"device": torch.xpu.synchronize, "event": event.synchronize, "copy": out.cpu}
for _ in range(3):
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    waits[sys.argv[1]]()
    assert out.tolist() == list(range(1, programs + 1))
print("met")
"""


@pytest.mark.parametrize("how", ["device", "event", "copy"])
@pytest.mark.rotates(2)
def test_the_thread_that_waits_gives_its_core_to_what_another_one_launched(tmp_path: Path, how: str) -> None:
    program = tmp_path / "meeting.py"
    program.write_text(MEETING)
    done = subprocess.run([sys.executable, str(program), how], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "met\n", done.stderr
