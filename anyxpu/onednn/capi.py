"""The part of oneDNN's C API that anyxpu calls: where the library is, its prototypes, enums and errors.

The library is the one of the ``onednn`` package, which is built on SYCL for CPUs and GPUs alike. It is loaded at the
first matrix product or convolution, never at import.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch

from anyxpu import build
from anyxpu.errors import AnyxpuError
from anyxpu.shim import lib

SYCL_DRIVER = "sycl"
MAX_DIMS = 12
Dims = c_int64 * MAX_DIMS

EXCEPTION = -1  # the guard's word for a call that let a C++ exception out
NOTHING_TAKEN = -2  # of a primitive that was no host task
SYCL_RUNTIME = 512  # dnnl_version_t's word for a library built on SYCL
USM = 0  # dnnl_sycl_interop_memory_kind_t: plain addresses


class Status(IntEnum):
    """What every call returns (dnnl_status_t)."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    INVALID_ARGUMENTS = 2
    UNIMPLEMENTED = 3
    LAST_IMPL_REACHED = 4
    RUNTIME_ERROR = 5
    NOT_REQUIRED = 6


class Arg(IntEnum):
    """Which operand of a primitive a memory is (DNNL_ARG_*)."""

    SRC = 1
    SRC_ITER = 2
    SRC_ITER_C = 3
    DST = 17
    DST_ITER = 18
    DST_ITER_C = 19
    WEIGHTS = 33
    WEIGHTS_ITER = 34
    BIAS = 41
    WORKSPACE = 64
    SCRATCHPAD = 80
    SRC_SCALE = 1 << 12 | 1
    WEIGHTS_SCALE = 1 << 12 | 33
    DST_SCALE = 1 << 12 | 17
    SRC_ZERO_POINT = 1 << 13 | 1
    WEIGHTS_ZERO_POINT = 1 << 13 | 33
    DST_ZERO_POINT = 1 << 13 | 17
    FIRST_POST_OP = 1 << 15 | 2  # the second operand of what comes first after the primitive's own work
    FIRST_SLOPES = 1 << 15 | 33  # of a prelu that comes first after it
    SECOND_SLOPES = 2 << 15 | 33
    DIFF_SRC = 129
    DIFF_SRC_ITER = 130
    DIFF_SRC_ITER_C = 131
    DIFF_DST = 145
    DIFF_DST_ITER = 146
    DIFF_DST_ITER_C = 147
    DIFF_WEIGHTS = 161
    DIFF_WEIGHTS_ITER = 162
    DIFF_BIAS = 169


class Query(IntEnum):
    """What to ask a primitive descriptor (dnnl_query_t)."""

    IMPL_INFO_STR = 8
    SCRATCHPAD_MD = 136
    EXEC_ARG_MD = 255


class Prop(IntEnum):
    """Direction of propagation (dnnl_prop_kind_t)."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Algorithm(IntEnum):
    """dnnl_alg_kind_t."""

    CONVOLUTION_DIRECT = 0x1
    DECONVOLUTION_DIRECT = 0xA
    ELTWISE_RELU = 0x20
    ELTWISE_TANH = 0x21
    ELTWISE_ELU = 0x22
    ELTWISE_LINEAR = 0x26
    ELTWISE_HARDSIGMOID = 0x28
    ELTWISE_LOGISTIC = 0x29
    ELTWISE_GELU_TANH = 0x2B
    ELTWISE_SWISH = 0x2C
    ELTWISE_CLIP = 0x2E
    ELTWISE_GELU_ERF = 0x31
    ELTWISE_MISH = 0x33
    ELTWISE_HARDSWISH = 0x34
    BINARY_ADD = 0x1FFF0
    BINARY_MUL = 0x1FFF1
    BINARY_DIV = 0x1FFF4
    BINARY_SUB = 0x1FFF5


class Direction(IntEnum):
    """In which order a recurrent layer takes its steps (dnnl_rnn_direction_t)."""

    LEFT_TO_RIGHT = 1
    RIGHT_TO_LEFT = 2


DIFF_WEIGHTS_OVERWRITE = 1  # dnnl_rnn_flags_t: gradients of weights are written, not added to
SCRATCHPAD_MODE_USER = 1
FORMAT_TAG_ANY = 1

DATA_TYPES: dict[torch.dtype, int] = {
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float32: 3,
    torch.int32: 4,
    torch.int8: 5,
    torch.uint8: 6,
    torch.float64: 7,
    torch.float8_e5m2: 9,
    torch.float8_e4m3fn: 10,
    torch.int4: 11,  # type: ignore[attr-defined]
    torch.uint4: 12,  # type: ignore[attr-defined]
}

# torch's names of the precision a float32 product may be computed in -> dnnl_fpmath_mode_t. "none" means nobody chose.
MATH_MODES: dict[str, int] = {"none": 0, "ieee": 0, "bf16": 1, "f16": 2, "tf32": 4}

_handle = c_void_p
_out = POINTER(c_void_p)

# Calls that may compile, allocate or enqueue: the GIL is released around them.
_BLOCKING: dict[str, tuple[Any, ...]] = {
    "dnnl_sycl_interop_engine_create": (_out, c_void_p, c_void_p),
    "dnnl_sycl_interop_stream_create": (_out, _handle, c_void_p),
    "dnnl_primitive_create": (_out, _handle),
    "dnnl_matmul_primitive_desc_create": (_out, *[_handle] * 6),
    "dnnl_reorder_primitive_desc_create": (_out, *[_handle] * 5),
    **{
        f"dnnl_{kind}_forward_primitive_desc_create": (
            _out,
            _handle,
            c_int,
            c_int,
            *[_handle] * 4,
            *[Dims] * 4,
            _handle,
        )
        for kind in ("convolution", "deconvolution")
    },
    **{
        f"dnnl_{kind}_backward_data_primitive_desc_create": (
            (_out, _handle, c_int, *[_handle] * 3, *[Dims] * 4, _handle, _handle)
        )
        for kind in ("convolution", "deconvolution")
    },
    **{
        f"dnnl_{kind}_backward_weights_primitive_desc_create": (
            (_out, _handle, c_int, *[_handle] * 4, *[Dims] * 4, _handle, _handle)
        )
        for kind in ("convolution", "deconvolution")
    },
    # Recurrent layers: direction, operands, (gradients,) flags, (what forward was,) attributes. The cell of no gates
    # takes its function before the direction, and two floats, which are the guard's zeros: it is the one of thirty
    # words that has them, hence the nothing at the end.
    **{
        f"dnnl_{kind}_{way}_primitive_desc_create": (_out, _handle, c_int, *first, c_int, *handles, c_uint, *last)
        for kind, first, operands in (
            ("vanilla_rnn", (c_int,), 7),
            ("lstm", (), 11),
            ("lbr_gru", (), 7),
        )
        for way, handles, last in (
            ("forward", [_handle] * operands, (_handle, c_void_p)),
            ("backward", [_handle] * 2 * operands, (_handle, _handle)),
        )
    },
}

# Calls of the shim alone.
_MEMORIES = ("sycl_interop_memory_create", "memory_destroy")

# Calls that take well under a microsecond: giving up the GIL would cost more than they do.
_QUICK: dict[str, tuple[Any, ...]] = {
    "dnnl_memory_desc_create_with_strides": (_out, c_int, Dims, c_int, Dims),
    "dnnl_memory_desc_create_with_tag": (_out, c_int, Dims, c_int, c_int),
    "dnnl_memory_desc_clone": (_out, _handle),
    "dnnl_memory_desc_get_blob": (c_void_p, POINTER(c_size_t), _handle),
    "dnnl_memory_desc_destroy": (_handle,),
    "dnnl_primitive_desc_destroy": (_handle,),
    "dnnl_primitive_desc_query": (_handle, c_int, c_int, c_void_p),
    "dnnl_primitive_destroy": (_handle,),
    "dnnl_primitive_attr_create": (_out,),
    "dnnl_primitive_attr_destroy": (_handle,),
    "dnnl_primitive_attr_set_scratchpad_mode": (_handle, c_int),
    "dnnl_primitive_attr_set_fpmath_mode_v2": (_handle, c_int, c_int),
    "dnnl_primitive_attr_set_deterministic": (_handle, c_int),
    "dnnl_primitive_attr_set_post_ops": (_handle, _handle),
    "dnnl_primitive_attr_set_scales": (_handle, c_int, c_int, c_int, Dims, c_int),
    "dnnl_primitive_attr_set_zero_points": (_handle, c_int, c_int, c_int, Dims, c_int),
    "dnnl_post_ops_create": (_out,),
    "dnnl_post_ops_destroy": (_handle,),
    "dnnl_post_ops_append_eltwise": (_handle, c_int, c_float, c_float),
    "dnnl_post_ops_append_sum": (_handle, c_float, c_int32, c_int),
    "dnnl_post_ops_append_binary": (_handle, c_int, _handle),
    "dnnl_post_ops_append_prelu": (_handle, c_int),
}

# Calls whose answer is not a status.
_ANSWERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dnnl_primitive_desc_query_md": (c_void_p, (_handle, c_int, c_int)),
    "dnnl_memory_desc_get_size": (c_size_t, (_handle,)),
    "dnnl_memory_desc_equal": (c_int, (_handle, _handle)),
}


class OneDnnError(AnyxpuError):
    """A call of oneDNN failed.

    Attributes:
        status: what it returned, one of :class:`Status` as far as that names it.
    """

    hint = "; run with ONEDNN_VERBOSE=all to see oneDNN's own account"

    def __init__(self, call: str, status: int, what: str) -> None:
        self.status = status
        name = Status(status).name.lower() if status in list(Status) else f"status {status}"
        if status == EXCEPTION:
            name = f"with an exception ({(library().exception() or b'').decode(errors='replace')})"
        super().__init__(f"oneDNN answered {name} to {call} for {what}{self.hint}")


class DeviceLost(OneDnnError, torch.AcceleratorError):
    """The device stopped answering while oneDNN used it."""

    hint = (
        ". The device does not answer any more: save what the host has and start the program anew (`anyxpu doctor` "
        "says whether the driver sees the device again)"
    )


class OutOfMemory(OneDnnError, torch.OutOfMemoryError):
    """oneDNN found no memory for what it keeps by itself: kernels, constants, a copy of weights."""

    hint = ". torch.xpu.empty_cache() gives back what the allocator keeps"


class Unavailable(OneDnnError):
    """oneDNN cannot do this here; another way can."""


class Unimplemented(Unavailable):
    """oneDNN has no implementation of this primitive for these operands on this device."""


class NotBuilt(Unavailable):
    """oneDNN has an implementation, and its kernels did not build.

    Those that it writes in OpenCL C (most it assembles itself) are built for a GPU by Intel's OpenCL driver.
    """

    hint = (
        ". Is Intel's OpenCL driver for this GPU installed (Debian and Ubuntu: intel-opencl-icd)? Run with "
        "ONEDNN_VERBOSE=all to see oneDNN's own account"
    )


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


def library_path() -> Path:
    """The shared library of the installed ``onednn`` package.

    Raises:
        AnyxpuError: the package is not installed, or holds no library.
    """
    try:
        files = importlib.metadata.distribution("onednn").files or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "libdnnl.so.3":
            path = Path(os.path.abspath(file.locate()))
            if path.exists():
                return path
    raise AnyxpuError("oneDNN is not installed beside this Python. Install it: pip install onednn")


class Library:
    """oneDNN's calls as attributes, without their ``dnnl_`` prefix; each returns its status.

    Attributes:
        calls: what the shim runs primitives with (shim/primitives.h): on a stream over the very queue, past the queue's
            gate, so that a small kernel of another thread does not run at the same time in the place of one that would
            wait for its turn; or, on a CPU, on a stream over a queue beside (drivers/sycl/host_tasks.cpp).
        takes_host_tasks: whether the latter can be had.
    """

    version: tuple[int, int, int]

    def __init__(self, path: Path) -> None:
        # The shim has loaded the driver; this only finds it again.
        driver = str(build.driver(SYCL_DRIVER).path())
        quick, guard = ctypes.PyDLL(str(path)), ctypes.CDLL(driver)
        self.exception = ctypes.PyDLL(driver).anyxpu_sycl_guarded_exception
        self.exception.argtypes, self.exception.restype = (), c_char_p
        for name, argtypes in _BLOCKING.items():
            self._bind_guarded(ctypes.CFUNCTYPE, guard, quick, name, argtypes)
        self.takes_host_tasks = not _verbose() and bool(guard.anyxpu_sycl_take_host_tasks(c_void_p(quick._handle)))
        self.calls = lib().PrimitiveCalls(
            *(_address(guard, "anyxpu_sycl_guarded_6"), *(_address(quick, f"dnnl_{name}") for name in _MEMORIES)),
            *(_address(guard, name) for name in ("anyxpu_sycl_submit_6", "anyxpu_sycl_take_6")),
            _address(quick, "dnnl_sycl_interop_primitive_execute"),
        )
        for name, argtypes in _QUICK.items():
            self._bind(quick, name, c_int, argtypes)
        for name, (restype, argtypes) in _ANSWERS.items():
            self._bind(quick, name, restype, argtypes)
        quick.dnnl_version.restype = POINTER(_Version)
        found = quick.dnnl_version().contents
        self.version = (found.major, found.minor, found.patch)
        if found.cpu_runtime != SYCL_RUNTIME and found.gpu_runtime != SYCL_RUNTIME:
            raise AnyxpuError(
                f"{path} is oneDNN {'.'.join(map(str, self.version))} built without SYCL, so it cannot run on xpu's "
                "queues. Install the SYCL build: pip install --force-reinstall onednn"
            )

    def __getattr__(self, name: str) -> Callable[..., int]:
        # Every call in the tables is an attribute of its own: only a name that is in none of them comes here.
        raise AttributeError(f"oneDNN's dnnl_{name} is in none of the tables of prototypes")

    def _bind(self, source: ctypes.CDLL, name: str, restype: Any, argtypes: tuple[Any, ...]) -> None:
        function = getattr(source, name)
        function.restype, function.argtypes = restype, argtypes
        setattr(self, name.removeprefix("dnnl_"), function)

    def _bind_guarded(
        self, kind: Callable[..., Any], guard: ctypes.CDLL, source: ctypes.CDLL, name: str, argtypes: tuple[Any, ...]
    ) -> None:
        """A call through the driver's guard (drivers/sycl/interop.cpp), which lets no C++ exception into Python."""
        words = next(n for n in (6, 14, 30) if n >= len(argtypes))
        address = ctypes.cast(getattr(guard, f"anyxpu_sycl_guarded_{words}"), c_void_p).value
        target, unused = ctypes.cast(getattr(source, name), c_void_p), words - len(argtypes)
        prototype = kind(c_int, c_void_p, *argtypes, *[c_void_p] * unused)
        assert address is not None
        function, padding = prototype(address), (None,) * unused

        def call(*args: Any) -> int:
            return int(function(target, *args, *padding))

        setattr(self, name.removeprefix("dnnl_"), call if unused else functools.partial(function, target))


def _verbose() -> bool:
    """Whether oneDNN is asked for its own account: its times are those of its host tasks."""
    return any(os.environ.get(name, "0") not in ("0", "none") for name in ("ONEDNN_VERBOSE", "DNNL_VERBOSE"))


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0


@cache
def library() -> Library:
    """oneDNN, loaded at the first call."""
    return Library(library_path())


def call(name: str, *args: Any, what: str) -> None:
    """Call ``dnnl_<name>``.

    Args:
        name: the call, without its prefix.
        args: as its C prototype has them.
        what: the operator and its shapes, for the error.

    Raises:
        Unavailable: oneDNN cannot do it on this device.
        OneDnnError: any other failure.
    """
    status = getattr(library(), name)(*args)
    if status:
        raise error(name, status, what)


def create(name: str, *args: Any, what: str) -> int:
    """Call ``dnnl_<name>(&handle, *args)`` and return the new handle. Raises as :func:`call` does."""
    handle = c_void_p()
    call(name, ctypes.byref(handle), *args, what=what)
    assert handle.value is not None
    return handle.value


def error(name: str, status: int, what: str) -> OneDnnError:
    """The exception that stands for a failed call."""
    if status == Status.UNIMPLEMENTED:
        return Unimplemented(name, status, what)
    if name == "primitive_create" and status == Status.RUNTIME_ERROR:
        return NotBuilt(name, status, what)
    if status == NOTHING_TAKEN:
        return OneDnnError(name, status, f"{what}, which is no host task")
    said = library().exception() or b"" if status == EXCEPTION else b""
    if b"DEVICE_LOST" in said:
        return DeviceLost(name, status, what)
    if status == Status.OUT_OF_MEMORY or b"OUT_OF_DEVICE_MEMORY" in said or b"OUT_OF_HOST_MEMORY" in said:
        return OutOfMemory(name, status, what)
    return OneDnnError(name, status, what)
