"""Import order: a room that imports torch is imported by torch too, at the end of torch's own import.

``import anyxpu.ops`` before ``import torch`` (the order that sorted imports have) would have torch meet a module that
is half imported. So torch goes first; Triton likewise, which looks through its backends at the end of its own import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# By what their names begin with; what is heavy goes first where it is not there yet.
_FIRST: tuple[tuple[str, str], ...] = (
    ("anyxpu.ops", "torch"),
    ("anyxpu.runtime", "torch"),
    ("anyxpu.inductor", "torch"),
    ("anyxpu.onednn", "torch"),
    ("anyxpu.triton.compiler", "triton"),
    ("anyxpu.triton.driver", "triton"),
)


class _Imported(Loader):
    """Gives the module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # which the import system has just replaced


class TorchFirst(MetaPathFinder):
    """Imports what goes first, and then leaves the search to the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        heavy = next((word for prefix, word in _FIRST if fullname.startswith(prefix)), None)
        if heavy is None or heavy in sys.modules:
            return None
        try:
            importlib.import_module(heavy)
        except ImportError:
            return None  # the module says itself that it needs it
        module = sys.modules.get(fullname)  # that import may have brought it along
        return None if module is None else ModuleSpec(fullname, _Imported(module), origin=module.__file__)


def install() -> None:
    """Watch the imports of this process."""
    if not any(isinstance(finder, TorchFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFirst())
