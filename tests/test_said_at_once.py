"""What does not work on xpu says so where it is asked for."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, supported_activities


def test_a_profile_of_xpu_says_that_it_has_no_kernels() -> None:
    assert ProfilerActivity.XPU not in supported_activities()
    with (
        pytest.warns(UserWarning, match="ProfilerActivity.XPU records nothing") as told,
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.XPU]) as recorded,
    ):
        torch.ones(8, 8, device="xpu").t().contiguous()
    assert any(w.filename == __file__ and "records nothing" in str(w.message) for w in told)
    assert any("ones" in event.key for event in recorded.key_averages())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile(activities=[ProfilerActivity.CPU]):
            torch.ones(8)


def test_wrappers_in_cpp_are_refused_for_what_is_missing() -> None:
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.raises(Exception, match="cpp_wrapper do not serve xpu yet"),
    ):
        torch.compile(lambda x: x + 1)(torch.ones(4, device="xpu"))
    torch._dynamo.reset()
    assert torch.compile(lambda x: x + 1)(torch.ones(4, device="xpu")).shape == (4,)
