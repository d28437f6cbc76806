"""The C++ half that PyTorch demands: guard, hooks, allocator, generator, launch. Built on first need."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
from types import ModuleType

from anyxpu import build

_lock = threading.Lock()


def lib() -> ModuleType:
    """The extension module, built if it is not in the cache (once; some 7 minutes of one core, on all cores).

    Loading it registers xpu's guard, hooks, allocator and structural operators with torch; it starts no driver.

    Raises:
        anyxpu.build.BuildError: it cannot be built here.
    """
    module = sys.modules.get(build.SHIM_MODULE)
    if module is not None:
        return module
    import torch  # noqa: F401  # its import loads us through autoload, so it must come before our lock

    module = sys.modules.get(build.SHIM_MODULE)
    if module is not None:
        return module
    with _lock:
        if build.SHIM_MODULE not in sys.modules:
            _load()
    return sys.modules[build.SHIM_MODULE]


def _load() -> None:
    library = build.shim()
    path = library.path()
    if not library.is_built():
        sys.stderr.write("anyxpu: building the shim for this torch (once: some 7 minutes of one core, on all cores)\n")
        build.build(library)
    loader = importlib.machinery.ExtensionFileLoader(build.SHIM_MODULE, str(path))
    spec = importlib.util.spec_from_loader(build.SHIM_MODULE, loader, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[build.SHIM_MODULE] = module
