"""``triton.language.extra.intel``, as Intel's build of Triton has it."""

from __future__ import annotations

from . import libdevice

__all__ = ["libdevice"]
