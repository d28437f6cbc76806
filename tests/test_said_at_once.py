"""What does not work on xpu says so where it is asked for."""

from __future__ import annotations

import pytest
import torch


def test_wrappers_in_cpp_are_refused_for_what_is_missing() -> None:
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.raises(Exception, match="cpp_wrapper do not serve xpu yet"),
    ):
        torch.compile(lambda x: x + 1)(torch.ones(4, device="xpu"))
    torch._dynamo.reset()
    assert torch.compile(lambda x: x + 1)(torch.ones(4, device="xpu")).shape == (4,)
