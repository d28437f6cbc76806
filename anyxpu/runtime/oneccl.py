"""Collectives between Intel GPUs by oneCCL's C API (``oneapi/ccl.h``), for the backend "xccl".

oneCCL is not among anyxpu's requirements: what is installed of it is used on Level Zero devices, whose memory gloo
would reach by way of the host's alone. On simulated ones, where oneCCL's kernels do not run and a program's bookkeeping
would be lost, it is used where ``ANYXPU_XCCL=oneccl`` asks for it.

Collectives run on a stream of their own for each device: they wait for what was enqueued on the current stream, and the
Work that torch gets makes its waiter's stream wait for them.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from ctypes import c_char, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyxpu.errors import AnyxpuError

VARIABLE = "ANYXPU_XCCL"
INSTALL = "pip install --no-deps oneccl==2022.2.0 impi-rt==2021.18.1"

_BYTES = 1  # onecclUint8
_MOVED = {
    torch.int8: 0,
    torch.uint8: _BYTES,
    torch.int32: 2,
    torch.uint32: 3,
    torch.int64: 4,
    torch.uint64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
# ReduceOp's number -> onecclRedOp_t: SUM, AVG, PRODUCT, MIN, MAX. Some of oneCCL's ways have no mean: it is the sum of
# shares, which also keeps 16-bit sums in their range.
_REDUCTIONS = {0: 0, 1: 0, 2: 1, 3: 3, 4: 2}
_MEAN = 1


class Missing(AnyxpuError):
    """oneCCL cannot be used here; the message says why."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 4096),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "GetUniqueId": (c_void_p,),
    "SetDevice": (c_uint32,),
    "CommInitRank": (c_void_p, c_size_t, _UniqueId, c_int),
    "CommDestroy": (c_void_p,),
    "AllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "Broadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "Reduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p),
    "AllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "AllToAllV": (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p),
}


class Library:
    """oneCCL's functions; every one of them raises where oneCCL says no.

    Raises:
        Missing: the library is not installed, or does not load.
    """

    def __init__(self) -> None:
        folder = installed_in()
        _prepare(folder)
        try:
            for name in ("libfabric.so.1", "libccl.so.2", "libccl.so.1", "libccl_legacy.so"):
                path = folder / name if folder is not None else Path(name)
                # The system's libfabric serves as well. The later two are what the second loads by their names.
                if name != "libfabric.so.1" or path.exists():
                    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                    if name == "libccl.so.2":
                        self._library = loaded
        except OSError as error:
            raise Missing(f"oneCCL does not load ({error})") from None
        self._library.onecclGetLastError.restype = c_char_p
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, f"oneccl{name}").argtypes = arguments

    def call(self, name: str, *arguments: Any) -> None:
        """``oneccl{name}(*arguments)``."""
        if status := getattr(self._library, f"oneccl{name}")(*arguments):
            why = (self._library.onecclGetLastError(None) or b"").decode(errors="replace").strip()
            raise AnyxpuError(f"oneCCL's {name} failed with status {status}: {why or 'it does not say why'}")


@cache
def library() -> Library:
    """oneCCL, loaded at the first call."""
    return Library()


def between_gpus(index: int) -> bool:
    """Whether a device is one that oneCCL knows."""
    return bool(torch.xpu.get_device_properties(index).type == "gpu")


def installed_in() -> Path | None:
    """Where pip put oneCCL; None leaves it to the system's loader."""
    for root in (sys.prefix, sysconfig.get_config_var("userbase")):
        if root and (Path(root) / "lib" / "libccl.so.2").exists():
            return Path(root) / "lib"
    return None


def _prepare(folder: Path | None) -> None:
    """What oneCCL reads from the environment, where it is not set: it looks for files of development packages."""
    values = {
        "CCL_ATL_TRANSPORT": "ofi",  # torch's launchers are not MPI's
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_ZE_LIBRARY_PATH": "libze_loader.so.1",
        "CCL_LOG_LEVEL": "error",
    }
    if folder is not None:
        values["CCL_ROOT"] = str(folder.parent)
        if (providers := folder / "libfabric" / "prov").exists():
            values["FI_PROVIDER_PATH"] = str(providers)
    if os.environ.get("ANYXPU_SIMULATE"):
        # Its kernels read the other GPU's memory, which the simulation has none of; copies are scheduled there.
        values["CCL_ENABLE_SYCL_KERNELS"] = "0"
    for name, value in values.items():
        os.environ.setdefault(name, value)


class Communicator:
    """The GPUs of one process group, of which this process has one (or several, each with its own communicator).

    Args:
        store: the group's store, for what has to be agreed upon.
        rank, size: of the group.
        load: what gives the functions in place of :func:`library`.
    """

    def __init__(self, store: Any, rank: int, size: int, load: Callable[[], Any] | None = None) -> None:
        self._store, self._rank, self._size, self._load = store, rank, size, load
        self._joined: dict[int, _Device | None] = {}

    def collective(self, name: str, reduction: int, arguments: dict[str, Any]) -> torch.xpu.Stream | None:
        """Enqueue one of c10d's operators.

        Args:
            name: of the operator, without its namespace.
            reduction: the number of its ReduceOp; -1 where it has none.
            arguments: the others, by the schema's names.

        Returns:
            The stream that it was enqueued on; None where gloo has to serve it (on every rank alike).

        Raises:
            ValueError: sizes or dtypes that do not fit together.
            AnyxpuError: oneCCL's own words.
        """
        step = _STEPS.get(name)
        tensors = [t for value in arguments.values() for t in _tensors(value)]
        if step is None or not tensors:
            return None
        if reduction >= 0 and not all(_reduces(t, reduction) for t in tensors):
            return None
        index = tensors[0].get_device()
        if any(t.device != tensors[0].device or t.layout != torch.strided for t in tensors):
            return None
        if index not in self._joined:
            self._joined[index] = self._join(index)
        device = self._joined[index]
        if device is None:
            return None
        device.stream.wait_stream(torch.xpu.current_stream(index))
        with torch.xpu.stream(device.stream):
            step(device, arguments, reduction)
        for t in tensors:
            t.record_stream(device.stream)
        return device.stream

    def close(self) -> None:
        """Give the communicators back. Every rank has to."""
        for device in self._joined.values():
            if device is not None:
                device.stream.synchronize()
                device.library.call("CommDestroy", device.communicator)
        self._joined = {}

    def _join(self, index: int) -> _Device | None:
        chosen = os.environ.get(VARIABLE) or ("gloo" if os.environ.get("ANYXPU_SIMULATE") else "oneccl")
        if not between_gpus(index):
            return None
        prefix = f"oneccl {len(self._joined)}"
        found, why = None, ""
        try:
            if chosen == "gloo":
                raise Missing(f"it is left out ({VARIABLE}=gloo, or a simulated GPU)")
            found = (self._load or library)()
            found.call("SetDevice", index)
        except AnyxpuError as error:
            why = str(error)
        self._store.set(f"{prefix} rank {self._rank}", why or "yes")
        answers = [self._store.get(f"{prefix} rank {rank}").decode() for rank in range(self._size)]
        refused = {rank: answer for rank, answer in enumerate(answers) if answer != "yes"}
        if refused or found is None:
            rank, why = next(iter(refused.items()))
            if chosen == "gloo":
                return None  # as was asked for
            warnings.warn(
                f"anyxpu: collectives of xpu tensors go through the host's memory (gloo), for on rank {rank} {why}. "
                f"To have it: {INSTALL}; {VARIABLE}=gloo leaves it out without a word",
                stacklevel=2,
            )
            return None
        identity = _UniqueId()
        if self._rank == 0:
            found.call("GetUniqueId", ctypes.addressof(identity))
            self._store.set(prefix, bytes(identity))
        else:
            ctypes.memmove(ctypes.addressof(identity), self._store.get(prefix), ctypes.sizeof(identity))
        communicator = c_void_p()
        found.call("CommInitRank", ctypes.addressof(communicator), self._size, identity, self._rank)
        return _Device(found, communicator, self._rank, self._size, torch.xpu.Stream(index))


class _Device:
    """A communicator and the stream that its collectives run on; the methods enqueue there."""

    def __init__(self, found: Any, communicator: c_void_p, rank: int, size: int, stream: torch.xpu.Stream) -> None:
        self.library, self.communicator, self.rank, self.size, self.stream = found, communicator, rank, size, stream

    def enqueue(self, name: str, *arguments: Any) -> None:
        self.library.call(name, *arguments, self.communicator, c_void_p(self.stream.sycl_queue))

    def share(self, tensor: Tensor, reduction: int) -> Tensor:
        """What a reduction takes of a tensor, dense."""
        return (tensor / self.size if reduction == _MEAN else tensor).contiguous()

    def all_reduce(self, tensor: Tensor, reduction: int) -> None:
        dense = self.share(tensor, reduction)
        if dense.numel():
            address = dense.data_ptr()
            self.enqueue("AllReduce", address, address, dense.numel(), _MOVED[dense.dtype], _REDUCTIONS[reduction])
        _put(dense, tensor)

    def reduce(self, tensor: Tensor, root: int, reduction: int) -> None:
        dense = self.share(tensor, reduction)
        if dense.numel():
            address, operation = dense.data_ptr(), _REDUCTIONS[reduction]
            self.enqueue("Reduce", address, address, dense.numel(), _MOVED[dense.dtype], operation, root)
        if self.rank == root:
            _put(dense, tensor)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        dense = tensor.contiguous()
        if dense.numel():
            self.enqueue("Broadcast", dense.data_ptr(), dense.data_ptr(), *_moved(dense, dense.numel()), root)
        _put(dense, tensor)

    def all_gather(self, output: Tensor, source: Tensor) -> None:
        _fits("all_gather", output, source, self.size)
        dense, given = output.contiguous(), source.contiguous()
        if given.numel():
            self.enqueue("AllGather", given.data_ptr(), dense.data_ptr(), *_moved(given, given.numel()))
        _put(dense, output)

    def reduce_scatter(self, output: Tensor, source: Tensor, reduction: int) -> None:
        _fits("reduce_scatter", source, output, self.size)
        dense, given = output.contiguous(), self.share(source, reduction)
        if dense.numel():
            operands = given.data_ptr(), dense.data_ptr(), dense.numel(), _MOVED[dense.dtype]
            self.enqueue("ReduceScatter", *operands, _REDUCTIONS[reduction])
        _put(dense, output)

    def all_to_all(self, output: Tensor, source: Tensor, received: Sequence[int], sent: Sequence[int]) -> None:
        """``received`` and ``sent`` count elements, for each rank."""
        for what, tensor, counts in (("receives", output, received), ("sends", source, sent)):
            if len(counts) != self.size or sum(counts) != tensor.numel():
                raise ValueError(
                    f"all_to_all: rank {self.rank} {what} {list(counts)} elements with {self.size} ranks, and its "
                    f"tensor has {tensor.numel()}"
                )
        _same("all_to_all", output, source)
        dense, given = output.contiguous(), source.contiguous()
        unit, kind = _moved(given, 1)
        array = c_size_t * self.size
        out, into = array(*(unit * n for n in sent)), array(*(unit * n for n in received))
        self.enqueue("AllToAllV", given.data_ptr(), out, dense.data_ptr(), into, kind)
        _put(dense, output)


def _put(dense: Tensor, tensor: Tensor) -> None:
    if dense is not tensor and dense.data_ptr() != tensor.data_ptr():
        tensor.copy_(dense)


def _moved(tensor: Tensor, count: int) -> tuple[int, int]:
    """So many elements as oneCCL moves them: their count and its data type, bytes where it has no other."""
    known = _MOVED.get(tensor.dtype)
    return (count * tensor.element_size(), _BYTES) if known is None else (count, known)


def _reduces(tensor: Tensor, reduction: int) -> bool:
    if reduction == _MEAN and not tensor.is_floating_point():
        return False  # gloo's refusal is clearer
    return tensor.dtype in _MOVED and reduction in _REDUCTIONS


def _same(what: str, *tensors: Tensor) -> None:
    if len(kinds := {t.dtype for t in tensors}) > 1:
        raise ValueError(f"{what}: all tensors must have one dtype, and there are {', '.join(sorted(map(str, kinds)))}")


def _fits(what: str, whole: Tensor, part: Tensor, size: int) -> None:
    _same(what, whole, part)
    if whole.numel() != part.numel() * size:
        raise ValueError(
            f"{what}: with {size} ranks the larger tensor has {size} times the elements of the smaller, and they have "
            f"{whole.numel()} and {part.numel()}"
        )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for element in value for t in _tensors(element)] if isinstance(value, (list, tuple)) else []


def _allreduce(device: _Device, given: dict[str, Any], reduction: int) -> None:
    for tensor in given["tensors"]:
        device.all_reduce(tensor, reduction)


def _broadcast(device: _Device, given: dict[str, Any], reduction: int) -> None:
    device.broadcast(given["tensors"][0], given["root_rank"])


def _reduce(device: _Device, given: dict[str, Any], reduction: int) -> None:
    device.reduce(given["tensors"][0], given["root_rank"], reduction)


def _allgather(device: _Device, given: dict[str, Any], reduction: int) -> None:
    (outputs,), (source,) = given["output_tensors"], given["input_tensors"]
    if len(outputs) != device.size:
        raise ValueError(f"all_gather: {len(outputs)} tensors for the results of {device.size} ranks")
    _same("all_gather", source, *outputs)
    if all(t.numel() == source.numel() for t in outputs):
        whole = source.new_empty(device.size, *source.shape)
        device.all_gather(whole, source)
        for tensor, part in zip(outputs, whole, strict=True):
            tensor.copy_(part.view(tensor.shape))
        return
    outputs[device.rank].copy_(source)
    for root, tensor in enumerate(outputs):
        device.broadcast(tensor, root)


def _allgather_base(device: _Device, given: dict[str, Any], reduction: int) -> None:
    device.all_gather(given["output_tensor"], given["input_tensor"])


def _allgather_coalesced(device: _Device, given: dict[str, Any], reduction: int) -> None:
    for output, source in zip(given["outputs"], given["inputs"], strict=True):
        device.all_gather(output, source)


def _reduce_scatter(device: _Device, given: dict[str, Any], reduction: int) -> None:
    (output,), (sources,) = given["output_tensors"], given["input_tensors"]
    if len(sources) != device.size:
        raise ValueError(f"reduce_scatter: {len(sources)} tensors for {device.size} ranks")
    _same("reduce_scatter", output, *sources)
    if all(t.numel() == output.numel() for t in sources):
        device.reduce_scatter(output, torch.cat([t.reshape(-1) for t in sources]), reduction)
        return
    for root, tensor in enumerate(sources):
        part = tensor.clone(memory_format=torch.contiguous_format)
        device.reduce(part, root, reduction)
        if root == device.rank:
            output.copy_(part.view(output.shape))


def _reduce_scatter_base(device: _Device, given: dict[str, Any], reduction: int) -> None:
    device.reduce_scatter(given["output_tensor"], given["input_tensor"], reduction)


def _reduce_scatter_coalesced(device: _Device, given: dict[str, Any], reduction: int) -> None:
    for output, source in zip(given["outputs"], given["inputs"], strict=True):
        device.reduce_scatter(output, source, reduction)


def _alltoall(device: _Device, given: dict[str, Any], reduction: int) -> None:
    outputs, sources = given["output_tensors"], given["input_tensors"]
    _same("all_to_all", *outputs, *sources)
    received = [t.numel() for t in outputs]
    whole = outputs[0].new_empty(sum(received))
    source = torch.cat([t.reshape(-1) for t in sources])
    device.all_to_all(whole, source, received, [t.numel() for t in sources])
    for tensor, part in zip(outputs, whole.split(received), strict=True):
        tensor.copy_(part.view(tensor.shape))


def _alltoall_base(device: _Device, given: dict[str, Any], reduction: int) -> None:
    output, source = given["output"], given["input"]

    def counts(tensor: Tensor, splits: Sequence[int]) -> list[int]:
        if splits:
            return [n * math.prod(tensor.shape[1:]) for n in splits]
        return [tensor.numel() // device.size] * device.size

    received = counts(output, given["output_split_sizes"])
    device.all_to_all(output, source, received, counts(source, given["input_split_sizes"]))


_STEPS: dict[str, Callable[[_Device, dict[str, Any], int], None]] = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _allgather,
    "_allgather_base_": _allgather_base,
    "allgather_into_tensor_coalesced_": _allgather_coalesced,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_coalesced,
    "alltoall_": _alltoall,
    "alltoall_base_": _alltoall_base,
}
