"""Memory descriptors, executable primitives, and the cache that keeps them.

oneDNN takes a reference to the primitive and to each memory object when a primitive is submitted and drops it when the
work is done, but it reads a memory object's address only when the work runs (so it is on the CPU: the work is a host
task of the queue). Re-pointing a cached memory object would therefore redirect work that is still queued; each
submission makes its own memory objects (half a microsecond each) and gives them up at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from anyxpu.onednn import capi
from anyxpu.onednn.capi import Algorithm, Arg, Query
from anyxpu.onednn.engine import Engine, Stream
from anyxpu.shim import lib

T = TypeVar("T")


def dims(values: Sequence[int]) -> ctypes.Array:
    """``values`` as a dnnl_dims_t."""
    return capi.Dims(*values)


def describable(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether oneDNN has a name for such a layout: the stride of each dimension clears all that the smaller ones span.

    Dimensions may be in any order, and there may be gaps (heads of attention interleave). Windows that overlap have no
    name, nor have rows of which the last ends before the next stride does: every second row and column of an image of
    odd sizes. Sizes of 1 have any stride.
    """
    if 0 in shape:
        return True
    extent = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride < extent:
                return False
            extent = stride * size
    return True


class MemoryDesc:
    """Shape, data type and layout of an operand; owns a dnnl_memory_desc_t.

    Attributes:
        handle: the C object, as an integer.
        nbytes: bytes the operand spans.
    """

    __slots__ = ("handle", "nbytes")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.nbytes = capi.library().memory_desc_get_size(handle)

    @classmethod
    def plain(cls, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int]) -> MemoryDesc:
        """A strided layout; ``strides`` count elements, as torch's do."""
        what = f"a memory of shape {tuple(shape)}, strides {tuple(strides)}, {dtype}"
        data_type = capi.DATA_TYPES[dtype]
        args = (len(shape), dims(shape), data_type, dims(strides))
        return cls(capi.create("memory_desc_create_with_strides", *args, what=what))

    @classmethod
    def any(cls, shape: Sequence[int], dtype: torch.dtype) -> MemoryDesc:
        """A layout left for the primitive to choose."""
        args = (len(shape), dims(shape), capi.DATA_TYPES[dtype], capi.FORMAT_TAG_ANY)
        what = f"a memory of shape {tuple(shape)}, {dtype}"
        return cls(capi.create("memory_desc_create_with_tag", *args, what=what))

    def blob(self) -> bytes:
        """All of it as bytes: two that are the same describe the same layout."""
        size = ctypes.c_size_t()
        capi.call("memory_desc_get_blob", None, ctypes.byref(size), self.handle, what="a memory")
        bytes_ = ctypes.create_string_buffer(size.value)
        capi.call("memory_desc_get_blob", bytes_, ctypes.byref(size), self.handle, what="a memory")
        return bytes_.raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryDesc) and bool(capi.library().memory_desc_equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]

    def __del__(self) -> None:
        # At the interpreter's end the module may be gone before the object.
        if capi is not None:
            capi.library().memory_desc_destroy(self.handle)


@dataclass(frozen=True)
class Factors:
    """Scales or zero points of an operand that is quantized. Their values are an operand of their own.

    Attributes:
        arg: the operand.
        mask: of its dimensions along which they change.
        dtype: theirs.
        groups: how many elements share one along the last two dimensions, where more than one does along a dimension
            of the mask.
    """

    arg: Arg
    mask: int
    dtype: torch.dtype
    groups: tuple[int, ...] = ()

    def set(self, kind: str, attributes: int, what: str) -> None:
        """Make them ``scales`` or ``zero_points`` of a dnnl_primitive_attr_t."""
        args = (self.arg, self.mask, len(self.groups), dims(self.groups), capi.DATA_TYPES[self.dtype])
        capi.call(f"primitive_attr_set_{kind}", attributes, *args, what=what)


@dataclass(frozen=True)
class Attributes:
    """What a primitive does besides its main work (dnnl_primitive_attr_t).

    Attributes:
        alpha: factor on the result, applied before ``beta``.
        beta: the destination's old value times this is added; 0 ignores the old value.
        math_mode: how a float32 product may be computed, one of capi.MATH_MODES.
        deterministic: the same operands give the same bits in every run.
        binary: an operator between what these make and another operand, :attr:`Arg.FIRST_POST_OP`, as (algorithm,
            that operand's shape, strides, dtype); None for none. Not together with ``alpha`` or ``beta``.
        eltwise: functions applied to what these make, each as (algorithm, its alpha, its beta).
        slopes: of which dimensions, as a mask, negative numbers have factors of their own (prelu), which are an operand
            (:attr:`slopes_arg`); None for no such function. Not together with ``alpha`` or ``eltwise``.
        zero_point: of the destination's old value, taken from it before ``beta``.
        scales, zero_points: of operands that are quantized (:attr:`Arg.SRC_SCALE` and the like are their values).
        widened: weights of integers are computed with as ``math_mode`` has it, like the source's numbers.
    """

    alpha: float = 1.0
    beta: float = 0.0
    math_mode: str = "none"
    deterministic: bool = False
    binary: tuple[Algorithm, tuple[int, ...], tuple[int, ...], torch.dtype] | None = None
    eltwise: tuple[tuple[Algorithm, float, float], ...] = ()
    slopes: int | None = None
    zero_point: int = 0
    scales: tuple[Factors, ...] = ()
    zero_points: tuple[Factors, ...] = ()
    widened: bool = False

    @property
    def slopes_arg(self) -> Arg:
        """Which operand the factors of negative numbers are."""
        return Arg.SECOND_SLOPES if self.beta or self.binary else Arg.FIRST_SLOPES

    def create(self, what: str) -> int:
        """A new dnnl_primitive_attr_t with the scratchpad left to the caller."""
        attributes = capi.create("primitive_attr_create", what=what)
        capi.call("primitive_attr_set_scratchpad_mode", attributes, capi.SCRATCHPAD_MODE_USER, what=what)
        mode = capi.MATH_MODES[self.math_mode]
        if mode or self.widened:
            capi.call("primitive_attr_set_fpmath_mode_v2", attributes, mode, self.widened, what=what)
        if self.deterministic:
            capi.call("primitive_attr_set_deterministic", attributes, 1, what=what)
        for scales in self.scales:
            scales.set("scales", attributes, what)
        for points in self.zero_points:
            points.set("zero_points", attributes, what)
        post_ops = capi.create("post_ops_create", what=what)
        try:
            if self.alpha != 1.0:
                linear = Algorithm.ELTWISE_LINEAR
                capi.call("post_ops_append_eltwise", post_ops, linear, self.alpha, 0.0, what=what)
            if self.beta != 0.0:
                capi.call("post_ops_append_sum", post_ops, self.beta, self.zero_point, 0, what=what)
            if self.binary is not None:
                algorithm, shape, strides, dtype = self.binary
                operand = MemoryDesc.plain(shape, dtype, strides)
                capi.call("post_ops_append_binary", post_ops, algorithm, operand.handle, what=what)
            for function in self.eltwise:
                capi.call("post_ops_append_eltwise", post_ops, *function, what=what)
            if self.slopes is not None:
                capi.call("post_ops_append_prelu", post_ops, self.slopes, what=what)
            capi.call("primitive_attr_set_post_ops", attributes, post_ops, what=what)  # copies them
        finally:
            capi.library().post_ops_destroy(post_ops)
        return attributes


def _is_reference(implementation: str) -> bool:
    return "ref" in implementation.split(":")


class PrimitiveDesc:
    """A primitive chosen for given operands; owns a dnnl_primitive_desc_t."""

    def __init__(self, kind: str, *args: Any, what: str) -> None:
        self.what = what
        self.handle = capi.create(f"{kind}_primitive_desc_create", *args, what=what)

    def implementation(self) -> str:
        """oneDNN's name of the implementation, such as ``brg_matmul:avx512_core``."""
        text = ctypes.c_char_p()
        capi.call("primitive_desc_query", self.handle, Query.IMPL_INFO_STR, 0, ctypes.byref(text), what=self.what)
        return (text.value or b"").decode()

    def is_reference(self) -> bool:
        """Whether it is one of oneDNN's slow ones (``ref:any``, ``ocl:ref:any`` on a GPU), which are for all cases."""
        return _is_reference(self.implementation())

    def operand(self, arg: Arg) -> MemoryDesc:
        """The layout the primitive wants of one operand."""
        return self._copy(capi.library().primitive_desc_query_md(self.handle, Query.EXEC_ARG_MD, int(arg)))

    def scratchpad(self) -> MemoryDesc:
        """The temporary the primitive wants while it runs; may be of 0 bytes."""
        return self._copy(capi.library().primitive_desc_query_md(self.handle, Query.SCRATCHPAD_MD, 0))

    def _copy(self, borrowed: int) -> MemoryDesc:
        return MemoryDesc(capi.create("memory_desc_clone", borrowed, what=self.what))

    def __del__(self) -> None:
        if capi is not None and hasattr(self, "handle"):
            capi.library().primitive_desc_destroy(self.handle)


class Executable:
    """A primitive with its operands' layouts: everything but the addresses.

    Args:
        engine: where it runs.
        description: the chosen primitive.
        operands: its arguments, in the order :meth:`run` takes their addresses.
        factors: scales, zero points and slopes, which come after those, with their layouts.
    """

    __slots__ = (
        "_handle",
        "_layouts",
        "_primitive",
        "implementation",
        "operations",
        "scratch_bytes",
        "what",
    )

    def __init__(
        self,
        engine: Engine,
        description: PrimitiveDesc,
        operands: Sequence[Arg],
        factors: Mapping[Arg, MemoryDesc] = MappingProxyType({}),
    ) -> None:
        self.what = description.what
        self.implementation = description.implementation()
        self._layouts = {arg: description.operand(arg) for arg in operands}
        scratchpad = description.scratchpad()
        self.scratch_bytes = scratchpad.nbytes
        # Of a product or convolution, each of whose sizes is one of two operands: three operands' sizes, multiplied,
        # are the square of its multiplications. Only the order of magnitude matters.
        largest = sorted(float(layout.nbytes) for layout in self._layouts.values())[-3:]
        self.operations = max(1, int(math.sqrt(math.prod(largest))))
        self._layouts.update(factors)
        if self.scratch_bytes:
            self._layouts[Arg.SCRATCHPAD] = scratchpad
        self._handle = capi.create("primitive_create", description.handle, what=self.what)
        taken = [(int(arg), layout.handle) for arg, layout in self._layouts.items()]
        args = (self._handle, engine.handle, taken, self.operations, self.what)
        self._primitive = lib().Primitive(capi.library().calls, *args)

    @property
    def is_reference(self) -> bool:
        """As :meth:`PrimitiveDesc.is_reference`."""
        return _is_reference(self.implementation)

    def layout(self, arg: Arg) -> MemoryDesc:
        """The layout one operand must have."""
        return self._layouts[arg]

    def run(self, stream: Stream, *addresses: int) -> None:
        """Enqueue it.

        Args:
            stream: :func:`anyxpu.onednn.engine.stream`'s.
            addresses: of the operands, then of the scratchpad where ``scratch_bytes`` is not 0.

        Raises:
            OneDnnError: oneDNN refused it.
        """
        lib().keep_recorded(self)
        self._primitive.run(*stream, addresses)

    def __del__(self) -> None:
        if capi is not None and hasattr(self, "_handle"):
            capi.library().primitive_destroy(self._handle)


def reorder(engine: Engine, source: MemoryDesc, target: MemoryDesc, what: str, added: bool = False) -> Executable:
    """A copy from one layout (and data type) to another, or added to what is there; operands SRC, DST."""
    attributes = Attributes(beta=1.0 if added else 0.0).create(what)
    try:
        args = (source.handle, engine.handle, target.handle, engine.handle, attributes)
        description = PrimitiveDesc("reorder", *args, what=f"a reorder in {what}")
    finally:
        capi.library().primitive_attr_destroy(attributes)
    return Executable(engine, description, (Arg.SRC, Arg.DST))


class Change:
    """An operand from the layout it has into the one a primitive wants.

    Args:
        engine: where it runs.
        given, wanted: the two layouts.
        what: for messages.
        form: of :func:`form`, where what it makes is kept, from the second time on that the operand comes unchanged
            (a weight, in inference), until something writes to the operand's memory (shim/kept_copies.h).
    """

    def __init__(
        self, engine: Engine, given: MemoryDesc, wanted: MemoryDesc, what: str, form: int | None = None
    ) -> None:
        self.primitive, self.wanted, self.form = reorder(engine, given, wanted, what), wanted, form

    def run(self, operand: Tensor, stream: Stream) -> Tensor:
        """Enqueue it on the device's current stream, which ``stream`` stands for, where no copy is kept.

        Returns:
            The operand in the wanted layout, as bytes; to be kept until its reader is enqueued.
        """
        if self.form is None:
            return self.make(operand, stream)
        token, copy, wanted = lib().find_copy(operand, self.form)
        return self.make(operand, stream, token if wanted else 0) if copy is None else copy

    def make(self, operand: Tensor, stream: Stream, token: int = 0) -> Tensor:
        """The same anew; kept where ``token`` is not 0 but ``find_copy``'s."""
        made = torch.empty(self.wanted.nbytes, dtype=torch.uint8, device=operand.device)
        run(self.primitive, stream, operand.device, operand.data_ptr(), made.data_ptr())
        if token:
            lib().keep_copy(operand, self.form, token, made)
        return made


def keeps_copies() -> bool:
    """Whether copies of weights are kept at all."""
    return os.environ.get("ANYXPU_KEEP_WEIGHTS") != "0"


def form(*facts: bytes) -> int | None:
    """The number of a form in which copies are kept, the same for the same facts; None where none are kept."""
    if not keeps_copies():
        return None
    digest = hashlib.blake2b(digest_size=8)
    for fact in facts:
        digest.update(fact)
    return int.from_bytes(digest.digest())


def run(executable: Executable, stream: Stream, device: torch.device, *addresses: int) -> None:
    """Enqueue ``executable`` with a scratchpad from the caching allocator, where it wants one.

    The scratchpad belongs to the device's current stream, which must be the one ``stream`` stands for; it may be
    given back on return, because whoever gets it next on this stream runs after.
    """
    if executable.scratch_bytes:
        scratch = torch.empty(executable.scratch_bytes, dtype=torch.uint8, device=device)
        executable.run(stream, *addresses, scratch.data_ptr())
    else:
        executable.run(stream, *addresses)
    lib().note_work(device.index, executable.operations)


class SignatureCache(Generic[T]):
    """What was built for a call's signature, the least recently used given up first. Thread-safe.

    Two threads that miss the same signature at once both build it; one of the two is kept.

    Args:
        capacity: entries kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, build: Callable[..., T], *args: Any) -> T:
        """The entry of ``key``, made by ``build(*args)`` where it is missing."""
        entries = self._entries
        try:
            # Each of the two steps is one C call under the GIL. Another thread's eviction may fall between them.
            entry = entries[key]
            entries.move_to_end(key)
        except KeyError:
            pass
        else:
            self.hits += 1
            return entry
        self.misses += 1
        entry = entries[key] = build(*args)
        while len(entries) > self.capacity:
            try:
                entries.popitem(last=False)
            except KeyError:
                break
        return entry

    def clear(self) -> None:
        """Forget everything, the counts included."""
        self._entries.clear()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)
