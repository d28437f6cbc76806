"""``torch.xpu.XPUGraph``: not there, and says so.

SYCL command graphs record SYCL submissions; oneDNN's CPU engine and our host copies enqueue host tasks, which the
CPU device's graphs do not take. Nothing here pretends to capture.
"""

from __future__ import annotations

from typing import Any, NoReturn

_WHY = (
    "anyxpu does not capture graphs: {asked} needs SYCL command graphs over every kind of work a stream takes, and "
    "the CPU device's graphs refuse host tasks. Call the function directly, or use torch.compile without "
    "mode='reduce-overhead'."
)


def _refuse(asked: str) -> NoReturn:
    raise NotImplementedError(_WHY.format(asked=asked))


class XPUGraphBase:
    """Base of ``torch.xpu.XPUGraph``; making one raises NotImplementedError."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        _refuse("torch.xpu.XPUGraph")


def _graph_pool_handle() -> NoReturn:
    _refuse("torch.xpu.graph_pool_handle")


def _is_current_stream_capturing() -> bool:
    return False


GRAPH_BINDINGS: dict[str, Any] = {
    "_XPUGraph": XPUGraphBase,
    "_xpu_graph_pool_handle": _graph_pool_handle,
    "_xpu_isCurrentStreamCapturing": _is_current_stream_capturing,
}
