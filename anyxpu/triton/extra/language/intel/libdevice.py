"""``triton.language.extra.intel.libdevice``: the functions that ``tl.extra.libdevice`` is on xpu."""

from __future__ import annotations

import sys

from anyxpu.triton import libdevice

sys.modules[__name__] = libdevice
