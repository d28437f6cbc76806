"""Which device is the accelerator in a torch built for CUDA."""

from __future__ import annotations

import pytest
import torch

from anyxpu.runtime import accelerator

for_cuda = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a torch built for CUDA")
BACKWARD = """
    import torch
    assert torch.accelerator.current_accelerator().type == "xpu", torch.accelerator.current_accelerator()
    x = torch.ones(3, device="xpu", requires_grad=True)
    with torch.xpu.stream(torch.xpu.Stream()):
        y = x.view(3, 1).expand(3, 2)
    y.backward(torch.ones(3, 2, device="xpu"))
    assert x.grad.device.type == "xpu"
    assert torch.empty(4).pin_memory().is_pinned()
    torch.accelerator.synchronize()
"""


def test_cuda_is_preferred_where_it_has_a_device(monkeypatch):
    monkeypatch.delenv(accelerator.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert accelerator.wanted() == "cuda"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert accelerator.wanted() == "xpu"


def test_the_variable_decides_and_nonsense_in_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv(accelerator.VARIABLE, "xpu")
    assert accelerator.wanted() == "xpu"
    monkeypatch.setenv(accelerator.VARIABLE, "tpu")
    with pytest.raises(ValueError, match=r"ANYXPU_ACCELERATOR='tpu'.*use cuda or xpu"):
        accelerator.wanted()


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs a torch built without CUDA")
def test_a_build_without_cuda_keeps_atens_functions():
    assert type(torch._C._accelerator_getAccelerator).__name__ == "builtin_function_or_method"


def test_the_choice_is_made_before_the_first_answer(monkeypatch):
    calls = []
    monkeypatch.setattr(accelerator, "choose", lambda: calls.append("choose"))
    accelerator._chosen_first(lambda: calls.append("answer"))()
    assert calls == ["choose", "answer"]


@for_cuda
def test_without_a_cuda_device_xpu_is_the_accelerator_and_has_gradients(run_python):
    run_python(BACKWARD, CUDA_VISIBLE_DEVICES="")


@for_cuda
def test_beside_a_cuda_device_xpu_is_the_accelerator_if_asked_for(run_python):
    run_python(BACKWARD, ANYXPU_ACCELERATOR="xpu")


@pytest.mark.parametrize(("cuda", "xpu", "device_type"), [(1, 1, "cuda"), (0, 1, "xpu")])
def test_inductor_finds_one_kind_of_gpu(cuda, xpu, device_type, monkeypatch):
    from torch._inductor.runtime import benchmarking
    from torch._inductor.utils import get_gpu_type

    monkeypatch.delenv(accelerator.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: bool(xpu))
    assert get_gpu_type() == device_type
    if function := getattr(benchmarking, "_get_default_gpu_device_type", None):  # new in torch 2.12
        assert function() == device_type


def test_fake_tensors_work_beside_cuda(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode():
        assert torch.ones(2, device="cpu").shape == (2,)


def test_beside_a_cuda_device_xpu_functions_mean_xpus_current_device(run_python):
    run_python(
        """
        import torch
        torch.cuda.is_available = lambda: True
        torch.cuda.current_device = lambda: 0
        torch.xpu.set_device(1)
        x = torch.ones(1000, device="xpu")
        assert x.device.index == torch.xpu.current_stream().device_index == torch.xpu.current_device() == 1
        assert torch.xpu.memory_allocated() == torch.xpu.memory_allocated("xpu") == 4096
        assert torch.xpu.memory_allocated(0) == torch.xpu.memory_allocated("xpu:0") == 0
        assert torch.xpu.StreamContext(torch.xpu.Stream()).idx == 1
        assert torch.xpu.device(None).idx == 1
        with torch.xpu.device(0):
            assert torch.xpu.current_stream().device_index == 0
        torch.xpu.synchronize()
        """,
        ANYXPU_DEVICES="2",
    )


@for_cuda
def test_compiling_for_cuda_works_beside_xpu(run_python):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    run_python("""
        import torch
        torch.ones(1, device="xpu")
        x = torch.randn(4, 100, device="cuda", requires_grad=True)
        y = torch.compile(lambda a: torch.softmax(a, -1) * 2)(x)
        y.sum().backward()
        torch.testing.assert_close(y, torch.softmax(x, -1) * 2)
    """)
