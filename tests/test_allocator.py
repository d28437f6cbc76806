"""Device and pinned memory on the null driver, in a process of its own: the cases are in ``on_null/``.

The driver of a process is chosen once, so the cases run together in one child under ``ANYXPU_DRIVER=null``, and each
is a test here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = sorted((ROOT / "tests/on_null").glob("cases_*.py"))
NULL = {"ANYXPU_DRIVER": "null", "ANYXPU_DEVICES": "2", "ANYXPU_NULL_MEMORY": str(256 << 20)}


def case_names() -> list[str]:
    """The test functions of the files of cases."""
    nodes = [node for path in CASES for node in ast.parse(path.read_text()).body]
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Case → "" if it passed, otherwise what it said."""
    report = tmp_path_factory.mktemp("null") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *map(str, CASES)],
        env={**os.environ, **NULL},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert report.exists(), f"the child died:\n{done.stdout}\n{done.stderr}"
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [child.text or child.get("message", "") for child in case if child.tag in ("failure", "error")]
        found[case.get("name", "")] = "\n".join(failures)
    return found


@pytest.mark.parametrize("case", case_names())
def test_on_null(case: str, outcomes: dict[str, str]) -> None:
    assert case in outcomes, f"{case} did not run; it ran {sorted(outcomes)}"
    if outcomes[case]:
        pytest.fail(outcomes[case], pytrace=False)


def test_a_custom_allocator_serves_every_tensor(run_python) -> None:
    run_python(
        """
        import ctypes, torch
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        asked, freed = [], []

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        def allocate(size, device, queue):
            asked.append((size, device, queue))
            return None if size > 1 << 20 else libc.malloc(ctypes.c_size_t(size))

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        def free(pointer, size, device, queue):
            freed.append((size, device, queue))
            libc.free(ctypes.c_void_p(pointer))

        address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
        custom = torch._C._xpu_customAllocator(address(allocate), address(free))
        torch.xpu.memory.change_current_allocator(torch.xpu.memory._XPUAllocator(custom))
        first = torch.UntypedStorage(100, device="xpu:1")
        queue = torch.xpu.current_stream(1).sycl_queue
        assert asked == [(100, 1, queue)] and freed == []
        try:
            torch.UntypedStorage(2 << 20, device="xpu")
        except torch.OutOfMemoryError as error:
            assert "2.00 MiB" in str(error) and "change_current_allocator" in str(error)
        else:
            raise AssertionError("no error")
        del first
        assert freed == [(100, 1, queue)]
        for forbidden in (torch.xpu.memory_stats, torch.xpu.memory_snapshot):
            try:
                forbidden()
            except NotImplementedError as error:
                assert "change_current_allocator" in str(error)
            else:
                raise AssertionError(forbidden)
        """,
        **NULL,
    )


def test_an_allocator_in_use_is_not_changed(run_python) -> None:
    run_python(
        """
        import torch
        before = torch.xpu.memory._get_current_allocator()
        torch.xpu.memory.change_current_allocator(before)
        memory = torch.UntypedStorage(1, device="xpu")
        try:
            torch.xpu.memory.change_current_allocator(before)
        except RuntimeError as error:
            assert "already" in str(error)
        else:
            raise AssertionError("no error")
        """,
        **NULL,
    )


def test_a_forked_child_may_drop_the_parents_tensors(run_python) -> None:
    run_python(
        """
        import os, torch
        memory = torch.UntypedStorage(1000, device="xpu")
        pinned = torch.empty(10, pin_memory=True)
        child = os.fork()
        if child == 0:
            del memory, pinned
            try:
                torch.UntypedStorage(1000, device="xpu")
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        del memory
        assert torch.xpu.memory_allocated() == 0
        """,
        **NULL,
    )


def test_what_a_host_operator_takes_beside_its_results_is_the_devices_memory(run_python) -> None:
    run_python(
        """
        import torch
        torch.zeros(1, device="xpu").sum()  # the CPU's allocator is watched from the first such operator on
        small = torch.ones(1 << 20, dtype=torch.int8, device="xpu")
        large = torch.ones(30 << 20, dtype=torch.int8, device="xpu")
        cached = torch.empty(150 << 20, dtype=torch.int8, device="xpu")
        del cached
        assert torch.xpu.memory_reserved() >= 180 << 20
        try:
            large.sum()  # int64 on the host: eight times as much
        except torch.OutOfMemoryError as error:
            assert "sum" in str(error) and "runs on the host" in str(error) and "240.00 MiB there" in str(error), error
        else:
            raise AssertionError("no error")
        assert torch.xpu.memory_reserved() < 100 << 20  # what was cached has been given back first
        small.sum()
        torch.ones(50 << 20, dtype=torch.int8).sum()  # of the host's own tensors nothing is asked
        """,
        **NULL,
    )


def test_cached_memory_makes_room_for_large_tensors_of_the_cpu(run_python) -> None:
    """Where both are the machine's memory, the system would end the process."""
    run_python(
        """
        import torch
        torch.zeros(1, device="xpu").sum()  # the CPU's allocator is watched from the first such operator on
        kept = torch.ones(30 << 20, dtype=torch.int8, device="xpu")
        cached = torch.empty(150 << 20, dtype=torch.int8, device="xpu")
        del cached
        reserved = torch.xpu.memory_reserved()
        assert reserved >= 180 << 20
        torch.ones(1 << 20, dtype=torch.int8)  # small ones ask for nothing
        assert torch.xpu.memory_reserved() == reserved
        large = torch.ones(200 << 20, dtype=torch.int8)
        assert torch.xpu.memory_reserved() < 100 << 20 and torch.xpu.memory_allocated() >= 30 << 20
        torch.ones(1 << 30, dtype=torch.int8)  # more than the device has is not the device's business
        assert kept.cpu().eq(1).all() and large[-1] == 1
        """,
        **NULL,
    )


def test_statistics_show_what_a_host_operator_took_beside_its_results(run_python) -> None:
    run_python(
        """
        import torch
        from anyxpu.shim import lib
        lib().set_eager("host")
        values = torch.ones(1 << 20, device="xpu")
        before = torch.xpu.memory_allocated()
        torch.xpu.reset_peak_memory_stats()
        torch.kthvalue(values, 5)  # ATen's kernel sorts a copy of 4 bytes an element and its indices of 8
        grown = torch.xpu.max_memory_allocated() - before
        assert 12 << 20 <= grown < 16 << 20 and torch.xpu.memory_allocated() == before, grown
        reserved = torch.xpu.memory_reserved()
        assert reserved >= before + grown
        torch.kthvalue(values, 5)  # in the blocks that it left
        assert torch.xpu.memory_reserved() == torch.xpu.max_memory_reserved() == reserved
        torch.kthvalue(torch.ones(1 << 20), 5)
        assert torch.xpu.max_memory_allocated() - torch.xpu.memory_allocated() < 16 << 20
        """,
        **NULL,
    )
