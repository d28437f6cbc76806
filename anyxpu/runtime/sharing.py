"""xpu tensors between processes, by ``torch.multiprocessing``.

A device that works in the host's memory (a CPU) shares: a storage that is sent moves into shared memory, and both
processes see what either writes, as with CUDA's tensors. Elsewhere the receiver gets a copy. Like CUDA's, a tensor is
complete when it is sent (the sender waits for its device); what is written later is for the two processes to order.
"""

from __future__ import annotations

import multiprocessing.reduction
import warnings
from types import ModuleType
from typing import Any

import torch

from anyxpu.shim import lib

_copies_are_told = False


def share_storages(module: ModuleType) -> None:
    """Change ``torch.multiprocessing.reductions``: storages of xpu are sent."""
    original = module.reduce_storage  # type: ignore[attr-defined]

    def reduce_storage(storage: Any) -> Any:
        return _reduced(storage) if storage.device.type == "xpu" else original(storage)

    module.__dict__["reduce_storage"] = reduce_storage
    registered: dict[type, Any] = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reducer in list(registered.items()):
        if reducer is original:
            multiprocessing.reduction.register(kind, reduce_storage)


def tell_what_is_shared(module: ModuleType) -> None:
    """Change ``torch.storage.UntypedStorage``: of xpu, ``is_shared`` tells and ``share_memory_`` acts."""
    storage = module.UntypedStorage  # type: ignore[attr-defined]
    is_shared, share_memory = storage.is_shared, storage.share_memory_

    def is_shared_(self: Any) -> bool:
        return lib().host_of_storage(self) is not None if self.device.type == "xpu" else bool(is_shared(self))

    def share_memory_(self: Any) -> Any:
        if self.device.type != "xpu":
            return share_memory(self)
        if _reaches_host(self.device):
            _shared(self)
        return self

    share_memory_.__doc__, is_shared_.__doc__ = share_memory.__doc__, is_shared.__doc__
    storage.is_shared, storage.share_memory_ = is_shared_, share_memory_


def _reaches_host(device: torch.device) -> bool:
    return bool(lib().properties(device.index).host_accessible)


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copy(storage: Any) -> Any:
    """The storage's bytes in shared memory of the host, complete."""
    host = torch.UntypedStorage._new_shared(storage.nbytes())
    torch.xpu.synchronize(storage.device)
    _bytes_of(host).copy_(_bytes_of(storage))
    return host


def _shared(storage: Any) -> Any:
    """The host's shared memory in which the storage lies from now on; None where it has no bytes."""
    host = lib().host_of_storage(storage)
    torch.xpu.synchronize(storage.device)
    if host is None and storage.nbytes():
        host = torch.UntypedStorage._new_shared(storage.nbytes())
        lib().move_storage_over_host(storage, host)
    return host


class _Sent:
    """The host's shared memory on its way to another process.

    It goes the way that it was shared, whatever this process's own strategy is: torch's own reduction would move it,
    from another thread, under an operator that is just writing it.
    """

    def __init__(self, host: Any) -> None:
        self.host = host

    def __reduce__(self) -> Any:
        from torch.multiprocessing import reductions

        if lib().has_descriptor(self.host):
            descriptor, size = self.host._share_fd_cpu_()
            how, key = (multiprocessing.reduction.DupFd(descriptor), size), reductions.fd_id(descriptor)
            rebuild: Any = reductions.rebuild_storage_fd
        else:
            how = self.host._share_filename_cpu_()
            key, rebuild = how[1], reductions.rebuild_storage_filename
            self.host._shared_incref()
        reductions.shared_cache[key] = reductions.StorageWeakRef(self.host)
        return rebuild, (type(self.host), *how)


def _reduced(storage: Any) -> Any:
    device = storage.device.index
    if not storage.nbytes():
        return _empty, (device,)
    if _reaches_host(storage.device):
        return _over, (_Sent(_shared(storage)), device)
    global _copies_are_told
    if not _copies_are_told:
        _copies_are_told = True
        warnings.warn(
            "anyxpu: a tensor on xpu is sent to another process as a copy: this device's memory is not shared between "
            "processes yet. What either process writes into it later, the other does not see.",
            stacklevel=2,
        )
    return _uploaded, (_copy(storage), device)


def _empty(device: int) -> Any:
    return torch.UntypedStorage(0, device=torch.device("xpu", device))


def _over(host: Any, device: int) -> Any:
    _start(device)
    return lib().storage_over_host(host, device)


def _uploaded(host: Any, device: int) -> Any:
    return _bytes_of(host).to(torch.device("xpu", device)).untyped_storage()


def _start(device: int) -> None:
    torch.xpu.init()
    if device >= torch.xpu.device_count():
        count = torch.xpu.device_count()
        raise RuntimeError(f"anyxpu: a tensor of xpu:{device} came to a process that has {count} xpu devices")
