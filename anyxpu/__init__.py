"""anyxpu: the device half of PyTorch's ``xpu`` support, over a stock wheel.

Nothing heavy is imported here: torch loads :func:`_autoload` at the end of its own import.
"""

from __future__ import annotations

from anyxpu import torch_first

__version__ = "0.1.0"

torch_first.install()


def _autoload() -> None:
    """Entry point of the group ``torch.backends``: make ``torch.xpu`` real, without starting any driver."""
    from anyxpu.runtime import install

    install()
