"""The small IR that TTGIR text is parsed into: types, values, operations with regions.

It mirrors MLIR's structure and nothing more; what an operation means lives in the tables of the emitter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scalar:
    """A number: ``i1 i8 i16 i32 i64 f16 bf16 f32 f64 index`` or one of MLIR's ``f8E…`` names."""

    name: str

    @property
    def is_float(self) -> bool:
        return self.name[0] == "f" or self.name == "bf16"

    @property
    def bits(self) -> int:
        if self.name == "index":
            return 64
        if self.name == "bf16":
            return 16
        if self.name.startswith("f8"):
            return 8
        return int(self.name[1:])

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pointer:
    """A global address of elements of ``pointee``."""

    pointee: Type

    is_float = False
    bits = 64

    def __str__(self) -> str:
        return f"!tt.ptr<{self.pointee}>"


@dataclass(frozen=True)
class Tensor:
    """A block of ``shape`` (each a power of two) elements, spread over a work-group as ``encoding`` says."""

    shape: tuple[int, ...]
    element: Scalar | Pointer
    encoding: Encoding | None

    @property
    def size(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    def __str__(self) -> str:
        return f"tensor<{'x'.join(map(str, (*self.shape, self.element)))}>"


@dataclass(frozen=True)
class Opaque:
    """A type that this IR carries but gives no meaning (``!ttg.memdesc<…>``, ``none``, …)."""

    text: str

    def __str__(self) -> str:
        return self.text


Type = Scalar | Pointer | Tensor | Opaque


@dataclass(frozen=True)
class Encoding:
    """A layout attribute as written: its kind (``blocked``, ``slice``, …) and its parameters.

    Parameters are ints, strings, (nested) tuples of ints, or another Encoding (``parent``).
    """

    kind: str
    params: tuple[tuple[str, Any], ...]

    def __getitem__(self, key: str) -> Any:
        for name, value in self.params:
            if name == key:
                return value
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        return next((value for name, value in self.params if name == key), default)


class Value:
    """What one operation or block argument defines.

    ``multiple`` divides a number that is an argument of the kernel: Triton compiles kernels for such numbers apart.
    """

    __slots__ = ("multiple", "name", "owner", "type")

    def __init__(self, name: str, type: Type, owner: Op | Block | None = None) -> None:
        self.name, self.type, self.owner, self.multiple = name, type, owner, 1

    @property
    def element(self) -> Scalar | Pointer:
        """The value's own type, or its elements' where it is a tensor."""
        t = self.type.element if isinstance(self.type, Tensor) else self.type
        assert not isinstance(t, (Opaque, Tensor))
        return t

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.type, Tensor)

    @property
    def integer(self) -> int | None:
        """The number, or every element's, where that is a constant integer."""
        op = self.owner if isinstance(self.owner, Op) else None
        number = op.attrs.get("value") if op is not None and op.name == "arith.constant" else None
        return int(number) if isinstance(number, int) or number == 0 else None

    def __repr__(self) -> str:
        return f"<%{self.name}: {self.type}>"


@dataclass(eq=False)
class Op:
    """One operation.

    ``words`` are the bare keywords of its printed form, in order (a comparison's predicate, an atomic's kind);
    ``attrs`` its named attributes.
    """

    name: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)

    @property
    def result(self) -> Value:
        return self.results[0]


@dataclass(eq=False)
class Block:
    label: str
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    blocks: list[Block] = field(default_factory=list)

    @property
    def entry(self) -> Block:
        return self.blocks[0]


@dataclass(eq=False)
class Function:
    name: str
    args: list[Value]
    results: list[Type]
    body: Region | None
    public: bool = False
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Module:
    functions: list[Function]
    attrs: dict[str, Any]

    @property
    def kernel(self) -> Function:
        """The one public function."""
        return next(f for f in self.functions if f.public)


def walk(region: Region) -> Iterator[Op]:
    """Every operation below ``region``, outer before inner, in order."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def blocks(region: Region) -> Iterator[Block]:
    """Every block of ``region`` and below it."""
    for block in region.blocks:
        yield block
        for op in block.ops:
            for inner in op.regions:
                yield from blocks(inner)
