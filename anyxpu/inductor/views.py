"""Views of buffers whose strides are not decided yet."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any


def wait_for_strides(module: ModuleType) -> None:
    """Change ``torch._inductor.ir``: a view of a buffer on xpu with padded strides takes those that it gets in the end.

    Inductor decides a buffer's strides late. Asked for an index before, it pads them as they are by then and leaves
    them so; torch 2.13 takes such strides for decided ones and writes the view's reader with them. Without padding,
    strides that are not decided are contiguous, and a view decides them.
    """
    view: Any = module.View  # type: ignore[attr-defined]
    original = view.create.__func__

    def create(cls: Any, x: Any, new_size: Sequence[Any]) -> Any:
        if module.is_storage_and_layout(x):
            _, layout = module.as_storage_and_layout(x, freeze=False)
            undecided = isinstance(layout, module.FlexibleLayout) and not layout.is_contiguous()
            if undecided and layout.device.type == "xpu":
                old, new = cls.resolve_negative_size(x.get_size(), new_size)
                if 0 not in new and old != new:
                    return cls(data=x, size=list(new), reindex=cls.dynamic_reshape_indexer(old, new))
        return original(cls, x, new_size)

    view.create = classmethod(create)
