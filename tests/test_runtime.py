"""torch.xpu over anyxpu's bindings: autoload, devices, random state, fork, standing aside."""

from __future__ import annotations

import pytest
import torch

from anyxpu import simulate


def test_autoload_needs_no_import(run_python):
    out = run_python("import torch; print(torch.ones(2, device='xpu'))").stdout
    assert out.strip() == "tensor([1., 1.], device='xpu:0')"


def test_import_starts_no_driver(run_python):
    source = """
import torch, sys
shim = sys.modules['anyxpu_shim']
print(shim.started()); torch.xpu.init(); print(shim.started())
"""
    assert run_python(source).stdout.split() == ["False", "True"]


def test_disable_leaves_torch_stock(run_python):
    source = "import torch, sys; print(torch.xpu.is_available(), torch._C._has_xpu, 'anyxpu_shim' in sys.modules)"
    assert run_python(source, ANYXPU_DISABLE="1").stdout.split() == ["False", "False", "False"]


def test_stands_aside_where_xpu_is_compiled_in(run_python):
    source = """
import torch, sys
torch._C._has_xpu = True
import anyxpu; anyxpu._autoload()
from anyxpu.runtime import status
print(status.active, 'anyxpu_shim' in sys.modules, status.reason)
"""
    out = run_python(source, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
    assert out.startswith("False False torch ")
    assert "stands aside" in out


def test_fork_gets_the_error_cuda_gives(run_python):
    source = """
import os, torch, sys
torch.ones(1, device='xpu')
pid = os.fork()
if pid == 0:
    for use in (lambda: torch.ones(1, device='xpu'), lambda: torch.xpu.synchronize(), lambda: torch.xpu.Stream()):
        try:
            use()
            print('no error')
        except RuntimeError as e:
            print(str(e).split('.')[0])
    print(torch.xpu.is_initialized())
    sys.stdout.flush(); os._exit(0)
os.waitpid(pid, 0)
print(torch.ones(1, device='xpu').item())
"""
    out = run_python(source).stdout.splitlines()
    assert out == ["Cannot re-initialize XPU in forked subprocess"] * 3 + ["False", "1.0"]


def test_fork_before_first_use_is_fine(run_python):
    source = """
import os, torch, sys
pid = os.fork()
if pid == 0:
    print(torch.ones(1, device='xpu').item()); sys.stdout.flush(); os._exit(0)
os.waitpid(pid, 0)
print(torch.ones(1, device='xpu').item())
"""
    assert run_python(source).stdout.split() == ["1.0", "1.0"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ANYXPU_DRIVER": "cuda"}, ["ANYXPU_DRIVER='cuda'", "sycl, null"]),
        ({"ANYXPU_DEVICES": "two"}, ["ANYXPU_DEVICES='two'", "number of devices"]),
    ],
)
def test_bad_variable_is_one_clear_error(run_python, variables, words):
    source = """
import torch
print(torch.xpu.is_available())
try:
    torch.ones(1, device='xpu')
except RuntimeError as e:
    print(e)
"""
    out = run_python(source, **variables).stdout
    assert out.startswith("False")
    assert all(word in out for word in words)


def test_device_index_out_of_range_names_what_there_is(xpu):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal 7"):
        torch.ones(1, device="xpu:7")
    with pytest.raises(RuntimeError, match=r"invalid device ordinal 7"):
        torch.xpu.set_device(7)
    assert torch.ones(1, device="xpu").item() == 1


def test_current_device_is_per_thread_and_scoped(run_python):
    source = """
import torch, threading
seen = []
with torch.xpu.device(1):
    t = threading.Thread(target=lambda: seen.append(torch.xpu.current_device())); t.start(); t.join()
    seen.append(torch.xpu.current_device())
    seen.append(torch.ones(1, device='xpu').device.index)
    seen.append(torch.accelerator.current_device_index())
seen.append(torch.xpu.current_device())
with torch.xpu.device_of(torch.ones(1, device='xpu:1')): seen.append(torch.xpu.current_device())
torch.xpu.set_device('xpu:1'); seen.append(torch.xpu.current_device())
with torch.accelerator.device_index(0): seen.append(torch.xpu.current_device())
print(*seen)
"""
    assert run_python(source, ANYXPU_DEVICES="2").stdout.split() == ["0", "1", "1", "1", "0", "1", "1", "0"]


def test_accelerator_is_xpu(xpu):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "xpu"
    assert torch.accelerator.device_count() == torch.xpu.device_count()
    assert torch.get_device_module("xpu") is torch.xpu
    torch.accelerator.synchronize()


def test_properties_are_those_of_the_machine(xpu):
    properties = torch.xpu.get_device_properties()
    assert properties.name == torch.xpu.get_device_name()
    assert properties.max_work_group_size >= 256
    assert 16 in properties.sub_group_sizes
    assert properties.total_memory > 1 << 30
    capability = torch.xpu.get_device_capability()
    assert capability["max_compute_units"] == properties.max_compute_units
    assert isinstance(torch.accelerator.get_device_capability(), dict)


def test_capability_and_target_say_what_programs_for_intels_gpus_read(xpu):
    """The keys that Intel's Triton tutorials, lerobot, SDNQ, SGLang and Inductor look up, in the forms they expect."""
    from triton.runtime import driver

    capability = torch.xpu.get_device_capability()
    major, minor, *_ = map(int, capability["version"].split("."))
    assert (major, minor) > (0, 0)
    assert {type(capability[key]) for key in ("has_fp16", "has_fp64", "has_subgroup_2d_block_io")} == {bool}
    assert capability["architecture"] > 0 and capability["device_id"] > 0
    assert capability["max_num_sub_groups"] > 0 and capability["gpu_eu_count"] > 0

    from triton.testing import get_dram_gbps

    target = driver.active.get_current_target()
    assert target.backend == "xpu" and target.arch["architecture"] == capability["architecture"]
    assert target.arch["arch"] == (simulate.active() or "cpu")
    assert target.arch["core_clock_rate"] == capability["clock_rate"]
    held = driver.active.utils.get_device_properties(torch.xpu.current_device())
    assert held["sub_group_sizes"][-1] >= 16 and held["max_shared_mem"] >= 32 << 10
    assert held["multiprocessor_count"] > 0 and held["max_work_group_size"] >= 256
    assert 1 < get_dram_gbps() < 100_000  # which torch divides by where it estimates times


class TestRandomState:
    def test_manual_seed_reaches_the_device(self, xpu):
        torch.manual_seed(1234)
        assert torch.xpu.initial_seed() == 1234
        first = torch.randn(64, device="xpu").cpu()
        second = torch.randn(64, device="xpu").cpu()
        torch.manual_seed(1234)
        assert torch.equal(torch.randn(64, device="xpu").cpu(), first)
        assert torch.equal(torch.randn(64, device="xpu").cpu(), second)
        assert not torch.equal(first, second)

    def test_seed_before_first_use(self, run_python):
        source = (
            "import torch; torch.manual_seed(7); print(torch.xpu.initial_seed(), torch.xpu.get_rng_state().numel())"
        )
        assert run_python(source).stdout.split() == ["7", "16"]

    def test_state_saves_and_restores(self, xpu):
        torch.xpu.manual_seed(5)
        torch.randn(10, device="xpu")
        state = torch.xpu.get_rng_state()
        first = torch.randn(10, device="xpu").cpu()
        torch.xpu.set_rng_state(state)
        assert torch.equal(torch.randn(10, device="xpu").cpu(), first)

    def test_fork_rng_leaves_no_trace(self, xpu):
        torch.manual_seed(3)
        state = torch.xpu.get_rng_state()
        with torch.random.fork_rng(device_type="xpu"):
            torch.manual_seed(99)
            torch.randn(5, device="xpu")
            assert not torch.equal(torch.xpu.get_rng_state(), state)
        assert torch.equal(torch.xpu.get_rng_state(), state)

    def test_own_generator(self, xpu):
        generator = torch.Generator(device="xpu").manual_seed(11)
        assert generator.device == torch.device("xpu", 0)
        first = torch.rand(8, device="xpu", generator=generator).cpu()
        copy = generator.clone_state()
        second = torch.rand(8, device="xpu", generator=generator).cpu()
        assert torch.equal(torch.rand(8, device="xpu", generator=copy).cpu(), second)
        assert not torch.equal(first, second)
        assert torch.equal(torch.rand(8, device="xpu", generator=generator.manual_seed(11)).cpu(), first)
        with pytest.raises(RuntimeError, match="size"):
            generator.set_state(torch.zeros(3, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="multiple of 4"):
            generator.set_offset(3)


def test_graphs_are_refused_clearly(xpu):
    with pytest.raises(NotImplementedError, match="XPUGraph"):
        torch.xpu.XPUGraph()
    assert not torch.xpu.is_current_stream_capturing()


@pytest.mark.not_simulated("torch reads a GPU's telemetry with the package pyzes, which asks the hardware")
@pytest.mark.parametrize("name", ["temperature", "power_draw", "memory_usage"])
def test_unknown_telemetry_is_refused_clearly(xpu, name):
    if not hasattr(torch.xpu, name):
        pytest.skip(f"this torch has no torch.xpu.{name}")
    with pytest.raises(NotImplementedError, match=name):
        getattr(torch.xpu, name)()


@pytest.mark.not_simulated("torch reads a GPU's telemetry with the package pyzes, which asks the hardware")
@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("clock_rate", 100, 10_000), ("utilization", 0, 100), ("device_memory_used", 1, None)],
)
def test_known_telemetry_is_plausible(xpu, name, lowest, highest):
    if not hasattr(torch.xpu, name):
        pytest.skip(f"this torch has no torch.xpu.{name}")
    value = getattr(torch.xpu, name)()
    assert lowest <= value <= (highest or torch.xpu.get_device_properties().total_memory)
