"""What tests of operators share about calls that torch refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest


def assert_refused_alike(call: Callable[[Any], object], on_cpu: Any, on_device: Any) -> None:
    """The call raises on both arguments, and the same error with the same words."""
    with pytest.raises(Exception) as expected:
        call(on_cpu)
    # That the host was asked is said once, in a warning.
    with pytest.raises(Exception) as actual, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(on_device)
    assert (type(actual.value), str(actual.value)) == (type(expected.value), str(expected.value))
