"""torch.accelerator in a build made for CUDA, where there is no CUDA device: what stands in for ATen's own functions.

This torch has ATen's functions for xpu, so they are the reference.
"""

from __future__ import annotations

import pytest
import torch

from anyxpu.runtime import accelerator

CALLS = {
    "_get_accelerator": (),
    "_accelerator_getAccelerator": (),
    "_accelerator_getDeviceIndex": (),
    "_accelerator_getDeviceCapability": (0,),
    "_accelerator_getStream": (0,),
    "_accelerator_synchronizeDevice": (0,),
    "_accelerator_exchangeDevice": (0,),
    "_accelerator_maybeExchangeDevice": (0,),
    "_accelerator_setDeviceIndex": (0,),
    "_accelerator_hooks_device_count": (),
    "_accelerator_hooks_set_current_device": (0,),
    "_accelerator_hooks_get_current_device": (),
    "_accelerator_hooks_exchange_device": (0,),
    "_accelerator_hooks_maybe_exchange_device": (0,),
    "_accelerator_isAllocatorInitialized": (),
    "_accelerator_emptyCache": (),
    "_accelerator_emptyHostCache": (),
    "_accelerator_getDeviceStats": (0,),
    "_accelerator_resetAccumulatedStats": (0,),
    "_accelerator_resetPeakStats": (0,),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_stand_in_answers_as_aten_does(name, xpu):
    torch.empty(4, device=xpu)
    assert accelerator.table()[name](*CALLS[name]) == getattr(torch._C, name)(*CALLS[name])


def test_the_current_stream_is_set(xpu):
    before, stream = torch.xpu.current_stream(), torch.xpu.Stream()
    accelerator.table()["_accelerator_setStream"](stream)
    try:
        assert torch.xpu.current_stream() == stream
        assert torch._C._accelerator_getStream(0).stream_id == stream.stream_id
    finally:
        torch.xpu.set_stream(before)


def test_stand_ins_serve_only_where_there_is_no_cuda_device(monkeypatch):
    chosen = accelerator._chosen(lambda: "torch's own", lambda: "ours")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen() == "torch's own"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen() == "ours"


def test_a_build_without_cuda_keeps_atens_functions():
    assert not torch.backends.cuda.is_built()
    assert type(torch._C._accelerator_getAccelerator).__name__ == "builtin_function_or_method"


def test_every_function_of_torch_accelerator_has_a_stand_in():
    settings = {"_accelerator_getAllocatorSettings", "_accelerator_setAllocatorSettings"}  # of no one device
    functions = {name for name in dir(torch._C) if name.startswith("_accelerator_")}
    assert functions - settings <= set(accelerator.table())


def test_emptying_the_host_cache_frees_pinned_memory(xpu):
    kept = torch.empty(1 << 20, pin_memory=True)
    del kept
    accelerator.table()["_accelerator_emptyHostCache"]()
    from anyxpu.shim import lib

    assert lib().host_memory_stats()["reserved_bytes"]["current"] == 0
